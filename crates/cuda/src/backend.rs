//! The backend: polynomials on the device, and [`Backend`] for them.

mod conversion;
mod key_switch;
mod pointwise;
mod recording;
mod upload;

pub use key_switch::CudaDigits;
pub use recording::{CudaRoutine, Graphs};

use crate::device::{Device, KernelTime, SIDES, in_lane, is_recording, lane};
use crate::dry_run::DryRunDevice;
use crate::ffi::arguments::{KernelArguments, NttArgs, bytes_of};
use crate::ffi::driver::Driver;
use crate::memory::{Buffer, CHUNK, DevicePool, DeviceTable, Health};
use crate::plan::{Conversion, RingTables, Transforms};
#[cfg(any(test, feature = "emulator"))]
use crate::source::Arithmetic;
use crate::source::Kernel;
use crate::{Error, Result};
use hetal_ckks::Backend;
use hetal_ckks::backend::{Failure, Halves, KeyedAutomorphism, Pair};
use hetal_ring::Basis;
use key_switch::Added;
use recording::Recordings;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// A polynomial on the device: the limbs of the chain, then the special ones, one after the other.
///
/// A clone shares the limbs until one of the two is written to.
#[derive(Clone)]
pub struct CudaPoly {
    basis: Basis,
    buffer: Arc<Buffer>,
}

impl CudaPoly {
    fn address(&self) -> u64 {
        self.buffer.address()
    }

    #[cfg(test)]
    pub(crate) fn device_address(&self) -> u64 {
        self.address()
    }
}

/// Values that are made once for each key.
struct Memo<K, V>(RwLock<HashMap<K, Arc<V>>>);

impl<K: Eq + Hash, V> Memo<K, V> {
    fn new() -> Self {
        Self(RwLock::default())
    }

    /// What there is for a key, or is now made. Where the GPU has no memory for it, `make_room`
    /// may help.
    fn get(&self, key: K, make: impl Fn(&K) -> Result<V>, make_room: impl FnOnce()) -> Result<Arc<V>> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let made = make(&key).or_else(|error| {
            if !error.lacks_memory() {
                return Err(error);
            }
            make_room();
            make(&key)
        });
        let made = Arc::new(made?);
        Ok(Arc::clone(self.0.write().unwrap_or_else(PoisonError::into_inner).entry(key).or_insert(made)))
    }
}

/// Lanes beside the first are in use; they are waited for when this is dropped, also by a panic.
struct Fork<'a> {
    backend: &'a CudaBackend,
    sides: usize,
    _one_at_a_time: MutexGuard<'a, ()>,
}

impl Drop for Fork<'_> {
    fn drop(&mut self) {
        let CudaBackend { pool, device, .. } = self.backend;
        self.backend.noted(pool.end_fork(|| device.join(self.sides)));
    }
}

/// Exact arithmetic on polynomials in residue form, on one GPU.
pub struct CudaBackend {
    device: Arc<dyn Device>,
    health: Arc<Health>,
    pool: Arc<DevicePool>,
    constants: RingTables,
    lifts: Memo<Basis, Transforms>,
    decompositions: Memo<(Basis, Vec<usize>), Conversion>,
    divisions: Memo<(Basis, usize, usize), Conversion>,
    raises: Memo<Basis, Conversion>,
    special_products: Memo<usize, DeviceTable>,
    recordings: Recordings,
    /// Held by the thread that uses the other lanes.
    forks: Mutex<()>,
}

impl CudaBackend {
    /// The ring of degree `2^log_n` modulo the given primes, on GPU number `gpu`.
    ///
    /// # Errors
    ///
    /// [`crate::Error::NoGpu`], [`crate::Error::NvrtcMissing`] and the like where there is nothing
    /// to work on; [`crate::Error::Unsupported`] for rings that the kernels are not made for.
    pub fn open(gpu: usize, log_n: u32, q: &[u64], p: &[u64]) -> Result<Self> {
        #[cfg(feature = "emulator")]
        if let Some((bytes, launches)) = crate::emulated::card() {
            let card = crate::ffi::emulator::Emulator::with(log_n, Arithmetic::Fp64, bytes, launches)?;
            return Self::on(Arc::new(card), log_n, q, p);
        }
        let backend = Self::on(Arc::new(Driver::open(gpu, log_n)?), log_n, q, p)?;
        backend.use_graphs(recording::chosen()?);
        Ok(backend)
    }

