//! Byte strings like no others, to be looked for where they must not be.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Memory of a process that is looked at in one piece.
const PIECE: u64 = 16 << 20;

/// Byte strings, each with what it is; all are looked for at once.
pub struct Canaries {
    all: Vec<(String, Vec<u8>)>,
    /// Which of them begin with each two bytes.
    starts: Vec<Vec<usize>>,
    longest: usize,
}

impl Default for Canaries {
    fn default() -> Self {
        Self { all: Vec::new(), starts: vec![Vec::new(); 1 << 16], longest: 0 }
    }
}

impl Canaries {
    /// One more. Fewer than eight bytes are found anywhere by chance.
    pub fn add(&mut self, what: &str, bytes: &[u8]) {
        assert!(bytes.len() >= 8, "{what} is too short to be recognised");
        self.starts[start(bytes)].push(self.all.len());
        self.longest = self.longest.max(bytes.len());
        self.all.push((what.to_owned(), bytes.to_vec()));
    }

    /// Two numbers that stand beside each other: as doubles of either end, as floats, as text.
    pub fn add_numbers(&mut self, what: &str, numbers: [f64; 2]) {
        for number in numbers {
            self.add(&format!("{what} as a double"), &number.to_le_bytes());
            self.add(&format!("{what} as a double, high byte first"), &number.to_be_bytes());
            // As many digits as everyone writes in the same way.
            let text = format!("{:.12}", number.abs());
            self.add(&format!("{what} as text"), &text.as_bytes()[..10]);
        }
        self.add(&format!("{what} as floats"), &numbers.map(|x| (x as f32).to_le_bytes()).concat());
    }

    /// What of them is in some bytes.
    pub fn found(&self, bytes: &[u8]) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        for at in 0..bytes.len().saturating_sub(1) {
            let rest = &bytes[at..];
            for &index in &self.starts[start(rest)] {
                let (what, canary) = &self.all[index];
                if rest.starts_with(canary) {
                    found.insert(what.as_str());
                }
            }
        }
        found
    }

    /// The files below a folder in which one of them is, and how many bytes were looked at.
    pub fn found_below(&self, folder: &Path) -> (Vec<(PathBuf, BTreeSet<&str>)>, usize) {
        let (mut found, mut bytes) = (Vec::new(), 0);
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                let (inner, more) = self.found_below(&path);
                found.extend(inner);
                bytes += more;
            } else {
                let content = std::fs::read(&path).unwrap();
                bytes += content.len();
                let here = self.found(&content);
                if !here.is_empty() {
                    found.push((path, here));
                }
            }
        }
        (found, bytes)
    }

    /// What of them is in the memory that a process can write: what a core file of it would hold;
    /// and how many bytes that is.
    pub fn found_in_process(&self, id: u32) -> (BTreeSet<&str>, usize) {
        let maps = std::fs::read_to_string(format!("/proc/{id}/maps")).unwrap();
        let memory = File::open(format!("/proc/{id}/mem")).unwrap();
        let (mut found, mut bytes) = (BTreeSet::new(), 0);
        let mut piece = Vec::new();
        for line in maps.lines() {
            let (range, rights) = line.split_once(' ').unwrap();
            if !rights.starts_with("rw") {
                continue;
            }
            let (from, to) = range.split_once('-').unwrap();
            let [mut from, to] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap());
            while from < to {
                // A little of the next piece too: something may lie across.
                piece.resize((to - from).min(PIECE + self.longest as u64) as usize, 0);
                // What has gone since, or belongs to a device, cannot be read.
                if memory.read_exact_at(&mut piece, from).is_ok() {
                    bytes += piece.len();
                    found.extend(self.found(&piece));
                }
                from += PIECE;
            }
        }
        (found, bytes)
    }
}

fn start(bytes: &[u8]) -> usize {
    usize::from(bytes[0]) << 8 | usize::from(bytes[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canaries_are_found_wherever_they_are() {
        let mut canaries = Canaries::default();
        canaries.add("a name", b"tweety the bird");
        canaries.add_numbers("a pair", [0.123_456_789, -77.25]);
        assert!(canaries.found(b"tweety the bat").is_empty() && canaries.found(b"").is_empty());
        assert_eq!(canaries.found(b"ttweety the bird"), BTreeSet::from(["a name"]));
        assert_eq!(canaries.found(b"x,-77.250000000,y"), BTreeSet::from(["a pair as text"]));
        let floats: Vec<u8> = [1.0f32, 0.123_456_79, -77.25].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(canaries.found(&floats), BTreeSet::from(["a pair as floats"]));
        let (here, bytes) = canaries.found_in_process(std::process::id());
        assert!(here.contains("a name") && bytes > 1 << 16, "its own copy: {here:?}");
    }
}
