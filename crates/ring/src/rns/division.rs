//! Division by primes of the basis, rounded to the nearest: rescale, mod-down, and both at once.

use super::mod_up::doubles;
use super::{Basis, Poly, RnsRing, Sources};
use crate::buffer::Limb;
use crate::kernels;
use rayon::prelude::*;

impl RnsRing {
    /// `round(a / D)` where `D` is the product of all special primes of `a` and the last `drop_q` of its chain primes:
    /// a mod-down, a rescale, or the two merged into one conversion.
    pub fn divide(&self, mut a: Poly, drop_q: usize) -> Poly {
        let from = a.basis;
        let to = Basis { q: from.q - drop_q, p: 0 };
        assert!(to.q > 0 && to != from, "something to divide by, something left");
        let conversion = self.conversion(Sources { q_start: to.q, q_end: from.q, p: from.p });
        let sources = a.limbs.split_off(to.q);
        a.basis = to;
        let y: Vec<Limb> = sources
            .into_par_iter()
            .with_min_len(self.grain())
            .enumerate()
            .map(|(k, limb)| self.scaled_coefficients(limb, self.table(from, to.q + k), &conversion.converter, k))
            .collect();
        let overflow = self.overflow(&conversion, &y);
        let y = doubles(&y);
        self.for_each_limb(&mut a, |table, i, limb| {
            let target = conversion.target(self.full_basis(), to, i);
            let mut remainder = self.pool.take();
            conversion.converter.convert_into(self.isa, target, &y, overflow.as_f64(), &mut remainder);
            table.forward(self.isa, &mut remainder);
            kernels::sub_mul_scalar_assign(self.isa, table.modulus(), limb, &remainder, target.product_inverse());
        });
        a
    }
}
