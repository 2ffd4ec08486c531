//! Trainings on an engine, and the noise of its operations.

use crate::Result;
use crate::runner::engine::EngineKind;
use crate::runner::harness::{ClearHarness, Harness};
use crate::runner::{self, Experiment, GpuOptions};
use hetal_circuits::clear::{Clear, KeyRequirements, Noise};
use hetal_circuits::{Complex64, Engine};
use hetal_ckks::Params;
use hetal_learn::rehearsal::{Rehearsal, distance};
use hetal_learn::{Circuit, Matrix};
use serde_json::{Value, json};

/// A training on an engine.
pub(super) struct EngineTraining<'a> {
    pub rehearsal: &'a Rehearsal<'a>,
    pub alpha: f64,
    pub top_level: usize,
    /// The noise of plain numbers.
    pub noise: Noise,
}

/// The noise of weights that were trained on an engine.
pub(super) struct MeasuredNoise {
    /// The part that depends on the secret key and on chance: the 2-norm of the difference of two
    /// trainings under different keys, divided by the square root of 2.
    pub noise: f64,
    /// The distance to the weights of plain numbers without noise. It contains the rounding of
    /// plaintexts, which does not depend on the key.
    pub distance: f64,
}

impl EngineTraining<'_> {
    /// Trains twice on an engine, under different keys. Plain numbers have simulated noise.
    pub fn measure(&self, engine: EngineKind, set: &str, gpu: GpuOptions, exact: &Matrix) -> Result<MeasuredNoise> {
        let [first, second] = [self.weights(1 << 32, engine, set, gpu)?, self.weights(2 << 32, engine, set, gpu)?];
        Ok(MeasuredNoise {
            noise: distance(&first, &second)? / std::f64::consts::SQRT_2,
            distance: distance(&first, exact)?,
        })
    }

    fn weights(&self, seed: u64, engine: EngineKind, set: &str, gpu: GpuOptions) -> Result<Matrix> {
        if engine == EngineKind::Clear {
            let params = Params::named(set)?;
            let clear = Clear::with_noise(params.slots(), params.top_level(), Noise { seed, ..self.noise });
            return self.run(&ClearHarness::new(clear));
        }
        runner::run(self, engine, set, gpu)
    }
}

impl Experiment for EngineTraining<'_> {
    type Output = Matrix;

    fn required_keys(&self) -> Result<KeyRequirements> {
        let keys = self.rehearsal.circuit.keys(self.top_level)?;
        Ok(KeyRequirements { bounds: Circuit::bounds(&keys, self.alpha), ..keys })
    }

    fn run<H: Harness>(&self, harness: &H) -> Result<Matrix> {
        let encrypt = |values: &[Complex64], level: usize| harness.encrypt(values, level);
        let parts = self.rehearsal.run(harness.engine(), &encrypt)?;
        Ok(self.rehearsal.unpacked(&harness.decrypt_all(&parts)?)?)
    }
}

/// The deviations of the operations of a set.
pub(super) fn measure(set: &str, engine: EngineKind, gpu: GpuOptions) -> Result<Value> {
    let engine = if engine == EngineKind::Clear { EngineKind::Cpu } else { engine };
    let [encryption, operation, bootstrap] = runner::run(&Operations, engine, set, gpu)?.map(f64::log2);
    Ok(json!({
        "set": set,
        "log2_encryption": encryption,
        "log2_operation": operation,
        "log2_bootstrap": bootstrap,
    }))
}

/// The level of the ciphertexts that are measured.
const LEVEL: usize = 5;

/// One encryption, one rotation and one bootstrap of a complex vector of magnitude 1.
struct Operations;

impl Experiment for Operations {
    /// The deviations of a coordinate.
    type Output = [f64; 3];

    fn required_keys(&self) -> Result<KeyRequirements> {
        let bounds = hetal_circuits::bootstrap::BootstrapBounds::from(&[0]);
        Ok(KeyRequirements { rotations: vec![(1, LEVEL)], bounds, ..KeyRequirements::default() })
    }

    fn run<H: Harness>(&self, harness: &H) -> Result<[f64; 3]> {
        let engine = harness.engine();
        let slots = engine.slots();
        let values: Vec<Complex64> = (0..slots).map(|i| Complex64::from_polar(1.0, (i * i) as f64)).collect();
        let ct = harness.encrypt(&values, LEVEL)?;
        let variance = |out: &_, rotation: usize| -> Result<f64> {
            let out = harness.decrypt(out)?;
            let expected = (0..slots).map(|i| values[(i + rotation) % slots]);
            Ok(out.iter().zip(expected).map(|(a, b)| (a - b).norm_sqr()).sum::<f64>() / (2 * slots) as f64)
        };
        let fresh = variance(&ct, 0)?;
        let rotated = variance(&engine.rotate(&ct, 1)?, 1)?;
        let bootstrapped = variance(&engine.bootstrap(&ct, 0)?, 0)?;
        Ok([fresh.sqrt(), (rotated - fresh).max(0.0).sqrt(), bootstrapped.sqrt()])
    }
}