    /// The ring on an emulated device, compiled by the system's C++ compiler.
    #[cfg(any(test, feature = "emulator"))]
    pub fn emulated(log_n: u32, q: &[u64], p: &[u64]) -> Result<Self> {
        Self::emulated_by(Arithmetic::Fp64, log_n, q, p)
    }

    /// [`CudaBackend::emulated`] with a given arithmetic.
    #[cfg(any(test, feature = "emulator"))]
    pub fn emulated_by(arithmetic: Arithmetic, log_n: u32, q: &[u64], p: &[u64]) -> Result<Self> {
        Self::on(Arc::new(crate::ffi::emulator::Emulator::open(log_n, arithmetic)?), log_n, q, p)
    }

    /// The ring on an emulated device that has so many bytes of memory and is lost after so many
    /// launches.
    #[cfg(test)]
    pub(crate) fn emulated_with(
        log_n: u32,
        q: &[u64],
        p: &[u64],
        bytes: usize,
        launches: Arc<std::sync::atomic::AtomicUsize>,
    ) -> Result<Self> {
        Self::on(Arc::new(crate::ffi::emulator::Emulator::with(log_n, Arithmetic::Fp64, bytes, launches)?), log_n, q, p)
    }

    /// The ring on no device at all: everything is accounted for and nothing is computed, so that a
    /// job can be tried for the memory it will need. What is downloaded is zero.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Unsupported`] for rings that the kernels are not made for.
    pub fn dry_run(log_n: u32, q: &[u64], p: &[u64]) -> Result<Self> {
        let backend = Self::on(Arc::new(DryRunDevice::default()), log_n, q, p)?;
        backend.use_graphs(recording::chosen()?);
        Ok(backend)
    }

    fn on(device: Arc<dyn Device>, log_n: u32, q: &[u64], p: &[u64]) -> Result<Self> {
        let constants = RingTables::new(&device, log_n, q, p)?;
        let health = Arc::new(Health::default());
        Ok(Self {
            pool: Arc::new(DevicePool::new(Arc::clone(&device), Arc::clone(&health), 8 << log_n)),
            device,
            health,
            constants,
            lifts: Memo::new(),
            decompositions: Memo::new(),
            divisions: Memo::new(),
            raises: Memo::new(),
            special_products: Memo::new(),
            recordings: Recordings::default(),
            forks: Mutex::default(),
        })
    }

    /// Waits for all work queued so far.
    ///
    /// # Errors
    ///
    /// The first error, if there was one.
    pub fn synchronize(&self) -> Result<()> {
        self.health.note(self.device.synchronize());
        self.health.check()
    }

    /// The GPU and its driver, in words.
    pub fn describe(&self) -> String {
        self.device.describe()
    }

    /// Bytes of device memory this backend holds for polynomials, in use or not.
    pub fn pool_bytes(&self) -> usize {
        self.pool.held()
    }

    /// The most bytes it held for polynomials so far.
    pub fn peak_bytes(&self) -> usize {
        self.pool.peak()
    }

    /// Bytes of device memory that `count` polynomials of so many limbs take: what is left over at
    /// the end of each chunk is counted in.
    pub fn device_bytes_of(&self, count: usize, limbs: usize) -> usize {
        let in_a_chunk = (CHUNK / limbs.max(1)).max(1);
        (count * limbs.max(CHUNK) * self.limb_bytes()).div_ceil(in_a_chunk)
    }

