//! How the databases store values: numbers of enumerations, and what to say of invalid ones.

use super::{BlobKind, JobState};
use crate::{Error, Result};
use hetal_learn::Verdict;

pub const STATES: [JobState; 6] =
    [JobState::Queued, JobState::Running, JobState::Waiting, JobState::Finished, JobState::Failed, JobState::Cancelled];
pub const KINDS: [BlobKind; 4] = [BlobKind::Keys, BlobKind::Batch, BlobKind::Features, BlobKind::WeightedBatch];
pub const VERDICTS: [Verdict; 4] = [Verdict::Continue, Verdict::Stop, Verdict::LowerRate, Verdict::WidenRange];

pub fn corrupt(what: &str) -> Error {
    Error::State { reason: format!("the database contains an invalid value ({what}): restore it from a backup") }
}

/// The stored number of a value.
pub fn number<T: PartialEq>(all: &[T], value: T) -> i64 {
    all.iter().position(|v| *v == value).map_or(-1, |n| n as i64)
}

pub fn numbered<T: Copy>(all: &[T], number: i64, what: &str) -> Result<T> {
    usize::try_from(number).ok().and_then(|n| all.get(n)).copied().ok_or_else(|| corrupt(what))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
