//! Ciphertexts on disk: encrypted rows on their way to a server, and what it computed of them.

mod outputs;
pub(crate) mod row_blobs;

pub(crate) use outputs::Outputs;
pub(crate) use row_blobs::{RowBlobFile, RowBlobWriter};
