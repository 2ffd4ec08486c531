#![doc = include_str!("../README.md")]

mod decryption;
mod encryption;
mod error;
pub mod locked_file;
mod passphrase;
mod private;
mod release;
mod secret;
pub mod secret_file;
mod switching;
mod zeroing_allocator;

pub use decryption::Decryptor;
pub use encryption::Encryptor;
pub use error::{Error, Result};
pub use passphrase::Passphrase;
pub use private::{Private, Wipe};
pub use release::{Release, ReleasePolicy, deviation, estimate_noise, noise_bound};
pub use secret::SecretKey;
pub use switching::{EphemeralSecret, KeyGenerator};
pub use zeroing_allocator::ZeroingAllocator;
