#![doc = include_str!("../README.md")]

pub mod columnar;
mod config;
pub mod dataset;
pub mod device;
mod disk;
mod encoder;
pub mod error;
pub mod extraction;
pub mod fuzz_targets;
#[cfg(feature = "hub")]
pub mod hub;
mod kernels;
pub mod manifest;
pub mod model;
mod npy;
#[cfg(feature = "onnx")]
mod onnx;
mod ops;
mod orientation;
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
