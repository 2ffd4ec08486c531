//! Reading what others have prepared: regular files only, and files and lines of bounded length.

use std::fs::{File, FileType};
use std::io::{self, BufRead, Read};
use std::path::Path;

/// Opens a regular file for reading.
///
/// Everything else is an error: opening a named pipe can block for ever, and a device may never
/// end. The type is that of the open file, so it cannot be exchanged after the check.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        // Without NONBLOCK, opening a named pipe waits for a writer. Regular files ignore the flag.
        options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32);
    }
    let file = options.open(path)?;
    let file_type = file.metadata()?.file_type();
    if file_type.is_file() {
        return Ok(file);
    }
    let reason = format!("is {}; only regular files are read", describe(file_type));
    Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
}

fn describe(file_type: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if file_type.is_fifo() {
            return "a named pipe";
        }
        if file_type.is_char_device() || file_type.is_block_device() {
            return "a device";
        }
    }
    if file_type.is_dir() { "a folder" } else { "no regular file" }
}

/// The bytes of a regular file of at most `most` bytes.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    if file.metadata()?.len() > most {
        return Err(too_long(most));
    }
    read_at_most(file, most)
}

/// Everything a reader has, if that is at most `most` bytes.
pub fn read_at_most(reader: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match reader.take(most.saturating_add(1)).read_to_end(&mut bytes)? as u64 {
        length if length <= most => Ok(bytes),
        _ => Err(too_long(most)),
    }
}

fn too_long(most: u64) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("has more than {most} bytes, the most that is read"))
}

/// Reads the next line, without its end; `None` at the end of the input. A line of more than `most`
/// bytes is an error, and no more than that is kept in memory.
pub fn read_line(reader: &mut impl BufRead, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    // The end of a line takes up to two bytes more.
    let read = reader.by_ref().take(most as u64 + 2).read_until(b'\n', &mut line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    }
    if line.len() > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a line has more than {most} bytes")));
    }
    Ok((read > 0).then_some(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_files_are_opened_and_folders_are_not() {
        let folder = hetal_testkit::TempDir::new();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, "text").unwrap();
        let mut text = String::new();
        open_regular(&path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        assert_eq!(open_regular(&folder.path().join("b.txt")).unwrap_err().kind(), io::ErrorKind::NotFound);
        #[cfg(unix)]
        assert_eq!(open_regular(folder.path()).unwrap_err().to_string(), "is a folder; only regular files are read");
    }

    /// Without the flag NONBLOCK the pipe blocks this test.
    #[cfg(target_os = "linux")]
    #[test]
    fn pipes_and_devices_are_refused() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let folder = hetal_testkit::TempDir::new();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(open_regular(&pipe).unwrap_err().to_string().contains("is a named pipe"));
        let device = folder.path().join("device");
        std::os::unix::fs::symlink("/dev/zero", &device).unwrap();
        assert!(open_regular(&device).unwrap_err().to_string().contains("is a device"));
    }

    #[test]
    fn files_are_bounded() {
        let folder = hetal_testkit::TempDir::new();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_regular(&path, 5).unwrap(), b"12345");
        let long = "has more than 4 bytes, the most that is read";
        assert_eq!(read_regular(&path, 4).unwrap_err().to_string(), long);
        assert_eq!(read_at_most(io::repeat(b'x'), 4).unwrap_err().to_string(), long);
    }

    #[test]
    fn lines_are_bounded() {
        let mut input = &b"one\r\n\nthree"[..];
        let mut next = || read_line(&mut input, 5).unwrap();
        assert_eq!(next().as_deref(), Some(&b"one"[..]));
        assert_eq!(next().as_deref(), Some(&b""[..]));
        assert_eq!(next().as_deref(), Some(&b"three"[..]));
        assert_eq!(next(), None);
        assert_eq!(read_line(&mut &b"12345\n"[..], 5).unwrap().as_deref(), Some(&b"12345"[..]));
        assert_eq!(read_line(&mut &b"12345\r\n"[..], 5).unwrap().as_deref(), Some(&b"12345"[..]));
        let mut endless = io::BufReader::new(io::repeat(b'x'));
        let error = read_line(&mut endless, 1 << 20).unwrap_err().to_string();
        assert_eq!(error, "a line has more than 1048576 bytes");
    }
}
