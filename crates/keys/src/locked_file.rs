//! A file that a passphrase locks like the secret key: for decrypted values. `docs/formats.md`
//! describes the bytes.

use crate::passphrase::{DerivedKey, SEAL_LEN, Seal, TAG_LEN};
use crate::{Error, Passphrase, Result};
use hetal_ckks::bytes::FormatError;
use hetal_ring::sampler::OsSeeds;
use std::path::Path;
use zeroize::Zeroizing;

/// The first bytes of a locked file. They differ from those of a secret key and of JSON.
pub const MAGIC: [u8; 8] = *b"\x89HETLK\r\n";
const VERSION: u16 = 1;
/// The same number as for a secret key with a passphrase.
const PROTECTION_PASSPHRASE: u16 = 1;
const HEADER_LEN: usize = 24;
const CHECKSUM_LEN: usize = 32;
/// Bytes of a locked file besides its content.
const AROUND: usize = HEADER_LEN + SEAL_LEN + TAG_LEN + CHECKSUM_LEN;

/// Whether bytes are the start of a locked file.
pub fn is_locked(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// The bytes of a file with this content.
pub fn lock(content: &[u8], passphrase: &Passphrase) -> Result<Vec<u8>> {
    FileSealer::new(passphrase)?.lock(content)
}

/// Locks any number of files with one key, which is derived once: deriving it takes some tenths of
/// a second. Every file has a nonce of its own.
pub struct FileSealer {
    seal: Seal,
    key: DerivedKey,
}

impl FileSealer {
    /// Derives a key from a passphrase, with a fresh salt.
    pub fn new(passphrase: &Passphrase) -> Result<Self> {
        let seal = Seal::fresh(&mut OsSeeds);
        Ok(Self { key: seal.derive(passphrase)?, seal })
    }

    /// The bytes of a file with this content.
    pub fn lock(&self, content: &[u8]) -> Result<Vec<u8>> {
        let seal = self.seal.with_fresh_nonce(&mut OsSeeds);
        // Holds the content until it is encrypted: wiped after an error, and never moved.
        let mut bytes = Zeroizing::new(Vec::with_capacity(AROUND + content.len()));
        bytes.extend(header(content.len()));
        bytes.extend(seal.to_bytes());
        bytes.extend(content);
        let (around, body) = bytes.split_at_mut(HEADER_LEN + SEAL_LEN);
        let tag = seal.lock_with(&self.key, around, body)?;
        bytes.extend(tag);
        let checksum = *blake3::hash(&bytes).as_bytes();
        bytes.extend(checksum);
        Ok(std::mem::take(&mut *bytes))
    }
}

/// The content of a locked file. `path` is for errors.
pub fn unlock(path: &Path, bytes: Vec<u8>, passphrase: Option<&Passphrase>) -> Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(bytes);
    let format = |error| Error::Format { path: path.to_owned(), error };
    let truncated = || format(FormatError::Truncated { part: "the locked file" });
    let length = bytes.len().checked_sub(AROUND).ok_or_else(truncated)?;
    let checked = bytes.len() - CHECKSUM_LEN;
    if blake3::hash(&bytes[..checked]).as_bytes()[..] != bytes[checked..] {
        return Err(format(FormatError::Checksum { part: "the locked file" }));
    }
    if bytes[..HEADER_LEN] != header(length) {
        return Err(format(FormatError::Reserved { part: "the header" }));
    }
    let passphrase = passphrase.ok_or_else(|| Error::Locked { path: path.to_owned() })?;
    let (around, rest) = bytes[..checked].split_at_mut(HEADER_LEN + SEAL_LEN);
    let (body, tag) = rest.split_at_mut(length);
    let reserved = || format(FormatError::Reserved { part: "the passphrase's cost" });
    let seal = around.last_chunk::<SEAL_LEN>().and_then(Seal::parse).ok_or_else(reserved)?;
    let tag = std::array::from_fn(|k| tag[k]);
    if !seal.unlock(passphrase, around, body, tag)? {
        return Err(Error::Passphrase { path: path.to_owned() });
    }
    bytes.truncate(HEADER_LEN + SEAL_LEN + length);
    bytes.drain(..HEADER_LEN + SEAL_LEN);
    Ok(bytes)
}

/// The start of a file with so many bytes of content.
fn header(length: usize) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&VERSION.to_le_bytes());
    header[10..12].copy_from_slice(&PROTECTION_PASSPHRASE.to_le_bytes());
    header[12..16].copy_from_slice(&(SEAL_LEN as u32).to_le_bytes());
    header[16..].copy_from_slice(&(length as u64).to_le_bytes());
    header
}
