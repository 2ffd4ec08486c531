//! `hetal bench ops`: time and precision of the operations of one parameter set.

use crate::params::ErrorLog2;
use crate::process::{Timing, cpu_time, peak_rss_gib, time, with_threads};
use crate::report::output::{print, print_object};
use crate::report::progress;
use crate::runner::engine::{DeviceBackend, Processor, open_gpu};
use crate::runner::key_plan::ExperimentKeys;
use crate::runner::local_owner::{LocalOwner, to_device};
use crate::{Error, Result};
use hetal_circuits::KeyPlan;
use hetal_circuits::{Bootstrapper, bootstrap};
use hetal_ckks::{Ciphertext, Complex64, EvaluationKeys, Evaluator, KeyId};
use hetal_cuda::{CudaBackend, CudaPoly, Graphs};
use hetal_ring::sampler::{OsSeeds, SeedSource};
use hetal_ring::{Basis, RnsRing};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The limbs of ciphertexts in measurements of single operations.
const OPERATION_LIMBS: usize = 13;

/// The number of bootstraps for each number of threads. The shortest one is reported.
const BOOTSTRAPS: usize = 4;

/// Arguments of `hetal bench ops`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The parameter set.
    #[arg(long, default_value = "full")]
    pub set: String,
    /// Where operations run.
    #[arg(long, value_enum, default_value = "cpu")]
    pub engine: Processor,
    /// Threads for the figure `bootstrap_wall_s` (on the CPU).
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// The keys.
    #[command(flatten)]
    pub keys: ExperimentKeys,
    /// The number of the GPU.
    #[arg(long, default_value_t = 0)]
    pub device: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let key_plan = arguments.keys.plan();
    let report = match arguments.engine {
        Processor::Cpu => {
            let small_set_command = &["bench", "ops", "--set", "small", "--json"];
            let options = CpuOptions { set: &arguments.set, threads: arguments.threads, key_plan, small_set_command };
            measure(&options, &mut |_| {})?
        }
        Processor::Cuda => measure_on_gpu(&arguments.set, arguments.device, key_plan)?,
    };
    if arguments.json {
        print(true, &Value::from(report), "");
    } else {
        print_object(&report);
    }
    Ok(())
}

/// What [`report`] measures on the CPU.
pub struct CpuOptions<'a> {
    /// The parameter set.
    pub set: &'a str,
    /// The threads for `bootstrap_wall_s`.
    pub threads: usize,
    /// How many keys bootstraps use.
    pub key_plan: KeyPlan,
    /// Arguments of this program that print the report of the set `small` as JSON.
    pub small_set_command: &'a [&'a str],
}

/// Measures a parameter set on the CPU. Calls `on_bootstrap` with the CPU seconds of each bootstrap
/// on one thread.
///
/// For `full`, the report includes figures `small_*` of the set `small`. A second process measures
/// them, because memory is measured for a process.
pub fn measure(options: &CpuOptions<'_>, on_bootstrap: &mut dyn FnMut(f64)) -> Result<Map<String, Value>> {
    let mut report = OpsBench::new(options.set, options.key_plan)?.measure(options.threads, on_bootstrap)?;
    if options.set == "full" {
        let small = run_small_set(options.small_set_command)?;
        for (ours, theirs) in [("small_bootstrap_cpu_s", "bootstrap_cpu_s"), ("small_peak_rss_gib", "peak_rss_gib")] {
            report.insert(ours.to_owned(), small[theirs].clone());
        }
        for name in ["bootstrap_err_mean_log2", "bootstrap_err_max_log2"] {
            report.insert(format!("small_{name}"), small[name].clone());
        }
    }
    Ok(report)
}

