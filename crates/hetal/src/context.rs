//! A parameter set with everything that is computed from it once.

use crate::{Error, Result};
use hetal_circuits::clear::{self, Clear, KeyRequirements, OpCounts};
use hetal_circuits::{Bootstrapper, Complex64, Encrypted, LeveledCiphertext, encrypted};
use hetal_ckks::{BitSizes, Encoder, EvaluationKeys, Evaluator, Params};
use hetal_keys::{Decryptor, Encryptor, KeyGenerator, Private, SecretKey};
use hetal_ring::sampler::OsSeeds;
use hetal_ring::{Basis, PackedPoly, Poly, RnsRing};
use std::sync::Arc;

/// A ciphertext with its level, on the CPU.
pub type Ciphertext = LeveledCiphertext<Poly>;

/// The engine on real ciphertexts, on the CPU.
pub type CpuEngine = Encrypted<RnsRing>;

/// A parameter set with its ring, its evaluator and its encoder: where programs begin.
///
/// The usual order is [`Context::dry_run`], which finds the keys a circuit needs,
/// [`Context::keygen`], [`Context::encrypt`], the circuit on the engine, [`Context::decrypt`].
pub struct Context {
    params: Arc<Params>,
    ring: Arc<RnsRing>,
    evaluator: Evaluator<RnsRing>,
    generator: KeyGenerator,
    encryptor: Encryptor,
    decryptor: Decryptor,
}

impl Context {
    /// The context of a built-in set: `full`, `small`, or `insecure-toy11` and `insecure-toy12` for
    /// tests.
    pub fn named(set: &str) -> Result<Self> {
        Self::new(Params::named(set)?)
    }

    /// The context of a set described by the bit sizes of its primes.
    pub fn from_bits(sizes: &BitSizes) -> Result<Self> {
        Self::new(Params::from_bits(sizes)?)
    }

    /// The context of a parameter set, on the fastest kernels of this machine.
    pub fn new(params: Params) -> Result<Self> {
        let ring = params.ring()?;
        Self::with_ring(Arc::new(params), Arc::new(ring))
    }

    /// The context of a parameter set on a ring that exists already. Fails if the ring is not the
    /// set's.
    pub fn with_ring(params: Arc<Params>, ring: Arc<RnsRing>) -> Result<Self> {
        params.check_ring(&ring)?;
        Ok(Self {
            evaluator: Evaluator::new(Arc::clone(&params), Arc::clone(&ring)),
            generator: KeyGenerator::new(Arc::clone(&params), Arc::clone(&ring)),
            encryptor: Encryptor::new(Arc::clone(&params), Arc::clone(&ring)),
            decryptor: Decryptor::new(Arc::clone(&params), Arc::clone(&ring)),
            params,
            ring,
        })
    }

    /// The parameter set.
    pub fn params(&self) -> &Arc<Params> {
        &self.params
    }

    /// The ring of the set.
    pub fn ring(&self) -> &Arc<RnsRing> {
        &self.ring
    }

    /// Operations on ciphertexts with explicit limbs and scales, below the engine.
    pub fn evaluator(&self) -> &Evaluator<RnsRing> {
        &self.evaluator
    }

    /// The encoder of vectors into polynomials.
    pub fn encoder(&self) -> &Encoder {
        self.evaluator.encoder()
    }

    /// Numbers in a ciphertext.
    pub fn slots(&self) -> usize {
        self.params.slots()
    }

    /// Multiplications that a fresh ciphertext allows.
    pub fn top_level(&self) -> usize {
        self.params.top_level()
    }

    /// Runs a circuit on plain numbers and reports its operations and the keys it needs.
    ///
    /// The circuit gets as many vectors of zeros, at the top level, as it names in its array
    /// pattern. No key, no encryption and no data are needed: what a circuit does depends on levels
    /// and shapes, never on values. A circuit that runs out of levels fails here, in milliseconds.
    ///
    /// ```
    /// use hetal::{Context, Engine, OpKind};
    ///
    /// let context = Context::named("insecure-toy11")?;
    /// let counts = context.dry_run(|engine, [a, b]| engine.rotate(&engine.mul(&a, &b)?, 3))?;
    /// assert_eq!(counts.count(OpKind::Relinearisation), 1);
    /// assert_eq!(counts.keys().rotations, [(3, context.top_level() - 1)]);
    /// # Ok::<(), hetal::Error>(())
    /// ```
    pub fn dry_run<const INPUTS: usize, R, E>(
        &self,
        circuit: impl FnOnce(&Clear, [clear::Ciphertext; INPUTS]) -> std::result::Result<R, E>,
    ) -> Result<OpCounts>
    where
        Error: From<E>,
    {
        let engine = Clear::new(self.slots(), self.top_level());
        let zeros = engine.fresh(&vec![Complex64::ZERO; self.slots()], self.top_level())?;
        circuit(&engine, std::array::from_fn(|_| zeros.clone()))?;
        Ok(engine.op_counts())
    }

