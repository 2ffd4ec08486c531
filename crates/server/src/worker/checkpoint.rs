//! The text of checkpoints, as the state keeps it. `training` decides what is saved and when.

use crate::{Error, Result};
use hetal_learn::session::CheckpointRecord;
use hetal_wire::BlobName;
use serde::{Deserialize, Serialize};

/// The format of checkpoints. Those of earlier formats cannot be resumed: since format 2, checks
/// come by iterations, and several of them wait for verdicts.
const FORMAT: u32 = 2;

/// Everything needed to resume a training.
#[derive(Serialize, Deserialize)]
pub struct Checkpoint {
    /// [`FORMAT`].
    format: u32,
    /// The session without its ciphertexts.
    pub session: CheckpointRecord,
    /// Names of the ciphertexts, in the session's order.
    pub ciphertexts: Vec<String>,
    pub iterations: u64,
}

/// The format of a checkpoint. Format 1 did not name it.
#[derive(Deserialize)]
struct Format {
    #[serde(default = "first_format")]
    format: u32,
}

fn first_format() -> u32 {
    1
}

impl Checkpoint {
    /// A checkpoint of the current format.
    pub fn new(session: CheckpointRecord, ciphertexts: Vec<String>, iterations: u64) -> Self {
        Self { format: FORMAT, session, ciphertexts, iterations }
    }

    /// The checkpoint as the state keeps it.
    pub fn to_text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(Error::failed)
    }

    /// Parses a checkpoint. Also returns the names of its ciphertexts.
    pub fn parse(text: &str) -> Result<(Self, Vec<BlobName>)> {
        let broken = |e: &dyn std::fmt::Display| Error::failed(format!("invalid checkpoint: {e}"));
        let Format { format } = serde_json::from_str(text).map_err(|e| broken(&e))?;
        if format != FORMAT {
            let (which, what) = match format < FORMAT {
                true => ("an earlier", "start the training again"),
                false => ("a later", "ask the server's operator to update it"),
            };
            return Err(Error::failed(format!(
                "the training was begun by {which} version of hetal-server, whose checkpoints this version cannot \
                 read: {what}"
            )));
        }
        let checkpoint: Self = serde_json::from_str(text).map_err(|e| broken(&e))?;
        let names = checkpoint.ciphertexts.iter().map(|name| name.parse().map_err(|e| broken(&e)));
        let names = names.collect::<Result<_>>()?;
        Ok((checkpoint, names))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hetal_learn::{AgreementLimits, Session};

    /// A checkpoint as protocol version 5 wrote it.
    const FIRST: &str = r#"{"session":{"agreement":{"batch":29},"batches":1},"ciphertexts":[],"iterations":3,"round":1,
        "asked":true}"#;

    #[test]
    fn checkpoints_of_other_versions_are_refused_by_one_sentence() {
        let refused = |text: &str| Checkpoint::parse(text).err().unwrap().to_string();
        let earlier = refused(FIRST);
        assert!(
            earlier.contains("an earlier version of hetal-server") && earlier.ends_with("start the training again")
        );
        let session = Session::new(AgreementLimits::default().defaults, 1, vec![7]).unwrap();
        let checkpoint = Checkpoint::new(session.checkpoint().0, Vec::new(), 3);
        let text = checkpoint.to_text().unwrap();
        assert_eq!(Checkpoint::parse(&text).unwrap().0.iterations, 3);
        let later = refused(&text.replace("\"format\":2", "\"format\":3"));
        assert!(later.contains("a later version") && later.ends_with("ask the server's operator to update it"));
        assert!(refused("{").contains("invalid checkpoint") && refused(r#"{"format":2}"#).contains("invalid"));
    }
}
