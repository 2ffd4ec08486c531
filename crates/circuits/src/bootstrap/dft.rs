//! The map between coefficients and slots as a product of a few sparse matrices.

use crate::{KeyPlan, Result};
use hetal_ckks::{Backend, Complex64, Encoder, Evaluator, KeyId, LinearTransform, RotationSteps};
use std::collections::{BTreeMap, BTreeSet};
use std::iter;

/// The shape of a product of consecutive butterflies of `n` slots, before its entries are computed.
pub(super) struct DftShape {
    n: i64,
    lengths: Vec<usize>,
    inverse: bool,
    /// Outer rotations are multiples of it.
    giant_step: i64,
    /// Middle rotations are multiples of it.
    middle_step: i64,
    /// Whether outer rotations are nested. Then none is negative.
    nested: bool,
    /// By how many slots the result is rotated.
    turned: i64,
    /// Added to the rotation of every diagonal, because the input and the result are rotated: the
    /// rotation of the result minus the rotation of the input.
    moved: i64,
    /// Every diagonal is repeated so many times, each time `n` further: the first terms of a trace.
    copies: i64,
    /// Whether it is applied to a raised ciphertext. Keys of its inner rotations have a fifth of
    /// the usual size, and its digit needs no decomposition.
    pub(super) raised: bool,
}

/// The butterflies of `n` slots in `count` groups, in the order in which they are applied: short
/// ones first from (bit-reversed) coefficients to slots, long ones first for the inverse.
pub(super) fn shapes(n: usize, count: usize, inverse: bool, plan: KeyPlan) -> Vec<DftShape> {
    shapes_of_sizes(n, equal_sizes(n.ilog2() as usize, count), inverse, plan, false)
}

/// `all` butterflies in `count` groups as equal as they can be, larger ones first.
fn equal_sizes(all: usize, count: usize) -> Vec<usize> {
    (0..count).map(|k| all / count + usize::from(k < all % count)).collect()
}

/// The [`shapes`] of the inverse, the first of which is for a raised ciphertext. It has more
/// butterflies than the others, so that these have fewer giant steps: at `full` 7, 4 and 4
/// butterflies instead of 5 each need 9 giant steps instead of 17. With as many matrices as
/// butterflies, each has one.
pub(super) fn shapes_of_raised(n: usize, count: usize, plan: KeyPlan) -> Vec<DftShape> {
    if count == 0 {
        return Vec::new();
    }
    let all = n.ilog2() as usize;
    let later = all.saturating_sub(1) / count;
    let sizes = match later {
        0 => equal_sizes(all, count),
        _ => iter::once(all - later * (count - 1)).chain(iter::repeat_n(later, count - 1)).collect(),
    };
    shapes_of_sizes(n, sizes, true, plan, true)
}

/// Groups of butterflies. The first may be for a raised ciphertext.
fn shapes_of_sizes(n: usize, sizes: Vec<usize>, inverse: bool, plan: KeyPlan, raised_first: bool) -> Vec<DftShape> {
    let mut lengths: Vec<usize> = (1..=n.ilog2()).map(|k| 1 << k).collect();
    if inverse {
        lengths.reverse();
    }
    let mut lengths = lengths.into_iter();
    let shape = |(k, size)| {
        let lengths = lengths.by_ref().take(size).collect();
        let raised = raised_first && k == 0;
        DftShape {
            n: n as i64,
            lengths,
            inverse,
            giant_step: 0,
            middle_step: 0,
            nested: plan.chains(),
            turned: 0,
            moved: 0,
            copies: 1,
            raised,
        }
        .with_steps(plan)
    };
    sizes.into_iter().enumerate().map(shape).collect()
}

