//! The parameter sets that a server accepts.

use crate::{Error, Result};
use hetal_ckks::Params;
use hetal_ring::RnsRing;
use std::sync::{Arc, OnceLock};

struct Entry {
    params: Arc<Params>,
    ring: OnceLock<Arc<RnsRing>>,
}

/// The allow-list.
pub struct Sets(Vec<Entry>);

impl Sets {
    /// The built-in sets of these names. Insecure ones need the operator's word.
    pub fn new(names: &[String], allow_insecure: bool) -> Result<Self> {
        let entry = |name: &String| {
            let params = Params::named(name).map_err(|e| Error::Config { reason: e.to_string() })?;
            if params.is_insecure_by_name() && !allow_insecure {
                let reason = format!("set {name} protects nothing; tests may allow it with --allow-insecure");
                return Err(Error::Config { reason });
            }
            Ok(Entry { params: Arc::new(params), ring: OnceLock::new() })
        };
        let entries = names.iter().map(entry).collect::<Result<Vec<_>>>()?;
        if entries.is_empty() {
            return Err(Error::Config { reason: "no parameter set is allowed".to_owned() });
        }
        Ok(Self(entries))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Params>> {
        self.0.iter().map(|entry| &entry.params)
    }

    /// The set with an id that came from outside.
    pub fn by_id(&self, id: &[u8]) -> Result<Arc<Params>> {
        let known = || self.iter().map(|p| p.name().to_owned()).collect::<Vec<_>>().join(", ");
        let found = self.iter().find(|params| params.id()[..] == *id);
        found
            .cloned()
            .ok_or_else(|| Error::invalid(format!("that parameter set is not accepted here; these are: {}", known())))
    }

    /// The set of a job that was accepted earlier.
    pub fn by_name(&self, name: &str) -> Result<Arc<Params>> {
        let found = self.iter().find(|params| params.name() == name);
        found.cloned().ok_or_else(|| Error::work(format!("parameter set {name} is no longer accepted here")))
    }

    /// The ring of a set, made when it is first asked for.
    pub fn ring(&self, params: &Arc<Params>) -> Result<Arc<RnsRing>> {
        let entry = self.0.iter().find(|entry| entry.params.id() == params.id());
        let entry = entry.ok_or_else(|| Error::work(format!("parameter set {} is not known", params.name())))?;
        if let Some(ring) = entry.ring.get() {
            return Ok(Arc::clone(ring));
        }
        let ring = params.ring().map_err(|error| Error::work(error.to_string()))?;
        Ok(Arc::clone(entry.ring.get_or_init(|| Arc::new(ring))))
    }
}
