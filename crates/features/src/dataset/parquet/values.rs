//! The values of a page, in the encodings of Parquet.

use super::footer::{Leaf, Physical};
use super::page::{Data, Levels};
use super::thrift::Reader;
use super::{Damage, MemoryBudget};

/// A value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    Bytes(&'a [u8]),
    Whole(i64),
    Single(f32),
    Double(f64),
    Boolean(bool),
}

/// Appends the texts of a page's values.
pub(super) fn page(
    leaf: &Leaf,
    data: &Data,
    bytes: &[u8],
    dictionary: Option<&[Value]>,
    budget: &mut MemoryBudget,
    texts: &mut Vec<String>,
) -> Result<(), Damage> {
    budget.fits(data.count)?;
    let mut reader = Reader(bytes);
    let there = levels(leaf, data, &mut reader)?;
    let count = there.iter().filter(|&&level| level == 1).count();
    let mut present = Texts { leaf, budget: &mut *budget, texts: Vec::with_capacity(count) };
    present.read(data.encoding, reader, count, dictionary)?;
    let mut present = present.texts.into_iter();
    for level in there {
        texts.push(if level == 1 {
            present.next().ok_or("has too few values")?
        } else {
            budget.take(0)?;
            String::new()
        });
    }
    Ok(())
}

/// The levels of all values: 1 for a value, 0 for a missing one.
fn levels(leaf: &Leaf, data: &Data, reader: &mut Reader) -> Result<Vec<u64>, Damage> {
    match data.levels {
        Levels::Length(length) if leaf.optional => hybrid(reader.take(length)?, 1, data.count),
        Levels::Length(length) => reader.take(length).map(|_| vec![1; data.count]),
        Levels::Inline { .. } if !leaf.optional => Ok(vec![1; data.count]),
        Levels::Inline { encoding: 3 } => hybrid(prefixed(reader)?, 1, data.count),
        // Old writers use one bit for each value, the highest of a byte first.
        Levels::Inline { encoding: 4 } => {
            let bytes = reader.take(data.count.div_ceil(8))?;
            let bits = bytes.iter().flat_map(|byte| (0..8).map(move |bit| u64::from((byte >> (7 - bit)) & 1)));
            Ok(bits.take(data.count).collect())
        }
        Levels::Inline { encoding } => Err(format!("has levels in the unknown encoding {encoding}").into()),
    }
}

/// Values of a page, as texts.
struct Texts<'l, 'r> {
    leaf: &'l Leaf<'l>,
    budget: &'r mut MemoryBudget,
    texts: Vec<String>,
}

impl Texts<'_, '_> {
    /// Reads the `count` values of a page.
    fn read(
        &mut self,
        encoding: i64,
        reader: Reader,
        count: usize,
        dictionary: Option<&[Value]>,
    ) -> Result<(), Damage> {
        // If all values are missing, some writers leave out the rest of the page and the
        // dictionary.
        if count == 0 {
            return Ok(());
        }
        match (encoding, self.leaf.physical) {
            (0, physical) => plain(physical, reader.0, count)?.into_iter().try_for_each(|value| self.push(value)),
            (2 | 8, _) => self.looked_up(reader, count, dictionary.ok_or("has no dictionary")?),
            (3, Physical::Boolean) => {
                let truths = hybrid(prefixed(&mut { reader })?, 1, count)?;
                truths.into_iter().try_for_each(|truth| self.push(Value::Boolean(truth == 1)))
            }
            (5, Physical::Int64) => {
                deltas(&mut { reader }, count)?.into_iter().try_for_each(|value| self.push(Value::Whole(value)))
            }
            // Differences of 32-bit integers wrap around.
            (5, Physical::Int32) => {
                let values = deltas(&mut { reader }, count)?.into_iter();
                values.map(|value| i64::from(value as i32)).try_for_each(|value| self.push(Value::Whole(value)))
            }
            (6, Physical::Bytes) => self.delta_length(reader, count),
            (7, Physical::Bytes) => self.delta_strings(reader, count),
            (9, Physical::Int32 | Physical::Single) => self.byte_stream_split(reader, 4, count),
            (9, Physical::Int64 | Physical::Double) => self.byte_stream_split(reader, 8, count),
            _ => Err(Damage::Unsupported(format!(
                "has values in encoding {encoding}, which is not supported; save it as CSV"
            ))),
        }
    }

    fn push(&mut self, value: Value) -> Result<(), Damage> {
        let text = match value {
            Value::Bytes(bytes) => {
                let text = std::str::from_utf8(bytes).map_err(|_| no_text())?;
                self.budget.take(text.len())?;
                self.texts.push(text.to_owned());
                return Ok(());
            }
            Value::Whole(value) if self.leaf.unsigned && self.leaf.physical == Physical::Int32 => {
                (value as u32).to_string()
            }
            Value::Whole(value) if self.leaf.unsigned => (value as u64).to_string(),
            Value::Whole(value) => value.to_string(),
            Value::Single(value) => format!("{value:?}"),
            Value::Double(value) => format!("{value:?}"),
            Value::Boolean(value) => value.to_string(),
        };
        self.budget.take(text.len())?;
        self.texts.push(text);
        Ok(())
    }

