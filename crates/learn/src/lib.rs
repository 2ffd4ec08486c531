#![doc = include_str!("../README.md")]

pub mod agreement;
pub mod batches;
pub mod circuit;
pub mod driver;
mod error;
pub mod geometry;
pub mod judge;
pub mod labelled_matrix;
pub mod level_plan;
mod matrix;
pub mod measures;
pub mod nesterov;
pub mod normalisation;
pub mod packing;
pub mod paper;
pub mod plan;
pub mod products;
pub mod reference;
pub mod session;
pub mod softmax;
pub mod trainer;

pub use agreement::{Agreement, AgreementLimits, Wishes};
pub use batches::{Batches, CachedBatch, EncryptedPiece};
pub use circuit::Circuit;
pub use error::{Error, Result};
pub use geometry::Geometry;
pub use judge::{Judge, Verdict};
pub use labelled_matrix::LabelledMatrix;
pub use level_plan::LevelPlan;
pub use matrix::Matrix;
pub use measures::Measures;
pub use normalisation::Normalisation;
pub use plan::Plan;
pub use session::Session;
