//! The bytes of the scheme's objects, in files and in messages. `docs/formats.md` describes them.
//!
//! ```text
//! header (kind, parameter set, length) ── body ── checksum of everything before it
//!                                          └── residues, each in as many bits as its prime has
//! ```
//!
//! [`Codec::read`] returns a valid object or a [`FormatError`] that says what is wrong. Lengths
//! follow from the parameters and a few small fields. They are compared with the declared length
//! before memory is allocated. Objects are read and written limb by limb.

mod envelope;
mod error;
mod key_set;
mod objects;
mod packing;
mod params;
mod rounded;
mod switching_key;

pub use envelope::{CHECKSUM_LEN, EnvelopeReader, EnvelopeWriter, HEADER_LEN, Header, MAGIC, ObjectKind, VERSION};
pub use error::{FormatError, Result};
pub use key_set::{KeySetFile, KeySetReader, KeySetWriter, MAX_KEYS, key_set_len, read_key_set, write_key_set};
pub use objects::{ciphertext_len, seeded_ciphertext_len};
pub use rounded::rounded_ciphertext_len;

use crate::{Backend, Params};
use hetal_ring::Basis;
use hetal_ring::sampler::Seed;
use std::io::{Read, Write};
use std::sync::Arc;

/// Reads and writes the objects of one parameter set, on one backend.
///
/// ```
/// use hetal_ckks::bytes::{Codec, FormatError};
/// use hetal_ckks::{Evaluator, Params, Plaintext};
/// use hetal_ring::Basis;
/// use std::sync::Arc;
///
/// let params = Arc::new(Params::named("insecure-toy11").unwrap());
/// let ring = Arc::new(params.ring().unwrap());
/// let codec = Codec::new(Arc::clone(&params), Arc::clone(&ring));
///
/// let plain = Plaintext { poly: ring.zero(Basis { q: 2, p: 0 }), scale: params.scale(0) };
/// let mut bytes = codec.encode(&plain).unwrap();
/// let back: Plaintext<_> = codec.decode(&bytes).unwrap();
/// assert_eq!(back.scale, plain.scale);
/// bytes[100] ^= 1;
/// assert!(matches!(codec.decode::<Plaintext<_>>(&bytes), Err(FormatError::Checksum { .. })));
/// ```
pub struct Codec<B> {
    params: Arc<Params>,
    backend: Arc<B>,
}

impl<B> Clone for Codec<B> {
    fn clone(&self) -> Self {
        Self { params: Arc::clone(&self.params), backend: Arc::clone(&self.backend) }
    }
}

/// An object that can be written and read.
pub trait Object<B: Backend>: Sized {
    /// What it is.
    const KIND: ObjectKind;

    /// The length of its body. Fails for an object that could not be read back.
    fn body_len(&self, codec: &Codec<B>) -> Result<u64>;

