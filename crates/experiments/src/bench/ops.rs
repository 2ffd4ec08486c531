//! `hetal bench ops`: the figures of one parameter set.

use crate::Result;
use crate::process::{Timing, cpu_time, peak_rss_gib, time, with_threads};
use crate::report::progress;
use crate::runner::engine::{DeviceBackend, open_gpu};
use crate::runner::local_owner::{LocalOwner, to_device};
use hetal_circuits::bootstrap::BsgsSplit;
use hetal_circuits::{Bootstrapper, bootstrap};
use hetal_ckks::{Ciphertext, Complex64, EvaluationKeys, Evaluator, KeyId};
use hetal_cuda::{CudaBackend, CudaPoly, Graphs};
use hetal_ring::sampler::{OsSeeds, SeedSource};
use hetal_ring::{Basis, RnsRing};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limbs in the chain for the figures of single operations.
const OPERATION_LIMBS: usize = 13;

/// Bootstraps of which the best is reported, for each number of threads.
const BOOTSTRAPS: usize = 4;

/// A set with every key the figures need.
pub struct Bench<B: DeviceBackend> {
    owner: LocalOwner,
    encoder: Evaluator<RnsRing>,
    evaluator: Evaluator<B>,
    keys: EvaluationKeys<B::Packed>,
    bootstrapper: Bootstrapper<B>,
    /// Seconds of making the keys and bringing them to the backend, and of encoding the matrices there.
    loading: (f64, f64),
    steps: BsgsSplit,
}

impl Bench<RnsRing> {
    /// On the CPU.
    pub fn new(set: &str, steps: BsgsSplit) -> Result<Self> {
        let owner = LocalOwner::new(set)?;
        let ring = Arc::clone(&owner.ring);
        Self::on(owner, ring, steps)
    }
}

impl<B: DeviceBackend> Bench<B> {
    /// Makes keys and encodes matrices, with a bar.
    fn on(owner: LocalOwner, backend: Arc<B>, steps: BsgsSplit) -> Result<Self> {
        let start = Instant::now();
        let keys = owner.keys_on(&*backend, &bootstrap::keys_with_split(&owner.params, steps))?;
        let keys_s = start.elapsed().as_secs_f64();
        let evaluator = Evaluator::new(Arc::clone(&owner.params), backend);
        let spinner = progress::spinner("bootstrapping matrices");
        let start = Instant::now();
        let bootstrapper = Bootstrapper::with_split(&evaluator, &[0], steps)?;
        evaluator.backend().synchronize()?;
        spinner.finish_and_clear();
        let loading = (keys_s, start.elapsed().as_secs_f64());
        Ok(Self { encoder: owner.evaluator(), owner, evaluator, keys, bootstrapper, loading, steps })
    }

    fn encrypt(&self, values: &[Complex64], limbs: usize, scale: f64) -> Result<Ciphertext<B::Poly>> {
        Ok(to_device(&**self.evaluator.backend(), self.owner.encrypt(&self.encoder, values, limbs, scale)?))
    }

    /// Mean and largest error of one bootstrap of `values`, as log2.
    fn bootstrap_error(&self, values: &[Complex64]) -> Result<(f64, f64)> {
        let ct = self.encrypt(values, self.owner.params.limbs(0), self.owner.params.scale(0))?;
        let out = self.bootstrapper.bootstrap(&self.evaluator, &ct, 0, &self.keys)?;
        let got = self.owner.decrypt_from(&**self.evaluator.backend(), &out)?;
        let errors: Vec<f64> = got.iter().zip(values).map(|(a, b)| (a - b).norm()).collect();
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        Ok((mean.log2(), errors.iter().copied().fold(0.0, f64::max).log2()))
    }

    /// Seconds of each stage of a bootstrap, each waited for.
    fn stages(&self, ct: &Ciphertext<B::Poly>) -> Result<Vec<(&'static str, f64)>> {
        let mut stages = Vec::new();
        let mut last = Instant::now();
        let mut ended = |name| {
            // A failure is seen below.
            _ = self.evaluator.backend().synchronize();
            stages.push((name, last.elapsed().as_secs_f64()));
            last = Instant::now();
        };
        self.bootstrapper.bootstrap_observed(&self.evaluator, ct, 0, &self.keys, &mut ended)?;
        self.evaluator.backend().synchronize()?;
        Ok(stages)
    }

