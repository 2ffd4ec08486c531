//! Inner products of digits and switching keys, a block of a limb at a time.

use super::{Basis, PackedPoly, RnsRing};
use crate::buffer::Limb;
use crate::kernels::{self, MAX_DOT_TERMS, Scaled};
use crate::packed::{Packed, Residues};
use crate::{Isa, Modulus};
use std::ops::Range;

/// Entries of a limb per block: a pair of blocks fits the L1 cache, the blocks of eight steps fit
/// the L2 cache.
pub(super) const BLOCK: usize = 2048;

/// A few vectors, the terms of a sum of products.
#[derive(Clone, Copy)]
pub(super) struct ProductTerms<R> {
    vectors: [R; MAX_DOT_TERMS],
    count: usize,
}

impl<R: Residues> ProductTerms<R> {
    pub(super) fn new(vectors: impl Iterator<Item = R>) -> Self {
        let mut terms = Self { vectors: [R::default(); MAX_DOT_TERMS], count: 0 };
        for vector in vectors {
            assert!(terms.count < MAX_DOT_TERMS, "at most {MAX_DOT_TERMS} digits");
            terms.vectors[terms.count] = vector;
            terms.count += 1;
        }
        terms
    }

    /// A part of every vector.
    fn part(&self, range: Range<usize>) -> Self {
        let mut part = *self;
        part.vectors[..self.count].iter_mut().for_each(|vector| *vector = vector.part(range.clone()));
        part
    }

    pub(super) fn get(&self) -> &[R] {
        &self.vectors[..self.count]
    }
}

/// One limb of both halves of a switching key.
pub(super) struct KeyLimb<'a>(ProductTerms<Packed<'a>>, ProductTerms<Packed<'a>>);

impl<'a> KeyLimb<'a> {
    /// Limb `i` of `basis`, of the key's first `digits`.
    pub(super) fn new(key: &'a [(PackedPoly, PackedPoly)], basis: Basis, i: usize, digits: usize) -> Self {
        assert!(key.len() >= digits, "a key for every digit");
        let half = |pick: fn(&(PackedPoly, PackedPoly)) -> &PackedPoly| {
            ProductTerms::new(key[..digits].iter().map(|k| pick(k).matching(basis, i)))
        };
        Self(half(|k| &k.0), half(|k| &k.1))
    }
}

/// One limb of digits, of a key, and of what is added to the sums of their products.
pub(super) struct InnerProduct<'a> {
    pub(super) x: &'a ProductTerms<&'a [u64]>,
    pub(super) key: KeyLimb<'a>,
    pub(super) plus: [Option<Scaled<'a>>; 2],
}

impl InnerProduct<'_> {
    /// Writes a part of both sums.
    pub(super) fn write(&self, isa: Isa, q: &Modulus, range: Range<usize>, out: (&mut [u64], &mut [u64])) {
        let x = self.x.part(range.clone());
        let [y0, y1] = [&self.key.0, &self.key.1].map(|terms| terms.part(range.clone()));
        let plus = self.plus.map(|plus| plus.map(|(a, s)| (&a[range.clone()], s)));
        kernels::dot_packed_pair_plus_into(isa, q, out, x.get(), y0.get(), y1.get(), plus);
    }
}

/// Memory for a few blocks.
pub(super) struct Scratch {
    limbs: Vec<Limb>,
    block: usize,
}

impl Scratch {
    pub(super) fn blocks(&mut self) -> impl Iterator<Item = &mut [u64]> {
        self.limbs.iter_mut().flat_map(|limb| limb.chunks_mut(self.block))
    }
}

impl RnsRing {
    /// At least `count` blocks of [`BLOCK`] entries, with arbitrary contents.
    pub(super) fn scratch(&self, blocks: usize) -> Scratch {
        self.scratch_of(blocks, BLOCK)
    }

    /// At least so many blocks of up to `block` entries.
    pub(super) fn scratch_of(&self, blocks: usize, block: usize) -> Scratch {
        let block = block.min(self.degree());
        let limbs = (0..blocks.div_ceil(self.degree() / block)).map(|_| self.pool.take()).collect();
        Scratch { limbs, block }
    }
}
