//! The file of the secret key, which only its owner can read. `docs/formats.md` describes the
//! bytes.

use crate::passphrase::{SEAL_LEN, Seal, TAG_LEN};
use crate::{Error, Passphrase, Result, SecretKey};
use hetal_ckks::Params;
use hetal_ckks::bytes::FormatError;
use hetal_durable::{NewFile, create_new};
use hetal_ring::sampler::OsSeeds;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use zeroize::{Zeroize, Zeroizing};

/// Differs from the magic of public objects, so that no reader of them accepts a secret key.
const MAGIC: [u8; 8] = *b"\x89HETSK\r\n";
const VERSION: u16 = 1;
/// Protected by the permissions of the file only.
const PROTECTION_NONE: u16 = 0;
/// Locked: a [`Seal`] follows the header, the authentication tag follows the body.
const PROTECTION_PASSPHRASE: u16 = 1;
const HEADER_LEN: usize = 56;
const CHECKSUM_LEN: usize = 32;

impl SecretKey {
    /// Writes the key to a new file that only its owner can read, locked if there is a passphrase.
    /// The file appears whole or not at all, also after a power cut, and never replaces another
    /// file.
    pub fn save(&self, params: &Params, path: &Path, passphrase: Option<&Passphrase>) -> Result<()> {
        let bytes = match passphrase {
            None => to_bytes(self, params),
            Some(passphrase) => {
                let seal = Seal::fresh(&mut OsSeeds);
                to_locked_bytes(self, params, &seal, passphrase)?
            }
        };
        // Reserves the name, so that the rename below replaces nothing else.
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
            // The unfinished file has no value, and the first error is the one that matters.
            let _ = std::fs::remove_file(path);
            io("writing", path, &error)
        })
    }

    /// Reads a key of `params` from a file that no one else may read. A passphrase for a file that
    /// is not locked is ignored.
    pub fn load(params: &Params, path: &Path, passphrase: Option<&Passphrase>) -> Result<Self> {
        let (mut file, len) = open(path)?;
        parse(params, path, &mut file, len, passphrase)
    }

    /// A public name of the secret: the same for the same secret, and revealing nothing about it.
    /// 16 bytes of BLAKE3 in its key-derivation mode.
    pub fn id(&self) -> [u8; 16] {
        let mut packed: Zeroizing<Vec<u8>> = Zeroizing::new(Vec::with_capacity(self.coefficients().len() / 4));
        packed.extend(self.coefficients().chunks_exact(4).map(pack_four));
        let mut hasher = blake3::Hasher::new_derive_key("hetal secret key id v1");
        hasher.update(&packed);
        let hash = *hasher.finalize().as_bytes();
        hasher.zeroize();
        std::array::from_fn(|k| hash[k])
    }
}

/// Whether `bytes` are an unlocked key of `params`: the target of fuzzers.
pub fn understands(params: &Params, bytes: &[u8]) -> bool {
    parse(params, Path::new(""), &mut &*bytes, bytes.len() as u64, None).is_ok()
}

/// The key in `len` bytes of a file.
fn parse(
    params: &Params,
    path: &Path,
    file: &mut impl Read,
    len: u64,
    passphrase: Option<&Passphrase>,
) -> Result<SecretKey> {
    let format = |error| Error::Format { path: path.to_owned(), error };
    // The first fields decide how the rest is read, so their errors come before errors of the
    // length.
    let header_len = len.min(HEADER_LEN as u64) as usize;
    let mut header = [0; HEADER_LEN];
    file.read_exact(&mut header[..header_len]).map_err(|error| io("reading", path, &error))?;
    let protection = check_header(params, path, &header[..header_len])?;
    let mut bytes = Zeroizing::new(vec![0; file_len(params, protection)]);
    if len != bytes.len() as u64 {
        return Err(format(FormatError::Length { declared: len, expected: bytes.len() as u64 }));
    }
    bytes[..HEADER_LEN].copy_from_slice(&header);
    file.read_exact(&mut bytes[HEADER_LEN..]).map_err(|error| io("reading", path, &error))?;
    let end = bytes.len() - CHECKSUM_LEN;
    if hash(&bytes[..end])[..] != bytes[end..] {
        return Err(format(FormatError::Checksum { part: "the secret key" }));
    }
    let packed = match protection {
        Protection::None => &bytes[HEADER_LEN..end],
        Protection::Passphrase => {
            let passphrase = passphrase.ok_or_else(|| Error::Locked { path: path.to_owned() })?;
            unlock(path, &mut bytes[..end], passphrase)?
        }
    };
    let weight = params.literal().secret_weight.min(params.degree());
    unpack(packed, weight).ok_or(Error::NotASecret { path: path.to_owned(), weight })
}

/// Whether the key in a file is locked with a passphrase.
pub fn is_locked(path: &Path) -> Result<bool> {
    let (mut file, _) = open(path)?;
    let mut start = [0; 12];
    match file.read_exact(&mut start) {
        Ok(()) => Ok(start.starts_with(&MAGIC) && start[10..] == PROTECTION_PASSPHRASE.to_le_bytes()),
        // A file that is too short fails later, when it is read.
        Err(_) => Ok(false),
    }
}

