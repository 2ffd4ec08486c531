//! The kernels on the emulator against the CPU's ring.

use crate::ffi::emulator::is_present;
use crate::memory::CHUNK;
use crate::selftest::{Ring, compare, probe};
use crate::{Arithmetic, CudaBackend, CudaPoly, CudaRoutine, Error};
use hetal_circuits::{Bootstrapper, Encrypted, bootstrap, encrypted};
use hetal_ckks::backend::Failure;
use hetal_ckks::bytes::{Codec, FormatError};
use hetal_ckks::{Backend, Ciphertext, EvaluationKeys, Evaluator, Params};
use hetal_learn::softmax::Constants;
use hetal_learn::trainer::{self, Trainer};
use hetal_learn::{CachedBatch, Geometry, LevelPlan, Limits, RowBlob, Session, session};
use hetal_ring::{Basis, Isa, RnsRing, prime};
use hetal_testkit::{Client, complex_vector};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const ARITHMETICS: [Arithmetic; 2] = [Arithmetic::Fp64, Arithmetic::Integer];

fn launches(count: usize) -> Arc<AtomicUsize> {
    Arc::new(AtomicUsize::new(count))
}

#[test]
fn every_operation_gives_the_cpus_bytes_at_a_toy_set() {
    if !is_present() {
        return;
    }
    let params = Params::named("insecure-toy11").unwrap();
    let ring = Ring { log_n: 11, q: params.chain(), p: params.special(), digit_starts: params.digit_starts() };
    let cpu = RnsRing::new(11, ring.q, ring.p, Isa::detect()).unwrap();
    for arithmetic in ARITHMETICS {
        let gpu = CudaBackend::emulated_by(arithmetic, 11, ring.q, ring.p).unwrap();
        let report = compare(&gpu, &cpu, &ring, 1).unwrap();
        assert!(report.mismatches.is_empty(), "{arithmetic:?}: {:#?}", report.mismatches);
        assert!(report.compared > 800, "{}", report.compared);
    }
}

/// Small, medium and large primes, in every order that matters: the widest conversions and products.
#[test]
fn every_size_of_prime_gives_the_cpus_bytes() {
    if !is_present() {
        return;
    }
    for log_n in [10, 13] {
        let primes = |bits: u32, count: usize| prime::ntt_primes_below(bits, log_n, count);
        let q = [primes(51, 3), primes(50, 2), primes(20, 1), primes(47, 1), primes(48, 1)].concat();
        let p = primes(51, 6)[3..].to_vec();
        let ring = Ring { log_n, q: &q, p: &p, digit_starts: &[0, 2, 4, 5, 6, 7] };
        // The larger degree is for the transforms' other shapes, which both have in common.
        for &arithmetic in &ARITHMETICS[..if log_n == 10 { 2 } else { 1 }] {
            let gpu = CudaBackend::emulated_by(arithmetic, log_n, &q, &p).unwrap();
            let cpu = RnsRing::new(log_n, &q, &p, Isa::detect()).unwrap();
            let report = compare(&gpu, &cpu, &ring, u64::from(log_n)).unwrap();
            assert!(report.mismatches.is_empty(), "{arithmetic:?}, log n {log_n}: {:#?}", report.mismatches);
        }
    }
}

#[test]
fn transforms_of_every_degree_give_the_cpus_bytes() {
    if !is_present() {
        return;
    }
    for log_n in 10..=17 {
        let q: Vec<u64> = [40, 50, 51].iter().map(|&bits| prime::ntt_primes_below(bits, log_n, 1)[0]).collect();
        for &arithmetic in &ARITHMETICS[..if [10, 13, 17].contains(&log_n) { 2 } else { 1 }] {
            let gpu = CudaBackend::emulated_by(arithmetic, log_n, &q, &[]).unwrap();
            let cpu = RnsRing::new(log_n, &q, &[], Isa::detect()).unwrap();
            let basis = Basis { q: 3, p: 0 };
            let n = 1i64 << log_n;
            let coefficients: Vec<i64> = (0..n).map(|k| k.wrapping_mul(0x1234_5678_9abc_def1) >> 2).collect();
            let (a, b) = (Backend::lift(&gpu, basis, &coefficients), Backend::lift(&cpu, basis, &coefficients));
            assert_eq!(gpu.download(&a), cpu.download(&b), "forward, {arithmetic:?}, log n {log_n}");
            let (a, b) = (Backend::divide(&gpu, a, 2), Backend::divide(&cpu, b, 2));
            assert_eq!(gpu.download(&a), cpu.download(&b), "backward, {arithmetic:?}, log n {log_n}");
        }
    }
}

