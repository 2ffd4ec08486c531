//! The engine on plain numbers, which counts operations.
//!
//! Levels, partners and encodings follow the same rules as under encryption. A circuit that runs
//! here has the levels it needs, and its [`OpCounts`] say what it costs and which keys it needs.
//!
//! ```
//! use hetal_circuits::{Clear, Complex64, Engine, clear::OpKind};
//! let engine = Clear::new(4, 3);
//! let a = engine.fresh(&[Complex64::new(2.0, 0.0); 4], 3)?;
//! let b = engine.square(&a)?;
//! assert_eq!((engine.values(&b)[0].re, engine.level(&b)), (4.0, 2));
//! assert_eq!(engine.op_counts().count(OpKind::Relinearisation), 1);
//! # Ok::<(), hetal_circuits::Error>(())
//! ```

mod noise;
mod op_counts;
#[cfg(test)]
mod tests;

use crate::bootstrap::lift::MAX_BOUNDS;
use crate::{Diagonal, Engine, Error, Multiplication, Result};
use hetal_ckks::LiftForm;
pub use noise::Noise;
use num_complex::Complex64;
pub use op_counts::{KeyRequirements, OpCounts, OpKind};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A vector of slots with a level, as [`Clear`] keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ciphertext {
    values: Vec<Complex64>,
    level: usize,
    partner: Option<usize>,
}

impl Ciphertext {
    /// The level of the partners this was prepared for, if it was.
    pub fn partner(&self) -> Option<usize> {
        self.partner
    }
}

/// A vector in coefficient form, as [`Clear`] keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct Unlifted {
    values: Vec<Complex64>,
    log_bound: u32,
    form: LiftForm,
}

/// A vector encoded for one [`Multiplication`].
#[derive(Clone, Debug, PartialEq)]
pub struct Plaintext {
    values: Vec<Complex64>,
    place: Multiplication,
}

/// A matrix encoded for one [`Multiplication`].
#[derive(Clone, Debug, PartialEq)]
pub struct Transform {
    diagonals: Vec<Diagonal>,
    place: Multiplication,
}

impl Transform {
    fn rotations(&self) -> BTreeSet<i64> {
        self.diagonals.iter().map(|d| d.rotation).collect()
    }
}

/// Arithmetic on plain `f64` slots with the rules and the operation counts of encrypted arithmetic.
#[derive(Debug)]
pub struct Clear {
    slots: usize,
    top: usize,
    noise: Noise,
    counts: Mutex<OpCounts>,
}

impl Clear {
    /// An engine without noise.
    pub fn new(slots: usize, top_level: usize) -> Self {
        Self::with_noise(slots, top_level, Noise::default())
    }

    /// An engine that adds the given noise.
    pub fn with_noise(slots: usize, top_level: usize, noise: Noise) -> Self {
        Self { slots, top: top_level, noise, counts: Mutex::default() }
    }

    /// A vector at a level, as a fresh encryption would be.
    pub fn fresh(&self, values: &[Complex64], level: usize) -> Result<Ciphertext> {
        self.check_length(values)?;
        self.check_level(level)?;
        let mut values = values.to_vec();
        noise::disturb(&mut values, self.noise.encryption, self.noise.seed);
        Ok(Ciphertext { values, level, partner: None })
    }

    /// A vector in coefficient form, as a fresh encryption would be. Real and imaginary parts must
    /// be at most [`MAX_BOUNDS`] times `2^log_bound` in magnitude.
    pub fn fresh_unlifted(&self, values: &[Complex64], log_bound: u32, form: LiftForm) -> Result<Unlifted> {
        self.check_length(values)?;
        let (operation, bound) = ("a lift", libm::ldexp(MAX_BOUNDS, log_bound.min(1023) as i32));
        if let Some(slot) = values.iter().position(|v| v.is_nan() || magnitude(v) > bound) {
            return Err(Error::OutOfRange { operation, slot, value: magnitude(&values[slot]), bound });
        }
        let mut values = values.to_vec();
        noise::disturb(&mut values, libm::ldexp(self.noise.rounding, log_bound as i32), self.noise.seed);
        Ok(Unlifted { values, log_bound, form })
    }

