//! Rounded ciphertexts.

use super::envelope::Fields;
use super::{
    Codec, EnvelopeReader, EnvelopeWriter, FormatError, Object, ObjectKind, Result, in_range, packing, total_len,
};
use crate::rounded::q0_bits;
use crate::{Backend, LiftForm, Params, ROUNDED_BITS_RANGE, RoundedCiphertext};
use hetal_ring::sampler::Seed;
use std::io::{Read, Write};

/// Bytes in front of the coefficients: the primes of the chain, bits, bound, form, a zero and the
/// seed.
const FIXED: usize = 40;

/// The largest bound of the numbers, as a power of two. Bootstraps have the same limit.
const LARGEST_LOG_BOUND: u32 = 24;

/// Bytes of a rounded ciphertext.
pub fn rounded_ciphertext_len(params: &Params, bits: u32) -> u64 {
    total_len(body(params, bits))
}

fn body(params: &Params, bits: u32) -> u64 {
    (FIXED + params.degree() / 8 * bits as usize) as u64
}

/// Checks a small number.
fn number(what: &'static str, found: u32, least: u32, most: u32) -> Result<u32> {
    if (least..=most).contains(&found) { Ok(found) } else { Err(FormatError::Rounded { what, found, least, most }) }
}

/// The bits that a coefficient may have under a parameter set.
fn checked_bits(params: &Params, bits: u32) -> Result<u32> {
    let most = (*ROUNDED_BITS_RANGE.end()).min(q0_bits(params) - 1);
    number("bits", bits, *ROUNDED_BITS_RANGE.start(), most)
}

impl<B: Backend> Object<B> for RoundedCiphertext {
    const KIND: ObjectKind = ObjectKind::RoundedCiphertext;

    fn body_len(&self, codec: &Codec<B>) -> Result<u64> {
        checked_bits(&codec.params, self.bits)?;
        number("bound", self.log_bound, 0, LARGEST_LOG_BOUND)?;
        let (declared, expected) = (self.c0.len() as u64, codec.params.degree() as u64);
        if declared != expected {
            return Err(FormatError::Length { declared, expected });
        }
        Ok(body(&codec.params, self.bits))
    }

    fn write_body<W: Write>(&self, codec: &Codec<B>, out: &mut EnvelopeWriter<'_, W>) -> Result<()> {
        let mut fixed = [0; FIXED];
        fixed[..4].copy_from_slice(&1u32.to_le_bytes());
        fixed[4..7].copy_from_slice(&[self.bits as u8, self.log_bound as u8, self.form as u8]);
        fixed[8..].copy_from_slice(&self.seed.0);
        out.bytes(&fixed)?;
        let words: Vec<u64> = self.c0.iter().map(|&u| u.into()).collect();
        let bits = self.bits as usize;
        out.filled(codec.params.degree() / 8 * bits, |bytes| packing::pack_bits(bits, &words, bytes))
    }

    fn read_body<R: Read>(codec: &Codec<B>, input: &mut EnvelopeReader<'_, R>) -> Result<Self> {
        let bytes: [u8; FIXED] = input.array("a rounded ciphertext")?;
        let mut fields = Fields(&bytes);
        in_range("primes of the chain", fields.u32(), 1, 1)?;
        let bits = checked_bits(&codec.params, fields.u8().into())?;
        let log_bound = number("bound", fields.u8().into(), 0, LARGEST_LOG_BOUND)?;
        let form = match number("form", fields.u8().into(), 0, 1)? {
            0 => LiftForm::Complex,
            _ => LiftForm::Real,
        };
        fields.zeros::<1>("a rounded ciphertext")?;
        let seed = Seed(fields.take());
        input.require_len(body(&codec.params, bits))?;
        let (width, degree) = (bits as usize, codec.params.degree());
        let packed = input.slice(degree / 8 * width, packing::PADDING, "coefficients")?;
        let c0 = (0..degree).map(|k| packing::field(packed, k * width, width) as u32).collect();
        Ok(Self { c0, seed, bits, log_bound, form })
    }
}
