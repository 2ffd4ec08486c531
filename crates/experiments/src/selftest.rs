//! `hetal selftest`: compares every operation, bootstraps and training iterations with a reference
//! implementation, byte for byte.

use crate::bench::ops::graph_report;
use crate::report::{output, progress};
use crate::runner::engine::{DeviceBackend, Processor, open_gpu};
use crate::runner::local_owner::LocalOwner;
use crate::{Error, Result};
use hetal_circuits::KeyPlan;
use hetal_circuits::clear::KeyRequirements;
use hetal_circuits::{Complex64, Encrypted, Engine, LeveledCiphertext, LiftForm};
use hetal_ckks::{Backend, Ciphertext, Evaluator, Params};
use hetal_client::ring_with;
use hetal_cuda::CudaBackend;
use hetal_cuda::selftest::{RingPrimes, compare, hashes};
use hetal_learn::nesterov::{Momentum, StepSize};
use hetal_learn::softmax::Constants;
use hetal_learn::trainer::{self, Batch, ModelState, Trainer};
use hetal_learn::{Geometry, LevelPlan, Matrix, packing};
use hetal_ring::sampler::TestSeeds;
use hetal_ring::{Isa, RnsRing};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// Arguments of `hetal selftest`.
#[derive(clap::Args)]
pub struct Arguments {
    /// What is tested: the CPU's vector kernels against its scalar ones, or a GPU against the CPU.
    #[arg(long, value_enum, default_value = "cpu")]
    pub engine: Processor,
    /// The parameter sets, separated by commas. The default is the toy sets, and `full` on a GPU.
    #[arg(long, value_delimiter = ',')]
    pub set: Vec<String>,
    /// The number of the GPU.
    #[arg(long, default_value_t = 0)]
    pub device: usize,
    /// Repeat the bootstraps and iterations this many times, with random pauses between the GPU's
    /// kernels. The pauses reveal kernels that do not wait for their inputs.
    #[arg(long, default_value_t = 0)]
    pub shake: u64,
    /// Print an array of JSON objects, one for each set.
    #[arg(long)]
    pub json: bool,
}

/// One polynomial of a result: its name, and a hash for each limb.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HashedResult {
    name: String,
    limbs: Vec<[u8; 32]>,
}

/// The results of the tested engine and those of the reference.
struct ResultPair {
    tested: Vec<HashedResult>,
    reference: Vec<HashedResult>,
}

/// The comparison of single operations.
struct OperationComparison {
    /// The number of results compared.
    compared: usize,
    /// The names of those that differ.
    differ: Vec<String>,
}

/// Runs the self-test. A difference is an error.
pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.shake > 0 && arguments.engine != Processor::Cuda {
        return Err(Error::ShakeNeedsGpu);
    }
    let toys = ["insecure-toy11", "insecure-toy12"];
    let defaults = toys.into_iter().chain((arguments.engine == Processor::Cuda).then_some("full"));
    let sets: Vec<String> =
        if arguments.set.is_empty() { defaults.map(str::to_owned).collect() } else { arguments.set.clone() };
    let reports: Vec<Value> = sets.iter().map(|set| test(arguments, set)).collect::<Result<_>>()?;
    let differ: usize = reports.iter().filter_map(|r| r["differ"].as_array()).map(Vec::len).sum();
    let line = |report: &Value| {
        let (compared, differ) = (&report["compared"], report["differ"].as_array().map_or(0, Vec::len));
        let set = report["set"].as_str().unwrap_or_default();
        format!("{set:16} {compared} results compared, {differ} differ\n")
    };
    output::print(arguments.json, &Value::from(&reports[..]), &reports.iter().map(line).collect::<String>());
    if differ > 0 { Err(Error::SelfTest { differ }) } else { Ok(()) }
}

