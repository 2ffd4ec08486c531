//! Keys and ciphertexts between the CPU's ring and the device.

use crate::{CudaBackend, CudaPoly};
use hetal_ckks::{Backend, Ciphertext, EvaluationKeys, SwitchingKey};
use hetal_ring::{PackedPoly, Poly};
use std::convert::Infallible;

impl CudaBackend {
    /// A polynomial of the CPU's ring on the device.
    pub fn upload_poly(&self, a: &Poly) -> CudaPoly {
        let limbs: Vec<&[u64]> = a.limbs().iter().map(|limb| &limb[..]).collect();
        self.upload(a.basis(), &limbs)
    }

    /// A packed polynomial of the CPU's ring on the device, where every residue is a word.
    pub fn upload_packed(&self, a: &PackedPoly) -> CudaPoly {
        let unpack = |i, limb: &mut [u64]| {
            a.limb(i).unpack_into(limb);
            Ok::<_, Infallible>(())
        };
        let Ok(poly) = self.try_from_limbs(a.degree(), a.basis(), unpack);
        poly
    }

    /// A ciphertext of the CPU's ring on the device.
    pub fn upload_ciphertext(&self, a: &Ciphertext<Poly>) -> Ciphertext<CudaPoly> {
        Ciphertext {
            c0: self.upload_poly(&a.c0),
            c1: self.upload_poly(&a.c1),
            limbs: a.limbs,
            scale: a.scale,
            set: a.set,
        }
    }

    /// A switching key of the CPU's ring on the device.
    pub fn upload_key(&self, key: &SwitchingKey<PackedPoly>) -> SwitchingKey<CudaPoly> {
        SwitchingKey {
            id: key.id,
            basis: key.basis,
            seed: key.seed.clone(),
            digits: key.digits.iter().map(|(b, a)| (self.upload_packed(b), self.upload_packed(a))).collect(),
        }
    }

    /// All keys on the device.
    pub fn upload_keys(&self, keys: &EvaluationKeys<PackedPoly>) -> EvaluationKeys<CudaPoly> {
        let mut out = EvaluationKeys::default();
        keys.iter().for_each(|key| out.insert(self.upload_key(key)));
        out
    }
}