    fn looked_up(&mut self, mut reader: Reader, count: usize, dictionary: &[Value]) -> Result<(), Damage> {
        let width = reader.byte()?;
        if width > 32 {
            return Err(format!("has indices of {width} bits").into());
        }
        for index in hybrid(reader.0, width.into(), count)? {
            let entry = usize::try_from(index).ok().and_then(|index| dictionary.get(index));
            self.push(
                *entry.ok_or_else(|| format!("refers to entry {index} of a dictionary of {}", dictionary.len()))?,
            )?;
        }
        Ok(())
    }

    /// `BYTE_STREAM_SPLIT`: the first bytes of all values, then the second ones, and so on.
    fn byte_stream_split(&mut self, mut reader: Reader, width: usize, count: usize) -> Result<(), Damage> {
        let bytes = reader.take(count.saturating_mul(width))?;
        let together: Vec<u8> = (0..count).flat_map(|at| bytes.iter().skip(at).step_by(count)).copied().collect();
        plain(self.leaf.physical, &together, count)?.into_iter().try_for_each(|value| self.push(value))
    }

    /// `DELTA_LENGTH_BYTE_ARRAY`: all lengths, then all bytes.
    fn delta_length(&mut self, mut reader: Reader, count: usize) -> Result<(), Damage> {
        for length in deltas(&mut reader, count)? {
            let bytes = reader.take(usize::try_from(length).map_err(|_| format!("has the length {length}"))?)?;
            self.push(Value::Bytes(bytes))?;
        }
        Ok(())
    }

    /// `DELTA_BYTE_ARRAY`: how many bytes each value shares with the previous one, then the rests.
    fn delta_strings(&mut self, mut reader: Reader, count: usize) -> Result<(), Damage> {
        let shared = deltas(&mut reader, count)?;
        let rests = deltas(&mut reader, count)?;
        let mut value = Vec::new();
        for (shared, rest) in shared.into_iter().zip(rests) {
            let kept = usize::try_from(shared).ok().filter(|&kept| kept <= value.len());
            value.truncate(kept.ok_or("has a value that shares more bytes than the previous one has")?);
            value.extend_from_slice(reader.take(usize::try_from(rest).map_err(|_| format!("has the length {rest}"))?)?);
            self.push(Value::Bytes(&value))?;
        }
        Ok(())
    }
}

fn no_text() -> Damage {
    Damage::Unsupported("has a value that is not text; save its texts as UTF-8, or name the column of texts".to_owned())
}

/// `PLAIN`: `count` values one after the other.
pub(super) fn plain(physical: Physical, bytes: &[u8], count: usize) -> Result<Vec<Value<'_>>, Damage> {
    match physical {
        Physical::Boolean => {
            let truths = Reader(bytes).take(count.div_ceil(8))?;
            Ok((0..count).map(|at| Value::Boolean(bits(truths, at, 1) == 1)).collect())
        }
        Physical::Int32 => numbers(bytes, count, |bytes| Value::Whole(i32::from_le_bytes(bytes).into())),
        Physical::Int64 => numbers(bytes, count, |bytes| Value::Whole(i64::from_le_bytes(bytes))),
        Physical::Single => numbers(bytes, count, |bytes| Value::Single(f32::from_le_bytes(bytes))),
        Physical::Double => numbers(bytes, count, |bytes| Value::Double(f64::from_le_bytes(bytes))),
        // Each value has at least a length.
        Physical::Bytes if count > bytes.len() / 4 => Err(do_not_fit(count, bytes)),
        Physical::Bytes => {
            let mut reader = Reader(bytes);
            (0..count).map(|_| prefixed(&mut reader).map(Value::Bytes)).collect()
        }
    }
}

fn numbers<'a, const N: usize>(
    bytes: &[u8],
    count: usize,
    value: impl Fn([u8; N]) -> Value<'a>,
) -> Result<Vec<Value<'a>>, Damage> {
    let numbers = bytes.as_chunks().0.get(..count).ok_or_else(|| do_not_fit(count, bytes))?;
    Ok(numbers.iter().map(|&number| value(number)).collect())
}

fn do_not_fit(count: usize, bytes: &[u8]) -> Damage {
    format!("{count} values do not fit in a page of {} bytes", bytes.len()).into()
}

/// Bytes after their length.
fn prefixed<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], Damage> {
    let (length, rest) = reader.0.split_first_chunk().ok_or("ends too early")?;
    reader.0 = rest;
    reader.take(u32::from_le_bytes(*length) as usize)
}

/// The number of `width` bits (at most 64) that begins at bit `at`, the lowest bits first. Bits
/// beyond the end are 0.
fn bits(bytes: &[u8], at: usize, width: usize) -> u64 {
    let window = bytes.iter().skip(at / 8).take(9).rev().fold(0u128, |sum, &byte| (sum << 8) | u128::from(byte));
    let mask = if width == 0 { 0 } else { u64::MAX >> (64 - width.min(64)) };
    (window >> (at % 8)) as u64 & mask
}

