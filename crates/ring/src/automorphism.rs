//! `X -> X^g` for odd `g`, as a permutation of the values an NTT gives.

use crate::ntt::bit_reverse;
use std::ops::Range;
use std::sync::OnceLock;

/// The permutation that applies `X -> X^g` in the NTT domain.
///
/// Entry `j` is the value at `psi^(2 brv(j) + 1)`. Composed with `X^g` it is the value at
/// `psi^(g (2 brv(j) + 1))`.
///
/// The entries of a block of `2^k` share the low bits of `brv(j)`, and so those of the exponent
/// after the product with an odd number. Their sources also fill one block, in another order, so
/// vectors move a block at a time.
pub struct Permutation {
    eight: Vec<GatherBlock>,
    /// For vectors of four, computed when needed: a ring has a permutation for every key.
    four: OnceLock<Vec<GatherBlock>>,
}

/// The sources of the entries of one vector.
#[derive(Clone, Copy)]
pub(crate) struct GatherBlock {
    /// The first entry of the block they are in.
    pub(crate) source: u32,
    /// Their indices in it: of eight entries, or of eight halves of four.
    pub(crate) indices: [u8; 8],
}

impl Permutation {
    /// The permutation of `X -> X^galois` for degree `2^log_n`, at least 8.
    pub fn new(log_n: u32, galois: u64) -> Self {
        assert!((3..32).contains(&log_n) && galois % 2 == 1, "an automorphism of at least one vector");
        let mask = (2u64 << log_n) - 1;
        let source = |j: usize| {
            let exponent = (2 * bit_reverse(j, log_n) as u64 + 1).wrapping_mul(galois) & mask;
            bit_reverse((exponent >> 1) as usize, log_n) as u32
        };
        let eight = |number: usize| {
            let sources: [u32; 8] = std::array::from_fn(|index| source(8 * number + index));
            let first = sources[0] / 8 * 8;
            debug_assert!(sources.iter().all(|i| i / 8 * 8 == first), "one block");
            GatherBlock { source: first, indices: sources.map(|i| (i % 8) as u8) }
        };
        Self { eight: (0..1usize << (log_n - 3)).map(eight).collect(), four: OnceLock::new() }
    }

    /// Entries that are permuted.
    fn len(&self) -> usize {
        8 * self.eight.len()
    }

    /// The whole permutation as one part.
    pub fn whole(&self) -> Part<'_> {
        self.part(0, self.len())
    }

    /// The permutation in parts of `len` entries, a power of two and at least 8, or as one part if
    /// it is shorter.
    pub(crate) fn parts(&self, len: usize) -> impl Iterator<Item = Part<'_>> {
        let len = len.min(self.len());
        (0..self.len()).step_by(len).map(move |start| self.part(start, len))
    }

    /// The entries from `start` on, which is a multiple of their number.
    pub(crate) fn part(&self, start: usize, len: usize) -> Part<'_> {
        assert!(len.is_power_of_two() && len >= 8 && start.is_multiple_of(len), "whole blocks");
        Part { permutation: self, start, source: self.eight[start / 8].source as usize / len * len, len }
    }

    /// Its blocks for vectors of `lanes` entries.
    fn blocks(&self, lanes: usize) -> &[GatherBlock] {
        if lanes == 8 { &self.eight } else { self.four.get_or_init(|| self.eight.iter().flat_map(halves).collect()) }
    }
}

/// A range of entries whose sources are a range, too.
pub struct Part<'a> {
    permutation: &'a Permutation,
    start: usize,
    source: usize,
    len: usize,
}

impl Part<'_> {
    /// The entries.
    pub(crate) fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }

    /// The range of their sources, in another order.
    pub(crate) fn source(&self) -> Range<usize> {
        self.source..self.source + self.len
    }

    /// The blocks for vectors of `lanes` entries, and where each begins among the sources.
    pub(crate) fn blocks(&self, lanes: usize) -> impl Iterator<Item = (usize, &GatherBlock)> {
        let Range { start, end } = self.range();
        let blocks = &self.permutation.blocks(lanes)[start / lanes..end / lanes];
        blocks.iter().map(|block| (block.source as usize - self.source, block))
    }

    /// The index of the source of every entry.
    pub(crate) fn source_indices(&self) -> impl Iterator<Item = usize> {
        self.blocks(8).flat_map(|(first, block)| block.indices.map(|index| first + usize::from(index)))
    }
}

