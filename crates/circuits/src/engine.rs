//! The interface that circuits are written against.
//!
//! An engine works on vectors of `slots` complex numbers in ciphertexts. A ciphertext has a
//! *level*: the number of multiplications that can still follow. [`Engine::bootstrap`] brings it
//! back to [`Engine::top_level`].
//!
//! Scales are not visible: a ciphertext of level `l` always has the scale of that level, with one
//! exception that is explicit in the types. An operand may be *prepared for a partner* of a higher
//! level ([`Multiplication::partner`]). Then the partner, a static ciphertext that is expensive to
//! adjust, is truncated for free in [`Engine::sum_of_products`].

use crate::Result;
use num_complex::Complex64;

/// The multiplication that a plaintext is encoded for. The encoding depends on it, so a plaintext
/// serves only that multiplication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Multiplication {
    /// Level of the ciphertext that is multiplied.
    pub operand: usize,
    /// Level of the multiplication, to which the operand is truncated: `1 <= at <= operand`. The
    /// result has level `at - 1`.
    pub at: usize,
    /// `Some(l)`: the result can only be added to results of the same kind and multiplied by
    /// partners of level `l` in a sum of products.
    pub partner: Option<usize>,
}

impl Multiplication {
    /// The ordinary case: from a ciphertext of level `level` to an ordinary one of level
    /// `level - 1`.
    pub fn at(level: usize) -> Self {
        Self { operand: level, at: level, partner: None }
    }

    /// As [`Multiplication::at`], with a result prepared for partners of level `partner`.
    pub fn for_partner(level: usize, partner: usize) -> Self {
        Self { operand: level, at: level, partner: Some(partner) }
    }
}

/// One generalised diagonal of a matrix: `values * rotate(x, rotation)` is its contribution to
/// `M x`.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagonal {
    /// Slots to rotate left by (negative: right) before multiplying.
    pub rotation: i64,
    /// The multiplier of each slot.
    pub values: Vec<Complex64>,
}

/// Homomorphic arithmetic on vectors of complex slots.
///
/// Binary operations accept operands of different levels and lower the higher one. The
/// documentation of each operation says whether it consumes a level and whether it needs a
/// key-switch, which is the expensive step.
pub trait Engine: Sync {
    /// A vector of slots with a level.
    type Ciphertext: Clone + Send + Sync;
    /// A vector in coefficient form, below all levels: it can only be lifted.
    type Unlifted: Send + Sync;
    /// A vector encoded for one [`Multiplication`].
    type Plaintext: Send + Sync;
    /// A vector that is encoded many times with different factors.
    type Pattern: Send + Sync;
    /// A matrix encoded for one [`Multiplication`].
    type Transform: Send + Sync;

    /// Applies `work` to independent items, possibly at the same time. Results keep the order of
    /// the items; the first error is returned.
    fn concurrently<T: Send, R: Send, F: Send>(
        &self,
        items: Vec<T>,
        work: impl Fn(T) -> std::result::Result<R, F> + Sync,
    ) -> std::result::Result<Vec<R>, F> {
        items.into_iter().map(work).collect()
    }

    /// Number of slots.
    fn slots(&self) -> usize;
    /// The highest level: that of a bootstrap's result.
    fn top_level(&self) -> usize;
    /// The level of a ciphertext.
    fn level(&self, a: &Self::Ciphertext) -> usize;

    /// `a + b`. No level.
    fn add(&self, a: &Self::Ciphertext, b: &Self::Ciphertext) -> Result<Self::Ciphertext>;
    /// `a - b`. No level.
    fn sub(&self, a: &Self::Ciphertext, b: &Self::Ciphertext) -> Result<Self::Ciphertext>;
    /// `-a`. No level.
    fn neg(&self, a: &Self::Ciphertext) -> Result<Self::Ciphertext>;
    /// `a + c` in every slot. No level.
    fn add_constant(&self, a: &Self::Ciphertext, c: Complex64) -> Result<Self::Ciphertext>;
    /// `a + values`, slot by slot. No level.
    fn add_plain(&self, a: &Self::Ciphertext, values: &[Complex64]) -> Result<Self::Ciphertext>;
    /// `a * c` for an integer. No level.
    fn mul_integer(&self, a: &Self::Ciphertext, c: i64) -> Result<Self::Ciphertext>;
    /// `a * i^power`. No level.
    fn mul_i(&self, a: &Self::Ciphertext, power: u32) -> Result<Self::Ciphertext>;
    /// `a` at a lower level. No key-switch.
    fn drop_to(&self, a: &Self::Ciphertext, level: usize) -> Result<Self::Ciphertext>;

    /// `sum_k c_k a_k + constant`, at the lowest operand's level `at`; the result has level
    /// `at - 1`. One rescale, no key-switch.
    fn linear_combination(
        &self,
        terms: &[(&Self::Ciphertext, Complex64)],
        constant: Complex64,
    ) -> Result<Self::Ciphertext>;
    /// `a * c`. One level, no key-switch.
    fn mul_constant(&self, a: &Self::Ciphertext, c: Complex64) -> Result<Self::Ciphertext> {
        self.linear_combination(&[(a, c)], Complex64::ZERO)
    }

