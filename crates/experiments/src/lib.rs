#![doc = include_str!("../README.md")]

pub mod bench;
pub mod bootstrap_noise;
pub mod cost_model;
pub mod error;
pub mod feature_folder;
pub mod params;
pub mod process;
pub mod report;
pub mod reproduce;
pub mod runner;
pub mod selftest;
pub mod tuning;

pub use error::{Error, Result};
