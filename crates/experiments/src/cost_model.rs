//! Estimates the sizes and times of a training for `hetal plan`.
//!
//! Sizes are exact: they follow from the serialised formats. Times come from a small table of
//! measured costs, scaled by a short measurement of this machine.

use crate::Result;
use hetal_circuits::clear::{KeyRequirements, OpKind};
use hetal_circuits::encrypted;
use hetal_ckks::{Params, bytes};
use hetal_learn::plan::CostModel;
use hetal_ring::Basis;

/// Costs of a parameter set on the CPU of this machine.
pub struct CpuCostModel {
    params: Params,
    ntt_seconds: f64,
    /// The speed of all threads together, relative to one thread.
    speedup: f64,
}

/// The share of a lift in the cost of a bootstrap: all but slots-to-coefficients.
const LIFT: f64 = 0.92;

/// The cost of a rotation, in forward transforms of one limb.
///
/// `hetal bench ops` measured it on machine Z (docs/benchmarks.md) at the set `full` with
/// [`MEASURED_LIMBS`] limbs.
const ROTATION: f64 = 195.0;
/// The cost of a multiplication, measured like [`ROTATION`].
const MULTIPLICATION: f64 = 197.0;
/// The number of limbs at which the two costs were measured.
const MEASURED_LIMBS: usize = 13;
/// The cost of a bootstrap in the same unit, by set.
///
/// `full` was measured on 2026-11-16 (b44ec44: 5.96 s over 221.6 us, one run), `small` at 057eccc.
const BOOTSTRAPS: [(&str, f64); 2] = [("full", 26_900.0), ("small", 34_000.0)];

/// The number of threads above which the model assumes no further speed-up.
///
/// An iteration with 7 classes took 14.0 s on two cores of machine S and 11.9 s on all sixteen.
/// The model gave 10.8 s there. On machine Z it gave 14.9 s, and 14.4 s were measured
/// (docs/benchmarks.md).
const USEFUL_THREADS: usize = 2;

impl CpuCostModel {
    /// Measures this machine for some milliseconds.
    pub fn measure(set: &str) -> Result<Self> {
        let params = Params::named(set)?;
        let ring = hetal_client::ring_of(&params)?;
        let mut poly = ring.zero(Basis { q: 1, p: 0 });
        let table = ring.table(poly.basis(), 0);
        let ntt_seconds = crate::process::time(50, || table.forward(ring.isa(), &mut poly.limbs_mut()[0])).wall;
        // Two threads on two cores take about 0.6 of the time of one thread.
        let speedup = (rayon::current_num_threads().min(USEFUL_THREADS) as f64).powf(0.8);
        Ok(Self { params, ntt_seconds, speedup })
    }

    /// Serialised bytes of all keys that a circuit needs, including those of its bootstraps.
    pub fn key_set_bytes(&self, keys: &KeyRequirements) -> Result<u64> {
        Ok(bytes::key_set_len(&self.params, &encrypted::keys(&self.params, keys)).map_err(hetal_ckks::Error::from)?)
    }

    /// Transforms of a key switch.
    ///
    /// Every digit is extended to the basis of the key; then both halves are divided.
    fn key_switch_transforms(&self, limbs: usize) -> f64 {
        let basis = self.params.key_basis(limbs).limbs();
        ((self.params.digits(limbs) + 2) * basis) as f64
    }

    /// Converts a cost measured at [`MEASURED_LIMBS`] limbs to the limbs of a level.
    fn scaled(&self, transforms: f64, level: usize) -> f64 {
        let measured = MEASURED_LIMBS.min(self.params.chain().len());
        transforms * self.key_switch_transforms(self.params.limbs(level)) / self.key_switch_transforms(measured)
    }

    /// The cost of a bootstrap, in transforms.
    fn bootstrap(&self) -> Option<f64> {
        BOOTSTRAPS.iter().find(|(set, _)| *set == self.params.name()).map(|(_, cost)| *cost)
    }

