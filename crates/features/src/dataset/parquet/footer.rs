//! The footer of a Parquet file: its columns, its row groups, and where their chunks are.

use super::Damage;
use super::thrift::{Kind, Reader};

/// The physical type of a column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Physical {
    Boolean,
    Int32,
    Int64,
    Single,
    Double,
    Bytes,
}

/// A column of texts, booleans or numbers.
#[derive(Debug)]
pub(super) struct Leaf<'a> {
    pub name: &'a str,
    pub physical: Physical,
    /// Whether values may be missing.
    pub optional: bool,
    /// Whether integers are unsigned.
    pub unsigned: bool,
}

/// The part of a column that belongs to one row group.
#[derive(Debug)]
pub(super) struct Chunk<'a> {
    name: &'a str,
    pub codec: i64,
    pub start: usize,
    pub length: usize,
}

/// A row group.
pub(super) struct Group<'a> {
    pub rows: usize,
    chunks: Vec<Chunk<'a>>,
}

impl<'a> Group<'a> {
    pub fn chunk(&self, name: &str) -> Option<&Chunk<'a>> {
        self.chunks.iter().find(|chunk| chunk.name == name)
    }
}

/// What is needed of the footer to read two columns.
pub(super) struct Footer<'a> {
    /// The names of all columns.
    pub names: Vec<&'a str>,
    wanted: Vec<Element<'a>>,
    /// Rows of all row groups.
    pub rows: usize,
    pub groups: Vec<Group<'a>>,
}

/// An element of the schema: a column or a group of columns.
#[derive(Default)]
struct Element<'a> {
    name: &'a str,
    physical: Option<i64>,
    repetition: i64,
    children: usize,
    converted: Option<i64>,
    /// The number of the logical type, and whether it is an unsigned integer.
    logical: Option<(i64, bool)>,
}