    /// Errors of bootstraps, as log2: mean and largest over all slots, largest of a constant and of a replicated vector.
    fn errors(&self, values: &[Complex64]) -> Result<[f64; 4]> {
        let slots = self.owner.params.slots();
        let (mean, max) = self.bootstrap_error(values)?;
        let (_, constant) = self.bootstrap_error(&vec![Complex64::new(0.7, -0.3); slots])?;
        let repeated: Vec<Complex64> = (0..slots).map(|i| values[i % 64]).collect();
        let (_, replicated) = self.bootstrap_error(&repeated)?;
        Ok([mean, max, constant, replicated])
    }

    /// What every backend's report has: the set, precision and sizes.
    fn describe(&self, values: &[Complex64], ct: &Ciphertext<B::Poly>) -> Result<Map<String, Value>> {
        let [mean, max, constant, replicated] = self.errors(values)?;
        let params = &self.owner.params;
        let wanted = bootstrap::keys_with_split(params, self.steps);
        let keys_bytes = hetal_ckks::bytes::key_set_len(params, &wanted).map_err(hetal_ckks::Error::from)?;
        let gib = |limbs: usize| (limbs * self.evaluator.backend().packed_limb_bytes()) as f64 / f64::from(1 << 30);
        let report = json!({
            "set": params.name(),
            "bootstrap_err_mean_log2": mean,
            "bootstrap_err_max_log2": max,
            "bootstrap_err_max_constant_log2": constant,
            "bootstrap_err_max_replicated_log2": replicated,
            "usable_levels": params.top_level(),
            "security_bits": params.security().bits(),
            "keys_resident_gib": gib(self.keys.limbs()),
            "keys_bytes_gib": keys_bytes as f64 / f64::from(1 << 30),
            "keys_s": self.loading.0,
            "matrices_gib": gib(self.bootstrapper.encoded_limbs()),
            "matrices_s": self.loading.1,
            "peak_rss_gib": peak_rss_gib(),
        });
        let mut report = object(report);
        for (stage, seconds) in self.stages(ct)? {
            report.insert(format!("bootstrap_{stage}_s"), seconds.into());
        }
        Ok(report)
    }
}

impl Bench<RnsRing> {
    /// Microseconds of one forward transform on one thread.
    pub fn ntt_us(&self, runs: usize) -> f64 {
        let mut poly = self.owner.ring.zero(Basis { q: 1, p: 0 });
        poly.limbs_mut()[0].iter_mut().enumerate().for_each(|(i, x)| *x = i as u64);
        let table = self.owner.ring.table(poly.basis(), 0);
        let isa = self.owner.ring.isa();
        1e6 * time(runs, || table.forward(isa, &mut poly.limbs_mut()[0])).cpu
    }

    /// Milliseconds of a product with relinearisation and rescale, and of a rotation, on one thread.
    fn operations_ms(&self) -> Result<(f64, f64)> {
        let limbs = OPERATION_LIMBS.min(self.owner.params.limbs(self.owner.params.top_level()));
        let values = uniform_square(self.owner.params.slots(), &mut OsSeeds);
        let a = self.encrypt(&values, limbs, self.owner.params.scale(self.owner.params.top_level()))?;
        let product = || self.evaluator.sum_of_products(&[(&a, &a)], &self.keys);
        let rotation = self.evaluator.galois_of_rotation(1);
        let rotate = || self.evaluator.automorphism(&a, rotation, &self.keys);
        product()?;
        rotate()?;
        with_threads(1, || (1e3 * time(20, product).cpu, 1e3 * time(20, rotate).cpu))
    }

