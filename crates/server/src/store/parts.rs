//! Parts of uploads, and the hash of a whole from those of its parts.
//!
//! BLAKE3 hashes a tree. A part that covers a whole subtree has a hash of its own, so whoever has
//! the hashes of all parts knows the name of the blob without reading it again.

use crate::{Error, Result};
use blake3::hazmat::{HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};
use hetal_wire::BlobName;

/// Bytes of every part but the last. A power of two, so that a part is a subtree, and at least what
/// object stores ask for.
pub const STORED_PART_BYTES: u64 = 8 << 20;

/// A stored part of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPart {
    /// Its size in bytes.
    pub size: u64,
    /// Its hash within the whole.
    pub hash: [u8; 32],
    /// The store's receipt, by which parts are joined.
    pub receipt: String,
    /// The beginning of the first part: the header of the blob. Empty for other parts.
    pub head: Vec<u8>,
}

/// The size of the next part of an upload, of which `held` bytes are in parts.
pub fn next_part_bytes(held: u64, size: u64) -> u64 {
    STORED_PART_BYTES.min(size.saturating_sub(held))
}

/// The hash of a part that begins at `offset` within a blob of `size` bytes.
pub fn hash_of_part(bytes: &[u8], offset: u64, size: u64) -> [u8; 32] {
    if size <= STORED_PART_BYTES {
        return *blake3::hash(bytes).as_bytes();
    }
    blake3::Hasher::new().set_input_offset(offset).update(bytes).finalize_non_root()
}

/// The name of a blob of these parts. Fails if their sizes are not those of a blob's parts.
pub fn name_of_parts(parts: &[StoredPart]) -> Result<BlobName> {
    let (last, whole) = parts.split_last().ok_or_else(|| broken("there are none"))?;
    if whole.iter().any(|part| part.size != STORED_PART_BYTES) || last.size == 0 || last.size > STORED_PART_BYTES {
        return Err(broken("a part has another size"));
    }
    let hashes: Vec<_> = parts.iter().map(|part| part.hash).collect();
    let size = parts.iter().map(|part| part.size).sum();
    let [first, rest @ ..] = &hashes[..] else { return Err(broken("there are none")) };
    if rest.is_empty() {
        return Ok(BlobName(*first));
    }
    let (left, right) = halves(&hashes, size);
    let root = merge_subtrees_root(&subtree(left.0, left.1), &subtree(right.0, right.1), Mode::Hash);
    Ok(BlobName(*root.as_bytes()))
}

fn broken(what: &str) -> Error {
    Error::State { reason: format!("the parts of an upload are recorded wrongly ({what})") }
}

/// The two subtrees of several parts, each with its size.
fn halves(hashes: &[[u8; 32]], size: u64) -> ((&[[u8; 32]], u64), (&[[u8; 32]], u64)) {
    let left = left_subtree_len(size);
    let (first, rest) = hashes.split_at((left / STORED_PART_BYTES) as usize);
    ((first, left), (rest, size - left))
}

fn subtree(hashes: &[[u8; 32]], size: u64) -> [u8; 32] {
    if let [one] = hashes {
        return *one;
    }
    let (left, right) = halves(hashes, size);
    merge_subtrees_non_root(&subtree(left.0, left.1), &subtree(right.0, right.1), Mode::Hash)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parts(bytes: &[u8]) -> Vec<StoredPart> {
        let (mut parts, size) = (Vec::new(), bytes.len() as u64);
        for (index, part) in bytes.chunks(STORED_PART_BYTES as usize).enumerate() {
            let hash = hash_of_part(part, index as u64 * STORED_PART_BYTES, size);
            parts.push(StoredPart { size: part.len() as u64, hash, receipt: String::new(), head: Vec::new() });
        }
        parts
    }

    #[test]
    fn the_parts_name_the_whole() {
        let bytes: Vec<u8> = (0..5 * STORED_PART_BYTES + 1).map(|i| (i * 7 % 253) as u8).collect();
        let whole = STORED_PART_BYTES as usize;
        for size in [1, 1000, 1024, whole - 1, whole, whole + 1, 2 * whole, 3 * whole, 5 * whole, 5 * whole + 1] {
            let part = &bytes[..size];
            assert_eq!(name_of_parts(&parts(part)).unwrap().0, *blake3::hash(part).as_bytes(), "{size}");
        }
    }

    #[test]
    fn other_bytes_or_sizes_have_another_name() {
        let mut bytes = vec![7; 2 * STORED_PART_BYTES as usize + 9];
        let name = name_of_parts(&parts(&bytes)).unwrap();
        bytes[STORED_PART_BYTES as usize + 3] ^= 1;
        assert_ne!(name_of_parts(&parts(&bytes)).unwrap(), name);
        let mut swapped = parts(&bytes);
        swapped.swap(0, 1);
        assert_ne!(name_of_parts(&swapped).unwrap(), name_of_parts(&parts(&bytes)).unwrap());
        let mut short = parts(&bytes);
        short[0].size -= 1;
        assert!(name_of_parts(&short).is_err() && name_of_parts(&[]).is_err());
    }
}
