//! Which rotations have keys of their own, and which are composed of others.

use serde::{Deserialize, Serialize};

/// How many keys a circuit uses. With fewer keys an owner uploads less, and the server computes
/// longer: it composes rotations of others.
///
/// A training uses one plan from its first to its last iteration, because the plan is part of the
/// circuit: results of two plans differ within the noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum KeyPlan {
    /// Twice as many inner rotations of a bootstrap as [`KeyPlan::Fast`], with a third more keys.
    /// Servers do not offer it: it serves measurements.
    Most,
    /// A key for every rotation.
    #[default]
    Fast,
    /// Five keys for each matrix of a bootstrap. Outer rotations are nested, and two inner
    /// rotations are composed. Rotations of a training are chained.
    Balanced,
    /// Three keys for each matrix of a bootstrap, and otherwise as [`KeyPlan::Balanced`].
    Small,
}

impl KeyPlan {
    /// The plans that a server may offer, from the most bytes to the fewest.
    pub const OFFERED: [Self; 3] = [Self::Fast, Self::Balanced, Self::Small];

    /// Its name in commands and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Most => "most",
            Self::Fast => "fast",
            Self::Balanced => "balanced",
            Self::Small => "small",
        }
    }

    /// Whether rotations are composed one after the other.
    pub fn chains(self) -> bool {
        matches!(self, Self::Balanced | Self::Small)
    }

    /// Whether the server derives all keys from the sparse secret but one, with a master key. This
    /// takes seconds, where sending these keys takes longer.
    pub fn derives(self) -> bool {
        matches!(self, Self::Balanced | Self::Small)
    }

    /// The most inner rotations that share digits, the identity included. The others are those of a
    /// middle rotation.
    pub(crate) fn most_inner(self) -> i64 {
        match self {
            Self::Most | Self::Fast => i64::MAX,
            Self::Balanced => 4,
            Self::Small => 2,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_stored_by_their_names() {
        let stored = KeyPlan::OFFERED.map(|plan| (plan, plan.name().to_owned()));
        assert!(stored.iter().all(|(plan, name)| format!("{plan:?}").to_lowercase() == *name));
        assert_eq!(KeyPlan::default(), KeyPlan::Fast, "what was stored without a plan");
    }
}