    /// Bytes of device memory free and in all.
    ///
    /// # Errors
    ///
    /// A GPU that does not answer.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.device.memory()
    }

    /// Puts pauses of random length between kernels (or no longer), so that work which does not
    /// wait for what it needs gives wrong results.
    pub fn inject_pauses(&self, seed: Option<u64>) {
        self.device.inject_pauses(seed);
    }

    /// Begins to time kernels (or stops), and tells what was timed before.
    pub fn profile(&self, on: bool) -> Vec<KernelTime> {
        self.device.profile(on)
    }

    /// Seconds of one transform forward and one backward in batches of `limbs`, means of `repeats`.
    ///
    /// # Errors
    ///
    /// The first error, if there was one.
    pub fn time_transforms(&self, limbs: usize, repeats: u32) -> Result<(f64, f64)> {
        let chain = self.constants.full.q;
        let work = self.pool.take(limbs);
        self.zero_buffer(&work, limbs);
        let numbers: Vec<usize> = (0..limbs).map(|i| i % chain).collect();
        let (forward, inverse) = self.constants.benchmark_jobs(&self.device, &numbers)?;
        let time = |run: &dyn Fn()| -> Result<f64> {
            run();
            self.synchronize()?;
            let start = std::time::Instant::now();
            (0..repeats).for_each(|_| run());
            self.synchronize()?;
            Ok(start.elapsed().as_secs_f64() / f64::from(repeats) / limbs as f64)
        };
        Ok((
            time(&|| self.forward(&forward, work.address()))?,
            time(&|| self.inverse(&inverse, work.address(), [work.address(); 2]))?,
        ))
    }

    /// What is made once for a key, or `None` and a note of the error.
    fn made<K: Eq + Hash, V>(&self, all: &Memo<K, V>, key: K, make: impl Fn(&K) -> Result<V>) -> Option<Arc<V>> {
        // Chunks that are free are the GPU's memory too.
        self.noted(all.get(key, make, || self.pool.trim(&[])))
    }

    /// The value, or `None` and a note of the error.
    fn noted<T>(&self, result: Result<T>) -> Option<T> {
        self.health.note(result)
    }

    fn uninit(&self, basis: Basis) -> CudaPoly {
        let full = self.constants.full;
        assert!(basis.q <= full.q && basis.p <= full.p);
        CudaPoly { basis, buffer: Arc::new(self.pool.take(basis.limbs())) }
    }

    fn zero_buffer(&self, buffer: &Buffer, limbs: usize) {
        if !self.health.is_broken() {
            self.noted(self.device.zero(buffer.address(), limbs * self.limb_bytes()));
        }
    }

    fn limb_bytes(&self) -> usize {
        8 << self.constants.log_n
    }

    /// Copies `count` limbs between places counted in limbs.
    fn copy_limbs(&self, to: (u64, usize), from: (u64, usize), count: usize) {
        if count > 0 && !self.health.is_broken() {
            let place = |(address, limb): (u64, usize)| address + (limb * self.limb_bytes()) as u64;
            self.noted(self.device.copy(place(to), place(from), count * self.limb_bytes()));
        }
    }

    /// Queues a kernel over `limbs` limbs; `deep` times as many blocks for kernels that use it.
    fn launch_deep(&self, kernel: Kernel, limbs: usize, deep: u32, args: &dyn KernelArguments) {
        if limbs > 0 && !self.health.is_broken() {
            self.noted(self.device.launch(kernel, (limbs as u32, deep), args));
            if is_recording() {
                self.recordings.kernels.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn launch(&self, kernel: Kernel, limbs: usize, args: &dyn KernelArguments) {
        self.launch_deep(kernel, limbs, 1, args);
    }

    fn ntt_args(&self, jobs: &DeviceTable, work: u64, input: [u64; 2], output: [u64; 2]) -> NttArgs {
        let (primes, roots) = (self.constants.primes.address(), self.constants.roots.address());
        NttArgs { primes, roots, jobs: jobs.address(), work, input, output, inverse: 1, unused: 0 }
    }

    /// Transforms coefficients in `work` to values at the same places.
    fn forward(&self, jobs: &DeviceTable, work: u64) {
        let args = self.ntt_args(jobs, work, [0; 2], [work; 2]);
        self.launch(Kernel::ForwardColumns, jobs.len() as usize, &args);
        self.launch(Kernel::ForwardRows, jobs.len() as usize, &args);
    }

    /// Transforms values to scaled, centred coefficients in `work`.
    fn inverse(&self, jobs: &DeviceTable, work: u64, input: [u64; 2]) {
        let args = self.ntt_args(jobs, work, input, [0; 2]);
        self.launch(Kernel::InverseRows, jobs.len() as usize, &args);
        self.launch(Kernel::InverseColumns, jobs.len() as usize, &args);
    }

    /// Where to read and where to write a polynomial that is changed: a shared one moves to limbs
    /// of its own.
    fn rewrite(&self, a: &mut CudaPoly) -> (Arc<Buffer>, u64) {
        if Arc::get_mut(&mut a.buffer).is_none() || !a.buffer.is_of_this_lane() {
            let own = Arc::new(self.pool.take(a.basis.limbs()));
            let before = std::mem::replace(&mut a.buffer, own);
            return (before, a.address());
        }
        (Arc::clone(&a.buffer), a.address())
    }
}

impl Backend for CudaBackend {
    type Poly = CudaPoly;
    type Packed = CudaPoly;
    type Digits = CudaDigits;
    /// One limb, whose words are doubles.
    type Reals = CudaPoly;
    type Routine = CudaRoutine;

    fn health(&self) -> std::result::Result<(), Failure> {
        Ok(self.health.check()?)
    }

    fn basis(poly: &CudaPoly) -> Basis {
        poly.basis
    }

    fn pack(&self, a: CudaPoly) -> CudaPoly {
        a
    }

    fn unpack(&self, a: &CudaPoly) -> CudaPoly {
        a.clone()
    }

    fn packed_limb_bytes(&self) -> usize {
        self.limb_bytes()
    }

    fn zero(&self, basis: Basis) -> CudaPoly {
        let poly = self.uninit(basis);
        self.zero_buffer(&poly.buffer, basis.limbs());
        poly
    }

    fn copy_truncated(&self, a: &CudaPoly, basis: Basis) -> CudaPoly {
        assert!(basis.q <= a.basis.q && basis.p <= a.basis.p);
        let is_prefix = basis.q == a.basis.q || basis.p == 0;
        if is_prefix && 2 * basis.limbs() > a.buffer.limbs() {
            return CudaPoly { basis, buffer: Arc::clone(&a.buffer) };
        }
        let out = self.uninit(basis);
        self.copy_limbs((out.address(), 0), (a.address(), 0), basis.q);
        self.copy_limbs((out.address(), basis.q), (a.address(), a.basis.q), basis.p);
        out
    }

    fn truncate(&self, a: &mut CudaPoly, basis: Basis) {
        *a = self.copy_truncated(a, basis);
    }

    fn lift(&self, basis: Basis, coefficients: &[i64]) -> CudaPoly {
        assert_eq!(coefficients.len(), 1 << self.constants.log_n);
        let room = self.pool.take(1);
        self.upload_bytes(room.address(), bytes_of(coefficients));
        self.lifted(basis, room.address(), None)
    }

    fn keep(&self, coefficients: &[f64]) -> CudaPoly {
        assert_eq!(coefficients.len(), 1 << self.constants.log_n);
        let out = self.uninit(Basis { q: 1, p: 0 });
        self.upload_bytes(out.address(), bytes_of(coefficients));
        self.settle_upload();
        out
    }

    fn lift_scaled(&self, basis: Basis, coefficients: &CudaPoly, factor: f64) -> CudaPoly {
        self.lifted(basis, coefficients.address(), Some(factor))
    }

    fn upload(&self, basis: Basis, limbs: &[&[u64]]) -> CudaPoly {
        let n = 1usize << self.constants.log_n;
        assert!(limbs.len() == basis.limbs() && limbs.iter().all(|limb| limb.len() == n));
        let out = self.uninit(basis);
        for (i, limb) in limbs.iter().enumerate() {
            self.upload_bytes(out.address() + (i * self.limb_bytes()) as u64, bytes_of(limb));
        }
        self.settle_upload();
        out
    }

    /// With one limb on the host, which the driver has copied when it is given the next.
    fn try_from_limbs<E>(
        &self,
        degree: usize,
        basis: Basis,
        mut fill: impl FnMut(usize, &mut [u64]) -> std::result::Result<(), E>,
    ) -> std::result::Result<CudaPoly, E> {
        assert_eq!(degree, 1 << self.constants.log_n);
        if is_recording() {
            // What is loaded is kept, a key, and would never arrive: an error of all work, not of
            // the recording alone.
            let (operation, reason) = ("loading a key", "this cannot be recorded".to_owned());
            self.health.refuse(Error::Driver { operation, reason });
        }
        let mut limb = vec![0; degree];
        let out = self.uninit(basis);
        for i in 0..basis.limbs() {
            fill(i, &mut limb)?;
            self.upload_bytes(out.address() + (i * self.limb_bytes()) as u64, bytes_of(&limb));
        }
        self.settle_upload();
        Ok(out)
    }

    fn download(&self, a: &CudaPoly) -> std::result::Result<Vec<Vec<u64>>, Failure> {
        let limb = |i: usize| {
            self.health.check()?;
            let mut limb = vec![0; 1 << self.constants.log_n];
            self.noted(self.device.download(a.address() + (i * self.limb_bytes()) as u64, &mut limb));
            Ok(limb)
        };
        let limbs = (0..a.basis.limbs()).map(limb).collect::<Result<_>>()?;
        self.health.check()?;
        Ok(limbs)
    }

    fn add_assign(&self, a: &mut CudaPoly, b: &CudaPoly) {
        self.binary_assign(Kernel::Add, a, b);
    }

    fn sub_assign(&self, a: &mut CudaPoly, b: &CudaPoly) {
        self.binary_assign(Kernel::Sub, a, b);
    }

    fn neg_assign(&self, a: &mut CudaPoly) {
        self.negate(a);
    }

    fn mul(&self, a: &CudaPoly, b: &CudaPoly, basis: Basis) -> CudaPoly {
        self.product(a, b, basis)
    }

    fn mul_add_assign(&self, acc: &mut CudaPoly, a: &CudaPoly, b: &CudaPoly) {
        self.product_add(acc, a, b);
    }

    fn mul_halves_assign(&self, a: &mut CudaPoly, halves: &[(u64, u64)]) {
        self.scale_halves(a, halves);
    }

    fn add_products_with_halves(&self, acc: &mut CudaPoly, terms: &[(&CudaPoly, Halves)]) {
        terms.iter().for_each(|(a, halves)| self.add_scaled_halves(acc, a, halves));
    }

    fn add_halves_assign(&self, a: &mut CudaPoly, halves: &[(u64, u64)]) {
        self.add_constant_halves(a, halves);
    }

    fn add_lifted_assign(&self, a: &mut CudaPoly, b: &CudaPoly) {
        self.add_lifted(a, b);
    }

    fn automorphism(&self, a: &CudaPoly, galois: u64) -> CudaPoly {
        self.permuted(a, galois)
    }

    fn tensor_sum(&self, terms: &[(Pair<'_, CudaPoly>, Pair<'_, CudaPoly>)], basis: Basis) -> [CudaPoly; 3] {
        self.sum_of_tensors(terms, basis)
    }

    fn raise(&self, a: &CudaPoly, basis: Basis) -> CudaPoly {
        self.raised(a, basis)
    }

    fn decompose(&self, a: CudaPoly, digit_starts: &[usize], p: usize) -> CudaDigits {
        self.digits(a, digit_starts, p)
    }

    fn small_digit(&self, a: CudaPoly) -> CudaDigits {
        CudaDigits::small(a)
    }

    fn inner_product(&self, digits: &CudaDigits, key: &[(CudaPoly, CudaPoly)]) -> (CudaPoly, CudaPoly) {
        self.digits_times_key(digits, key, &Added::default())
    }

    fn rotation_sums(
        &self,
        c0: &CudaPoly,
        digits: &CudaDigits,
        steps: &[KeyedAutomorphism<'_, CudaPoly>],
        weights: &[Vec<Option<&CudaPoly>>],
    ) -> Vec<(CudaPoly, CudaPoly)> {
        self.sums_of_rotations(c0, digits, steps, weights)
    }

    fn divide(&self, a: CudaPoly, drop_q: usize) -> CudaPoly {
        let [out] = self.quotients([a], drop_q, 1);
        out
    }

    fn lanes(&self) -> usize {
        if lane() == 0 { SIDES } else { 1 }
    }

    fn concurrently<T: Send, R: Send>(&self, items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
        let sides = items.len().min(SIDES);
        if sides < 2 || lane() != 0 || self.health.is_broken() {
            return items.into_iter().map(work).collect();
        }
        // Queueing is quick: one after the other from this thread. (A second thread cost more than
        // it won.)
        let _one_at_a_time = self.forks.lock().unwrap_or_else(PoisonError::into_inner);
        self.noted(self.pool.begin_fork(|| self.device.fork(sides)));
        let _joined_at_the_end = Fork { backend: self, sides, _one_at_a_time };
        let on_a_side = |(i, item)| in_lane(1 + i % sides, || work(item));
        items.into_iter().enumerate().map(on_a_side).collect()
    }

    fn repeat<E>(
        &self,
        routine: &CudaRoutine,
        inputs: Vec<CudaPoly>,
        work: impl Fn(Vec<CudaPoly>) -> std::result::Result<Vec<CudaPoly>, E>,
    ) -> std::result::Result<Vec<CudaPoly>, E> {
        self.repeated(routine, inputs, work)
    }

    fn divide_pair(&self, a: (CudaPoly, CudaPoly), drop_q: usize, galois: u64) -> (CudaPoly, CudaPoly) {
        let [a, b] = self.quotients([a.0, a.1], drop_q, galois);
        (a, b)
    }

    fn linear_sum(
        &self,
        start: Option<(CudaPoly, CudaPoly)>,
        basis: Basis,
        terms: &[(Pair<'_, CudaPoly>, Halves)],
        constant: Option<&Halves>,
    ) -> (CudaPoly, CudaPoly) {
        self.sum_of_multiples(start, basis, terms, constant)
    }

    fn plain_sum(&self, terms: &[(Pair<'_, CudaPoly>, &CudaPoly)], basis: Basis) -> (CudaPoly, CudaPoly) {
        if terms.is_empty() {
            return (self.zero(basis), self.zero(basis));
        }
        self.sum_of_plain_products(terms, basis)
    }

    fn inner_product_plus(
        &self,
        digits: &CudaDigits,
        key: &[(CudaPoly, CudaPoly)],
        added: [Option<&CudaPoly>; 2],
    ) -> (CudaPoly, CudaPoly) {
        self.digits_times_key(digits, key, &Added { lifted: added, ..Added::default() })
    }

    fn add_switched(
        &self,
        acc: Option<(CudaPoly, CudaPoly)>,
        v0: &CudaPoly,
        digits: &CudaDigits,
        key: &[(CudaPoly, CudaPoly)],
        galois: u64,
    ) -> (CudaPoly, CudaPoly) {
        let (plain, lifted) = if v0.basis.p > 0 { (Some(v0), None) } else { (None, Some(v0)) };
        let added = Added { accumulator: acc.as_ref(), lifted: [lifted, None], plain, galois };
        self.digits_times_key(digits, key, &added)
    }
}
