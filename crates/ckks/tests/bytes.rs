//! Every kind of object through its bytes and back, and every way in which bytes can be wrong.

#![allow(clippy::unwrap_used)]

use hetal_ckks::bytes::{self, Codec, FormatError, HEADER_LEN, KeySetReader, Object, ObjectKind, VERSION};
use hetal_ckks::{Ciphertext, EvaluationKeys, KeyId, Params, SwitchingKey};
use hetal_ring::{Basis, PackedPoly, Poly, RnsRing};
use hetal_testkit::samples::{Samples, fix_checksums};
use hetal_testkit::{TestOwner, complex_vector, max_error, tiny_params};
use proptest::prelude::*;

/// The bytes of an object, after checking that they and their length come back.
fn round_trip<T: Object<RnsRing>>(codec: &Codec<RnsRing>, object: &T) -> T {
    let bytes = codec.encode(object).unwrap();
    assert_eq!(bytes.len() as u64, codec.len(object).unwrap());
    let back: T = codec.decode(&bytes).unwrap();
    assert!(codec.encode(&back).unwrap() == bytes);
    // In a stream, what follows the object stays there.
    let mut stream = &[&bytes[..], b"next"].concat()[..];
    codec.read::<T>(&mut stream).unwrap();
    assert_eq!(stream, b"next");
    back
}

fn same(a: &Poly, b: &Poly) -> bool {
    a.basis() == b.basis() && a.limbs().iter().zip(b.limbs()).all(|(x, y)| x[..] == y[..])
}

#[test]
fn parameter_sets_come_back() {
    for params in
        ["full", "small", "insecure-toy11"].map(|name| Params::named(name).unwrap()).iter().chain([&tiny_params()])
    {
        assert!(Params::from_bytes(&params.to_bytes().unwrap()).unwrap() == *params);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn messages_come_back(set in 0usize..2, level in 0usize..=13, special in 0usize..=7, salt: u64) {
        let client = TestOwner::new(["insecure-toy11", "insecure-toy12"][set], salt);
        let (codec, params) = (client.codec(), &client.params);
        let values = complex_vector(params.slots(), salt);

        let basis = Basis { q: params.limbs(level), p: special };
        let plain = client.evaluator.encode(&values, params.scale(level), basis).unwrap();
        let back = round_trip(&codec, &plain);
        prop_assert!(same(&back.poly, &plain.poly) && back.scale == plain.scale);

        let full = client.encrypt(&values, level);
        let back = round_trip(&codec, &full);
        prop_assert!(same(&back.c0, &full.c0) && same(&back.c1, &full.c1));
        prop_assert_eq!((back.limbs, back.scale), (full.limbs, full.scale));

        let seeded = client.encrypt_seeded(&values, level);
        prop_assert!(codec.len(&seeded).unwrap() < codec.len(&full).unwrap() / 2 + 200);
        let back = round_trip(&codec, &seeded).expand(params, &*client.ring);
        prop_assert!(max_error(&client.decrypt(&back), &values) < 1e-7);

        let public = client.public_key(params.limbs(level));
        let back = round_trip(&codec, &public);
        prop_assert!(same(&back.a, &public.a) && same(&back.b, &public.b));
    }
}

#[test]
fn switching_keys_come_back_with_both_halves() {
    for set in ["insecure-toy11", "insecure-toy12"] {
        let client = TestOwner::new(set, 5);
        let mut keys = EvaluationKeys::default();
        let top = client.params.chain().len();
        let wanted = [
            (KeyId::Relinearisation, 17),
            (KeyId::Galois(5), top),
            (KeyId::Galois(3), 4),
            (KeyId::ToSparse, 1),
            (KeyId::FromSparse(1), top),
            (KeyId::FromSparse(5), top),
            (KeyId::Master(5), top),
        ];
        client.add_keys(&mut keys, wanted);
        for key in keys.iter() {
            let key: &SwitchingKey<PackedPoly> = key;
            let back = round_trip(&client.codec(), key);
            assert_eq!((back.id, back.basis), (key.id, key.basis));
            let same = |x: &PackedPoly, y: &PackedPoly| same(&client.ring.unpack(x), &client.ring.unpack(y));
            assert!(back.digits.iter().zip(&key.digits).all(|(x, y)| same(&x.0, &y.0) && same(&x.1, &y.1)));
        }
    }
}

/// The error for an object with some bytes replaced and its checksums made right again.
fn edited(samples: &Samples, kind: ObjectKind, at: usize, new: &[u8]) -> FormatError {
    let mut bytes = samples.of(kind).to_vec();
    bytes[at..at + new.len()].copy_from_slice(new);
    fix_checksums(kind, &mut bytes);
    samples.read(kind, &bytes).unwrap_err()
}

#[test]
fn every_kind_is_refused_where_another_is_expected() {
    let samples = Samples::new();
    for (kind, bytes) in &samples.bytes {
        for expected in ObjectKind::ALL {
            match samples.read(expected, bytes) {
                Ok(_) => assert_eq!(*kind, expected),
                Err(error) => assert_eq!(error, FormatError::ObjectKind { found: *kind as u16, expected }),
            }
        }
    }
}

#[test]
fn every_truncation_and_every_damaged_byte_is_noticed() {
    let samples = Samples::new();
    for (kind, bytes) in &samples.bytes {
        let step = bytes.len() / 400 + 1;
        for len in (0..bytes.len()).step_by(step).chain(bytes.len() - 33..bytes.len()) {
            let error = samples.read(*kind, &bytes[..len]).unwrap_err();
            assert!(matches!(error, FormatError::Truncated { .. }), "{kind} cut to {len}: {error}");
        }
        for at in (0..HEADER_LEN + 64).chain((0..bytes.len()).step_by(step)).chain(bytes.len() - 33..bytes.len()) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            assert!(samples.read(*kind, &damaged).is_err(), "{kind} damaged at {at}");
        }
    }
}