/// Tests one parameter set.
fn test(arguments: &Arguments, set: &str) -> Result<Value> {
    let start = Instant::now();
    let params = Params::named(set)?;
    let (operations, results, on, graphs) = match arguments.engine {
        Processor::Cpu => {
            let (vector, scalar) = (ring_with(&params, Isa::detect())?, ring_with(&params, Isa::Scalar)?);
            let operations = compare_operations(&vector, &scalar, &params)?;
            let tested = circuit_results(set, Isa::detect(), &vector)?;
            let reference = circuit_results(set, Isa::Scalar, &scalar)?;
            let on = format!("{} against scalar", Isa::detect().name());
            (operations, ResultPair { tested, reference }, on, Value::Null)
        }
        Processor::Cuda => {
            let (gpu, cpu) = (open_gpu(&params, arguments.device)?, ring_with(&params, Isa::detect())?);
            let operations = compare_operations(&gpu, &cpu, &params)?;
            let tested = circuit_results(set, Isa::detect(), &gpu)?;
            let reference = circuit_results(set, Isa::detect(), &cpu)?;
            let mut results = ResultPair { tested, reference };
            repeat_with_pauses(arguments.shake, set, &gpu, &mut results)?;
            (operations, results, gpu.describe(), graph_report(&gpu.graphs()))
        }
    };
    let mut differ = operations.differ;
    differ.extend(differing(&results.tested, &results.reference));
    Ok(json!({
        "set": set,
        "on": on,
        "compared": operations.compared + results.tested.len().max(results.reference.len()),
        "differ": differ,
        "graphs": graphs,
        "seconds": start.elapsed().as_secs_f64(),
    }))
}

/// Adds runs with pauses between the GPU's kernels to the results that are compared.
fn repeat_with_pauses(times: u64, set: &str, gpu: &Arc<CudaBackend>, results: &mut ResultPair) -> Result<()> {
    let expected = results.reference.clone();
    let bar = progress::bar(times).with_message("with pauses");
    for seed in 1..=times {
        gpu.inject_pauses(Some(seed));
        results.tested.extend(circuit_results(set, Isa::detect(), gpu)?);
        results.reference.extend(expected.iter().cloned());
        bar.inc(1);
    }
    gpu.inject_pauses(None);
    bar.finish_and_clear();
    Ok(())
}

/// The names of results that differ, or that one side does not have.
fn differing(tested: &[HashedResult], reference: &[HashedResult]) -> Vec<String> {
    let pairs = (0..tested.len().max(reference.len())).map(|k| (tested.get(k), reference.get(k)));
    let unequal = pairs.filter(|(tested, reference)| tested != reference);
    unequal.filter_map(|(tested, reference)| tested.or(reference)).map(|result| result.name.clone()).collect()
}

/// Compares single operations of two backends.
fn compare_operations<A: Backend, B: Backend>(a: &Arc<A>, b: &Arc<B>, params: &Params) -> Result<OperationComparison> {
    let spinner = progress::spinner("every operation");
    let (q, p) = (params.chain(), params.special());
    let ring = RingPrimes { log_n: params.log_n(), q, p, digit_starts: params.digit_starts() };
    let report = compare(&**a, &**b, &ring, 1).map_err(hetal_ckks::Error::from)?;
    spinner.finish_and_clear();
    let name = |m: hetal_cuda::selftest::Mismatch| format!("{}, limb {}", m.operation, m.limb);
    Ok(OperationComparison { compared: report.compared, differ: report.mismatches.into_iter().map(name).collect() })
}

/// Hashes of keys, ciphertexts, bootstraps and training iterations, from the same seeds each time.
fn circuit_results<B: DeviceBackend>(set: &str, isa: Isa, backend: &Arc<B>) -> Result<Vec<HashedResult>> {
    let owner = LocalOwner::with_seeds(set, isa, Box::new(TestSeeds::insecure(41)))?;
    let circuit = SelfTestCircuit::new(&owner.params)?;
    let engine = owner.engine_on(Arc::clone(backend), &circuit.required_keys(&owner.params)?, KeyPlan::Fast)?;
    let spinner = progress::spinner("a bootstrap and an iteration");
    let encoder = owner.evaluator();
    let mut run = CircuitRun { owner: &owner, engine: &engine, encoder, circuit, results: Vec::new() };
    run.bootstraps()?;
    run.iterations()?;
    spinner.finish_and_clear();
    Ok(run.results)
}

