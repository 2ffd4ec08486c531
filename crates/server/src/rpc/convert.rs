//! Conversion to messages of the protocol.

use super::Service;
use crate::store::state::JobSummary;
use hetal_ckks::Params;
use hetal_learn::Agreement;
use hetal_wire::{MESSAGE_PART_BYTES, v1};
use std::sync::Arc;

impl Service {
    pub(super) fn offer(&self) -> v1::Offer {
        let (limits, bounds) = (&self.core.config.hyperparameters, &self.core.config.bounds);
        let shown = |value: f64| (!self.core.config.hide_hyperparameters).then_some(value);
        // A client that is told the limits asks for a rate within them.
        let shown_rate = |rate: f64| shown(rate).filter(|_| !limits.hide_rate);
        let set = |p: &Arc<Params>| v1::ParameterSet { id: p.id().to_vec().into(), name: p.name().to_owned() };
        v1::Offer {
            version: hetal_wire::VERSION,
            program: format!("hetal-server {}", env!("CARGO_PKG_VERSION")),
            sets: self.core.param_sets.iter().map(set).collect(),
            defaults: Some(self.terms(&limits.defaults)),
            bounds: Some(v1::Bounds {
                batch_least: limits.batch.0 as u32,
                batch_most: limits.batch.1 as u32,
                patience_most: limits.patience as u32,
                epochs_most: limits.max_epochs as u32,
                blob_bytes_most: bounds.blob_bytes,
                tenant_bytes_most: bounds.tenant_bytes,
                part_bytes_most: MESSAGE_PART_BYTES as u32,
                batches_most: bounds.batches as u32,
                rate_least: shown_rate(limits.rate.0),
                rate_most: shown_rate(limits.rate.1),
                alpha_least: shown(limits.alpha.0),
                alpha_most: shown(limits.alpha.1),
            }),
            row_forms: [v1::RowForm::Slots, v1::RowForm::Coefficients].map(i32::from).into(),
            lift_seconds: self.core.config.lift_seconds.unwrap_or(0.0),
            key_plans: [v1::KeyPlan::Fast, v1::KeyPlan::Balanced, v1::KeyPlan::Small].map(i32::from).into(),
        }
    }

    /// Converts an agreement for clients.
    fn terms(&self, agreement: &Agreement) -> v1::Terms {
        use hetal_learn::nesterov::Momentum;
        let hide = self.core.config.hide_hyperparameters;
        let momentum = match agreement.momentum {
            _ if hide => v1::Momentum::Unspecified,
            Momentum::None => v1::Momentum::None,
            Momentum::Nesterov => v1::Momentum::Nesterov,
        };
        v1::Terms {
            batch: agreement.batch as u32,
            patience: agreement.patience as u32,
            max_epochs: agreement.max_epochs as u32,
            range: agreement.range,
            rate: (!hide).then_some(agreement.rate),
            lowering: (!hide).then_some(agreement.lowering),
            momentum: momentum.into(),
            seed: (!hide).then_some(agreement.seed),
            alpha: (!hide).then_some(agreement.alpha),
            check_every: agreement.check_every as u32,
        }
    }

    pub(super) fn describe(&self, job: &JobSummary) -> v1::Job {
        let state = v1::JobState::from(job.state);
        let terms = job.agreement.as_ref().map(|agreement| self.terms(agreement));
        v1::Job {
            id: job.id.to_vec().into(),
            label: job.label.clone(),
            state: state.into(),
            terms,
            progress: job.progress,
            created: job.created / 1000,
            updated: job.updated / 1000,
            reason: job.reason.clone(),
            sequence: job.sequence,
        }
    }
}
