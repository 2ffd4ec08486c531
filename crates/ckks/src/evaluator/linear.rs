//! Linear transforms of slots: sums of rotations weighted by encoded diagonals, with one division
//! by the special primes.

use super::{Ct, Evaluator, RaisedCiphertext};
use crate::backend::{Backend, KeyedAutomorphism};
use crate::{Ciphertext, Error, EvaluationKeys, KeyId, Result, SwitchingKey};
use hetal_ring::Basis;
use num_complex::Complex64;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The least number of giant steps in a partial sum of its own.
const GIANTS_OF_A_PART: usize = 2;

/// An encoded matrix `sum_g rot_g( sum_m sum_b weight[g][m][b] * rot_b(rot_m(x)) )`. The inner
/// rotations `b` (baby steps) share the digits of `rot_m(x)`. Each middle rotation `m` and each
/// outer rotation `g` (giant step) is a key-switch of its own.
pub struct LinearTransform<P> {
    /// Rotations of the input and of its middle rotations.
    babies: Vec<i64>,
    /// The middle rotations are the first multiples of [`RotationSteps::middle`], 0 included.
    middles: usize,
    giants: Vec<GiantStep<P>>,
    steps: RotationSteps,
    /// The primes of its diagonals.
    basis: Basis,
    /// The scale of its diagonals.
    scale: f64,
}

/// The part of a matrix under one giant step.
pub struct GiantStep<P> {
    rotation: i64,
    /// One weight per middle rotation and baby step. Equal ones are one.
    weights: Vec<Option<Arc<P>>>,
}

/// How the rotations of a matrix are composed of others. Fewer different ones need fewer keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationSteps {
    /// The smallest inner rotation.
    pub start: i64,
    /// Middle rotations are multiples of it: the input is rotated by it again and again. Inner
    /// rotations are below `start + middle`.
    pub middle: i64,
    /// Outer rotations are multiples of it. The sum of an inner and a middle rotation is below
    /// `start + outer`.
    pub outer: i64,
    /// Whether sums are rotated by `outer` one after the other, by one key (Horner's scheme).
    /// Otherwise each outer rotation has a key of its own, and none waits for another.
    pub nested: bool,
}

impl RotationSteps {
    /// Inner rotations alone, of `slots` slots.
    pub fn inner(slots: usize) -> Self {
        let all = slots as i64;
        Self { start: 0, middle: all, outer: all, nested: false }
    }

    /// The inner, the middle and the outer part of a rotation, whose sum it is.
    pub fn split(&self, rotation: i64) -> (i64, i64, i64) {
        let within = (rotation - self.start).rem_euclid(self.outer);
        let inner = within % self.middle;
        (self.start + inner, within - inner, rotation - self.start - within)
    }
}

impl<P> LinearTransform<P> {
    /// Every rotation that needs a Galois key. A transform of a raised ciphertext uses keys from
    /// the sparse secret for its inner rotations, the identity included.
    pub fn rotations(&self) -> BTreeSet<i64> {
        let middle = (self.middles > 1).then_some(self.steps.middle);
        let outer = |giant: &GiantStep<P>| match giant.rotation {
            0 => 0,
            _ if self.steps.nested => self.steps.outer,
            rotation => rotation,
        };
        let all = self.babies.iter().copied().chain(middle).chain(self.giants.iter().map(outer));
        all.filter(|&r| r != 0).collect()
    }

    /// Limbs a ciphertext is multiplied at.
    pub fn limbs(&self) -> usize {
        self.basis.q
    }

    /// The scale of its diagonals.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The weights of every outer rotation under one of the middle rotations.
    fn rows(&self, middle: usize) -> Vec<Vec<Option<&P>>> {
        let count = self.babies.len();
        let rows = self.giants.iter().map(|g| g.weights.iter().skip(middle * count).take(count));
        rows.map(|row| row.map(Option::as_deref).collect()).collect()
    }

    /// Limbs of all encoded diagonals. Equal ones count once.
    pub fn encoded_limbs(&self) -> usize {
        let diagonals: BTreeSet<_> = self.giants.iter().flat_map(|g| &g.weights).flatten().map(Arc::as_ptr).collect();
        diagonals.len() * self.basis.limbs()
    }
}

