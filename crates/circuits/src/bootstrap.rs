//! Bootstrapping: a ciphertext at level 0 becomes one of the same message at the top level.
//!
//! ```text
//! level 0 ── slots to coefficients ──> q0 ── raise the modulus ──> whole chain, message + q0 I
//!         ── coefficients to slots ──> real and imaginary halves t, |t| < 1
//!         ── exp(2 pi i K t) by a Chebyshev series and squarings ──> e^(i theta)
//!         ── theta = Im(4/3 z - z^2/6) + O(theta^5) ──> top level
//! ```
//!
//! Slots-to-coefficients comes first, on few limbs. It is nearly free there, and the last linear
//! map does not amplify its rounding. The modulus is raised under an ephemeral sparse secret, so
//! that `|I| < K` except with probability 2^-86 ([`Params::log_bootstrap_failure`]). The first
//! coefficients-to-slots matrix leads back to the ordinary secret: its inner rotations use cheap
//! keys ([`Evaluator::transform_raised`]).
//!
//! A vector of real numbers that repeats after `n` slots ([`Bootstrapper::bootstrap_periodic`])
//! needs fewer butterflies, and otherwise the same matrices, keys and levels.
//!
//! A vector in coefficient form ([`Bootstrapper::lift`]) begins at `q0`, without
//! slots-to-coefficients.
//!
//! A complex vector that repeats after `n` slots ([`Bootstrapper::sparse`]) has `2n` coefficients.
//! Both halves fit one ciphertext of `2n` slots, so that one exponential suffices and the matrices
//! are smaller.

mod bounds;
mod dft;
mod eval_mod;
mod fold;
mod keys;
mod layout;
pub mod lift;
mod periodic;

use crate::{Error, KeyPlan, Result};
pub use bounds::BootstrapBounds;
use dft::DftShape;
use eval_mod::Exponential;
use fold::Fold;
use hetal_ckks::{
    Backend, Ciphertext, Complex64, EvaluationKeys, Evaluator, LiftForm, LinearTransform, Params, ParamsLiteral,
};
pub(crate) use keys::derivation;
pub use keys::{keys, keys_with_plan, sparse_keys};
use layout::BootstrapLayout;
use periodic::Periodic;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

type Ct<B> = Ciphertext<<B as Backend>::Poly>;

/// The largest bound. Bootstraps are precise to some 2^-25 of the bound, so larger bounds leave no
/// bit of a message.
const LARGEST_LOG_BOUND: u32 = 24;

/// Bits by which the error of a bootstrap is enlarged before it is bootstrapped too, for the chains
/// of these sets. The largest measured errors are 2^-22.7 of the bound for `full` and 2^-13.9 for
/// `small`: enlarged, they stay within the bound with a margin.
const RESIDUALS: [(&str, u32); 2] = [("full", 16), ("small", 10)];

/// The bits of [`RESIDUALS`], for rings up to the measured degree: smaller rings have smaller
/// errors.
fn residual(params: &Params) -> Result<u32> {
    let found = params.literal();
    for (name, bits) in RESIDUALS {
        let measured = Params::named(name)?.literal().clone();
        let fits = found.log_n <= measured.log_n;
        if fits && *found == (ParamsLiteral { name: found.name.clone(), log_n: found.log_n, ..measured }) {
            return Ok(bits);
        }
    }
    Err(Error::NoPreciseBootstrap { set: params.name().to_owned() })
}

/// Everything precomputed for bootstrapping vectors of one length under one parameter set.
pub struct Bootstrapper<B: Backend> {
    /// The rotation that comes before slots-to-coefficients, if it is not 0.
    start: i64,
    /// The slots-to-coefficients matrices except the last.
    to_coefficients: Vec<LinearTransform<B::Packed>>,
    /// The last matrix for each message bound `2^b`, which includes the scaling of the bound.
    last_to_coefficients: BTreeMap<u32, LinearTransform<B::Packed>>,
    /// Rotations whose sum leaves only the coefficients of the vectors' subring, each repeated so
    /// many times.
    trace: Vec<(i64, usize)>,
    to_slots: Vec<LinearTransform<B::Packed>>,
    /// What is different for vectors of real numbers that repeat, by their period.
    periodic: BTreeMap<usize, Periodic<B>>,
    /// Vectors of shorter periods are taken as if they had this one.
    shortest_period: usize,
    /// Limbs the modulus is raised to.
    raised_limbs: usize,
    exponential: Exponential,
    /// For complex vectors that repeat.
    fold: Option<Fold<B>>,
    routines: Routines<B>,
}

