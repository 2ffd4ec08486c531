//! The linear algebra and the softmax of the HETAL paper, and the matrix products it compares with:
//! baselines for reproduction.
//!
//! The code follows the algorithms of the paper literally, with one relinearisation per product and
//! with misprints corrected, so that its operation counts are those of the paper's corrected table.

pub mod blocks;
pub mod col_major;
pub mod counts;
pub mod diag_abt;
pub mod diag_atb;
pub mod priv_gd;
pub mod row_major;
pub mod softmax;
pub mod trainer;

pub use blocks::{BlockShape, Blocks};
pub use col_major::col_major;
pub use counts::{Algorithm, Counts};
pub use diag_abt::diag_abt;
pub use diag_atb::{Branch, diag_atb};
pub use row_major::row_major;
pub use trainer::PaperTrainer;