    /// The values, as a decryption would give them.
    pub fn values<'a>(&self, a: &'a Ciphertext) -> &'a [Complex64] {
        &a.values
    }

    /// The operation counts so far.
    pub fn op_counts(&self) -> OpCounts {
        self.recorded().clone()
    }

    /// The operation counts so far, which are reset.
    pub fn take_op_counts(&self) -> OpCounts {
        std::mem::take(&mut *self.recorded())
    }

    fn recorded(&self) -> MutexGuard<'_, OpCounts> {
        // A panic in another thread leaves incomplete counts and no broken invariant.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_length(&self, values: &[Complex64]) -> Result<()> {
        if values.len() == self.slots { Ok(()) } else { Err(Error::SlotCount { got: values.len(), slots: self.slots }) }
    }

    fn check_level(&self, level: usize) -> Result<()> {
        if level <= self.top { Ok(()) } else { Err(Error::NoSuchLevel { level, top: self.top }) }
    }

    fn check_place(&self, place: Multiplication) -> Result<()> {
        self.check_level(place.operand)?;
        // A prepared result is still to be multiplied, which takes one more level.
        require("a plain multiplication", if place.partner.is_some() { 2 } else { 1 }, place.at)?;
        require("a plain multiplication", place.at, place.operand)?;
        match place.partner {
            None => Ok(()),
            Some(partner) => self.check_level(partner).and(require("a partner", place.at - 1, partner)),
        }
    }

    fn canonical(&self, rotation: i64) -> i64 {
        rotation.rem_euclid(self.slots.max(1) as i64)
    }

    fn rotated(&self, values: &[Complex64], rotation: i64) -> Vec<Complex64> {
        let (head, tail) = values.split_at(self.canonical(rotation) as usize);
        [tail, head].concat()
    }

    /// Records rotations of one ciphertext by the canonical `ks`; returns how many were
    /// key-switches.
    fn record_hoisted(&self, ks: impl IntoIterator<Item = i64>, level: usize) -> usize {
        let mut counts = self.recorded();
        let switched = ks.into_iter().filter(|&k| k != 0);
        switched.map(|k| counts.record_rotation(OpKind::HoistedRotation, k, level)).count()
    }

    /// The result of an operation that ends in `errors` rescales or key-switches, each with its own
    /// error.
    fn finish(&self, mut values: Vec<Complex64>, level: usize, partner: Option<usize>, errors: usize) -> Ciphertext {
        let sigma = self.noise.operation * libm::sqrt(errors as f64);
        noise::disturb(&mut values, sigma, self.noise.seed);
        Ciphertext { values, level, partner }
    }

    /// The common level of two operands of a sum, and how many had to be dropped to it. A prepared
    /// operand needs one prepared for the same partners.
    fn common(&self, operation: &'static str, a: &Ciphertext, b: &Ciphertext) -> Result<(usize, usize)> {
        if a.partner != b.partner {
            return Err(Error::Partner { operation, prepared: a.partner.or(b.partner), needs: None });
        }
        let (low, high) = (a.level.min(b.level), a.level.max(b.level));
        if a.partner.is_some() {
            require(operation, high, low)?;
        } else if low < high {
            self.recorded().record(OpKind::Drop, high, 1);
        }
        Ok((low, usize::from(low < high)))
    }

    fn sum(
        &self,
        operation: &'static str,
        a: &Ciphertext,
        b: &Ciphertext,
        f: impl Fn(Complex64, Complex64) -> Complex64,
    ) -> Result<Ciphertext> {
        let (level, dropped) = self.common(operation, a, b)?;
        self.recorded().record(OpKind::Addition, level, 1);
        let values = a.values.iter().zip(&b.values).map(|(&x, &y)| f(x, y)).collect();
        Ok(self.finish(values, level, a.partner, dropped))
    }

    /// `a` with every slot changed by an exact operation.
    fn map(&self, a: &Ciphertext, f: impl Fn(Complex64) -> Complex64) -> Ciphertext {
        Ciphertext { values: a.values.iter().map(|&v| f(v)).collect(), ..*a }
    }

    /// Checks the plaintexts of a sum of plain products; returns where it happens.
    fn common_place(&self, terms: impl Iterator<Item = (usize, Multiplication)>) -> Result<Option<Multiplication>> {
        let mut first: Option<Multiplication> = None;
        for (operand, encoded) in terms {
            let place = *first.get_or_insert(encoded);
            let used = Multiplication { operand, ..place };
            if encoded != used {
                return Err(Error::WrongPlaintext { encoded, used });
            }
        }
        Ok(first)
    }

    /// The level at which a sum of products happens, and how many factors have to be dropped to it.
    fn product_level(&self, terms: &[(&Ciphertext, &Ciphertext)]) -> Result<(usize, usize)> {
        const NAME: &str = "a sum of products";
        let levels = || terms.iter().map(|(a, _)| a.level);
        let low = levels().min().ok_or(Error::Empty(NAME))?;
        if terms.iter().all(|(a, b)| a.partner.is_none() && b.partner.is_none()) {
            let low = terms.iter().map(|(_, b)| b.level).fold(low, usize::min);
            let dropped = terms.iter().flat_map(|(a, b)| [a.level, b.level]).filter(|&l| l > low);
            let mut counts = self.recorded();
            return Ok((low, dropped.map(|l| counts.record(OpKind::Drop, l, 1)).count()));
        }
        for (a, b) in terms {
            if b.partner.is_some() || a.partner != Some(b.level) {
                return Err(Error::Partner {
                    operation: NAME,
                    prepared: a.partner.or(b.partner),
                    needs: Some(b.level),
                });
            }
        }
        require(NAME, levels().fold(0, usize::max), low)?;
        Ok((low, 0))
    }

    fn transformed(&self, a: &Ciphertext, matrix: &Transform) -> Vec<Complex64> {
        let mut sum = vec![Complex64::ZERO; self.slots];
        for diagonal in &matrix.diagonals {
            let rotated = self.rotated(&a.values, diagonal.rotation);
            sum.iter_mut().zip(rotated.iter().zip(&diagonal.values)).for_each(|(s, (x, y))| *s += x * y);
        }
        sum
    }

    fn refreshed_real(&self, a: &Ciphertext, bound: f64) -> Ciphertext {
        let mut out = self.refreshed(a, self.top, self.noise.bootstrap * bound);
        out.values.iter_mut().for_each(|z| z.im = 0.0);
        out
    }

    fn refreshed(&self, a: &Ciphertext, level: usize, sigma: f64) -> Ciphertext {
        let mut values = a.values.clone();
        noise::disturb(&mut values, sigma, self.noise.seed);
        Ciphertext { values, level, partner: None }
    }
}

