//! Fuzz targets: the parsers of this crate, as functions for `tests/fuzz.rs`. Each returns whether
//! it accepted its input. `hetal-ckks` has targets for ciphertexts and keys; libraries parse TLS,
//! HTTP/2 and SQL.

use crate::config::Config;
use crate::jobs::spec::JobSpec;
use crate::jobs::validate::row_blobs;
use crate::worker::checkpoint::Checkpoint;
use hetal_learn::Session;
use hetal_wire::v1;
use prost::Message;

/// Parses and checks a configuration.
pub fn configuration(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| Config::parse(text).is_ok_and(|config| config.check().is_ok()))
}

/// Parses a checkpoint and its session, with names in place of ciphertexts.
pub fn checkpoint(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| {
        let parsed = Checkpoint::parse(text);
        parsed.is_ok_and(|(checkpoint, names)| Session::resume(checkpoint.session, names).is_ok())
    })
}

/// Parses a request to create a job.
pub fn job_request(bytes: &[u8]) -> bool {
    v1::CreateJobRequest::decode(bytes).is_ok_and(|message| match &message.work {
        Some(v1::create_job_request::Work::Training(training)) => row_blobs(&training.batches).is_ok(),
        Some(v1::create_job_request::Work::Classification(work)) => row_blobs(&work.queries).is_ok(),
        None => false,
    })
}

/// Parses a stored job spec.
pub fn job_spec(bytes: &[u8]) -> bool {
    serde_json::from_slice::<JobSpec>(bytes).is_ok()
}

/// Parses a stored event.
pub fn event(bytes: &[u8]) -> bool {
    v1::Event::decode(bytes).is_ok_and(|event| event.what.is_some())
}
