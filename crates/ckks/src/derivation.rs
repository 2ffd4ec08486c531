//! Keys from the sparse secret that a server derives from one of them.
//!
//! The key from the sparse secret for `X -> X^g` is a pair `(b, a)` with `b + a s(X^(1/g)) = P s' +
//! e`. The *master key* for `X -> X^h` switches `a(X^g)` from `s` to a pair `(u0, u1)` under
//! `s(X^(1/h))`. With `r: X -> X^(1/g)`, the pair `(b + r(u0), r(u1))` is the key for `X ->
//! X^(gh)`: it has one noise more, that of a key-switch.
//!
//! ```text
//! primes of a set      q0 q1 ... qL | p0 p1 | p2 ... pk
//! key from the sparse secret          P       -
//! master key           ---- digits ---------  special
//! ```
//!
//! Keys are derived one after the other, each from the one before it: 31 steps at `full`, with six
//! digits. The largest digit has 252 bits and the special primes have 255, so that a step adds
//! noise of sigma `3.2 sqrt(N / 12) 2^-3`, which is 2^5. The last key has 2^7.5, and no coefficient
//! beyond 2^11. The operand of such a key has coefficients below 2^49, and its `P` is 2^102: only
//! noise of 2^46 in the key would be as large as the rounding.

use crate::{Backend, Error, EvaluationKeys, KeyId, Params, Result, SwitchingKey};
use hetal_ring::{Basis, Isa, PackedPoly, Poly, RnsRing, automorphism};
use std::collections::BTreeSet;

/// Derives the keys from the sparse secret that `wanted` names and `keys` does not have, and
/// removes the master key. The keys and their order follow from the two lists, their bytes from the
/// keys.
///
/// `progress` learns after each key how many are derived, of how many, and may end the derivation
/// with an error. Nothing is done if `keys` lacks none.
pub fn derive<B: Backend, E: From<Error>>(
    params: &Params,
    (backend, isa): (&B, Isa),
    keys: &mut EvaluationKeys<B::Packed>,
    wanted: &[(KeyId, usize)],
    mut progress: impl FnMut(usize, usize) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let available = keys.available().map(|(id, _)| id).collect();
    let Some(plan) = Plan::new(params, &available, wanted)? else { return Ok(()) };
    let ring = derivation_ring(params, isa)?;
    let master = Master::load(params, &ring, backend, keys, plan.master)?;
    let id = KeyId::FromSparse(plan.first);
    let first = keys.find(id, params.sparse_key_basis())?;
    let [(b, a)] = &first.digits[..] else { return Err(misshapen(id).into()) };
    let chain = Basis { p: 0, ..ring.full_basis() };
    let half = |half| fetched(&ring, backend, id, half, chain);
    let mut key = (half(b)?, half(a)?);
    let mut galois = plan.first;
    for (done, next) in plan.derived.iter().enumerate() {
        key = master.derive(&ring, key, galois);
        galois = *next;
        keys.insert(placed(params, backend, KeyId::FromSparse(galois), &key));
        progress(done + 1, plan.derived.len())?;
    }
    keys.remove(KeyId::Master(plan.master));
    Ok(())
}

/// Which key is derived from which.
struct Plan {
    master: u64,
    first: u64,
    /// In order, each from the one before it.
    derived: Vec<u64>,
}

impl Plan {
    /// `None` if no key is missing.
    fn new(params: &Params, available: &BTreeSet<KeyId>, wanted: &[(KeyId, usize)]) -> Result<Option<Self>> {
        let galois = |id: &KeyId| if let KeyId::FromSparse(galois) = id { Some(*galois) } else { None };
        let missing = wanted.iter().map(|(id, _)| id).filter(|id| !available.contains(id));
        let mut missing: BTreeSet<u64> = missing.filter_map(galois).collect();
        let Some(&example) = missing.first() else { return Ok(None) };
        let key = KeyId::FromSparse(example);
        key.require_security(params, params.chain().len())?;
        let given: Vec<u64> = available.iter().filter_map(galois).collect();
        let masters = available.iter().filter_map(|id| if let KeyId::Master(h) = id { Some(*h) } else { None });
        let (&[first], &[master]) = (&given[..], &masters.collect::<Vec<_>>()[..]) else {
            return Err(Error::Underivable {
                key,
                reason: "it takes one master key and one key from the sparse secret",
            });
        };
        let (mut derived, mut last) = (Vec::new(), first);
        while !missing.is_empty() {
            last = last * master % (2 * params.degree() as u64);
            if !missing.remove(&last) {
                return Err(Error::Underivable { key, reason: "the master key leads to other keys" });
            }
            derived.push(last);
        }
        Ok(Some(Self { master, first, derived }))
    }
}

