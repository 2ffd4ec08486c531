//! A project's keys: the secret, which is made once and never silently again, and the key set that a server gets.

use crate::project::{KeySet, Released, Rotation, io, remove_if_there};
use crate::training::{self, Step};
use crate::{Error, Layout, Owner, Project, Result, remote};
use hetal_ckks::bytes::KeySetReader;
use hetal_ckks::{KeyId, Params};
use hetal_durable::NewFile;
use std::collections::BTreeSet;
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
    require_settled(project)?;
    load_or_make(project)
}

/// Loads a project's secret key, which must be there and be the project's.
pub fn existing_owner(project: &mut Project) -> Result<Owner> {
    require_settled(project)?;
    load(project)
}

/// Nothing is done with keys that are half replaced.
pub(crate) fn require_settled(project: &Project) -> Result<()> {
    if project.settings().rotation.is_some() { Err(Error::HalfRotated) } else { Ok(()) }
}

fn load_or_make(project: &mut Project) -> Result<Owner> {
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
    require_settled(project)?;
    if project.has_secret() && project.settings().key_id.is_none() {
        // What was published is found again by the key's name. One that cannot be opened keeps its secret, and goes nameless.
        let _ = load(project);
    }
    project.retire_keys()
}

/// Replaces the secret key, and the key sets it had; interrupted, it goes on. Gives the old key's name and the new key. Trainings that were
/// interrupted with the old ones are reported.
pub fn rotate(project: &mut Project, report: &mut (dyn FnMut(Step) + Send)) -> Result<(String, Owner)> {
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
        report(Step::Stranded(stranded));
    }
    let owner = load_or_make(project)?;
    for &(batch, features, classes, range) in &rotation.shapes {
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
        project.adopt_key(key_id.clone(), Some(SPENT))?;
    }
    owner.save(&path, project.passphrase())?;
    Ok(key_id)
}

/// Compares the key set of a layout with its name, and throws it away if its bytes are others than were written: it can be made anew.
pub fn check_set(project: &mut Project, layout: &Layout) -> Result<()> {
    let Some(keys) = project.settings().keys.iter().find(|keys| keys.layout == layout.key()) else { return Ok(()) };
    let path = project.key_file(keys);
    if path.exists() && remote::name_of(&path)?.0.to_string() != keys.blob {
        remove_if_there(&path)?;
    }
    Ok(())
}

/// Whether a key set has other keys than this version of the program needs: by its length, and by what its file lists, if it is there.
pub(crate) fn is_of_another_version(project: &Project, owner: &Owner, layout: &Layout, keys: &KeySet) -> Result<bool> {
    let wanted = layout.keys()?;
    let lists_others =
        || listed(owner, &project.key_file(keys)).is_some_and(|listed| listed != wanted.iter().copied().collect());
    Ok(keys.bytes != layout.key_bytes(&wanted)? || lists_others())
}

/// The keys that a file lists at its beginning, if that can be read: a few KiB.
fn listed(owner: &Owner, path: &Path) -> Option<BTreeSet<(KeyId, usize)>> {
    let mut file = std::io::BufReader::new(std::fs::File::open(path).ok()?);
    Some(KeySetReader::new(&owner.codec(), &mut file).ok()?.remaining().collect())
}

