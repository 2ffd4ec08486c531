//! `Context`: what it computes and what it refuses.
#![allow(clippy::unwrap_used)]

use hetal::{BitSizes, Complex64, Context, Engine, Error, KeyRequirements, Params};
use std::sync::Arc;

fn toy() -> Context {
    Context::named("insecure-toy11").unwrap()
}

/// A set of bit sizes serves as well as a built-in one: encrypt, multiply, rotate, decrypt.
#[test]
fn a_set_of_bit_sizes_computes() {
    let context = Context::from_bits(&BitSizes::leveled("insecure-leveled", 11, 3, 35)).unwrap();
    let counts = context.dry_run(|engine, [a, b]| engine.rotate(&engine.mul(&a, &b)?, 1)).unwrap();
    let (secret, engine) = context.keygen(&counts.keys()).unwrap();
    let a = context.encrypt(&secret, &[1.0, 2.0, -3.0]).unwrap();
    let b = context.encrypt(&secret, &[5.0, 0.5, 2.0]).unwrap();
    let result = engine.rotate(&engine.mul(&a, &b).unwrap(), 1).unwrap();
    let values = context.decrypt(&secret, &result).unwrap().expose();
    for (found, exact) in values.iter().zip([1.0, -6.0, 0.0]) {
        assert!((found - exact).abs() < 1e-4, "{found} instead of {exact}");
    }
    assert!((values[context.slots() - 1] - 5.0).abs() < 1e-4);
}

#[test]
fn less_than_128_bits_is_refused() {
    let refused = Context::from_bits(&BitSizes::leveled("leveled", 11, 3, 35)).err().unwrap();
    assert!(matches!(refused, Error::Scheme(hetal::ckks::Error::Insecure { .. })), "{refused}");
}

/// A dry run asks for exactly the keys of the circuit; an engine without one of them says which is
/// missing.
#[test]
fn missing_keys_are_named() {
    let context = toy();
    let (secret, engine) = context.keygen(&KeyRequirements::default()).unwrap();
    let a = context.encrypt(&secret, &[1.0]).unwrap();
    let missing = engine.rotate(&a, 3).err().unwrap();
    assert!(matches!(missing, hetal::circuits::Error::MissingRotation { rotation: 3, .. }), "{missing}");
    let deep = context.dry_run(|engine, [a]| engine.drop_to(&a, 0).and_then(|a| engine.square(&a)));
    assert!(matches!(deep, Err(Error::Circuit(hetal::circuits::Error::OutOfLevels { .. }))));
}

#[test]
fn wrong_rings_lengths_and_levels_are_refused() {
    let context = toy();
    let other = Params::named("insecure-toy12").unwrap();
    let mixed = Context::with_ring(Arc::new(other), Arc::clone(context.ring())).err().unwrap();
    assert!(matches!(mixed, Error::Scheme(hetal::ckks::Error::WrongRing { .. })), "{mixed}");
    let secret = context.secret_key();
    assert!(context.encrypt(&secret, &vec![0.0; context.slots() + 1]).is_err());
    let slots = vec![Complex64::ZERO; context.slots()];
    assert!(context.encrypt_at(&secret, &slots, context.top_level() + 1).is_err());
    assert!(context.encrypt_at(&secret, &slots[1..], 0).is_err());
    // Another secret does not decrypt.
    let hidden = context.encrypt(&context.secret_key(), &[1.0; 8]).unwrap();
    let noise = context.decrypt(&secret, &hidden).unwrap().expose();
    assert!(noise.iter().any(|x| x.abs() > 1e3));
}