    /// Encodes a multiplier.
    fn encode(&self, values: &[Complex64], place: Multiplication) -> Result<Self::Plaintext>;
    /// Prepares a multiplier for factors that are not known yet.
    fn pattern(&self, values: &[Complex64]) -> Result<Self::Pattern>;
    /// Encodes `factor` times a multiplier.
    fn encode_pattern(&self, pattern: &Self::Pattern, factor: f64, place: Multiplication) -> Result<Self::Plaintext>;
    /// `sum_k a_k * p_k`, slot by slot; all plaintexts are encoded for the same `at` and `partner`.
    /// One level, one rescale, no key-switch.
    fn sum_of_plain_products(&self, terms: &[(&Self::Ciphertext, &Self::Plaintext)]) -> Result<Self::Ciphertext>;
    /// `a * p`, slot by slot. One level, no key-switch.
    fn mul_plain(&self, a: &Self::Ciphertext, p: &Self::Plaintext) -> Result<Self::Ciphertext> {
        self.sum_of_plain_products(&[(a, p)])
    }

    /// `sum_k a_k * b_k`, slot by slot, with one relinearisation (key-switch) and one rescale. One
    /// level below the lowest `a_k`. Either all operands are ordinary (and are lowered to the
    /// lowest level among them), or every `a_k` was prepared for partners of the level of `b_k`,
    /// which is then truncated for free.
    fn sum_of_products(&self, terms: &[(&Self::Ciphertext, &Self::Ciphertext)]) -> Result<Self::Ciphertext>;
    /// `a * b`, slot by slot. One level, one key-switch.
    fn mul(&self, a: &Self::Ciphertext, b: &Self::Ciphertext) -> Result<Self::Ciphertext> {
        self.sum_of_products(&[(a, b)])
    }
    /// `a^2`, slot by slot. One level, one key-switch.
    fn square(&self, a: &Self::Ciphertext) -> Result<Self::Ciphertext> {
        self.mul(a, a)
    }

    /// Slot `i` of the result is slot `i + k` of `a` (cyclically). One key-switch.
    fn rotate(&self, a: &Self::Ciphertext, k: i64) -> Result<Self::Ciphertext>;
    /// Many rotations of one ciphertext, sharing the first half of their key-switches.
    fn rotate_many(&self, a: &Self::Ciphertext, ks: &[i64]) -> Result<Vec<Self::Ciphertext>>;
    /// The complex conjugate of every slot. One key-switch.
    fn conjugate(&self, a: &Self::Ciphertext) -> Result<Self::Ciphertext>;

    /// Encodes a matrix given by its nonzero diagonals.
    fn prepare(&self, diagonals: &[Diagonal], place: Multiplication) -> Result<Self::Transform>;
    /// `M_k a` for each of several matrices of one place, sharing rotations. One level; one
    /// key-switch per distinct rotation.
    fn transform_many(&self, a: &Self::Ciphertext, matrices: &[&Self::Transform]) -> Result<Vec<Self::Ciphertext>>;
    /// `sum_k M_k a_k`, with one rescale; all matrices have the same `at` and `partner`. One level;
    /// one key-switch per rotation.
    fn sum_of_transforms(&self, terms: &[(&Self::Ciphertext, &Self::Transform)]) -> Result<Self::Ciphertext>;

    /// The same slots at [`Engine::top_level`]. Real and imaginary parts must be at most
    /// `2^log_bound` in magnitude. The caller is responsible: larger values come back wrong.
    fn bootstrap(&self, a: &Self::Ciphertext, log_bound: u32) -> Result<Self::Ciphertext>;

    /// [`Engine::bootstrap`] of a vector of real numbers, a quarter cheaper. Imaginary parts, which
    /// are noise, are lost.
    fn bootstrap_real(&self, a: &Self::Ciphertext, log_bound: u32) -> Result<Self::Ciphertext>;

    /// [`Engine::bootstrap_real`] of a vector that repeats after `period` slots, a power of two: a
    /// tenth cheaper, with the same keys. Small differences between the periods are noise. The
    /// result has their mean.
    fn bootstrap_periodic(&self, a: &Self::Ciphertext, period: usize, log_bound: u32) -> Result<Self::Ciphertext>;

    /// `(a, b)` at [`Engine::top_level`], for two vectors of real numbers in one bootstrap.
    fn bootstrap_pair(
        &self,
        a: &Self::Ciphertext,
        b: &Self::Ciphertext,
        log_bound: u32,
    ) -> Result<(Self::Ciphertext, Self::Ciphertext)>;

    /// A vector in coefficient form at [`Engine::top_level`]. It costs a bootstrap, less its first
    /// stage.
    fn lift(&self, a: &Self::Unlifted) -> Result<Self::Ciphertext>;

    /// [`Engine::bootstrap`] followed by a bootstrap of its error, to the precision of the scale.
    /// The result is one level below the top. Under encryption it needs a set whose bootstrap error
    /// was measured.
    fn bootstrap_precise(&self, a: &Self::Ciphertext, log_bound: u32) -> Result<Self::Ciphertext>;
}