    /// Makes a fresh secret key and an engine with the evaluation keys that a circuit needs.
    ///
    /// The secret key stays with the owner of the data. The engine is what a server has: it
    /// computes and cannot decrypt.
    pub fn keygen(&self, needs: &KeyRequirements) -> Result<(SecretKey, CpuEngine)> {
        let secret = self.secret_key();
        let engine = self.engine(self.evaluation_keys(&secret, needs)?, needs)?;
        Ok((secret, engine))
    }

    /// Makes a fresh secret key from the randomness of the operating system.
    pub fn secret_key(&self) -> SecretKey {
        SecretKey::generate(&self.params, &mut OsSeeds)
    }

    /// Makes the evaluation keys that a circuit needs, those of its bootstraps included.
    pub fn evaluation_keys(&self, secret: &SecretKey, needs: &KeyRequirements) -> Result<EvaluationKeys<PackedPoly>> {
        Ok(self.generator.generate(secret, &encrypted::keys(&self.params, needs), &mut OsSeeds)?)
    }

    /// An engine with evaluation keys. It encodes the bootstrapping matrices if the circuit
    /// bootstraps.
    pub fn engine(&self, keys: EvaluationKeys<PackedPoly>, needs: &KeyRequirements) -> Result<CpuEngine> {
        let evaluator = Evaluator::new(Arc::clone(&self.params), Arc::clone(&self.ring));
        let bootstrapper = Bootstrapper::new(&evaluator, &needs.bounds)?;
        Ok(Encrypted::new(evaluator, keys, bootstrapper))
    }

    /// Encrypts real numbers at the top level. A vector shorter than the slots is padded with
    /// zeros.
    pub fn encrypt(&self, secret: &SecretKey, values: &[f64]) -> Result<Ciphertext> {
        let mut slots: Vec<_> = values.iter().map(|&x| Complex64::new(x, 0.0)).collect();
        slots.resize(self.slots().max(slots.len()), Complex64::ZERO);
        self.encrypt_at(secret, &slots, self.top_level())
    }

    /// Encrypts one complex number for each slot at a level.
    pub fn encrypt_at(&self, secret: &SecretKey, values: &[Complex64], level: usize) -> Result<Ciphertext> {
        let (got, slots, top) = (values.len(), self.slots(), self.top_level());
        if got != slots {
            return Err(hetal_circuits::Error::SlotCount { got, slots }.into());
        }
        if level > top {
            return Err(hetal_circuits::Error::NoSuchLevel { level, top }.into());
        }
        let basis = Basis { q: self.params.limbs(level), p: 0 };
        let plain = self.evaluator.encode(values, self.params.scale(level), basis)?;
        let inner = self.encryptor.encrypt(secret, &plain, &mut OsSeeds);
        Ok(LeveledCiphertext::new(&self.params, inner)?)
    }

    /// Decrypts to the real parts of all slots.
    ///
    /// The values contain the noise of the encryption. Publishing them exactly can reveal the
    /// secret key, so they come as [`Private`]; see [`hetal_keys::Release`] for values that leave
    /// their owner.
    pub fn decrypt(&self, secret: &SecretKey, ciphertext: &Ciphertext) -> Result<Private<Vec<f64>>> {
        let slots = self.decrypt_complex(secret, ciphertext)?;
        Ok(Private::new(slots.peek().iter().map(|z| z.re).collect()))
    }

    /// Decrypts to one complex number for each slot: see [`Context::decrypt`].
    pub fn decrypt_complex(&self, secret: &SecretKey, ciphertext: &Ciphertext) -> Result<Private<Vec<Complex64>>> {
        Ok(self.decryptor.decrypt(secret, ciphertext.inner())?)
    }
}