/// Makes sure that a project has the key set of a layout: one of another version of this program, or whose file was cut, is made anew. What
/// else is wrong with a file is found out when it is sent, or by [`check_set`].
pub fn ensure_set(
    project: &mut Project,
    owner: &Owner,
    layout: &Layout,
    report: &mut (dyn FnMut(Step) + Send),
) -> Result<KeySet> {
    let known = project.settings().keys.iter().find(|keys| keys.layout == layout.key()).cloned();
    if let Some(keys) = &known
        && project.key_file(keys).metadata().is_ok_and(|m| m.len() == keys.bytes)
        && !is_of_another_version(project, owner, layout, keys)?
    {
        return Ok(keys.clone());
    }
    let wanted = layout.keys()?;
    let file = known.as_ref().map_or_else(|| layout.key_file(), |keys| keys.file.clone());
    // Made again, it is as known to a server as it was.
    let sent = known.is_some_and(|keys| keys.sent);
    let path = project.root().join(&file);
    let start = Instant::now();
    let mut out = HashedFile::create(&path)?;
    let mut made = 0;
    owner.write_keys(&wanted, &mut out, || {
        made += 1;
        report(Step::Keys(made, wanted.len()));
    })?;
    let (blob, bytes) = out.finish(&path)?;
    let (layout, shape) = (layout.key(), Some(layout.shape()));
    let keys = KeySet { blob, bytes, layout, shape, file, seconds: start.elapsed().as_secs_f64(), sent };
    project.update(|settings| {
        settings.keys.retain(|other| other.layout != keys.layout);
        settings.keys.push(keys.clone());
    })?;
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
    use hetal_ckks::bytes::KeySetWriter;
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
        assert!(matches!(restore(&mut q, &backup, None), Err(Error::OtherBackup { .. })));
    }

    /// What a killed program left of the name is no key.
    #[test]
    fn an_empty_file_does_not_stop_a_restoration() {
        let folder = TempDir::new();
        let mut p = project(&folder, "p");
        let id = owner(&mut p).unwrap().key_id();
        let backup = folder.path().join("backup");
        back_up(&mut p, &backup, None).unwrap();
        std::fs::write(p.secret(), b"").unwrap();
        assert!(matches!(existing_owner(&mut p), Err(Error::SecretLost { .. })));
        assert_eq!(restore(&mut p, &backup, None).unwrap(), id);
        assert!(restore(&mut p, &backup, None).is_err(), "a key is never overwritten");
    }

    /// A secret on a disk that is not there now is found again when it is.
    #[cfg(unix)]
    #[test]
    fn a_link_to_a_secret_that_is_away_stays() {
        let folder = TempDir::new();
        let mut p = project(&folder, "p");
        let id = owner(&mut p).unwrap().key_id();
        let (disk, away) = (folder.path().join("disk.key"), folder.path().join("away.key"));
        std::fs::rename(p.secret(), &away).unwrap();
        std::os::unix::fs::symlink(&disk, p.secret()).unwrap();
        assert!(matches!(owner(&mut p), Err(Error::SecretLost { .. })));
        std::fs::rename(&away, &disk).unwrap();
        assert_eq!(owner(&mut p).unwrap().key_id(), id);
    }

    fn layout(project: &Project, features: usize) -> Layout {
        Layout::new(params(project).unwrap(), 32, features, 3, 128.0).unwrap()
    }

    #[test]
    fn a_project_has_a_key_set_for_each_shape() {
        let folder = TempDir::new();
        let mut p = project(&folder, "p");
        let owner = owner(&mut p).unwrap();
        let (six, nine) = (layout(&p, 6), layout(&p, 9));
        let set = |p: &mut Project, layout: &Layout| ensure_set(p, &owner, layout, &mut |_| ()).unwrap();
        let (first, second) = (set(&mut p, &six), set(&mut p, &nine));
        assert_ne!(first.file, second.file);
        assert_eq!((set(&mut p, &six), set(&mut p, &nine)), (first.clone(), second.clone()));
        // Damaged, it is as good as gone; whole, it stays.
        let path = p.key_file(&second);
        let whole = std::fs::read(&path).unwrap();
        check_set(&mut p, &nine).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), whole);
        let mut damaged = whole.clone();
        damaged[whole.len() / 2] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        check_set(&mut p, &six).unwrap();
        assert_eq!(set(&mut p, &nine), second, "a length is soon compared, bytes are not");
        check_set(&mut p, &nine).unwrap();
        let second = set(&mut p, &nine);
        assert_ne!(std::fs::read(&path).unwrap(), whole);
        assert_eq!(remote::name_of(&path).unwrap().0.to_string(), second.blob);
        // A set of an earlier version of this program, with other keys, is whole and yet of no use.
        std::fs::write(&path, b"old").unwrap();
        let blob = remote::name_of(&path).unwrap().0.to_string();
        p.update(|s| {
            s.keys.iter_mut().filter(|k| k.file == second.file).for_each(|k| (k.bytes, k.blob) = (3, blob.clone()))
        })
        .unwrap();
        check_set(&mut p, &nine).unwrap();
        let second = set(&mut p, &nine);
        assert_eq!(second.bytes, whole.len() as u64);
        assert_eq!(remote::name_of(&path).unwrap().0.to_string(), second.blob);
        // So is one of the right length with another key in it.
        let mut file = std::io::BufReader::new(std::fs::File::open(p.key_file(&second)).unwrap());
        let mut read = KeySetReader::new(&owner.codec(), &mut file).unwrap();
        let mut names: Vec<_> = read.remaining().collect();
        let place = names.iter().position(|(id, _)| matches!(id, KeyId::Galois(_))).unwrap();
        let (KeyId::Galois(galois), limbs) = names[place] else { unreachable!() };
        let other = (1..).map(|k| KeyId::Galois((galois + 2 * k) % (2 * six.params.degree() as u64)));
        let other = other.into_iter().find(|id| *id != KeyId::Galois(1) && !names.contains(&(*id, limbs))).unwrap();
        names[place].0 = other;
        let older = folder.path().join("older");
        let mut out = std::fs::File::create(&older).unwrap();
        let mut writer = KeySetWriter::new(&owner.codec(), &names, &mut out).unwrap();
        while let Some(mut key) = read.read().unwrap() {
            key.id = if key.id == KeyId::Galois(galois) && key.basis.q == limbs { other } else { key.id };
            writer.write(&key).unwrap();
        }
        writer.finish().unwrap();
        assert_eq!(std::fs::metadata(&older).unwrap().len(), second.bytes);
        std::fs::rename(&older, p.key_file(&second)).unwrap();
        let blob = remote::name_of(&path).unwrap().0.to_string();
        p.update(|s| s.keys.iter_mut().filter(|k| k.file == second.file).for_each(|k| k.blob = blob.clone())).unwrap();
        let second = set(&mut p, &nine);
        assert_ne!(second.blob, blob);
        // Made again, a set is as known to servers as it was.
        p.update(|s| s.keys.iter_mut().for_each(|keys| keys.sent = keys.blob == first.blob)).unwrap();
        std::fs::remove_file(p.key_file(&first)).unwrap();
        let again = set(&mut p, &six);
        assert!(again.blob != first.blob && again.sent && p.settings().keys.len() == 2);
        retire(&mut p).unwrap();
        assert!(!p.key_file(&again).exists() && !p.key_file(&second).exists());
    }

    /// Killed at any moment, a rotation goes on: once away, the old key stays away, and the new one has the sets of the old.
    #[test]
    fn a_rotation_goes_on() {
        let folder = TempDir::new();
        let mut p = project(&folder, "p");
        let passphrase = hetal_keys::Passphrase::new("a b c".to_owned().into()).unwrap();
        p.set_passphrase(Some(passphrase.clone()));
        let old = owner(&mut p).unwrap();
        let (id, six) = (old.key_id(), layout(&p, 6));
        ensure_set(&mut p, &old, &six, &mut |_| ()).unwrap();
        let begun = Rotation { from: id.clone(), shapes: vec![six.shape()] };
        p.update(|s| s.rotation = Some(begun.clone())).unwrap();
        assert!(matches!(owner(&mut p), Err(Error::HalfRotated)));
        // Killed after the settings and before the secret was moved.
        let kept = std::fs::read(p.secret()).unwrap();
        p.retire_keys().unwrap();
        hetal_durable::create_new(&p.secret()).unwrap();
        std::fs::write(p.secret(), &kept).unwrap();
        // A locked key has no open successor.
        std::fs::rename(p.secret(), folder.path().join("aside")).unwrap();
        p.set_passphrase(None);
        assert!(matches!(rotate(&mut p, &mut |_| ()), Err(Error::Unlocked)));
        std::fs::rename(folder.path().join("aside"), p.secret()).unwrap();
        p.set_passphrase(Some(passphrase));
        let (from, new) = rotate(&mut p, &mut |_| ()).unwrap();
        assert!(from == id && new.key_id() != id);
        assert_eq!((p.settings().keys.len(), p.settings().rotation.clone()), (1, None));
        // Killed after the new secret was made: it stays.
        p.update(|s| (s.rotation, s.key_id) = (Some(begun), None)).unwrap();
        std::fs::remove_file(p.key_file(&p.settings().keys[0])).unwrap();
        p.update(|s| s.keys.clear()).unwrap();
        assert_eq!(rotate(&mut p, &mut |_| ()).unwrap().1.key_id(), new.key_id());
        assert!(p.key_file(&p.settings().keys[0]).exists());
    }

    /// A key whose name nobody wrote down is retired under it, and comes back to what was published.
    #[test]
    fn a_nameless_key_keeps_its_budget() {
        let folder = TempDir::new();
        let mut p = project(&folder, "p");
        let released = Released { noise: 1e-6, numbers: 10, security: 10, left: 3 };
        for openable in [true, false] {
            let id = owner(&mut p).unwrap().key_id();
            p.update(|s| (s.key_id, s.released) = (None, Some(released))).unwrap();
            let kept = std::fs::read(p.secret()).unwrap();
            if !openable {
                std::fs::write(p.secret(), b"unreadable").unwrap();
            }
            retire(&mut p).unwrap();
            hetal_durable::create_new(&p.secret()).unwrap();
            std::fs::write(p.secret(), kept).unwrap();
            assert_eq!(existing_owner(&mut p).unwrap().key_id(), id);
            assert_eq!(p.settings().released, Some(released), "{openable}");
            p.retire_keys().unwrap();
        }
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
        retire(&mut p).unwrap();
        assert_ne!(owner(&mut p).unwrap().key_id(), id);
        p.retire_keys().unwrap();
        hetal_durable::create_new(&p.secret()).unwrap();
        std::fs::write(p.secret(), kept).unwrap();
        assert_eq!(existing_owner(&mut p).unwrap().key_id(), id);
        assert_eq!(p.settings().released, Some(released));
    }
}
