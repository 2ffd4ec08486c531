//! Known answers: fixed seeds give these bytes, on every instruction set this machine has and with
//! one thread or two.
//!
//! A change of the scheme (parameters, order of random streams, rounding, the bootstrap's matrices)
//! changes answers; a change for speed must not. The failing test prints the new table.

#![allow(clippy::unwrap_used)]

use hetal_circuits::bootstrap::{self, BootstrapBounds, lift};
use hetal_circuits::{Bootstrapper, KeyPlan, encrypted};
use hetal_ckks::bytes::{self, KeySetFile, Object};
use hetal_ckks::{Complex64, EvaluationKeys, KeyId, LiftForm};
use hetal_ring::{Isa, RnsRing};
use hetal_testkit::{TempDir, TestOwner, complex_vector};

const ANSWERS: [(&str, &str); 18] = [
    ("relinearisation key", "2c06b1fba51ec27c281efaa85bb9941c"),
    ("Galois key", "671c7aaa73ab7dfbe00033eeb231476f"),
    ("seeded ciphertext", "6db8cdd6c6a5b08b76c78dd0cc17d9c8"),
    ("public-key ciphertext", "c7107a48576c5ad6c8d3fa80669ba09c"),
    ("product", "94d1cb3b5c2b2a945c7eab8ecd4e12d0"),
    ("rotation", "595ba986b8acd666466882d2a76588aa"),
    ("bootstrapping keys", "17bffe25325dc851271bb84e7c54f122"),
    ("bootstrap", "a999398aa216cd1cf8eae42cc47e42b8"),
    ("periodic bootstrap", "7ee6ef1eea284162c379b0cb68051d1a"),
    ("rounded ciphertext", "04682aeb1d2f3f7491e311f7288d529c"),
    ("lift", "d9de2b8e03c898382fb1b81a1854651e"),
    ("real lift", "5ddfea0fd34e716f8473bafc73afac05"),
    ("balanced bootstrap", "5201873c014b484a106259fb5fb445e9"),
    ("balanced periodic bootstrap", "da64e6dc32e4288d8544222058b3f488"),
    ("small bootstrap", "def3c0b3fb80c696eba42923905eff12"),
    ("small periodic bootstrap", "62fb45648aa5e9afb94e52d20e9be022"),
    ("keys with a master key", "46c4f335b088c5e6eeae644349ca3f35"),
    ("bootstrap with derived keys", "7adb9040ef18ca9ad26734f06a2507dd"),
];

/// The first 16 bytes of the hash.
fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..32].to_owned()
}

