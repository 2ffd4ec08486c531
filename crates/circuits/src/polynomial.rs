//! Evaluation of polynomials at ciphertexts, in the least depth.
//!
//! A polynomial `p` of degree `d < 2^m` is split as `p = q T_n + r`, with `n` the largest power of
//! two up to `d` (Paterson and Stockmeyer). The quotient has one level less than `p`, the remainder
//! is split again by smaller powers, and all products of one split share a relinearisation.
//! Quotients of quotients end in linear combinations of low basis elements. The evaluation takes
//! `ceil(log2(d + 1))` levels, which is the least possible.

use crate::{Engine, Error, Multiplication, Result};
use num_complex::Complex64;
use std::collections::{BTreeMap, BTreeSet};

/// The basis of a polynomial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolynomialBasis {
    /// Chebyshev polynomials of the first kind `T_k`, for arguments in `[-1, 1]`.
    Chebyshev,
    /// Powers `x^k`.
    Monomial,
}

/// One number for all slots (one entry), or one for each (as many entries as slots).
type Coefficient = Vec<Complex64>;

/// A polynomial `sum_k c_k T_k(x)` or `sum_k c_k x^k`, the same in all slots or another one in
/// each.
#[derive(Clone, Debug, PartialEq)]
pub struct Polynomial {
    basis: PolynomialBasis,
    coefficients: Vec<Coefficient>,
}

impl Polynomial {
    /// The same polynomial in every slot.
    pub fn new(basis: PolynomialBasis, coefficients: &[Complex64]) -> Self {
        Self::trimmed(basis, coefficients.iter().map(|&c| vec![c]).collect())
    }

    /// The same polynomial with real coefficients in every slot.
    pub fn real(basis: PolynomialBasis, coefficients: &[f64]) -> Self {
        Self::trimmed(basis, coefficients.iter().map(|&c| vec![Complex64::new(c, 0.0)]).collect())
    }

    /// `factors[slot] * self` in each slot: with factors 0 and 1, the polynomial in some slots and
    /// 0 in the others.
    pub fn times(&self, factors: &[Complex64]) -> Self {
        let scaled = |c: &Coefficient| match c.as_slice() {
            [one] => factors.iter().map(|f| f * one).collect(),
            each => each.iter().zip(factors).map(|(c, f)| c * f).collect(),
        };
        Self::trimmed(self.basis, self.coefficients.iter().map(scaled).collect())
    }

    /// The highest power with a coefficient other than 0.
    pub fn degree(&self) -> usize {
        self.coefficients.len().saturating_sub(1)
    }

    /// The levels an evaluation takes: `ceil(log2(degree + 1))`.
    pub fn depth(&self) -> usize {
        log2_ceil(self.degree() + 1)
    }

    fn trimmed(basis: PolynomialBasis, mut coefficients: Vec<Coefficient>) -> Self {
        while coefficients.last().is_some_and(|c| is_zero(c)) {
            coefficients.pop();
        }
        Self { basis, coefficients }
    }

    fn constant(&self) -> Coefficient {
        self.coefficients.first().cloned().unwrap_or_else(|| vec![Complex64::ZERO])
    }

    /// `(q, r)` with `self = q T_n + r` (or `q x^n + r`), `n <= degree < 2 n`.
    fn divided(&self, n: usize) -> (Self, Self) {
        let mut quotient = vec![self.coefficients[n].clone()];
        let mut rest = self.coefficients[..n].to_vec();
        for (k, c) in self.coefficients.iter().enumerate().skip(n + 1) {
            match self.basis {
                PolynomialBasis::Monomial => quotient.push(c.clone()),
                // T_k = 2 T_(k-n) T_n - T_|k-2n|
                PolynomialBasis::Chebyshev => {
                    quotient.push(c.iter().map(|c| 2.0 * c).collect());
                    rest[k.abs_diff(2 * n)].iter_mut().zip(c).for_each(|(r, c)| *r -= c);
                }
            }
        }
        (Self::trimmed(self.basis, quotient), Self::trimmed(self.basis, rest))
    }
}

