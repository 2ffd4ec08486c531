//! Ciphertexts on disk: row blobs for a server, and the outputs that it computed.

mod outputs;
pub(crate) mod row_blobs;

pub(crate) use outputs::{LOGIT_LIMBS, Outputs, download_logits};
pub use row_blobs::written_row_bytes;
pub(crate) use row_blobs::{RowBlobFile, RowBlobWriter, RowsToEncrypt};