/// Bootstraps in two forms and of two bounds, in turn, of two ciphertexts.
fn bootstraps<B: Backend>(
    bootstrapper: &Bootstrapper<B>,
    evaluator: &Evaluator<B>,
    [x, y]: [&Ciphertext<B::Poly>; 2],
    keys: &EvaluationKeys<B::Packed>,
) -> Vec<Ciphertext<B::Poly>> {
    let complex = |ct, log_bound| bootstrapper.bootstrap(evaluator, ct, log_bound, keys).unwrap();
    let real = |ct| bootstrapper.bootstrap_real(evaluator, ct, 0, keys).unwrap();
    vec![complex(x, 0), complex(y, 0), complex(x, 3), real(x), real(y), complex(y, 3), complex(x, 0)]
}

/// Kernel by kernel the first time, recorded and replayed the second, replayed from then on.
#[test]
fn bootstraps_give_the_cpus_bytes() {
    if !is_present() {
        return;
    }
    let client = Client::new("insecure-toy11", 5);
    let params = &client.params;
    let bootstrapper = Bootstrapper::new(&client.evaluator, &[0, 3]).unwrap();
    let mut host_keys = EvaluationKeys::default();
    client.add_keys(&mut host_keys, bootstrap::keys(params));
    let [x, y] = [3, 8].map(|salt| client.encrypt(&complex_vector(params.slots(), salt), 0));
    let expected = bootstraps(&bootstrapper, &client.evaluator, [&x, &y], &host_keys);

    let gpu = Arc::new(CudaBackend::emulated(params.log_n(), params.chain(), params.special()).unwrap());
    let evaluator = Evaluator::new(Arc::clone(params), Arc::clone(&gpu));
    let on_gpu = Bootstrapper::new(&evaluator, &[0, 3]).unwrap();
    let keys = gpu.upload_keys(&host_keys);
    let inputs = [&x, &y].map(|ct| gpu.upload_ciphertext(ct));
    let got = bootstraps(&on_gpu, &evaluator, inputs.each_ref(), &keys);
    for (number, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert_eq!((got.limbs, got.scale), (expected.limbs, expected.scale));
        assert!(gpu.download(&got.c0) == client.ring.download(&expected.c0), "number {number}");
        assert!(gpu.download(&got.c1) == client.ring.download(&expected.c1), "number {number}");
    }
    let graphs = gpu.graphs();
    assert_eq!((graphs.recorded, graphs.replayed, graphs.passed_over, graphs.ended), (3, 4, 0, None));
    let held = gpu.peak_bytes();
    // Other keys are elsewhere: what was recorded with the first ones is not replayed, nor kept.
    let keys = gpu.upload_keys(&host_keys);
    let again = on_gpu.bootstrap(&evaluator, &inputs[0], 0, &keys).unwrap();
    assert!(gpu.download(&again.c0) == client.ring.download(&expected[0].c0));
    assert_eq!((gpu.graphs().recorded, gpu.graphs().replayed), (2, 4));
    drop(on_gpu);
    assert_eq!(gpu.graphs().recorded, 0, "recordings go with what they are of");

    // A rehearsal without a card counts the same memory.
    let rehearsal = Arc::new(CudaBackend::rehearsal(params.log_n(), params.chain(), params.special()).unwrap());
    let evaluator = Evaluator::new(Arc::clone(params), Arc::clone(&rehearsal));
    let rehearsed = Bootstrapper::new(&evaluator, &[0, 3]).unwrap();
    let keys = rehearsal.upload_keys(&host_keys);
    let inputs = [&x, &y].map(|ct| rehearsal.upload_ciphertext(ct));
    drop(bootstraps(&rehearsed, &evaluator, inputs.each_ref(), &keys));
    assert_eq!(rehearsal.peak_bytes(), held);
}