/// The form of the message of a bootstrap.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Complex,
    Real,
    Periodic(usize),
    Pair,
    Lift(LiftForm),
}

/// The routines of the backend for each form and bound, valid for one version of the keys.
struct Routines<B: Backend>(Mutex<BTreeMap<(Form, u32), (u64, Arc<B::Routine>)>>);

impl<B: Backend> Default for Routines<B> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<B: Backend> Routines<B> {
    fn get(&self, form: Form, log_bound: u32, keys_version: u64) -> Arc<B::Routine> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (version, routine) = all.entry((form, log_bound)).or_default();
        if *version != keys_version {
            (*version, *routine) = (keys_version, Arc::default());
        }
        Arc::clone(routine)
    }
}

/// The outermost matrices of a bootstrap.
struct Ends<'a, B: Backend> {
    last_to_coefficients: &'a LinearTransform<B::Packed>,
    first_to_slots: &'a LinearTransform<B::Packed>,
    /// Rotations whose successive sums are taken before the last matrix to slots, each repeated so
    /// many times.
    trace: &'a [(i64, usize)],
}

impl<B: Backend> Bootstrapper<B> {
    /// Encodes the matrices for the given bounds of messages. Without bounds nothing is encoded.
    pub fn new(evaluator: &Evaluator<B>, bounds: impl Into<BootstrapBounds>) -> Result<Self> {
        Self::with_plan(evaluator, bounds, KeyPlan::default())
    }

    /// [`Bootstrapper::new`] for the keys of [`keys_with_plan`].
    pub fn with_plan(evaluator: &Evaluator<B>, bounds: impl Into<BootstrapBounds>, plan: KeyPlan) -> Result<Self> {
        let (bounds, layout) = (bounds.into(), BootstrapLayout::full(evaluator.params(), plan));
        if !bounds.is_empty() {
            return Self::with_layout(evaluator, &layout, &bounds);
        }
        Ok(Self {
            start: layout.start,
            to_coefficients: Vec::new(),
            last_to_coefficients: BTreeMap::new(),
            trace: Vec::new(),
            to_slots: Vec::new(),
            periodic: BTreeMap::new(),
            shortest_period: layout.shortest_period(),
            raised_limbs: layout.raised_limbs,
            exponential: Exponential::new(evaluator.params()),
            fold: None,
            routines: Routines::default(),
        })
    }

    /// For vectors that repeat after `slots` slots. [`Bootstrapper::level`] gives the level of the
    /// results.
    pub fn sparse(evaluator: &Evaluator<B>, slots: usize, log_bounds: &[u32]) -> Result<Self> {
        Self::with_layout(evaluator, &BootstrapLayout::sparse(evaluator.params(), slots)?, &log_bounds.into())
    }

    fn with_layout(evaluator: &Evaluator<B>, layout: &BootstrapLayout, bounds: &BootstrapBounds) -> Result<Self> {
        let params = evaluator.params();
        let literal = params.literal();
        if let Some(log_bound) = bounds.largest().filter(|&b| b > LARGEST_LOG_BOUND) {
            return Err(Error::BoundTooLarge { log_bound, largest: LARGEST_LOG_BOUND });
        }
        let (last, first) =
            layout.to_coefficients.split_last().ok_or_else(|| Error::NoBootstrap { set: params.name().to_owned() })?;
        let to_coefficients =
            first.iter().map(|(shape, limbs)| shape.encode(evaluator, 1.0, *limbs, false)).collect::<Result<_>>()?;
        let (log_bounds, periods) = layout.sorted(bounds)?;
        let encode_last = |b| Ok((b, last.0.encode(evaluator, message_factor(params, b), last.1, false)?));
        let last_to_coefficients = log_bounds.into_iter().map(encode_last).collect::<Result<_>>()?;
        // The matrices share the factor of t = x / (q0 K), of the sums with the conjugate (halves),
        // and of the terms of the trace.
        let terms = (1u64 << layout.trace.len()) as f64;
        let stages = layout.to_slots.len();
        let log_weights: f64 = layout.to_slots.iter().map(|(shape, _)| shape.log_weight()).sum();
        let log_factor = libm::log2(0.5 / f64::from(literal.eval_mod.k) / terms) - log_weights;
        let factor = |shape: &DftShape| libm::exp2(log_factor / stages as f64 + shape.log_weight());
        let to_slots = layout
            .to_slots
            .iter()
            .enumerate()
            .map(|(k, (shape, limbs))| {
                shape.encode(evaluator, factor(shape), *limbs, layout.is_sparse() && k + 1 == stages)
            })
            .collect::<Result<_>>()?;
        let factor_of_first = layout.to_slots.first().map_or(1.0, |(shape, _)| factor(shape));
        let encode_periodic = |(period, log_bounds)| {
            Ok((period, Periodic::new(evaluator, layout, period, &log_bounds, factor_of_first)?))
        };
        Ok(Self {
            start: layout.start,
            to_coefficients,
            last_to_coefficients,
            trace: layout.trace.iter().map(|&rotation| (rotation, 1)).collect(),
            to_slots,
            periodic: periods.into_iter().map(encode_periodic).collect::<Result<_>>()?,
            shortest_period: layout.shortest_period(),
            raised_limbs: layout.raised_limbs,
            exponential: Exponential::new(params),
            fold: if layout.is_sparse() { Some(Fold::new(evaluator, layout)?) } else { None },
            routines: Routines::default(),
        })
    }

