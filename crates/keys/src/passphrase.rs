//! Encryption of a secret key under a passphrase: Argon2id derives a key, ChaCha20-Poly1305
//! encrypts with it.

use crate::{Error, Result};
use argon2::{Algorithm, Argon2, Block, Params as Cost, Version};
use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::aead::inout::InOutBuf;
use chacha20poly1305::{ChaCha20Poly1305, Key, KeyInit, Nonce, Tag};
use hetal_ring::sampler::SeedSource;
use zeroize::{Zeroize, Zeroizing};

const SALT_LEN: usize = 16;
const NONCE_LEN: usize = 12;
/// Bytes of [`Seal::to_bytes`].
pub(crate) const SEAL_LEN: usize = 12 + SALT_LEN + NONCE_LEN;
/// Bytes of the authentication tag.
pub(crate) const TAG_LEN: usize = 16;

/// The second recommendation of RFC 9106: some tenths of a second on a current machine.
const MEMORY_KIB: u32 = 64 << 10;
const PASSES: u32 = 3;
const LANES: u32 = 4;
/// The most that a file may request, so that a forged file cannot take all memory or run for hours:
/// KiB, passes, lanes, and KiB times passes (some seconds).
const MOST: (u32, u32, u32) = (1 << 20, 64, 16);
const MOST_WORK: u64 = 4 << 20;

/// A passphrase. It is zeroised when dropped, and nothing prints it.
#[derive(Clone)]
pub struct Passphrase(Zeroizing<String>);

impl Passphrase {
    /// A passphrase from text. An empty one protects nothing and is refused.
    pub fn new(text: Zeroizing<String>) -> Result<Self> {
        if text.is_empty() { Err(Error::EmptyPassphrase) } else { Ok(Self(text)) }
    }
}

impl PartialEq for Passphrase {
    /// Compares two entries of a passphrase.
    fn eq(&self, other: &Self) -> bool {
        *self.0 == *other.0
    }
}

impl std::fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Passphrase(..)")
    }
}

/// How a passphrase locks a key: the cost of one guess, salt and nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seal {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    salt: [u8; SALT_LEN],
    nonce: [u8; NONCE_LEN],
}

impl Seal {
    /// A seal with a fresh salt and nonce.
    pub(crate) fn fresh(seeds: &mut dyn SeedSource) -> Self {
        let seed = seeds.next_seed();
        Self {
            memory_kib: MEMORY_KIB,
            passes: PASSES,
            lanes: LANES,
            salt: std::array::from_fn(|k| seed.0[k]),
            nonce: std::array::from_fn(|k| seed.0[SALT_LEN + k]),
        }
    }

    /// The bytes that are stored in front of the locked data.
    pub(crate) fn to_bytes(self) -> [u8; SEAL_LEN] {
        let mut bytes = [0; SEAL_LEN];
        let fields: [&[u8]; 5] = [
            &self.memory_kib.to_le_bytes(),
            &self.passes.to_le_bytes(),
            &self.lanes.to_le_bytes(),
            &self.salt,
            &self.nonce,
        ];
        bytes.iter_mut().zip(fields.concat()).for_each(|(to, from)| *to = from);
        bytes
    }

    /// Parses a stored seal. Fails if its costs exceed the limits.
    pub(crate) fn parse(bytes: &[u8; SEAL_LEN]) -> Option<Self> {
        let number = |at: usize| u32::from_le_bytes(std::array::from_fn(|k| bytes[at + k]));
        let seal = Self {
            memory_kib: number(0),
            passes: number(4),
            lanes: number(8),
            salt: std::array::from_fn(|k| bytes[12 + k]),
            nonce: std::array::from_fn(|k| bytes[12 + SALT_LEN + k]),
        };
        let work = u64::from(seal.memory_kib) * u64::from(seal.passes);
        let sensible = seal.memory_kib <= MOST.0 && seal.passes <= MOST.1 && seal.lanes <= MOST.2 && work <= MOST_WORK;
        (sensible && seal.cost().is_some()).then_some(seal)
    }

    fn cost(&self) -> Option<Cost> {
        Cost::new(self.memory_kib, self.passes, self.lanes, Some(32)).ok()
    }