fn require(operation: &'static str, needs: usize, has: usize) -> Result<()> {
    if has >= needs { Ok(()) } else { Err(Error::OutOfLevels { operation, needs, has }) }
}

fn ordinary(operation: &'static str, a: &Ciphertext) -> Result<()> {
    match a.partner {
        None => Ok(()),
        prepared => Err(Error::Partner { operation, prepared, needs: None }),
    }
}

/// Imaginary parts up to this share of the bound count as noise of real vectors.
const REAL_ENOUGH: f64 = 1e-3;

/// Differences between the periods of a vector up to this share of the bound count as noise.
const SAME_ENOUGH: f64 = 1e-3;

/// The larger part of a number.
fn magnitude(v: &Complex64) -> f64 {
    v.re.abs().max(v.im.abs())
}

/// The bound itself, if all values lie in it.
fn bound_of_bootstrap(vectors: &[&Ciphertext], log_bound: u32) -> Result<f64> {
    const NAME: &str = "a bootstrap";
    let bound = libm::ldexp(1.0, log_bound.min(1023) as i32);
    for a in vectors {
        ordinary(NAME, a)?;
        // The comparison also refuses NaN.
        if let Some(slot) = a.values.iter().position(|v| v.is_nan() || magnitude(v) > bound) {
            return Err(Error::OutOfRange { operation: NAME, slot, value: magnitude(&a.values[slot]), bound });
        }
    }
    Ok(bound)
}

