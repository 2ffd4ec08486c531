#![doc = include_str!("../README.md")]

mod context;
mod error;

pub use context::{Ciphertext, Context, CpuEngine};
pub use error::{Error, Result};

pub use hetal_circuits as circuits;
pub use hetal_ckks as ckks;
pub use hetal_keys as keys;
pub use hetal_learn as learn;
pub use hetal_ring as ring;

pub use hetal_circuits::clear::{KeyRequirements, OpCounts, OpKind};
pub use hetal_circuits::{Clear, Complex64, Diagonal, Encrypted, Engine, Multiplication};
pub use hetal_ckks::{BitSizes, Params, Security};
pub use hetal_keys::{Private, SecretKey};
