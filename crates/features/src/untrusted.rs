//! What a data set or a model names may be anything: files are read up to a limit, and other people's parsers may give up.

use crate::{Error, Result};
use std::fs::File;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// The bytes of a file of at most `most` bytes.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    all(File::open(path)?, most)
}

/// Everything a reader has, if that is at most `most` bytes.
pub(crate) fn all(reader: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match reader.take(most + 1).read_to_end(&mut bytes)? as u64 {
        length if length <= most => Ok(bytes),
        _ => Err(io::Error::other(format!("has more than {most} bytes"))),
    }
}

/// Runs a parser that is known to panic on some damaged files; here that is an error like any other.
pub(crate) fn parsed<T>(path: &Path, parser: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(parser))
        .unwrap_or_else(|_| Err(Error::file(path, "is damaged: its parser gave up; get the file again")))
}