    /// Writes its body.
    fn write_body<W: Write>(&self, codec: &Codec<B>, out: &mut EnvelopeWriter<'_, W>) -> Result<()>;

    /// Parses a body.
    fn read_body<R: Read>(codec: &Codec<B>, input: &mut EnvelopeReader<'_, R>) -> Result<Self>;
}

impl<B: Backend> Codec<B> {
    /// A codec for the objects of `params`.
    pub fn new(params: Arc<Params>, backend: Arc<B>) -> Self {
        Self { params, backend }
    }

    /// The parameter set.
    pub fn params(&self) -> &Arc<Params> {
        &self.params
    }

    /// Bytes an object takes, header and checksum included.
    pub fn len<T: Object<B>>(&self, object: &T) -> Result<u64> {
        Ok(total_len(object.body_len(self)?))
    }

    /// Writes one object.
    pub fn write<T: Object<B>>(&self, object: &T, out: &mut impl Write) -> Result<()> {
        self.write_summed(object, out).map(|_| ())
    }

    /// Writes one object and gives its checksum.
    fn write_summed<T: Object<B>>(&self, object: &T, out: &mut impl Write) -> Result<[u8; CHECKSUM_LEN]> {
        let mut sink = EnvelopeWriter::open(out, &self.header(T::KIND, object.body_len(self)?))?;
        object.write_body(self, &mut sink)?;
        sink.close()
    }

    /// Reads one object; the input is left just after it.
    pub fn read<T: Object<B>>(&self, input: &mut impl Read) -> Result<T> {
        self.read_summed(input).map(|(object, _)| object)
    }

    /// Reads one object and gives its checksum.
    fn read_summed<T: Object<B>>(&self, input: &mut impl Read) -> Result<(T, [u8; CHECKSUM_LEN])> {
        let mut source = EnvelopeReader::open(input, T::KIND)?;
        source.require_params(self.params.id())?;
        let object = T::read_body(self, &mut source)?;
        Ok((object, source.close()?))
    }

    /// The bytes of one object.
    pub fn encode<T: Object<B>>(&self, object: &T) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(usize::try_from(self.len(object)?).unwrap_or(0));
        self.write(object, &mut bytes)?;
        Ok(bytes)
    }

    /// The object in `bytes`, which must end where the object ends.
    pub fn decode<T: Object<B>>(&self, bytes: &[u8]) -> Result<T> {
        parse_all(bytes, |rest| self.read(rest))
    }

    fn header(&self, kind: ObjectKind, body_len: u64) -> Header {
        Header { kind, params: *self.params.id(), body_len }
    }

    fn poly_len(&self, basis: Basis) -> u64 {
        poly_len(&self.params, basis)
    }

    fn write_poly<W: Write>(&self, poly: &B::Poly, out: &mut EnvelopeWriter<'_, W>) -> Result<()> {
        let basis = B::basis(poly);
        self.backend.try_for_each_limb(poly, |i, limb| {
            let q = self.params.modulus(basis, i);
            out.filled(packing::packed_len(q, limb.len()), |bytes| packing::pack_into(q, limb, bytes))
        })
    }

    fn read_poly<R: Read>(&self, basis: Basis, input: &mut EnvelopeReader<'_, R>) -> Result<B::Poly> {
        let degree = self.params.degree();
        self.backend.try_from_limbs(degree, basis, |limb, residues| {
            let q = self.params.modulus(basis, limb);
            let bytes = input.slice(packing::packed_len(q, degree), packing::PADDING, "a polynomial")?;
            packing::unpack_into(q, bytes, residues).map_err(|index| FormatError::Residue {
                limb,
                index,
                prime: q.value(),
            })
        })
    }

    fn expand_seed(&self, seed: &Seed, digit: u32, basis: Basis) -> B::Poly {
        crate::ciphertext::expand_seed(&self.params, &*self.backend, seed, digit, basis)
    }

    /// A number of primes of the chain that an object may have.
    fn check_limbs(&self, found: u32) -> Result<usize> {
        in_range("primes of the chain", found, 1, self.params.chain().len())
    }

    /// A scale that a message modulo the primes of `basis` may have.
    fn check_scale(&self, scale: f64, basis: Basis) -> Result<()> {
        let log_limit = self.params.log_qp(basis);
        if scale.is_finite() && scale >= 1.0 && libm::log2(scale) <= log_limit {
            return Ok(());
        }
        Err(FormatError::Scale { scale, log_limit })
    }
}

/// Bytes of a polynomial's packed limbs.
fn poly_len(params: &Params, basis: Basis) -> u64 {
    let limb = |i| packing::packed_len(params.modulus(basis, i), params.degree()) as u64;
    (0..basis.limbs()).map(limb).sum()
}

/// The length of an object with a body of that length.
fn total_len(body_len: u64) -> u64 {
    body_len + (HEADER_LEN + CHECKSUM_LEN) as u64
}

fn in_range(what: &'static str, found: u32, least: usize, most: usize) -> Result<usize> {
    let number = found as usize;
    if (least..=most).contains(&number) { Ok(number) } else { Err(FormatError::Primes { what, found, least, most }) }
}

/// Parses all of `bytes`.
fn parse_all<T>(bytes: &[u8], parse: impl FnOnce(&mut &[u8]) -> Result<T>) -> Result<T> {
    let mut rest = bytes;
    let value = parse(&mut rest)?;
    if rest.is_empty() { Ok(value) } else { Err(FormatError::TrailingBytes { extra: rest.len() }) }
}
