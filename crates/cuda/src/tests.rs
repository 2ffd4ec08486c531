//! The kernels on the emulator against the CPU's ring.

mod recordings;

use crate::ffi::emulator::is_present;
use crate::memory::CHUNK;
use crate::selftest::{RingPrimes, compare, probe};
use crate::{Arithmetic, CudaBackend, CudaPoly, CudaRoutine, Error};
use hetal_circuits::bootstrap::{self, BootstrapBounds};
use hetal_circuits::{Bootstrapper, Encrypted, KeyPlan, encrypted};
use hetal_ckks::backend::Failure;
use hetal_ckks::bytes::{Codec, FormatError};
use hetal_ckks::{Backend, Ciphertext, EvaluationKeys, Evaluator, Params, derivation};
use hetal_learn::driver::{EngineHost, drive};
use hetal_learn::softmax::Constants;
use hetal_learn::trainer::{self, Trainer};
use hetal_learn::{AgreementLimits, CachedBatch, EncryptedPiece, Geometry, LevelPlan, Session};
use hetal_ring::{Basis, Isa, RnsRing, prime};
use hetal_testkit::{TestOwner, complex_vector};
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
    let ring = RingPrimes { log_n: 11, q: params.chain(), p: params.special(), digit_starts: params.digit_starts() };
    let cpu = RnsRing::new(11, ring.q, ring.p, Isa::detect()).unwrap();
    for arithmetic in ARITHMETICS {
        let gpu = CudaBackend::emulated_by(arithmetic, 11, ring.q, ring.p).unwrap();
        let report = compare(&gpu, &cpu, &ring, 1).unwrap();
        assert!(report.mismatches.is_empty(), "{arithmetic:?}: {:#?}", report.mismatches);
        assert!(report.compared > 800, "{}", report.compared);
    }
}