#[test]
fn rings_without_kernels_are_refused() {
    if !is_present() {
        return;
    }
    let q = prime::ntt_primes_below(50, 9, 1);
    assert!(matches!(CudaBackend::emulated(9, &q, &[]), Err(Error::Driver { .. } | Error::Unsupported { .. })));
    assert!(CudaBackend::emulated(10, &[65537], &[]).is_ok());
    assert!(matches!(CudaBackend::emulated(10, &[12289], &[]), Err(Error::Unsupported { .. })));
    assert!(matches!(CudaBackend::emulated(10, &[], &[]), Err(Error::Unsupported { .. })));
}

/// Where there is no card, the words say so and nothing panics.
#[test]
fn a_machine_without_a_card_is_told_so() {
    let q = prime::ntt_primes_below(50, 10, 1);
    match CudaBackend::open(0, 10, &q, &[]) {
        Ok(backend) => println!("there is one: {}", backend.describe()),
        Err(Error::NoGpu { reason }) => assert!(Error::NoGpu { reason }.to_string().starts_with("no GPU")),
        Err(other) => println!("{other}"),
    }
}

#[test]
fn out_of_memory_is_told_and_kept() {
    if !is_present() {
        return;
    }
    let q = prime::ntt_primes_below(50, 10, 4);
    let gpu = CudaBackend::emulated_with(10, &q, &[], 1 << 20, launches(usize::MAX)).unwrap();
    let basis = Basis { q: 4, p: 0 };
    let first = gpu.zero(basis);
    gpu.health().unwrap();
    let many: Vec<_> = (0..40).map(|_| gpu.zero(basis)).collect();
    assert!(matches!(gpu.health(), Err(Failure::OutOfMemory { needed: 32768, .. })));
    drop(many);
    // Nothing runs any more, and nothing crashes.
    let mut a = gpu.mul(&first, &first, basis);
    gpu.add_assign(&mut a, &first);
    let digits = gpu.decompose(a, &[0, 2], 0);
    drop(digits);
    let coefficients = vec![1; 1024];
    let a = gpu.divide(gpu.lift(basis, &coefficients), 1);
    assert!(matches!(gpu.download(&a), Err(Failure::OutOfMemory { .. })), "nothing false leaves the card");
    drop(gpu.concurrently(vec![(); 2], |()| gpu.zero(basis)));
    assert!(gpu.synchronize().is_err());
}

/// Buffers that a side of a fork did not take wait for its end; its own serve it again at once.
#[test]
fn sides_of_a_fork_do_not_share_buffers() {
    if !is_present() {
        return;
    }
    let q = prime::ntt_primes_below(50, 10, 1);
    let gpu = CudaBackend::emulated(10, &q, &[]).unwrap();
    let basis = Basis { q: 1, p: 0 };
    let (before, outer) = (gpu.zero(basis), gpu.zero(basis));
    let address = |p: &CudaPoly| p.device_address();
    let lent = address(&before);
    // One of them is the last owner of what was there before the fork.
    let own = gpu.concurrently(vec![Some(before), None, None], |before| {
        drop(before);
        let own = gpu.zero(basis);
        let mine = address(&own);
        assert_ne!(mine, lent);
        drop(own);
        assert_eq!(address(&gpu.zero(basis)), mine);
        mine
    });
    let places: BTreeSet<u64> = own.iter().copied().chain([address(&outer)]).collect();
    assert_eq!(places.len(), 4, "{own:?}");
    assert_eq!(address(&gpu.zero(basis)), lent);
}

