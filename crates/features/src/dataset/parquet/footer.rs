//! What a Parquet file says of itself: its columns, and where their parts are.

use super::Damage;
use super::thrift::{Kind, Reader};

/// How a value is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Physical {
    Truth,
    Int32,
    Int64,
    Single,
    Double,
    Bytes,
}

/// A column that is one of texts, truths or numbers.
#[derive(Debug)]
pub(super) struct Leaf<'a> {
    pub name: &'a str,
    pub physical: Physical,
    /// Whether values may be missing.
    pub optional: bool,
    /// Whether whole numbers have no sign.
    pub unsigned: bool,
}

/// A column's part of a group of rows.
#[derive(Debug)]
pub(super) struct Chunk<'a> {
    name: &'a str,
    pub codec: i64,
    pub start: usize,
    pub length: usize,
}

/// A group of rows.
pub(super) struct Group<'a> {
    pub rows: usize,
    chunks: Vec<Chunk<'a>>,
}

impl<'a> Group<'a> {
    pub fn chunk(&self, name: &str) -> Option<&Chunk<'a>> {
        self.chunks.iter().find(|chunk| chunk.name == name)
    }
}

/// Everything that is needed of the two columns.
pub(super) struct Footer<'a> {
    /// The names of all columns.
    pub names: Vec<&'a str>,
    wanted: Vec<Element<'a>>,
    /// Rows of all groups.
    pub rows: usize,
    pub groups: Vec<Group<'a>>,
}

/// A column or a group of columns, as it is written.
#[derive(Default)]
struct Element<'a> {
    name: &'a str,
    physical: Option<i64>,
    repetition: i64,
    children: usize,
    converted: Option<i64>,
    /// The number of the logical type, and whether it is a whole number without sign.
    logical: Option<(i64, bool)>,
}

impl<'a> Footer<'a> {
    /// Reads it; of columns that are not `wanted` the names only.
    pub fn parse(bytes: &'a [u8], wanted: [&str; 2]) -> Result<Self, Damage> {
        let mut footer = Self { names: Vec::new(), wanted: Vec::new(), rows: 0, groups: Vec::new() };
        // Elements that belong to a column of columns, and how many elements there were.
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
            return Err(format!("has groups of {rows} rows in all, where its header says {}", footer.rows).into());
        }
        Ok(footer)
    }

    /// A column, if there is one of that name; or why it cannot be read.
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
                        if (number, field, kind) == (10, 2, Kind::Truth(false)) {
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
            Damage::Beyond(format!(
                "column {name} holds {what}; texts and labels are single texts, whole numbers, numbers or truths"
            ))
        };
        if self.children > 0 || self.physical.is_none() || self.repetition > 1 {
            return Err(what("lists or structures"));
        }
        // Texts (0), enumerations (4) and JSON (19); whole numbers of all widths (11 to 18).
        let (plain, text, whole) = match (self.logical, self.converted) {
            (Some((kind, _)), _) => (false, matches!(kind, 1 | 4 | 12), kind == 10),
            (None, Some(kind)) => (false, matches!(kind, 0 | 4 | 19), (11..=18).contains(&kind)),
            (None, None) => (true, false, false),
        };
        let physical = match self.physical {
            Some(0) if plain => Physical::Truth,
            Some(1) if plain || whole => Physical::Int32,
            Some(2) if plain || whole => Physical::Int64,
            Some(4) if plain => Physical::Single,
            Some(5) if plain => Physical::Double,
            Some(6) if plain || text => Physical::Bytes,
            _ => return Err(what("dates, times, decimals or other things that are stored as numbers or bytes")),
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

    /// A chunk of a wanted column; of others nothing.
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
            Some(_) if elsewhere => Err(Damage::Beyond("its rows are in another file; save it as one file".to_owned())),
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
        // Writers that have no dictionary leave its place out or 0.
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
            assert!(error.contains(&format!("groups of 5 rows in all, where its header says {rows}")), "{error}");
        }
    }
}