/// Makes all rotations of nested groups at least 0: such a group cannot rotate backwards. Returns
/// by how many slots the input of the first group must be rotated.
///
/// A group whose smallest rotation is negative gets an input that is already rotated by its first
/// outer rotation. Its own rotations then begin at 0. The group before it rotates its result for
/// it. A first group for a raised ciphertext gets an input that is not rotated: its inner rotations
/// may be negative.
pub(super) fn align(shapes: &mut [DftShape]) -> i64 {
    let mut turned = 0;
    for shape in shapes.iter_mut().rev() {
        let start = if shape.nested { shape.window_start() } else { 0 };
        (shape.turned, shape.moved) = if shape.raised { (turned, turned) } else { (turned, -start) };
        turned = if shape.raised { 0 } else { turned + start };
    }
    turned
}

impl DftShape {
    /// The number of baby steps is about the root of the number of diagonals, rounded up. A raised
    /// ciphertext has twice as many, because its keys have a fifth of the usual size, but at most a
    /// quarter of the diagonals.
    fn with_steps(self, plan: KeyPlan) -> Self {
        let log_diagonals = self.log_diagonals();
        let log_inner = match (self.raised, plan) {
            (true, _) => log_diagonals.saturating_sub(2).min(log_diagonals.div_ceil(2) + 1),
            (false, KeyPlan::Most) => log_diagonals.div_ceil(2) + 1,
            (false, _) => log_diagonals.div_ceil(2),
        };
        let most = if self.raised { i64::MAX } else { plan.most_inner() };
        let (stride, inner) = (self.stride(), 1 << log_inner);
        Self { giant_step: stride * inner, middle_step: stride * inner.min(most), ..self }
    }

    /// The first outer rotation, at most 0.
    fn window_start(&self) -> i64 {
        self.all_rotations().into_iter().map(|r| r - r.rem_euclid(self.giant_step)).min().unwrap_or(0)
    }

    /// How its rotations are composed.
    fn steps(&self) -> RotationSteps {
        let start = if self.raised { self.moved } else { 0 };
        RotationSteps { start, middle: self.middle_step, outer: self.giant_step, nested: self.nested }
    }

    /// The same group for vectors that repeat after `period` slots: without the butterflies that
    /// are longer, and with some of the same rotations. A group for a raised ciphertext contains
    /// the terms of the trace that are inner rotations.
    pub(super) fn periodic(&self, period: usize) -> Self {
        let lengths = self.lengths.iter().copied().filter(|&len| len <= period).collect();
        let n = period as i64;
        let copies = if self.raised { (self.giant_step / n).max(1) } else { 1 };
        Self { n, lengths, copies, ..*self }
    }

    /// The rotations whose successive sums complete the trace to vectors that repeat after `n` of
    /// `slots` slots. Each is a rotation that is repeated so many times: by the one outer rotation
    /// of a nested group, whose multiples they are.
    pub(super) fn trace(&self, slots: usize) -> Vec<(i64, usize)> {
        let doublings = iter::successors(Some(self.n * self.copies), |r| Some(2 * r));
        let composed = |r| if self.nested { (self.giant_step, (r / self.giant_step) as usize) } else { (r, 1) };
        doublings.take_while(|&r| r < slots as i64).map(composed).collect()
    }

    /// The longest butterfly, or 1.
    pub(super) fn longest(&self) -> usize {
        self.lengths.iter().copied().max().unwrap_or(1)
    }

    /// All rotations are multiples of it.
    fn stride(&self) -> i64 {
        self.lengths.iter().min().map_or(1, |&len| len as i64 / 2)
    }

    /// Whether the longest butterfly is in it: `k` of them then have `2^k` diagonals, else
    /// `2^(k+1) - 1`.
    fn wraps(&self) -> bool {
        self.lengths.contains(&(self.n as usize))
    }

    /// Rotations in `-n/2 .. n/2`, or in `0 .. n` for the group that wraps around: neighbours stay
    /// neighbours.
    fn signed(&self, rotation: i64) -> i64 {
        let r = rotation.rem_euclid(self.n);
        if !self.wraps() && r >= self.n / 2 { r - self.n } else { r }
    }

    fn log_diagonals(&self) -> u32 {
        let levels = self.lengths.len() as u32;
        if self.wraps() { levels } else { levels + 1 }
    }

