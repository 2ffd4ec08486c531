//! Recorded and replayed work on the emulator.

use super::*;

/// A ring, and something to do in it on both sides of a fork.
struct Fixture {
    gpu: CudaBackend,
    cpu: RnsRing,
}

const CHAIN: Basis = Basis { q: 3, p: 0 };

impl Fixture {
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
    let fixture = Fixture::new(usize::MAX);
    let (first, second) = (CudaRoutine::default(), CudaRoutine::default());
    (0..4).for_each(|salt| fixture.check(&first, salt));
    assert_eq!(fixture.counts(), (1, 3, 0));
    let held = fixture.gpu.pool_bytes();
    (4..8).for_each(|salt| fixture.check([&first, &second][salt as usize % 2], salt));
    assert_eq!(fixture.counts(), (2, 6, 0));
    assert_eq!(fixture.gpu.pool_bytes(), held, "recordings work in the same memory");
    drop(second);
    assert_eq!(fixture.counts(), (1, 6, 0));
    fixture.gpu.use_graphs(false);
    fixture.check(&first, 9);
    assert_eq!(fixture.counts(), (1, 6, 0));
}

/// What a recording is read from is no place for its outputs, however little memory is left beside
/// it.
#[test]
fn outputs_of_a_replay_are_not_where_it_is_read_from() {
    if !is_present() {
        return;
    }
    let plenty = Fixture::new(usize::MAX);
    let routine = CudaRoutine::default();
    (0..2).for_each(|_| plenty.check_powers(&routine, plenty.five()));
    let scarce = plenty.with_no_more(0);
    let other_routine = CudaRoutine::default();
    (0..2).for_each(|_| scarce.check_powers(&other_routine, scarce.five()));
    // A new chunk is there for the outputs of one; the other's work has none but the recordings'.
    for (fixture, routine, expected) in [(&plenty, &routine, (1, 2, 0)), (&scarce, &other_routine, (1, 1, 1))] {
        let held = fixture.gpu.pool_bytes();
        let five = fixture.five();
        let mut others: Vec<_> = (1..CHUNK / CHAIN.limbs()).map(|_| fixture.gpu.zero(CHAIN)).collect();
        assert_eq!((others.len(), fixture.gpu.pool_bytes()), (84, held), "one limb of the chunk is left");
        fixture.check_powers(routine, five);
        assert_eq!(fixture.counts(), expected);
        others.truncate(40);
        fixture.check_powers(routine, fixture.five());
        assert_eq!(fixture.counts(), (1, expected.1 + 1, expected.2));
        fixture.gpu.health().unwrap();
    }
}

/// Where memory is short, what recordings work in is given back to the GPU, and later taken anew.
#[test]
fn recordings_are_made_anew_where_their_memory_is_gone() {
    if !is_present() {
        return;
    }
    let trial = Fixture::new(usize::MAX);
    let routine = CudaRoutine::default();
    (0..2).for_each(|salt| trial.check(&routine, salt));
    // Two chunks are in use, and 600 limbs are more than is left beside them.
    let fixture = trial.with_no_more(400);
    let (first, second) = (CudaRoutine::default(), CudaRoutine::default());
    (0..3).for_each(|salt| fixture.check(&first, salt));
    assert_eq!(fixture.counts(), (1, 2, 0));
    let kernels = fixture.gpu.graphs().kernels;
    fixture.gpu.time_transforms(600, 1).unwrap();
    assert_eq!(fixture.gpu.pool_bytes(), 600 * 8192, "all that nobody used was given back");
    (3..5).for_each(|salt| fixture.check(&first, salt));
    assert_eq!((fixture.counts(), fixture.gpu.graphs().kernels), ((1, 4, 0), 2 * kernels));
    (5..7).for_each(|salt| fixture.check(&second, salt));
    assert_eq!(fixture.counts(), (2, 5, 0));
}