/// What another thread gives back during a fork may be in use on its sides: it waits for the end.
#[test]
fn forks_come_one_by_one_and_keep_what_others_give_back() {
    if !is_present() {
        return;
    }
    let q = prime::ntt_primes_below(50, 10, 1);
    let gpu = CudaBackend::emulated(10, &q, &[]).unwrap();
    let basis = Basis { q: 1, p: 0 };
    let shared = gpu.zero(basis);
    let place = shared.device_address();
    let other_thread = |work: &(dyn Fn() -> u64 + Sync)| std::thread::scope(|s| s.spawn(work).join().unwrap());
    let shared = std::sync::Mutex::new(Some(shared));
    gpu.concurrently(vec![true, false], |is_first| {
        if is_first {
            drop(shared.lock().unwrap().clone());
            let next = other_thread(&|| {
                drop(shared.lock().unwrap().take());
                gpu.zero(basis).device_address()
            });
            assert_ne!(next, place);
        }
    });
    let all: Vec<CudaPoly> = (0..2 * CHUNK).map(|_| gpu.zero(basis)).collect();
    assert!(all.iter().any(|poly| poly.device_address() == place), "it is free again");
    assert_eq!(gpu.pool_bytes(), 2 * CHUNK * (8 << 10), "and so is all that was");
    // A second thread's fork waits for the first's end.
    let inside = AtomicUsize::new(0);
    let fork = || {
        gpu.concurrently(vec![(); 2], |()| {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
            std::thread::sleep(std::time::Duration::from_millis(5));
            inside.fetch_sub(1, Ordering::SeqCst);
        });
    };
    std::thread::scope(|s| (0..4).for_each(|_| drop(s.spawn(fork))));
    gpu.synchronize().unwrap();
}

/// A card is asked for what the CPU knows before it is used.
#[test]
fn a_card_that_computes_wrongly_or_not_is_found() {
    if !is_present() {
        return;
    }
    let params = Params::named("insecure-toy11").unwrap();
    let (q, p) = (params.chain(), params.special());
    let ring = Ring { log_n: 11, q, p, digit_starts: params.digit_starts() };
    let sound = CudaBackend::emulated(11, q, p).unwrap();
    let (free, total) = sound.memory().unwrap();
    probe(&sound, &ring).unwrap();
    let lost = CudaBackend::emulated_with(11, q, p, usize::MAX, launches(3)).unwrap();
    assert!(matches!(probe(&lost, &ring), Err(Error::Driver { .. })));
    // Room for its tables and four limbs.
    let full = CudaBackend::emulated_with(11, q, p, total - free + (64 << 10), launches(usize::MAX)).unwrap();
    assert!(probe(&full, &ring).unwrap_err().lacks_memory(), "others hold its memory");
    // Primes in another order: right for another ring.
    let wrong = CudaBackend::emulated(11, &[&q[1..3], &q[..1], &q[3..]].concat(), p).unwrap();
    let error = probe(&wrong, &ring).unwrap_err();
    assert!(error.to_string().contains("wrong result"), "{error}");
}

/// A fork's sides may still read what another thread would write: that moves to limbs of its own.
#[test]
fn what_is_changed_beside_a_fork_is_not_what_it_reads() {
    if !is_present() {
        return;
    }
    let q = prime::ntt_primes_below(50, 10, 1);
    let gpu = CudaBackend::emulated(10, &q, &[]).unwrap();
    let basis = Basis { q: 1, p: 0 };
    let shared = std::sync::Mutex::new(gpu.zero(basis));
    let change = || {
        let mut poly = shared.lock().unwrap();
        let before = poly.device_address();
        gpu.neg_assign(&mut poly);
        (before, poly.device_address())
    };
    let (before, after) = change();
    assert_eq!(before, after, "nothing else is under way");
    let moved = gpu.concurrently(vec![true, false], |is_first| {
        is_first.then(|| std::thread::scope(|s| s.spawn(change).join().unwrap()))
    });
    assert!(matches!(moved[0], Some((before, after)) if before != after), "{moved:?}");
}

/// What is loaded is kept: it must not come from a recording, where nothing arrives.
#[test]
fn nothing_is_loaded_while_work_is_recorded() {
    if !is_present() {
        return;
    }
    let shop = Workshop::new(usize::MAX);
    let routine = CudaRoutine::default();
    let load = |inputs: Vec<CudaPoly>| {
        shop.gpu.try_from_limbs(1024, CHAIN, |_, limb| {
            limb.fill(1);
            Ok::<_, ()>(())
        })?;
        Ok::<_, ()>(inputs)
    };
    shop.gpu.repeat(&routine, vec![shop.five()], load).unwrap();
    shop.gpu.health().unwrap();
    _ = shop.gpu.repeat(&routine, vec![shop.five()], load);
    assert!(matches!(shop.gpu.health(), Err(Failure::Device { operation: "loading a key", .. })));
}