/// Small, medium and large primes, in every order that matters: the widest conversions and
/// products.
#[test]
fn every_size_of_prime_gives_the_cpus_bytes() {
    if !is_present() {
        return;
    }
    for log_n in [10, 13] {
        let primes = |bits: u32, count: usize| prime::ntt_primes_below(bits, log_n, count);
        let q = [primes(51, 3), primes(50, 2), primes(20, 1), primes(47, 1), primes(48, 1)].concat();
        let p = primes(51, 6)[3..].to_vec();
        let ring = RingPrimes { log_n, q: &q, p: &p, digit_starts: &[0, 2, 4, 5, 6, 7] };
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

/// Bootstraps in three forms and of two bounds, in turn, of two ciphertexts.
fn bootstraps<B: Backend>(
    bootstrapper: &Bootstrapper<B>,
    evaluator: &Evaluator<B>,
    [x, y]: [&Ciphertext<B::Poly>; 2],
    keys: &EvaluationKeys<B::Packed>,
) -> Vec<Ciphertext<B::Poly>> {
    let complex = |ct, log_bound| bootstrapper.bootstrap(evaluator, ct, log_bound, keys).unwrap();
    let real = |ct| bootstrapper.bootstrap_real(evaluator, ct, 0, keys).unwrap();
    let periodic = |ct| bootstrapper.bootstrap_periodic(evaluator, ct, 256, 0, keys).unwrap();
    let [first, second] = [x, y].map(|ct| [complex(ct, 0), complex(ct, 3), real(ct), periodic(ct)]);
    [first, second].into_iter().flatten().chain([complex(x, 0)]).collect()
}

/// The bounds of [`bootstraps`].
fn bounds() -> BootstrapBounds {
    BootstrapBounds { periodic: [(256, 0)].into(), ..BootstrapBounds::from(&[0, 3]) }
}

/// Kernel by kernel the first time, recorded and replayed the second, replayed from then on.
#[test]
fn bootstraps_give_the_cpus_bytes() {
    if !is_present() {
        return;
    }
    let client = TestOwner::new("insecure-toy11", 5);
    let params = &client.params;
    let bootstrapper = Bootstrapper::new(&client.evaluator, bounds()).unwrap();
    let mut host_keys = EvaluationKeys::default();
    client.add_keys(&mut host_keys, bootstrap::keys(params));
    let [x, y] = [3, 8].map(|salt| client.encrypt(&complex_vector(params.slots(), salt), 0));
    let expected = bootstraps(&bootstrapper, &client.evaluator, [&x, &y], &host_keys);

    let gpu = Arc::new(CudaBackend::emulated(params.log_n(), params.chain(), params.special()).unwrap());
    let evaluator = Evaluator::new(Arc::clone(params), Arc::clone(&gpu));
    let on_gpu = Bootstrapper::new(&evaluator, bounds()).unwrap();
    let keys = gpu.upload_keys(&host_keys);
    let inputs = [&x, &y].map(|ct| gpu.upload_ciphertext(ct));
    let got = bootstraps(&on_gpu, &evaluator, inputs.each_ref(), &keys);
    for (number, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert_eq!((got.limbs, got.scale), (expected.limbs, expected.scale));
        assert!(gpu.download(&got.c0) == client.ring.download(&expected.c0), "number {number}");
        assert!(gpu.download(&got.c1) == client.ring.download(&expected.c1), "number {number}");
    }
    let graphs = gpu.graphs();
    assert_eq!((graphs.recorded, graphs.replayed, graphs.passed_over, graphs.ended), (4, 5, 0, None));
    let held = gpu.peak_bytes();
    // Other keys are elsewhere: what was recorded with the first ones is not replayed, nor kept.
    let keys = gpu.upload_keys(&host_keys);
    let again = on_gpu.bootstrap(&evaluator, &inputs[0], 0, &keys).unwrap();
    assert!(gpu.download(&again.c0) == client.ring.download(&expected[0].c0));
    assert_eq!((gpu.graphs().recorded, gpu.graphs().replayed), (3, 5));
    drop(on_gpu);
    assert_eq!(gpu.graphs().recorded, 0, "recordings go with what they are of");

    // A dry run without a GPU counts the same memory, up to gaps: which free place is taken depends
    // on the addresses of chunks, and those on the system.
    let dry_run = Arc::new(CudaBackend::dry_run(params.log_n(), params.chain(), params.special()).unwrap());
    let evaluator = Evaluator::new(Arc::clone(params), Arc::clone(&dry_run));
    let dry_bootstrapper = Bootstrapper::new(&evaluator, bounds()).unwrap();
    let keys = dry_run.upload_keys(&host_keys);
    let inputs = [&x, &y].map(|ct| dry_run.upload_ciphertext(ct));
    drop(bootstraps(&dry_bootstrapper, &evaluator, inputs.each_ref(), &keys));
    assert!(dry_run.peak_bytes().abs_diff(held) <= held / 100, "{} and {held} bytes", dry_run.peak_bytes());
}

/// Nested outer rotations and middle rotations, kernel by kernel, recorded and replayed, with keys
/// that were derived for the GPU.
#[test]
fn bootstraps_with_fewer_keys_give_the_cpus_bytes() {
    if !is_present() {
        return;
    }
    let client = TestOwner::new("insecure-toy11", 5);
    let params = &client.params;
    let ct = client.encrypt(&complex_vector(params.slots(), 3), 0);
    let gpu = Arc::new(CudaBackend::emulated(params.log_n(), params.chain(), params.special()).unwrap());
    let evaluator = Evaluator::new(Arc::clone(params), Arc::clone(&gpu));
    let input = gpu.upload_ciphertext(&ct);
    for plan in [KeyPlan::Balanced, KeyPlan::Small] {
        let wanted = bootstrap::keys_with_plan(params, plan);
        let mut keys = EvaluationKeys::default();
        client.add_keys(&mut keys, encrypted::sent_keys(params, &wanted, plan));
        let mut uploaded = gpu.upload_keys(&keys);
        client.derive_keys(&mut keys, &wanted);
        let done = |_, _| Ok::<_, hetal_ckks::Error>(());
        derivation::derive(params, (&*gpu, client.ring.isa()), &mut uploaded, &wanted, done).unwrap();
        let on_cpu = Bootstrapper::with_plan(&client.evaluator, bounds(), plan).unwrap();
        let expected = [
            on_cpu.bootstrap(&client.evaluator, &ct, 0, &keys).unwrap(),
            on_cpu.bootstrap_periodic(&client.evaluator, &ct, 256, 0, &keys).unwrap(),
        ];
        let (on_gpu, keys) = (Bootstrapper::with_plan(&evaluator, bounds(), plan).unwrap(), uploaded);
        for _ in 0..3 {
            let got = [
                on_gpu.bootstrap(&evaluator, &input, 0, &keys).unwrap(),
                on_gpu.bootstrap_periodic(&evaluator, &input, 256, 0, &keys).unwrap(),
            ];
            for (got, expected) in got.iter().zip(&expected) {
                assert!(gpu.download(&got.c0) == client.ring.download(&expected.c0), "{plan:?}");
                assert!(gpu.download(&got.c1) == client.ring.download(&expected.c1), "{plan:?}");
            }
        }
        let graphs = gpu.graphs();
        assert_eq!((graphs.recorded, graphs.ended), (2, None), "{plan:?}");
    }
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

/// Where there is no GPU, the words say so and nothing panics.
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
    assert!(matches!(gpu.download(&a), Err(Failure::OutOfMemory { .. })), "nothing false leaves the GPU");
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

/// A GPU is asked for what the CPU knows before it is used.
#[test]
fn a_card_that_computes_wrongly_or_not_is_found() {
    if !is_present() {
        return;
    }
    let params = Params::named("insecure-toy11").unwrap();
    let (q, p) = (params.chain(), params.special());
    let ring = RingPrimes { log_n: 11, q, p, digit_starts: params.digit_starts() };
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

/// What a side of a fork gave is used again by later forks.
#[test]
fn memory_does_not_grow_with_forks() {
    let q = prime::ntt_primes_below(50, 10, 3);
    let gpu = CudaBackend::dry_run(10, &q, &[]).unwrap();
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

/// A GPU is lost in the middle of a step: the step is an error, the session stays where it was,
/// nothing false is written, and the checkpoint from before goes on elsewhere.
#[test]
fn a_lost_card_loses_nothing() {
    if !is_present() {
        return;
    }
    let g = Geometry::new(1024, 64, 12, 3).unwrap();
    let (level_plan, constants) = (LevelPlan::lowest(), Constants::built_in(3, 32.0).unwrap());
    let client = TestOwner::new("insecure-toy11", 9);
    let params = &client.params;
    let needs = trainer::keys(g, level_plan, constants.clone(), params.top_level()).unwrap();
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, encrypted::keys(params, &needs));
    let left = launches(usize::MAX);
    let gpu = CudaBackend::emulated_with(11, params.chain(), params.special(), usize::MAX, Arc::clone(&left)).unwrap();
    let gpu = Arc::new(gpu);
    let evaluator = Evaluator::new(Arc::clone(params), Arc::clone(&gpu));
    let bootstrapper = Bootstrapper::new(&evaluator, &needs.bounds).unwrap();
    let engine = Encrypted::new(evaluator, gpu.upload_keys(&keys), bootstrapper);
    let seal = |level| engine.import(gpu.upload_ciphertext(&client.encrypt(&complex_vector(1024, 4), level))).unwrap();
    let trainer = Trainer::new(&engine, g, level_plan, constants).unwrap();
    let features = (0..g.blocks()).map(|_| seal(level_plan.fresh_features())).collect();
    let batches =
        [CachedBatch::Raw(EncryptedPiece { features, labels: seal(level_plan.labels()), row_weights: None, rows: 64 })];
    let mut session = Session::new(AgreementLimits::default().defaults, 1, vec![seal(level_plan.weights())]).unwrap();
    let codec = Codec::new(Arc::clone(params), Arc::clone(&gpu));
    let (record, ciphertexts) = session.checkpoint();
    let saved: Vec<Vec<u8>> = ciphertexts.iter().map(|ct| codec.encode(ct.inner()).unwrap()).collect();

    left.store(100, Ordering::Relaxed);
    let never = |_: &Session<_>, _| unreachable!("no epoch ends");
    let mut host = EngineHost::new(&engine, &batches[..], |_| Ok(&trainer), never);
    let lost: hetal_learn::Error = drive(&mut session, &mut host).unwrap_err();
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
