//! Arguments about the keys that are sent.

use hetal_client::{KeyPlan, KeyPlanWish};

/// A key plan, or the choice between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KeyPlanChoice {
    /// The plan that takes the least time; `fast` with `hetal keygen`, which knows no server.
    Auto,
    /// A key for every rotation.
    Fast,
    /// Half of the bytes for a tenth more work of the server.
    Balanced,
    /// The fewest bytes.
    Small,
}

/// Arguments about the keys that are sent.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct KeyPlanArguments {
    /// How many keys are sent. With fewer keys the server computes longer. With `hetal train`,
    /// `auto` estimates the time of the upload and of some trainings, and takes the plan of the
    /// least time; keys that the project has need no upload. With `hetal keygen`, `auto` is `fast`.
    #[arg(long, value_enum, default_value = "auto")]
    pub key_plan: KeyPlanChoice,
}

impl KeyPlanArguments {
    /// What they ask for, on a line of a given rate.
    pub fn wish(self, uplink: Option<f64>) -> KeyPlanWish {
        KeyPlanWish { plan: self.plan(), uplink }
    }

    /// The plan, unless the choice is left to the program.
    pub fn plan(self) -> Option<KeyPlan> {
        match self.key_plan {
            KeyPlanChoice::Auto => None,
            KeyPlanChoice::Fast => Some(KeyPlan::Fast),
            KeyPlanChoice::Balanced => Some(KeyPlan::Balanced),
            KeyPlanChoice::Small => Some(KeyPlan::Small),
        }
    }
}