/// Opens a file that no one else may read; returns it with its length.
fn open(path: &Path) -> Result<(File, u64)> {
    let require_file = |metadata: &std::fs::Metadata| {
        if metadata.is_file() { Ok(()) } else { Err(Error::NotAFile { path: path.to_owned() }) }
    };
    // Checked before opening, because opening a pipe blocks, and again afterwards, in case the file
    // was exchanged.
    require_file(&std::fs::metadata(path).map_err(|error| io("opening", path, &error))?)?;
    let file = File::open(path).map_err(|error| io("opening", path, &error))?;
    let metadata = file.metadata().map_err(|error| io("examining", path, &error))?;
    require_file(&metadata)?;
    require_owner_only(path, &metadata)?;
    Ok((file, metadata.len()))
}

/// The protection of the key in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protection {
    /// The permissions of the file.
    None,
    /// A passphrase as well.
    Passphrase,
}

/// Bytes of the packed coefficients.
fn body_len(params: &Params) -> usize {
    params.degree() / 4
}

fn file_len(params: &Params, protection: Protection) -> usize {
    let locked = if protection == Protection::Passphrase { SEAL_LEN + TAG_LEN } else { 0 };
    HEADER_LEN + body_len(params) + locked + CHECKSUM_LEN
}

fn hash(bytes: &[u8]) -> [u8; CHECKSUM_LEN] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(bytes);
    let hash = *hasher.finalize().as_bytes();
    hasher.zeroize();
    hash
}

fn to_bytes(secret: &SecretKey, params: &Params) -> Zeroizing<Vec<u8>> {
    let mut bytes = header(params, Protection::None);
    bytes.extend(secret.coefficients().chunks_exact(4).map(pack_four));
    let checksum = hash(&bytes);
    bytes.extend(checksum);
    bytes
}

fn to_locked_bytes(
    secret: &SecretKey,
    params: &Params,
    seal: &Seal,
    passphrase: &Passphrase,
) -> Result<Zeroizing<Vec<u8>>> {
    let mut bytes = header(params, Protection::Passphrase);
    bytes.extend(seal.to_bytes());
    bytes.extend(secret.coefficients().chunks_exact(4).map(pack_four));
    let (around, body) = bytes.split_at_mut(HEADER_LEN + SEAL_LEN);
    let tag = seal.lock(passphrase, around, body)?;
    bytes.extend(tag);
    let checksum = hash(&bytes);
    bytes.extend(checksum);
    Ok(bytes)
}

/// The packed coefficients in a locked file without its checksum.
fn unlock<'a>(path: &Path, bytes: &'a mut [u8], passphrase: &Passphrase) -> Result<&'a [u8]> {
    let reserved =
        || Error::Format { path: path.to_owned(), error: FormatError::Reserved { part: "the passphrase's cost" } };
    let (around, rest) = bytes.split_at_mut(HEADER_LEN + SEAL_LEN);
    let (body, tag) = rest.split_at_mut(rest.len() - TAG_LEN);
    let stored = around.last_chunk::<SEAL_LEN>().ok_or_else(reserved)?;
    let seal = Seal::parse(stored).ok_or_else(reserved)?;
    let tag = std::array::from_fn(|k| tag[k]);
    if seal.unlock(passphrase, around, body, tag)? {
        Ok(body)
    } else {
        Err(Error::Passphrase { path: path.to_owned() })
    }
}

/// The start of the file, with capacity for all of it: a vector that grows leaves a copy behind.
fn header(params: &Params, protection: Protection) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(file_len(params, protection)));
    let (kind, parameters) = match protection {
        Protection::None => (PROTECTION_NONE, 0),
        Protection::Passphrase => (PROTECTION_PASSPHRASE, SEAL_LEN as u32),
    };
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(parameters.to_le_bytes());
    bytes.extend((body_len(params) as u64).to_le_bytes());
    bytes.extend(params.id());
    bytes
}

/// Four coefficients, two bits each in two's complement, the first lowest.
fn pack_four(four: &[i8]) -> u8 {
    four.iter().rev().fold(0, |byte, &c| byte << 2 | (c as u8 & 3))
}

/// The coefficients, if exactly `weight` of them are 1 or -1 and the others are 0.
fn unpack(packed: &[u8], weight: usize) -> Option<SecretKey> {
    let field = |byte: u8, k: u32| ((byte >> (2 * k)) << 6).cast_signed() >> 6;
    let mut coefficients = Vec::with_capacity(4 * packed.len());
    coefficients.extend(packed.iter().flat_map(|&byte| (0..4).map(move |k| field(byte, k))));
    let secret = SecretKey::from_coefficients(coefficients);
    let nonzero: usize = secret.coefficients().iter().map(|&c| usize::from(c & 1 != 0)).sum();
    let no_ternary: usize = secret.coefficients().iter().map(|&c| usize::from(c == -2)).sum();
    (nonzero == weight && no_ternary == 0).then_some(secret)
}

fn check_header(params: &Params, path: &Path, bytes: &[u8]) -> Result<Protection> {
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
    let (protection, parameters) = match kind {
        PROTECTION_NONE => (Protection::None, 0),
        PROTECTION_PASSPHRASE => (Protection::Passphrase, SEAL_LEN as u32),
        _ => return Err(Error::Protection { path: path.to_owned(), kind }),
    };
    if u32::from_le_bytes(field(header, 12)) != parameters {
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
    Ok(protection)
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