#[test]
fn headers_say_what_is_wrong() {
    let samples = Samples::new();
    for kind in ObjectKind::ALL {
        assert!(matches!(edited(&samples, kind, 0, b"\x89PNG\r\n\x1a\n"), FormatError::Magic { .. }));
        assert_eq!(edited(&samples, kind, 8, &[2, 0]), FormatError::Version { found: 2, known: VERSION });
        assert_eq!(edited(&samples, kind, 10, &[99, 0]), FormatError::ObjectKind { found: 99, expected: kind });
        assert_eq!(edited(&samples, kind, 13, &[1]), FormatError::Reserved { part: "the header" });
        assert!(matches!(edited(&samples, kind, 24, &[7; 32]), FormatError::Params { .. }));
        for declared in [0, 1, u64::MAX, 1 << 40] {
            let error = edited(&samples, kind, 16, &declared.to_le_bytes());
            assert!(matches!(error, FormatError::Length { declared: d, .. } if d == declared), "{kind}: {error}");
        }
    }
    let toy = TestOwner::new("insecure-toy11", 1);
    let foreign = toy.codec().decode::<Ciphertext<_>>(samples.of(ObjectKind::Ciphertext)).err().unwrap();
    assert!(matches!(foreign, FormatError::Params { .. }), "{foreign}");
}

#[test]
fn bodies_say_what_is_wrong() {
    let samples = Samples::new();
    let error = |kind, at: usize, new: &[u8]| edited(&samples, kind, HEADER_LEN + at, new);
    for kind in [ObjectKind::Plaintext, ObjectKind::Ciphertext, ObjectKind::SeededCiphertext, ObjectKind::PublicKey] {
        for limbs in [0, 3, u32::MAX] {
            assert!(
                matches!(error(kind, 0, &limbs.to_le_bytes()), FormatError::Primes { found, .. } if found == limbs)
            );
        }
        // A possible number of primes, but not the one that the declared length is for.
        assert!(matches!(error(kind, 0, &2u32.to_le_bytes()), FormatError::Length { .. }));
    }
    for kind in [ObjectKind::Plaintext, ObjectKind::Ciphertext, ObjectKind::SeededCiphertext] {
        for scale in [0.0, -1.0, 0.5, f64::NAN, f64::INFINITY, 1e300] {
            assert!(matches!(error(kind, 8, &scale.to_le_bytes()), FormatError::Scale { .. }), "{kind} {scale}");
        }
        assert!(matches!(error(kind, 4, &9u32.to_le_bytes()), FormatError::Primes { what: "special primes", .. }));
    }
    assert!(matches!(error(ObjectKind::PublicKey, 4, &[1]), FormatError::Reserved { .. }));
    for (kind, at) in [
        (ObjectKind::Plaintext, 16),
        (ObjectKind::Ciphertext, 16),
        (ObjectKind::SeededCiphertext, 48),
        (ObjectKind::PublicKey, 40),
    ] {
        let prime = samples.client.params.chain()[0];
        let expected = FormatError::Residue { limb: 0, index: 0, prime };
        assert_eq!(error(kind, at, &[0xff; 5]), expected, "{kind}");
    }
}

