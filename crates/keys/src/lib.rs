#![doc = include_str!("../README.md")]

mod decryption;
pub mod durable;
mod encryption;
mod error;
mod private;
mod release;
mod secret;
mod secret_file;
mod switching;

pub use decryption::Decryptor;
pub use encryption::Encryptor;
pub use error::{Error, Result};
pub use private::Private;
pub use release::{Release, ReleasePolicy, estimate_noise};
pub use secret::SecretKey;
pub use switching::KeyGenerator;