/// The bound itself, if all values lie in it and are real.
fn bound_of_real_bootstrap(vectors: &[&Ciphertext], log_bound: u32) -> Result<f64> {
    let bound = bound_of_bootstrap(vectors, log_bound)?;
    for a in vectors {
        if let Some(slot) = a.values.iter().position(|z| z.im.abs() > REAL_ENOUGH * bound) {
            let value = a.values[slot].im.abs();
            return Err(Error::OutOfRange { operation: "a real bootstrap", slot, value, bound: REAL_ENOUGH * bound });
        }
    }
    Ok(bound)
}

/// The mean of the periods of a vector in every one of them, if they are equal but for noise.
fn mean_of_periods(values: &[Complex64], period: usize, bound: f64) -> Result<Vec<Complex64>> {
    let count = (values.len() / period).max(1) as f64;
    let mean = |i: usize| values.iter().skip(i).step_by(period).sum::<Complex64>() / count;
    let means: Vec<Complex64> = (0..period.min(values.len())).map(mean).collect();
    let means: Vec<Complex64> = means.iter().copied().cycle().take(values.len()).collect();
    let deviation = |slot: usize| (values[slot] - means[slot]).norm();
    if let Some(slot) = (0..values.len()).find(|&slot| deviation(slot) > SAME_ENOUGH * bound) {
        let (operation, value) = ("a periodic bootstrap of a vector that does not repeat", deviation(slot));
        return Err(Error::OutOfRange { operation, slot, value, bound: SAME_ENOUGH * bound });
    }
    Ok(means)
}

impl Engine for Clear {
    type Ciphertext = Ciphertext;
    type Unlifted = Unlifted;
    type Plaintext = Plaintext;
    type Pattern = Vec<Complex64>;
    type Transform = Transform;

    fn slots(&self) -> usize {
        self.slots
    }

    fn top_level(&self) -> usize {
        self.top
    }

    fn level(&self, a: &Ciphertext) -> usize {
        a.level
    }

    fn add(&self, a: &Ciphertext, b: &Ciphertext) -> Result<Ciphertext> {
        self.sum("an addition", a, b, |x, y| x + y)
    }

    fn sub(&self, a: &Ciphertext, b: &Ciphertext) -> Result<Ciphertext> {
        self.sum("a subtraction", a, b, |x, y| x - y)
    }

    fn neg(&self, a: &Ciphertext) -> Result<Ciphertext> {
        Ok(self.map(a, |v| -v))
    }

    fn add_constant(&self, a: &Ciphertext, c: Complex64) -> Result<Ciphertext> {
        ordinary("an addition of a constant", a)?;
        self.recorded().record(OpKind::Addition, a.level, 1);
        Ok(self.map(a, |v| v + c))
    }

    fn add_plain(&self, a: &Ciphertext, values: &[Complex64]) -> Result<Ciphertext> {
        ordinary("an addition of a plaintext", a)?;
        self.check_length(values)?;
        self.recorded().record(OpKind::Addition, a.level, 1);
        let values = a.values.iter().zip(values).map(|(x, y)| x + y).collect();
        Ok(Ciphertext { values, ..*a })
    }

