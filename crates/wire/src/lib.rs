#![doc = include_str!("../README.md")]

mod job_state;
mod names;

pub use job_state::JobState;
pub use names::{BlobName, JobId, NameError};

/// The messages and the service of `proto/hetal.proto`, as `examples/generate.rs` wrote them.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, clippy::panic)]
pub mod v1 {
    include!("generated/hetal.v1.rs");
}

/// The protocol version of this program. It rises whenever the other end could not use a message or
/// a blob. Since version 3, rows have a level less and weights are stored times a scale. Since
/// version 4, rows may have weights, and L2 is agreed on. Since version 5, requests name the form
/// of rows. Since version 6, checks come by iterations, several wait for their verdicts, and logits
/// have one prime. Since version 7, trainings name the plan of their keys. Since version 8, servers
/// derive keys with master keys.
pub const VERSION: u32 = 8;
/// The metadata entry of every request with its protocol version.
pub const VERSION_ENTRY: &str = "hetal-protocol";
/// Bytes of a blob in one message of a stream.
pub const MESSAGE_PART_BYTES: usize = 256 << 10;
/// The most bytes of a message: a part of a blob, or a job with thousands of row blobs.
pub const MESSAGE_BYTES: usize = 1 << 20;
/// The most bytes of a label or of the name of a program.
pub const LABEL_BYTES: usize = 64;

/// Agrees on a protocol version with a client. The error is a sentence that a client of any version
/// can print.
pub fn negotiate(oldest: u32, newest: u32) -> Result<u32, String> {
    if (oldest..=newest).contains(&VERSION) {
        return Ok(VERSION);
    }
    let what = if newest < VERSION { "update the client" } else { "ask the server's operator to update it" };
    Err(format!(
        "the client speaks protocol versions {oldest} to {newest}, and this server speaks version {VERSION}: {what}"
    ))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn versions_meet_or_a_sentence_says_who_must_update() {
        assert_eq!(negotiate(1, VERSION), Ok(VERSION));
        assert!(negotiate(1, 1).unwrap_err().contains("update the client"));
        assert!(negotiate(VERSION + 1, VERSION + 2).unwrap_err().contains("operator"));
        assert!(negotiate(3, 0).is_err());
    }

    #[test]
    fn every_verdict_has_the_same_size() {
        let size = |round, verdict| v1::JudgeRequest { job: vec![7; 16].into(), round, verdict }.encoded_len();
        let sizes: Vec<_> =
            [1, 2, 255, 70_000, u32::MAX].iter().flat_map(|&r| (1..=4).map(move |v| size(r, v))).collect();
        assert!(sizes.iter().all(|&s| s == sizes[0]), "{sizes:?}");
    }
}