impl<B: Backend> Evaluator<B> {
    /// Encodes a matrix given by its diagonals (`rotation -> values`,
    /// `M x = sum_r values_r * rot_r(x)`), to be applied at `basis`.
    pub fn encode_matrix(
        &self,
        diagonals: &BTreeMap<i64, Vec<Complex64>>,
        steps: RotationSteps,
        scale: f64,
        basis: Basis,
    ) -> Result<LinearTransform<B::Packed>> {
        let slots = self.params().slots() as i64;
        let babies: BTreeSet<i64> = diagonals.keys().map(|&r| steps.split(r).0).collect();
        let babies: Vec<i64> = babies.into_iter().collect();
        let middle_of = |r| (steps.split(r).1 / steps.middle) as usize;
        let middles = diagonals.keys().map(|&r| middle_of(r) + 1).max().unwrap_or(1);
        let mut giants: BTreeMap<i64, Vec<Option<Arc<B::Packed>>>> = BTreeMap::new();
        let mut encoded: Vec<(i64, &Vec<Complex64>, Arc<B::Packed>)> = Vec::new();
        for (&rotation, values) in diagonals {
            let (baby, _, giant) = steps.split(rotation);
            let giant = giant.rem_euclid(slots);
            let weights = giants.entry(giant).or_insert_with(|| (0..middles * babies.len()).map(|_| None).collect());
            let place = middle_of(rotation) * babies.len() + babies.partition_point(|&b| b < baby);
            // Different diagonals differ early, so the comparison is short.
            if let Some((_, _, equal)) = encoded.iter().find(|(g, v, _)| *g == giant && *v == values) {
                weights[place] = Some(Arc::clone(equal));
                continue;
            }
            // The giant step rotates the weighted sum, so the weights are rotated back by it.
            let mut rotated = values.clone();
            let n = rotated.len() as i64;
            rotated.rotate_right(giant.rem_euclid(n) as usize);
            let packed = Arc::new(self.backend().pack(self.encode(&rotated, scale, basis)?.poly));
            weights[place] = Some(Arc::clone(&packed));
            encoded.push((giant, values, packed));
        }
        let giants = giants.into_iter().map(|(rotation, weights)| GiantStep { rotation, weights }).collect();
        Ok(LinearTransform { babies, middles, giants, steps, basis, scale })
    }

