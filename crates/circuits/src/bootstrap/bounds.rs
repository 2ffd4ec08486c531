//! The bounds of the messages that a circuit bootstraps.

use std::collections::BTreeSet;

/// The bounds of bootstraps, each the exponent `b` of a bound `2^b`.
///
/// ```
/// let bounds = hetal_circuits::bootstrap::BootstrapBounds::from(&[0, 2]);
/// assert!(bounds.full.contains(&2) && bounds.periodic.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootstrapBounds {
    /// Of vectors of all slots.
    pub full: BTreeSet<u32>,
    /// Of vectors of real numbers that repeat: `(period, b)`, with the period in slots.
    pub periodic: BTreeSet<(usize, u32)>,
}

impl BootstrapBounds {
    /// Whether nothing is bootstrapped.
    pub fn is_empty(&self) -> bool {
        self.full.is_empty() && self.periodic.is_empty()
    }

    /// The bounds of both.
    pub fn union(mut self, other: Self) -> Self {
        self.full.extend(other.full);
        self.periodic.extend(other.periodic);
        self
    }

    /// The largest `b`.
    pub(super) fn largest(&self) -> Option<u32> {
        self.full.iter().copied().chain(self.periodic.iter().map(|&(_, b)| b)).max()
    }
}

impl From<&BootstrapBounds> for BootstrapBounds {
    fn from(bounds: &BootstrapBounds) -> Self {
        bounds.clone()
    }
}

impl From<&[u32]> for BootstrapBounds {
    fn from(full: &[u32]) -> Self {
        Self { full: full.iter().copied().collect(), periodic: BTreeSet::new() }
    }
}

impl<const COUNT: usize> From<&[u32; COUNT]> for BootstrapBounds {
    fn from(full: &[u32; COUNT]) -> Self {
        Self::from(&full[..])
    }
}
