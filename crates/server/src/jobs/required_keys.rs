//! The keys that circuits need, and errors of key sets that do not have them.

use super::spec::TrainingSpec;
use crate::compute::memory_estimate::MemoryEstimate;
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_circuits::bootstrap::BootstrapBounds;
use hetal_circuits::encrypted;
use hetal_ckks::bytes::FormatError;
use hetal_ckks::{KeyId, Params};
use hetal_learn::{Circuit, KeyPlan};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Advice for key sets of an earlier version.
pub const OLD_KEYS_HINT: &str = "renew keys of an earlier version with `hetal keygen`";
/// Advice for models of an earlier version.
pub const OLD_MODEL_HINT: &str = "the model is from an earlier version: train it again, or classify without --remote";

/// Describes a problem with a key file. Adds `hint` if the keys have the shapes of another version;
/// the hint does not help against damaged files or I/O errors.
pub fn describe_key_error(error: &FormatError, hint: &str) -> String {
    use FormatError::{Digits, KeyOrder, Length, Primes, Purpose, Version};
    let other_shape = matches!(
        error,
        Length { .. } | Purpose { .. } | Digits { .. } | Primes { .. } | KeyOrder { .. } | Version { .. }
    );
    if other_shape { format!("{error}; {hint}") } else { error.to_string() }
}

/// The keys that a circuit needs.
pub struct RequiredKeys {
    /// Switching keys, each with its number of limbs.
    pub keys: Vec<(KeyId, usize)>,
    /// The keys of a new key set, from which the server derives the others.
    pub sent: Vec<(KeyId, usize)>,
    /// Bounds of the bootstrapped values.
    pub bounds: BootstrapBounds,
    /// The GPU memory that trainings with these keys need. A dry run finds it and takes seconds.
    estimates: Mutex<Vec<(EstimateOf, MemoryEstimate)>>,
}

/// What an estimate of GPU memory depends on, besides the shape.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EstimateOf {
    /// Whether bootstraps are recorded as CUDA graphs.
    pub graphs: bool,
    /// Pieces of a batch.
    pub pieces: usize,
}

impl RequiredKeys {
    /// The lists of keys that a key set may have. Sets of earlier versions have all keys.
    pub fn accepted(&self) -> [&[(KeyId, usize)]; 2] {
        [&self.sent, &self.keys]
    }

    /// The estimate, which `dry_run` makes the first time.
    pub fn estimate(&self, of: EstimateOf, dry_run: impl FnOnce() -> Result<MemoryEstimate>) -> Result<MemoryEstimate> {
        let known = self.estimates.lock().unwrap_or_else(PoisonError::into_inner).iter().find(|e| e.0 == of).copied();
        if let Some((_, estimate)) = known {
            return Ok(estimate);
        }
        let estimate = dry_run()?;
        let mut estimates = self.estimates.lock().unwrap_or_else(PoisonError::into_inner);
        if estimates.len() == Self::KEPT {
            estimates.remove(0);
        }
        estimates.push((of, estimate));
        Ok(estimate)
    }

    /// Estimates that are kept.
    const KEPT: usize = 8;
}

/// Caches the key requirements of circuits, because computing them takes a while.
///
/// Each tenant has a separate list, so that response times reveal nothing about other tenants. No
/// lock is held during the computation: the admission queue serialises requests, and a worker may
/// compute the same entry a second time.
#[derive(Default)]
pub struct RequiredKeysCache(Mutex<HashMap<Tenant, Vec<(Shape, Arc<RequiredKeys>)>>>);

/// The cache key. Larger batches of the same shape have more pieces but need the same keys.
#[derive(PartialEq, Eq)]
struct Shape {
    set: String,
    rows: usize,
    features: usize,
    classes: usize,
    range_bits: u64,
    weighted: bool,
    decays: bool,
    key_plan: KeyPlan,
}

impl RequiredKeysCache {
    /// Entries per tenant.
    const KEPT: usize = 8;

    /// The key requirements of a tenant's training.
    pub fn find(
        &self,
        params: &Params,
        tenant: &Tenant,
        training: &TrainingSpec,
        circuit: &Circuit,
    ) -> Result<Arc<RequiredKeys>> {
        let shape = Shape {
            set: training.set.clone(),
            rows: circuit.geometry().rows(),
            features: training.features,
            classes: training.classes,
            range_bits: training.agreement.range.to_bits(),
            weighted: training.agreement.weighted,
            decays: training.agreement.alpha != 0.0,
            key_plan: training.key_plan,
        };
        let known = |kept: &HashMap<Tenant, Vec<(Shape, Arc<RequiredKeys>)>>| {
            kept.get(tenant)?.iter().find(|(known, _)| *known == shape).map(|(_, needs)| Arc::clone(needs))
        };
        if let Some(needs) = known(&self.0.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(needs);
        }
        let keys = circuit.keys(params.top_level()).map_err(Error::invalid)?;
        let bounds = Circuit::bounds(&keys, training.agreement.alpha);
        let keys = encrypted::keys_with_plan(params, &keys, training.key_plan);
        let sent = encrypted::sent_keys(params, &keys, training.key_plan);
        let needs = Arc::new(RequiredKeys { keys, sent, bounds, estimates: Mutex::default() });
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(needs) = known(&kept) {
            return Ok(needs);
        }
        let own = kept.entry(tenant.clone()).or_default();
        if own.len() == Self::KEPT {
            own.remove(0);
        }
        own.push((shape, Arc::clone(&needs)));
        Ok(needs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_made_once() {
        let (keys, sent, bounds) = (Vec::new(), Vec::new(), BootstrapBounds::default());
        let needs = RequiredKeys { keys, sent, bounds, estimates: Mutex::default() };
        let estimate = |graphs, pieces, fixed| {
            let made = MemoryEstimate { fixed, upload: 1, versions: 2 };
            needs.estimate(EstimateOf { graphs, pieces }, || Ok(made)).unwrap().fixed
        };
        assert_eq!([estimate(true, 1, 10), estimate(true, 1, 11), estimate(false, 1, 12)], [10, 10, 12]);
        assert!(needs.estimate(EstimateOf { graphs: true, pieces: 2 }, || Err(Error::failed("no circuit"))).is_err());
        assert_eq!([estimate(true, 2, 13), estimate(true, 2, 14)], [13, 13]);
        // The oldest make room.
        (3..10).for_each(|pieces| assert_eq!(estimate(true, pieces, pieces), pieces));
        assert_eq!([estimate(true, 1, 15), estimate(true, 9, 16)], [15, 9]);
    }

    #[test]
    fn new_keys_are_asked_for_where_they_help() {
        let length = FormatError::Length { declared: 3, expected: 7 };
        assert_eq!(describe_key_error(&length, OLD_KEYS_HINT), format!("{length}; {OLD_KEYS_HINT}"));
        let io = FormatError::from(std::io::Error::other("a broken disk"));
        for fault in [io, FormatError::Checksum { part: "the table" }, FormatError::Truncated { part: "a key set" }] {
            assert_eq!(describe_key_error(&fault, OLD_KEYS_HINT), fault.to_string());
        }
    }
}
