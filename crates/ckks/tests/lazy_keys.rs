//! Keys that are loaded when they are first asked for.

#![allow(clippy::unwrap_used)]

use hetal_ckks::bytes::{self, FormatError, KeySetFile};
use hetal_ckks::{Error, EvaluationKeys, KeyId, KeySource, Result, SwitchingKey};
use hetal_ring::{Basis, Isa, PackedPoly};
use hetal_testkit::{TempDir, TestOwner, tiny_params};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn client_and_keys() -> (TestOwner, EvaluationKeys<PackedPoly>) {
    let client = TestOwner::of(tiny_params(), 1, Isa::detect());
    let mut keys = EvaluationKeys::default();
    let galois = (0..8).map(|k| (KeyId::Galois(2 * k + 3), 1 + k as usize % 2));
    client.add_keys(
        &mut keys,
        galois.chain([
            (KeyId::Relinearisation, 1),
            (KeyId::Relinearisation, 2),
            (KeyId::ToSparse, 1),
            (KeyId::FromSparse(1), 2),
        ]),
    );
    (client, keys)
}

/// Counts the calls of another source.
struct Counting<S> {
    inner: S,
    loads: Arc<AtomicUsize>,
}

impl<S: KeySource<PackedPoly>> KeySource<PackedPoly> for Counting<S> {
    fn available(&self) -> Vec<(KeyId, Basis)> {
        self.inner.available()
    }
    fn load(&self, id: KeyId, basis: Basis) -> Result<Option<SwitchingKey<PackedPoly>>> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.inner.load(id, basis)
    }
}

#[test]
fn each_key_is_loaded_once_and_only_when_needed() {
    let (client, keys) = client_and_keys();
    let dir = TempDir::new();
    let path = dir.path().join("keys");
    let codec = client.codec();
    bytes::write_key_set(&codec, &keys, &mut std::fs::File::create(&path).unwrap()).unwrap();

    let loads = Arc::new(AtomicUsize::new(0));
    let source = Counting { inner: KeySetFile::open(&codec, &path).unwrap(), loads: Arc::clone(&loads) };
    let lazy = EvaluationKeys::with_source(Box::new(source));
    assert_eq!((lazy.iter().count(), loads.load(Ordering::SeqCst)), (0, 0));
    assert_eq!(lazy.available().count(), keys.iter().count());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for key in keys.iter() {
                    let loaded = lazy.find(key.id, key.basis).unwrap();
                    assert!(codec.encode(&**loaded).unwrap() == codec.encode(&**key).unwrap());
                }
            });
        }
    });
    assert_eq!(loads.load(Ordering::SeqCst), keys.iter().count());
    assert_eq!(lazy.limbs(), keys.limbs());

    // The smaller of two that fit, and only it.
    let lazy = EvaluationKeys::with_source(Box::new(KeySetFile::open(&codec, &path).unwrap()));
    assert_eq!(lazy.find(KeyId::Relinearisation, client.params.key_basis(1)).unwrap().basis.q, 1);
    assert_eq!(lazy.iter().count(), 1);
    let missing = lazy.find(KeyId::Galois(99), client.params.key_basis(1)).err().unwrap();
    assert_eq!(missing, Error::MissingKey { key: KeyId::Galois(99), limbs: 1 });
    lazy.load_all(|_, _| Ok::<_, Error>(())).unwrap();
    assert_eq!(lazy.iter().count(), keys.iter().count());
}

/// Several loaders load each key once and report after each. What `progress` or the source refuses
/// ends the loading.
#[test]
fn several_keys_are_loaded_at_a_time() {
    let (client, keys) = client_and_keys();
    let dir = TempDir::new();
    let path = dir.path().join("keys");
    let codec = client.codec();
    let mut whole = Vec::new();
    bytes::write_key_set(&codec, &keys, &mut whole).unwrap();
    std::fs::write(&path, &whole).unwrap();
    let all = keys.iter().count();
    for threads in [1, 2, 5, 100] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let loads = Arc::new(AtomicUsize::new(0));
        let source = Counting { inner: KeySetFile::open(&codec, &path).unwrap(), loads: Arc::clone(&loads) };
        let lazy = EvaluationKeys::with_source(Box::new(source));
        lazy.find(KeyId::Relinearisation, client.params.key_basis(2)).unwrap();
        let mut reported = Vec::new();
        let report = |done, of| {
            reported.push((done, of));
            Ok::<_, Error>(())
        };
        pool.install(|| lazy.load_all(report)).unwrap();
        assert_eq!(reported, (1..all).map(|done| (done, all - 1)).collect::<Vec<_>>());
        assert_eq!((lazy.iter().count(), loads.load(Ordering::SeqCst)), (all, all));
        for key in keys.iter() {
            let loaded = lazy.find(key.id, key.basis).unwrap();
            assert!(codec.encode(&**loaded).unwrap() == codec.encode(&**key).unwrap());
        }
    }
    let refuse = || EvaluationKeys::with_source(Box::new(KeySetFile::open(&codec, &path).unwrap()));
    let stop = Error::MissingKey { key: KeyId::ToSparse, limbs: 7 };
    assert_eq!(refuse().load_all(|_, _| Err(stop.clone())), Err(stop));
    let at = whole.len() - 100;
    whole[at] ^= 1;
    std::fs::write(&path, &whole).unwrap();
    let damaged = refuse().load_all(|_, _| Ok::<_, Error>(()));
    assert!(matches!(damaged, Err(Error::Format(FormatError::Checksum { .. }))), "{damaged:?}");
}