    /// log2 of the size of the matrix relative to the others, so that the rounding of each
    /// contributes equally to the error of the product. Rounding adds the root of the number of
    /// diagonals to a result whose slots each butterfly, a mean of two, makes smaller by a root of
    /// two.
    pub(super) fn log_weight(&self) -> f64 {
        (f64::from(self.log_diagonals()) + self.lengths.len() as f64) / 2.0
    }

    /// The rotations of the nonzero diagonals of the matrix.
    fn all_rotations(&self) -> BTreeSet<i64> {
        let mut diagonals = BTreeSet::from([0]);
        for &len in &self.lengths {
            let half = len as i64 / 2;
            diagonals = diagonals.iter().flat_map(|r| [r - half, *r, r + half]).map(|r| self.signed(r)).collect();
        }
        diagonals.into_iter().flat_map(|r| self.copies_of(r)).collect()
    }

    /// The rotations of a vector of `slots` slots that the matrix is composed of, in two sets. The
    /// first set are inner rotations, which share the digits of one ciphertext. (Those of a raised
    /// ciphertext use keys from the sparse secret.) The second set are middle and outer rotations:
    /// each is a key switch of its own.
    pub(super) fn rotations(&self, slots: usize) -> (BTreeSet<i64>, BTreeSet<i64>) {
        let (mut hoisted, mut whole, steps) = (BTreeSet::new(), BTreeSet::new(), self.steps());
        for rotation in self.all_rotations() {
            let (inner, middle, outer) = steps.split(rotation + self.moved);
            hoisted.insert(inner);
            whole.insert(if middle > 0 { steps.middle } else { 0 });
            whole.insert(if self.nested { outer.min(steps.outer) } else { outer.rem_euclid(slots as i64) });
        }
        (hoisted, whole)
    }

    /// The rotations of a diagonal.
    fn copies_of(&self, rotation: i64) -> impl Iterator<Item = i64> + use<> {
        let n = self.n;
        (0..self.copies).map(move |copy| rotation + copy * n)
    }

    /// The product itself: `rotation -> values`.
    fn diagonals(&self, encoder: &Encoder) -> BTreeMap<i64, Vec<Complex64>> {
        let n = self.n as usize;
        let identity = BTreeMap::from([(0, vec![Complex64::ONE; n])]);
        let product = self.lengths.iter().fold(identity, |product, &len| {
            let mut next: BTreeMap<i64, Vec<Complex64>> = BTreeMap::new();
            for (rotation, values) in encoder.butterfly(n, len, self.inverse) {
                for (inner, inner_values) in &product {
                    let total = self.signed(rotation as i64 + inner);
                    let sum = next.entry(total).or_insert_with(|| vec![Complex64::ZERO; n]);
                    for (i, s) in sum.iter_mut().enumerate() {
                        *s += values[i] * inner_values[(i + rotation) % n];
                    }
                }
            }
            next
        });
        product
            .into_iter()
            .flat_map(|(r, mut values)| {
                values.rotate_left(self.turned.rem_euclid(self.n) as usize);
                self.copies_of(r).map(move |r| (r + self.moved, values.clone()))
            })
            .collect()
    }