/// A polynomial prepared for arguments of one level: its evaluation plan and its plaintexts.
pub struct PreparedPolynomial<E: Engine> {
    basis: PolynomialBasis,
    level: usize,
    powers: BTreeSet<usize>,
    root: EncodedNode<E>,
}

impl<E: Engine> PreparedPolynomial<E> {
    /// Plans the evaluation at arguments of the given level and encodes the coefficients that
    /// depend on the slot.
    pub fn new(engine: &E, polynomial: &Polynomial, level: usize) -> Result<Self> {
        let needs = polynomial.depth();
        if needs > level {
            return Err(Error::OutOfLevels { operation: "a polynomial", needs, has: level });
        }
        let plan = EvaluationPlan::cheapest(polynomial);
        Ok(Self { basis: polynomial.basis, level, root: plan.root.encoded(engine, level)?, powers: plan.powers })
    }

    /// The polynomial at `x`, `depth` levels below `x`.
    pub fn evaluate(&self, engine: &E, x: &E::Ciphertext) -> Result<E::Ciphertext> {
        if engine.level(x) != self.level {
            let (encoded, used) = (Multiplication::at(self.level), Multiplication::at(engine.level(x)));
            return Err(Error::WrongPlaintext { encoded, used });
        }
        let powers = self.basis_elements(engine, x)?;
        match self.root.evaluate(engine, &powers)? {
            Some(value) => self.root.add_constant(engine, value),
            None => self.root.add_constant(engine, engine.mul_integer(x, 0)?),
        }
    }

    /// `T_k(x)` or `x^k` for the powers of the plan, `ceil(log2 k)` levels below `x`.
    fn basis_elements(&self, engine: &E, x: &E::Ciphertext) -> Result<BTreeMap<usize, E::Ciphertext>> {
        let mut elements = BTreeMap::from([(1, x.clone())]);
        for &k in self.powers.iter().filter(|&&k| k > 1) {
            let (high, low) = (k.div_ceil(2), k / 2);
            let product = engine.mul(&elements[&high], &elements[&low])?;
            let element = match self.basis {
                PolynomialBasis::Monomial => product,
                PolynomialBasis::Chebyshev => {
                    let twice = engine.mul_integer(&product, 2)?;
                    if high == low {
                        engine.add_constant(&twice, Complex64::new(-1.0, 0.0))?
                    } else {
                        engine.sub(&twice, x)?
                    }
                }
            };
            elements.insert(k, element);
        }
        Ok(elements)
    }
}

/// The polynomial at `x`, `ceil(log2(degree + 1))` levels below `x`. For coefficients that depend
/// on the slot, a [`PreparedPolynomial`] saves encoding them for every argument.
pub fn evaluate<E: Engine>(engine: &E, x: &E::Ciphertext, polynomial: &Polynomial) -> Result<E::Ciphertext> {
    PreparedPolynomial::new(engine, polynomial, engine.level(x))?.evaluate(engine, x)
}

/// `sum q_n T_n + sum c_k T_k + constant`, within `budget` levels.
#[derive(Debug)]
struct Node {
    budget: usize,
    products: Vec<(usize, Node)>,
    terms: Vec<(usize, Coefficient)>,
    constant: Coefficient,
}

impl Node {
    /// Splits until linear combinations of elements below `leaf` are left.
    fn new(polynomial: &Polynomial, budget: usize, leaf: usize) -> Self {
        let (mut products, mut terms) = (Vec::new(), Vec::new());
        let mut rest = polynomial.clone();
        while rest.degree() > 0 && (rest.degree() >= leaf || log2_ceil(rest.degree()) + 1 > budget) {
            let n = 1 << rest.degree().ilog2();
            let (quotient, remainder) = rest.divided(n);
            if quotient.degree() == 0 {
                terms.push((n, quotient.constant()));
            } else {
                products.push((n, Node::new(&quotient, budget - 1, leaf)));
            }
            rest = remainder;
        }
        let low = rest.coefficients.iter().enumerate().skip(1).filter(|(_, c)| !is_zero(c));
        terms.extend(low.map(|(k, c)| (k, c.clone())));
        Node { budget, products, terms, constant: rest.constant() }
    }