/// The training circuit that the self-test runs.
struct SelfTestCircuit {
    geometry: Geometry,
    level_plan: LevelPlan,
    constants: Constants,
    rows: usize,
}

impl SelfTestCircuit {
    fn new(params: &Params) -> Result<Self> {
        let (rows, features, classes) = if params.slots() < 32768 { (64, 30, 3) } else { (1024, 768, 7) };
        Ok(Self {
            geometry: Geometry::new(params.slots(), rows, features, classes)?,
            level_plan: LevelPlan::lowest(),
            constants: Constants::built_in(classes, 32.0)?,
            rows,
        })
    }

    fn required_keys(&self, params: &Params) -> Result<KeyRequirements> {
        Ok(trainer::keys(self.geometry, self.level_plan, self.constants.clone(), params.top_level())?)
    }
}

/// A fixed number for an index, with another sequence for each period.
fn fixed_value(i: usize, period: f64) -> f64 {
    (i as f64 * 0.37).sin() * (i as f64 / period).cos()
}

/// A run of the circuit on a backend, and the hashes of its results.
struct CircuitRun<'a, B: DeviceBackend> {
    owner: &'a LocalOwner,
    engine: &'a Encrypted<B>,
    encoder: Evaluator<RnsRing>,
    circuit: SelfTestCircuit,
    results: Vec<HashedResult>,
}

