//! Fuzz targets: every parser of untrusted input in this crate, as a function of bytes. Each
//! returns whether the input is valid.

use crate::model::Model;
use crate::model::export::Published;
use crate::project::{RetiredKey, Settings};
use crate::rpc::{Event, JobInfo, Offer};
use crate::training;
use hetal_wire::v1;
use prost::Message;

/// A project's settings.
pub fn settings(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Settings>(bytes).is_ok()
}

/// The record of a retired key.
pub fn retired(bytes: &[u8]) -> bool {
    serde_json::from_slice::<RetiredKey>(bytes).is_ok()
}

/// The record of a training.
pub fn training(bytes: &[u8]) -> bool {
    training::parse(bytes)
}

/// A model file.
pub fn model(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Model>(bytes).is_ok_and(|model| model.is_whole())
}

/// A published model.
pub fn published(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Published>(bytes).is_ok()
}

/// A server's offer.
pub fn offer(bytes: &[u8]) -> bool {
    v1::Offer::decode(bytes).is_ok_and(|message| Offer::parse(message).is_ok())
}

/// A server's description of a job.
pub fn job(bytes: &[u8]) -> bool {
    v1::Job::decode(bytes).is_ok_and(|message| JobInfo::parse(message).is_ok())
}

/// An event from a server.
pub fn event(bytes: &[u8]) -> bool {
    v1::Event::decode(bytes).is_ok_and(|message| Event::parse(message).is_ok())
}