    fn used(&self, powers: &mut BTreeSet<usize>) {
        powers.extend(self.terms.iter().map(|(k, _)| k));
        for (n, quotient) in &self.products {
            powers.insert(*n);
            quotient.used(powers);
        }
    }

    /// `(relinearisations, products)`.
    fn cost(&self) -> (usize, usize) {
        let this_node = (usize::from(!self.products.is_empty()), self.products.len());
        self.products.iter().map(|(_, q)| q.cost()).fold(this_node, |a, b| (a.0 + b.0, a.1 + b.1))
    }

    fn encoded<E: Engine>(self, engine: &E, level: usize) -> Result<EncodedNode<E>> {
        let at = level - self.budget.saturating_sub(1);
        let each_alike = self.terms.iter().all(|(_, c)| c.len() == 1);
        let linear = if each_alike {
            Linear::Constants(self.terms.into_iter().map(|(k, c)| (k, c[0])).collect())
        } else {
            let place = |k| Multiplication { operand: level - log2_ceil(k), at, partner: None };
            let encode = |(k, c): (usize, Coefficient)| Ok((k, engine.encode(&c, place(k))?));
            Linear::Plaintexts(self.terms.into_iter().map(encode).collect::<Result<_>>()?)
        };
        let encode = |(n, q): (usize, Node)| Ok((n, q.encoded(engine, level)?));
        let products = self.products.into_iter().map(encode).collect::<Result<_>>()?;
        Ok(EncodedNode { products, linear, constant: self.constant })
    }
}

struct EvaluationPlan {
    root: Node,
    powers: BTreeSet<usize>,
}

impl EvaluationPlan {
    /// The plan with the fewest relinearisations, and among those with the fewest products.
    fn cheapest(polynomial: &Polynomial) -> Self {
        let depth = polynomial.depth();
        let mut best = Self::new(polynomial, 2);
        for log_leaf in 2..=depth {
            let plan = Self::new(polynomial, 1 << log_leaf);
            if plan.cost() < best.cost() {
                best = plan;
            }
        }
        best
    }

    fn new(polynomial: &Polynomial, leaf: usize) -> Self {
        let root = Node::new(polynomial, polynomial.depth(), leaf);
        let mut used = BTreeSet::new();
        root.used(&mut used);
        let mut powers = BTreeSet::new();
        used.iter().for_each(|&k| include(k, &mut powers));
        Self { root, powers }
    }

    fn cost(&self) -> (usize, usize) {
        let basis = self.powers.iter().filter(|&&k| k > 1).count();
        let (relinearisations, products) = self.root.cost();
        (relinearisations + basis, products + basis)
    }
}

/// Adds `k` and the elements that `T_k` is the product of.
fn include(k: usize, powers: &mut BTreeSet<usize>) {
    if k > 0 && powers.insert(k) && k > 1 {
        include(k / 2, powers);
        include(k.div_ceil(2), powers);
    }
}

enum Linear<E: Engine> {
    Constants(Vec<(usize, Complex64)>),
    Plaintexts(Vec<(usize, E::Plaintext)>),
}

struct EncodedNode<E: Engine> {
    products: Vec<(usize, EncodedNode<E>)>,
    linear: Linear<E>,
    constant: Coefficient,
}