    /// Encodes `factor` times the matrix for ciphertexts of `limbs` limbs, at the scale of the
    /// prime by which they are rescaled. With `split` the result fills twice the slots, followed by
    /// `-i` times itself: its real parts are the real and the imaginary parts of the result.
    pub(super) fn encode<B: Backend>(
        &self,
        evaluator: &Evaluator<B>,
        factor: f64,
        limbs: usize,
        split: bool,
    ) -> Result<LinearTransform<B::Packed>> {
        let mut diagonals = self.diagonals(evaluator.encoder());
        diagonals.values_mut().flatten().for_each(|z| *z *= factor);
        if split {
            diagonals.values_mut().for_each(|values| values.extend_from_within(..));
            diagonals
                .values_mut()
                .flat_map(|values| values.iter_mut().skip(self.n as usize))
                .for_each(|z| *z *= -Complex64::I);
        }
        let key = if self.raised { KeyId::FromSparse(1) } else { KeyId::Relinearisation };
        let basis = key.basis(evaluator.params(), limbs);
        Ok(evaluator.encode_matrix(&diagonals, self.steps(), evaluator.last_prime(limbs), basis)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(shape: &DftShape, encoder: &Encoder, x: &[Complex64]) -> Vec<Complex64> {
        let diagonals = shape.diagonals(encoder);
        assert!(diagonals.len() <= 31, "sparse");
        let n = x.len() as i64;
        (0..n).map(|i| diagonals.iter().map(|(r, d)| d[i as usize] * x[(i + r).rem_euclid(n) as usize]).sum()).collect()
    }

    #[test]
    fn groups_invert_each_other_and_stay_sparse() {
        let encoder = Encoder::new(11);
        let x: Vec<Complex64> = (0..1024).map(|k| Complex64::new(f64::from(k % 7), f64::from(k % 5))).collect();
        let there = shapes(1024, 3, false, KeyPlan::Fast).iter().fold(x.clone(), |x, g| apply(g, &encoder, &x));
        let back = shapes(1024, 3, true, KeyPlan::Fast).iter().fold(there, |x, g| apply(g, &encoder, &x));
        assert!(back.iter().zip(&x).all(|(a, b)| (a - b).norm() < 1e-9));
        let there = shapes(1024, 3, false, KeyPlan::Fast).iter().fold(x.clone(), |x, g| apply(g, &encoder, &x));
        let back = shapes_of_raised(1024, 3, KeyPlan::Fast).iter().fold(there, |x, g| apply(g, &encoder, &x));
        assert!(back.iter().zip(&x).all(|(a, b)| (a - b).norm() < 1e-9));
    }

    /// What a bootstrap costs: outer rotations are whole key-switches.
    #[test]
    fn raised_ciphertexts_save_outer_rotations() {
        let slots = 1 << 15;
        let counts = |shapes: Vec<DftShape>| -> Vec<_> {
            let count = |shape: &DftShape| {
                let (inner, outer) = shape.rotations(slots);
                (shape.raised, inner.len(), outer.len())
            };
            shapes.iter().map(count).collect()
        };
        let (few_keys, few_outer) = (KeyPlan::Fast, KeyPlan::Most);
        assert_eq!(counts(shapes(slots, 3, true, few_keys)), [(false, 8, 4), (false, 8, 8), (false, 8, 8)]);
        assert_eq!(counts(shapes_of_raised(slots, 3, few_keys)), [(true, 32, 4), (false, 8, 4), (false, 8, 4)]);
        assert_eq!(counts(shapes_of_raised(slots, 3, few_outer)), [(true, 32, 4), (false, 16, 2), (false, 16, 2)]);
        assert!(counts(shapes_of_raised(slots, 0, few_keys)).is_empty());
        // One matrix of all diagonals does not need more keys than a set may have, small ones are
        // no larger than they were.
        assert_eq!(counts(shapes_of_raised(slots, 1, few_keys)), [(true, 512, 64)]);
        assert_eq!(counts(shapes_of_raised(1 << 14, 3, few_keys))[0], (true, 16, 4));
        assert_eq!(counts(shapes_of_raised(1 << 10, 3, few_keys))[0], (true, 4, 4));
    }

    /// What the keys of a bootstrap are: an identity, inner rotations, a middle one, an outer one.
    #[test]
    fn plans_compose_rotations_of_few() {
        let slots = 1 << 15;
        let of = |mut shapes: Vec<DftShape>| -> (i64, Vec<_>) {
            let start = align(&mut shapes);
            let all = shapes.iter().map(|shape| shape.rotations(slots));
            (start, all.map(|(inner, whole)| (Vec::from_iter(inner), Vec::from_iter(whole))).collect())
        };
        let (start, fast) = of(shapes_of_raised(slots, 3, KeyPlan::Fast));
        assert_eq!((start, &fast[2].0), (0, &vec![0, 1, 2, 3, 4, 5, 6, 7]));
        assert_eq!(fast[2].1, [0, 8, 32752, 32760]);
        for (plan, inner, middle) in [(KeyPlan::Balanced, vec![0, 1, 2, 3], 4), (KeyPlan::Small, vec![0, 1], 2)] {
            let (start, to_slots) = of(shapes_of_raised(slots, 3, plan));
            let raised: Vec<i64> = (0..32).map(|k| 256 * k - 272).collect();
            assert_eq!((start, &to_slots[0]), (0, &(raised, vec![0, 8192])));
            let times = |by: i64| inner.iter().map(|r| r * by).collect::<Vec<_>>();
            assert_eq!(to_slots[1], (times(16), vec![0, 16 * middle, 128]));
            assert_eq!(to_slots[2], (times(1), vec![0, middle, 8]));
            // The last group wraps around and has no negative rotation.
            let (start, to_coefficients) = of(shapes(slots, 3, false, plan));
            assert_eq!(start, -32 - 32 * 32);
            let strides: Vec<_> = [1, 32, 1024].map(|by| (times(by), vec![0, middle * by, 8 * by])).into();
            assert_eq!(to_coefficients, strides);
        }
    }

    /// Rotations of the matrices for vectors that repeat are rotations of those for all slots.
    #[test]
    fn vectors_that_repeat_use_some_of_the_rotations() {
        let slots = 1 << 15;
        for plan in [KeyPlan::Most, KeyPlan::Fast, KeyPlan::Balanced, KeyPlan::Small] {
            let (mut to_slots, mut to_coefficients) = (shapes_of_raised(slots, 3, plan), shapes(slots, 3, false, plan));
            align(&mut to_slots);
            align(&mut to_coefficients);
            let (first, last) = (to_slots.swap_remove(0), to_coefficients.swap_remove(2));
            let (first_all, last_all) = (first.rotations(slots), last.rotations(slots));
            for (log_period, inner, outer, trace) in [
                (14, 32, 2, vec![1 << 14]),
                (13, 32, 1, vec![1 << 13, 1 << 14]),
                (12, 32, 1, vec![1 << 13, 1 << 14]),
                (10, 32, 1, vec![1 << 13, 1 << 14]),
            ] {
                let periodic = first.periodic(1 << log_period);
                let (babies, giants) = periodic.rotations(slots);
                assert_eq!((babies.len(), giants.len()), (inner, outer), "{log_period}");
                assert!(babies.is_subset(&first_all.0) && giants.is_subset(&first_all.1));
                let found = periodic.trace(slots);
                assert!(found.iter().map(|&(r, times)| r * times as i64).eq(trace));
                assert!(found.iter().all(|(r, times)| first_all.1.contains(r) && (plan.chains() || *times == 1)));
                let (babies, giants) = last.periodic(1 << log_period).rotations(slots);
                assert!(babies.is_subset(&last_all.0) && giants.is_subset(&last_all.1), "{log_period}");
            }
        }
    }

    #[test]
    fn no_matrix_is_an_identity_while_there_are_butterflies() {
        for (log_n, count) in (1..=16).flat_map(|log_n| (1..=20).map(move |count| (log_n, count))) {
            for shapes in
                [shapes(1 << log_n, count, true, KeyPlan::Fast), shapes_of_raised(1 << log_n, count, KeyPlan::Fast)]
            {
                let sizes: Vec<usize> = shapes.iter().map(|shape| shape.lengths.len()).collect();
                assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (count, log_n), "{log_n} in {count}: {sizes:?}");
                assert_eq!(
                    sizes.iter().filter(|&&size| size > 0).count(),
                    count.min(log_n),
                    "{log_n} in {count}: {sizes:?}"
                );
                assert!(sizes.is_sorted_by(|a, b| a >= b), "{log_n} in {count}: {sizes:?}");
            }
        }
    }
}
