//! Switching keys: the names of their purposes, and their halves that are not seeds.

use super::envelope::Fields;
use super::{
    Codec, EnvelopeReader, EnvelopeWriter, FormatError, Object, ObjectKind, Result, in_range, poly_len, total_len,
};
use crate::{Backend, KeyId, Params, SwitchingKey};
use hetal_ring::Basis;
use hetal_ring::sampler::Seed;
use std::io::{Read, Write};

/// A purpose and a size: what tells the keys of a set apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct KeyName {
    pub(super) id: KeyId,
    pub(super) limbs: usize,
}

impl KeyName {
    pub(super) const LEN: usize = 16;

    /// The name of a key there can be.
    pub(super) fn new(params: &Params, id: KeyId, limbs: usize) -> Result<Self> {
        Self::parse(params, &Self { id, limbs }.to_bytes())
    }

    pub(super) fn of<P>(key: &SwitchingKey<P>) -> Self {
        Self { id: key.id, limbs: key.basis.q }
    }

    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let (purpose, galois) = match self.id {
            KeyId::Relinearisation => (1, 0),
            KeyId::Galois(galois) => (2, galois),
            KeyId::ToSparse => (3, 0),
            KeyId::FromSparse(1) => (4, 0),
            KeyId::FromSparse(galois) => (4, galois),
            KeyId::Master(galois) => (5, galois),
        };
        let mut bytes = [0; Self::LEN];
        bytes[0] = purpose;
        bytes[4..8].copy_from_slice(&(self.limbs as u32).to_le_bytes());
        bytes[8..].copy_from_slice(&galois.to_le_bytes());
        bytes
    }

    pub(super) fn parse(params: &Params, bytes: &[u8; Self::LEN]) -> Result<Self> {
        let mut fields = Fields(bytes);
        let purpose = fields.u8();
        fields.zeros::<3>("a key's purpose")?;
        let limbs = fields.u32();
        let galois = fields.u64();
        let is_galois = |g: u64| g % 2 == 1 && g > 1 && g < 2 * params.degree() as u64;
        let id = match (purpose, galois) {
            (1, 0) => KeyId::Relinearisation,
            (2, g) if is_galois(g) => KeyId::Galois(g),
            (3, 0) => KeyId::ToSparse,
            (4, 0) => KeyId::FromSparse(1),
            (4, g) if is_galois(g) => KeyId::FromSparse(g),
            (5, g) if is_galois(g) && !params.master_digit_starts().is_empty() => KeyId::Master(g),
            _ => return Err(FormatError::Purpose { purpose, galois }),
        };
        let all = params.chain().len();
        // The sparse secret is secure under one prime only; the way back is always to all of them,
        // and so are the keys that others are derived with.
        let (least, most) = match id {
            KeyId::ToSparse => (1, 1),
            KeyId::FromSparse(_) | KeyId::Master(_) => (all, all),
            _ => (1, all),
        };
        Ok(Self { id, limbs: in_range("primes of the chain", limbs, least, most)? })
    }

    /// The primes and the number of digits of such a key.
    pub(super) fn shape(self, params: &Params) -> (Basis, usize) {
        (self.id.basis(params, self.limbs), self.id.digit_starts(params, self.limbs).len())
    }

    /// Bytes of the body of such a key.
    fn body_len(self, params: &Params) -> u64 {
        let (basis, digits) = self.shape(params);
        FIXED as u64 + digits as u64 * poly_len(params, basis)
    }

    /// Bytes of such a key.
    pub(super) fn total_len(self, params: &Params) -> u64 {
        total_len(self.body_len(params))
    }
}

/// Bytes in front of the digits: name, special primes, digits, seed.
const FIXED: usize = KeyName::LEN + 8 + 32;

impl<B: Backend> Object<B> for SwitchingKey<B::Packed> {
    const KIND: ObjectKind = ObjectKind::SwitchingKey;

    fn body_len(&self, codec: &Codec<B>) -> Result<u64> {
        let name = KeyName::new(&codec.params, self.id, self.basis.q)?;
        check_shape(&codec.params, name, self.basis.p as u32, self.digits.len())?;
        self.require_seed()?;
        Ok(name.body_len(&codec.params))
    }

    fn write_body<W: Write>(&self, codec: &Codec<B>, out: &mut EnvelopeWriter<'_, W>) -> Result<()> {
        out.bytes(&KeyName::of(self).to_bytes())?;
        out.bytes(&(self.basis.p as u32).to_le_bytes())?;
        out.bytes(&(self.digits.len() as u32).to_le_bytes())?;
        out.bytes(&self.require_seed()?.0)?;
        self.digits.iter().try_for_each(|(b, _)| codec.write_poly(&codec.backend.unpack(b), out))
    }

    fn read_body<R: Read>(codec: &Codec<B>, input: &mut EnvelopeReader<'_, R>) -> Result<Self> {
        let bytes: [u8; FIXED] = input.array("a switching key")?;
        let mut fields = Fields(&bytes);
        let name = KeyName::parse(&codec.params, &fields.take())?;
        let (special, digits) = (fields.u32(), fields.u32());
        let basis = check_shape(&codec.params, name, special, digits as usize)?;
        let seed = Seed(fields.take());
        input.require_len(name.body_len(&codec.params))?;
        let digits = (0..digits)
            .map(|digit| {
                let pack = |poly| codec.backend.pack(poly);
                let read = || codec.read_poly(basis, input).map(pack);
                let (b, a) = side_by_side(read, || pack(codec.expand_seed(&seed, digit, basis)));
                Ok((b?, a))
            })
            .collect::<Result<_>>()?;
        Ok(Self { id: name.id, basis, seed: Some(seed), digits })
    }
}

impl<P> SwitchingKey<P> {
    /// The seed, without which a key cannot be written.
    fn require_seed(&self) -> Result<&Seed> {
        self.seed.as_ref().ok_or(FormatError::Derived { key: self.id })
    }
}

fn check_shape(params: &Params, name: KeyName, special: u32, digits: usize) -> Result<Basis> {
    let (basis, expected) = name.shape(params);
    in_range("special primes", special, basis.p, basis.p)?;
    if digits != expected {
        return Err(FormatError::Digits { key: name.id, found: digits, expected });
    }
    Ok(basis)
}

/// Runs both, on two threads where the user allows more than one.
///
/// Not by the thread pool: keys are loaded with a lock held, and a pool's thread that waits may
/// take up a task that needs the same lock.
fn side_by_side<X, Y: Send>(here: impl FnOnce() -> X, there: impl Fn() -> Y + Sync) -> (X, Y) {
    if rayon::current_num_threads() < 2 {
        return (here(), there());
    }
    std::thread::scope(|scope| {
        let Ok(other) = std::thread::Builder::new().spawn_scoped(scope, &there) else { return (here(), there()) };
        let x = here();
        match other.join() {
            Ok(y) => (x, y),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
