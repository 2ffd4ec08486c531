//! Work that can be done on any engine.

use crate::Result;
use crate::engine::{EngineKind, gpu};
use crate::owner::Owner;
use crate::setting::{Plain, Sealing, Setting};
use hetal_circuits::Engine;
use hetal_circuits::bootstrap::Steps;
use hetal_circuits::clear::{Clear, Keys};
use hetal_ckks::Params;

/// Something to do in any setting.
pub trait Work {
    /// What comes of it.
    type Output;
    /// The keys and bootstraps it needs.
    fn needs(&self) -> Result<Keys>;
    /// Does it.
    fn run<S: Setting>(&self, setting: &S) -> Result<Self::Output>;
}

/// Ciphertexts of a setting.
pub type Ct<S> = <<S as Setting>::Engine as Engine>::Ciphertext;

/// Makes the keys some work needs, on an engine of a set, and does the work. The GPU is the first.
pub fn run<W: Work>(work: &W, kind: EngineKind, set: &str) -> Result<W::Output> {
    if kind == EngineKind::Clear {
        let params = Params::named(set)?;
        return work.run(&Plain(Clear::new(params.slots(), params.top_level())));
    }
    let owner = Owner::new(set)?;
    if kind == EngineKind::Cpu {
        let engine = owner.engine(&work.needs()?)?;
        return work.run(&Sealing::new(&owner, &engine));
    }
    let engine = owner.engine_on(gpu(&owner.params, 0)?, &work.needs()?, Steps::default())?;
    work.run(&Sealing::new(&owner, &engine))
}