/// What a side of a fork gave is used again by later forks.
#[test]
fn memory_does_not_grow_with_forks() {
    let q = prime::ntt_primes_below(50, 10, 3);
    let gpu = CudaBackend::rehearsal(10, &q, &[]).unwrap();
    let basis = Basis { q: 3, p: 0 };
    let fork = || gpu.concurrently(vec![2, 1, 3, 1], |count| (0..count).map(|_| gpu.zero(basis)).collect::<Vec<_>>());
    drop(fork());
    let held = gpu.pool_bytes();
    for _ in 0..10 {
        let kept = fork();
        drop(kept);
    }
    assert_eq!(gpu.pool_bytes(), held);
}

/// A card is lost in the middle of a step: the step is an error, the session stays where it was, nothing false is written,
/// and the checkpoint from before goes on elsewhere.
#[test]
fn a_lost_card_loses_nothing() {
    if !is_present() {
        return;
    }
    let g = Geometry::new(1024, 64, 12, 3).unwrap();
    let (level_plan, constants) = (LevelPlan::lowest(), Constants::built_in(3, 128.0).unwrap());
    let client = Client::new("insecure-toy11", 9);
    let params = &client.params;
    let needs = trainer::keys(g, level_plan, constants.clone(), 0, params.top_level()).unwrap();
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, encrypted::keys(params, &needs));
    let left = launches(usize::MAX);
    let gpu = CudaBackend::emulated_with(11, params.chain(), params.special(), usize::MAX, Arc::clone(&left)).unwrap();
    let gpu = Arc::new(gpu);
    let evaluator = Evaluator::new(Arc::clone(params), Arc::clone(&gpu));
    let bootstrapper = Bootstrapper::new(&evaluator, &needs.bounds).unwrap();
    let engine = Encrypted::new(evaluator, gpu.upload_keys(&keys), bootstrapper);
    let seal = |level| engine.admit(gpu.upload_ciphertext(&client.encrypt(&complex_vector(1024, 4), level))).unwrap();
    let trainer = Trainer::new(&engine, g, level_plan, constants, 0).unwrap();
    let features = (0..g.blocks()).map(|_| seal(level_plan.fresh_features())).collect();
    let batches = [CachedBatch::Raw(RowBlob { features, labels: seal(level_plan.probabilities()), rows: 64 })];
    let mut session = Session::new(Limits::default().defaults, 1, vec![seal(level_plan.weights())]).unwrap();
    let codec = Codec::new(Arc::clone(params), Arc::clone(&gpu));
    let (record, ciphertexts) = session.checkpoint();
    let saved: Vec<Vec<u8>> = ciphertexts.iter().map(|ct| codec.encode(ct.inner()).unwrap()).collect();

    left.store(100, Ordering::Relaxed);
    let lost = session::advance(&engine, &mut session, &batches[..], |_| Ok(&trainer), |_| true).unwrap_err();
    let hetal_learn::Error::Circuit(hetal_circuits::Error::Scheme(hetal_ckks::Error::Backend(found))) = lost else {
        panic!("{lost}");
    };
    assert!(found.to_string().contains("the emulated card is lost"), "{found}");
    assert_eq!(session.checkpoint().0, record);
    assert!(matches!(codec.encode(session.weights()[0].inner()), Err(FormatError::Backend(Failure::Device { .. }))));

    let on_cpu = client.codec();
    let again: Vec<Ciphertext<_>> = saved.iter().map(|bytes| on_cpu.decode(bytes).unwrap()).collect();
    let resumed = Session::resume(record, again).unwrap();
    assert_eq!(resumed.next_action(), session.next_action());
    assert_eq!(saved[0], on_cpu.encode(&resumed.weights()[0]).unwrap());
}

/// A ring, and something to do in it on both sides of a fork.
struct Workshop {
    gpu: CudaBackend,
    cpu: RnsRing,
}

const CHAIN: Basis = Basis { q: 3, p: 0 };

