//! The test suite of blob stores.
#![allow(clippy::unwrap_used)]

use crate::Error;
use crate::store::blobs::*;
use crate::tenants::Tenant;
use hetal_testkit::TempDir;
use hetal_wire::JobId;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

fn tenant(name: &str) -> Tenant {
    name.to_owned().try_into().unwrap()
}

fn key(tenant_name: &str, namespace: Namespace, bytes: &[u8]) -> BlobKey {
    BlobKey::new(&tenant(tenant_name), namespace, name_of(bytes))
}

fn text(blobs: &dyn Blobs, key: &BlobKey, offset: u64) -> String {
    let mut text = String::new();
    blobs.open(key, offset).unwrap().unwrap().read_to_string(&mut text).unwrap();
    text
}

/// Checks an empty store.
pub fn check(blobs: &dyn Blobs, scratch: &Path) {
    let job = Namespace::Job(JobId([7; 16]));
    let (upload, output) = (key("ann", Namespace::Uploads, b"hello"), key("ann", job, b"hello"));
    for key in [&upload, &output] {
        assert_eq!(blobs.len(key).unwrap(), None);
        assert!(blobs.open(key, 0).unwrap().is_none() && blobs.local(key).unwrap().is_none());
        blobs.delete(key).unwrap();
    }
    assert_eq!(read(blobs, &upload, 5), Err(Error::NoBlob { name: upload.name() }));

    blobs.put(&upload, b"hello").unwrap();
    blobs.put(&upload, b"hello").unwrap();
    assert_eq!((text(blobs, &upload, 0), text(blobs, &upload, 3)), ("hello".into(), "lo".into()));
    assert_eq!(blobs.len(&upload).unwrap(), Some(5));
    assert_eq!(std::fs::read(blobs.local(&upload).unwrap().unwrap()).unwrap(), b"hello");
    assert_eq!(read(blobs, &upload, 5).unwrap(), b"hello");
    assert!(matches!(read(blobs, &upload, 4), Err(Error::Damaged { .. })));

    // Other namespaces and other tenants do not see it.
    assert_eq!(blobs.len(&output).unwrap(), None);
    assert_eq!(blobs.len(&key("bob", Namespace::Uploads, b"hello")).unwrap(), None);
    assert!(blobs.list(&tenant("bob"), Namespace::Uploads).unwrap().is_empty());

    let file = scratch.join("staged");
    std::fs::write(&file, b"world").unwrap();
    blobs.adopt(&key("ann", job, b"world"), &file).unwrap();
    assert!(!file.exists());
    blobs.put(&output, b"hello").unwrap();
    let mut expected = vec![name_of(b"hello"), name_of(b"world")];
    expected.sort();
    assert_eq!(blobs.list(&tenant("ann"), job).unwrap(), expected);
    blobs.delete(&output).unwrap();
    assert_eq!(blobs.list(&tenant("ann"), job).unwrap(), [name_of(b"world")]);
    assert_eq!(blobs.list(&tenant("ann"), Namespace::Uploads).unwrap(), [upload.name()]);

    // A megabyte, and an empty blob.
    let large: Vec<u8> = (0..1 << 20).map(|i| (i % 251) as u8).collect();
    for bytes in [&large[..], b""] {
        let key = key("ann", Namespace::Uploads, bytes);
        blobs.put(&key, bytes).unwrap();
        assert!(read(blobs, &key, large.len() as u64).unwrap() == bytes);
    }

    // The owner is recorded, and replaced only by a caller who knows the current one.
    assert_eq!(blobs.owner().unwrap(), None);
    assert!(!blobs.set_owner(Some("89"), "4567").unwrap());
    assert_eq!(blobs.owner().unwrap(), None);
    assert!(blobs.set_owner(None, "0123").unwrap());
    assert!(!blobs.set_owner(None, "4567").unwrap());
    assert!(!blobs.set_owner(Some("89"), "4567").unwrap());
    assert_eq!(blobs.owner().unwrap().as_deref(), Some("0123"));
    assert!(blobs.set_owner(Some("0123"), "4567").unwrap());
    assert_eq!(blobs.owner().unwrap().as_deref(), Some("4567"));
    assert_eq!(blobs.tenants().unwrap(), BTreeSet::from([tenant("ann")]));
    let mut namespaces = blobs.namespaces().unwrap();
    namespaces.retain(|(tenant, namespace)| !blobs.list(tenant, *namespace).unwrap().is_empty());
    namespaces.sort();
    assert_eq!(namespaces, [(tenant("ann"), Namespace::Uploads), (tenant("ann"), job)]);
}

#[test]
fn memory_is_a_store() {
    let dir = TempDir::new();
    check(&MemoryBlobs::new(dir.path()), dir.path());
}

#[test]
fn a_folder_is_a_store_that_lasts() {
    let dir = TempDir::new();
    let root = dir.path().join("blobs");
    check(&LocalBlobs::open(&root).unwrap(), dir.path());
    // Scratch files of an earlier process are deleted, complete blobs stay.
    std::fs::write(root.join("scratch/0"), b"half").unwrap();
    let again = LocalBlobs::open(&root).unwrap();
    assert_eq!(std::fs::read_dir(root.join("scratch")).unwrap().count(), 0);
    assert_eq!(read(&again, &key("ann", Namespace::Uploads, b"hello"), 5).unwrap(), b"hello");
}

#[test]
fn damaged_bytes_are_noticed() {
    let dir = TempDir::new();
    let blobs = LocalBlobs::open(dir.path()).unwrap();
    let key = key("ann", Namespace::Uploads, b"hello");
    blobs.put(&key, b"hello").unwrap();
    for damaged in [&b"hellp"[..], b"hell", b"hello!"] {
        std::fs::write(blobs.local(&key).unwrap().unwrap(), damaged).unwrap();
        assert!(matches!(read(&blobs, &key, 100), Err(Error::Damaged { .. })));
    }
}
