//! The header and the checksum around every object.

use super::error::{FormatError, Result};
use std::io::{ErrorKind, Read, Write};

/// The first bytes of every object. They are no text, and a program that changes line ends damages
/// them.
pub const MAGIC: [u8; 8] = *b"\x89HETAL\r\n";
/// The version of the formats that this program writes.
pub const VERSION: u16 = 1;
/// Bytes of a header.
pub const HEADER_LEN: usize = 56;
/// Bytes of a checksum.
pub const CHECKSUM_LEN: usize = 32;

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum ObjectKind {
    /// A parameter set.
    Params = 1,
    /// A plaintext.
    Plaintext = 2,
    /// A ciphertext.
    Ciphertext = 3,
    /// A fresh ciphertext whose uniform half is a seed.
    SeededCiphertext = 4,
    /// A public key.
    PublicKey = 5,
    /// A switching key.
    SwitchingKey = 6,
    /// Many switching keys.
    KeySet = 7,
    /// A fresh ciphertext modulo `q0` with rounded coefficients.
    RoundedCiphertext = 8,
}

impl ObjectKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Params,
        Self::Plaintext,
        Self::Ciphertext,
        Self::SeededCiphertext,
        Self::PublicKey,
        Self::SwitchingKey,
        Self::KeySet,
        Self::RoundedCiphertext,
    ];
}

impl std::fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Params => "parameter set",
            Self::Plaintext => "plaintext",
            Self::Ciphertext => "ciphertext",
            Self::SeededCiphertext => "seeded ciphertext",
            Self::PublicKey => "public key",
            Self::SwitchingKey => "switching key",
            Self::KeySet => "key set",
            Self::RoundedCiphertext => "rounded ciphertext",
        })
    }
}

/// The beginning of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: ObjectKind,
    /// The parameter set it belongs to.
    pub params: [u8; 32],
    /// Bytes between the header and the checksum.
    pub body_len: u64,
}

impl Header {
    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.body_len.to_le_bytes());
        bytes[24..].copy_from_slice(&self.params);
        bytes
    }

    /// The header of an object that should be of kind `expected`.
    pub fn parse(bytes: &[u8; HEADER_LEN], expected: ObjectKind) -> Result<Self> {
        let mut fields = Fields(bytes);
        let magic = fields.take();
        if magic != MAGIC {
            return Err(FormatError::Magic { found: magic });
        }
        let version = u16::from_le_bytes(fields.take());
        if version != VERSION {
            return Err(FormatError::Version { found: version, known: VERSION });
        }
        let kind = u16::from_le_bytes(fields.take());
        if kind != expected as u16 {
            return Err(FormatError::ObjectKind { found: kind, expected });
        }
        fields.zeros::<4>("the header")?;
        let body_len = fields.u64();
        Ok(Self { kind: expected, params: fields.take(), body_len })
    }
}

/// Reads fixed fields off a slice that has them all.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        let (now, later) = self.0.split_at(N);
        field.copy_from_slice(now);
        self.0 = later;
        field
    }

    pub(super) fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    pub(super) fn f64(&mut self) -> f64 {
        f64::from_bits(self.u64())
    }

    pub(super) fn zeros<const N: usize>(&mut self, part: &'static str) -> Result<()> {
        if self.take::<N>() == [0; N] { Ok(()) } else { Err(FormatError::Reserved { part }) }
    }
}

/// Fills `bytes`, or says in which part the input ended.
pub(super) fn read_exact(input: &mut impl Read, bytes: &mut [u8], part: &'static str) -> Result<()> {
    input.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => FormatError::Truncated { part },
        _ => error.into(),
    })
}

/// The body of an object being read: counts and hashes what passes.
pub struct EnvelopeReader<'a, R> {
    input: &'a mut R,
    hasher: blake3::Hasher,
    header: Header,
    remaining: u64,
    scratch: Vec<u8>,
}

