//! How many keys an experiment uses.

use hetal_circuits::KeyPlan;

/// Arguments about the keys of an experiment.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct ExperimentKeys {
    /// Bootstrap faster, with a third more keys.
    #[arg(long)]
    more_keys: bool,
    /// How many keys are used, from a key for every rotation to the fewest.
    #[arg(long, value_enum, conflicts_with = "more_keys", default_value = "fast")]
    key_plan: KeyPlanName,
}

/// A plan that servers offer.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default)]
enum KeyPlanName {
    #[default]
    Fast,
    Balanced,
    Small,
}

impl ExperimentKeys {
    /// The plan.
    pub fn plan(self) -> KeyPlan {
        match self.key_plan {
            _ if self.more_keys => KeyPlan::Most,
            KeyPlanName::Fast => KeyPlan::Fast,
            KeyPlanName::Balanced => KeyPlan::Balanced,
            KeyPlanName::Small => KeyPlan::Small,
        }
    }
}
