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

/// An encoded matrix `sum_g rot_g( sum_b weight[g][b] * rot_b(x) )`. The inner rotations `b` (baby
/// steps) share the digits of `x`. Each outer rotation `g` (giant step) is a key-switch of its own.
pub struct LinearTransform<P> {
    /// Rotations of the input.
    babies: Vec<i64>,
    giants: Vec<GiantStep<P>>,
    /// The primes of its diagonals.
    basis: Basis,
    /// The scale of its diagonals.
    scale: f64,
}

/// The part of a matrix under one giant step.
pub struct GiantStep<P> {
    rotation: i64,
    /// One weight per baby step. Equal ones are one.
    weights: Vec<Option<Arc<P>>>,
}

impl<P> LinearTransform<P> {
    /// Every rotation that needs a Galois key. A transform of a raised ciphertext uses keys from
    /// the sparse secret for its inner rotations, the identity included.
    pub fn rotations(&self) -> BTreeSet<i64> {
        self.babies.iter().copied().chain(self.giants.iter().map(|g| g.rotation)).filter(|&r| r != 0).collect()
    }

    /// Limbs a ciphertext is multiplied at.
    pub fn limbs(&self) -> usize {
        self.basis.q
    }

    /// The scale of its diagonals.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// The weights of every outer rotation.
    fn rows(&self) -> Vec<Vec<Option<&P>>> {
        self.giants.iter().map(|g| g.weights.iter().map(Option::as_deref).collect()).collect()
    }

    /// Limbs of all encoded diagonals. Equal ones count once.
    pub fn encoded_limbs(&self) -> usize {
        let diagonals: BTreeSet<_> = self.giants.iter().flat_map(|g| &g.weights).flatten().map(Arc::as_ptr).collect();
        diagonals.len() * self.basis.limbs()
    }
}

impl<B: Backend> Evaluator<B> {
    /// Encodes a matrix given by its diagonals (`rotation -> values`,
    /// `M x = sum_r values_r * rot_r(x)`), to be applied at `basis`. `split(r)` gives the baby step
    /// of a rotation; the giant step is `r - split(r)`.
    pub fn encode_matrix(
        &self,
        diagonals: &BTreeMap<i64, Vec<Complex64>>,
        split: impl Fn(i64) -> i64,
        scale: f64,
        basis: Basis,
    ) -> Result<LinearTransform<B::Packed>> {
        let slots = self.params().slots() as i64;
        let babies: BTreeSet<i64> = diagonals.keys().map(|&r| split(r)).collect();
        let babies: Vec<i64> = babies.into_iter().collect();
        let mut giants: BTreeMap<i64, Vec<Option<Arc<B::Packed>>>> = BTreeMap::new();
        let mut encoded: Vec<(i64, &Vec<Complex64>, Arc<B::Packed>)> = Vec::new();
        for (&rotation, values) in diagonals {
            let baby = split(rotation);
            let giant = (rotation - baby).rem_euclid(slots);
            let weights = giants.entry(giant).or_insert_with(|| babies.iter().map(|_| None).collect());
            let place = babies.partition_point(|&b| b < baby);
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
        Ok(LinearTransform { babies, giants, basis, scale })
    }

    /// `P M a`, over the primes of the matrix.
    fn transformed(
        &self,
        a: &Ct<B>,
        matrix: &LinearTransform<B::Packed>,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Option<(B::Poly, B::Poly)>> {
        let sums = self.row_sums(a, &matrix.babies, matrix.basis, &matrix.rows(), keys)?;
        let giants: Vec<_> = matrix.giants.iter().zip(sums).collect();
        self.sum_of_parts(giants, GIANTS_OF_A_PART, |giants| self.sum_of_giants(giants, matrix.basis, keys))
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
        let sums = self.backend().rotation_sums(&a.c0, &self.backend().small_digit(a.c1), &steps, &matrix.rows());
        let (mut out, mut rotated) = (None, None);
        for (giant, sum) in matrix.giants.iter().zip(sums) {
            if giant.rotation == 0 {
                out = Some(self.finish(sum.0, sum.1, scale));
            } else {
                rotated = Some(self.add_rotated(rotated, sum, self.galois_of_rotation(giant.rotation), keys)?);
            }
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
        let (backend, limbs) = (self.backend(), B::basis(&v.0).q);
        let key = keys.find(KeyId::Galois(galois), self.params().key_basis(limbs))?;
        let (d0, d1) = backend.divide_pair(v, 0, 1);
        let digits = backend.decompose_for_one_use(d1, self.params().digit_starts(), key.basis.p);
        Ok(backend.add_switched(acc, &d0, &digits, &key.digits, galois))
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
        basis: Basis,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Option<(B::Poly, B::Poly)>> {
        let mut acc = None;
        for (giant, (v0, v1)) in giants {
            acc = Some(if giant.rotation == 0 {
                self.add_pairs(acc, (v0, v1))
            } else {
                let galois = self.galois_of_rotation(giant.rotation);
                let key = keys.find(KeyId::Galois(galois), basis)?;
                let d = self.backend().divide(v1, 0);
                let digits = self.backend().decompose_for_one_use(d, self.params().digit_starts(), key.basis.p);
                self.backend().add_switched(acc, &v0, &digits, &key.digits, galois)
            });
        }
        Ok(acc)
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
        let chosen: Vec<(u64, Option<&Arc<SwitchingKey<B::Packed>>>)> = babies
            .iter()
            .map(|&r| match self.galois_of_rotation(r) {
                1 => Ok((1, None)),
                galois => Ok((galois, Some(keys.find(KeyId::Galois(galois), basis)?))),
            })
            .collect::<Result<_>>()?;
        let steps: Vec<KeyedAutomorphism<'_, B::Packed>> =
            chosen.iter().map(|&(galois, key)| KeyedAutomorphism { galois, key: key.map(|k| &k.digits[..]) }).collect();
        let c1 = self.backend().copy_truncated(&a.c1, Self::basis(basis.q));
        let digits = self.backend().decompose_for_one_use(c1, self.params().digit_starts(), basis.p);
        Ok(self.backend().rotation_sums(&a.c0, &digits, &steps, rows))
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
        if matrices.iter().any(|m| m.giants.len() != 1 || m.giants[0].rotation != 0 || m.basis != first.basis) {
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
