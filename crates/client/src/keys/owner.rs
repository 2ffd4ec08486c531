//! Encryption, decryption and key generation with the secret key.

use crate::{Error, Result};
use hetal_circuits::bootstrap::lift;
use hetal_ckks::bytes::{Codec, KeySetWriter};
use hetal_ckks::{
    Ciphertext, Complex64, Evaluator, KeyId, LiftForm, Params, RoundedCiphertext, SeededCiphertext, SwitchingKey,
};
use hetal_keys::{Decryptor, Encryptor, EphemeralSecret, KeyGenerator, Passphrase, Private, SecretKey};
use hetal_ring::sampler::{OsSeeds, Seed, SeedSource};
use hetal_ring::{Basis, Isa, PackedPoly, Poly, RnsRing};
use rayon::prelude::*;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// The most keys that are generated at once. The largest keys have 144 MiB each, and one more waits
/// while one is written.
const KEYS_AT_ONCE: usize = 4;

/// Creates the ring of a parameter set with the fastest kernels of this machine.
pub fn ring_of(params: &Params) -> Result<Arc<RnsRing>> {
    ring_with(params, Isa::detect())
}

/// Creates the ring of a parameter set with given kernels.
pub fn ring_with(params: &Params, isa: Isa) -> Result<Arc<RnsRing>> {
    Ok(Arc::new(params.ring_on(isa)?))
}

/// A data owner: generates keys, encrypts and decrypts.
pub struct Owner {
    /// The parameter set.
    pub params: Arc<Params>,
    /// Its ring.
    pub ring: Arc<RnsRing>,
    evaluator: Evaluator<RnsRing>,
    secret: SecretKey,
    generator: KeyGenerator,
    encryptor: Encryptor,
    decryptor: Decryptor,
    seeds: Mutex<Box<dyn SeedSource + Send>>,
}

impl Owner {
    /// Creates an owner with a new secret key.
    pub fn fresh(params: Arc<Params>) -> Result<Self> {
        let ring = ring_of(&params)?;
        Ok(Self::with_seeds(params, ring, Box::new(OsSeeds)))
    }

    /// Creates an owner whose secret key and randomness come from given seeds, for tests that
    /// compare bytes.
    pub fn with_seeds(params: Arc<Params>, ring: Arc<RnsRing>, mut seeds: Box<dyn SeedSource + Send>) -> Self {
        let secret = SecretKey::generate(&params, &mut *seeds);
        Self::with_secret(params, ring, secret, seeds)
    }

    /// Loads the secret key from a file, which may be locked with a passphrase.
    pub fn load(params: Arc<Params>, path: &Path, passphrase: Option<&Passphrase>) -> Result<Self> {
        let secret = SecretKey::load(&params, path, passphrase)?;
        let ring = ring_of(&params)?;
        Ok(Self::with_secret(params, ring, secret, Box::new(OsSeeds)))
    }

    fn with_secret(
        params: Arc<Params>,
        ring: Arc<RnsRing>,
        secret: SecretKey,
        seeds: Box<dyn SeedSource + Send>,
    ) -> Self {
        Self {
            evaluator: Evaluator::new(Arc::clone(&params), Arc::clone(&ring)),
            generator: KeyGenerator::new(Arc::clone(&params), Arc::clone(&ring)),
            encryptor: Encryptor::new(Arc::clone(&params), Arc::clone(&ring)),
            decryptor: Decryptor::new(Arc::clone(&params), Arc::clone(&ring)),
            secret,
            seeds: Mutex::new(seeds),
            params,
            ring,
        }
    }

    /// Writes the secret key to a new file that only its owner can read. It is locked if there is a
    /// passphrase.
    pub fn save(&self, path: &Path, passphrase: Option<&Passphrase>) -> Result<()> {
        Ok(self.secret.save(&self.params, path, passphrase)?)
    }

    /// The id of the secret key: 32 hexadecimal digits that reveal nothing about it.
    pub fn key_id(&self) -> String {
        hex(&self.secret.id())
    }

    /// An evaluator, which computes without the secret key.
    pub fn evaluator(&self) -> Evaluator<RnsRing> {
        Evaluator::new(Arc::clone(&self.params), Arc::clone(&self.ring))
    }