/// The ring of a derivation: its chain are the primes of keys from the sparse secret, and its
/// special primes are the others. Limbs keep their order.
fn derivation_ring(params: &Params, isa: Isa) -> Result<RnsRing> {
    let (own, others) = params.special().split_at(params.sparse_key_basis().p);
    let chain: Vec<u64> = params.chain().iter().chain(own).copied().collect();
    let wrong = |q| Error::Params { name: params.name().to_owned(), reason: format!("{q} is no prime for its ring") };
    RnsRing::new(params.log_n(), &chain, others, isa).map_err(wrong)
}

fn misshapen(key: KeyId) -> Error {
    Error::Underivable { key, reason: "a key has other primes or digits than its parameters give" }
}

/// A polynomial of a key in the ring of a derivation. It must have the primes of `basis` there.
fn fetched<B: Backend>(ring: &RnsRing, backend: &B, id: KeyId, packed: &B::Packed, basis: Basis) -> Result<Poly> {
    let limbs = backend.download(&backend.unpack(packed))?;
    if limbs.len() != basis.limbs() {
        return Err(misshapen(id));
    }
    Ok(Backend::upload(ring, basis, &limbs.iter().map(Vec::as_slice).collect::<Vec<_>>()))
}

/// A derived key on a backend.
fn placed<B: Backend>(params: &Params, backend: &B, id: KeyId, (b, a): &(Poly, Poly)) -> SwitchingKey<B::Packed> {
    let basis = params.sparse_key_basis();
    let place = |poly: &Poly| {
        let limbs: Vec<&[u64]> = poly.limbs().iter().map(|limb| &limb[..]).collect();
        backend.pack(backend.upload(basis, &limbs))
    };
    SwitchingKey { id, basis, seed: None, digits: vec![(place(b), place(a))] }
}

/// A master key in the ring of a derivation.
struct Master {
    digits: Vec<(PackedPoly, PackedPoly)>,
    starts: Vec<usize>,
}

impl Master {
    fn load<B: Backend>(
        params: &Params,
        ring: &RnsRing,
        backend: &B,
        keys: &EvaluationKeys<B::Packed>,
        galois: u64,
    ) -> Result<Self> {
        let id = KeyId::Master(galois);
        id.require_security(params, params.chain().len())?;
        let key = keys.find(id, params.full_basis())?;
        let starts = params.master_digit_starts().to_vec();
        if key.basis != params.full_basis() || key.digits.len() != starts.len() || starts.is_empty() {
            return Err(misshapen(id));
        }
        let half = |half| fetched(ring, backend, id, half, ring.full_basis()).map(|poly| ring.pack(&poly));
        let digits = key.digits.iter().map(|(b, a)| Ok((half(b)?, half(a)?))).collect::<Result<_>>()?;
        Ok(Self { digits, starts })
    }

    /// The key for `X -> X^(gh)` from the key `(b, a)` for `X -> X^g`, where `h` is that of the
    /// master key.
    fn derive(&self, ring: &RnsRing, (b, a): (Poly, Poly), g: u64) -> (Poly, Poly) {
        let turned = ring.automorphism(&a, g);
        drop(a);
        let digits = ring.decompose_for_one_use(turned, &self.starts, ring.full_basis().p);
        let u = ring.inner_product(&digits, &self.digits);
        let (mut u0, u1) = ring.divide_pair(u, 0, automorphism::inverse(ring.log_n(), g));
        ring.add_assign(&mut u0, &b);
        (u0, u1)
    }
}
