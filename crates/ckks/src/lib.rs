#![doc = include_str!("../README.md")]

pub mod backend;
pub mod bytes;
mod ciphertext;
pub mod derivation;
pub mod encoder;
mod error;
mod evaluation_key;
mod evaluator;
pub mod params;
mod rounded;
pub mod security;

pub use backend::Backend;
pub use ciphertext::{Ciphertext, Plaintext, PublicKey, SeededCiphertext, SetTag};
pub use encoder::Encoder;
pub use error::{Error, Result};
pub use evaluation_key::{EvaluationKeys, KeyId, KeySource, SwitchingKey};
pub use evaluator::{Evaluator, GiantStep, LinearTransform, Pattern, RaisedCiphertext, RotationSteps};
pub use num_complex::Complex64;
pub use params::{BitSizes, EvalMod, Params, ParamsLiteral};
pub use rounded::{LiftForm, ROUNDED_BITS, ROUNDED_BITS_RANGE, RoundedCiphertext};
pub use security::Security;