    /// The cost of an operation, in transforms.
    fn transforms(&self, kind: OpKind, level: usize) -> Option<f64> {
        let limbs = self.params.limbs(level) as f64;
        Some(match kind {
            OpKind::Rotation | OpKind::Conjugation => self.scaled(ROTATION, level),
            // Hoisted rotations share their first half, about two thirds of the transforms.
            OpKind::HoistedRotation => self.scaled(ROTATION, level) / 2.0,
            OpKind::Relinearisation => self.scaled(MULTIPLICATION, level) - 4.0 * limbs,
            // A pointwise operation costs about an eighth of a transform for each limb.
            OpKind::Product => limbs / 2.0,
            OpKind::PlainProduct | OpKind::ConstantProduct => limbs / 4.0,
            OpKind::Addition => limbs / 8.0,
            OpKind::Rescale | OpKind::Drop => 4.0 * limbs,
            OpKind::Bootstrap => self.bootstrap()?,
            OpKind::Lift => self.bootstrap()? * LIFT,
            _ => return None,
        })
    }
}

impl CostModel for CpuCostModel {
    fn ciphertext_bytes(&self, level: usize) -> u64 {
        bytes::ciphertext_len(&self.params, self.params.limbs(level))
    }

    fn seconds(&self, kind: OpKind, level: usize) -> Option<f64> {
        Some(self.transforms(kind, level)? * self.ntt_seconds / self.speedup)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::runner::local_owner::LocalOwner;
    use hetal_ckks::Complex64;
    use hetal_ckks::bytes::Codec;
    use hetal_ckks::params::BUILT_IN;
    use hetal_learn::Plan;
    use hetal_learn::plan::Workload;
    use std::sync::Arc;

    /// A new built-in set needs a measured bootstrap, and no entry is of a set that is gone. Times
    /// of the toy sets are not estimated: only tests train with them.
    #[test]
    fn every_secure_built_in_set_has_a_measured_bootstrap() {
        for literal in &BUILT_IN {
            let params = Params::named(&literal.name).unwrap();
            let is_measured = BOOTSTRAPS.iter().any(|(set, _)| *set == params.name());
            assert_eq!(is_measured, !params.is_insecure_by_name(), "{}", params.name());
        }
        assert!(BOOTSTRAPS.iter().all(|(set, _)| Params::named(set).is_ok()));
    }

    /// Estimated sizes equal those of real objects.
    #[test]
    fn sizes_are_exact() {
        let machine = CpuCostModel::measure("insecure-toy11").unwrap();
        let owner = LocalOwner::new("insecure-toy11").unwrap();
        let codec = Codec::new(Arc::clone(&owner.params), Arc::clone(&owner.ring));
        for level in [0, 3, 13] {
            let (limbs, scale) = (owner.params.limbs(level), owner.params.scale(level));
            let values = vec![Complex64::ONE; owner.params.slots()];
            let ct = owner.encrypt(&owner.evaluator(), &values, limbs, scale).unwrap();
            assert_eq!(codec.encode(&ct).unwrap().len() as u64, machine.ciphertext_bytes(level));
        }
        let keys = KeyRequirements { rotations: vec![(1, 5)], relinearisation: Some(7), ..KeyRequirements::default() };
        let made = owner.keys(&encrypted::keys(&owner.params, &keys)).unwrap();
        let mut stored = Vec::new();
        bytes::write_key_set(&codec, &made, &mut stored).unwrap();
        assert_eq!(stored.len() as u64, machine.key_set_bytes(&keys).unwrap());
    }

    /// The paper's SNIPS shape at `full` has sizes and times of the right order.
    #[test]
    fn snips_is_planned() {
        let task = Workload {
            rows: 13_084,
            validation_rows: 700,
            batch: 1024,
            features: 768,
            classes: 7,
            range: 32.0,
            weighted: false,
            alpha: 0.0,
        };
        let machine = CpuCostModel::measure("full").unwrap();
        let plan = Plan::new(&task, 32768, 13).unwrap();
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let keys = gib(machine.key_set_bytes(&plan.keys).unwrap());
        assert!((2.1..4.5).contains(&keys), "{keys}");
        // Three bootstraps dominate an iteration.
        let (iteration, bootstrap) = (plan.seconds_per_iteration(&machine), machine.seconds(OpKind::Bootstrap, 0));
        let ratio = iteration.unwrap() / bootstrap.unwrap();
        assert!((3.0..6.0).contains(&ratio), "{ratio}");
    }
}
