use super::secret::SPENT_BUDGET;
use super::*;
use crate::layout::LayoutShape;
use crate::project::{ReleaseBudget, Rotation};
use crate::{Error, Layout, Project, rpc};
use hetal_ckks::KeyId;
use hetal_ckks::bytes::{KeySetReader, KeySetWriter};
use hetal_learn::KeyPlan;
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
    // Another key is refused.
    std::fs::remove_file(p.secret()).unwrap();
    let mut q = project(&folder, "q");
    owner(&mut q).unwrap();
    std::fs::copy(q.secret(), p.secret()).unwrap();
    assert!(matches!(owner(&mut p), Err(Error::OtherSecret { .. })));
    assert!(matches!(restore(&mut q, &backup, None), Err(Error::OtherBackup { .. })));
}

/// An empty file, left by a killed process, is not a key.
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

/// A secret key on a disk that is not mounted is not replaced.
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
    let shape = LayoutShape { batch: 32, features, classes: 3, range: 128.0, weighted: false, key_plan: KeyPlan::Fast };
    Layout::new(params(project).unwrap(), shape).unwrap()
}

/// A set with all keys that a server works with, as earlier versions made it for every plan, is
/// neither made nor sent again.
#[test]
fn key_sets_of_earlier_versions_are_kept() {
    let folder = TempDir::new();
    let mut p = project(&folder, "p");
    let owner = owner(&mut p).unwrap();
    let shape = LayoutShape { key_plan: KeyPlan::Balanced, ..layout(&p, 6).shape() };
    let layout = Layout::new(params(&p).unwrap(), shape).unwrap();
    let [sent, working] = layout.accepted_keys().unwrap();
    let new = ensure_set(&mut p, &owner, &layout, &mut |_| ()).unwrap();
    assert_eq!((new.bytes, sent.len() < working.len()), (layout.key_bytes(&sent).unwrap(), true));
    let path = p.key_file(&new);
    let mut out = std::fs::File::create(&path).unwrap();
    owner.write_keys(&working, &mut out, || Ok(())).unwrap();
    let (bytes, blob) = (out.metadata().unwrap().len(), rpc::digest_file(&path).unwrap().name.to_string());
    assert_eq!(bytes, layout.key_bytes(&working).unwrap());
    p.update(|s| (s.keys[0].bytes, s.keys[0].blob) = (bytes, blob.clone())).unwrap();
    let kept = ensure_set(&mut p, &owner, &layout, &mut |_| panic!("nothing is made")).unwrap();
    assert_eq!((kept.bytes, &kept.blob), (bytes, &blob));
    // Neither list: one key less.
    let mut out = std::fs::File::create(&path).unwrap();
    owner.write_keys(&working[1..], &mut out, || Ok(())).unwrap();
    let bytes = out.metadata().unwrap().len();
    p.update(|s| s.keys[0].bytes = bytes).unwrap();
    assert_eq!(ensure_set(&mut p, &owner, &layout, &mut |_| ()).unwrap().bytes, new.bytes);
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
    // A damaged key set is removed, an intact one is kept.
    let path = p.key_file(&second);
    let whole = std::fs::read(&path).unwrap();
    check_set(&mut p, &nine).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), whole);
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    check_set(&mut p, &six).unwrap();
    assert_eq!(set(&mut p, &nine), second, "`ensure_set` compares the length, not the bytes");
    check_set(&mut p, &nine).unwrap();
    let second = set(&mut p, &nine);
    assert_ne!(std::fs::read(&path).unwrap(), whole);
    assert_eq!(rpc::digest_file(&path).unwrap().name.to_string(), second.blob);
    // A set of an earlier version of this program is intact but has other keys.
    std::fs::write(&path, b"old").unwrap();
    let blob = rpc::digest_file(&path).unwrap().name.to_string();
    p.update(|s| {
        s.keys.iter_mut().filter(|k| k.file == second.file).for_each(|k| (k.bytes, k.blob) = (3, blob.clone()))
    })
    .unwrap();
    check_set(&mut p, &nine).unwrap();
    let second = set(&mut p, &nine);
    assert_eq!(second.bytes, whole.len() as u64);
    assert_eq!(rpc::digest_file(&path).unwrap().name.to_string(), second.blob);
    // A set of the right length may contain another key.
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
    let blob = rpc::digest_file(&path).unwrap().name.to_string();
    p.update(|s| s.keys.iter_mut().filter(|k| k.file == second.file).for_each(|k| k.blob = blob.clone())).unwrap();
    let second = set(&mut p, &nine);
    assert_ne!(second.blob, blob);
    // A set that is generated again counts as sent if its predecessor did.
    p.update(|s| s.keys.iter_mut().for_each(|keys| keys.sent = keys.blob == first.blob)).unwrap();
    std::fs::remove_file(p.key_file(&first)).unwrap();
    let again = set(&mut p, &six);
    assert!(again.blob != first.blob && again.sent && p.settings().keys.len() == 2);
    retire(&mut p).unwrap();
    assert!(!p.key_file(&again).exists() && !p.key_file(&second).exists());
}

