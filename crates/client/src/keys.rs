//! A project's keys: the secret, which is made once and never silently again, and the key set that a server gets.

use crate::project::{KeySet, Released, io, remove_if_there};
use crate::training::Step;
use crate::{Error, Layout, Owner, Project, Result};
use hetal_ckks::Params;
use hetal_keys::durable::NewFile;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// What a key from elsewhere may have published, nobody knows: nothing more is published under it.
const SPENT: Released = Released { noise: 1.0, numbers: 1, security: 1, left: 0 };

/// The parameter set of a project.
pub fn params(project: &Project) -> Result<Arc<Params>> {
    Ok(Arc::new(Params::named(&project.settings().set)?))
}

/// Loads a project's secret key, or makes the first one. One that is gone is an error: what is encrypted under it would be lost.
pub fn owner(project: &mut Project) -> Result<Owner> {
    let path = project.secret();
    // A file without a byte is what is left of a program that was killed while it took the name.
    if path.metadata().is_ok_and(|m| m.len() == 0) {
        remove_if_there(&path)?;
    }
    if path.exists() {
        return existing_owner(project);
    }
    if project.settings().key_id.is_some() || project.settings().keys.is_some() {
        return Err(Error::SecretLost { path });
    }
    let owner = Owner::fresh(params(project)?)?;
    owner.save(&path, project.passphrase())?;
    project.adopt_key(owner.key_id(), None)?;
    Ok(owner)
}

/// Loads a project's secret key, which must be there and be the project's.
pub fn existing_owner(project: &mut Project) -> Result<Owner> {
    let path = project.secret();
    if !path.exists() {
        let known = project.settings().key_id.is_some();
        return Err(if known { Error::SecretLost { path } } else { Error::NoSecret { path } });
    }
    let owner = Owner::load(params(project)?, &path, project.passphrase())?;
    match &project.settings().key_id {
        Some(id) if *id != owner.key_id() => Err(Error::OtherSecret { path }),
        Some(_) => Ok(owner),
        // Made by a program that was killed before it wrote the name down, or by one that knew no names.
        None => {
            let released = project.settings().released;
            project.adopt_key(owner.key_id(), released)?;
            Ok(owner)
        }
    }
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
        return Err(Error::OtherSecret { path: file.to_owned() });
    }
    // Nothing is changed where there is a key already.
    if path.metadata().is_ok_and(|m| m.len() > 0) {
        return Err(hetal_keys::Error::Exists { path }.into());
    }
    if known.is_none() {
        // The name before the secret: killed in between, the secret is missed and can be brought back again, and nothing is published.
        project.adopt_key(key_id.clone(), Some(SPENT))?;
    }
    owner.save(&path, project.passphrase())?;
    Ok(key_id)
}

/// Makes sure that a project has the key set of a layout; there is only ever one.
pub fn ensure_set(
    project: &mut Project,
    owner: &Owner,
    layout: &Layout,
    report: &mut (dyn FnMut(Step) + Send),
) -> Result<KeySet> {
    let path = project.key_set();
    if let Some(keys) = project.settings().keys.clone() {
        if keys.layout != layout.key() {
            return Err(Error::OtherKeys { has: keys.layout, needs: layout.key() });
        }
        if path.metadata().is_ok_and(|m| m.len() == keys.bytes) {
            return Ok(keys);
        }
    }
    let start = Instant::now();
    let wanted = layout.keys()?;
    let mut file = HashedFile::create(&path)?;
    let mut made = 0;
    owner.write_keys(&wanted, &mut file, || {
        made += 1;
        report(Step::Keys(made, wanted.len()));
    })?;
    let (blob, bytes) = file.finish(&path)?;
    let (layout, shape) = (layout.key(), Some(layout.shape()));
    let keys = KeySet { blob, bytes, layout, shape, seconds: start.elapsed().as_secs_f64(), sent: false };
    project.update(|settings| settings.keys = Some(keys.clone()))?;
    Ok(keys)
}