    fn mul_integer(&self, a: &Ciphertext, c: i64) -> Result<Ciphertext> {
        Ok(self.map(a, |v| v * c as f64))
    }

    fn mul_i(&self, a: &Ciphertext, power: u32) -> Result<Ciphertext> {
        Ok(self.map(a, |v| match power % 4 {
            0 => v,
            1 => Complex64::new(-v.im, v.re),
            2 => -v,
            _ => Complex64::new(v.im, -v.re),
        }))
    }

    fn drop_to(&self, a: &Ciphertext, level: usize) -> Result<Ciphertext> {
        if level == a.level {
            return Ok(a.clone());
        }
        ordinary("a level drop", a)?;
        require("a level drop", level, a.level)?;
        self.recorded().record(OpKind::Drop, a.level, 1);
        Ok(self.finish(a.values.clone(), level, None, 1))
    }

    fn linear_combination(&self, terms: &[(&Ciphertext, Complex64)], constant: Complex64) -> Result<Ciphertext> {
        const NAME: &str = "a linear combination";
        terms.iter().try_for_each(|(a, _)| ordinary(NAME, a))?;
        let at = terms.iter().map(|(a, _)| a.level).min().ok_or(Error::Empty(NAME))?;
        require(NAME, 1, at)?;
        let mut values = vec![constant; self.slots];
        for (a, c) in terms {
            values.iter_mut().zip(&a.values).for_each(|(s, x)| *s += c * x);
        }
        let mut counts = self.recorded();
        counts.record(OpKind::ConstantProduct, at, terms.len());
        counts.record(OpKind::Addition, at, terms.len() - usize::from(constant == Complex64::ZERO));
        counts.record(OpKind::Rescale, at, 1);
        drop(counts);
        Ok(self.finish(values, at - 1, None, 1))
    }

    fn encode(&self, values: &[Complex64], place: Multiplication) -> Result<Plaintext> {
        self.check_length(values)?;
        self.check_place(place)?;
        Ok(Plaintext { values: values.to_vec(), place })
    }

    fn pattern(&self, values: &[Complex64]) -> Result<Vec<Complex64>> {
        self.check_length(values)?;
        Ok(values.to_vec())
    }

    fn encode_pattern(&self, pattern: &Vec<Complex64>, factor: f64, place: Multiplication) -> Result<Plaintext> {
        self.encode(&pattern.iter().map(|z| z * factor).collect::<Vec<_>>(), place)
    }

    fn sum_of_plain_products(&self, terms: &[(&Ciphertext, &Plaintext)]) -> Result<Ciphertext> {
        const NAME: &str = "a sum of plain products";
        terms.iter().try_for_each(|(a, _)| ordinary(NAME, a))?;
        let places = terms.iter().map(|(a, p)| (a.level, p.place));
        let place = self.common_place(places)?.ok_or(Error::Empty(NAME))?;
        let mut values = vec![Complex64::ZERO; self.slots];
        for (a, p) in terms {
            values.iter_mut().zip(a.values.iter().zip(&p.values)).for_each(|(s, (x, y))| *s += x * y);
        }
        let mut counts = self.recorded();
        counts.record(OpKind::PlainProduct, place.at, terms.len());
        counts.record(OpKind::Addition, place.at, terms.len() - 1);
        counts.record(OpKind::Rescale, place.at, 1);
        drop(counts);
        Ok(self.finish(values, place.at - 1, place.partner, 1))
    }

    fn sum_of_products(&self, terms: &[(&Ciphertext, &Ciphertext)]) -> Result<Ciphertext> {
        let (at, dropped) = self.product_level(terms)?;
        require("a sum of products", 1, at)?;
        let mut values = vec![Complex64::ZERO; self.slots];
        for (a, b) in terms {
            values.iter_mut().zip(a.values.iter().zip(&b.values)).for_each(|(s, (x, y))| *s += x * y);
        }
        let mut counts = self.recorded();
        counts.record(OpKind::Product, at, terms.len());
        counts.record(OpKind::Addition, at, terms.len() - 1);
        counts.record(OpKind::Relinearisation, at, 1);
        counts.record(OpKind::Rescale, at, 1);
        drop(counts);
        // The error of a dropped factor is multiplied by the other factor, which is taken as 1
        // here.
        Ok(self.finish(values, at - 1, None, 2 + dropped))
    }

