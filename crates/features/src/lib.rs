#![doc = include_str!("../README.md")]

mod config;
pub mod dataset;
pub mod device;
mod disk;
mod encoder;
pub mod error;
#[cfg(feature = "hub")]
pub mod hub;
pub mod job;
mod kernels;
pub mod manifest;
pub mod model;
mod npy;
#[cfg(feature = "onnx")]
mod onnx;
mod ops;
mod orientation;
pub mod parsers;
pub mod picture;
pub mod sentence;
mod split;
mod untrusted;
pub mod vision;
mod weights;

pub use error::{Error, Result};
pub use manifest::Manifest;
pub use model::Extractor;
pub use npy::write_rows;
pub use weights::sha256;
