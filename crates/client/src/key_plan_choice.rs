//! How many keys an owner sends.

use crate::row_form::USUAL_UPLINK;
use crate::rpc::Offer;
use crate::{Error, Result};
use hetal_learn::KeyPlan;

/// Epochs after which a training has usually stopped.
const USUAL_EPOCHS: usize = 10;
/// Trainings with one key set: hyper-parameters are seldom right at once.
const USUAL_TRAININGS: usize = 3;
/// An iteration in lifts: two bootstraps, and as much again for the rest.
const LIFTS_OF_AN_ITERATION: f64 = 4.0;

/// Seconds in which a server derives the keys that a plan does not send, for each training: about
/// those of a few cores, beside a GPU too.
const DERIVATION_SECONDS: f64 = 3.0;

/// What the owner wishes for the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KeyPlanWish {
    /// The plan. `None` chooses the one that takes the least time.
    pub plan: Option<KeyPlan>,
    /// Mbit/s from here to the server. `None` takes the rate of the last upload.
    pub uplink: Option<f64>,
}

impl KeyPlanWish {
    /// For a server on this machine: nothing is gained by fewer bytes.
    pub const LOCAL: Self = Self { plan: Some(KeyPlan::Fast), uplink: None };

    /// The plan for a server. `candidates` are the plans with the bytes of their key sets that are
    /// still to be made and sent. `measured` is the rate of the last upload.
    pub fn choose(
        self,
        offer: &Offer,
        candidates: impl FnOnce(&[KeyPlan]) -> Result<Vec<(KeyPlan, u64)>>,
        iterations: usize,
        measured: Option<f64>,
    ) -> Result<KeyPlan> {
        if let Some(plan) = self.plan {
            let accepted = offer.key_plans.contains(&plan);
            return if accepted { Ok(plan) } else { Err(Error::KeyPlan { plan: plan.name() }) };
        }
        let uplink = self.uplink.or(measured).unwrap_or(USUAL_UPLINK);
        // Without a time, nothing is known that a plan would slow down.
        if offer.lift_seconds <= 0.0 || offer.key_plans.len() < 2 {
            return Ok(offer.key_plans.first().copied().unwrap_or_default());
        }
        let (lift, candidates) = (offer.lift_seconds, candidates(&offer.key_plans)?);
        Ok(fastest(&candidates, |plan, bytes| cost(plan, bytes, uplink, lift, iterations)))
    }
}

/// The iterations that a key set usually serves.
pub fn usual_iterations(batches: usize, max_epochs: usize) -> usize {
    batches.saturating_mul(max_epochs.min(USUAL_EPOCHS)).saturating_mul(USUAL_TRAININGS)
}

/// The plan of the least cost; of equal ones the first.
pub fn fastest(plans: &[(KeyPlan, u64)], cost: impl Fn(KeyPlan, u64) -> f64) -> KeyPlan {
    let least = plans.iter().min_by(|a, b| cost(a.0, a.1).total_cmp(&cost(b.0, b.1)));
    least.map_or_else(KeyPlan::default, |(plan, _)| *plan)
}

/// Seconds that a plan costs: of the upload of its key set, of derivations, and those by which
/// iterations on a server with the given seconds of a lift take longer.
pub fn cost(plan: KeyPlan, bytes: u64, uplink: f64, lift_seconds: f64, iterations: usize) -> f64 {
    let derivations = if plan.derives() { USUAL_TRAININGS as f64 * DERIVATION_SECONDS } else { 0.0 };
    let longer = iterations as f64 * slowdown(plan) * LIFTS_OF_AN_ITERATION * lift_seconds;
    bytes as f64 * 8e-6 / uplink + derivations + longer
}

/// The share by which an iteration takes longer than with [`KeyPlan::Fast`], about: two thirds of
/// what a bootstrap does on a CPU, and the chains (docs/adr/032-key-plans.md).
pub fn slowdown(plan: KeyPlan) -> f64 {
    match plan {
        KeyPlan::Most | KeyPlan::Fast => 0.0,
        KeyPlan::Balanced => 0.1,
        KeyPlan::Small => 0.2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(lift_seconds: f64) -> Offer {
        Offer { key_plans: KeyPlan::OFFERED.into(), lift_seconds, ..Offer::default() }
    }

    /// The key sets of SNIPS.
    const SNIPS: [(KeyPlan, u64); 3] =
        [(KeyPlan::Fast, 2_392_221_280), (KeyPlan::Balanced, 971_136_640), (KeyPlan::Small, 740_603_808)];

    #[test]
    fn the_line_and_the_server_choose_the_plan() {
        let choose = |uplink, seconds| {
            let wish = KeyPlanWish { plan: None, uplink: Some(uplink) };
            wish.choose(&offer(seconds), |_| Ok(SNIPS.into()), usual_iterations(13, 50), None).unwrap()
        };
        use KeyPlan::{Balanced, Fast, Small};
        // A GPU, and a CPU.
        assert_eq!([20.0, 1000.0, 50_000.0].map(|uplink| choose(uplink, 0.0125)), [Small, Balanced, Fast]);
        assert_eq!([2.0, 100.0, 1000.0].map(|uplink| choose(uplink, 3.0)), [Small, Fast, Fast]);
        assert_eq!([choose(1.0, 0.0), choose(1.0, f64::NAN)], [Fast, Fast], "nothing is known of the server");
    }

    #[test]
    fn keys_that_are_there_cost_nothing() {
        let there = |plan| SNIPS.map(|(other, bytes)| (other, if other == plan { 0 } else { bytes }));
        for plan in KeyPlan::OFFERED {
            let candidates = there(plan).to_vec();
            let chosen = KeyPlanWish::default().choose(&offer(0.0125), |_| Ok(candidates), 390, None).unwrap();
            assert_eq!(chosen, plan);
        }
    }

    #[test]
    fn a_wish_is_kept_or_refused() {
        let wish = |plan| KeyPlanWish { plan: Some(plan), uplink: None };
        let never = |_: &[KeyPlan]| -> Result<Vec<(KeyPlan, u64)>> { unreachable!("a wish needs no sizes") };
        assert_eq!(wish(KeyPlan::Small).choose(&offer(0.0), never, 1, None).unwrap(), KeyPlan::Small);
        let fast = Offer { key_plans: vec![KeyPlan::Fast], ..offer(3.0) };
        let refused = wish(KeyPlan::Small).choose(&fast, never, 1, None).unwrap_err().to_string();
        assert!(refused.contains("key plan small"), "{refused}");
        assert_eq!(KeyPlanWish::default().choose(&fast, never, 1, None).unwrap(), KeyPlan::Fast);
    }
}
