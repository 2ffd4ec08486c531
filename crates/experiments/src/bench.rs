//! The benchmarks of `hetal bench`.

pub mod accuracy;
pub mod matmul;
pub mod ops;
pub mod releases;
pub mod softmax;
pub mod tables;
pub mod train;
pub mod upload;