#[test]
fn switching_keys_say_what_is_wrong() {
    let samples = Samples::new();
    let error = |at: usize, new: &[u8]| edited(&samples, ObjectKind::SwitchingKey, HEADER_LEN + at, new);
    for purpose in [0, 1, 3, 6, 255] {
        assert_eq!(error(0, &[purpose]), FormatError::Purpose { purpose, galois: 5 });
    }
    for galois in [0, 1, 4, 2049, u64::MAX] {
        assert_eq!(error(8, &galois.to_le_bytes()), FormatError::Purpose { purpose: 2, galois });
    }
    assert!(matches!(error(1, &[1]), FormatError::Reserved { .. }));
    for limbs in [0, 3, u32::MAX] {
        assert!(matches!(error(4, &limbs.to_le_bytes()), FormatError::Primes { .. }));
    }
    assert!(matches!(error(16, &2u32.to_le_bytes()), FormatError::Primes { what: "special primes", .. }));
    // To the sparse secret at one prime, where it is secure; from it to all primes.
    for (purpose, limbs) in [(3u8, 2u8), (4, 1)] {
        let name = [purpose, 0, 0, 0, limbs, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(matches!(error(0, &name), FormatError::Primes { what: "primes of the chain", .. }));
    }
    for digits in [0, 2, u32::MAX] {
        assert!(matches!(error(20, &digits.to_le_bytes()), FormatError::Digits { .. }));
    }
    assert!(matches!(error(56, &[0xff; 5]), FormatError::Residue { limb: 0, index: 0, .. }));
}

#[test]
fn master_keys_say_what_is_wrong() {
    let samples = Samples::of_master_keys();
    let error = |at: usize, new: &[u8]| edited(&samples, ObjectKind::SwitchingKey, HEADER_LEN + at, new);
    // A master key has all primes of the set, and its own digits.
    assert!(matches!(error(4, &1u32.to_le_bytes()), FormatError::Primes { found: 1, least: 2, most: 2, .. }));
    for special in [0, 1, 2, 4] {
        assert!(matches!(error(16, &u32::to_le_bytes(special)), FormatError::Primes { what: "special primes", .. }));
    }
    for digits in [0, 1, 3] {
        let found = error(20, &u32::to_le_bytes(digits));
        assert!(matches!(found, FormatError::Digits { key: KeyId::Master(5), expected: 2, .. }), "{found}");
    }
    for galois in [0, 1, 4, 2049] {
        assert_eq!(error(8, &u64::to_le_bytes(galois)), FormatError::Purpose { purpose: 5, galois });
    }
    // A set without master keys knows none.
    let small = Params::named("small").unwrap();
    let found = bytes::key_set_len(&small, &[(KeyId::Master(5), small.chain().len())]);
    assert_eq!(found, Err(FormatError::Purpose { purpose: 5, galois: 5 }));
}

/// What a server derived has no seed to write.
#[test]
fn derived_keys_are_not_written() {
    let client = TestOwner::new("insecure-toy11", 5);
    let (mut keys, all) = (EvaluationKeys::default(), client.params.chain().len());
    client.add_keys(&mut keys, [(KeyId::FromSparse(5), all), (KeyId::Master(5), all)]);
    client.derive_keys(&mut keys, &[(KeyId::FromSparse(25), all)]);
    let key = keys.find(KeyId::FromSparse(25), client.params.sparse_key_basis()).unwrap();
    let derived = FormatError::Derived { key: KeyId::FromSparse(25) };
    assert_eq!(client.codec().encode(&**key), Err(derived.clone()));
    assert_eq!(bytes::write_key_set(&client.codec(), &keys, &mut std::io::sink()), Err(derived));
}

#[test]
fn key_sets_say_what_is_wrong() {
    let samples = Samples::new();
    let bytes = samples.of(ObjectKind::KeySet);
    let error = |at: usize, new: &[u8]| edited(&samples, ObjectKind::KeySet, HEADER_LEN + at, new);
    for count in [4097, u64::MAX] {
        assert!(matches!(error(0, &count.to_le_bytes()), FormatError::Count { found, .. } if found == count));
    }
    assert!(matches!(error(0, &3u64.to_le_bytes()), FormatError::Length { .. }));
    let first = &bytes[HEADER_LEN + 8..HEADER_LEN + 24];
    assert!(matches!(error(24, first), FormatError::KeyOrder { .. }), "a key twice");
    // Two keys of one size in the other order: the table is sound, but not of these keys.
    let entry = |k: usize| &bytes[HEADER_LEN + 8 + 16 * k..][..16];
    assert_eq!((entry(1)[0], entry(2)[0], entry(1)[4], entry(2)[4]), (2, 3, 1, 1));
    let mut swapped = bytes.to_vec();
    swapped[HEADER_LEN + 24..HEADER_LEN + 56].copy_from_slice(&[entry(2), entry(1)].concat());
    fix_checksums(ObjectKind::KeySet, &mut swapped);
    let read = bytes::read_key_set(&samples.client.codec(), &mut &swapped[..]);
    assert!(matches!(read, Err(FormatError::KeyOrder { key: KeyId::Galois(5), .. })));
    let mut damaged = bytes.to_vec();
    damaged[HEADER_LEN + 8 + 5 * 16] ^= 1;
    assert_eq!(samples.read(ObjectKind::KeySet, &damaged), Err(FormatError::Checksum { part: "the table" }));
    assert!(matches!(error(8 + 5 * 16 + 32, b"x"), FormatError::Magic { .. }));
    let mut followed = bytes.to_vec();
    followed.push(0);
    let mut rest = &followed[..];
    bytes::read_key_set(&samples.client.codec(), &mut rest).unwrap();
    assert_eq!(rest.len(), 1);
}

#[test]
fn bytes_after_an_object_are_refused() {
    let samples = Samples::new();
    for kind in ObjectKind::ALL {
        let mut bytes = samples.of(kind).to_vec();
        bytes.extend([0; 3]);
        assert_eq!(samples.read(kind, &bytes), Err(FormatError::TrailingBytes { extra: 3 }));
    }
}

#[test]
fn a_parameter_set_that_lies_about_itself_is_refused() {
    let samples = Samples::new();
    let error = |at: usize, new: &[u8]| edited(&samples, ObjectKind::Params, HEADER_LEN + at, new);
    // One more nonzero coefficient of the secret: a valid set, but another one.
    assert!(matches!(error(8, &65u64.to_le_bytes()), FormatError::Params { .. }));
    for (at, value) in [(0, 64u64), (24, 1000), (64, 2), (72, 1), (72, u64::MAX)] {
        assert!(matches!(error(at, &value.to_le_bytes()), FormatError::InvalidParams { .. }), "{at}");
    }
    assert!(matches!(error(80, &65u32.to_le_bytes()), FormatError::Count { .. }));
    assert!(matches!(error(84, &65u32.to_le_bytes()), FormatError::Primes { .. }));
    assert!(matches!(error(104, &[0xff]), FormatError::Text));
    assert!(
        matches!(error(104, b"secure-----"), FormatError::InvalidParams { .. }),
        "under 128 bits and no longer says so"
    );
}

#[test]
fn key_sets_stream_one_key_at_a_time() {
    let samples = Samples::new();
    let bytes = samples.of(ObjectKind::KeySet);
    let codec = samples.client.codec();
    let mut input = bytes;
    let mut reader = KeySetReader::new(&codec, &mut input).unwrap();
    let listed: Vec<_> = reader.remaining().collect();
    assert_eq!(listed.len(), 5);
    for expected in listed {
        let key = reader.read().unwrap().unwrap();
        assert_eq!((key.id, key.basis.q), expected);
    }
    assert!(reader.read().unwrap().is_none());
    reader.finish().unwrap();
}

#[test]
fn lengths_are_known_before_anything_is_encrypted() {
    let client = TestOwner::of(tiny_params(), 1, hetal_ring::Isa::detect());
    let (params, codec) = (&client.params, client.codec());
    let values = vec![Default::default(); params.slots()];
    for level in 0..=params.top_level() {
        let limbs = params.limbs(level);
        let (whole, seeded) = (client.encrypt(&values, level), client.encrypt_seeded(&values, level));
        assert_eq!(codec.encode(&whole).unwrap().len() as u64, bytes::ciphertext_len(params, limbs));
        assert_eq!(codec.encode(&seeded).unwrap().len() as u64, bytes::seeded_ciphertext_len(params, limbs));
    }
}
