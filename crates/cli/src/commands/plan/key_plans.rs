//! The key plans in `hetal plan`: bytes, upload and slowdown of each.

use crate::Result;
use crate::terminal::format::{bytes, seconds};
use hetal_ckks::Params;
use hetal_client::key_plan_choice::{cost, fastest, slowdown};
use hetal_client::layout::LayoutShape;
use hetal_client::{KeyPlan, Layout};
use serde::Serialize;
use std::sync::Arc;

/// Seconds of a lift on a GPU, as servers with one tell their clients.
pub const GPU_LIFT_SECONDS: f64 = 0.0125;

/// The plans for a shape, and those that take the least time on a GPU and on a CPU like this one.
/// The names of the fields are those of the JSON object.
#[derive(Serialize)]
pub struct KeyPlans {
    key_plans: Vec<KeyPlanSize>,
    key_plan_gpu: &'static str,
    /// `None` if a lift was not measured for the parameter set.
    key_plan_here: Option<&'static str>,
}

/// A plan and what it costs.
#[derive(Serialize)]
struct KeyPlanSize {
    plan: &'static str,
    keys: usize,
    key_bytes: u64,
    upload_seconds: f64,
    /// The share by which an iteration takes longer than with the first plan.
    slowdown: f64,
}

impl KeyPlans {
    /// Finds the keys of every plan by dry runs. `uplink` is in Mbit/s, `iterations` are those that
    /// a key set usually serves, `lift_here` are the seconds of a lift on this machine.
    pub fn new(
        params: &Arc<Params>,
        shape: LayoutShape,
        (uplink, iterations, lift_here): (f64, usize, Option<f64>),
    ) -> Result<Self> {
        let (mut sizes, mut plans) = (Vec::new(), Vec::new());
        for key_plan in KeyPlan::OFFERED {
            let layout = Layout::new(Arc::clone(params), LayoutShape { key_plan, ..shape })?;
            let keys = layout.sent_keys()?;
            let key_bytes = layout.key_bytes(&keys)?;
            plans.push((key_plan, key_bytes));
            let upload_seconds = key_bytes as f64 * 8e-6 / uplink;
            let (plan, slowdown) = (key_plan.name(), slowdown(key_plan));
            sizes.push(KeyPlanSize { plan, keys: keys.len(), key_bytes, upload_seconds, slowdown });
        }
        let best = |lift| fastest(&plans, |plan, bytes| cost(plan, bytes, uplink, lift, iterations)).name();
        Ok(Self { key_plans: sizes, key_plan_gpu: best(GPU_LIFT_SECONDS), key_plan_here: lift_here.map(best) })
    }

    /// The lines about key plans.
    pub fn text(&self) -> String {
        let of_plan = |(number, size): (usize, &KeyPlanSize)| {
            format!(
                "{:19}{:9} {} ({} keys), sent in {}; an iteration takes {:.0} % longer",
                if number == 0 { "key plan" } else { "" },
                size.plan,
                bytes(size.key_bytes),
                size.keys,
                seconds(size.upload_seconds),
                100.0 * size.slowdown
            )
        };
        let mut lines: Vec<String> = self.key_plans.iter().enumerate().map(of_plan).collect();
        let (gpu, here) = (self.key_plan_gpu, self.key_plan_here.unwrap_or("not known"));
        lines.push(format!("{:19}--key-plan auto: {gpu} on a GPU, {here} on this machine's CPU", ""));
        lines.join("\n")
    }
}
