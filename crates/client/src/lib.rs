#![doc = include_str!("../README.md")]

mod cancellation;
mod ciphertexts;
pub mod connection;
pub mod data;
mod error;
pub mod fuzz_targets;
pub mod key_plan_choice;
pub mod keys;
pub mod layout;
pub mod model;
pub mod predict;
pub mod project;
pub mod report;
pub mod row_form;
pub mod rpc;
mod sanitize;
pub mod training;

pub use cancellation::Cancellation;
pub use ciphertexts::written_row_bytes;
pub use connection::Connection;
pub use data::{Labelled, TrainingData};
pub use error::{Error, Result};
pub use hetal_learn::{KeyPlan, RowForm};
pub use key_plan_choice::KeyPlanWish;
pub use keys::{KeyMaker, Owner, ring_of, ring_with};
pub use layout::Layout;
pub use model::Model;
pub use predict::Evaluation;
pub use project::Project;
pub use row_form::RowFormWish;
pub use training::{Trained, TrainingRun};
