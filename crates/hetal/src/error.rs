//! Errors of the library.

/// The result of an operation of a [`crate::Context`].
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong: the errors of the crates that it puts together.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter set, an encoding or an operation of the scheme was refused.
    #[error(transparent)]
    Scheme(#[from] hetal_ckks::Error),
    /// A circuit ran out of levels, or an operand does not fit it.
    #[error(transparent)]
    Circuit(#[from] hetal_circuits::Error),
    /// A key could not be made, read or used.
    #[error(transparent)]
    Keys(#[from] hetal_keys::Error),
    /// Training was refused.
    #[error(transparent)]
    Learn(#[from] hetal_learn::Error),
}