    /// `P M a`, over the primes of the matrix.
    fn transformed(
        &self,
        a: &Ct<B>,
        matrix: &LinearTransform<B::Packed>,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Option<(B::Poly, B::Poly)>> {
        let sums = self.inner_sums(a, matrix, keys)?;
        let giants: Vec<_> = matrix.giants.iter().zip(sums).collect();
        if matrix.steps.nested {
            return self.nested_sum(giants, matrix.steps.outer, keys);
        }
        self.sum_of_parts(giants, GIANTS_OF_A_PART, |giants| self.sum_of_giants(giants, keys))
    }

    /// Splits the terms into groups of at least `at_least`, computes `sum` of each group, possibly
    /// at the same time, and adds the results.
    fn sum_of_parts<T: Send>(
        &self,
        terms: Vec<T>,
        at_least: usize,
        sum: impl Fn(Vec<T>) -> Result<Option<(B::Poly, B::Poly)>> + Sync,
    ) -> Result<Option<(B::Poly, B::Poly)>> {
        let parts = (terms.len() / at_least).clamp(1, self.backend().lanes());
        let (each, more) = (terms.len() / parts, terms.len() % parts);
        let mut terms = terms.into_iter();
        let parts = (0..parts).map(|k| terms.by_ref().take(each + usize::from(k < more)).collect()).collect();
        let mut acc = None;
        for sum in self.backend().concurrently(parts, sum) {
            acc = match sum? {
                Some(sum) => Some(self.add_pairs(acc, sum)),
                None => acc,
            };
        }
        Ok(acc)
    }

    /// [`Evaluator::sum_of_transforms`] of one raised ciphertext and a matrix over its primes. The
    /// result is under the ordinary secret: the inner rotations use keys from the sparse secret, of
    /// one digit each.
    pub fn transform_raised(
        &self,
        a: RaisedCiphertext<B::Poly>,
        matrix: &LinearTransform<B::Packed>,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Ct<B>> {
        let (basis, scale) = (B::basis(&a.c1), a.scale * matrix.scale);
        if matrix.basis != basis {
            return Err(Error::MixedMatrices { found: matrix.basis, needed: basis });
        }
        let find = |&r: &i64| {
            let galois = self.galois_of_rotation(r);
            Ok((galois, keys.find(KeyId::FromSparse(galois), basis)?))
        };
        let chosen: Vec<(u64, &Arc<SwitchingKey<B::Packed>>)> =
            matrix.babies.iter().map(find).collect::<Result<_>>()?;
        let steps: Vec<_> =
            chosen.iter().map(|&(galois, key)| KeyedAutomorphism { galois, key: Some(&key.digits[..]) }).collect();
        let sums = self.backend().rotation_sums(&a.c0, &self.backend().small_digit(a.c1), &steps, &matrix.rows(0));
        let (mut out, mut rotated) = (None, None);
        let mut outer = Vec::new();
        for (giant, sum) in matrix.giants.iter().zip(sums) {
            if giant.rotation == 0 {
                out = Some(self.finish(sum.0, sum.1, scale));
            } else if matrix.steps.nested {
                outer.push((giant.rotation, sum));
            } else {
                rotated = Some(self.add_rotated(rotated, sum, self.galois_of_rotation(giant.rotation), keys)?);
            }
        }
        if !outer.is_empty() {
            rotated = self.nested_sum_of_raised(outer, matrix.steps.outer, keys)?;
        }
        let rotated = rotated.map(|(u0, u1)| self.finish(u0, u1, scale));
        match (out, rotated) {
            (Some(mut out), Some(rotated)) => {
                self.add_assign(&mut out, &rotated)?;
                Ok(out)
            }
            (out, rotated) => out.or(rotated).ok_or(Error::Empty("transform")),
        }
    }

    /// `acc + P rot(v)` from `P' v`, where `P'` is the product of fewer special primes than a key
    /// of the automorphism has.
    fn add_rotated(
        &self,
        acc: Option<(B::Poly, B::Poly)>,
        v: (B::Poly, B::Poly),
        galois: u64,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<(B::Poly, B::Poly)> {
        let (d0, d1) = self.backend().divide_pair(v, 0, 1);
        self.switched(acc, &d0, d1, galois, keys)
    }

    /// The sum of `P rot_g(v)` for outer rotations `g > 0` of `P' v`, from the last to the first:
    /// sums are rotated by `step` one after the other.
    fn nested_sum_of_raised(
        &self,
        mut outer: Vec<(i64, (B::Poly, B::Poly))>,
        step: i64,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Option<(B::Poly, B::Poly)>> {
        let (backend, galois) = (self.backend(), self.galois_of_rotation(step));
        let Some((mut at, last)) = outer.pop() else { return Ok(None) };
        let (mut v0, mut v1) = backend.divide_pair(last, 0, 1);
        loop {
            let (mut u0, mut u1) = self.switched(None, &v0, v1, galois, keys)?;
            at -= step;
            if at <= 0 {
                return Ok(Some((u0, u1)));
            }
            if let Some((_, sum)) = outer.pop_if(|(rotation, _)| *rotation == at) {
                let (d0, d1) = backend.divide_pair(sum, 0, 1);
                backend.add_lifted_assign(&mut u0, &d0);
                backend.add_lifted_assign(&mut u1, &d1);
            }
            (v0, v1) = (u0, backend.divide(u1, 0));
        }
    }

    /// The sum of `P rot_g(v)` for outer rotations `g` of `P v`, from the last to the first: sums
    /// are rotated by `step` one after the other.
    fn nested_sum(
        &self,
        mut giants: Vec<(&GiantStep<B::Packed>, (B::Poly, B::Poly))>,
        step: i64,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Option<(B::Poly, B::Poly)>> {
        let Some((last, mut sum)) = giants.pop() else { return Ok(None) };
        let galois = self.galois_of_rotation(step);
        for at in (0..last.rotation / step).rev().map(|k| k * step) {
            let next = giants.pop_if(|(giant, _)| giant.rotation == at).map(|(_, sum)| sum);
            sum = self.switched(next, &sum.0, self.backend().divide(sum.1, 0), galois, keys)?;
        }
        Ok(Some(sum))
    }

    /// `acc + P rot(v)` from `v1` over the chain and from `v0`, which is over the chain too, or is
    /// `P v0` over the chain and the special primes.
    fn switched(
        &self,
        acc: Option<(B::Poly, B::Poly)>,
        v0: &B::Poly,
        v1: B::Poly,
        galois: u64,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<(B::Poly, B::Poly)> {
        let limbs = B::basis(&v1).q;
        let key = keys.find(KeyId::Galois(galois), self.params().key_basis(limbs))?;
        let digits = self.backend().decompose_for_one_use(v1, self.params().digit_starts(), key.basis.p);
        Ok(self.backend().add_switched(acc, v0, &digits, &key.digits, galois))
    }

    fn add_pairs(&self, acc: Option<(B::Poly, B::Poly)>, b: (B::Poly, B::Poly)) -> (B::Poly, B::Poly) {
        let Some((mut a0, mut a1)) = acc else { return b };
        self.backend().add_assign(&mut a0, &b.0);
        self.backend().add_assign(&mut a1, &b.1);
        (a0, a1)
    }

    /// The sum of `P rot_g(v)` for outer rotations `g` of `P v`.
    fn sum_of_giants(
        &self,
        giants: Vec<(&GiantStep<B::Packed>, (B::Poly, B::Poly))>,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Option<(B::Poly, B::Poly)>> {
        let mut acc = None;
        for (giant, (v0, v1)) in giants {
            acc = Some(if giant.rotation == 0 {
                self.add_pairs(acc, (v0, v1))
            } else {
                let galois = self.galois_of_rotation(giant.rotation);
                self.switched(acc, &v0, self.backend().divide(v1, 0), galois, keys)?
            });
        }
        Ok(acc)
    }

    /// `P sum_m sum_b w_mb rot_b(rot_m(a))` for each outer rotation.
    fn inner_sums(
        &self,
        a: &Ct<B>,
        matrix: &LinearTransform<B::Packed>,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Vec<(B::Poly, B::Poly)>> {
        let LinearTransform { babies, basis, middles, .. } = matrix;
        if *middles == 1 {
            return self.row_sums(a, babies, *basis, &matrix.rows(0), keys);
        }
        let (backend, galois) = (self.backend(), self.galois_of_rotation(matrix.steps.middle));
        let key = keys.find(KeyId::Galois(galois), *basis)?;
        let Ciphertext { mut c0, mut c1, .. } = self.truncated(a, basis.q)?;
        let mut sums: Vec<Option<_>> = matrix.giants.iter().map(|_| None).collect();
        let mut middle = 0;
        loop {
            middle += 1;
            let is_last = middle == *middles;
            let starts = self.params().digit_starts();
            let digits = match is_last {
                true => backend.decompose_for_one_use(c1, starts, basis.p),
                false => backend.decompose(c1, starts, basis.p),
            };
            let rows =
                matrix.rows(middle - 1).into_iter().enumerate().filter(|(_, row)| row.iter().any(Option::is_some));
            let (places, rows): (Vec<usize>, Vec<_>) = rows.unzip();
            let found = self.hoisted_sums(&c0, &digits, babies, *basis, &rows, keys)?;
            for (place, sum) in places.into_iter().zip(found) {
                sums[place] = Some(self.add_pairs(sums[place].take(), sum));
            }
            if is_last {
                return sums.into_iter().map(|sum| sum.ok_or(Error::Empty("linear transform"))).collect();
            }
            let rotated = backend.inner_product_plus(&digits, &key.digits, [Some(&c0), None]);
            (c0, c1) = backend.divide_pair(rotated, 0, galois);
        }
    }

    /// `P sum_b w_b rot_b(a)` for each row of weights.
    fn row_sums(
        &self,
        a: &Ct<B>,
        babies: &[i64],
        basis: Basis,
        rows: &[Vec<Option<&B::Packed>>],
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Vec<(B::Poly, B::Poly)>> {
        self.check_params("linear transform", a)?;
        self.require_limbs("linear transform", basis.q, a.limbs)?;
        let c1 = self.backend().copy_truncated(&a.c1, Self::basis(basis.q));
        let digits = self.backend().decompose_for_one_use(c1, self.params().digit_starts(), basis.p);
        self.hoisted_sums(&a.c0, &digits, babies, basis, rows, keys)
    }

    /// [`Evaluator::row_sums`] of a ciphertext whose second polynomial has the given digits.
    fn hoisted_sums(
        &self,
        c0: &B::Poly,
        digits: &B::Digits,
        babies: &[i64],
        basis: Basis,
        rows: &[Vec<Option<&B::Packed>>],
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Vec<(B::Poly, B::Poly)>> {
        let chosen: Vec<(u64, Option<&Arc<SwitchingKey<B::Packed>>>)> = babies
            .iter()
            .map(|&r| match self.galois_of_rotation(r) {
                1 => Ok((1, None)),
                galois => Ok((galois, Some(keys.find(KeyId::Galois(galois), basis)?))),
            })
            .collect::<Result<_>>()?;
        let steps: Vec<KeyedAutomorphism<'_, B::Packed>> =
            chosen.iter().map(|&(galois, key)| KeyedAutomorphism { galois, key: key.map(|k| &k.digits[..]) }).collect();
        Ok(self.backend().rotation_sums(c0, digits, &steps, rows))
    }

    /// `sum_k M_k a_k`, rescaled. All matrices have one basis; all products have one scale.
    pub fn sum_of_transforms(
        &self,
        terms: &[(&Ct<B>, &LinearTransform<B::Packed>)],
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Ct<B>> {
        let Some((first, matrix)) = terms.first() else { return Err(Error::Empty("sum of transforms")) };
        let scale = first.scale * matrix.scale;
        for (a, m) in terms {
            Self::same_scale("sum of transforms", scale, a.scale * m.scale)?;
            if m.basis != matrix.basis {
                return Err(Error::MixedMatrices { found: m.basis, needed: matrix.basis });
            }
        }
        let sum = self.sum_of_parts(terms.to_vec(), 1, |terms| {
            terms.into_iter().try_fold(None, |acc, (a, m)| {
                let Some(sum) = self.transformed(a, m, keys)? else { return Ok(acc) };
                Ok(Some(self.add_pairs(acc, sum)))
            })
        });
        let (u0, u1) = sum?.ok_or(Error::Empty("sum of transforms"))?;
        Ok(self.finish(u0, u1, scale))
    }

    /// `M_k a` for several matrices without giant steps, sharing the rotations of `a`.
    pub fn transform_many(
        &self,
        a: &Ct<B>,
        matrices: &[&LinearTransform<B::Packed>],
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Vec<Ct<B>>> {
        let Some(first) = matrices.first() else { return Ok(Vec::new()) };
        if matrices
            .iter()
            .any(|m| m.middles != 1 || m.giants.len() != 1 || m.giants[0].rotation != 0 || m.basis != first.basis)
        {
            return matrices.iter().map(|m| self.sum_of_transforms(&[(a, m)], keys)).collect();
        }
        let babies: BTreeSet<i64> = matrices.iter().flat_map(|m| m.babies.iter().copied()).collect();
        let babies: Vec<i64> = babies.into_iter().collect();
        let rows: Vec<Vec<Option<&B::Packed>>> = matrices
            .iter()
            .map(|m| {
                let place = |b: &i64| m.babies.iter().position(|x| x == b);
                babies.iter().map(|b| place(b).and_then(|k| m.giants[0].weights[k].as_deref())).collect()
            })
            .collect();
        let sums = self.row_sums(a, &babies, first.basis, &rows, keys)?;
        Ok(sums.into_iter().zip(matrices).map(|((u0, u1), m)| self.finish(u0, u1, a.scale * m.scale)).collect())
    }

    /// Divides by the special primes and rescales, at once.
    fn finish(&self, u0: B::Poly, u1: B::Poly, scale: f64) -> Ct<B> {
        let limbs = B::basis(&u0).q;
        let (c0, c1) = self.backend().divide_pair((u0, u1), 1, 1);
        let set = self.params().tag();
        Ciphertext { c0, c1, limbs: limbs - 1, scale: scale / self.last_prime(limbs), set }
    }
}