    /// Derives the key. Fails if the memory is not available: a failed allocation must not end the
    /// program.
    pub(crate) fn derive(&self, passphrase: &Passphrase) -> Result<DerivedKey> {
        let memory = || Error::PassphraseMemory { mebibytes: self.memory_kib.div_ceil(1 << 10) };
        let cost = self.cost().ok_or_else(memory)?;
        let count = cost.block_count();
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(count).map_err(|_| memory())?;
        blocks.resize(count, Block::default());
        let mut key = Zeroizing::new([0; 32]);
        let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, cost);
        let made = argon.hash_password_into_with_memory(passphrase.0.as_bytes(), &self.salt, &mut *key, &mut blocks);
        blocks.iter_mut().for_each(Zeroize::zeroize);
        made.map_err(|_| memory())?;
        Ok(DerivedKey(key))
    }

    /// This seal with a fresh nonce. The derived key stays the same.
    pub(crate) fn with_fresh_nonce(self, seeds: &mut dyn SeedSource) -> Self {
        let seed = seeds.next_seed();
        Self { nonce: std::array::from_fn(|k| seed.0[k]), ..self }
    }

    /// Encrypts `body` in place. `around` is authenticated: a change of it breaks the lock.
    pub(crate) fn lock(&self, passphrase: &Passphrase, around: &[u8], body: &mut [u8]) -> Result<[u8; TAG_LEN]> {
        self.lock_with(&self.derive(passphrase)?, around, body)
    }

    /// [`Seal::lock`] with the key that this seal derives.
    pub(crate) fn lock_with(&self, key: &DerivedKey, around: &[u8], body: &mut [u8]) -> Result<[u8; TAG_LEN]> {
        let tag = key.cipher().encrypt_inout_detached(&Nonce::from(self.nonce), around, InOutBuf::from(body));
        tag.map(Into::into).map_err(|_| Error::NotLocked)
    }

    /// Decrypts `body` in place. Returns whether the passphrase and `around` are those of the
    /// encryption.
    pub(crate) fn unlock(
        &self,
        passphrase: &Passphrase,
        around: &[u8],
        body: &mut [u8],
        tag: [u8; TAG_LEN],
    ) -> Result<bool> {
        let cipher = self.derive(passphrase)?.cipher();
        let (nonce, body, tag) = (Nonce::from(self.nonce), InOutBuf::from(body), Tag::from(tag));
        Ok(cipher.decrypt_inout_detached(&nonce, around, body, &tag).is_ok())
    }
}

/// The encryption key that a [`Seal`] derives from a passphrase. It is zeroised when dropped.
pub(crate) struct DerivedKey(Zeroizing<[u8; 32]>);

impl DerivedKey {
    fn cipher(&self) -> ChaCha20Poly1305 {
        ChaCha20Poly1305::new(&Key::from(*self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal() -> Seal {
        Seal { memory_kib: 64, passes: 1, lanes: 1, salt: [7; SALT_LEN], nonce: [8; NONCE_LEN] }
    }

    fn passphrase(text: &str) -> Passphrase {
        Passphrase::new(text.to_owned().into()).unwrap()
    }

    #[test]
    fn only_the_passphrase_opens_and_nothing_around_can_be_exchanged() {
        let mut body = *b"ternary";
        let tag = seal().lock(&passphrase("right"), b"header", &mut body).unwrap();
        assert_ne!(&body, b"ternary");
        let open = |words: &str, around: &[u8], seal: Seal| {
            let mut body = body;
            seal.unlock(&passphrase(words), around, &mut body, tag).unwrap().then_some(body)
        };
        assert_eq!(open("right", b"header", seal()), Some(*b"ternary"));
        assert_eq!(open("wrong", b"header", seal()), None);
        assert_eq!(open("right", b"Header", seal()), None);
        assert_eq!(open("right", b"header", Seal { salt: [6; SALT_LEN], ..seal() }), None);
    }

    #[test]
    fn seals_come_back_and_absurd_ones_are_refused() {
        assert_eq!(Seal::parse(&seal().to_bytes()), Some(seal()));
        for absurd in [
            Seal { memory_kib: u32::MAX, ..seal() },
            Seal { passes: 1 << 20, ..seal() },
            Seal { memory_kib: MOST.0, passes: 5, ..seal() },
            Seal { passes: 0, ..seal() },
            Seal { lanes: 0, ..seal() },
            Seal { lanes: 17, ..seal() },
        ] {
            assert_eq!(Seal::parse(&absurd.to_bytes()), None, "{absurd:?}");
        }
    }

    #[test]
    fn passphrases_print_nothing_and_are_not_empty() {
        assert_eq!(format!("{:?}", passphrase("secret")), "Passphrase(..)");
        assert!(matches!(Passphrase::new(String::new().into()), Err(Error::EmptyPassphrase)));
    }
}