    /// Limbs of all encoded matrices.
    pub fn encoded_limbs(&self) -> usize {
        let matrices = self.to_coefficients.iter().chain(self.last_to_coefficients.values()).chain(&self.to_slots);
        let periodic: usize = self.periodic.values().map(Periodic::encoded_limbs).sum();
        periodic + matrices.map(LinearTransform::encoded_limbs).sum::<usize>()
    }

    /// Whether it takes only complex vectors that repeat.
    pub fn is_sparse(&self) -> bool {
        self.fold.is_some()
    }

    /// The level of its results: the highest, or one less if joining the two halves of a vector
    /// that repeats takes a usable prime.
    pub fn level(&self, params: &Params) -> usize {
        let limbs = self.fold.as_ref().map_or(usize::MAX, |fold| fold.limbs - 1);
        params.level(limbs).unwrap_or(params.top_level())
    }

    /// The message of `a` (level 0, real and imaginary parts at most `2^log_bound`) at the top
    /// level.
    pub fn bootstrap(
        &self,
        evaluator: &Evaluator<B>,
        a: &Ct<B>,
        log_bound: u32,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Ct<B>> {
        let work = |[a]: [Ct<B>; 1]| Ok([self.bootstrap_observed(evaluator, &a, log_bound, keys, &mut |_| {})?]);
        let [out] = self.repeated(evaluator, (Form::Complex, log_bound), bottom(evaluator), [a], keys, work)?;
        Ok(out)
    }

    /// [`Bootstrapper::bootstrap`] that calls `ended` with the name of each stage when it ends, for
    /// profiles.
    pub fn bootstrap_observed(
        &self,
        evaluator: &Evaluator<B>,
        a: &Ct<B>,
        log_bound: u32,
        keys: &EvaluationKeys<B::Packed>,
        ended: &mut dyn FnMut(&'static str),
    ) -> Result<Ct<B>> {
        let slots = self.raised_slots(evaluator, a, &self.ends(log_bound)?, keys, ended)?;
        let out = if let Some(fold) = &self.fold {
            fold.apply(evaluator, self.reduced_real_part(evaluator, slots, keys)?, keys)?
        } else {
            let (re, im) = self.halves(evaluator, slots, keys)?;
            let (re, im) = self.exponential.evaluate_both(evaluator, (&re, &im), keys)?;
            recombine(evaluator, re, im, keys)?
        };
        ended("eval_mod");
        self.times_bound(evaluator, out, log_bound)
    }

    /// [`Bootstrapper::bootstrap`] of a vector of real numbers, with one exponential instead of
    /// two. Imaginary parts are lost.
    pub fn bootstrap_real(
        &self,
        evaluator: &Evaluator<B>,
        a: &Ct<B>,
        log_bound: u32,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Ct<B>> {
        if self.fold.is_some() {
            return self.bootstrap(evaluator, a, log_bound, keys);
        }
        let work = |[a]: [Ct<B>; 1]| {
            let slots = self.raised_slots(evaluator, &a, &self.ends(log_bound)?, keys, &mut |_| {})?;
            drop(a);
            Ok([self.times_bound(evaluator, self.reduced_real_part(evaluator, slots, keys)?, log_bound)?])
        };
        let [out] = self.repeated(evaluator, (Form::Real, log_bound), bottom(evaluator), [a], keys, work)?;
        Ok(out)
    }

    /// Bootstraps two vectors of real numbers at once.
    pub fn bootstrap_pair(
        &self,
        evaluator: &Evaluator<B>,
        (a, b): (&Ct<B>, &Ct<B>),
        log_bound: u32,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<(Ct<B>, Ct<B>)> {
        if self.fold.is_some() {
            return Err(Error::SparsePair);
        }
        let work = |[a, mut packed]: [Ct<B>; 2]| {
            evaluator.mul_i_assign(&mut packed, 1)?;
            evaluator.add_assign(&mut packed, &a)?;
            let slots = self.raised_slots(evaluator, &packed, &self.ends(log_bound)?, keys, &mut |_| {})?;
            drop((a, packed));
            let (re, im) = self.halves(evaluator, slots, keys)?;
            let (re, im) = self.exponential.evaluate_both(evaluator, (&re, &im), keys)?;
            let finish = |w| self.times_bound(evaluator, twice_imaginary(evaluator, w, keys)?, log_bound);
            Ok([finish(re)?, finish(im)?])
        };
        let [a, b] = self.repeated(evaluator, (Form::Pair, log_bound), bottom(evaluator), [a, b], keys, work)?;
        Ok((a, b))
    }

    /// Runs `work` on ciphertexts of the given limbs and scale as a routine of the backend. The
    /// matrices belong to this bootstrapper; the version identifies the keys.
    fn repeated<const COUNT: usize>(
        &self,
        evaluator: &Evaluator<B>,
        (form, log_bound): (Form, u32),
        (limbs, scale): (usize, f64),
        inputs: [&Ct<B>; COUNT],
        keys: &EvaluationKeys<B::Packed>,
        work: impl Fn([Ct<B>; COUNT]) -> Result<[Ct<B>; COUNT]>,
    ) -> Result<[Ct<B>; COUNT]> {
        let params = evaluator.params();
        let mut polys = Vec::with_capacity(2 * COUNT);
        for a in inputs {
            let input = evaluator.truncated(a, limbs)?;
            // The matrices expect exactly this scale.
            evaluator.require_scale("bootstrap", &input, scale)?;
            polys.extend([input.c0, input.c1]);
        }
        let ciphertexts = |polys: Vec<B::Poly>, scale: f64| -> Result<[Ct<B>; COUNT]> {
            let mut polys = polys.into_iter();
            let mut next = || polys.next().ok_or(Error::Empty("bootstrap"));
            let mut all = Vec::with_capacity(COUNT);
            for _ in 0..COUNT {
                let (c0, c1) = (next()?, next()?);
                all.push(Ciphertext { limbs: B::basis(&c0).q, c0, c1, scale, set: params.tag() });
            }
            all.try_into().map_err(|_| Error::Empty("bootstrap"))
        };
        let routine = self.routines.get(form, log_bound, keys.version());
        let out = evaluator.backend().repeat(&routine, polys, |polys| {
            let out = work(ciphertexts(polys, scale)?)?;
            Ok::<_, Error>(out.into_iter().flat_map(|ct| [ct.c0, ct.c1]).collect())
        })?;
        // Results have the scale of their level.
        ciphertexts(out, params.scale(self.level(params)))
    }

    /// [`Bootstrapper::bootstrap`], followed by a bootstrap of its error, enlarged by `2^residual`.
    /// The result is as precise as its scale allows, one level below [`Bootstrapper::level`]. Only
    /// the chains of `full` and `small` support it.
    pub fn bootstrap_precise(
        &self,
        evaluator: &Evaluator<B>,
        a: &Ct<B>,
        log_bound: u32,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Ct<B>> {
        let params = evaluator.params();
        let level = self.level(params);
        if level == 0 {
            return Err(Error::NoSuchLevel { level: 1, top: 0 });
        }
        let residual = residual(params)?;
        let first = self.bootstrap(evaluator, a, log_bound, keys)?;
        let (one, zero) = (real(1.0), Complex64::ZERO);
        let lowered = evaluator.linear_combination(&[(&first, one)], zero, params.limbs(1), params.scale(0))?;
        let mut missed = evaluator.truncated(a, params.limbs(0))?;
        evaluator.sub_assign(&mut missed, &lowered)?;
        evaluator.mul_integer_assign(&mut missed, 1 << residual)?;
        let second = self.bootstrap(evaluator, &missed, log_bound, keys)?;
        let terms = [(&first, one), (&second, real(libm::exp2(-f64::from(residual))))];
        Ok(evaluator.linear_combination(&terms, zero, params.limbs(level), params.scale(level - 1))?)
    }

    /// The outermost matrices for vectors of all slots and messages up to `2^log_bound`.
    fn ends(&self, log_bound: u32) -> Result<Ends<'_, B>> {
        let first_to_slots = self.to_slots.first().ok_or(Error::Empty("bootstrap"))?;
        let last_to_coefficients = of_bound(&self.last_to_coefficients, log_bound)?;
        Ok(Ends { last_to_coefficients, first_to_slots, trace: &[] })
    }

    /// The slots of the raised message, divided by `2 q0 K`.
    fn raised_slots(
        &self,
        evaluator: &Evaluator<B>,
        a: &Ct<B>,
        ends: &Ends<'_, B>,
        keys: &EvaluationKeys<B::Packed>,
        ended: &mut dyn FnMut(&'static str),
    ) -> Result<Ct<B>> {
        let bottom = self.slots_to_coefficients(evaluator, a, ends.last_to_coefficients, keys)?;
        ended("slots_to_coefficients");
        self.slots_of_raised(evaluator, &bottom, (ends.first_to_slots, ends.trace), keys, ended)
    }

    /// The coefficients of a ciphertext modulo `q0`, after its modulus is raised, in the slots and
    /// divided by `2 q0 K`. The first matrix and the trace are those of [`Ends`].
    fn slots_of_raised(
        &self,
        evaluator: &Evaluator<B>,
        bottom: &Ct<B>,
        (first, trace): (&LinearTransform<B::Packed>, &[(i64, usize)]),
        keys: &EvaluationKeys<B::Packed>,
        ended: &mut dyn FnMut(&'static str),
    ) -> Result<Ct<B>> {
        let mut raised = evaluator.raise_modulus(bottom, self.raised_limbs, keys)?;
        raised.scale = evaluator.params().literal().q0 as f64;
        let mut z = if self.is_sparse() {
            let z = traced(evaluator, &self.trace, evaluator.leave_sparse_secret(raised, keys)?, keys)?;
            ended("raise_modulus");
            evaluator.sum_of_transforms(&[(&z, first)], keys)?
        } else {
            ended("raise_modulus");
            evaluator.transform_raised(raised, first, keys)?
        };
        for (k, matrix) in self.to_slots.iter().enumerate().skip(1) {
            if k + 1 == self.to_slots.len() {
                z = traced(evaluator, trace, z, keys)?;
            }
            z = evaluator.sum_of_transforms(&[(&z, matrix)], keys)?;
        }
        if self.to_slots.len() == 1 {
            z = traced(evaluator, trace, z, keys)?;
        }
        ended("coefficients_to_slots");
        Ok(z)
    }

    /// A ciphertext modulo `q0` whose coefficients are the slots of `a` (bit-reversed), at `q0`
    /// over the message ratio.
    fn slots_to_coefficients(
        &self,
        evaluator: &Evaluator<B>,
        a: &Ct<B>,
        last: &LinearTransform<B::Packed>,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Ct<B>> {
        let params = evaluator.params();
        let mut ct = evaluator.truncated(a, params.limbs(0))?;
        // The matrices expect exactly this scale.
        evaluator.require_scale("bootstrap", &ct, params.scale(0))?;
        if self.start != 0 {
            ct = evaluator.automorphism(&ct, evaluator.galois_of_rotation(self.start), keys)?;
        }
        for matrix in self.to_coefficients.iter().chain([last]) {
            ct = evaluator.sum_of_transforms(&[(&ct, matrix)], keys)?;
        }
        Ok(ct)
    }

    /// The real parts of the slots, modulo `q0`.
    fn reduced_real_part(
        &self,
        evaluator: &Evaluator<B>,
        mut z: Ct<B>,
        keys: &EvaluationKeys<B::Packed>,
    ) -> Result<Ct<B>> {
        let conjugate = evaluator.automorphism(&z, evaluator.galois_of_conjugation(), keys)?;
        evaluator.add_assign(&mut z, &conjugate)?;
        let w = self.exponential.evaluate(evaluator, &z, keys)?;
        twice_imaginary(evaluator, w, keys)
    }

    /// Twice the real and twice the imaginary parts of the slots.
    fn halves(&self, evaluator: &Evaluator<B>, z: Ct<B>, keys: &EvaluationKeys<B::Packed>) -> Result<(Ct<B>, Ct<B>)> {
        let conjugate = evaluator.automorphism(&z, evaluator.galois_of_conjugation(), keys)?;
        let mut re = z.clone();
        evaluator.add_assign(&mut re, &conjugate)?;
        let mut im = z;
        evaluator.sub_assign(&mut im, &conjugate)?;
        evaluator.mul_i_assign(&mut im, 3)?;
        Ok((re, im))
    }

    /// Multiplies a result by the message bound and sets the scale of its level.
    fn times_bound(&self, evaluator: &Evaluator<B>, mut out: Ct<B>, log_bound: u32) -> Result<Ct<B>> {
        if log_bound > 0 {
            evaluator.mul_integer_assign(&mut out, 1 << log_bound)?;
        }
        out.scale = evaluator.params().scale(self.level(evaluator.params()));
        Ok(out)
    }
}

/// The limbs and the scale of the lowest level, at which a bootstrap begins.
fn bottom<B: Backend>(evaluator: &Evaluator<B>) -> (usize, f64) {
    let params = evaluator.params();
    (params.limbs(0), params.scale(0))
}

/// What was prepared for messages up to `2^log_bound`.
fn of_bound<T>(prepared: &BTreeMap<u32, T>, log_bound: u32) -> Result<&T> {
    let missing = || Error::NoSuchBound { log_bound, prepared: prepared.keys().copied().collect() };
    prepared.get(&log_bound).ok_or_else(missing)
}

/// Brings a message of the lowest level's scale, divided by its bound, to `q0` over the message
/// ratio.
fn message_factor(params: &Params, log_bound: u32) -> f64 {
    params.coefficient_scale() / params.scale(0) / f64::from(1u32 << log_bound)
}

/// The successive sums with its rotations, which leave only the coefficients of a subring.
fn traced<B: Backend>(
    evaluator: &Evaluator<B>,
    rotations: &[(i64, usize)],
    mut z: Ct<B>,
    keys: &EvaluationKeys<B::Packed>,
) -> Result<Ct<B>> {
    for &(rotation, times) in rotations {
        let galois = evaluator.galois_of_rotation(rotation);
        let mut rotated = evaluator.automorphism(&z, galois, keys)?;
        for _ in 1..times {
            rotated = evaluator.automorphism(&rotated, galois, keys)?;
        }
        evaluator.add_assign(&mut z, &rotated)?;
    }
    Ok(z)
}

/// `2 Im(w) = -i (w - conj w)`.
fn twice_imaginary<B: Backend>(
    evaluator: &Evaluator<B>,
    mut w: Ct<B>,
    keys: &EvaluationKeys<B::Packed>,
) -> Result<Ct<B>> {
    let conjugate = evaluator.automorphism(&w, evaluator.galois_of_conjugation(), keys)?;
    evaluator.sub_assign(&mut w, &conjugate)?;
    evaluator.mul_i_assign(&mut w, 3)?;
    Ok(w)
}

/// `2 Im(w1) + 2i Im(w2) = -i (w1 + i w2) + i conj(w1 - i w2)`, with one conjugation.
fn recombine<B: Backend>(
    evaluator: &Evaluator<B>,
    w1: Ct<B>,
    mut w2: Ct<B>,
    keys: &EvaluationKeys<B::Packed>,
) -> Result<Ct<B>> {
    evaluator.mul_i_assign(&mut w2, 1)?;
    let mut difference = w1.clone();
    evaluator.sub_assign(&mut difference, &w2)?;
    let mut conjugate = evaluator.automorphism(&difference, evaluator.galois_of_conjugation(), keys)?;
    evaluator.mul_i_assign(&mut conjugate, 1)?;
    let mut sum = w1;
    evaluator.add_assign(&mut sum, &w2)?;
    evaluator.mul_i_assign(&mut sum, 3)?;
    evaluator.add_assign(&mut sum, &conjugate)?;
    Ok(sum)
}

/// `Complex64` of a real number.
fn real(x: f64) -> Complex64 {
    Complex64::new(x, 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetal_ckks::params::BUILT_IN;

    /// A new built-in set needs an entry in [`RESIDUALS`], and no entry is of a set that is gone.
    #[test]
    fn every_built_in_set_has_a_precise_bootstrap() {
        for literal in &BUILT_IN {
            assert!(residual(&Params::named(&literal.name).unwrap()).is_ok(), "no entry for {}", literal.name);
        }
        assert!(RESIDUALS.iter().all(|(name, _)| Params::named(name).is_ok()));
    }
}
