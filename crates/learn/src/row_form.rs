//! The forms in which an owner encrypts rows.
//!
//! In slot form a ciphertext has the level at which it is used. In coefficient form it has one
//! prime and rounded coefficients, a fourteenth of the bytes, and the server lifts it before its
//! first use. After the lift both forms are alike.

use crate::normalisation::GUARD;
use crate::packing::MAX_ROW_WEIGHT;
use crate::{LevelPlan, Result};
use hetal_circuits::bootstrap::lift::MAX_BOUNDS;
use hetal_circuits::{Engine, LiftForm};
use serde::{Deserialize, Serialize};

/// The form of the encrypted rows of a training or of queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RowForm {
    /// In slots, at the level of their first use.
    #[default]
    Slots,
    /// In coefficients modulo `q0`, rounded.
    Coefficients,
}

impl RowForm {
    /// Its name in commands and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slots => "slots",
            Self::Coefficients => "coefficients",
        }
    }
}

/// What one ciphertext of a row blob holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowVector {
    /// A block of features.
    Features,
    /// Labels, times the weights of their rows if rows have weights.
    Labels,
    /// Weights of rows.
    RowWeights,
}

impl RowVector {
    /// The ciphertexts of a row blob in their order: blocks of features, then labels and weights if
    /// the blob has them.
    pub fn of_blob(blocks: usize, plan: LevelPlan, with_labels: bool) -> Vec<Self> {
        let labels = with_labels.then_some(Self::Labels);
        let weights = (with_labels && plan.is_weighted()).then_some(Self::RowWeights);
        std::iter::repeat_n(Self::Features, blocks).chain(labels).chain(weights).collect()
    }

    /// The level of its first use.
    pub fn level(self, plan: LevelPlan) -> usize {
        match self {
            Self::Features => plan.fresh_features(),
            Self::Labels => plan.labels(),
            Self::RowWeights => plan.row_weights(),
        }
    }

    /// The numbers that a lift puts into the slots.
    pub fn lift_form(self) -> LiftForm {
        match self {
            Self::Features => LiftForm::Complex,
            Self::Labels | Self::RowWeights => LiftForm::Real,
        }
    }

    /// The bound of a lift, as a power of two, of rows whose longest training row has the length
    /// `row_norm`. It follows from public numbers alone: the largest feature is [`GUARD`] times the
    /// row norm, the largest weight [`MAX_ROW_WEIGHT`].
    pub fn log_bound(self, plan: LevelPlan, row_norm: f64) -> u32 {
        let largest = match self {
            Self::Features => GUARD * row_norm,
            Self::Labels if !plan.is_weighted() => 1.0,
            Self::Labels | Self::RowWeights => MAX_ROW_WEIGHT,
        };
        libm::ceil(libm::log2(largest / MAX_BOUNDS)).max(0.0) as u32
    }

    /// Lifts a vector and drops it to the level of its first use.
    pub fn lifted<E: Engine>(self, engine: &E, plan: LevelPlan, unlifted: &E::Unlifted) -> Result<E::Ciphertext> {
        Ok(engine.drop_to(&engine.lift(unlifted)?, self.level(plan))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_the_largest_numbers() {
        let (plain, weighted) = (LevelPlan::lowest(), LevelPlan::weighted());
        let of = |norm| RowVector::Features.log_bound(plain, norm);
        assert_eq!([1.0, 10.0, 16.0, 16.1, 32.0, 100.0].map(of), [0, 0, 0, 1, 1, 3]);
        for norm in [0.1, 1.0, 10.0, 31.0, 1000.0] {
            assert!(GUARD * norm <= MAX_BOUNDS * f64::from(1 << of(norm)));
        }
        assert_eq!(RowVector::Labels.log_bound(plain, 10.0), 0);
        assert_eq!([RowVector::Labels, RowVector::RowWeights].map(|v| v.log_bound(weighted, 10.0)), [5, 5]);
    }

    #[test]
    fn blobs_have_features_labels_and_weights() {
        use RowVector::{Features, Labels, RowWeights};
        let (plain, weighted) = (LevelPlan::lowest(), LevelPlan::weighted());
        assert_eq!(RowVector::of_blob(2, plain, true), [Features, Features, Labels]);
        assert_eq!(RowVector::of_blob(1, weighted, true), [Features, Labels, RowWeights]);
        assert_eq!(RowVector::of_blob(1, weighted, false), [Features]);
        assert_eq!(RowWeights.level(weighted), weighted.row_weights());
    }
}