/// `RLE`: `count` numbers of `width` bits (at most 32), in runs of one number and groups of eight.
fn hybrid(bytes: &[u8], width: usize, count: usize) -> Result<Vec<u64>, Damage> {
    let mut reader = Reader(bytes);
    let mut numbers = Vec::with_capacity(count);
    while numbers.len() < count {
        let head = reader.varint()?;
        let length = usize::try_from(head >> 1).unwrap_or(usize::MAX);
        let left = count - numbers.len();
        if head & 1 == 0 {
            let number = bits(reader.take(width.div_ceil(8))?, 0, width);
            numbers.extend(std::iter::repeat_n(number, length.min(left)));
        } else {
            // Some writers truncate the last group.
            let packed = reader.take(length.saturating_mul(width).min(reader.0.len()))?;
            let whole = (packed.len() * 8).checked_div(width).unwrap_or(left);
            let group = length.saturating_mul(8).min(left);
            if group > whole {
                return Err("ends too early".into());
            }
            numbers.extend((0..group).map(|at| bits(packed, at * width, width)));
        }
    }
    Ok(numbers)
}

/// `DELTA_BINARY_PACKED`: `count` integers by their differences.
fn deltas(reader: &mut Reader, count: usize) -> Result<Vec<i64>, Damage> {
    let mut size = || reader.varint().map(|value| usize::try_from(value).unwrap_or(usize::MAX));
    let (block, minis, total) = (size()?, size()?, size()?);
    let first = reader.whole()?;
    if total != count {
        return Err(format!("has {total} values instead of {count}").into());
    }
    if minis == 0 || block % minis != 0 || !(1..=1 << 20).contains(&(block / minis)) || block / minis % 8 != 0 {
        return Err(format!("has blocks of {block} numbers in {minis} parts").into());
    }
    let mini = block / minis;
    let mut numbers = Vec::with_capacity(count);
    let mut last = first;
    if count > 0 {
        numbers.push(first);
    }
    while numbers.len() < count {
        let least = reader.whole()?;
        for &width in reader.take(minis)? {
            let left = count - numbers.len();
            if left == 0 {
                break;
            }
            if width > 64 {
                return Err(format!("has differences of {width} bits").into());
            }
            let packed = reader.take(mini / 8 * usize::from(width))?;
            numbers.extend((0..mini.min(left)).map(|at| {
                let difference = bits(packed, at * usize::from(width), width.into()) as i64;
                last = last.wrapping_add(least).wrapping_add(difference);
                last
            }));
        }
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_by_runs_and_groups() {
        // The format's own example: 0 to 7 in three bits each; then a run of five fours.
        let bytes = [0x03, 0x88, 0xc6, 0xfa, 0x0a, 0x04];
        let numbers = hybrid(&bytes, 3, 13).unwrap();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7, 4, 4, 4, 4, 4]);
        assert_eq!(hybrid(&bytes, 3, 5).unwrap(), [0, 1, 2, 3, 4]);
        assert!(hybrid(&bytes, 3, 14).is_err());
        assert!(hybrid(&[0x05, 0x88, 0xc6, 0xfa], 3, 16).is_err());
        assert_eq!(hybrid(&[0x06], 0, 3).unwrap(), [0; 3]);
    }

    /// The encoding of levels before run-length encoding.
    #[test]
    fn levels_of_a_bit_each() {
        let leaf = Leaf { name: "text", physical: Physical::Bytes, optional: true, unsigned: false };
        let data = |count| Data { count, encoding: 0, levels: Levels::Inline { encoding: 4 } };
        let mut reader = Reader(&[0b1010_0001, 0b0100_0000, 9]);
        assert_eq!(levels(&leaf, &data(10), &mut reader).unwrap(), [1, 0, 1, 0, 0, 0, 0, 1, 0, 1]);
        assert_eq!(reader.0, [9]);
        assert!(levels(&leaf, &data(17), &mut Reader(&[0; 2])).is_err());
        let unknown = Data { levels: Levels::Inline { encoding: 5 }, ..data(8) };
        assert!(levels(&leaf, &unknown, &mut Reader(&[0; 2])).is_err());
    }

    #[test]
    fn numbers_by_differences() {
        // 7, 5, 3, 1, 2, 3, 4, 5: the least difference is -2, the others 0, 0, 0, 3, 3, 3, 3 in two
        // bits.
        let mut bytes = vec![0x80, 0x01, 4, 8, 14, 3, 2, 0, 0, 0, 0xc0, 0x3f];
        bytes.resize(10 + 8, 0);
        assert_eq!(deltas(&mut Reader(&bytes), 8).unwrap(), [7, 5, 3, 1, 2, 3, 4, 5]);
        assert!(deltas(&mut Reader(&bytes), 9).is_err());
        assert!(deltas(&mut Reader(&bytes[..17]), 8).is_err());
        assert_eq!(bits(&[0xff; 9], 3, 64), u64::MAX);
        assert_eq!(bits(&[0xff; 9], 3, 0), 0);
    }
}