impl Workshop {
    fn new(bytes: usize) -> Self {
        let q = prime::ntt_primes_below(50, 10, 3);
        let gpu = CudaBackend::emulated_with(10, &q, &[], bytes, launches(usize::MAX)).unwrap();
        Self { gpu, cpu: RnsRing::new(10, &q, &[], Isa::detect()).unwrap() }
    }

    /// One with the memory that the work takes of this one, and room for `limbs` more.
    fn with_no_more(&self, limbs: usize) -> Self {
        Self::new(usize::MAX - self.gpu.memory().unwrap().0 + limbs * 8192)
    }

    /// `(a b - a, round(a^2 / q))` for what `a` and `b` are lifted from.
    fn work<B: Backend>(backend: &B, inputs: &[B::Poly]) -> Vec<B::Poly> {
        let (a, b) = (&inputs[0], &inputs[1]);
        backend.concurrently(vec![b, a], |factor| {
            let mut product = backend.mul(a, factor, CHAIN);
            if std::ptr::eq(factor, a) {
                return backend.divide(product, 1);
            }
            backend.sub_assign(&mut product, a);
            product
        })
    }

    fn inputs<B: Backend>(backend: &B, salt: i64) -> Vec<B::Poly> {
        let lift = |factor: i64| backend.lift(CHAIN, &(0..1024).map(|k| (k - salt) * factor).collect::<Vec<_>>());
        vec![lift(3), lift(-1_000_003)]
    }

    /// Does the work once more, and compares.
    fn check(&self, routine: &CudaRoutine, salt: i64) {
        let inputs = Self::inputs(&self.gpu, salt);
        let got = self.gpu.repeat(routine, inputs, |inputs| Ok::<_, ()>(Self::work(&self.gpu, &inputs))).unwrap();
        let expected = Self::work(&self.cpu, &Self::inputs(&self.cpu, salt));
        for (got, expected) in got.iter().zip(&expected) {
            assert!(self.gpu.download(got) == self.cpu.download(expected), "salt {salt}");
        }
        assert_eq!(got.len(), expected.len());
    }

    /// Does `(a^2, a^4)`, the second from the first, and compares. `a` is 5.
    fn check_powers(&self, routine: &CudaRoutine, five: CudaPoly) {
        let powers = |mut inputs: Vec<CudaPoly>| {
            let square = inputs.pop().map(|a| self.gpu.mul(&a, &a, CHAIN)).ok_or(())?;
            let fourth = self.gpu.mul(&square, &square, CHAIN);
            Ok::<_, ()>(vec![square, fourth])
        };
        let out = self.gpu.repeat(routine, vec![five], powers).unwrap();
        let got: Vec<_> = out.iter().map(|poly| self.gpu.download(poly).unwrap()).collect();
        assert_eq!(got, [25, 625].map(|power| vec![vec![power; 1024]; 3]));
    }

    fn five(&self) -> CudaPoly {
        self.gpu.upload(CHAIN, &[&[5; 1024][..]; 3])
    }

    /// Recordings there are, times that one was replayed, times that it was not.
    fn counts(&self) -> (usize, usize, usize) {
        let graphs = self.gpu.graphs();
        assert_eq!(graphs.ended, None);
        (graphs.recorded, graphs.replayed, graphs.passed_over)
    }
}

#[test]
fn recorded_work_is_done_on_other_inputs() {
    if !is_present() {
        return;
    }
    let shop = Workshop::new(usize::MAX);
    let (first, second) = (CudaRoutine::default(), CudaRoutine::default());
    (0..4).for_each(|salt| shop.check(&first, salt));
    assert_eq!(shop.counts(), (1, 3, 0));
    let held = shop.gpu.pool_bytes();
    (4..8).for_each(|salt| shop.check([&first, &second][salt as usize % 2], salt));
    assert_eq!(shop.counts(), (2, 6, 0));
    assert_eq!(shop.gpu.pool_bytes(), held, "recordings work in the same memory");
    drop(second);
    assert_eq!(shop.counts(), (1, 6, 0));
    shop.gpu.use_graphs(false);
    shop.check(&first, 9);
    assert_eq!(shop.counts(), (1, 6, 0));
}

