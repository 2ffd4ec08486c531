//! Plaintexts, ciphertexts and public keys.

use super::envelope::Fields;
use super::{Codec, EnvelopeReader, EnvelopeWriter, Object, ObjectKind, Result, in_range, poly_len, total_len};
use crate::{Backend, Ciphertext, Params, Plaintext, PublicKey, SeededCiphertext};
use hetal_ring::Basis;
use hetal_ring::sampler::Seed;
use std::io::{Read, Write};

/// What is in front of the polynomials of a plaintext or ciphertext.
struct Preamble {
    basis: Basis,
    scale: f64,
}

impl Preamble {
    const LEN: usize = 16;

    fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&(self.basis.q as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.basis.p as u32).to_le_bytes());
        bytes[8..].copy_from_slice(&self.scale.to_bits().to_le_bytes());
        bytes
    }

    /// With at most `special` special primes.
    fn read<B: Backend, R: Read>(codec: &Codec<B>, special: usize, input: &mut EnvelopeReader<'_, R>) -> Result<Self> {
        let bytes: [u8; Self::LEN] = input.array("a polynomial's size and scale")?;
        let mut fields = Fields(&bytes);
        let q = codec.check_limbs(fields.u32())?;
        let p = in_range("special primes", fields.u32(), 0, special)?;
        Self { basis: Basis { q, p }, scale: fields.f64() }.checked(codec)
    }

    fn checked<B: Backend>(self, codec: &Codec<B>) -> Result<Self> {
        codec.check_limbs(self.basis.q as u32)?;
        codec.check_scale(self.scale, self.basis)?;
        Ok(self)
    }
}

impl<B: Backend> Object<B> for Plaintext<B::Poly> {
    const KIND: ObjectKind = ObjectKind::Plaintext;

    fn body_len(&self, codec: &Codec<B>) -> Result<u64> {
        let basis = Preamble { basis: B::basis(&self.poly), scale: self.scale }.checked(codec)?.basis;
        Ok(Preamble::LEN as u64 + codec.poly_len(basis))
    }

    fn write_body<W: Write>(&self, codec: &Codec<B>, out: &mut EnvelopeWriter<'_, W>) -> Result<()> {
        out.bytes(&Preamble { basis: B::basis(&self.poly), scale: self.scale }.to_bytes())?;
        codec.write_poly(&self.poly, out)
    }

    fn read_body<R: Read>(codec: &Codec<B>, input: &mut EnvelopeReader<'_, R>) -> Result<Self> {
        let Preamble { basis, scale } = Preamble::read(codec, codec.params.special().len(), input)?;
        input.require_len(Preamble::LEN as u64 + codec.poly_len(basis))?;
        Ok(Self { poly: codec.read_poly(basis, input)?, scale })
    }
}

fn ciphertext_body(params: &Params, basis: Basis) -> u64 {
    Preamble::LEN as u64 + 2 * poly_len(params, basis)
}

fn seeded_body(params: &Params, basis: Basis) -> u64 {
    (Preamble::LEN + 32) as u64 + poly_len(params, basis)
}

/// Bytes of a ciphertext of some limbs.
pub fn ciphertext_len(params: &Params, limbs: usize) -> u64 {
    total_len(ciphertext_body(params, Basis { q: limbs, p: 0 }))
}

/// Bytes of a freshly encrypted ciphertext of some limbs, its uniform half a seed.
pub fn seeded_ciphertext_len(params: &Params, limbs: usize) -> u64 {
    total_len(seeded_body(params, Basis { q: limbs, p: 0 }))
}

impl<B: Backend> Object<B> for Ciphertext<B::Poly> {
    const KIND: ObjectKind = ObjectKind::Ciphertext;

    fn body_len(&self, codec: &Codec<B>) -> Result<u64> {
        let basis = Preamble { basis: B::basis(&self.c0), scale: self.scale }.checked(codec)?.basis;
        Ok(ciphertext_body(&codec.params, basis))
    }

    fn write_body<W: Write>(&self, codec: &Codec<B>, out: &mut EnvelopeWriter<'_, W>) -> Result<()> {
        out.bytes(&Preamble { basis: B::basis(&self.c0), scale: self.scale }.to_bytes())?;
        codec.write_poly(&self.c0, out)?;
        codec.write_poly(&self.c1, out)
    }

    fn read_body<R: Read>(codec: &Codec<B>, input: &mut EnvelopeReader<'_, R>) -> Result<Self> {
        let Preamble { basis, scale } = Preamble::read(codec, 0, input)?;
        input.require_len(ciphertext_body(&codec.params, basis))?;
        let c0 = codec.read_poly(basis, input)?;
        Ok(Self { c0, c1: codec.read_poly(basis, input)?, limbs: basis.q, scale, set: codec.params().tag() })
    }
}

impl<B: Backend> Object<B> for SeededCiphertext<B::Poly> {
    const KIND: ObjectKind = ObjectKind::SeededCiphertext;

    fn body_len(&self, codec: &Codec<B>) -> Result<u64> {
        let basis = Preamble { basis: B::basis(&self.c0), scale: self.scale }.checked(codec)?.basis;
        Ok(seeded_body(&codec.params, basis))
    }

    fn write_body<W: Write>(&self, codec: &Codec<B>, out: &mut EnvelopeWriter<'_, W>) -> Result<()> {
        out.bytes(&Preamble { basis: B::basis(&self.c0), scale: self.scale }.to_bytes())?;
        out.bytes(&self.seed.0)?;
        codec.write_poly(&self.c0, out)
    }

    fn read_body<R: Read>(codec: &Codec<B>, input: &mut EnvelopeReader<'_, R>) -> Result<Self> {
        let Preamble { basis, scale } = Preamble::read(codec, 0, input)?;
        input.require_len(seeded_body(&codec.params, basis))?;
        let seed = Seed(input.array("a seed")?);
        Ok(Self { c0: codec.read_poly(basis, input)?, seed, scale })
    }
}

/// Bytes in front of a public key's polynomial: its limbs, four zeros and its seed.
const PUBLIC_KEY_FIXED: usize = 40;

impl<B: Backend> Object<B> for PublicKey<B::Poly> {
    const KIND: ObjectKind = ObjectKind::PublicKey;

    fn body_len(&self, codec: &Codec<B>) -> Result<u64> {
        Ok(PUBLIC_KEY_FIXED as u64 + codec.poly_len(B::basis(&self.b)))
    }

    fn write_body<W: Write>(&self, codec: &Codec<B>, out: &mut EnvelopeWriter<'_, W>) -> Result<()> {
        let mut fixed = [0; PUBLIC_KEY_FIXED];
        fixed[..4].copy_from_slice(&(B::basis(&self.b).q as u32).to_le_bytes());
        fixed[8..].copy_from_slice(&self.seed.0);
        out.bytes(&fixed)?;
        codec.write_poly(&self.b, out)
    }

    fn read_body<R: Read>(codec: &Codec<B>, input: &mut EnvelopeReader<'_, R>) -> Result<Self> {
        let bytes: [u8; PUBLIC_KEY_FIXED] = input.array("a public key")?;
        let mut fields = Fields(&bytes);
        let basis = Basis { q: codec.check_limbs(fields.u32())?, p: 0 };
        fields.zeros::<4>("a public key")?;
        let seed = Seed(fields.take());
        input.require_len(PUBLIC_KEY_FIXED as u64 + codec.poly_len(basis))?;
        let b = codec.read_poly(basis, input)?;
        Ok(Self { b, a: codec.expand_seed(&seed, 0, basis), seed })
    }
}
