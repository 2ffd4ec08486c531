#![doc = include_str!("../README.md")]

pub mod classification;
mod error;
pub mod evaluation;
pub mod export;
pub mod files;
pub mod keys;
pub mod layout;
pub mod model;
mod outputs;
mod owner;
pub mod parsers;
pub mod project;
pub mod reference;
pub mod remote;
pub mod task;
pub mod training;
mod uploads;

pub use error::{Error, Result};
pub use evaluation::Evaluation;
pub use layout::Layout;
pub use model::Model;
pub use owner::{KeyMaker, Owner, ring_of, ring_with};
pub use project::Project;
pub use task::{Labelled, Task};
pub use training::{Trained, Training};
pub use uploads::Upload;