/// A file that is hashed while it is written.
struct HashedFile {
    file: std::io::BufWriter<NewFile>,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl HashedFile {
    fn create(path: &Path) -> Result<Self> {
        let file = NewFile::create(path).map_err(|e| io("creating", path, &e))?;
        Ok(Self { file: std::io::BufWriter::with_capacity(1 << 20, file), hasher: blake3::Hasher::new(), bytes: 0 })
    }

    fn finish(self, path: &Path) -> Result<(String, u64)> {
        let file = self.file.into_inner().map_err(|e| io("writing", path, e.error()))?;
        file.finish().map_err(|e| io("writing", path, &e))?;
        Ok((self.hasher.finalize().to_hex().to_string(), self.bytes))
    }
}

impl std::io::Write for HashedFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetal_testkit::TempDir;

    fn project(folder: &TempDir, name: &str) -> Project {
        Project::open(&folder.path().join(name), Some("insecure-toy11")).unwrap()
    }

    #[test]
    fn a_lost_secret_is_not_replaced() {
        let folder = TempDir::new();
        let mut p = project(&folder, "p");
        assert!(matches!(existing_owner(&mut p), Err(Error::NoSecret { .. })));
        let id = owner(&mut p).unwrap().key_id();
        assert_eq!(owner(&mut p).unwrap().key_id(), id);
        let backup = folder.path().join("backup");
        back_up(&mut p, &backup, None).unwrap();
        std::fs::remove_file(p.secret()).unwrap();
        for result in [owner(&mut p), existing_owner(&mut p)] {
            let error = result.err().unwrap();
            assert!(error.to_string().contains("keys restore"), "{error}");
        }
        assert_eq!(restore(&mut p, &backup, None).unwrap(), id);
        assert_eq!(owner(&mut p).unwrap().key_id(), id);
        // Another key is no substitute.
        std::fs::remove_file(p.secret()).unwrap();
        let mut q = project(&folder, "q");
        owner(&mut q).unwrap();
        std::fs::copy(q.secret(), p.secret()).unwrap();
        assert!(matches!(owner(&mut p), Err(Error::OtherSecret { .. })));
        assert!(matches!(restore(&mut q, &backup, None), Err(Error::OtherSecret { .. })));
    }

    #[test]
    fn a_key_from_elsewhere_publishes_nothing() {
        let folder = TempDir::new();
        let mut p = project(&folder, "p");
        owner(&mut p).unwrap();
        let backup = folder.path().join("backup");
        let passphrase = hetal_keys::Passphrase::new("a b c".to_owned().into()).unwrap();
        back_up(&mut p, &backup, Some(&passphrase)).unwrap();
        let mut q = project(&folder, "q");
        assert!(matches!(restore(&mut q, &backup, None), Err(Error::Keys(hetal_keys::Error::Locked { .. }))));
        restore(&mut q, &backup, Some(&passphrase)).unwrap();
        assert_eq!(q.settings().released, Some(SPENT));
        assert_eq!(owner(&mut q).unwrap().key_id(), p.settings().key_id.clone().unwrap());
        assert_eq!(p.settings().released, None);
    }

    /// Killed between the settings and the secret, a retirement is not a new budget.
    #[test]
    fn a_half_retired_key_keeps_its_budget() {
        let folder = TempDir::new();
        let mut p = project(&folder, "p");
        let id = owner(&mut p).unwrap().key_id();
        let released = Released { noise: 1e-6, numbers: 10, security: 10, left: 3 };
        p.update(|s| s.released = Some(released)).unwrap();
        let kept = std::fs::read(p.secret()).unwrap();
        p.retire_keys().unwrap();
        assert_ne!(owner(&mut p).unwrap().key_id(), id);
        p.retire_keys().unwrap();
        hetal_keys::durable::create_new(&p.secret()).unwrap();
        std::fs::write(p.secret(), kept).unwrap();
        assert_eq!(existing_owner(&mut p).unwrap().key_id(), id);
        assert_eq!(p.settings().released, Some(released));
    }
}