/// What a recording is read from is no place for its outputs, however little memory is left beside it.
#[test]
fn outputs_of_a_replay_are_not_where_it_is_read_from() {
    if !is_present() {
        return;
    }
    let plenty = Workshop::new(usize::MAX);
    let routine = CudaRoutine::default();
    (0..2).for_each(|_| plenty.check_powers(&routine, plenty.five()));
    let scarce = plenty.with_no_more(0);
    let other_routine = CudaRoutine::default();
    (0..2).for_each(|_| scarce.check_powers(&other_routine, scarce.five()));
    // A new chunk is there for the outputs of one; the other's work has none but the recordings'.
    for (shop, routine, expected) in [(&plenty, &routine, (1, 2, 0)), (&scarce, &other_routine, (1, 1, 1))] {
        let held = shop.gpu.pool_bytes();
        let five = shop.five();
        let mut others: Vec<_> = (1..CHUNK / CHAIN.limbs()).map(|_| shop.gpu.zero(CHAIN)).collect();
        assert_eq!((others.len(), shop.gpu.pool_bytes()), (84, held), "one limb of the chunk is left");
        shop.check_powers(routine, five);
        assert_eq!(shop.counts(), expected);
        others.truncate(40);
        shop.check_powers(routine, shop.five());
        assert_eq!(shop.counts(), (1, expected.1 + 1, expected.2));
        shop.gpu.health().unwrap();
    }
}

/// Where memory is short, what recordings work in is given back to the card, and later taken anew.
#[test]
fn recordings_are_made_anew_where_their_memory_is_gone() {
    if !is_present() {
        return;
    }
    let trial = Workshop::new(usize::MAX);
    let routine = CudaRoutine::default();
    (0..2).for_each(|salt| trial.check(&routine, salt));
    // Two chunks are in use, and 600 limbs are more than is left beside them.
    let shop = trial.with_no_more(400);
    let (first, second) = (CudaRoutine::default(), CudaRoutine::default());
    (0..3).for_each(|salt| shop.check(&first, salt));
    assert_eq!(shop.counts(), (1, 2, 0));
    let kernels = shop.gpu.graphs().kernels;
    shop.gpu.time_transforms(600, 1).unwrap();
    assert_eq!(shop.gpu.pool_bytes(), 600 * 8192, "all that nobody used was given back");
    (3..5).for_each(|salt| shop.check(&first, salt));
    assert_eq!((shop.counts(), shop.gpu.graphs().kernels), ((1, 4, 0), 2 * kernels));
    (5..7).for_each(|salt| shop.check(&second, salt));
    assert_eq!(shop.counts(), (2, 5, 0));
}

/// Memory of recordings is lent where the card has no more; where it does not come back, work is done step by step.
#[test]
fn memory_of_recordings_serves_other_work() {
    if !is_present() {
        return;
    }
    let plenty = Workshop::new(usize::MAX);
    let routine = CudaRoutine::default();
    (0..2).for_each(|salt| plenty.check(&routine, salt));
    let shop = plenty.with_no_more(0);
    // What stays for long is put elsewhere while there is memory elsewhere.
    let kept: Vec<_> = (0..CHUNK / 2).map(|_| plenty.gpu.zero(CHAIN)).collect();
    plenty.check(&routine, 2);
    assert_eq!(plenty.counts(), (1, 2, 0));
    drop(kept);

    let (routine, other_routine) = (CudaRoutine::default(), CudaRoutine::default());
    (0..3).for_each(|salt| shop.check(&routine, salt));
    assert_eq!(shop.counts(), (1, 2, 0));
    let held = shop.gpu.pool_bytes();
    // More than the work's chunk, which leaves as much for the work.
    let mut others: Vec<_> = (0..CHUNK / 2).map(|_| shop.gpu.zero(CHAIN)).collect();
    assert_eq!(shop.gpu.pool_bytes(), held);
    shop.check(&routine, 3);
    assert_eq!(shop.counts(), (1, 2, 1));
    // Nothing else is recorded meanwhile, and that is told as well.
    (4..6).for_each(|salt| shop.check(&other_routine, salt));
    assert_eq!(shop.counts(), (1, 2, 2));
    let expected = vec![vec![0; 1024]; 3];
    assert!(others.iter().all(|poly| shop.gpu.download(poly).unwrap() == expected), "what was lent is left alone");
    // All that was in the recordings' chunk.
    others.truncate(40);
    shop.check(&routine, 6);
    shop.check(&other_routine, 7);
    assert_eq!(shop.counts(), (2, 4, 2));
    shop.gpu.health().unwrap();
}