    fn rotate(&self, a: &Ciphertext, k: i64) -> Result<Ciphertext> {
        let k = self.canonical(k);
        if k == 0 {
            return Ok(a.clone());
        }
        self.recorded().record_rotation(OpKind::Rotation, k, a.level);
        Ok(self.finish(self.rotated(&a.values, k), a.level, a.partner, 1))
    }

    fn rotate_many(&self, a: &Ciphertext, ks: &[i64]) -> Result<Vec<Ciphertext>> {
        self.record_hoisted(ks.iter().map(|&k| self.canonical(k)), a.level);
        let rotated = ks.iter().map(|&k| {
            let errors = usize::from(self.canonical(k) != 0);
            self.finish(self.rotated(&a.values, k), a.level, a.partner, errors)
        });
        Ok(rotated.collect())
    }

    fn conjugate(&self, a: &Ciphertext) -> Result<Ciphertext> {
        self.recorded().record(OpKind::Conjugation, a.level, 1);
        let values = a.values.iter().map(|v| v.conj()).collect();
        Ok(self.finish(values, a.level, a.partner, 1))
    }

    fn prepare(&self, diagonals: &[Diagonal], place: Multiplication) -> Result<Transform> {
        self.check_place(place)?;
        if diagonals.is_empty() {
            return Err(Error::Empty("a matrix"));
        }
        diagonals.iter().try_for_each(|d| self.check_length(&d.values))?;
        let canonical = |d: &Diagonal| Diagonal { rotation: self.canonical(d.rotation), values: d.values.clone() };
        Ok(Transform { diagonals: diagonals.iter().map(canonical).collect(), place })
    }

    fn transform_many(&self, a: &Ciphertext, matrices: &[&Transform]) -> Result<Vec<Ciphertext>> {
        const NAME: &str = "a linear transform";
        ordinary(NAME, a)?;
        let place = self.common_place(matrices.iter().map(|m| (a.level, m.place)))?.ok_or(Error::Empty(NAME))?;
        let rotations: BTreeSet<i64> = matrices.iter().flat_map(|m| m.rotations()).collect();
        self.record_hoisted(rotations, a.level);
        let mut counts = self.recorded();
        for matrix in matrices {
            counts.record(OpKind::PlainProduct, place.at, matrix.diagonals.len());
            counts.record(OpKind::Addition, place.at, matrix.diagonals.len() - 1);
            counts.record(OpKind::Rescale, place.at, 1);
        }
        drop(counts);
        let finish = |m: &&Transform| {
            let errors = 1 + m.rotations().iter().filter(|&&k| k != 0).count();
            self.finish(self.transformed(a, m), place.at - 1, place.partner, errors)
        };
        Ok(matrices.iter().map(finish).collect())
    }

    fn sum_of_transforms(&self, terms: &[(&Ciphertext, &Transform)]) -> Result<Ciphertext> {
        const NAME: &str = "a sum of linear transforms";
        terms.iter().try_for_each(|(a, _)| ordinary(NAME, a))?;
        let place = self.common_place(terms.iter().map(|(a, m)| (a.level, m.place)))?.ok_or(Error::Empty(NAME))?;
        let mut values = vec![Complex64::ZERO; self.slots];
        let (mut products, mut switches) = (0, 0);
        for (a, m) in terms {
            switches += self.record_hoisted(m.rotations(), a.level);
            products += m.diagonals.len();
            values.iter_mut().zip(self.transformed(a, m)).for_each(|(s, x)| *s += x);
        }
        let mut counts = self.recorded();
        counts.record(OpKind::PlainProduct, place.at, products);
        counts.record(OpKind::Addition, place.at, products - 1);
        counts.record(OpKind::Rescale, place.at, 1);
        drop(counts);
        Ok(self.finish(values, place.at - 1, place.partner, 1 + switches))
    }

