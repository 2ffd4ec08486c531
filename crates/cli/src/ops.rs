//! `hetal bench ops`: the figures of one parameter set.

use crate::machine::{peak_rss_gib, time, with_threads};
use crate::{Result, progress};
use hetal_circuits::{Bootstrapper, bootstrap};
use hetal_ckks::{Ciphertext, Complex64, EvaluationKeys, Evaluator, KeyId, Params};
use hetal_keys::{Decryptor, Encryptor, KeyGenerator, SecretKey};
use hetal_ring::sampler::{OsSeeds, SeedSource};
use hetal_ring::{Basis, Isa, Poly, RnsRing};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Limbs in the chain for the figures of single operations.
const OPERATION_LIMBS: usize = 13;

/// A data owner and a server in one process, with every key the figures need.
pub struct Bench {
    params: Arc<Params>,
    ring: Arc<RnsRing>,
    evaluator: Evaluator<RnsRing>,
    keys: EvaluationKeys<Poly>,
    bootstrapper: Bootstrapper<Poly>,
    secret: SecretKey,
    encryptor: Encryptor,
    decryptor: Decryptor,
}

impl Bench {
    /// Makes keys and encodes matrices, with a bar.
    pub fn new(set: &str) -> Result<Self> {
        let params = Arc::new(Params::named(set)?);
        let wanted = bootstrap::keys(&params);
        let bar = progress::bar(wanted.len() as u64 + 2);
        bar.set_message("transforms");
        let ring = RnsRing::new(params.log_n(), params.chain(), params.special(), Isa::detect());
        let ring = Arc::new(ring.map_err(|q| hetal_ckks::Error::Params {
            name: set.to_owned(),
            reason: format!("{q} is no prime for its ring"),
        })?);
        let evaluator = Evaluator::new(Arc::clone(&params), Arc::clone(&ring));
        let mut seeds = OsSeeds;
        let secret = SecretKey::generate(&params, &mut seeds);
        let generator = KeyGenerator::new(Arc::clone(&params), Arc::clone(&ring));
        let mut keys = EvaluationKeys::default();
        bar.inc(1);
        bar.set_message("keys");
        for (id, limbs) in wanted {
            generate(&generator, &secret, id, limbs, &mut keys, &mut seeds)?;
            bar.inc(1);
        }
        bar.set_message("bootstrapping matrices");
        let bootstrapper = Bootstrapper::new(&evaluator, &[0])?;
        bar.finish_and_clear();
        Ok(Self {
            encryptor: Encryptor::new(Arc::clone(&params), Arc::clone(&ring)),
            decryptor: Decryptor::new(Arc::clone(&params), Arc::clone(&ring)),
            params,
            ring,
            evaluator,
            keys,
            bootstrapper,
            secret,
        })
    }

    fn encrypt(&self, values: &[Complex64], limbs: usize, scale: f64) -> Result<Ciphertext<Poly>> {
        let plain = self.evaluator.encode(values, scale, Basis { q: limbs, p: 0 })?;
        Ok(self.encryptor.encrypt(&self.secret, &plain, &mut OsSeeds))
    }

    /// Mean and largest error of one bootstrap of `values`, as log2.
    fn bootstrap_error(&self, values: &[Complex64]) -> Result<(f64, f64)> {
        let ct = self.encrypt(values, self.params.limbs(0), self.params.scale(0))?;
        let out = self.bootstrapper.bootstrap(&self.evaluator, &ct, 0, &self.keys)?;
        let got = self.decryptor.decrypt(&self.secret, &out)?;
        let errors: Vec<f64> = got.iter().zip(values).map(|(a, b)| (a - b).norm()).collect();
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        Ok((mean.log2(), errors.iter().copied().fold(0.0, f64::max).log2()))
    }

    /// Microseconds of one forward transform on one thread.
    pub fn ntt_us(&self, runs: usize) -> f64 {
        let mut poly = self.ring.zero(Basis { q: 1, p: 0 });
        poly.limbs_mut()[0].iter_mut().enumerate().for_each(|(i, x)| *x = i as u64);
        let table = self.ring.table(poly.basis(), 0);
        let isa = self.ring.isa();
        1e6 * time(runs, || table.forward(isa, &mut poly.limbs_mut()[0])).1
    }