impl<B: DeviceBackend> CircuitRun<'_, B> {
    fn encrypt(&self, values: &[Complex64], level: usize) -> Result<LeveledCiphertext<B::Poly>> {
        self.owner.encrypt_for(self.engine, &self.encoder, values, level)
    }

    fn record(&mut self, name: &str, ct: &LeveledCiphertext<B::Poly>) -> Result<()> {
        self.record_inner(name, ct.inner())
    }

    /// Hashes both halves of a ciphertext.
    fn record_inner(&mut self, name: &str, ct: &Ciphertext<B::Poly>) -> Result<()> {
        let backend = self.engine.evaluator().backend();
        for (half, poly) in [("c0", &ct.c0), ("c1", &ct.c1)] {
            let limbs = hashes(&**backend, poly).map_err(hetal_ckks::Error::from)?;
            self.results.push(HashedResult { name: format!("{name}, {half}"), limbs });
        }
        Ok(())
    }

    fn record_all(&mut self, name: &str, cts: &[LeveledCiphertext<B::Poly>]) -> Result<()> {
        cts.iter().try_for_each(|ct| self.record(name, ct))
    }

    /// A GPU runs the kernels of the first bootstrap one by one, records the second bootstrap as a
    /// graph, and replays the graph on the input of the first.
    fn bootstraps(&mut self) -> Result<()> {
        let value = |i: usize| Complex64::new(fixed_value(i, 5.0), fixed_value(i, 7.0));
        let values: Vec<Complex64> = (0..self.owner.params.slots()).map(value).collect();
        let fresh = self.encrypt(&values, 0)?;
        self.record("encryption", &fresh)?;
        let reversed: Vec<Complex64> = values.iter().rev().copied().collect();
        let other = self.encrypt(&reversed, 0)?;
        for (name, ct) in [("bootstrap", &fresh), ("bootstrap of another", &other), ("bootstrap again", &fresh)] {
            self.record(name, &self.engine.bootstrap(ct, 0)?)?;
        }
        self.lifts(&values)
    }

    /// Lifts in both forms, each three times like the bootstraps.
    fn lifts(&mut self, values: &[Complex64]) -> Result<()> {
        for (name, form) in [("lift", LiftForm::Complex), ("real lift", LiftForm::Real)] {
            let rounded = self.owner.encrypt_rounded(values, 2, form)?;
            let unlifted = self.engine.import_unlifted(&rounded)?;
            for time in ["", ", again", ", for the third time"] {
                let lifted = self.engine.lift(&unlifted)?;
                self.record(&format!("{name}{time}"), &lifted)?;
            }
        }
        Ok(())
    }

    /// The first iteration has no momentum. In the third one a GPU replays everything it records.
    fn iterations(&mut self) -> Result<()> {
        let (engine, SelfTestCircuit { geometry, level_plan, constants, .. }) = (self.engine, &self.circuit);
        let trainer = Trainer::new(engine, *geometry, *level_plan, constants.clone())?;
        let batch = self.batch(&trainer)?;
        for (k, version) in batch.versions.iter().flatten().enumerate() {
            self.record(&format!("version {k} of the features"), version)?;
        }
        let first = trainer.step(engine, &self.initial_model()?, &batch, StepSize::of(1.0))?;
        self.record_all("weights after the first iteration", &first.weights)?;
        let second = trainer.step(engine, &first, &batch, StepSize::of(1.0))?;
        self.record_all("weights after the second iteration", &second.weights)?;
        let third = trainer.step(engine, &second, &batch, StepSize::of(1.0))?;
        self.record_all("weights after the third iteration", &third.weights)?;
        self.record_all("momentum after the third iteration", third.momentum.as_deref().unwrap_or_default())?;
        let refreshed = trainer.refresh(engine, &third)?;
        self.record_all("momentum refreshed", refreshed.momentum.as_deref().unwrap_or_default())?;
        let logits = trainer.logits(engine, &batch.versions, &third.weights)?;
        self.record("logits", &logits)?;
        let returned = engine.evaluator().truncated(logits.inner(), 1)?;
        self.record_inner("logits with one prime", &returned)
    }

    fn batch(&self, trainer: &Trainer<Encrypted<B>>) -> Result<Batch<LeveledCiphertext<B::Poly>>> {
        let SelfTestCircuit { geometry, level_plan, rows, .. } = &self.circuit;
        let (features, classes) = (geometry.features(), geometry.classes());
        let entry = |i: usize, j: usize| fixed_value(31 * i + j, 11.0) / (features as f64).sqrt();
        let blocks = packing::features(geometry, &Matrix::from_fn(*rows, features, entry))?;
        let blocks = blocks.iter().map(|block| self.encrypt(block, level_plan.fresh_features()));
        let blocks: Vec<_> = blocks.collect::<Result<_>>()?;
        let labels: Vec<usize> = (0..*rows).map(|i| i * i % classes).collect();
        let labels = self.encrypt(&packing::labels(geometry, &labels)?, level_plan.labels())?;
        Ok(trainer.batch(self.engine, &blocks, labels, *rows)?)
    }

    fn initial_model(&self) -> Result<ModelState<LeveledCiphertext<B::Poly>>> {
        let SelfTestCircuit { geometry, level_plan, .. } = &self.circuit;
        let entry = |k: usize, j: usize| fixed_value(97 * k + j, 13.0) / 20.0;
        let weights = Matrix::from_fn(geometry.classes(), geometry.features() + 1, entry);
        let parts = packing::weights(geometry, &weights)?;
        let parts = parts.iter().map(|part| self.encrypt(part, level_plan.weights())).collect::<Result<_>>()?;
        Ok(ModelState::new(parts, Momentum::Nesterov))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_result_is_a_difference() {
        let one = |name: &str, byte| HashedResult { name: name.to_owned(), limbs: vec![[byte; 32]] };
        let (a, b) = (vec![one("x", 1), one("y", 2)], vec![one("x", 1)]);
        assert_eq!(differing(&a, &a), Vec::<String>::new());
        assert_eq!((differing(&a, &b), differing(&b, &a)), (vec!["y".to_owned()], vec!["y".to_owned()]));
        assert_eq!(differing(&a, &[one("x", 1), one("y", 3)]), ["y"]);
        assert_eq!(differing(&a, &[one("x", 1), one("z", 2)]), ["y"], "results of another name are others");
    }
}