impl<E: Engine> EncodedNode<E> {
    /// The value less its constant; `None` if nothing else is there.
    fn evaluate(&self, engine: &E, powers: &BTreeMap<usize, E::Ciphertext>) -> Result<Option<E::Ciphertext>> {
        let linear = match &self.linear {
            Linear::Constants(terms) if terms.is_empty() => None,
            Linear::Constants(terms) => {
                let terms: Vec<_> = terms.iter().map(|(k, c)| (&powers[k], *c)).collect();
                Some(engine.linear_combination(&terms, Complex64::ZERO)?)
            }
            Linear::Plaintexts(terms) => {
                let terms: Vec<_> = terms.iter().map(|(k, p)| (&powers[k], p)).collect();
                Some(engine.sum_of_plain_products(&terms)?)
            }
        };
        if self.products.is_empty() {
            return Ok(linear);
        }
        let mut factors = Vec::new();
        for (n, quotient) in &self.products {
            if let Some(value) = quotient.evaluate(engine, powers)? {
                factors.push((quotient.add_constant(engine, value)?, &powers[n]));
            }
        }
        let terms: Vec<_> = factors.iter().map(|(q, t)| (q, *t)).collect();
        let sum = engine.sum_of_products(&terms)?;
        Ok(Some(match linear {
            Some(linear) => engine.add(&sum, &linear)?,
            None => sum,
        }))
    }

    fn add_constant(&self, engine: &E, value: E::Ciphertext) -> Result<E::Ciphertext> {
        match self.constant.as_slice() {
            [c] if *c == Complex64::ZERO => Ok(value),
            [c] => engine.add_constant(&value, *c),
            each => engine.add_plain(&value, each),
        }
    }
}

fn is_zero(c: &[Complex64]) -> bool {
    c.iter().all(|&c| c == Complex64::ZERO)
}

