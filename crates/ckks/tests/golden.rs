//! Files of every released format version, kept forever: they decode, mean what they meant, and
//! encode to the same bytes.
//!
//! A new version gets files of its own, by `cargo test -p hetal-ckks --test golden -- --ignored`,
//! which writes those that are missing and changes none.

#![allow(clippy::unwrap_used)]

use hetal_ckks::bytes::{self, Codec, Object};
use hetal_ckks::{
    Ciphertext, Complex64, EvaluationKeys, KeyId, LiftForm, Params, Plaintext, PublicKey, RotationSteps,
    RoundedCiphertext, SeededCiphertext, SwitchingKey,
};
use hetal_ring::{Basis, Isa, PackedPoly, Poly, RnsRing};
use hetal_testkit::{
    TestOwner, complex_vector, max_error, tiny_params, tiny_params_of_master_keys, tiny_params_of_two_kinds,
};
use std::collections::BTreeMap;
use std::path::PathBuf;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1").join(name)
}

/// The object in a file, which encodes to the bytes of the file.
fn golden<T: Object<RnsRing>>(codec: &Codec<RnsRing>, name: &str) -> T {
    let stored = std::fs::read(path(name)).unwrap();
    let object: T = codec.decode(&stored).unwrap();
    assert!(codec.encode(&object).unwrap() == stored, "{name} encodes to other bytes");
    object
}

/// The key set in a file, which encodes to the bytes of the file.
fn golden_set(codec: &Codec<RnsRing>, name: &str) -> EvaluationKeys<PackedPoly> {
    let stored = std::fs::read(path(name)).unwrap();
    let set = bytes::read_key_set(codec, &mut &stored[..]).unwrap();
    let mut again = Vec::new();
    bytes::write_key_set(codec, &set, &mut again).unwrap();
    assert!(again == stored, "{name} encodes to other bytes");
    set
}

/// The client whose objects the files are. Its secret is drawn first, whatever it makes later.
fn client() -> TestOwner {
    TestOwner::of(tiny_params(), 2026, Isa::detect())
}

/// The client of the set of keys to and from the sparse secret: those from it have fewer special
/// primes than others.
fn sparse_client() -> TestOwner {
    let client = TestOwner::of(tiny_params_of_two_kinds(), 2026, Isa::detect());
    assert!(client.params.special_for(1) < client.params.special_for(2));
    client
}

#[test]
fn version_1_is_still_read() {
    let client = client();
    let codec = client.codec();
    let values = complex_vector(client.params.slots(), 1);

    let stored = std::fs::read(path("params")).unwrap();
    let params = Params::from_bytes(&stored).unwrap();
    assert_eq!(params, *client.params);
    assert_eq!(params.to_bytes().unwrap(), stored);

    let plain: Plaintext<Poly> = golden(&codec, "plaintext");
    let again = client.evaluator.encode(&values, client.params.scale(0), plain.poly.basis()).unwrap();
    assert!(plain.poly.limbs().iter().zip(again.poly.limbs()).all(|(x, y)| x[..] == y[..]));

    let close = |ct: &Ciphertext<Poly>| max_error(&client.decrypt(ct), &values) < 1e-4;
    assert!(close(&golden(&codec, "ciphertext")));
    let seeded: SeededCiphertext<Poly> = golden(&codec, "seeded-ciphertext");
    assert!(close(&seeded.expand(&client.params, &*client.ring)));
    let public: PublicKey<Poly> = golden(&codec, "public-key");
    assert!(close(&client.encrypt_public(&public, &values, 0)));

    let rounded: RoundedCiphertext = golden(&codec, "rounded-ciphertext");
    assert_eq!((rounded.bits, rounded.log_bound, rounded.form), (30, 5, LiftForm::Complex));
    let mut expanded = rounded.expand(&client.params, &*client.ring);
    expanded.scale = client.params.scale(0);
    assert!(close(&expanded));

    let mut keys = EvaluationKeys::default();
    keys.insert(golden::<SwitchingKey<PackedPoly>>(&codec, "switching-key"));
    let turned = client.evaluator.automorphism(&client.encrypt(&values, 1), 5, &keys).unwrap();
    let mut rotated = values.clone();
    rotated.rotate_left(1);
    assert!(max_error(&client.decrypt(&turned), &rotated) < 1e-4);

    let set = golden_set(&codec, "key-set");
    let mut ids: Vec<KeyId> = set.iter().map(|key| key.id).collect();
    ids.sort();
    assert_eq!(ids, [KeyId::Relinearisation, KeyId::ToSparse, KeyId::FromSparse(1)]);
}