    fn bootstrap(&self, a: &Ciphertext, log_bound: u32) -> Result<Ciphertext> {
        let bound = bound_of_bootstrap(&[a], log_bound)?;
        self.recorded().record_bootstrap(a.level, log_bound);
        Ok(self.refreshed(a, self.top, self.noise.bootstrap * bound))
    }

    fn bootstrap_real(&self, a: &Ciphertext, log_bound: u32) -> Result<Ciphertext> {
        let bound = bound_of_real_bootstrap(&[a], log_bound)?;
        self.recorded().record_bootstrap(a.level, log_bound);
        Ok(self.refreshed_real(a, bound))
    }

    fn bootstrap_periodic(&self, a: &Ciphertext, period: usize, log_bound: u32) -> Result<Ciphertext> {
        if !period.is_power_of_two() || period > self.slots {
            return Err(Error::NoSparseBootstrap { slots: period, fewest: 1, most: self.slots });
        }
        if period == self.slots {
            return self.bootstrap_real(a, log_bound);
        }
        let bound = bound_of_real_bootstrap(&[a], log_bound)?;
        let mean = mean_of_periods(&a.values, period, bound)?;
        self.recorded().record_periodic_bootstrap(a.level, period, log_bound);
        // The errors repeat as well: the coefficients between those of the vectors' subring are 0.
        let one = self.refreshed_real(&Ciphertext { values: mean[..period].to_vec(), ..*a }, bound);
        Ok(Ciphertext { values: one.values.iter().copied().cycle().take(self.slots).collect(), ..one })
    }

    fn bootstrap_pair(&self, a: &Ciphertext, b: &Ciphertext, log_bound: u32) -> Result<(Ciphertext, Ciphertext)> {
        let bound = bound_of_real_bootstrap(&[a, b], log_bound)?;
        self.recorded().record_bootstrap(a.level.min(b.level), log_bound);
        // Combined in one complex vector, each leaves its imaginary part in the other.
        let packed: Vec<Complex64> = a.values.iter().zip(&b.values).map(|(a, b)| a + Complex64::I * b).collect();
        let part = |part: fn(&Complex64) -> f64| {
            let values = packed.iter().map(|z| Complex64::new(part(z), 0.0)).collect();
            self.refreshed_real(&Ciphertext { values, level: 0, partner: None }, bound)
        };
        Ok((part(|z| z.re), part(|z| z.im)))
    }

    fn lift(&self, a: &Unlifted) -> Result<Ciphertext> {
        self.recorded().record(OpKind::Lift, self.top, 1);
        let bound = libm::ldexp(1.0, a.log_bound.min(1023) as i32);
        let bottom = Ciphertext { values: a.values.clone(), level: 0, partner: None };
        Ok(match a.form {
            LiftForm::Complex => self.refreshed(&bottom, self.top, self.noise.bootstrap * bound),
            LiftForm::Real => self.refreshed_real(&bottom, bound),
        })
    }

    fn bootstrap_precise(&self, a: &Ciphertext, log_bound: u32) -> Result<Ciphertext> {
        let bound = bound_of_bootstrap(&[a], log_bound)?;
        require("a precise bootstrap", 1, self.top)?;
        self.recorded().record_bootstrap(a.level, log_bound);
        self.recorded().record_bootstrap(0, log_bound);
        // The error of the second bootstrap, and those of a level drop and the combination.
        let sigma = libm::hypot(self.noise.precise_bootstrap() * bound, 2.0 * self.noise.operation);
        Ok(self.refreshed(a, self.top - 1, sigma))
    }
}