/// A rotation that was killed at any moment continues: the old key stays retired, and the new one
/// gets key sets of the same shapes.
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
    // Killed after the settings changed and before the secret was moved.
    let kept = std::fs::read(p.secret()).unwrap();
    p.retire_keys().unwrap();
    hetal_durable::create_new(&p.secret()).unwrap();
    std::fs::write(p.secret(), &kept).unwrap();
    // The successor of a locked key must be locked.
    std::fs::rename(p.secret(), folder.path().join("aside")).unwrap();
    p.set_passphrase(None);
    assert!(matches!(rotate(&mut p, &mut |_| ()), Err(Error::Unlocked)));
    std::fs::rename(folder.path().join("aside"), p.secret()).unwrap();
    p.set_passphrase(Some(passphrase));
    let (from, new) = rotate(&mut p, &mut |_| ()).unwrap();
    assert!(from == id && new.key_id() != id);
    assert_eq!((p.settings().keys.len(), p.settings().rotation.clone()), (1, None));
    // Killed after the new secret was created: it is kept.
    p.update(|s| (s.rotation, s.key_id) = (Some(begun), None)).unwrap();
    std::fs::remove_file(p.key_file(&p.settings().keys[0])).unwrap();
    p.update(|s| s.keys.clear()).unwrap();
    assert_eq!(rotate(&mut p, &mut |_| ()).unwrap().1.key_id(), new.key_id());
    assert!(p.key_file(&p.settings().keys[0]).exists());
}

/// A key without a recorded id gets its release budget back after a retirement.
#[test]
fn a_nameless_key_keeps_its_budget() {
    let folder = TempDir::new();
    let mut p = project(&folder, "p");
    let released = ReleaseBudget { noise: 1e-6, numbers: 10, security: 10, left: 3 };
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
    assert_eq!(q.settings().released, Some(SPENT_BUDGET));
    assert_eq!(owner(&mut q).unwrap().key_id(), p.settings().key_id.clone().unwrap());
    assert_eq!(p.settings().released, None);
}

/// A retirement that was killed half way does not reset the release budget.
#[test]
fn a_half_retired_key_keeps_its_budget() {
    let folder = TempDir::new();
    let mut p = project(&folder, "p");
    let id = owner(&mut p).unwrap().key_id();
    let released = ReleaseBudget { noise: 1e-6, numbers: 10, security: 10, left: 3 };
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

/// Whoever waits for keys can ask for the end: no file is left, and the next attempt makes them.
#[test]
fn making_keys_can_be_cancelled() {
    let folder = TempDir::new();
    let mut p = project(&folder, "p");
    let owner = owner(&mut p).unwrap();
    let layout = layout(&p, 4);
    let cancellation = crate::Cancellation::default();
    p.set_cancellation(cancellation.clone());
    let mut made = 0;
    let cancelled = ensure_set(&mut p, &owner, &layout, &mut |_| {
        made += 1;
        cancellation.cancel();
    });
    assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
    assert_eq!(made, 1, "at the next key");
    assert!(p.settings().keys.is_empty() && !p.root().join(layout.key_file()).exists());
    p.set_cancellation(crate::Cancellation::default());
    ensure_set(&mut p, &owner, &layout, &mut |_| ()).unwrap();
}
