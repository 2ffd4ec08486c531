//! Polynomials that are only read.

use super::{Basis, Poly, RnsRing};
use crate::buffer::Limb;
use crate::packed::{self, Packed};

/// A polynomial with [`packed`] residues, for keys and matrices, which take gigabytes.
pub struct PackedPoly {
    basis: Basis,
    degree: usize,
    limbs: Vec<Limb>,
}

impl PackedPoly {
    /// The primes it is reduced by.
    pub fn basis(&self) -> Basis {
        self.basis
    }

    /// Residues of a limb.
    pub fn degree(&self) -> usize {
        self.degree
    }

    /// Limb `i`, in the order of the basis.
    pub fn limb(&self, i: usize) -> Packed<'_> {
        Packed::new(&self.limbs[i])
    }

    /// The limb that belongs to limb `i` of `basis`, which is no larger than this polynomial's.
    pub(super) fn matching(&self, basis: Basis, i: usize) -> Packed<'_> {
        self.limb(if i < basis.q { i } else { self.basis.q + i - basis.q })
    }
}

impl RnsRing {
    /// Packs a polynomial on the calling thread alone: keys are packed while they are loaded, with
    /// a lock held.
    pub fn pack(&self, a: &Poly) -> PackedPoly {
        let packed = |limb: &Limb| {
            let mut out = self.packed_pool.take();
            packed::pack_into(limb, &mut out);
            out
        };
        PackedPoly { basis: a.basis, degree: self.degree(), limbs: a.limbs.iter().map(packed).collect() }
    }

    /// The polynomial that was packed; on the calling thread alone.
    pub fn unpack(&self, a: &PackedPoly) -> Poly {
        let mut out = self.uninit(a.basis);
        out.limbs.iter_mut().enumerate().for_each(|(i, limb)| a.limb(i).unpack_into(limb));
        out
    }
}