fn run_small_set(arguments: &[&str]) -> Result<Value> {
    let fail = |reason: String| Error::Subprocess { set: "small".to_owned(), reason };
    let program = std::env::current_exe().map_err(|e| fail(e.to_string()))?;
    let output = std::process::Command::new(program).args(arguments).output().map_err(|e| fail(e.to_string()))?;
    if !output.status.success() {
        return Err(fail(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| fail(e.to_string()))
}

/// Measures a parameter set on a GPU.
pub fn measure_on_gpu(set: &str, device: usize, key_plan: KeyPlan) -> Result<Map<String, Value>> {
    let owner = LocalOwner::new(set)?;
    let gpu = open_gpu(&owner.params, device)?;
    OpsBench::on(owner, gpu, key_plan)?.measure()
}

/// A parameter set with the keys and matrices that the measurements need.
struct OpsBench<B: DeviceBackend> {
    owner: LocalOwner,
    encoder: Evaluator<RnsRing>,
    evaluator: Evaluator<B>,
    keys: EvaluationKeys<B::Packed>,
    bootstrapper: Bootstrapper<B>,
    setup: SetupTimes,
    key_plan: KeyPlan,
}

/// Seconds before the first measurement.
struct SetupTimes {
    /// To make the keys and move them to the backend.
    keys_s: f64,
    /// To encode the bootstrapping matrices.
    matrices_s: f64,
}

/// Milliseconds of single operations.
struct OperationTimes {
    /// A product with relinearisation and rescale.
    multiply_ms: f64,
    /// A rotation.
    rotate_ms: f64,
}

impl OpsBench<RnsRing> {
    fn new(set: &str, key_plan: KeyPlan) -> Result<Self> {
        let owner = LocalOwner::new(set)?;
        let ring = Arc::clone(&owner.ring);
        Self::on(owner, ring, key_plan)
    }
}

impl<B: DeviceBackend> OpsBench<B> {
    /// Makes keys and encodes matrices on a backend, with a progress bar.
    fn on(owner: LocalOwner, backend: Arc<B>, key_plan: KeyPlan) -> Result<Self> {
        let start = Instant::now();
        let keys = owner.keys_on(&*backend, &bootstrap::keys_with_plan(&owner.params, key_plan))?;
        let keys_s = start.elapsed().as_secs_f64();
        let evaluator = Evaluator::new(Arc::clone(&owner.params), backend);
        let spinner = progress::spinner("bootstrapping matrices");
        let start = Instant::now();
        let bootstrapper = Bootstrapper::with_plan(&evaluator, &[0], key_plan)?;
        evaluator.backend().synchronize()?;
        spinner.finish_and_clear();
        let setup = SetupTimes { keys_s, matrices_s: start.elapsed().as_secs_f64() };
        Ok(Self { encoder: owner.evaluator(), owner, evaluator, keys, bootstrapper, setup, key_plan })
    }

    fn encrypt(&self, values: &[Complex64], limbs: usize, scale: f64) -> Result<Ciphertext<B::Poly>> {
        Ok(to_device(&**self.evaluator.backend(), self.owner.encrypt(&self.encoder, values, limbs, scale)?))
    }

    /// The error of one bootstrap of `values`.
    fn bootstrap_error(&self, values: &[Complex64]) -> Result<ErrorLog2> {
        let ct = self.encrypt(values, self.owner.params.limbs(0), self.owner.params.scale(0))?;
        let out = self.bootstrapper.bootstrap(&self.evaluator, &ct, 0, &self.keys)?;
        let got = self.owner.decrypt_from(&**self.evaluator.backend(), &out)?;
        let errors: Vec<f64> = got.iter().zip(values).map(|(a, b)| (a - b).norm()).collect();
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        let max = errors.iter().copied().fold(0.0, f64::max);
        Ok(ErrorLog2 { mean: mean.log2(), max: max.log2() })
    }

    /// Seconds of each stage of a bootstrap. Waits for the queued work after each stage.
    fn stages(&self, ct: &Ciphertext<B::Poly>) -> Result<Vec<(&'static str, f64)>> {
        let mut stages = Vec::new();
        let mut last = Instant::now();
        let mut ended = |name| {
            // The last call of `synchronize` reports a failure.
            _ = self.evaluator.backend().synchronize();
            stages.push((name, last.elapsed().as_secs_f64()));
            last = Instant::now();
        };
        self.bootstrapper.bootstrap_observed(&self.evaluator, ct, 0, &self.keys, &mut ended)?;
        self.evaluator.backend().synchronize()?;
        Ok(stages)
    }

    /// The fields that the reports of all backends have: the set, precision, sizes and stages.
    fn describe(&self, values: &[Complex64], ct: &Ciphertext<B::Poly>) -> Result<Map<String, Value>> {
        let params = &self.owner.params;
        let error = self.bootstrap_error(values)?;
        let constant = self.bootstrap_error(&vec![Complex64::new(0.7, -0.3); params.slots()])?;
        let repeated: Vec<Complex64> = (0..params.slots()).map(|i| values[i % 64]).collect();
        let replicated = self.bootstrap_error(&repeated)?;
        let wanted = bootstrap::keys_with_plan(params, self.key_plan);
        let keys_bytes = hetal_ckks::bytes::key_set_len(params, &wanted).map_err(hetal_ckks::Error::from)?;
        let gib = |limbs: usize| (limbs * self.evaluator.backend().packed_limb_bytes()) as f64 / f64::from(1 << 30);
        let report = json!({
            "set": params.name(),
            "bootstrap_err_mean_log2": error.mean,
            "bootstrap_err_max_log2": error.max,
            "bootstrap_err_max_constant_log2": constant.max,
            "bootstrap_err_max_replicated_log2": replicated.max,
            "usable_levels": params.top_level(),
            "security_bits": params.security().bits(),
            "keys_resident_gib": gib(self.keys.limbs()),
            "keys_bytes_gib": keys_bytes as f64 / f64::from(1 << 30),
            "keys_s": self.setup.keys_s,
            "matrices_gib": gib(self.bootstrapper.encoded_limbs()),
            "matrices_s": self.setup.matrices_s,
            "peak_rss_gib": peak_rss_gib(),
        });
        let mut report = object(report);
        for (stage, seconds) in self.stages(ct)? {
            report.insert(format!("bootstrap_{stage}_s"), seconds.into());
        }
        Ok(report)
    }
}

impl OpsBench<RnsRing> {
    /// Microseconds of one forward transform on one thread.
    fn ntt_us(&self, runs: usize) -> f64 {
        let mut poly = self.owner.ring.zero(Basis { q: 1, p: 0 });
        poly.limbs_mut()[0].iter_mut().enumerate().for_each(|(i, x)| *x = i as u64);
        let table = self.owner.ring.table(poly.basis(), 0);
        let isa = self.owner.ring.isa();
        1e6 * time(runs, || table.forward(isa, &mut poly.limbs_mut()[0])).cpu
    }

    /// Times single operations on one thread.
    fn operation_times(&self) -> Result<OperationTimes> {
        let limbs = OPERATION_LIMBS.min(self.owner.params.limbs(self.owner.params.top_level()));
        let values = uniform_square(self.owner.params.slots(), &mut OsSeeds);
        let a = self.encrypt(&values, limbs, self.owner.params.scale(self.owner.params.top_level()))?;
        let product = || self.evaluator.sum_of_products(&[(&a, &a)], &self.keys);
        let rotation = self.evaluator.galois_of_rotation(1);
        let rotate = || self.evaluator.automorphism(&a, rotation, &self.keys);
        product()?;
        rotate()?;
        with_threads(1, || OperationTimes {
            multiply_ms: 1e3 * time(20, product).cpu,
            rotate_ms: 1e3 * time(20, rotate).cpu,
        })
    }

    /// Measures everything on the CPU. Calls `on_bootstrap` after each bootstrap on one thread.
    fn measure(&self, threads: usize, on_bootstrap: &mut dyn FnMut(f64)) -> Result<Map<String, Value>> {
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
        let operations = self.operation_times()?;
        step("bootstraps");
        run()?;
        // The numbers of threads alternate, so that other load on the machine affects all alike.
        let (mut one, mut two, mut all) = (Timing::LONGEST, Timing::LONGEST, Timing::LONGEST);
        for _ in 0..BOOTSTRAPS {
            let seconds = with_threads(1, || time(1, run))?;
            on_bootstrap(seconds.cpu);
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
            "mult_relin_rescale_ms": operations.multiply_ms,
            "rotate_ms": operations.rotate_ms,
            "operation_limbs": OPERATION_LIMBS,
            "bootstrap_wall_s": wall,
            "bootstrap_cpu_s": one.cpu,
            "bootstrap_wall_1t_s": one.wall,
            "bootstrap_wall_2t_s": two.wall,
        })));
        Ok(report)
    }
}

