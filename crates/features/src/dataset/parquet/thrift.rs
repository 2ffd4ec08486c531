//! Thrift's compact protocol, as far as Parquet's headers need it. Unknown fields are skipped.

use super::Damage;

/// Deeper nesting is refused; Parquet's headers have a few levels.
const MAX_DEPTH: usize = 16;

/// The type of the next value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// A boolean, whose value is part of the type.
    Boolean(bool),
    Byte,
    /// An integer of 16, 32 or 64 bits; all have the same form.
    Whole,
    Double,
    Bytes,
    List,
    Map,
    Structure,
    Uuid,
}

impl Kind {
    fn of(code: u8) -> Result<Self, Damage> {
        Ok(match code {
            1 | 2 => Self::Boolean(code == 1),
            3 => Self::Byte,
            4..=6 => Self::Whole,
            7 => Self::Double,
            8 => Self::Bytes,
            9 | 10 => Self::List,
            11 => Self::Map,
            12 => Self::Structure,
            13 => Self::Uuid,
            _ => return Err(format!("has a header with the unknown type {code}").into()),
        })
    }
}

/// The bytes that are still to be read.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Damage> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("ends too early")?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Result<u8, Damage> {
        Ok(self.take(1)?.first().copied().unwrap_or_default())
    }

    /// Reads a number in groups of seven bits, the lowest first.
    pub fn varint(&mut self) -> Result<u64, Damage> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("has a number of more than 64 bits".into())
    }

    /// Reads a number with its sign in the lowest bit.
    pub fn whole(&mut self) -> Result<i64, Damage> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Reads a count, a length or an offset.
    pub fn size(&mut self) -> Result<usize, Damage> {
        let value = self.whole()?;
        usize::try_from(value).map_err(|_| format!("has the size {value} in a header").into())
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Damage> {
        let length = self.varint()?;
        self.take(usize::try_from(length).map_err(|_| "ends too early")?)
    }

    pub fn text(&mut self) -> Result<&'a str, Damage> {
        std::str::from_utf8(self.bytes()?).map_err(|_| "has a name that is not text".into())
    }

    /// Calls `each` for every member of a list; `each` must read the member.
    pub fn list(&mut self, mut each: impl FnMut(&mut Self, Kind) -> Result<(), Damage>) -> Result<(), Damage> {
        let head = self.byte()?;
        let count = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        // Some writers leave out the type of an empty list.
        if count == 0 {
            return Ok(());
        }
        let kind = Kind::of(head & 15)?;
        // A member has at least one byte.
        if count > self.0.len() as u64 {
            return Err(format!("has a list of {count} members, which does not fit in {} bytes", self.0.len()).into());
        }
        (0..count).try_for_each(|_| each(self, kind))
    }

    /// Calls `take` with the number and type of every field of a structure. It returns whether it
    /// read the value; otherwise the value is skipped.
    pub fn fields(&mut self, take: impl FnMut(&mut Self, i64, Kind) -> Result<bool, Damage>) -> Result<(), Damage> {
        self.nested_fields(0, take)
    }

    fn nested_fields(
        &mut self,
        depth: usize,
        mut take: impl FnMut(&mut Self, i64, Kind) -> Result<bool, Damage>,
    ) -> Result<(), Damage> {
        let mut field = 0i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            let kind = Kind::of(head & 15)?;
            field = if head >> 4 == 0 { self.whole()? } else { field.saturating_add(i64::from(head >> 4)) };
            if !take(self, field, kind)? {
                self.skip(kind, depth)?;
            }
        }
    }

    fn skip(&mut self, kind: Kind, depth: usize) -> Result<(), Damage> {
        if depth > MAX_DEPTH {
            return Err("has headers that are nested too deep".into());
        }
        match kind {
            Kind::Boolean(_) => Ok(()),
            Kind::Byte => self.byte().map(drop),
            Kind::Whole => self.varint().map(drop),
            Kind::Double => self.take(8).map(drop),
            Kind::Uuid => self.take(16).map(drop),
            Kind::Bytes => self.bytes().map(drop),
            Kind::List => self.list(|reader, kind| reader.skip_member(kind, depth + 1)),
            Kind::Map => self.skip_map(depth + 1),
            Kind::Structure => self.nested_fields(depth + 1, |_, _, _| Ok(false)),
        }
    }

    /// In a list or map a truth is a byte of its own.
    fn skip_member(&mut self, kind: Kind, depth: usize) -> Result<(), Damage> {
        self.skip(if matches!(kind, Kind::Boolean(_)) { Kind::Byte } else { kind }, depth)
    }

    fn skip_map(&mut self, depth: usize) -> Result<(), Damage> {
        let count = self.varint()?;
        if count == 0 {
            return Ok(());
        }
        let kinds = self.byte()?;
        let (key, value) = (Kind::of(kinds >> 4)?, Kind::of(kinds & 15)?);
        (0..count).try_for_each(|_| {
            self.skip_member(key, depth)?;
            self.skip_member(value, depth)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_taken_or_stepped_over() {
        // 1: -3, 2: [true, false], 5: {1: 7.0}, 300: "ab", 301: true.
        let bytes = [
            &[0x15, 5][..],
            &[0x19, 0x21, 1, 2],
            &[0x3c, 0x17],
            &7f64.to_le_bytes(),
            &[0],
            &[0x08, 0xd8, 0x04, 2, b'a', b'b'],
            &[0x11, 0],
        ]
        .concat();
        let (mut number, mut text, mut seen) = (0, "", Vec::new());
        let mut reader = Reader(&bytes);
        let read = reader.fields(|reader, field, kind| {
            seen.push((field, kind));
            match (field, kind) {
                (1, Kind::Whole) => number = reader.whole()?,
                (300, Kind::Bytes) => text = reader.text()?,
                _ => return Ok(false),
            }
            Ok(true)
        });
        assert_eq!((read, number, text, reader.0), (Ok(()), -3, "ab", &[][..]));
        let kinds =
            [(1, Kind::Whole), (2, Kind::List), (5, Kind::Structure), (300, Kind::Bytes), (301, Kind::Boolean(true))];
        assert_eq!(seen, kinds);
    }

    /// fastparquet gives an empty list no kind at all.
    #[test]
    fn an_empty_list_is_of_any_kind() {
        for kind in [0, 5, 12, 15] {
            assert_eq!(Reader(&[0x19, kind, 0]).fields(|_, _, _| Ok(false)), Ok(()), "{kind}");
        }
        assert!(Reader(&[0x19, 0x10, 0, 0]).fields(|_, _, _| Ok(false)).is_err());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let none = |bytes: &[u8]| Reader(bytes).fields(|_, _, _| Ok(false)).unwrap_err().to_string();
        assert!(none(&[0x19, 0xf5, 0xff, 0xff, 0xff, 0xff, 0x07]).contains("does not fit"));
        assert!(none(&[0x18, 0xff, 0xff, 0xff, 0xff, 0x0f, 0]).contains("ends"));
        assert!(none(&[0x1c; 40]).contains("too deep"));
        assert!(none(&[0x19, 0x19].repeat(40)).contains("too deep"));
        assert!(none(&[0x1b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x33]).contains("ends"));
        assert!(none(&[0x15, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).contains("64 bits"));
    }
}
