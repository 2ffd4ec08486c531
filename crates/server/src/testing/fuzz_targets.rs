//! What this crate itself makes of bytes from outside and from its own disk, as functions that `tests/fuzz.rs` feeds. Each gives whether it
//! understood them. Ciphertexts and keys are read by `hetal-ckks`, which has its own; TLS, HTTP/2 and SQL by libraries.

use crate::config::Config;
use crate::jobs::spec::JobSpec;
use crate::jobs::validate::row_blobs;
use crate::worker::checkpoint::Checkpoint;
use hetal_learn::Session;
use hetal_wire::v1;
use prost::Message;

/// A configuration that can work.
pub fn configuration(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| Config::parse(text).is_ok_and(|config| config.check().is_ok()))
}

/// A checkpoint and the session in it, with a name in place of each ciphertext.
pub fn checkpoint(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| {
        let parsed = Checkpoint::parse(text);
        parsed.is_ok_and(|(checkpoint, names)| Session::resume(checkpoint.session, names).is_ok())
    })
}

/// A request for a job, as it comes.
pub fn job_request(bytes: &[u8]) -> bool {
    v1::CreateJobRequest::decode(bytes).is_ok_and(|message| match &message.work {
        Some(v1::create_job_request::Work::Training(training)) => row_blobs(&training.batches).is_ok(),
        Some(v1::create_job_request::Work::Classification(work)) => row_blobs(&work.queries).is_ok(),
        None => false,
    })
}

/// A job's work, as the state keeps it.
pub fn job_spec(bytes: &[u8]) -> bool {
    serde_json::from_slice::<JobSpec>(bytes).is_ok()
}

/// An event, as the state keeps it.
pub fn event(bytes: &[u8]) -> bool {
    v1::Event::decode(bytes).is_ok_and(|event| event.what.is_some())
}
