//! The level at which each part of an iteration happens.

use crate::softmax::DIVISION_DEPTH;
use hetal_circuits::KeyPlan;

/// The levels of one iteration, from the probabilities down to the next logits, and the rotations
/// there that have keys. The logits end at level 0, ready to bootstrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LevelPlan {
    /// Whether rows have weights, which multiply the probabilities within the softmax.
    weighted: bool,
    /// Which rotations have keys. Skewed sums rotate a level lower if rotations are chained.
    key_plan: KeyPlan,
}

impl LevelPlan {
    /// Levels between the differences of probabilities and labels and the next logits: masks of the
    /// differences, products with the features, compaction, expansion, products with the features,
    /// skewed sums.
    pub const DEPTH: usize = 6;

    /// The plan of a training whose rows are all alike.
    pub fn lowest() -> Self {
        Self::of(false)
    }

    /// The plan of a training whose rows have weights.
    pub fn weighted() -> Self {
        Self::of(true)
    }

    /// The plan of a training whose rows have weights, or not.
    pub fn of(weighted: bool) -> Self {
        Self { weighted, key_plan: KeyPlan::default() }
    }

    /// The same levels with other keys.
    pub fn with_keys(self, key_plan: KeyPlan) -> Self {
        Self { key_plan, ..self }
    }

    /// Which rotations have keys.
    pub fn key_plan(self) -> KeyPlan {
        self.key_plan
    }

    /// Whether rows have weights.
    pub fn is_weighted(self) -> bool {
        self.weighted
    }

    /// Level of the probabilities, times the weights of their rows if these have some.
    pub fn probabilities(self) -> usize {
        Self::DEPTH
    }

    /// Level of the weights of rows: that of the softmax before its last step.
    pub fn row_weights(self) -> usize {
        Self::DEPTH + DIVISION_DEPTH
    }

    /// Level of the labels, and of their differences to the probabilities.
    pub fn labels(self) -> usize {
        Self::DEPTH
    }

    /// Level of freshly encrypted features. Their row-shifted versions cost one level.
    pub fn fresh_features(self) -> usize {
        Self::DEPTH
    }

    /// Level of the row-shifted versions of the features, the partners of all products.
    pub fn features(self) -> usize {
        Self::DEPTH - 1
    }

    /// Level of the shifted and masked differences `D_k`.
    pub fn differences(self) -> usize {
        Self::DEPTH - 1
    }

    /// Level of the gradient of one feature block.
    pub fn gradient(self) -> usize {
        Self::DEPTH - 2
    }

    /// Level of the compacted gradient, of the momentum and of the classifier.
    pub fn weights(self) -> usize {
        Self::DEPTH - 3
    }

    /// Level of the expanded blocks of the classifier.
    pub fn expanded(self) -> usize {
        Self::DEPTH - 4
    }

    /// Level of the products with one row-shifted version.
    pub fn partial_logits(self) -> usize {
        Self::DEPTH - 5
    }

    /// Level of the logits.
    pub fn logits(self) -> usize {
        Self::DEPTH - 6
    }
}
