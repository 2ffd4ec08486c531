//! Decryption.

use crate::secret::SecretPoly;
use crate::{Private, SecretKey};
use hetal_ckks::{Ciphertext, Complex64, Encoder, Error, Params, Result};
use hetal_ring::{Basis, Poly, RnsRing};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Decrypts ciphertexts.
///
/// The result is private: it contains the noise, and noise published together with its ciphertext
/// reveals the secret key. Values that leave the owner go through a [`crate::Release`].
pub struct Decryptor {
    params: Arc<Params>,
    ring: Arc<RnsRing>,
    encoder: Encoder,
}

impl Decryptor {
    /// A decryptor for a parameter set.
    pub fn new(params: Arc<Params>, ring: Arc<RnsRing>) -> Self {
        Self { encoder: Encoder::new(params.log_n()), params, ring }
    }

    /// The slots of the message, noise included.
    pub fn decrypt(&self, secret: &SecretKey, ct: &Ciphertext<Poly>) -> Result<Private<Vec<Complex64>>> {
        if ct.set != self.params.tag() {
            return Err(Error::MixedParams { operation: "decryption", set: self.params.name().to_owned() });
        }
        self.params.check_ring(&self.ring)?;
        let coefficients = Zeroizing::new(self.coefficients(secret, ct));
        Ok(Private::new(self.encoder.decode(&coefficients, self.params.slots())?))
    }

    /// The coefficients of the message divided by its scale, noise included.
    pub fn decrypt_coefficients(&self, secret: &SecretKey, ct: &Ciphertext<Poly>) -> Result<Private<Vec<f64>>> {
        if ct.set != self.params.tag() {
            return Err(Error::MixedParams { operation: "decryption", set: self.params.name().to_owned() });
        }
        self.params.check_ring(&self.ring)?;
        Ok(Private::new(self.coefficients(secret, ct)))
    }

    /// The coefficients of the message divided by its scale.
    fn coefficients(&self, secret: &SecretKey, ct: &Ciphertext<Poly>) -> Vec<f64> {
        // Messages are far below q0 q1, so two limbs hold them; their product stays below 2^101.
        let basis = Basis { q: ct.limbs.min(2), p: 0 };
        let s = secret.lift(&self.ring, basis);
        // The message with its noise reveals the secret, so it does not stay in the pool.
        let mut m = SecretPoly(self.ring.mul(&ct.c1, &s.0, basis));
        self.ring.add_assign(&mut m.0, &ct.c0);
        self.ring.inverse_secret(&mut m.0);
        let q0 = *self.ring.modulus(basis, 0);
        let limbs = m.0.limbs();
        if basis.q == 1 {
            return limbs[0].iter().map(|&x| q0.center(x) as f64 / ct.scale).collect();
        }
        // Garner: x = x0 + q0 ((x1 - x0)/q0 mod q1), centred.
        let q1 = *self.ring.modulus(basis, 1);
        let inverse = q1.inv(q0.value() % q1.value());
        let product = i128::from(q0.value()) * i128::from(q1.value());
        let combine = |(&x0, &x1): (&u64, &u64)| {
            let t = q1.mul(q1.sub(x1, x0 % q1.value()), inverse);
            let x = i128::from(x0) + i128::from(q0.value()) * i128::from(t);
            let centred = if x > product / 2 { x - product } else { x };
            centred as f64 / ct.scale
        };
        limbs[0].iter().zip(limbs[1].iter()).map(combine).collect()
    }
}