    /// Every figure of the set but those of other code, as one flat object. `seen` is told the seconds of each bootstrap on one
    /// thread right after it.
    fn measure(&self, threads: usize, seen: &mut dyn FnMut(f64)) -> Result<Map<String, Value>> {
        let bar = progress::bar(3);
        let step = |message: &'static str| {
            bar.set_message(message);
            bar.inc(1);
        };
        let slots = self.owner.params.slots();
        let values = uniform_square(slots, &mut OsSeeds);
        let ct = self.encrypt(&values, self.owner.params.limbs(0), self.owner.params.scale(0))?;
        let run = || self.bootstrapper.bootstrap(&self.evaluator, &ct, 0, &self.keys);
        step("single operations");
        let (mult, rotate) = self.operations_ms()?;
        step("bootstraps");
        run()?;
        // In turn, so that what else runs on the machine meets all of them.
        let (mut one, mut two, mut all) = (Timing::LONGEST, Timing::LONGEST, Timing::LONGEST);
        for _ in 0..BOOTSTRAPS {
            let seconds = with_threads(1, || time(1, run))?;
            seen(seconds.cpu);
            one = one.min(seconds);
            two = two.min(with_threads(2, || time(1, run))?);
            if threads > 2 {
                all = all.min(with_threads(threads, || time(1, run))?);
            }
        }
        let wall = [one.wall, two.wall, all.wall][threads.clamp(1, 3) - 1];
        step("precision and stages");
        let mut report = with_threads(1, || self.describe(&values, &ct))??;
        bar.finish_and_clear();
        report.extend(object(json!({
            "engine": "cpu",
            "threads": threads,
            "isa": self.owner.ring.isa().name(),
            "ntt_us": self.ntt_us(200),
            "mult_relin_rescale_ms": mult,
            "rotate_ms": rotate,
            "operation_limbs": OPERATION_LIMBS,
            "bootstrap_wall_s": wall,
            "bootstrap_cpu_s": one.cpu,
            "bootstrap_wall_1t_s": one.wall,
            "bootstrap_wall_2t_s": two.wall,
        })));
        Ok(report)
    }
}

impl Bench<CudaBackend> {
    /// Every figure of the set on a card, as one flat object.
    fn measure(&self) -> Result<Map<String, Value>> {
        let (params, gpu) = (&self.owner.params, self.evaluator.backend());
        let bar = progress::bar(4);
        let step = |message: &'static str| {
            bar.set_message(message);
            bar.inc(1);
        };
        step("transforms");
        let (forward, inverse) = gpu.time_transforms(128, 100)?;
        step("single operations");
        let level_12 = params.limbs(params.top_level().saturating_sub(1));
        let places = [("", OPERATION_LIMBS), ("_top", params.chain().len()), ("_level12", level_12)];
        let mut report = Map::new();
        for (place, limbs) in places {
            let (mult, rotate) = self.operations_ms(limbs.min(params.chain().len()))?;
            report.insert(format!("mult_relin_rescale{place}_ms"), mult.into());
            report.insert(format!("rotate{place}_ms"), rotate.into());
        }
        step("bootstrap");
        let values = uniform_square(params.slots(), &mut OsSeeds);
        let ct = self.encrypt(&values, params.limbs(0), params.scale(0))?;
        let run = || Ok(self.bootstrapper.bootstrap(&self.evaluator, &ct, 0, &self.keys)?);
        // Both ways: queued kernel by kernel, and as one graph.
        let chosen = gpu.use_graphs(false);
        let (in_a_row, alone) = (self.seconds(5, &run)?, self.seconds(1, &run)?);
        gpu.use_graphs(true);
        let (graph_in_a_row, graph_alone) = (self.seconds(5, &run)?, self.seconds(1, &run)?);
        let graphs = gpu.graphs();
        gpu.use_graphs(chosen);
        step("precision and stages");
        report.extend(self.describe(&values, &ct)?);
        bar.finish_and_clear();
        report.extend(object(json!({
            "engine": "cuda",
            "device": gpu.describe(),
            "ntt_us": 1e6 * forward,
            "ntt_inverse_us": 1e6 * inverse,
            "operation_limbs": OPERATION_LIMBS,
            "bootstrap_wall_s": in_a_row.wall,
            "bootstrap_wall_alone_s": alone.wall,
            "bootstrap_host_cpu_s": in_a_row.cpu,
            "bootstrap_graph_wall_s": graph_in_a_row.wall,
            "bootstrap_graph_wall_alone_s": graph_alone.wall,
            "bootstrap_graph_host_cpu_s": graph_in_a_row.cpu,
            "graphs": described(&graphs),
            "device_peak_gib": gpu.peak_bytes() as f64 / f64::from(1 << 30),
        })));
        Ok(report)
    }

    /// Milliseconds of a product with relinearisation and rescale, and of a rotation, among many in a row.
    fn operations_ms(&self, limbs: usize) -> Result<(f64, f64)> {
        let (params, gpu) = (&self.owner.params, self.evaluator.backend());
        let galois = self.evaluator.galois_of_rotation(1);
        let keys = self.owner.keys_on(&**gpu, &[(KeyId::Relinearisation, limbs), (KeyId::Galois(galois), limbs)])?;
        let values = uniform_square(params.slots(), &mut OsSeeds);
        let a = self.encrypt(&values, limbs, params.scale(params.top_level()))?;
        let product = self.seconds(20, &|| Ok(self.evaluator.sum_of_products(&[(&a, &a)], &keys)?))?;
        let rotate = self.seconds(20, &|| Ok(self.evaluator.automorphism(&a, galois, &keys)?))?;
        Ok((1e3 * product.wall, 1e3 * rotate.wall))
    }

    /// Seconds of one of `repeats` in a row: the best of five means.
    fn seconds(&self, repeats: u32, run: &dyn Fn() -> Result<Ciphertext<CudaPoly>>) -> Result<Timing> {
        let gpu = self.evaluator.backend();
        let repeat = |times: u32| (0..times).try_for_each(|_| run().map(drop));
        repeat(3)?;
        let mut best = Timing::LONGEST;
        for _ in 0..5 {
            gpu.synchronize()?;
            let (start, cpu) = (Instant::now(), cpu_time());
            repeat(repeats)?;
            // Waiting may take the CPU's time or not: only what queueing takes is counted.
            let cpu = cpu_time() - cpu;
            gpu.synchronize()?;
            let mean = |time: Duration| time.as_secs_f64() / f64::from(repeats);
            best = best.min(Timing { wall: mean(start.elapsed()), cpu: mean(cpu) });
        }
        Ok(best)
    }
}

