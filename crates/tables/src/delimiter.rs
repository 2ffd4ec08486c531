//! What separates the fields of a text table.
//!
//! The rule: a delimiter is one of `,` tab `;` `|` that occurs, outside quotation marks, equally
//! often in each of the first rows, and at least once. If several do, the one that makes the most
//! fields numbers is taken, and of equal ones the first of this list. If none does, it is the one
//! that occurs most often in the first row, or else the comma.

use crate::cells::{Cell, has_decimal_comma};
use csv::{ReaderBuilder, StringRecord};

/// The delimiters that are looked for, in the order of preference.
const CANDIDATES: [u8; 4] = [b',', b'\t', b';', b'|'];
/// The rows that are looked at.
const ROWS: usize = 20;
/// The most bytes that are looked at.
const MAX_BYTES: usize = 1 << 20;

/// Finds the delimiter of a table.
pub(crate) fn detect(text: &str) -> u8 {
    let rows = counts(text.as_bytes());
    let Some(first) = rows.counts.first() else { return b',' };
    let consistent: Vec<usize> =
        (0..CANDIDATES.len()).filter(|&k| first[k] > 0 && rows.counts.iter().all(|row| row[k] == first[k])).collect();
    let chosen = match consistent[..] {
        [] => (0..CANDIDATES.len()).rev().max_by_key(|&k| first[k]).filter(|&k| first[k] > 0),
        [one] => Some(one),
        _ => {
            let sample = text.get(..rows.end).unwrap_or(text);
            // Of equal ones, `max_by_key` takes the last.
            consistent.into_iter().rev().max_by_key(|&k| share_of_numbers(sample, CANDIDATES[k]))
        }
    };
    chosen.map_or(b',', |k| CANDIDATES[k])
}

/// How often each candidate occurs in each of the first rows.
struct Counts {
    counts: Vec<[usize; 4]>,
    /// Where these rows end.
    end: usize,
}

fn counts(bytes: &[u8]) -> Counts {
    let bytes = &bytes[..bytes.len().min(MAX_BYTES)];
    let (mut counts, mut current) = (Vec::new(), [0; 4]);
    let (mut quoted, mut empty, mut end) = (false, true, 0);
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b'\n' if !quoted => {
                end = at + 1;
                if !std::mem::replace(&mut empty, true) {
                    counts.push(std::mem::take(&mut current));
                }
                if counts.len() == ROWS {
                    return Counts { counts, end };
                }
                continue;
            }
            _ if !quoted => {
                if let Some(k) = CANDIDATES.iter().position(|&candidate| candidate == byte) {
                    current[k] += 1;
                }
            }
            _ => {}
        }
        empty = empty && byte.is_ascii_whitespace() && byte != b'\t';
    }
    // The last row may have no end of its own. A row that was cut off is no evidence.
    if !empty && (counts.is_empty() || bytes.len() < MAX_BYTES) {
        counts.push(current);
        end = bytes.len();
    }
    Counts { counts, end }
}

/// The share of fields that are numbers, in thousandths.
fn share_of_numbers(text: &str, delimiter: u8) -> usize {
    let mut reader =
        ReaderBuilder::new().has_headers(false).flexible(true).delimiter(delimiter).from_reader(text.as_bytes());
    let (mut numbers, mut all) = (0, 0);
    let mut record = StringRecord::new();
    while reader.read_record(&mut record).unwrap_or(false) {
        all += record.len();
        let comma = |field: &str| delimiter != b',' && has_decimal_comma(field.trim());
        numbers += record.iter().filter(|field| Cell::of(field, false).is_number() || comma(field)).count();
    }
    1000 * numbers / all.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delimiters_are_found() {
        for (text, delimiter) in [
            ("a,b\n1,2\n", b','),
            ("a;b\n1,5;2,5\n", b';'),
            ("1,5;2,5\n3,5;4,5\n", b';'),
            ("a\tb\n1\t2\n", b'\t'),
            ("a|b\n1|2\n", b'|'),
            ("1,2,a;b\n3,4,c;d\n", b','),
            ("\"a;b\",c\n\"d;e;f\",1\n", b','),
            ("name\nx\n", b','),
            ("", b','),
            ("a;b;c\n1;2\n", b';'),
            ("\n\na;b\n1;2", b';'),
        ] {
            assert_eq!(char::from(detect(text)), char::from(delimiter), "{text:?}");
        }
    }
}
