//! Division by primes of the basis, rounded to the nearest: rescale, mod-down, and both at once.

use super::mod_up::{groups, words};
use super::{Basis, Poly, RnsRing, Sources};
use crate::buffer::Limb;
use crate::kernels;
use rayon::prelude::*;

impl RnsRing {
    /// `round(a / D)` where `D` is the product of all special primes of `a` and the last `drop_q`
    /// of its chain primes: a mod-down, a rescale, or the two merged into one conversion.
    pub fn divide(&self, mut a: Poly, drop_q: usize) -> Poly {
        let from = a.basis;
        let to = Basis { q: from.q - drop_q, p: 0 };
        assert!(to.q > 0 && to != from, "something to divide by, something left");
        let conversion = self.conversion(Sources { q_start: to.q, q_end: from.q, p: from.p });
        let sources = a.limbs.split_off(to.q);
        a.basis = to;
        let scaled: Vec<Limb> = sources
            .into_par_iter()
            .with_min_len(self.grain())
            .enumerate()
            .map(|(k, mut limb)| {
                let scale = conversion.converter.hat_inverse(k);
                self.table(from, to.q + k).inverse_scaled(self.isa, &mut limb, scale);
                limb
            })
            .collect();
        let scaled = words(&scaled);
        let groups = groups(a.limbs.iter_mut().collect());
        groups.into_par_iter().with_min_len(self.grain()).for_each(|(first, limbs)| {
            let targets: Vec<usize> = (first..first + limbs.len()).collect();
            let remainders = self.converted(&conversion, &scaled, to, &targets);
            for ((limb, mut remainder), i) in limbs.into_iter().zip(remainders).zip(targets) {
                let table = self.table(to, i);
                let inverse = conversion.target(self.full_basis(), to, i).product_inverse();
                table.forward(self.isa, &mut remainder);
                kernels::sub_mul_scalar_assign(self.isa, table.modulus(), limb, &remainder, inverse);
            }
        });
        a
    }
}