    /// A codec for keys and ciphertexts of the parameter set.
    pub fn codec(&self) -> Codec<RnsRing> {
        Codec::new(Arc::clone(&self.params), Arc::clone(&self.ring))
    }

    /// Writes a set of the keys `(id, limbs)`. Keys are generated on all threads while others are
    /// written, and only a few are in memory at a time. `made` is called after each key; its error
    /// ends the work.
    pub fn write_keys(
        &self,
        wanted: &[(KeyId, usize)],
        out: &mut (impl Write + Send),
        mut made: impl FnMut() -> Result<()> + Send,
    ) -> Result<()> {
        let codec = self.codec();
        let maker = self.key_maker(wanted)?;
        let (send, receive) = mpsc::sync_channel::<SwitchingKey<PackedPoly>>(1);
        std::thread::scope(|scope| {
            let writing = scope.spawn(move || -> Result<()> {
                let format = |e: hetal_ckks::bytes::FormatError| Error::from(hetal_ckks::Error::from(e));
                let mut writer = KeySetWriter::new(&codec, wanted, out).map_err(format)?;
                for key in receive {
                    writer.write(&key).map_err(format)?;
                    made()?;
                }
                writer.finish().map_err(format)
            });
            let making = wanted.chunks(keys_at_once()).try_for_each(|wanted| {
                // The receiver is closed only after an error, which the writer returns.
                let sent = |key| send.send(key).map_err(|_| Error::Interrupted);
                let keys: Vec<_> = wanted.par_iter().map(|&wanted| maker.make(wanted)).collect::<Result<_>>()?;
                keys.into_iter().try_for_each(sent)
            });
            drop(send);
            let written = writing.join().map_err(|_| Error::Interrupted)?;
            match making {
                Err(Error::Interrupted) | Ok(()) => written,
                Err(error) => Err(error),
            }
        })
    }

    /// Creates a generator for the keys of one set. Its keys to and from the ephemeral secret
    /// belong together.
    pub fn key_maker(&self, wanted: &[(KeyId, usize)]) -> Result<KeyMaker<'_>> {
        let ephemeral = EphemeralSecret::for_keys(&self.params, wanted, &mut SharedSeeds(&self.seeds))?;
        Ok(KeyMaker { owner: self, ephemeral })
    }

    /// Encrypts a full vector at a usable level. The uniform half of the ciphertext stays a seed.
    pub fn encrypt_seeded(&self, values: &[Complex64], level: usize) -> Result<SeededCiphertext<Poly>> {
        let basis = Basis { q: self.params.limbs(level), p: 0 };
        let plain = self.evaluator.encode(values, self.params.scale(level), basis)?;
        Ok(self.encryptor.encrypt_seeded(&self.secret, &plain, &mut SharedSeeds(&self.seeds)))
    }

    /// Encrypts a full vector in coefficient form, for a lift with the bound `2^log_bound`.
    pub fn encrypt_rounded(&self, values: &[Complex64], log_bound: u32, form: LiftForm) -> Result<RoundedCiphertext> {
        let coefficients =
            lift::coefficients(&self.params, values, log_bound, form).map_err(hetal_learn::Error::from)?;
        let seeds = &mut SharedSeeds(&self.seeds);
        Ok(self.encryptor.encrypt_rounded(&self.secret, &coefficients, (log_bound, form), seeds)?)
    }

    /// Encrypts a full vector with a number of limbs and a scale.
    pub fn encrypt(
        &self,
        evaluator: &Evaluator<RnsRing>,
        values: &[Complex64],
        limbs: usize,
        scale: f64,
    ) -> Result<Ciphertext<Poly>> {
        let plain = evaluator.encode(values, scale, Basis { q: limbs, p: 0 })?;
        Ok(self.encryptor.encrypt(&self.secret, &plain, &mut SharedSeeds(&self.seeds)))
    }

    /// Decrypts a vector in coefficient form, as a server would lift it.
    pub fn decrypt_rounded(&self, rounded: &RoundedCiphertext) -> Result<Private<Vec<Complex64>>> {
        let ct = rounded.expand(&self.params, &*self.ring);
        let coefficients = self.decryptor.decrypt_coefficients(&self.secret, &ct)?;
        let values = lift::values(&self.params, coefficients.peek(), rounded.log_bound, rounded.form);
        Ok(Private::new(values.map_err(hetal_learn::Error::from)?))
    }

    /// Decrypts a ciphertext. The result is private: publish it only through
    /// [`hetal_keys::Release`].
    pub fn decrypt(&self, ct: &Ciphertext<Poly>) -> Result<Private<Vec<Complex64>>> {
        Ok(self.decryptor.decrypt(&self.secret, ct)?)
    }
}

