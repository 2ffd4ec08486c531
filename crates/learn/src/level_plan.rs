//! The level at which each part of an iteration happens.

use crate::{Error, Result};

/// The levels of one iteration, from the probabilities down to the next logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LevelPlan {
    probabilities: usize,
}

impl LevelPlan {
    /// Levels between the probabilities and the next logits: masks of the differences, products
    /// with the features, compaction, momentum, expansion, products with the features, skewed sums.
    pub const DEPTH: usize = 7;

    /// The cheapest plan: the logits end at level 0, ready to bootstrap.
    pub fn lowest() -> Self {
        Self { probabilities: Self::DEPTH }
    }

    /// A plan whose probabilities have the given level.
    pub fn new(probabilities: usize) -> Result<Self> {
        if probabilities < Self::DEPTH {
            return Err(Error::TooDeep { operation: "the matrix products", needs: Self::DEPTH, has: probabilities });
        }
        Ok(Self { probabilities })
    }

    /// Level of the probabilities and of the labels.
    pub fn probabilities(self) -> usize {
        self.probabilities
    }

    /// Level of freshly encrypted features. Their row-shifted versions cost one level.
    pub fn fresh_features(self) -> usize {
        self.probabilities
    }

    /// Level of the row-shifted versions of the features, the partners of all products.
    pub fn features(self) -> usize {
        self.probabilities - 1
    }

    /// Level of the shifted and masked differences `D_k`.
    pub fn differences(self) -> usize {
        self.probabilities - 1
    }

    /// Level of the gradient of one feature block.
    pub fn gradient(self) -> usize {
        self.probabilities - 2
    }

    /// Level of the compacted gradient and of the momentum.
    pub fn momentum(self) -> usize {
        self.probabilities - 3
    }

    /// Level of the classifier.
    pub fn weights(self) -> usize {
        self.probabilities - 4
    }

    /// Level of the expanded blocks of the classifier.
    pub fn expanded(self) -> usize {
        self.probabilities - 5
    }

    /// Level of the products with one row-shifted version.
    pub fn partial_logits(self) -> usize {
        self.probabilities - 6
    }

    /// Level of the logits.
    pub fn logits(self) -> usize {
        self.probabilities - 7
    }
}