/// A block of eight as two blocks of four, whose indices are those of their halves.
fn halves(block: &GatherBlock) -> [GatherBlock; 2] {
    [0, 4].map(|first| {
        let indices = &block.indices[first..first + 4];
        let source = block.source + u32::from(indices[0] / 4 * 4);
        GatherBlock { source, indices: std::array::from_fn(|half| 2 * (indices[half / 2] % 4) + (half % 2) as u8) }
    })
}

/// `X -> X^g` on signed coefficients (used for secrets, before they are put in residue form).
pub fn on_coefficients(a: &[i8], galois: u64) -> Vec<i8> {
    let n = a.len();
    let mut out = vec![0; n];
    for (k, &c) in a.iter().enumerate() {
        let e = (k as u64).wrapping_mul(galois) as usize & (2 * n - 1);
        if e < n {
            out[e] = c;
        } else {
            out[e - n] = -c;
        }
    }
    out
}

/// The automorphism that rotates slots left by `k` (of `2^(log_n - 1)`): `5^k mod 2n`. Negative is
/// to the right.
pub fn rotation_to_galois(log_n: u32, k: i64) -> u64 {
    let slots = 1i64 << (log_n - 1);
    let mask = (2u64 << log_n) - 1;
    let mut e = k.rem_euclid(slots) as u64;
    let (mut g, mut square) = (1u64, 5u64);
    while e > 0 {
        if e & 1 == 1 {
            g = g.wrapping_mul(square) & mask;
        }
        square = square.wrapping_mul(square) & mask;
        e >>= 1;
    }
    g
}

/// The inverse of an odd `g` modulo `2n`.
pub fn inverse(log_n: u32, galois: u64) -> u64 {
    // Newton over the 2-adic integers: each step doubles the number of correct bits.
    let mut x = galois;
    for _ in 0..6 {
        x = x.wrapping_mul(2u64.wrapping_sub(galois.wrapping_mul(x)));
    }
    x & ((2u64 << log_n) - 1)
}

/// The automorphism of complex conjugation of all slots: `2n - 1`.
pub fn conjugation(log_n: u32) -> u64 {
    (2u64 << log_n) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, kernels, ntt::NttTable};

    #[test]
    fn permutation_is_the_automorphism() {
        let (log_n, q) = (8, 1125899903827969);
        let table = NttTable::new(q, log_n).unwrap();
        let small: Vec<i8> = (0..256).map(|i| ((i * 37) % 5) as i8 - 2).collect();
        let lift = |a: &[i8]| {
            let mut r: Vec<u64> = a.iter().map(|&x| table.modulus().reduce_small(x.into())).collect();
            table.forward(Isa::Scalar, &mut r);
            r
        };
        for g in [5, 25, 511, rotation_to_galois(log_n, -3), inverse(log_n, 5)] {
            let permutation = Permutation::new(log_n, g);
            for isa in Isa::available() {
                let mut permuted = vec![0; 256];
                kernels::permute_into(isa, &mut permuted, &lift(&small), &permutation.whole());
                assert_eq!(permuted, lift(&on_coefficients(&small, g)), "g = {g}, {isa:?}");
                let mut in_parts = vec![0; 256];
                for part in permutation.parts(32) {
                    kernels::permute_into(isa, &mut in_parts[part.range()], &lift(&small)[part.source()], &part);
                }
                assert_eq!(in_parts, permuted, "g = {g}, {isa:?}, in parts");
            }
        }
    }

    #[test]
    fn group_laws() {
        for k in [-5i64, -1, 0, 1, 7, 100] {
            let g = rotation_to_galois(10, k);
            assert_eq!(g.wrapping_mul(rotation_to_galois(10, -k)) & 2047, 1);
            assert_eq!(g.wrapping_mul(inverse(10, g)) & 2047, 1);
        }
        assert_eq!(rotation_to_galois(10, 512), 1);
    }
}