/// What cannot be recorded is done all the same, step by step, and the reason is told.
#[test]
fn failures_end_recordings_and_nothing_else() {
    if !is_present() {
        return;
    }
    // Room for the work's chunk, and for no other.
    let tables = {
        let shop = Workshop::new(usize::MAX);
        shop.check(&CudaRoutine::default(), 0);
        usize::MAX - shop.gpu.memory().unwrap().0
    };
    let shop = Workshop::new(tables + 4096);
    let routine = CudaRoutine::default();
    (0..3).for_each(|salt| shop.check(&routine, salt));
    let graphs = shop.gpu.graphs();
    assert_eq!((graphs.recorded, graphs.replayed), (0, 0));
    assert!(graphs.ended.is_some_and(|reason| reason.contains("out of GPU memory")));
    shop.gpu.health().unwrap();

    // Numbers of the host are not in a recording, nor in a rehearsal's.
    let shop = Workshop::new(usize::MAX);
    let rehearsal = CudaBackend::rehearsal(10, &prime::ntt_primes_below(50, 10, 3), &[]).unwrap();
    let expected = shop.cpu.download(&Backend::lift(&shop.cpu, CHAIN, &[5; 1024])).unwrap();
    for (gpu, expected) in [(&shop.gpu, expected), (&rehearsal, vec![vec![0; 1024]; 3])] {
        let routine = CudaRoutine::default();
        let lift = |_: Vec<CudaPoly>| Ok::<_, ()>(vec![gpu.lift(CHAIN, &[5; 1024])]);
        let lifted: Vec<_> = (0..3).map(|_| gpu.repeat(&routine, Vec::new(), lift).unwrap()).collect();
        assert!(lifted.iter().all(|polys| gpu.download(&polys[0]).unwrap() == expected));
        let graphs = gpu.graphs();
        assert_eq!((graphs.recorded, graphs.replayed), (0, 0));
        assert!(graphs.ended.is_some_and(|reason| reason.contains("cannot be recorded")));
    }
}

/// Work that fails while it is recorded leaves no recording, and other recordings as they were.
#[test]
fn work_that_fails_while_it_is_recorded_is_recorded_later() {
    if !is_present() {
        return;
    }
    let shop = Workshop::new(usize::MAX);
    let calls = Cell::new(0);
    let once_failing = |inputs: Vec<CudaPoly>| {
        let out = Workshop::work(&shop.gpu, &inputs);
        if calls.replace(calls.get() + 1) == 1 { Err("only while it is recorded") } else { Ok(out) }
    };
    let expected: Vec<_> =
        Workshop::work(&shop.cpu, &Workshop::inputs(&shop.cpu, 1)).iter().map(|p| shop.cpu.download(p)).collect();
    let check = |routine: &CudaRoutine| {
        let out = shop.gpu.repeat(routine, Workshop::inputs(&shop.gpu, 1), once_failing).unwrap();
        assert!(out.iter().map(|poly| shop.gpu.download(poly)).eq(expected.iter().cloned()));
    };
    let (first, second) = (CudaRoutine::default(), CudaRoutine::default());
    (0..2).for_each(|_| check(&first));
    assert_eq!((calls.get(), shop.counts()), (3, (0, 0, 0)), "once, in vain to record it, and once more");
    check(&first);
    assert_eq!((calls.get(), shop.counts()), (4, (1, 1, 0)));

    calls.set(0);
    (0..2).for_each(|_| check(&second));
    assert_eq!((calls.get(), shop.counts()), (3, (1, 1, 0)));
    check(&first);
    assert_eq!((calls.get(), shop.counts()), (3, (1, 2, 0)), "it was not recorded again");
}
