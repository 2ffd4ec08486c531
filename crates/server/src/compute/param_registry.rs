//! The parameter sets that a server accepts.

use crate::{Error, Result};
use hetal_ckks::Params;
use hetal_ring::RnsRing;
use std::sync::{Arc, OnceLock};

struct Entry {
    params: Arc<Params>,
    ring: OnceLock<Arc<RnsRing>>,
}

/// The accepted parameter sets.
pub struct ParamRegistry(Vec<Entry>);

impl ParamRegistry {
    /// Looks up built-in sets by name. Insecure sets must be allowed explicitly.
    pub fn new(names: &[String], allow_insecure: bool) -> Result<Self> {
        let entry = |name: &String| {
            let params = Params::named(name).map_err(|e| Error::Config { reason: e.to_string() })?;
            if params.is_insecure_by_name() && !allow_insecure {
                let reason =
                    format!("parameter set {name} is insecure: choose another, or pass --allow-insecure for tests");
                return Err(Error::Config { reason });
            }
            Ok(Entry { params: Arc::new(params), ring: OnceLock::new() })
        };
        let entries = names.iter().map(entry).collect::<Result<Vec<_>>>()?;
        if entries.is_empty() {
            return Err(Error::Config { reason: "`sets` is empty: name at least one parameter set".to_owned() });
        }
        Ok(Self(entries))
    }

    /// All accepted sets.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Params>> {
        self.0.iter().map(|entry| &entry.params)
    }

    /// Looks up the set id of a request.
    pub fn by_id(&self, id: &[u8]) -> Result<Arc<Params>> {
        let known = || self.iter().map(|p| p.name().to_owned()).collect::<Vec<_>>().join(", ");
        let found = self.iter().find(|params| params.id()[..] == *id);
        found.cloned().ok_or_else(|| {
            Error::invalid(format!("the parameter set is not accepted by this server: use one of {}", known()))
        })
    }

    /// Looks up the set of an existing job.
    pub fn by_name(&self, name: &str) -> Result<Arc<Params>> {
        let found = self.iter().find(|params| params.name() == name);
        found
            .cloned()
            .ok_or_else(|| Error::failed(format!("parameter set {name} is no longer accepted by this server")))
    }

    /// The ring of a set, built on first use.
    pub fn ring(&self, params: &Arc<Params>) -> Result<Arc<RnsRing>> {
        let entry = self.0.iter().find(|entry| entry.params.id() == params.id());
        let entry = entry.ok_or_else(|| Error::failed(format!("unknown parameter set {}", params.name())))?;
        if let Some(ring) = entry.ring.get() {
            return Ok(Arc::clone(ring));
        }
        let ring = params.ring().map_err(|error| Error::failed(error.to_string()))?;
        Ok(Arc::clone(entry.ring.get_or_init(|| Arc::new(ring))))
    }
}
