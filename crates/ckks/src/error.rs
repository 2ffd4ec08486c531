//! Errors of the scheme.

use crate::KeyId;
use hetal_ring::Basis;

/// The result of an operation of the scheme.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of the scheme. The message says what to do about it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter set that cannot work.
    #[error("parameter set {name}: {reason}")]
    Params {
        /// The set's name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A set or key of less than 128 bits whose name does not begin with `insecure-`.
    #[error(
        "{what}: log2(QP) = {log_qp:.1} at N = 2^{log_n} with secret weight {weight} is under 128 bits (at most {limit:.0}); use fewer or smaller primes, or a set named insecure"
    )]
    Insecure {
        /// The set or key object.
        what: String,
        /// Log of the ring degree.
        log_n: u32,
        /// Nonzero coefficients of the secret.
        weight: usize,
        /// Size of its modulus.
        log_qp: f64,
        /// Largest size that gives 128 bits.
        limit: f64,
    },
    /// A set whose bootstraps fail too often and whose name does not begin with `insecure-`.
    #[error(
        "parameter set {name}: a bootstrap fails with probability 2^{log_failure:.0}, where at most 2^{limit:.0} is accepted; enlarge K of EvalMod or lower the sparse weight, or name the set insecure"
    )]
    UnreliableBootstrap {
        /// The set's name.
        name: String,
        /// log2 of the probability.
        log_failure: f64,
        /// log2 of the largest accepted one.
        limit: f64,
    },
    /// A ring whose degree or primes are not those of the parameter set it is used with.
    #[error(
        "parameter set {set}: the ring of degree 2^{log_n} has another degree or other primes; make it with Params::ring"
    )]
    WrongRing {
        /// The set's name.
        set: String,
        /// Log of the ring's degree.
        log_n: u32,
    },
    /// Operands of different parameter sets.
    #[error("{operation}: a ciphertext of another parameter set than {set}")]
    MixedParams {
        /// What was asked for.
        operation: &'static str,
        /// The evaluator's set.
        set: String,
    },
    /// A matrix encoded for other primes than those of its operand or of the other matrices of a
    /// sum.
    #[error(
        "linear transform: a matrix encoded for {} primes and {} special ones, where {} and {} are needed",
        .found.q, .found.p, .needed.q, .needed.p
    )]
    MixedMatrices {
        /// What it was encoded for.
        found: Basis,
        /// What is needed.
        needed: Basis,
    },
    /// An even exponent, which is no automorphism of the ring.
    #[error("X -> X^{element} is no automorphism: the exponent must be odd")]
    NotGalois {
        /// The exponent.
        element: u64,
    },
    /// Too few limbs left.
    #[error("{operation} needs {needs} limbs, has {has}: bootstrap first")]
    OutOfLimbs {
        /// What was asked for.
        operation: &'static str,
        /// Limbs it needs.
        needs: usize,
        /// Limbs there are.
        has: usize,
    },
    /// Operands whose scales differ.
    #[error("{operation}: scales 2^{left:.6} and 2^{right:.6} differ")]
    ScaleMismatch {
        /// What was asked for.
        operation: &'static str,
        /// Log of the one scale.
        left: f64,
        /// Log of the other.
        right: f64,
    },
    /// A switching key that is not in the set of keys.
    #[error("no {key} for {limbs} limbs")]
    MissingKey {
        /// Which key.
        key: KeyId,
        /// Limbs of the operand.
        limbs: usize,
    },
    /// A parameter set whose special primes are too few for master keys.
    #[error("parameter set {set} has no master keys")]
    NoMasterKeys {
        /// The set's name.
        set: String,
    },
    /// Keys from which others cannot be derived.
    #[error("no {key} can be derived: {reason}")]
    Underivable {
        /// The first key that cannot.
        key: KeyId,
        /// Why.
        reason: &'static str,
    },
    /// A vector too long for the slots, or of a length that is no power of two.
    #[error("{got} values: a power of two up to {slots} is needed")]
    SlotCount {
        /// Values given.
        got: usize,
        /// Slots there are.
        slots: usize,
    },
    /// A value that cannot be encoded: not finite, or too large for the scale.
    #[error("value {value:e} in slot or coefficient {index} cannot be encoded at scale 2^{log_scale:.1}")]
    NotEncodable {
        /// Where.
        index: usize,
        /// The value.
        value: f64,
        /// Log of the scale asked for.
        log_scale: f64,
    },
    /// Bytes that are not a valid object.
    #[error(transparent)]
    Format(#[from] crate::bytes::FormatError),
    /// The device behind the backend failed.
    #[error(transparent)]
    Backend(#[from] crate::backend::Failure),
    /// An operation without operands.
    #[error("{0} of no operands")]
    Empty(&'static str),
}