impl<'a, R: Read> EnvelopeReader<'a, R> {
    /// Reads a header.
    pub(super) fn open(input: &'a mut R, expected: ObjectKind) -> Result<Self> {
        let mut bytes = [0; HEADER_LEN];
        read_exact(input, &mut bytes, "a header")?;
        let header = Header::parse(&bytes, expected)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes);
        Ok(Self { input, hasher, header, remaining: header.body_len, scratch: Vec::new() })
    }

    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    /// Refuses an object of another parameter set.
    pub(super) fn require_params(&self, expected: &[u8; 32]) -> Result<()> {
        if self.header.params == *expected {
            return Ok(());
        }
        Err(FormatError::Params { found: self.header.params, expected: *expected })
    }

    /// Fails if the declared length of the body is not the one its parameters give. Called before
    /// memory is allocated.
    pub(super) fn require_len(&self, expected: u64) -> Result<()> {
        let declared = self.header.body_len;
        if declared == expected { Ok(()) } else { Err(FormatError::Length { declared, expected }) }
    }

    /// Counts bytes that pass, and refuses more than were declared.
    fn account(&mut self, count: u64) -> Result<()> {
        let declared = self.header.body_len;
        let short = FormatError::Length { declared, expected: declared - self.remaining + count };
        self.remaining = self.remaining.checked_sub(count).ok_or(short)?;
        Ok(())
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, part: &'static str) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.account(N as u64)?;
        read_exact(self.input, &mut bytes, part)?;
        self.hasher.update(&bytes);
        Ok(bytes)
    }

    /// The next `count` bytes, followed by `padding` meaningless ones.
    pub(super) fn slice(&mut self, count: usize, padding: usize, part: &'static str) -> Result<&[u8]> {
        self.account(count as u64)?;
        self.scratch.resize(count + padding, 0);
        read_exact(self.input, &mut self.scratch[..count], part)?;
        self.hasher.update(&self.scratch[..count]);
        Ok(&self.scratch)
    }

    /// Lets `read` take an object of its own from the input; it gives its length and what the
    /// checksum covers of it.
    pub(super) fn nested<T>(&mut self, read: impl FnOnce(&mut R) -> Result<(T, u64, [u8; CHECKSUM_LEN])>) -> Result<T> {
        let (object, len, checksum) = read(self.input)?;
        self.account(len)?;
        self.hasher.update(&checksum);
        Ok(object)
    }

    /// The checksum of everything so far, without ending the object.
    pub(super) fn checksum_so_far(&self) -> [u8; CHECKSUM_LEN] {
        *self.hasher.finalize().as_bytes()
    }

    /// Compares the checksum.
    pub(super) fn close(self) -> Result<[u8; CHECKSUM_LEN]> {
        if self.remaining != 0 {
            let declared = self.header.body_len;
            return Err(FormatError::Length { declared, expected: declared - self.remaining });
        }
        let mut stored = [0; CHECKSUM_LEN];
        read_exact(self.input, &mut stored, "a checksum")?;
        if stored != *self.hasher.finalize().as_bytes() {
            return Err(FormatError::Checksum { part: "the object" });
        }
        Ok(stored)
    }
}

/// An object being written: hashes what passes.
pub struct EnvelopeWriter<'a, W> {
    out: &'a mut W,
    hasher: blake3::Hasher,
    scratch: Vec<u8>,
}

impl<'a, W: Write> EnvelopeWriter<'a, W> {
    /// Writes a header.
    pub(super) fn open(out: &'a mut W, header: &Header) -> Result<Self> {
        let mut sink = Self { out, hasher: blake3::Hasher::new(), scratch: Vec::new() };
        sink.bytes(&header.to_bytes())?;
        Ok(sink)
    }

    /// Writes bytes.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        Ok(self.out.write_all(bytes)?)
    }

    /// Writes `count` bytes that `fill` gives.
    pub(super) fn filled(&mut self, count: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        self.scratch.resize(count, 0);
        fill(&mut self.scratch);
        self.hasher.update(&self.scratch);
        Ok(self.out.write_all(&self.scratch)?)
    }

    /// Lets `write` put an object of its own into the output; it gives what the checksum covers of
    /// it.
    pub(super) fn nested(&mut self, write: impl FnOnce(&mut W) -> Result<[u8; CHECKSUM_LEN]>) -> Result<()> {
        let checksum = write(self.out)?;
        self.hasher.update(&checksum);
        Ok(())
    }

    /// The checksum of everything so far, without ending the object.
    pub(super) fn checksum_so_far(&self) -> [u8; CHECKSUM_LEN] {
        *self.hasher.finalize().as_bytes()
    }

    /// Writes the checksum.
    pub(super) fn close(self) -> Result<[u8; CHECKSUM_LEN]> {
        let checksum = *self.hasher.finalize().as_bytes();
        self.out.write_all(&checksum)?;
        Ok(checksum)
    }
}