#[test]
fn a_pool_of_threads_that_all_want_one_key_gets_it() {
    let (client, keys) = client_and_keys();
    let dir = TempDir::new();
    let path = dir.path().join("keys");
    bytes::write_key_set(&client.codec(), &keys, &mut std::fs::File::create(&path).unwrap()).unwrap();
    let lazy = EvaluationKeys::with_source(Box::new(KeySetFile::open(&client.codec(), &path).unwrap()));
    let wanted: Vec<_> = keys.iter().map(|key| (key.id, key.basis)).collect();
    rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap().install(|| {
        use rayon::prelude::*;
        (0..100).into_par_iter().for_each(|k| {
            let (id, basis) = wanted[k % wanted.len()];
            lazy.find(id, basis).unwrap();
        });
    });
}

#[test]
fn a_damaged_file_is_noticed_when_opened_or_when_the_key_is_loaded() {
    let (client, keys) = client_and_keys();
    let dir = TempDir::new();
    let path = dir.path().join("keys");
    let codec = client.codec();
    let mut whole = Vec::new();
    bytes::write_key_set(&codec, &keys, &mut whole).unwrap();
    let open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        KeySetFile::open(&codec, &path)
    };
    for len in [0, 10, 60, 100, whole.len() / 2, whole.len() - 1] {
        let error = open(&whole[..len]).err().unwrap();
        assert!(matches!(error, FormatError::Truncated { .. } | FormatError::Length { .. }), "{len}: {error}");
    }
    assert!(matches!(open(&[&whole[..], b"x"].concat()), Err(FormatError::Length { .. })));
    // The last key's checksum, and the set's.
    for back in [33, 1] {
        let mut damaged = whole.clone();
        let at = damaged.len() - back;
        damaged[at] ^= 1;
        assert!(matches!(open(&damaged), Err(FormatError::Checksum { .. })));
    }
    // Inside the last key, which is the one from the sparse secret.
    let mut damaged = whole.clone();
    let at = damaged.len() - 100;
    damaged[at] ^= 1;
    let lazy = EvaluationKeys::with_source(Box::new(open(&damaged).unwrap()));
    let full = client.params.key_basis(2);
    for _ in 0..2 {
        let error = lazy.find(KeyId::FromSparse(1), full).err().unwrap();
        assert!(matches!(error, Error::Format(FormatError::Checksum { .. })), "{error}");
    }
    lazy.find(KeyId::Relinearisation, full).unwrap();
}

#[test]
fn keys_are_told_apart_by_their_version() {
    let (client, mut keys) = client_and_keys();
    let version = keys.version();
    assert_ne!(version, client_and_keys().1.version());
    client.add_keys(&mut keys, [(KeyId::Galois(101), 2)]);
    assert_ne!(keys.version(), version, "another key may be found now");
}

/// One version finds the same keys at the same places, loaded or not.
#[test]
fn a_key_that_was_loaded_stays_where_it_is() {
    let (client, keys) = client_and_keys();
    let dir = TempDir::new();
    let path = dir.path().join("keys");
    bytes::write_key_set(&client.codec(), &keys, &mut std::fs::File::create(&path).unwrap()).unwrap();
    let lazy = EvaluationKeys::with_source(Box::new(KeySetFile::open(&client.codec(), &path).unwrap()));
    let version = lazy.version();
    let find = || keys.iter().map(|key| Arc::clone(lazy.find(key.id, key.basis).unwrap())).collect::<Vec<_>>();
    let found = find();
    lazy.load_all(|_, _| Ok::<_, Error>(())).unwrap();
    assert!(found.iter().zip(&find()).all(|(first, again)| Arc::ptr_eq(first, again)));
    assert_eq!(lazy.version(), version);
}