    /// Milliseconds of a product with relinearisation and rescale, and of a rotation, on one thread.
    fn operations_ms(&self) -> Result<(f64, f64)> {
        let limbs = OPERATION_LIMBS.min(self.params.limbs(self.params.top_level()));
        let values = uniform_square(self.params.slots(), &mut OsSeeds);
        let a = self.encrypt(&values, limbs, self.params.scale(self.params.top_level()))?;
        let product = || self.evaluator.sum_of_products(&[(&a, &a)], &self.keys);
        let rotation = self.evaluator.galois_of_rotation(1);
        let rotate = || self.evaluator.automorphism(&a, rotation, &self.keys);
        product()?;
        rotate()?;
        Ok(with_threads(1, || (1e3 * time(20, product).1, 1e3 * time(20, rotate).1))?)
    }

    /// Every figure of the set but those of other code, as one flat object.
    pub fn measure(&self, threads: usize) -> Result<Map<String, Value>> {
        let bar = progress::bar(6);
        let step = |message: &'static str| {
            bar.set_message(message);
            bar.inc(1);
        };
        let slots = self.params.slots();
        let values = uniform_square(slots, &mut OsSeeds);
        let ct = self.encrypt(&values, self.params.limbs(0), self.params.scale(0))?;
        let run = || self.bootstrapper.bootstrap(&self.evaluator, &ct, 0, &self.keys);
        step("single operations");
        let (mult, rotate) = self.operations_ms()?;
        step("bootstrap, 1 thread");
        run()?;
        let (wall_1, cpu_1) = with_threads(1, || time(2, run))?;
        step("bootstrap, 2 threads");
        let (wall_2, _) = with_threads(2, || time(2, run))?;
        let wall = match threads {
            1 => wall_1,
            2 => wall_2,
            _ => with_threads(threads, || time(2, run))?.0,
        };
        step("precision");
        let (mean, max) = self.bootstrap_error(&values)?;
        let (_, constant) = self.bootstrap_error(&vec![Complex64::new(0.7, -0.3); slots])?;
        step("precision");
        let repeated: Vec<Complex64> = (0..slots).map(|i| values[i % 64]).collect();
        let (_, replicated) = self.bootstrap_error(&repeated)?;
        bar.finish_and_clear();
        let limb_bytes = self.params.degree() * 8;
        let gib = |limbs: usize| (limbs * limb_bytes) as f64 / f64::from(1 << 30);
        let report = json!({
            "set": self.params.name(),
            "threads": threads,
            "isa": self.ring.isa().name(),
            "ntt_us": self.ntt_us(200),
            "mult_relin_rescale_ms": mult,
            "rotate_ms": rotate,
            "operation_limbs": OPERATION_LIMBS,
            "bootstrap_wall_s": wall,
            "bootstrap_cpu_s": cpu_1,
            "bootstrap_wall_1t_s": wall_1,
            "bootstrap_wall_2t_s": wall_2,
            "bootstrap_err_mean_log2": mean,
            "bootstrap_err_max_log2": max,
            "bootstrap_err_max_constant_log2": constant,
            "bootstrap_err_max_replicated_log2": replicated,
            "usable_levels": self.params.top_level(),
            "security_bits": self.params.security().bits(),
            "keys_resident_gib": gib(self.keys.limbs()),
            "keys_bytes_gib": gib(self.keys.limbs()) / 2.0,
            "matrices_gib": gib(self.bootstrapper.encoded_limbs()),
            "peak_rss_gib": peak_rss_gib(),
        });
        match report {
            Value::Object(map) => Ok(map),
            _ => Ok(Map::new()),
        }
    }
}

fn generate(
    generator: &KeyGenerator,
    secret: &SecretKey,
    id: KeyId,
    limbs: usize,
    keys: &mut EvaluationKeys<Poly>,
    seeds: &mut dyn SeedSource,
) -> Result<()> {
    match id {
        KeyId::Relinearisation => keys.insert(generator.relinearisation(secret, limbs, seeds)?),
        KeyId::Galois(galois) => keys.insert(generator.galois(secret, galois, limbs, seeds)?),
        KeyId::ToSparse => generator.encapsulation(secret, seeds)?.into_iter().for_each(|key| keys.insert(key)),
        // Made together with the key to the sparse secret, which is then forgotten.
        KeyId::FromSparse => {}
    }
    Ok(())
}

/// Complex numbers with both parts uniform in [-1, 1].
fn uniform_square(n: usize, seeds: &mut dyn SeedSource) -> Vec<Complex64> {
    let seed = seeds.next_seed();
    let mut state = u64::from_le_bytes([seed.0[0], seed.0[1], seed.0[2], seed.0[3], 5, 6, 7, 8]);
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..n).map(|_| Complex64::new(next(), next())).collect()
}
