//! Counts of the operations of a circuit by kind and level, and the keys it needs.

use crate::bootstrap::BootstrapBounds;
use std::collections::BTreeMap;

/// The kinds of operation that are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum OpKind {
    /// Sums and differences, with ciphertexts, plaintexts or constants.
    Addition,
    /// A ciphertext times an encoded vector.
    PlainProduct,
    /// A ciphertext times a constant.
    ConstantProduct,
    /// A ciphertext times a ciphertext, before relinearisation.
    Product,
    /// A key-switch back from the square of the secret.
    Relinearisation,
    /// A rotation on its own.
    Rotation,
    /// A rotation that shared the first half of its key-switch with others.
    HoistedRotation,
    /// A complex conjugation.
    Conjugation,
    /// A division by the last prime: one level.
    Rescale,
    /// A drop of an operand to the level of another one.
    Drop,
    /// A bootstrap.
    Bootstrap,
    /// A lift of a vector in coefficient form: a bootstrap without its first stage.
    Lift,
}

impl OpKind {
    /// Every kind, in the order of the tables.
    pub const ALL: [OpKind; 12] = [
        OpKind::Addition,
        OpKind::PlainProduct,
        OpKind::ConstantProduct,
        OpKind::Product,
        OpKind::Relinearisation,
        OpKind::Rotation,
        OpKind::HoistedRotation,
        OpKind::Conjugation,
        OpKind::Rescale,
        OpKind::Drop,
        OpKind::Bootstrap,
        OpKind::Lift,
    ];

    /// Whether the operation is a key-switch.
    pub fn is_key_switch(self) -> bool {
        matches!(self, OpKind::Relinearisation | OpKind::Rotation | OpKind::HoistedRotation | OpKind::Conjugation)
    }
}

/// The switching keys that a circuit needs, each with the highest level it is used at, and the
/// bounds of its bootstraps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRequirements {
    /// `(rotation, level)` for every rotation, `0 < rotation < slots`, in ascending order.
    pub rotations: Vec<(i64, usize)>,
    /// The level of the relinearisation key, if any product is relinearised.
    pub relinearisation: Option<usize>,
    /// The level of the conjugation key, if anything is conjugated.
    pub conjugation: Option<usize>,
    /// What is bootstrapped.
    pub bounds: BootstrapBounds,
}

impl KeyRequirements {
    /// The union of two requirements: each key at the higher of its two levels.
    pub fn union(self, other: Self) -> Self {
        let mut rotations = BTreeMap::new();
        for (rotation, level) in self.rotations.into_iter().chain(other.rotations) {
            let highest = rotations.entry(rotation).or_insert(level);
            *highest = level.max(*highest);
        }
        Self {
            rotations: rotations.into_iter().collect(),
            relinearisation: self.relinearisation.max(other.relinearisation),
            conjugation: self.conjugation.max(other.conjugation),
            bounds: self.bounds.union(other.bounds),
        }
    }
}

/// Counts of operations by kind and by the level they happened at, and the keys they used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpCounts {
    counts: BTreeMap<(OpKind, usize), u64>,
    rotations: BTreeMap<i64, usize>,
    bounds: BootstrapBounds,
}

impl OpCounts {
    /// Operations of one kind, at any level.
    pub fn count(&self, kind: OpKind) -> u64 {
        self.counts.iter().filter(|((k, _), _)| *k == kind).map(|(_, n)| n).sum()
    }

    /// Operations of one kind at one level.
    pub fn count_at(&self, kind: OpKind, level: usize) -> u64 {
        self.counts.get(&(kind, level)).copied().unwrap_or(0)
    }

    /// All key-switches outside bootstraps: relinearisations, rotations (hoisted or not) and
    /// conjugations.
    pub fn key_switches(&self) -> u64 {
        self.counts.iter().filter(|((k, _), _)| k.is_key_switch()).map(|(_, n)| n).sum()
    }

    /// Every `(kind, level, count)` that is not zero.
    pub fn entries(&self) -> impl Iterator<Item = (OpKind, usize, u64)> + '_ {
        self.counts.iter().map(|(&(kind, level), &n)| (kind, level, n))
    }

    /// The keys that an encrypted run of the same circuit needs, without those inside bootstraps.
    pub fn keys(&self) -> KeyRequirements {
        KeyRequirements {
            rotations: self.rotations.iter().map(|(&k, &level)| (k, level)).collect(),
            relinearisation: self.highest(OpKind::Relinearisation),
            conjugation: self.highest(OpKind::Conjugation),
            bounds: self.bounds.clone(),
        }
    }

    fn highest(&self, kind: OpKind) -> Option<usize> {
        self.counts.keys().filter(|(k, _)| *k == kind).map(|&(_, level)| level).max()
    }

    pub(super) fn record(&mut self, kind: OpKind, level: usize, n: usize) {
        if n > 0 {
            *self.counts.entry((kind, level)).or_default() += n as u64;
        }
    }

    pub(super) fn record_bootstrap(&mut self, level: usize, log_bound: u32) {
        self.record(OpKind::Bootstrap, level, 1);
        self.bounds.full.insert(log_bound);
    }

    pub(super) fn record_periodic_bootstrap(&mut self, level: usize, period: usize, log_bound: u32) {
        self.record(OpKind::Bootstrap, level, 1);
        self.bounds.periodic.insert((period, log_bound));
    }

    pub(super) fn record_rotation(&mut self, kind: OpKind, rotation: i64, level: usize) {
        self.record(kind, level, 1);
        let highest = self.rotations.entry(rotation).or_default();
        *highest = level.max(*highest);
    }
}
