//! Fuzz targets: every parser of untrusted input in this crate, as a function of bytes. Each
//! returns whether the input is valid.

use crate::data::files::{Format, npy, parse_labels, parse_table};
use crate::model::Model;
use crate::model::export::Published;
use crate::project::{RetiredKey, Settings};
use crate::rpc::{Event, JobInfo, Offer};
use crate::training;
use hetal_wire::v1;
use prost::Message;

/// A `.npy` file as features or as labels.
pub fn npy(bytes: &[u8]) -> bool {
    table(Format::Npy, bytes, None)
}

/// A `.npz` file.
pub fn npz(bytes: &[u8]) -> bool {
    table(Format::Npz, bytes, None)
}

/// A `.safetensors` file.
pub fn safetensors(bytes: &[u8]) -> bool {
    table(Format::Safetensors, bytes, None)
}

/// A CSV file, with and without a column of labels.
pub fn csv(bytes: &[u8]) -> bool {
    table(Format::Csv, bytes, Some("kind")) | table(Format::Csv, bytes, None)
}

/// An array of texts.
pub fn texts(bytes: &[u8]) -> bool {
    npy::parse(bytes).and_then(|array| array.labels("the array")).is_ok()
}

fn table(format: Format, bytes: &[u8], label: Option<&str>) -> bool {
    parse_table(format, bytes, label).is_ok() | parse_labels(format, bytes, label).is_ok()
}

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