/// What became of repeated work, for reports.
pub fn described(graphs: &Graphs) -> Value {
    let Graphs { recorded, kernels, replayed, passed_over, ended, .. } = graphs;
    json!({
        "recorded": recorded,
        "kernels": kernels,
        "replayed": replayed,
        "passed_over": passed_over,
        "ended": ended,
    })
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Complex numbers with both parts uniform in [-1, 1].
fn uniform_square(n: usize, seeds: &mut dyn SeedSource) -> Vec<Complex64> {
    let seed = seeds.next_seed();
    let mut state = u64::from_le_bytes([seed.0[0], seed.0[1], seed.0[2], seed.0[3], 5, 6, 7, 8]);
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..n).map(|_| Complex64::new(next(), next())).collect()
}

/// Everything `hetal bench ops --engine cuda` prints about a set.
pub fn report_on_gpu(set: &str, device: usize, steps: BsgsSplit) -> Result<Map<String, Value>> {
    let owner = LocalOwner::new(set)?;
    let gpu = open_gpu(&owner.params, device)?;
    Bench::on(owner, gpu, steps)?.measure()
}

/// Everything `hetal bench ops` prints about a set; `seen` is told the CPU seconds of each bootstrap on one thread. For `full`, the figures `small_*` of the set `small` come from a second
/// process of this program, `child_arguments` to it, so that its memory is its own.
pub fn report(
    set: &str,
    threads: usize,
    steps: BsgsSplit,
    child_arguments: &[&str],
    seen: &mut dyn FnMut(f64),
) -> Result<Map<String, Value>> {
    let mut report = Bench::new(set, steps)?.measure(threads, seen)?;
    if set == "full" {
        let small = child(child_arguments)?;
        for (ours, theirs) in [("small_bootstrap_cpu_s", "bootstrap_cpu_s"), ("small_peak_rss_gib", "peak_rss_gib")] {
            report.insert(ours.to_owned(), small[theirs].clone());
        }
        for name in ["bootstrap_err_mean_log2", "bootstrap_err_max_log2"] {
            report.insert(format!("small_{name}"), small[name].clone());
        }
    }
    Ok(report)
}

fn child(arguments: &[&str]) -> Result<Value> {
    let fail = |reason: String| crate::Error::Child { set: "small".to_owned(), reason };
    let program = std::env::current_exe().map_err(|e| fail(e.to_string()))?;
    let output = std::process::Command::new(program).args(arguments).output().map_err(|e| fail(e.to_string()))?;
    if !output.status.success() {
        return Err(fail(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| fail(e.to_string()))
}
