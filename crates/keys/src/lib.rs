#![doc = include_str!("../README.md")]

mod decryption;
mod encryption;
mod secret;
mod switching;

pub use decryption::Decryptor;
pub use encryption::Encryptor;
pub use secret::SecretKey;
pub use switching::KeyGenerator;
