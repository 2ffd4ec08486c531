//! Benchmarks, accuracy studies, the self-test and the reproduction of the paper.

pub mod bench;
pub mod data_folder;
pub mod engine;
pub mod error;
pub mod lab;
pub mod local_owner;
pub mod machine;
pub mod noise;
pub mod ops;
pub mod output;
pub mod params;
pub mod plan;
pub mod progress;
pub mod reproduce;
pub mod selftest;
pub mod setting;
pub mod study;
pub mod svg;
pub mod table;

pub use error::{Error, Result};