/// `ceil(log2 k)`, and 0 for 0.
fn log2_ceil(k: usize) -> usize {
    k.max(1).next_power_of_two().ilog2() as usize
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::clear::{Clear, OpKind};

    const SLOTS: usize = 32;
    const BASES: [PolynomialBasis; 2] = [PolynomialBasis::Chebyshev, PolynomialBasis::Monomial];

    fn argument(engine: &Clear, level: usize) -> crate::clear::Ciphertext {
        let x: Vec<_> = (0..SLOTS).map(|i| Complex64::new(i as f64 / 16.0 - 1.0, 0.0)).collect();
        engine.fresh(&x, level).unwrap()
    }

    fn direct(basis: PolynomialBasis, coefficients: &[Complex64], x: Complex64) -> Complex64 {
        let (mut sum, mut t0, mut t1) = (Complex64::ZERO, Complex64::ONE, x);
        for c in coefficients {
            sum += c * t0;
            (t0, t1) = match basis {
                PolynomialBasis::Chebyshev => (t1, 2.0 * x * t1 - t0),
                PolynomialBasis::Monomial => (t1, x * t1),
            };
        }
        sum
    }

    fn wave(k: usize, slot: usize) -> Complex64 {
        let phase = (k * 7 + slot * 3 + k * k * slot) as f64;
        Complex64::new(phase.sin(), (phase * 1.3).cos())
    }

    #[test]
    fn every_degree_is_exact_in_the_least_depth() {
        let engine = Clear::new(SLOTS, 7);
        let x = argument(&engine, 7);
        for (basis, degree) in BASES.into_iter().flat_map(|b| (1..=63).map(move |d| (b, d))) {
            let coefficients: Vec<_> = (0..=degree).map(|k| wave(k, 0)).collect();
            let y = evaluate(&engine, &x, &Polynomial::new(basis, &coefficients)).unwrap();
            let depth = ((degree + 1) as f64).log2().ceil() as usize;
            assert_eq!(engine.level(&y), 7 - depth, "degree {degree}");
            for (x, y) in engine.values(&x).iter().zip(engine.values(&y)) {
                assert!((direct(basis, &coefficients, *x) - y).norm() < 1e-11, "degree {degree} at {x}");
            }
        }
    }

    #[test]
    fn coefficients_may_depend_on_the_slot() {
        let engine = Clear::new(SLOTS, 6);
        let x = argument(&engine, 6);
        for (basis, degree) in BASES.into_iter().flat_map(|b| (1..=40).map(move |d| (b, d))) {
            let coefficients: Vec<Coefficient> =
                (0..=degree).map(|k| (0..SLOTS).map(|slot| wave(k, slot)).collect()).collect();
            let polynomial = Polynomial { basis, coefficients: coefficients.clone() };
            let y = evaluate(&engine, &x, &polynomial).unwrap();
            assert_eq!(engine.level(&y), 6 - polynomial.depth());
            for slot in 0..SLOTS {
                let mine: Vec<_> = coefficients.iter().map(|c| c[slot]).collect();
                let (x, y) = (engine.values(&x)[slot], engine.values(&y)[slot]);
                assert!((direct(basis, &mine, x) - y).norm() < 1e-11, "degree {degree} slot {slot}");
            }
        }
    }

    #[test]
    fn a_mask_keeps_the_polynomial_in_some_slots() {
        let engine = Clear::new(SLOTS, 4);
        let x = argument(&engine, 4);
        let mask: Vec<_> = (0..SLOTS).map(|i| Complex64::new((i % 3 == 0) as u8 as f64, 0.0)).collect();
        let plain =
            Polynomial::real(PolynomialBasis::Chebyshev, &[0.5, 0.3, 0.2, 0.1, 0.05, 0.4, 0.1, 0.2, 0.3, 0.1, 0.7]);
        let (y, z) = (evaluate(&engine, &x, &plain).unwrap(), evaluate(&engine, &x, &plain.times(&mask)).unwrap());
        for i in 0..SLOTS {
            assert!((engine.values(&y)[i] * mask[i] - engine.values(&z)[i]).norm() < 1e-13);
        }
        assert_eq!(engine.level(&z), 0);
    }

    #[test]
    fn sparse_and_constant_polynomials() {
        let engine = Clear::new(SLOTS, 6);
        let x = argument(&engine, 6);
        let sets: [&[f64]; 6] =
            [&[], &[3.0], &[0.0, 0.0, 1.0], &[0.0, 0.0, 0.0, 1.0], &[1.0, 0.0, 0.0, 0.0, 2.0, 0.0], &[0.0; 9]];
        for (basis, set) in BASES.into_iter().flat_map(|b| sets.map(|s| (b, s))) {
            let polynomial = Polynomial::real(basis, set);
            let y = evaluate(&engine, &x, &polynomial).unwrap();
            assert_eq!(engine.level(&y), 6 - polynomial.depth());
            let complex: Vec<_> = set.iter().map(|&c| Complex64::new(c, 0.0)).collect();
            for (x, y) in engine.values(&x).iter().zip(engine.values(&y)) {
                assert!((direct(basis, &complex, *x) - y).norm() < 1e-12);
            }
        }
    }

    /// 5 key-switches for degree 10 (the exponential of the softmax), 14 for degree 62 (the sine of
    /// a bootstrap).
    #[test]
    fn relinearisations_are_few() {
        for (degree, expected) in [(3, 2), (7, 4), (10, 5), (15, 7), (31, 10), (62, 14)] {
            let engine = Clear::new(SLOTS, 7);
            let coefficients: Vec<_> = (0..=degree).map(|k| wave(k, 0)).collect();
            evaluate(&engine, &argument(&engine, 7), &Polynomial::new(PolynomialBasis::Chebyshev, &coefficients))
                .unwrap();
            assert_eq!(engine.op_counts().count(OpKind::Relinearisation), expected, "degree {degree}");
        }
    }

    #[test]
    fn too_few_levels_is_an_error() {
        let engine = Clear::new(SLOTS, 7);
        let polynomial = Polynomial::real(PolynomialBasis::Monomial, &[1.0; 9]);
        let short = evaluate(&engine, &argument(&engine, 3), &polynomial);
        assert_eq!(short, Err(Error::OutOfLevels { operation: "a polynomial", needs: 4, has: 3 }));
        let ready = PreparedPolynomial::new(&engine, &polynomial, 5).unwrap();
        assert!(matches!(ready.evaluate(&engine, &argument(&engine, 6)), Err(Error::WrongPlaintext { .. })));
    }
}
