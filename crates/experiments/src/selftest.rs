//! `hetal selftest`: every operation, a bootstrap and a training iteration, byte for byte against a reference.

use crate::bench::ops::described;
use crate::report::{output, progress};
use crate::runner::engine::{DeviceBackend, Processor, open_gpu};
use crate::runner::local_owner::LocalOwner;
use crate::{Error, Result};
use hetal_circuits::bootstrap::BsgsSplit;
use hetal_circuits::clear::KeyRequirements;
use hetal_circuits::{Complex64, Engine, LeveledCiphertext};
use hetal_ckks::{Backend, Params};
use hetal_client::ring_with;
use hetal_cuda::CudaBackend;
use hetal_cuda::selftest::{Ring, compare, hashes};
use hetal_learn::nesterov::Momentum;
use hetal_learn::softmax::Constants;
use hetal_learn::trainer::{self, Model, Trainer};
use hetal_learn::{Geometry, LevelPlan, Matrix, packing};
use hetal_ring::Isa;
use hetal_ring::sampler::TestSeeds;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// Arguments of `hetal selftest`.
#[derive(clap::Args)]
pub struct Arguments {
    /// What is tested: the CPU's vector kernels against its scalar ones, or a GPU against the CPU.
    #[arg(long, value_enum, default_value = "cpu")]
    pub engine: Processor,
    /// The parameter sets (more than one: separated by commas). By default the toy sets, and on a GPU `full` too.
    #[arg(long, value_delimiter = ',')]
    pub set: Vec<String>,
    /// Which GPU.
    #[arg(long, default_value_t = 0)]
    pub device: usize,
    /// Do the bootstraps and the iterations so many times more, with pauses of random length between the GPU's kernels: what does
    /// not wait for what it needs then shows.
    #[arg(long, default_value_t = 0)]
    pub shake: u64,
    /// Print an array of JSON objects, one for each set.
    #[arg(long)]
    pub json: bool,
}

/// Names of results with a hash for each limb.
type Results = Vec<(String, Vec<[u8; 32]>)>;