/// Generates the keys of one set.
pub struct KeyMaker<'a> {
    owner: &'a Owner,
    /// The ephemeral secret, which is dropped with the generator.
    ephemeral: Option<EphemeralSecret>,
}

impl KeyMaker<'_> {
    /// Generates a key of the set.
    pub fn make(&self, (id, limbs): (KeyId, usize)) -> Result<SwitchingKey<PackedPoly>> {
        let Owner { generator, secret, seeds, .. } = self.owner;
        Ok(generator.make(secret, (id, limbs), self.ephemeral.as_ref(), &mut SharedSeeds(seeds))?)
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Sixteen random bytes that identify a request for a job.
pub(crate) fn random_name() -> Result<[u8; 16]> {
    let mut name = [0; 16];
    getrandom::fill(&mut name).map_err(|e| Error::Randomness { reason: e.to_string() })?;
    Ok(name)
}

fn keys_at_once() -> usize {
    rayon::current_num_threads().clamp(1, KEYS_AT_ONCE)
}

/// A seed source that several threads share.
struct SharedSeeds<'a>(&'a Mutex<Box<dyn SeedSource + Send>>);

impl SeedSource for SharedSeeds<'_> {
    fn next_seed(&mut self) -> Seed {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next_seed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetal_ckks::bytes::{key_set_len, read_key_set};

    fn toy() -> Owner {
        Owner::fresh(Arc::new(Params::named("insecure-toy11").unwrap())).unwrap()
    }

    #[test]
    fn keys_on_disk_are_those_asked_for() {
        let owner = toy();
        let all = owner.params.chain().len();
        let wanted = [
            (KeyId::Relinearisation, 5),
            (KeyId::Galois(5), 9),
            (KeyId::Galois(25), 3),
            (KeyId::ToSparse, 1),
            (KeyId::FromSparse(1), all),
            (KeyId::FromSparse(5), all),
        ];
        let count = std::sync::atomic::AtomicUsize::new(0);
        let made = || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(())
        };
        let mut bytes = Vec::new();
        owner.write_keys(&wanted, &mut bytes, made).unwrap();
        assert_eq!(count.into_inner(), 6);
        assert_eq!(bytes.len() as u64, key_set_len(&owner.params, &wanted).unwrap());
        let read = read_key_set(&owner.codec(), &mut &bytes[..]).unwrap();
        assert_eq!(read.iter().count(), 6);
        let lone = owner.write_keys(&wanted[..4], &mut Vec::new(), || Ok(()));
        assert!(matches!(lone, Err(Error::Keys(hetal_keys::Error::LoneSparseKey))), "{lone:?}");
    }

    #[test]
    fn a_full_disk_is_an_error_and_not_a_wait() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("no space"))
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let owner = toy();
        let wanted: Vec<_> = (0..20).map(|k| (KeyId::Galois(5 + 4 * k), 9)).collect();
        let error = owner.write_keys(&wanted, &mut Full, || Ok(())).unwrap_err();
        assert!(error.to_string().contains("no space"), "{error}");
    }

    #[test]
    fn sealed_values_open() {
        let owner = toy();
        let values = hetal_testkit::complex_vector(owner.params.slots(), 3);
        let sealed = owner.encrypt_seeded(&values, 4).unwrap().expand(&owner.params, &*owner.ring);
        let opened = owner.decrypt(&sealed).unwrap().expose();
        assert!(hetal_testkit::max_error(&opened, &values) < 1e-7);
    }
}
