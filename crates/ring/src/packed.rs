//! Packed residues of 52 bits for data that is only read. Keys and matrices take a fifth less
//! memory, and reading them, which is limited by memory bandwidth, takes a fifth less time.
//!
//! 128 residues form a group of 13 rows of 8 words. Residue `8 v + lane` of a group consists of the
//! bits from `52 v` on of column `lane`, read down the rows. A vector of neighbours is computed
//! from two rows with a few instructions, and no lane needs bits of another.

use crate::simd::{Simd, prefetch};
use std::ops::Range;

/// Bits of a residue: one more than the largest moduli have, so that 16 residues are exactly 13
/// words. IFMA instructions multiply integers of the same size.
const BITS: usize = 52;
/// Residues of a group.
const GROUP: usize = 128;
/// Rows of a group, and words of a row.
const ROWS: usize = 13;
const WIDTH: usize = 8;

/// Packed residues: a view of whole groups.
#[derive(Clone, Copy, Default)]
pub struct Packed<'a>(&'a [u64]);

/// The number of words that `residues` residues take. `residues` must be a multiple of 128.
pub fn words(residues: usize) -> usize {
    assert!(residues.is_multiple_of(GROUP), "groups are of {GROUP} residues");
    residues / GROUP * ROWS * WIDTH
}

/// The row and the bit of it where the residues `8 v ..` of a group begin.
const fn start(v: usize) -> (usize, usize) {
    (BITS * v / 64, BITS * v % 64)
}

/// Whether residues that begin at that bit of a row continue in the next one.
const fn spans_two_rows(bit: usize) -> bool {
    bit + BITS > 64
}

/// Residues below `2^52`, packed.
pub fn pack(residues: &[u64]) -> Vec<u64> {
    let mut out = vec![0; words(residues.len())];
    pack_into(residues, &mut out);
    out
}

/// [`pack`] into an existing buffer.
pub fn pack_into(residues: &[u64], out: &mut [u64]) {
    assert_eq!(out.len(), words(residues.len()));
    out.fill(0);
    for (residues, rows) in residues.chunks_exact(GROUP).zip(out.chunks_exact_mut(ROWS * WIDTH)) {
        for (v, residues) in residues.chunks_exact(WIDTH).enumerate() {
            let (row, bit) = start(v);
            for (lane, &x) in residues.iter().enumerate() {
                rows[row * WIDTH + lane] |= x << bit;
                if spans_two_rows(bit) {
                    rows[(row + 1) * WIDTH + lane] |= x >> (64 - bit);
                }
            }
        }
    }
}

impl<'a> Packed<'a> {
    /// A view of words that [`pack`] made.
    pub fn new(words: &'a [u64]) -> Self {
        assert!(words.len().is_multiple_of(ROWS * WIDTH), "whole groups");
        Self(words)
    }

    /// The residues, each in a word.
    pub fn unpack_into(self, out: &mut [u64]) {
        assert_eq!(self.0.len(), words(out.len()));
        for (out, rows) in out.chunks_exact_mut(GROUP).zip(self.0.chunks_exact(ROWS * WIDTH)) {
            for (v, out) in out.chunks_exact_mut(WIDTH).enumerate() {
                out.iter_mut().enumerate().for_each(|(lane, out)| *out = residue(rows, v, lane));
            }
        }
    }
}

/// Residue `8 v + lane` of a group.
#[inline(always)]
fn residue(rows: &[u64], v: usize, lane: usize) -> u64 {
    let (row, bit) = start(v);
    let low = rows[row * WIDTH + lane] >> bit;
    let high = if spans_two_rows(bit) { rows[(row + 1) * WIDTH + lane] << (64 - bit) } else { 0 };
    (low | high) & ((1 << BITS) - 1)
}

/// Residues in memory, as kernels read them.
pub(crate) trait Residues: Copy + Default {
    /// The position of a vector, shared by all such residues.
    type Position<S: Simd>: Copy;

    fn len(self) -> usize;
    /// The residues of a range, which begins and ends between groups.
    fn part(self, range: Range<usize>) -> Self;
    fn get(self, i: usize) -> u64;

