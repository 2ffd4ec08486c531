//! The secret key in a file that only its owner can read. `docs/formats.md` has the bytes.

use crate::durable::{NewFile, create_new};
use crate::{Error, Result, SecretKey};
use hetal_ckks::Params;
use hetal_ckks::bytes::FormatError;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use zeroize::{Zeroize, Zeroizing};

/// Unlike the public objects' first bytes, so that none of their readers takes a secret key for its own.
const MAGIC: [u8; 8] = *b"\x89HETSK\r\n";
const VERSION: u16 = 1;
/// Protected by the file's permissions alone. Others (a passphrase) have parameters between header and body.
const PROTECTION_NONE: u16 = 0;
const HEADER_LEN: usize = 56;
const CHECKSUM_LEN: usize = 32;

impl SecretKey {
    /// Writes the key to a new file that only its owner can read. It is there as a whole or not at all, also after a
    /// power cut, and never replaces a file.
    pub fn save(&self, params: &Params, path: &Path) -> Result<()> {
        let bytes = to_bytes(self, params);
        // Holds the name, so that the rename below replaces nothing but this.
        create_new(path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => Error::Exists { path: path.to_owned() },
            _ => io("creating", path, &error),
        })?;
        let write = || {
            let mut file = NewFile::create(path)?;
            file.write_all(&bytes)?;
            file.finish()
        };
        write().map_err(|error| {
            // Of what was begun nothing is worth keeping; the error that matters is the first.
            let _ = std::fs::remove_file(path);
            io("writing", path, &error)
        })
    }

    /// Reads a key of `params` from a file that no one else may read.
    pub fn load(params: &Params, path: &Path) -> Result<Self> {
        let mut file = File::open(path).map_err(|error| io("opening", path, &error))?;
        let metadata = file.metadata().map_err(|error| io("examining", path, &error))?;
        if !metadata.is_file() {
            return Err(Error::NotAFile { path: path.to_owned() });
        }
        require_owner_only(path, &metadata)?;
        let format = |error| Error::Format { path: path.to_owned(), error };
        // The first fields decide how the rest is read: their errors come before those of the length.
        let header_len = metadata.len().min(HEADER_LEN as u64) as usize;
        let mut bytes = Zeroizing::new(vec![0; file_len(params)]);
        file.read_exact(&mut bytes[..header_len]).map_err(|error| io("reading", path, &error))?;
        check_header(params, path, &bytes[..header_len])?;
        if metadata.len() != bytes.len() as u64 {
            return Err(format(FormatError::Length { declared: metadata.len(), expected: bytes.len() as u64 }));
        }
        file.read_exact(&mut bytes[header_len..]).map_err(|error| io("reading", path, &error))?;
        let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM_LEN);
        if hash(content)[..] != *checksum {
            return Err(format(FormatError::Checksum { part: "the secret key" }));
        }
        let weight = params.literal().secret_weight.min(params.degree());
        unpack(&content[HEADER_LEN..], weight).ok_or(Error::NotASecret { path: path.to_owned(), weight })
    }
}

/// Bytes of the packed coefficients.
fn body_len(params: &Params) -> usize {
    params.degree() / 4
}

fn file_len(params: &Params) -> usize {
    HEADER_LEN + body_len(params) + CHECKSUM_LEN
}

fn hash(bytes: &[u8]) -> [u8; CHECKSUM_LEN] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(bytes);
    let hash = *hasher.finalize().as_bytes();
    hasher.zeroize();
    hash
}

fn to_bytes(secret: &SecretKey, params: &Params) -> Zeroizing<Vec<u8>> {
    // The capacity is exact: a vector that grows leaves a copy behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(file_len(params)));
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(PROTECTION_NONE.to_le_bytes());
    bytes.extend(0u32.to_le_bytes());
    bytes.extend((body_len(params) as u64).to_le_bytes());
    bytes.extend(params.id());
    bytes.extend(secret.coefficients().chunks_exact(4).map(pack_four));
    let checksum = hash(&bytes);
    bytes.extend(checksum);
    bytes
}

/// Four coefficients, two bits each in two's complement, the first lowest.
fn pack_four(four: &[i8]) -> u8 {
    four.iter().rev().fold(0, |byte, &c| byte << 2 | (c as u8 & 3))
}

/// The coefficients, if there are `weight` of them that are 1 or -1 and the others are 0.
fn unpack(packed: &[u8], weight: usize) -> Option<SecretKey> {
    let field = |byte: u8, k: u32| ((byte >> (2 * k)) << 6).cast_signed() >> 6;
    let mut coefficients = Vec::with_capacity(4 * packed.len());
    coefficients.extend(packed.iter().flat_map(|&byte| (0..4).map(move |k| field(byte, k))));
    let secret = SecretKey::from_coefficients(coefficients);
    let nonzero: usize = secret.coefficients().iter().map(|&c| usize::from(c & 1 != 0)).sum();
    let no_ternary: usize = secret.coefficients().iter().map(|&c| usize::from(c == -2)).sum();
    (nonzero == weight && no_ternary == 0).then_some(secret)
}

fn check_header(params: &Params, path: &Path, bytes: &[u8]) -> Result<()> {
    let format = |error| Err(Error::Format { path: path.to_owned(), error });
    let Ok(header) = <&[u8; HEADER_LEN]>::try_from(bytes) else {
        return format(FormatError::Truncated { part: "the header" });
    };
    fn field<const N: usize>(header: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&header[at..at + N]);
        field
    }
    let found = field(header, 0);
    if found != MAGIC {
        return format(FormatError::Magic { found });
    }
    let found = u16::from_le_bytes(field(header, 8));
    if found != VERSION {
        return format(FormatError::Version { found, known: VERSION });
    }
    let kind = u16::from_le_bytes(field(header, 10));
    if kind != PROTECTION_NONE {
        return Err(Error::Protection { path: path.to_owned(), kind });
    }
    if field(header, 12) != [0; 4] {
        return format(FormatError::Reserved { part: "the header" });
    }
    let found = field(header, 24);
    if found != *params.id() {
        return format(FormatError::Params { found, expected: *params.id() });
    }
    let (declared, expected) = (u64::from_le_bytes(field(header, 16)), body_len(params) as u64);
    if declared != expected {
        return format(FormatError::Length { declared, expected });
    }
    Ok(())
}

fn io(operation: &'static str, path: &Path, error: &std::io::Error) -> Error {
    Error::Io { operation, path: path.to_owned(), kind: error.kind(), message: error.to_string() }
}

#[cfg(unix)]
fn require_owner_only(path: &Path, metadata: &std::fs::Metadata) -> Result<()> {
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777;
    if mode & !0o700 != 0 {
        return Err(Error::Permissions { path: path.to_owned(), mode });
    }
    Ok(())
}

#[cfg(not(unix))]
fn require_owner_only(_path: &Path, _metadata: &std::fs::Metadata) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests;
