//! The life cycle of a project's secret key.

use super::Owner;
use super::key_sets::ensure_set;
use crate::project::{ReleaseBudget, Rotation, remove_if_there};
use crate::training::{self, ProgressEvent};
use crate::{Error, Layout, Project, Result};
use hetal_ckks::Params;
use std::path::Path;
use std::sync::Arc;

/// The release budget of a key from another project: what was published under it is unknown, so
/// nothing more is.
pub(super) const SPENT_BUDGET: ReleaseBudget = ReleaseBudget { noise: 1.0, numbers: 1, security: 1, left: 0 };

/// The parameter set of a project.
pub fn params(project: &Project) -> Result<Arc<Params>> {
    Ok(Arc::new(Params::named(&project.settings().set)?))
}

/// Loads the secret key of a project, or creates the first one. A lost key is an error, because a
/// new one could not decrypt what was encrypted under it.
pub fn owner(project: &mut Project) -> Result<Owner> {
    require_no_rotation(project)?;
    load_or_create(project)
}

/// Loads the secret key of a project, which must exist and have the recorded id.
pub fn existing_owner(project: &mut Project) -> Result<Owner> {
    require_no_rotation(project)?;
    load(project)
}

/// Refuses to use keys while a rotation is unfinished.
pub(crate) fn require_no_rotation(project: &Project) -> Result<()> {
    if project.settings().rotation.is_some() { Err(Error::HalfRotated) } else { Ok(()) }
}

fn load_or_create(project: &mut Project) -> Result<Owner> {
    if project.has_secret() {
        return load(project);
    }
    let path = project.secret();
    let settings = project.settings();
    if settings.key_id.is_some() || !settings.keys.is_empty() {
        return Err(Error::SecretLost { path });
    }
    if settings.locked && project.passphrase().is_none() {
        return Err(Error::Unlocked);
    }
    // Only after the checks above: a symbolic link to a disk that is not mounted leads to a key.
    remove_if_there(&path)?;
    let owner = Owner::fresh(params(project)?)?;
    owner.save(&path, project.passphrase())?;
    project.adopt_key(owner.key_id(), None)?;
    Ok(owner)
}

fn load(project: &mut Project) -> Result<Owner> {
    let path = project.secret();
    if !project.has_secret() {
        let known = project.settings().key_id.is_some();
        return Err(if known { Error::SecretLost { path } } else { Error::NoSecret { path } });
    }
    let owner = Owner::load(params(project)?, &path, project.passphrase())?;
    match &project.settings().key_id {
        Some(id) if *id != owner.key_id() => Err(Error::OtherSecret { path }),
        Some(_) => Ok(owner),
        // The process was killed before it recorded the id, or its version knew no ids.
        None => {
            let released = match project.settings().released {
                Some(released) => Some(released),
                None => project.released_by_nameless()?,
            };
            project.adopt_key(owner.key_id(), released)?;
            Ok(owner)
        }
    }
}

/// Returns whether the keys of a project were used. Keys count as used if a server may have seen
/// them, if something was published under them, if their id is unknown, or if they are lost. Unused
/// keys are as good as new ones.
pub fn are_used(project: &Project) -> bool {
    let settings = project.settings();
    let exists = project.has_secret();
    let seen = settings.keys.iter().any(|keys| keys.sent) || settings.released.is_some();
    let unknown = exists && settings.key_id.is_none();
    let lost = !exists && (settings.key_id.is_some() || !settings.keys.is_empty());
    seen || unknown || lost
}

/// Moves the secret key and its release budget to `old`. The next training creates a new key.
pub fn retire(project: &mut Project) -> Result<()> {
    require_no_rotation(project)?;
    if project.has_secret() && project.settings().key_id.is_none() {
        // The id is needed to find the budget again. A key that cannot be unlocked is retired
        // without its id.
        let _ = load(project);
    }
    project.retire_keys()
}

/// Replaces the secret key and its key sets, and returns the id of the old key and the new key. An
/// interrupted rotation continues. Interrupted trainings with the old keys are reported.
pub fn rotate(project: &mut Project, on_progress: &mut (dyn FnMut(ProgressEvent) + Send)) -> Result<(String, Owner)> {
    let sets = project.settings().keys.clone();
    let rotation = match project.settings().rotation.clone() {
        Some(begun) => begun,
        None => {
            let from = load(project)?.key_id();
            let shapes = project.settings().keys.iter().filter_map(|keys| keys.shape).collect();
            let rotation = Rotation { from, shapes };
            project.update(|s| s.rotation = Some(rotation.clone()))?;
            rotation
        }
    };
    if project.has_secret() {
        // This is the old or the new key; loading it records its id.
        load(project)?;
    }
    if project.settings().key_id.as_ref() == Some(&rotation.from) {
        project.retire_keys()?;
    }
    // Before the key generation, which may be interrupted: afterwards the old key sets are unknown.
    let stranded = training::stranded(project, &sets);
    if !stranded.is_empty() {
        on_progress(ProgressEvent::Stranded(stranded));
    }
    let owner = load_or_create(project)?;
    for &shape in &rotation.shapes {
        let layout = Layout::new(params(project)?, shape)?;
        ensure_set(project, &owner, &layout, on_progress)?;
    }
    project.update(|s| s.rotation = None)?;
    Ok((rotation.from, owner))
}

/// Writes a copy of the secret key to a new file, locked if there is a passphrase. Returns its id.
pub fn back_up(project: &mut Project, file: &Path, passphrase: Option<&hetal_keys::Passphrase>) -> Result<String> {
    let owner = existing_owner(project)?;
    owner.save(file, passphrase)?;
    Ok(owner.key_id())
}

/// Restores the secret key from a backup and returns its id. Only a key that was in this project
/// before keeps a release budget.
pub fn restore(project: &mut Project, file: &Path, passphrase: Option<&hetal_keys::Passphrase>) -> Result<String> {
    let owner = Owner::load(params(project)?, file, passphrase)?;
    let (path, key_id) = (project.secret(), owner.key_id());
    let known = project.settings().key_id.clone();
    if known.as_ref().is_some_and(|known| *known != key_id) {
        return Err(Error::OtherBackup { file: file.to_owned() });
    }
    // An existing key is never overwritten.
    if project.has_secret() {
        return Err(hetal_keys::Error::Exists { path }.into());
    }
    remove_if_there(&path)?;
    if known.is_none() {
        // The id is recorded before the secret is written. If the process is killed in between, the
        // key counts as lost and can be restored again, and nothing is published.
        project.adopt_key(key_id.clone(), Some(SPENT_BUDGET))?;
    }
    owner.save(&path, project.passphrase())?;
    Ok(key_id)
}
