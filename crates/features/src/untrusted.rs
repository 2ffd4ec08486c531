//! Access to files that others have prepared: regular files only, each with a limit on its size,
//! and panics of third-party parsers turned into errors.

use crate::{Error, Result};
use hetal_extract_api::{sanitize_terminal, shorten};
use std::cell::Cell;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;

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

/// A reader that gives a bounded number of bytes for each record.
pub(crate) struct RecordReader<R> {
    reader: R,
    left: Rc<Cell<usize>>,
    most: usize,
}

/// Starts the next record of a [`RecordReader`] that another reader owns by then.
pub(crate) struct NextRecord {
    left: Rc<Cell<usize>>,
    most: usize,
}

impl<R: Read> RecordReader<R> {
    /// Records may have `most` bytes, give or take a buffer of the reader that owns this one.
    pub fn new(reader: R, most: usize) -> (Self, NextRecord) {
        let left = Rc::new(Cell::new(most));
        (Self { reader, left: left.clone(), most }, NextRecord { left, most })
    }
}

impl NextRecord {
    /// Counts from zero again.
    pub fn start(&self) {
        self.left.set(self.most);
    }
}

impl<R: Read> Read for RecordReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(self.left.get());
        let read = self.reader.read(buffer.get_mut(..most).unwrap_or_default())?;
        if most == 0 && !buffer.is_empty() {
            let reason = format!("a row has more than {} bytes; is a quotation mark missing?", self.most);
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        self.left.set(self.left.get() - read);
        Ok(read)
    }
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
    fn records_are_bounded_one_by_one() {
        let (mut reader, next) = RecordReader::new(io::repeat(b'x'), 10);
        let mut buffer = [0; 6];
        assert_eq!(reader.read(&mut buffer).unwrap(), 6);
        assert_eq!(reader.read(&mut buffer).unwrap(), 4);
        assert!(reader.read(&mut buffer).unwrap_err().to_string().contains("a row has more than 10 bytes"));
        next.start();
        assert_eq!(reader.read(&mut buffer).unwrap(), 6);
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