    /// The position of the residues from `i` on, a multiple of `S::LANES`.
    ///
    /// # Safety
    ///
    /// As for [`Simd`], for this method and the methods below. There are `S::LANES` residues from
    /// the position on.
    unsafe fn position<S: Simd>(i: usize) -> Self::Position<S>;
    /// A vector of residues.
    unsafe fn load<S: Simd>(self, position: &Self::Position<S>) -> S::U;
    /// [`Residues::load`], but the bits from 52 on are arbitrary.
    unsafe fn load_low<S: Simd>(self, position: &Self::Position<S>) -> S::U;
}

impl Residues for &[u64] {
    type Position<S: Simd> = usize;

    fn len(self) -> usize {
        self.len()
    }
    fn part(self, range: Range<usize>) -> Self {
        &self[range]
    }
    fn get(self, i: usize) -> u64 {
        self[i]
    }
    #[inline(always)]
    unsafe fn position<S: Simd>(i: usize) -> usize {
        i
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(self, position: &usize) -> S::U {
        // SAFETY: the caller's.
        unsafe { S::load_u(self.as_ptr().add(*position)) }
    }
    #[inline(always)]
    unsafe fn load_low<S: Simd>(self, position: &usize) -> S::U {
        // SAFETY: the caller's.
        unsafe { self.load::<S>(position) }
    }
}

/// Distance in words of the prefetch: packed residues mostly come from memory.
const AHEAD: usize = 16 * WIDTH;

/// The two rows of a vector of packed residues, and how they are shifted to it.
#[derive(Clone, Copy)]
pub(crate) struct PackedRow<S: Simd> {
    low: usize,
    high: usize,
    right: S::U,
    left: S::U,
}

impl Residues for Packed<'_> {
    type Position<S: Simd> = PackedRow<S>;

    fn len(self) -> usize {
        self.0.len() / (ROWS * WIDTH) * GROUP
    }
    fn part(self, range: Range<usize>) -> Self {
        Self(&self.0[words(range.start)..words(range.end)])
    }
    fn get(self, i: usize) -> u64 {
        residue(&self.0[words(i - i % GROUP)..], i % GROUP / WIDTH, i % WIDTH)
    }
    #[inline(always)]
    unsafe fn position<S: Simd>(i: usize) -> PackedRow<S> {
        let (row, bit) = start(i % GROUP / WIDTH);
        let low = i / GROUP * (ROWS * WIDTH) + row * WIDTH + i % WIDTH;
        // The last row of a group has none below, and its residues do not span two rows.
        let high = if row + 1 < ROWS { low + WIDTH } else { low };
        // SAFETY: the caller's.
        unsafe { PackedRow { low, high, right: S::splat_u(bit as u64), left: S::splat_u(64 - bit as u64) } }
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(self, position: &PackedRow<S>) -> S::U {
        // SAFETY: the caller's.
        unsafe { S::and_u(self.load_low::<S>(position), S::splat_u((1 << BITS) - 1)) }
    }
    #[inline(always)]
    unsafe fn load_low<S: Simd>(self, position: &PackedRow<S>) -> S::U {
        // A row is a cache line: one of its vectors asks for it.
        if position.low.is_multiple_of(WIDTH) {
            prefetch(self.0.as_ptr().wrapping_add(position.low + AHEAD));
        }
        // SAFETY: the caller's; the rows of its residues are inside the group.
        unsafe {
            let low = S::shift_right(S::load_u(self.0.as_ptr().add(position.low)), position.right);
            let high = S::shift_left(S::load_u(self.0.as_ptr().add(position.high)), position.left);
            S::or_u(low, high)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residues_come_back() {
        let residues: Vec<u64> = (0..3 * GROUP as u64)
            .map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - BITS))
            .chain([0; GROUP])
            .collect();
        let mut packed = vec![u64::MAX; words(residues.len())];
        pack_into(&residues, &mut packed);
        let view = Packed::new(&packed);
        let mut back = vec![0; residues.len()];
        view.unpack_into(&mut back);
        assert_eq!(back, residues);
        assert_eq!(view.len(), residues.len());
        let one_by_one: Vec<u64> = (0..residues.len()).map(|i| view.get(i)).collect();
        assert_eq!(one_by_one, residues);
        let part = view.part(GROUP..2 * GROUP);
        assert!((0..GROUP).all(|i| part.get(i) == residues[GROUP + i]));
    }
}