/// Runs the self-test; a difference is an error.
pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.shake > 0 && arguments.engine != Processor::Cuda {
        return Err(Error::NothingToShake);
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

/// Tests one set.
fn test(arguments: &Arguments, set: &str) -> Result<Value> {
    let start = Instant::now();
    let params = Params::named(set)?;
    let ((mut compared, mut differ), (ours, theirs), on, graphs) = match arguments.engine {
        Processor::Cpu => {
            let (vector, scalar) = (ring_with(&params, Isa::detect())?, ring_with(&params, Isa::Scalar)?);
            let name = format!("{} against scalar", Isa::detect().name());
            let operations = operations(&vector, &scalar, &params)?;
            let journeys = (journey(set, Isa::detect(), &vector)?, journey(set, Isa::Scalar, &scalar)?);
            (operations, journeys, name, Value::Null)
        }
        Processor::Cuda => {
            let (card, cpu) = (open_gpu(&params, arguments.device)?, ring_with(&params, Isa::detect())?);
            let operations = operations(&card, &cpu, &params)?;
            let mut journeys = (journey(set, Isa::detect(), &card)?, journey(set, Isa::detect(), &cpu)?);
            shaken(arguments.shake, set, &card, &mut journeys)?;
            (operations, journeys, card.describe(), described(&card.graphs()))
        }
    };
    compared += ours.len().max(theirs.len());
    differ.extend(differing(&ours, &theirs));
    Ok(json!({
        "set": set,
        "on": on,
        "compared": compared,
        "differ": differ,
        "graphs": graphs,
        "seconds": start.elapsed().as_secs_f64(),
    }))
}

/// Adds journeys with pauses between the card's kernels to what is compared.
fn shaken(times: u64, set: &str, card: &Arc<CudaBackend>, (ours, theirs): &mut (Results, Results)) -> Result<()> {
    let expected = theirs.clone();
    let bar = progress::bar(times).with_message("with pauses");
    for seed in 1..=times {
        card.shake(Some(seed));
        ours.extend(journey(set, Isa::detect(), card)?);
        theirs.extend(expected.iter().cloned());
        bar.inc(1);
    }
    card.shake(None);
    bar.finish_and_clear();
    Ok(())
}

/// Names of results that one side has otherwise, or not at all.
fn differing(ours: &Results, theirs: &Results) -> Vec<String> {
    let pairs = (0..ours.len().max(theirs.len())).map(|k| (ours.get(k), theirs.get(k)));
    let odd = pairs.filter(|(ours, theirs)| ours != theirs);
    odd.filter_map(|(ours, theirs)| ours.or(theirs)).map(|(name, _)| name.clone()).collect()
}

/// How many results of single operations were compared, and the names of those that differ.
fn operations<A: Backend, B: Backend>(a: &Arc<A>, b: &Arc<B>, params: &Params) -> Result<(usize, Vec<String>)> {
    let spinner = progress::spinner("every operation");
    let (q, p) = (params.chain(), params.special());
    let ring = Ring { log_n: params.log_n(), q, p, digit_starts: params.digit_starts() };
    let report = compare(&**a, &**b, &ring, 1).map_err(hetal_ckks::Error::from)?;
    spinner.finish_and_clear();
    let name = |m: hetal_cuda::selftest::Mismatch| format!("{}, limb {}", m.operation, m.limb);
    Ok((report.compared, report.mismatches.into_iter().map(name).collect()))
}

/// Keys, ciphertexts, a bootstrap and a whole training iteration on a backend, all from the same seeds each time.
fn journey<B: DeviceBackend>(set: &str, isa: Isa, backend: &Arc<B>) -> Result<Results> {
    let owner = LocalOwner::with_seeds(set, isa, Box::new(TestSeeds::insecure(41)))?;
    let params = &owner.params;
    let (rows, features, classes) = if params.slots() < 32768 { (64, 30, 3) } else { (1024, 768, 7) };
    let g = Geometry::new(params.slots(), rows, features, classes)?;
    let (level_plan, constants) = (LevelPlan::lowest(), Constants::built_in(classes, 128.0)?);
    let needs: KeyRequirements = trainer::keys(g, level_plan, constants.clone(), 0, params.top_level())?;
    let engine = owner.engine_on(Arc::clone(backend), &needs, BsgsSplit::FewKeys)?;
    let encoder = owner.evaluator();
    let seal = |values: &[Complex64], level| owner.encrypt_for(&engine, &encoder, values, level);
    let spinner = progress::spinner("a bootstrap and an iteration");
    let mut results = Results::new();
    let mut note = |name: &str, ct: &LeveledCiphertext<B::Poly>| -> Result<()> {
        for (half, poly) in [("c0", &ct.inner().c0), ("c1", &ct.inner().c1)] {
            let hashes = hashes(&**backend, poly).map_err(hetal_ckks::Error::from)?;
            results.push((format!("{name}, {half}"), hashes));
        }
        Ok(())
    };
    let slot = |i: usize, period: f64| (i as f64 * 0.37).sin() * (i as f64 / period).cos();
    let values: Vec<Complex64> = (0..params.slots()).map(|i| Complex64::new(slot(i, 5.0), slot(i, 7.0))).collect();
    let fresh = seal(&values, 0)?;
    note("encryption", &fresh)?;
    // A card does the first kernel by kernel, records the second as a graph, and replays that on the first's input.
    let turned: Vec<Complex64> = values.iter().rev().copied().collect();
    let other = seal(&turned, 0)?;
    for (name, ct) in [("bootstrap", &fresh), ("bootstrap of another", &other), ("bootstrap again", &fresh)] {
        note(name, &engine.bootstrap(ct, 0)?)?;
    }
    let trainer = Trainer::new(&engine, g, level_plan, constants, 0)?;
    let x = Matrix::from_fn(rows, features, |i, j| slot(31 * i + j, 11.0) / (features as f64).sqrt());
    let labels: Vec<usize> = (0..rows).map(|i| i * i % classes).collect();
    let blocks = packing::features(&g, &x)?;
    let blocks: Vec<_> = blocks.iter().map(|b| seal(b, level_plan.fresh_features())).collect::<Result<_>>()?;
    let labels = seal(&packing::labels(&g, &labels)?, level_plan.probabilities())?;
    let batch = trainer.batch(&engine, &blocks, labels, rows)?;
    for (k, version) in batch.versions.iter().flatten().enumerate() {
        note(&format!("version {k} of the features"), version)?;
    }
    let first = Matrix::from_fn(classes, features + 1, |k, j| slot(97 * k + j, 13.0) / 20.0);
    let parts = packing::weights(&g, &first)?;
    let weights = parts.iter().map(|part| seal(part, level_plan.weights())).collect::<Result<_>>()?;
    let model = Model::new(weights, Momentum::Nesterov);
    // The first step has no momentum yet; in the third everything that a card records is replayed.
    let first = trainer.step(&engine, &model, &batch, 1.0)?;
    first.weights.iter().try_for_each(|ct| note("weights after the first iteration", ct))?;
    let second = trainer.step(&engine, &first, &batch, 1.0)?;
    second.weights.iter().try_for_each(|ct| note("weights after the second iteration", ct))?;
    let stepped = trainer.step(&engine, &second, &batch, 1.0)?;
    let refreshed = trainer.refresh(&engine, &stepped)?;
    let after = [("weights", Some(&stepped.weights)), ("lookahead", stepped.lookahead.as_ref())];
    for (name, parts) in after.into_iter().chain([("momentum", stepped.momentum.as_ref())]) {
        parts.into_iter().flatten().try_for_each(|ct| note(&format!("{name} after the third iteration"), ct))?;
    }
    refreshed.momentum.iter().flatten().try_for_each(|ct| note("momentum refreshed", ct))?;
    spinner.finish_and_clear();
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_result_is_a_difference() {
        let one = |name: &str, byte| (name.to_owned(), vec![[byte; 32]]);
        let (a, b) = (vec![one("x", 1), one("y", 2)], vec![one("x", 1)]);
        assert_eq!(differing(&a, &a), Vec::<String>::new());
        assert_eq!((differing(&a, &b), differing(&b, &a)), (vec!["y".to_owned()], vec!["y".to_owned()]));
        assert_eq!(differing(&a, &vec![one("x", 1), one("y", 3)]), ["y"]);
        assert_eq!(differing(&a, &vec![one("x", 1), one("z", 2)]), ["y"], "results of another name are others");
    }
}