impl OpsBench<CudaBackend> {
    /// Measures everything on a GPU.
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
        let variants = [("", OPERATION_LIMBS), ("_top", params.chain().len()), ("_level12", level_12)];
        let mut report = Map::new();
        for (suffix, limbs) in variants {
            let operations = self.operation_times(limbs.min(params.chain().len()))?;
            report.insert(format!("mult_relin_rescale{suffix}_ms"), operations.multiply_ms.into());
            report.insert(format!("rotate{suffix}_ms"), operations.rotate_ms.into());
        }
        step("bootstrap");
        let values = uniform_square(params.slots(), &mut OsSeeds);
        let ct = self.encrypt(&values, params.limbs(0), params.scale(0))?;
        let run = || Ok(self.bootstrapper.bootstrap(&self.evaluator, &ct, 0, &self.keys)?);
        // Measured twice: with kernels queued one by one, and with a recorded graph.
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
            "graphs": graph_report(&graphs),
            "device_peak_gib": gpu.peak_bytes() as f64 / f64::from(1 << 30),
        })));
        Ok(report)
    }

    /// Times single operations, many of them queued in a row.
    fn operation_times(&self, limbs: usize) -> Result<OperationTimes> {
        let (params, gpu) = (&self.owner.params, self.evaluator.backend());
        let galois = self.evaluator.galois_of_rotation(1);
        let keys = self.owner.keys_on(&**gpu, &[(KeyId::Relinearisation, limbs), (KeyId::Galois(galois), limbs)])?;
        let values = uniform_square(params.slots(), &mut OsSeeds);
        let a = self.encrypt(&values, limbs, params.scale(params.top_level()))?;
        let product = self.seconds(20, &|| Ok(self.evaluator.sum_of_products(&[(&a, &a)], &keys)?))?;
        let rotate = self.seconds(20, &|| Ok(self.evaluator.automorphism(&a, galois, &keys)?))?;
        Ok(OperationTimes { multiply_ms: 1e3 * product.wall, rotate_ms: 1e3 * rotate.wall })
    }

    /// Times `repeats` runs queued in a row, five times. Returns the shortest mean of one run.
    fn seconds(&self, repeats: u32, run: &dyn Fn() -> Result<Ciphertext<CudaPoly>>) -> Result<Timing> {
        let gpu = self.evaluator.backend();
        let repeat = |times: u32| (0..times).try_for_each(|_| run().map(drop));
        repeat(3)?;
        let mut best = Timing::LONGEST;
        for _ in 0..5 {
            gpu.synchronize()?;
            let (start, cpu) = (Instant::now(), cpu_time());
            repeat(repeats)?;
            // CPU time counts until all work is queued: waiting may or may not use the CPU.
            let cpu = cpu_time() - cpu;
            gpu.synchronize()?;
            let mean = |time: Duration| time.as_secs_f64() / f64::from(repeats);
            best = best.min(Timing { wall: mean(start.elapsed()), cpu: mean(cpu) });
        }
        Ok(best)
    }
}

/// Counts of recorded and replayed graphs, for reports.
pub fn graph_report(graphs: &Graphs) -> Value {
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
