//! Errors of circuits.

/// The result of a circuit operation.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a circuit. The message says what to do about it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation needed more levels than its operand has.
    #[error("{operation} needs level {needs}, has {has}: bootstrap first")]
    OutOfLevels {
        /// What was asked for.
        operation: &'static str,
        /// The level it needs.
        needs: usize,
        /// The level the operand has.
        has: usize,
    },
    /// A level above the highest usable one.
    #[error("level {level} does not exist: the highest usable level is {top}")]
    NoSuchLevel {
        /// The level asked for.
        level: usize,
        /// The highest usable one.
        top: usize,
    },
    /// A vector of the wrong length.
    #[error("{got} values for {slots} slots")]
    SlotCount {
        /// The length given.
        got: usize,
        /// The slots there are.
        slots: usize,
    },
    /// An operand prepared for partners of one level met another operand.
    #[error("{operation}: an operand was prepared for a partner of level {prepared:?}, this needs {needs:?}")]
    Partner {
        /// What was asked for.
        operation: &'static str,
        /// The partner level the operand was prepared for.
        prepared: Option<usize>,
        /// What the operation needs.
        needs: Option<usize>,
    },
    /// An encoded plaintext used at another place than the one it was encoded for.
    #[error("a plaintext encoded for {encoded:?} was used for {used:?}")]
    WrongPlaintext {
        /// What it was encoded for.
        encoded: crate::Multiplication,
        /// Where it was used.
        used: crate::Multiplication,
    },
    /// A value outside the range an operation is sound for.
    #[error("{operation}: slot {slot} holds {value:e}, beyond the bound {bound:e}")]
    OutOfRange {
        /// What was asked for.
        operation: &'static str,
        /// The first slot beyond the bound.
        slot: usize,
        /// The magnitude found there.
        value: f64,
        /// The bound.
        bound: f64,
    },
    /// A rotation without its key.
    #[error("no Galois key for rotation {rotation} at level {level}")]
    MissingRotation {
        /// Slots to rotate by.
        rotation: i64,
        /// Level of the operand.
        level: usize,
    },
    /// A message bound that no matrix was prepared for.
    #[error("no bootstrap is prepared for messages up to 2^{log_bound}; there are {prepared:?}")]
    NoSuchBound {
        /// The bound asked for.
        log_bound: u32,
        /// Those there are.
        prepared: Vec<u32>,
    },
    /// A period that no matrix was prepared for.
    #[error("no bootstrap is prepared for vectors that repeat after {period} slots; there are {prepared:?}")]
    NoSuchPeriod {
        /// The period asked for.
        period: usize,
        /// Those there are.
        prepared: Vec<usize>,
    },
    /// A parameter set without primes for a bootstrap.
    #[error("the set {set} has no primes for a bootstrap")]
    NoBootstrap {
        /// Its name.
        set: String,
    },
    /// A parameter set whose bootstrap error was never measured.
    #[error(
        "the set {set} has no precise bootstrap: how far a plain one is off was measured for the chains of full and small \
         only; use a plain one, or a set of one of these chains"
    )]
    NoPreciseBootstrap {
        /// Its name.
        set: String,
    },
    /// A length that a sparse bootstrap does not support.
    #[error("vectors of {slots} slots have no bootstrap of their own: it takes a power of two from {fewest} to {most}")]
    NoSparseBootstrap {
        /// The length asked for.
        slots: usize,
        /// The shortest length.
        fewest: usize,
        /// The longest length.
        most: usize,
    },
    /// A message bound above the largest one.
    #[error("messages up to 2^{log_bound} cannot be bootstrapped: the largest bound is 2^{largest}")]
    BoundTooLarge {
        /// The bound asked for.
        log_bound: u32,
        /// The largest.
        largest: u32,
    },
    /// An engine whose bootstrap only takes vectors that repeat.
    #[error("the engine's bootstrap was made for vectors that repeat: use Bootstrapper::new")]
    SparseEngine,
    /// Two real vectors in a sparse bootstrap, which takes one.
    #[error("a sparse bootstrap takes one complex vector: pack two real ones as real and imaginary parts")]
    SparsePair,
    /// An error of the scheme.
    #[error(transparent)]
    Scheme(#[from] hetal_ckks::Error),
    /// An operation without operands.
    #[error("{0} of no operands")]
    Empty(&'static str),
}
