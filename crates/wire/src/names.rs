//! Names of blobs and ids of jobs.

use std::fmt;
use std::str::FromStr;

/// A text or byte string that is not a valid name or id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what} {found:?}: it must have {bytes} bytes, as text {} hexadecimal digits", 2 * .bytes)]
pub struct NameError {
    what: &'static str,
    bytes: usize,
    found: String,
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; $bytes]);

        impl $name {
            /// Its bytes, as in messages.
            pub fn to_vec(self) -> Vec<u8> {
                self.0.to_vec()
            }
        }

        impl TryFrom<&[u8]> for $name {
            type Error = NameError;

            fn try_from(bytes: &[u8]) -> Result<Self, NameError> {
                let found = || format!("{} bytes", bytes.len());
                bytes.try_into().map(Self).map_err(|_| NameError { what: $what, bytes: $bytes, found: found() })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                let error = || NameError { what: $what, bytes: $bytes, found: text.chars().take(80).collect() };
                if text.len() != 2 * $bytes || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
                    return Err(error());
                }
                let mut name = [0; $bytes];
                for (byte, digits) in name.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
                    let digits = std::str::from_utf8(digits).map_err(|_| error())?;
                    *byte = u8::from_str_radix(digits, 16).map_err(|_| error())?;
                }
                Ok(Self(name))
            }
        }
    };
}

name!(
    /// The name of a blob: the BLAKE3 hash of its bytes.
    BlobName, 32, "blob name"
);
name!(
    /// The id of a job: random bytes.
    JobId, 16, "job id"
);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_text_and_nothing_else_passes() {
        let id = JobId(std::array::from_fn(|i| (i * 17) as u8));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(JobId::try_from(&id.to_vec()[..]), Ok(id));
        let text = id.to_string();
        for bad in ["", "00", &text[1..], &text.to_uppercase(), &text.replace('1', "/"), &format!("{text}0")] {
            assert!(bad.parse::<JobId>().unwrap_err().to_string().contains("16 bytes"), "{bad}");
        }
        assert!(BlobName::try_from(&[0; 31][..]).is_err());
    }
}
