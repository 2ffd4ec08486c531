//! Access to files that others have prepared: regular files only, each with a limit on its size,
//! and panics of third-party parsers turned into errors.

use crate::{Error, Result};
use hetal_extract_api::{sanitize_terminal, shorten};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

pub(crate) use hetal_extract_api::{open_regular as open, read_at_most as read_all, read_line, read_regular as read};

/// A packed file may hold this many times its size. Pictures pack a few times, digits ten times.
const UNPACKED_RATIO: u64 = 64;
/// Small files may hold this many bytes, whatever their size is.
const MIN_UNPACKED: u64 = 64 << 20;
/// No file may hold more bytes than these.
const MAX_UNPACKED: u64 = 4 << 30;

/// Characters of a message: what is quoted from a file can have any length.
const MESSAGE: usize = 2000;

/// The text of a regular file of at most `most` bytes.
pub(crate) fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "is not text in UTF-8; save it as UTF-8");
    String::from_utf8(read(path, most)?).map_err(not_text)
}

/// The most bytes that a packed file of `size` bytes may hold.
pub(crate) fn unpacked_limit(size: u64) -> u64 {
    size.saturating_mul(UNPACKED_RATIO).clamp(MIN_UNPACKED, MAX_UNPACKED)
}

/// Text from a file as it may stand in a message: without control characters, and not too long.
pub(crate) fn quoted(text: &str) -> String {
    sanitize_terminal(&shorten(text, MESSAGE))
}

/// Runs a third-party parser. A panic in it is an error that names the file.
pub(crate) fn catch_panics<T>(path: &Path, parser: impl FnOnce() -> Result<T>) -> Result<T> {
    let damaged = || Error::file(path, "its parser failed: the file is damaged or of an unknown form; get it again");
    catch_unwind(AssertUnwindSafe(parser)).unwrap_or_else(|_| Err(damaged()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parser_that_panics_is_an_error_that_names_the_file() {
        let path = Path::new("models/model.onnx");
        let failed = catch_panics(path, || -> Result<()> { panic!("division by zero") }).unwrap_err();
        let said = failed.to_string();
        assert!(said.contains("models/model.onnx") && said.contains("its parser failed"), "{said}");
        assert!(matches!(catch_panics(path, || Ok(7)), Ok(7)));
        let refused = catch_panics(path, || -> Result<()> { Err(Error::file(path, "is too small")) }).unwrap_err();
        assert!(refused.to_string().contains("is too small"), "{refused}");
    }

    #[test]
    fn quotations_are_short_and_plain() {
        assert_eq!(quoted("\x1b]0;title\x07"), "\u{fffd}]0;title\u{fffd}");
        assert_eq!(quoted(&"x".repeat(1 << 20)).chars().count(), MESSAGE + 3);
    }

    #[test]
    fn packed_files_may_hold_a_multiple_of_their_size() {
        assert_eq!([0, 2 << 20, 1 << 40].map(unpacked_limit), [64 << 20, 128 << 20, 4 << 30]);
    }
}
