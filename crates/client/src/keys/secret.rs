//! The secret key of a project: made once and never silently again, loaded, backed up, brought back, replaced.

use super::Owner;
use super::key_sets::ensure_set;
use crate::layout::LayoutShape;
use crate::project::{ReleaseBudget, Rotation, remove_if_there};
use crate::training::{self, ProgressEvent};
use crate::{Error, Layout, Project, Result};
use hetal_ckks::Params;
use std::path::Path;
use std::sync::Arc;

/// What a key from elsewhere may have published, nobody knows: nothing more is published under it.
pub(super) const SPENT_BUDGET: ReleaseBudget = ReleaseBudget { noise: 1.0, numbers: 1, security: 1, left: 0 };

/// The parameter set of a project.
pub fn params(project: &Project) -> Result<Arc<Params>> {
    Ok(Arc::new(Params::named(&project.settings().set)?))
}

/// Loads a project's secret key, or makes the first one. One that is gone is an error: what is encrypted under it would be lost.
pub fn owner(project: &mut Project) -> Result<Owner> {
    require_no_rotation(project)?;
    load_or_create(project)
}

/// Loads a project's secret key, which must be there and be the project's.
pub fn existing_owner(project: &mut Project) -> Result<Owner> {
    require_no_rotation(project)?;
    load(project)
}

/// Nothing is done with keys that are half replaced.
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
    // Not before it is clear that there was none: a link to a disk that is not there leads to one.
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
        // Made by a program that was killed before it wrote the name down, or by one that knew no names.
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

/// Whether there is anything about the keys that are there, or were: a server may have seen them, something was published under them, nobody
/// knows their name, or they are lost. Others are as good as new ones.
pub fn are_used(project: &Project) -> bool {
    let (settings, there) = (project.settings(), project.has_secret());
    let seen = settings.keys.iter().any(|keys| keys.sent) || settings.released.is_some();
    let unknown = there && settings.key_id.is_none();
    let lost = !there && (settings.key_id.is_some() || !settings.keys.is_empty());
    seen || unknown || lost
}

/// Moves the secret key to `old`, with what was published under it: the next training makes a new one.
pub fn retire(project: &mut Project) -> Result<()> {
    require_no_rotation(project)?;
    if project.has_secret() && project.settings().key_id.is_none() {
        // What was published is found again by the key's name. One that cannot be opened keeps its secret, and goes nameless.
        let _ = load(project);
    }
    project.retire_keys()
}

/// Replaces the secret key, and the key sets it had; interrupted, it goes on. Gives the old key's name and the new key. Trainings that were
/// interrupted with the old ones are reported.
pub fn rotate(project: &mut Project, report: &mut (dyn FnMut(ProgressEvent) + Send)) -> Result<(String, Owner)> {
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
        // The old one or the new one, also where its name is not written down: now it is.
        load(project)?;
    }
    if project.settings().key_id.as_ref() == Some(&rotation.from) {
        project.retire_keys()?;
    }
    // Before the long work, which may be interrupted: later nobody knows which sets there were.
    let stranded = training::stranded(project, &sets);
    if !stranded.is_empty() {
        report(ProgressEvent::Stranded(stranded));
    }
    let owner = load_or_create(project)?;
    for &LayoutShape { batch, features, classes, range } in &rotation.shapes {
        let layout = Layout::new(params(project)?, batch, features, classes, range)?;
        ensure_set(project, &owner, &layout, report)?;
    }
    project.update(|s| s.rotation = None)?;
    Ok((rotation.from, owner))
}

/// Writes a copy of the secret key to a new file, locked with a passphrase of its own if there is one.
pub fn back_up(project: &mut Project, file: &Path, passphrase: Option<&hetal_keys::Passphrase>) -> Result<String> {
    let owner = existing_owner(project)?;
    owner.save(file, passphrase)?;
    Ok(owner.key_id())
}

/// Puts a secret key from a backup in its place. Whether more may be published under it is known only where it was here before.
pub fn restore(project: &mut Project, file: &Path, passphrase: Option<&hetal_keys::Passphrase>) -> Result<String> {
    let owner = Owner::load(params(project)?, file, passphrase)?;
    let (path, key_id) = (project.secret(), owner.key_id());
    let known = project.settings().key_id.clone();
    if known.as_ref().is_some_and(|known| *known != key_id) {
        return Err(Error::OtherBackup { file: file.to_owned() });
    }
    // Nothing is changed where there is a key already.
    if project.has_secret() {
        return Err(hetal_keys::Error::Exists { path }.into());
    }
    remove_if_there(&path)?;
    if known.is_none() {
        // The name before the secret: killed in between, the secret is missed and can be brought back again, and nothing is published.
        project.adopt_key(key_id.clone(), Some(SPENT_BUDGET))?;
    }
    owner.save(&path, project.passphrase())?;
    Ok(key_id)
}