fn answers(isa: Isa) -> Vec<(&'static str, String)> {
    let client = TestOwner::with_isa("insecure-toy11", 7, isa);
    let (codec, evaluator) = (client.codec(), &client.evaluator);
    let mut out = Vec::new();
    fn add<T: Object<RnsRing>>(
        out: &mut Vec<(&'static str, String)>,
        client: &TestOwner,
        name: &'static str,
        object: &T,
    ) {
        out.push((name, digest(&client.codec().encode(object).unwrap())));
    }

    let limbs = client.params.limbs(9);
    let basis = client.params.key_basis(limbs);
    let mut keys = EvaluationKeys::default();
    let galois = evaluator.galois_of_rotation(3);
    client.add_keys(&mut keys, [(KeyId::Relinearisation, limbs), (KeyId::Galois(galois), limbs)]);
    add(&mut out, &client, "relinearisation key", &**keys.find(KeyId::Relinearisation, basis).unwrap());
    add(&mut out, &client, "Galois key", &**keys.find(KeyId::Galois(galois), basis).unwrap());

    let (u, v) = (complex_vector(client.params.slots(), 1), complex_vector(client.params.slots(), 2));
    let seeded = client.encrypt_seeded(&u, 9);
    add(&mut out, &client, "seeded ciphertext", &seeded);
    let a = seeded.expand(&client.params, &*client.ring);
    let b = client.encrypt_public(&client.public_key(limbs), &v, 9);
    add(&mut out, &client, "public-key ciphertext", &b);
    add(&mut out, &client, "product", &evaluator.sum_of_products(&[(&a, &b)], &keys).unwrap());
    add(&mut out, &client, "rotation", &evaluator.automorphism(&a, galois, &keys).unwrap());

    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, bootstrap::keys(&client.params));
    let mut set = Vec::new();
    bytes::write_key_set(&codec, &keys, &mut set).unwrap();
    out.push(("bootstrapping keys", digest(&set)));
    let bounds = BootstrapBounds { periodic: [(256, 0)].into(), ..BootstrapBounds::from(&[0]) };
    let bootstrapper = Bootstrapper::new(evaluator, &bounds).unwrap();
    let fresh = bootstrapper.bootstrap(evaluator, &client.encrypt(&u, 0), 0, &keys).unwrap();
    add(&mut out, &client, "bootstrap", &fresh);
    let repeating: Vec<Complex64> = (0..u.len()).map(|i| u[i % 256].re.into()).collect();
    let fresh = bootstrapper.bootstrap_periodic(evaluator, &client.encrypt(&repeating, 0), 256, 0, &keys).unwrap();
    add(&mut out, &client, "periodic bootstrap", &fresh);
    for (name, form) in [("lift", LiftForm::Complex), ("real lift", LiftForm::Real)] {
        let rounded = client.encrypt_rounded(&lift::coefficients(&client.params, &u, 2, form).unwrap(), 2, form);
        let unlifted = rounded.expand(&client.params, &*client.ring);
        let lifted = match form {
            LiftForm::Complex => {
                add(&mut out, &client, "rounded ciphertext", &rounded);
                bootstrapper.lift(evaluator, &unlifted, 2, &keys)
            }
            LiftForm::Real => bootstrapper.lift_real(evaluator, &unlifted, 2, &keys),
        };
        add(&mut out, &client, name, &lifted.unwrap());
    }
    for (plan, names) in [
        (KeyPlan::Balanced, ["balanced bootstrap", "balanced periodic bootstrap"]),
        (KeyPlan::Small, ["small bootstrap", "small periodic bootstrap"]),
    ] {
        let mut keys = EvaluationKeys::default();
        client.add_keys(&mut keys, bootstrap::keys_with_plan(&client.params, plan));
        let bootstrapper = Bootstrapper::with_plan(evaluator, &bounds, plan).unwrap();
        let fresh = bootstrapper.bootstrap(evaluator, &client.encrypt(&u, 0), 0, &keys).unwrap();
        add(&mut out, &client, names[0], &fresh);
        let fresh = bootstrapper.bootstrap_periodic(evaluator, &client.encrypt(&repeating, 0), 256, 0, &keys).unwrap();
        add(&mut out, &client, names[1], &fresh);
    }
    let wanted = bootstrap::keys_with_plan(&client.params, KeyPlan::Balanced);
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, encrypted::sent_keys(&client.params, &wanted, KeyPlan::Balanced));
    let mut set = Vec::new();
    bytes::write_key_set(&codec, &keys, &mut set).unwrap();
    out.push(("keys with a master key", digest(&set)));
    client.derive_keys(&mut keys, &wanted);
    let bootstrapper = Bootstrapper::with_plan(evaluator, &bounds, KeyPlan::Balanced).unwrap();
    let fresh = bootstrapper.bootstrap(evaluator, &client.encrypt(&u, 0), 0, &keys).unwrap();
    add(&mut out, &client, "bootstrap with derived keys", &fresh);
    out
}

#[test]
fn the_same_bytes_on_every_instruction_set_and_any_number_of_threads() {
    let expected = ANSWERS.map(|(name, hash)| (name, hash.to_owned()));
    for isa in Isa::available() {
        for threads in [1, 2] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let found = pool.install(|| answers(isa));
            let table: String = found.iter().map(|(name, hash)| format!("    (\"{name}\", \"{hash}\"),\n")).collect();
            assert_eq!(found, expected, "{} with {threads} threads gives\n{table}", isa.name());
        }
    }
}

#[test]
fn keys_loaded_from_a_file_as_they_are_needed_give_the_same_bootstrap() {
    let client = TestOwner::new("insecure-toy11", 8);
    let (codec, evaluator) = (client.codec(), &client.evaluator);
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, bootstrap::keys(&client.params));
    let dir = TempDir::new();
    let path = dir.path().join("keys");
    bytes::write_key_set(&codec, &keys, &mut std::fs::File::create(&path).unwrap()).unwrap();
    let stored = std::fs::metadata(&path).unwrap().len();
    assert_eq!(stored, bytes::key_set_len(&client.params, &bootstrap::keys(&client.params)).unwrap());

    let lazy = EvaluationKeys::with_source(Box::new(KeySetFile::open(&codec, &path).unwrap()));
    let bootstrapper = Bootstrapper::new(evaluator, &[0]).unwrap();
    let ct = client.encrypt(&complex_vector(client.params.slots(), 1), 0);
    let [a, b] = [&keys, &lazy].map(|keys| bootstrapper.bootstrap(evaluator, &ct, 0, keys).unwrap());
    assert!(codec.encode(&a).unwrap() == codec.encode(&b).unwrap());
    assert_eq!(lazy.iter().count(), keys.iter().count(), "a bootstrap needs all of its keys");
}