impl<'a> Footer<'a> {
    /// Parses the footer. Of columns that are not `wanted`, only the names are kept.
    pub fn parse(bytes: &'a [u8], wanted: [&str; 2]) -> Result<Self, Damage> {
        let mut footer = Self { names: Vec::new(), wanted: Vec::new(), rows: 0, groups: Vec::new() };
        // Elements that still belong to a group of columns, and the elements so far.
        let (mut inside, mut count) = (0usize, 0usize);
        Reader(bytes).fields(|reader, field, kind| {
            match (field, kind) {
                (2, Kind::List) => reader.list(|reader, _| {
                    let element = Element::read(reader)?;
                    let top = count > 0 && inside == 0;
                    if count > 0 {
                        inside = inside.saturating_sub(1).saturating_add(element.children);
                    }
                    count += 1;
                    if top {
                        footer.names.push(element.name);
                        if wanted.contains(&element.name) {
                            footer.wanted.push(element);
                        }
                    }
                    Ok(())
                })?,
                (3, Kind::Whole) => footer.rows = reader.size()?,
                (4, Kind::List) => reader.list(|reader, _| {
                    footer.groups.push(Group::read(reader, wanted)?);
                    Ok(())
                })?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let rows = footer.groups.iter().fold(0, |sum: usize, group| sum.saturating_add(group.rows));
        if rows != footer.rows {
            return Err(format!("has row groups of {rows} rows in all, but its footer says {}", footer.rows).into());
        }
        Ok(footer)
    }

    /// The column of that name, or why it cannot be read; `None` if there is no such column.
    pub fn leaf(&self, name: &str) -> Option<Result<Leaf<'a>, Damage>> {
        self.wanted.iter().find(|element| element.name == name).map(Element::leaf)
    }
}

impl<'a> Element<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, Damage> {
        let mut element = Self::default();
        reader.fields(|reader, field, kind| {
            match (field, kind) {
                (1, Kind::Whole) => element.physical = Some(reader.whole()?),
                (3, Kind::Whole) => element.repetition = reader.whole()?,
                (4, Kind::Bytes) => element.name = reader.text()?,
                (5, Kind::Whole) => element.children = reader.size()?,
                (6, Kind::Whole) => element.converted = Some(reader.whole()?),
                (10, Kind::Structure) => reader.fields(|reader, number, kind| {
                    element.logical = Some((number, false));
                    if kind != Kind::Structure {
                        return Ok(false);
                    }
                    reader.fields(|_, field, kind| {
                        if (number, field, kind) == (10, 2, Kind::Boolean(false)) {
                            element.logical = Some((number, true));
                        }
                        Ok(false)
                    })?;
                    Ok(true)
                })?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(element)
    }

    fn leaf(&self) -> Result<Leaf<'a>, Damage> {
        let what = |what: &str| {
            let name = self.name;
            Damage::Unsupported(format!(
                "column {name} holds {what}, which are not supported; convert it to texts, numbers or booleans"
            ))
        };
        if self.children > 0 || self.physical.is_none() || self.repetition > 1 {
            return Err(what("lists or structures"));
        }
        // Converted types: text (0), enumeration (4), JSON (19), integers of all widths (11 to 18).
        let (plain, text, whole) = match (self.logical, self.converted) {
            (Some((kind, _)), _) => (false, matches!(kind, 1 | 4 | 12), kind == 10),
            (None, Some(kind)) => (false, matches!(kind, 0 | 4 | 19), (11..=18).contains(&kind)),
            (None, None) => (true, false, false),
        };
        let physical = match self.physical {
            Some(0) if plain => Physical::Boolean,
            Some(1) if plain || whole => Physical::Int32,
            Some(2) if plain || whole => Physical::Int64,
            Some(4) if plain => Physical::Single,
            Some(5) if plain => Physical::Double,
            Some(6) if plain || text => Physical::Bytes,
            _ => return Err(what("dates, times, decimals or another special type")),
        };
        let unsigned = self.logical.map_or_else(|| matches!(self.converted, Some(11..=14)), |(_, unsigned)| unsigned);
        Ok(Leaf { name: self.name, physical, optional: self.repetition == 1, unsigned })
    }
}

impl<'a> Group<'a> {
    fn read(reader: &mut Reader<'a>, wanted: [&str; 2]) -> Result<Self, Damage> {
        let mut group = Self { rows: 0, chunks: Vec::new() };
        reader.fields(|reader, field, kind| {
            match (field, kind) {
                (1, Kind::List) => reader.list(|reader, _| {
                    group.chunks.extend(Chunk::read(reader, wanted)?);
                    Ok(())
                })?,
                (3, Kind::Whole) => group.rows = reader.size()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(group)
    }
}

impl<'a> Chunk<'a> {
    #[cfg(test)]
    pub fn new(name: &'a str, codec: i64, length: usize) -> Self {
        Self { name, codec, start: 0, length }
    }

    /// Reads a chunk; `None` if its column is not wanted.
    fn read(reader: &mut Reader<'a>, wanted: [&str; 2]) -> Result<Option<Self>, Damage> {
        let (mut chunk, mut elsewhere) = (None, false);
        reader.fields(|reader, field, kind| {
            match (field, kind) {
                (1, Kind::Bytes) => elsewhere = !reader.bytes()?.is_empty(),
                (3, Kind::Structure) => chunk = Self::described(reader, wanted)?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        match chunk {
            Some(_) if elsewhere => {
                Err(Damage::Unsupported("keeps its rows in another file; save it as one file".to_owned()))
            }
            chunk => Ok(chunk),
        }
    }

    fn described(reader: &mut Reader<'a>, wanted: [&str; 2]) -> Result<Option<Self>, Damage> {
        let mut path = Vec::new();
        let (mut codec, mut length, mut data, mut dictionary) = (0, 0, 0, 0);
        reader.fields(|reader, field, kind| {
            match (field, kind) {
                (3, Kind::List) => reader.list(|reader, _| {
                    path.push(reader.text()?);
                    Ok(())
                })?,
                (4, Kind::Whole) => codec = reader.whole()?,
                (7, Kind::Whole) => length = reader.size()?,
                (9, Kind::Whole) => data = reader.size()?,
                (11, Kind::Whole) => dictionary = reader.size()?,
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        // Without a dictionary, writers leave its offset out or write 0.
        let start = if dictionary > 0 { dictionary.min(data) } else { data };
        Ok(match path[..] {
            [name] if wanted.contains(&name) => Some(Self { name, codec, start, length }),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_hold_the_rows_that_the_header_says() {
        // 3: the number of rows, 4: two groups, whose field 3 is theirs.
        let footer = |rows: u8| [0x36, 2 * rows, 0x19, 0x2c, 0x36, 4, 0, 0x36, 6, 0, 0];
        let parse = |rows: u8| Footer::parse(&footer(rows), ["text", "label"]).map(|footer| footer.groups.len());
        assert_eq!(parse(5), Ok(2));
        for rows in [0, 4, 6] {
            let error = parse(rows).unwrap_err().to_string();
            assert!(error.contains(&format!("row groups of 5 rows in all, but its footer says {rows}")), "{error}");
        }
    }
}
