//! Everything that client and server derive from the shape of a training: its geometry, its levels,
//! its keys.

use crate::judge::{RANGES, first_range};
use crate::nesterov::LOG_WEIGHT_BOUND;
use crate::softmax::Constants;
use crate::trainer::{self, Trainer};
use crate::{Geometry, LevelPlan, Result, batches};
use hetal_circuits::Engine;
use hetal_circuits::bootstrap::BootstrapBounds;
use hetal_circuits::clear::KeyRequirements;
use std::ops::Range;

/// The circuit of a training, over every range that the client may widen it to.
///
/// ```
/// let circuit = hetal_learn::Circuit::new(1024, 64, 12, 3, 32.0).unwrap();
/// assert_eq!(circuit.ranges(), [32.0, 128.0, 512.0]);
/// assert!(!circuit.keys(13).unwrap().rotations.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Circuit {
    batch: usize,
    geometry: Geometry,
    level_plan: LevelPlan,
    ranges: Vec<f64>,
}

impl Circuit {
    /// The circuit for batches of `batch` rows on `slots` slots, with logits in `[-range, range]`
    /// at first, or in the range for two classes ([`first_range`]).
    pub fn new(slots: usize, batch: usize, features: usize, classes: usize, range: f64) -> Result<Self> {
        Self::with_plan(slots, batch, features, classes, range, LevelPlan::lowest())
    }

    /// [`Circuit::new`] for rows that may have weights, as the level plan says.
    pub fn with_plan(
        slots: usize,
        batch: usize,
        features: usize,
        classes: usize,
        range: f64,
        level_plan: LevelPlan,
    ) -> Result<Self> {
        let geometry = Geometry::new(slots, batch, features, classes)?;
        if !RANGES.contains(&range) {
            return Err(crate::Error::NoConstants { classes, range });
        }
        let range = first_range(range, classes, level_plan.is_weighted());
        let ranges = RANGES.into_iter().filter(|&r| r >= range).collect();
        Ok(Self { batch, geometry, level_plan, ranges })
    }

    /// The arrangement of rows, features and classes in slots.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The rows of every piece of `rows` rows, in the order in which they are sent.
    pub fn pieces(&self, rows: usize) -> Vec<Range<usize>> {
        batches::pieces(&self.geometry, rows, self.batch)
    }

    /// Which of `sent` pieces make up a batch.
    pub fn pieces_of(&self, batch: usize, sent: usize) -> Range<usize> {
        batches::pieces_of(&self.geometry, self.batch, batch, sent)
    }

    /// How many batches `sent` pieces make up.
    pub fn batches(&self, sent: usize) -> usize {
        sent.div_ceil(self.geometry.pieces(self.batch))
    }

    /// The level at which each part of an iteration happens.
    pub fn level_plan(&self) -> LevelPlan {
        self.level_plan
    }

    /// The first range of the logits and the ranges it can be widened to.
    pub fn ranges(&self) -> &[f64] {
        &self.ranges
    }

    /// The scale by which logits are divided under a range.
    pub fn scale(&self, range: f64) -> Result<f64> {
        Ok(self.constants(range)?.scale)
    }

    fn constants(&self, range: f64) -> Result<Constants> {
        Constants::for_plan(self.geometry.classes(), range, self.level_plan)
    }

    /// Encodes the circuit of one range.
    pub fn trainer<E: Engine>(&self, engine: &E, range: f64) -> Result<Trainer<E>> {
        Trainer::new(engine, self.geometry, self.level_plan, self.constants(range)?)
    }

    /// The bounds of all bootstrapped values, as powers of two, for the keys of a circuit. With L2
    /// the weights are bootstrapped too.
    pub fn bounds(keys: &KeyRequirements, alpha: f64) -> BootstrapBounds {
        let mut bounds = keys.bounds.clone();
        bounds.full.extend((alpha != 0.0).then_some(LOG_WEIGHT_BOUND));
        bounds
    }

    /// The switching keys of the whole training, without those inside bootstraps, on an engine of
    /// `top_level` levels.
    pub fn keys(&self, top_level: usize) -> Result<KeyRequirements> {
        // A circuit has at least one range and begins with the first.
        let range = self.ranges.first().copied().unwrap_or(f64::NAN);
        trainer::keys_of_session(self.geometry, self.level_plan, range, top_level)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn keys_serve_every_range() {
        let circuit = Circuit::new(1024, 64, 12, 3, 32.0).unwrap();
        let all = circuit.keys(13).unwrap();
        for &range in circuit.ranges() {
            let constants = circuit.constants(range).unwrap();
            let keys = trainer::keys(*circuit.geometry(), circuit.level_plan(), constants, 13).unwrap();
            assert_eq!(all.bounds.clone().union(keys.bounds), all.bounds);
            assert!(keys.rotations.iter().all(|(k, level)| all.rotations.iter().any(|(l, m)| k == l && m >= level)));
            assert!(keys.relinearisation <= all.relinearisation && keys.conjugation <= all.conjugation);
        }
        let two = |plan| Circuit::with_plan(1024, 64, 12, 2, 32.0, plan).unwrap().ranges()[0];
        assert_eq!((two(LevelPlan::lowest()), two(LevelPlan::weighted())), (16.0, 32.0));
        assert!(Circuit::new(1024, 64, 12, 3, 100.0).is_err());
        assert!(Circuit::new(1024, 64, 12, 3, f64::NAN).is_err());
    }
}
