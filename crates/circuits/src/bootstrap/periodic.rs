//! Vectors of real numbers that repeat after `n` of `N/2` slots.
//!
//! Butterflies up to the length `n` bring such a vector to every `N/2n`-th coefficient. Raising the
//! modulus fills the other coefficients with multiples of `q0`. The trace, a sum of rotations by
//! multiples of `n`, removes them. It takes the place of the butterflies beyond `n` and commutes
//! with the others:
//!
//! - The last slots-to-coefficients matrix and the first coefficients-to-slots matrix have fewer
//!   butterflies. The others are the same for every `n`.
//! - Short rotations of the trace are inner rotations of the first matrix, which are cheap. The
//!   others come before the last matrix: there are fewer limbs, and the trace does not add up the
//!   rounding of that matrix, which is the largest.
//!
//! All rotations are rotations of the bootstrap of all slots, so there are no further keys. The
//! trace is a sum where butterflies are means, so the first matrix has the factor `2n/N`. With it
//! its rounding contributes as much as before ([`DftShape::log_weight`]).

use super::dft::DftShape;
use super::layout::BootstrapLayout;
use super::{Bootstrapper, Ct, Ends, Form, message_factor};
use crate::{Error, Result};
use hetal_ckks::{Backend, EvaluationKeys, Evaluator, LinearTransform};
use std::collections::{BTreeMap, BTreeSet};

/// What is different for vectors of one period.
pub(super) struct Periodic<B: Backend> {
    /// For each message bound `2^b`.
    last_to_coefficients: BTreeMap<u32, LinearTransform<B::Packed>>,
    first_to_slots: LinearTransform<B::Packed>,
    /// The trace, as [`DftShape::trace`] gives it.
    trace: Vec<(i64, usize)>,
}

/// The period whose matrices serve vectors of `period` slots, or `None` if all slots do.
fn served_by(period: usize, shortest: usize, slots: usize) -> Result<Option<usize>> {
    if !period.is_power_of_two() || period > slots {
        return Err(Error::NoSparseBootstrap { slots: period, fewest: 1, most: slots });
    }
    let period = period.max(shortest);
    Ok((period < slots).then_some(period))
}

/// The bounds of all slots, and those of each period.
pub(super) type SortedBounds = (BTreeSet<u32>, BTreeMap<usize, BTreeSet<u32>>);

impl BootstrapLayout {
    /// The shortest period for which only the outermost matrices differ.
    pub(super) fn shortest_period(&self) -> usize {
        let inner = self.to_coefficients.iter().rev().skip(1).chain(self.to_slots.iter().skip(1));
        inner.map(|(shape, _)| shape.longest()).max().unwrap_or(1)
    }

    /// The bounds sorted by the period that serves them.
    pub(super) fn sorted(&self, bounds: &super::BootstrapBounds) -> Result<SortedBounds> {
        let (mut full, mut periodic) = (bounds.full.clone(), BTreeMap::<_, BTreeSet<_>>::new());
        for &(period, log_bound) in &bounds.periodic {
            match served_by(period, self.shortest_period(), self.slots)? {
                Some(period) => periodic.entry(period).or_default().insert(log_bound),
                None => full.insert(log_bound),
            };
        }
        Ok((full, periodic))
    }
}

impl<B: Backend> Periodic<B> {
    /// `factor` is that of the first matrix of all slots.
    pub(super) fn new(
        evaluator: &Evaluator<B>,
        layout: &BootstrapLayout,
        period: usize,
        log_bounds: &BTreeSet<u32>,
        factor: f64,
    ) -> Result<Self> {
        let params = evaluator.params();
        let outermost = layout.to_coefficients.last().zip(layout.to_slots.first());
        let ((last, last_limbs), (first, first_limbs)) = outermost.ok_or(Error::Empty("bootstrap"))?;
        let (last, first): (DftShape, DftShape) = (last.periodic(period), first.periodic(period));
        let encode_last = |&b: &u32| Ok((b, last.encode(evaluator, message_factor(params, b), *last_limbs, false)?));
        let factor = factor * period as f64 / layout.slots as f64;
        Ok(Self {
            last_to_coefficients: log_bounds.iter().map(encode_last).collect::<Result<_>>()?,
            first_to_slots: first.encode(evaluator, factor, *first_limbs, false)?,
            trace: first.trace(layout.slots),
        })
    }

    pub(super) fn encoded_limbs(&self) -> usize {
        let matrices = self.last_to_coefficients.values().chain([&self.first_to_slots]);
        matrices.map(LinearTransform::encoded_limbs).sum()
    }
}

impl<B: Backend> Bootstrapper<B> {
    /// [`Bootstrapper::bootstrap_real`] of a vector that repeats after `period` slots, a power of
    /// two. It needs fewer rotations and no other keys. Where a vector does not repeat, the result
    /// is the mean of its periods.
    pub fn bootstrap_periodic(
        &self,
        evaluator: &Evaluator<B>,
        a: &Ct<B>,
        period: usize,
        log_bound: u32,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Ct<B>> {
        let Some(period) = served_by(period, self.shortest_period, evaluator.params().slots())? else {
            return self.bootstrap_real(evaluator, a, log_bound, keys);
        };
        let matrices = self
            .periodic
            .get(&period)
            .ok_or_else(|| Error::NoSuchPeriod { period, prepared: self.periodic.keys().copied().collect() })?;
        let ends = Ends {
            last_to_coefficients: super::of_bound(&matrices.last_to_coefficients, log_bound)?,
            first_to_slots: &matrices.first_to_slots,
            trace: &matrices.trace,
        };
        let work = |[a]: [Ct<B>; 1]| {
            let slots = self.raised_slots(evaluator, &a, &ends, keys, &mut |_| {})?;
            drop(a);
            Ok([self.times_bound(evaluator, self.reduced_real_part(evaluator, slots, keys)?, log_bound)?])
        };
        let form = (Form::Periodic(period), log_bound);
        let [out] = self.repeated(evaluator, form, super::bottom(evaluator), [a], keys, work)?;
        Ok(out)
    }
}
