//! The native module of the Python package `hetal` (`python/hetal`).
//!
//! It is thin: arrays and settings come in, the crates `client` and `local` do the work, and arrays
//! and dictionaries go out. All work is done on another thread without the interpreter's lock
//! (`background`). Errors become exceptions of `hetal.errors` (`errors`).

mod background;
mod errors;
mod events;
mod features;
mod model;
mod remote;
mod settings;
mod training;

/// Overwrites freed memory with zeros: it may hold a secret key, decrypted rows or a passphrase.
#[global_allocator]
static MEMORY: hetal_keys::ZeroingAllocator = hetal_keys::ZeroingAllocator;

#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use super::background::main;
    #[pymodule_export]
    use super::features::{describe, encode};
    #[pymodule_export]
    use super::model::{Classifier, export, load};
    #[pymodule_export]
    use super::remote::predict_remote;
    #[pymodule_export]
    use super::training::{FitRows, fit};

    /// The version of the Rust crates.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