#[test]
fn version_1_keys_of_the_sparse_secret_still_raise_and_turn() {
    let client = sparse_client();
    let (evaluator, codec) = (&client.evaluator, client.codec());
    let keys = golden_set(&codec, "sparse-key-set");
    let shape = |id| keys.available().find(|(found, _)| *found == id).unwrap().1;
    assert_eq!(shape(KeyId::ToSparse), Basis { q: 1, p: 1 });
    assert_eq!([1, 5].map(|g| shape(KeyId::FromSparse(g))), [Basis { q: 2, p: 1 }; 2]);

    let mut values = complex_vector(client.params.slots(), 1);
    let ct = client.encrypt(&values, 0);
    let raised = || evaluator.raise_modulus(&ct, 2, &keys).unwrap();
    // What raising added is a multiple of q0, and gone modulo q0.
    let back = evaluator.truncated(&evaluator.leave_sparse_secret(raised(), &keys).unwrap(), 1).unwrap();
    assert!(max_error(&client.decrypt(&back), &values) < 1e-4);
    let rotation = BTreeMap::from([(1, vec![Complex64::ONE; values.len()])]);
    let basis = shape(KeyId::FromSparse(5));
    let steps = RotationSteps::inner(values.len());
    let matrix = evaluator.encode_matrix(&rotation, steps, evaluator.last_prime(2), basis).unwrap();
    let turned = evaluator.transform_raised(raised(), &matrix, &keys).unwrap();
    values.rotate_left(1);
    assert!(max_error(&client.decrypt(&turned), &values) < 1e-4);
}

/// The client of the set with master keys.
fn master_client() -> TestOwner {
    TestOwner::of(tiny_params_of_master_keys(), 2026, Isa::detect())
}

/// Keys that are derived from stored ones: they turn as their automorphism says.
#[test]
fn version_1_master_keys_still_derive() {
    let client = master_client();
    let (evaluator, all) = (&client.evaluator, client.params.chain().len());
    let mut keys = golden_set(&client.codec(), "master-key-set");
    client.derive_keys(&mut keys, &[5, 25, 125].map(|galois| (KeyId::FromSparse(galois), all)));
    let mut values = complex_vector(client.params.slots(), 1);
    let ct = client.encrypt(&values, 0);
    let raised = evaluator.raise_modulus(&ct, all, &keys).unwrap();
    let rotation = BTreeMap::from([(3, vec![Complex64::ONE; values.len()])]);
    let (steps, basis) = (RotationSteps::inner(values.len()), client.params.sparse_key_basis());
    let matrix = evaluator.encode_matrix(&rotation, steps, evaluator.last_prime(all), basis).unwrap();
    let turned = evaluator.transform_raised(raised, &matrix, &keys).unwrap();
    values.rotate_left(3);
    assert!(max_error(&client.decrypt(&turned), &values) < 1e-4);
}

#[test]
#[ignore = "writes the files of a new format version"]
fn write_missing_files() {
    let client = client();
    let codec = client.codec();
    let values = complex_vector(client.params.slots(), 1);
    let write = |name: &str, bytes: Vec<u8>| {
        std::fs::create_dir_all(path("")).unwrap();
        if !path(name).exists() {
            std::fs::write(path(name), bytes).unwrap();
        }
    };
    write("params", client.params.to_bytes().unwrap());
    let plain = client.evaluator.encode(&values, client.params.scale(0), Basis { q: 1, p: 1 }).unwrap();
    write("plaintext", codec.encode(&plain).unwrap());
    write("ciphertext", codec.encode(&client.encrypt(&values, 0)).unwrap());
    write("seeded-ciphertext", codec.encode(&client.encrypt_seeded(&values, 0)).unwrap());
    write("public-key", codec.encode(&client.public_key(1)).unwrap());
    let coefficients = client.evaluator.encoder().encode(&values, client.params.scale(0)).unwrap();
    let rounded = client.encrypt_rounded(&coefficients, 5, LiftForm::Complex);
    write("rounded-ciphertext", codec.encode(&rounded).unwrap());
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, [(KeyId::Galois(5), 2)]);
    write("switching-key", codec.encode(&**keys.iter().next().unwrap()).unwrap());
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, [(KeyId::Relinearisation, 1), (KeyId::ToSparse, 1), (KeyId::FromSparse(1), 2)]);
    let mut set = Vec::new();
    bytes::write_key_set(&codec, &keys, &mut set).unwrap();
    write("key-set", set);

    let client = sparse_client();
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, [(KeyId::ToSparse, 1), (KeyId::FromSparse(1), 2), (KeyId::FromSparse(5), 2)]);
    let mut set = Vec::new();
    bytes::write_key_set(&client.codec(), &keys, &mut set).unwrap();
    write("sparse-key-set", set);

    let client = master_client();
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, [(KeyId::ToSparse, 1), (KeyId::FromSparse(5), 2), (KeyId::Master(5), 2)]);
    let mut set = Vec::new();
    bytes::write_key_set(&client.codec(), &keys, &mut set).unwrap();
    write("master-key-set", set);
}
