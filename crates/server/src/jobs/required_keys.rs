//! The keys that circuits need, and errors of key sets that do not have them.

use super::spec::TrainingSpec;
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_circuits::bootstrap::BootstrapBounds;
use hetal_circuits::encrypted;
use hetal_ckks::bytes::FormatError;
use hetal_ckks::{KeyId, Params};
use hetal_learn::Circuit;
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
    /// Bounds of the bootstrapped values.
    pub bounds: BootstrapBounds,
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
        };
        let known = |kept: &HashMap<Tenant, Vec<(Shape, Arc<RequiredKeys>)>>| {
            kept.get(tenant)?.iter().find(|(known, _)| *known == shape).map(|(_, needs)| Arc::clone(needs))
        };
        if let Some(needs) = known(&self.0.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(needs);
        }
        let keys = circuit.keys(params.top_level()).map_err(Error::invalid)?;
        let bounds = Circuit::bounds(&keys, training.agreement.alpha);
        let needs = Arc::new(RequiredKeys { keys: encrypted::keys(params, &keys), bounds });
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
    fn new_keys_are_asked_for_where_they_help() {
        let length = FormatError::Length { declared: 3, expected: 7 };
        assert_eq!(describe_key_error(&length, OLD_KEYS_HINT), format!("{length}; {OLD_KEYS_HINT}"));
        let io = FormatError::from(std::io::Error::other("a broken disk"));
        for fault in [io, FormatError::Checksum { part: "the table" }, FormatError::Truncated { part: "a key set" }] {
            assert_eq!(describe_key_error(&fault, OLD_KEYS_HINT), fault.to_string());
        }
    }
}
