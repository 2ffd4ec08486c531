//! The paper's linear algebra and softmax, and the matrix products it compares itself with: baselines and reproduction.
//!
//! All of it follows the paper's algorithms literally (one relinearisation per product), with its misprints corrected, so that the
//! counts of operations are those of its corrected table.

pub mod blocks;
pub mod col_major;
pub mod counts;
pub mod diag_abt;
pub mod diag_atb;
pub mod priv_gd;
pub mod row_major;
pub mod softmax;
pub mod trainer;

pub use blocks::{Blocks, Unit};
pub use col_major::col_major;
pub use counts::{Algorithm, Counts};
pub use diag_abt::diag_abt;
pub use diag_atb::{Branch, diag_atb};
pub use row_major::row_major;
pub use trainer::PaperTrainer;