/// Memory of recordings is lent where the GPU has no more; where it does not come back, work is
/// done step by step.
#[test]
fn memory_of_recordings_serves_other_work() {
    if !is_present() {
        return;
    }
    let plenty = Fixture::new(usize::MAX);
    let routine = CudaRoutine::default();
    (0..2).for_each(|salt| plenty.check(&routine, salt));
    let fixture = plenty.with_no_more(0);
    // What stays for long is put elsewhere while there is memory elsewhere.
    let kept: Vec<_> = (0..CHUNK / 2).map(|_| plenty.gpu.zero(CHAIN)).collect();
    plenty.check(&routine, 2);
    assert_eq!(plenty.counts(), (1, 2, 0));
    drop(kept);

    let (routine, other_routine) = (CudaRoutine::default(), CudaRoutine::default());
    (0..3).for_each(|salt| fixture.check(&routine, salt));
    assert_eq!(fixture.counts(), (1, 2, 0));
    let held = fixture.gpu.pool_bytes();
    // More than the work's chunk, which leaves as much for the work.
    let mut others: Vec<_> = (0..CHUNK / 2).map(|_| fixture.gpu.zero(CHAIN)).collect();
    assert_eq!(fixture.gpu.pool_bytes(), held);
    fixture.check(&routine, 3);
    assert_eq!(fixture.counts(), (1, 2, 1));
    // Nothing else is recorded meanwhile, and that is told as well.
    (4..6).for_each(|salt| fixture.check(&other_routine, salt));
    assert_eq!(fixture.counts(), (1, 2, 2));
    let expected = vec![vec![0; 1024]; 3];
    assert!(others.iter().all(|poly| fixture.gpu.download(poly).unwrap() == expected), "what was lent is left alone");
    // All that was in the recordings' chunk.
    others.truncate(40);
    fixture.check(&routine, 6);
    fixture.check(&other_routine, 7);
    assert_eq!(fixture.counts(), (2, 4, 2));
    fixture.gpu.health().unwrap();
}

/// What cannot be recorded is done all the same, step by step, and the reason is told.
#[test]
fn failures_end_recordings_and_nothing_else() {
    if !is_present() {
        return;
    }
    // Room for the work's chunk, and for no other.
    let tables = {
        let fixture = Fixture::new(usize::MAX);
        fixture.check(&CudaRoutine::default(), 0);
        usize::MAX - fixture.gpu.memory().unwrap().0
    };
    let fixture = Fixture::new(tables + 4096);
    let routine = CudaRoutine::default();
    (0..3).for_each(|salt| fixture.check(&routine, salt));
    let graphs = fixture.gpu.graphs();
    assert_eq!((graphs.recorded, graphs.replayed), (0, 0));
    assert!(graphs.ended.is_some_and(|reason| reason.contains("out of GPU memory")));
    fixture.gpu.health().unwrap();

    // Numbers of the host are not in a recording, nor in a dry run's.
    let fixture = Fixture::new(usize::MAX);
    let dry_run = CudaBackend::dry_run(10, &prime::ntt_primes_below(50, 10, 3), &[]).unwrap();
    let expected = fixture.cpu.download(&Backend::lift(&fixture.cpu, CHAIN, &[5; 1024])).unwrap();
    for (gpu, expected) in [(&fixture.gpu, expected), (&dry_run, vec![vec![0; 1024]; 3])] {
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
    let fixture = Fixture::new(usize::MAX);
    let calls = Cell::new(0);
    let once_failing = |inputs: Vec<CudaPoly>| {
        let out = Fixture::work(&fixture.gpu, &inputs);
        if calls.replace(calls.get() + 1) == 1 { Err("only while it is recorded") } else { Ok(out) }
    };
    let expected: Vec<_> = Fixture::work(&fixture.cpu, &Fixture::inputs(&fixture.cpu, 1))
        .iter()
        .map(|p| fixture.cpu.download(p))
        .collect();
    let check = |routine: &CudaRoutine| {
        let out = fixture.gpu.repeat(routine, Fixture::inputs(&fixture.gpu, 1), once_failing).unwrap();
        assert!(out.iter().map(|poly| fixture.gpu.download(poly)).eq(expected.iter().cloned()));
    };
    let (first, second) = (CudaRoutine::default(), CudaRoutine::default());
    (0..2).for_each(|_| check(&first));
    assert_eq!((calls.get(), fixture.counts()), (3, (0, 0, 0)), "once, in vain to record it, and once more");
    check(&first);
    assert_eq!((calls.get(), fixture.counts()), (4, (1, 1, 0)));

    calls.set(0);
    (0..2).for_each(|_| check(&second));
    assert_eq!((calls.get(), fixture.counts()), (3, (1, 1, 0)));
    check(&first);
    assert_eq!((calls.get(), fixture.counts()), (3, (1, 2, 0)), "it was not recorded again");
}

/// What is loaded is kept: it must not come from a recording, where nothing arrives.
#[test]
fn nothing_is_loaded_while_work_is_recorded() {
    if !is_present() {
        return;
    }
    let fixture = Fixture::new(usize::MAX);
    let routine = CudaRoutine::default();
    let load = |inputs: Vec<CudaPoly>| {
        fixture.gpu.try_from_limbs(1024, CHAIN, |_, limb| {
            limb.fill(1);
            Ok::<_, ()>(())
        })?;
        Ok::<_, ()>(inputs)
    };
    fixture.gpu.repeat(&routine, vec![fixture.five()], load).unwrap();
    fixture.gpu.health().unwrap();
    _ = fixture.gpu.repeat(&routine, vec![fixture.five()], load);
    assert!(matches!(fixture.gpu.health(), Err(Failure::Device { operation: "loading a key", .. })));
}
