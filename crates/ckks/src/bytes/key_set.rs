//! Sets of switching keys in one stream or file, after a table of the keys.
//!
//! Each key is a whole object with its own checksum, so that one can be read without the others.
//! The checksum of the set covers the table and the checksums of the keys.

use super::envelope::read_exact;
use super::switching_key::KeyName;
use super::{
    CHECKSUM_LEN, Codec, EnvelopeReader, EnvelopeWriter, FormatError, HEADER_LEN, ObjectKind, Result, total_len,
};
use crate::{Backend, EvaluationKeys, KeyId, KeySource, Params, SwitchingKey};
use hetal_ring::Basis;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Most keys of a set: 64 rotations at each of 64 sizes.
pub const MAX_KEYS: usize = 4096;

/// Checks the rules of a table: not too long, nothing twice.
fn check_table(names: &[KeyName]) -> Result<()> {
    check_count(names.len() as u64)?;
    let mut seen = HashSet::new();
    match names.iter().find(|name| !seen.insert(**name)) {
        Some(name) => Err(FormatError::KeyOrder { key: name.id, limbs: name.limbs }),
        None => Ok(()),
    }
}

fn check_count(found: u64) -> Result<()> {
    if found > MAX_KEYS as u64 {
        return Err(FormatError::Count { what: "keys", found, most: MAX_KEYS });
    }
    Ok(())
}

/// Bytes of the table: a count, the names, a checksum.
fn table_len(keys: usize) -> u64 {
    (8 + keys * KeyName::LEN + CHECKSUM_LEN) as u64
}

fn body_len(params: &Params, names: &[KeyName]) -> u64 {
    table_len(names.len()) + names.iter().map(|name| name.total_len(params)).sum::<u64>()
}

/// The names of a list of keys.
fn names(params: &Params, keys: &[(KeyId, usize)]) -> Result<Vec<KeyName>> {
    let names = keys.iter().map(|&(id, limbs)| KeyName::new(params, id, limbs)).collect::<Result<Vec<_>>>()?;
    check_table(&names)?;
    Ok(names)
}

/// Bytes of a set of the keys `(purpose, limbs)`.
pub fn key_set_len(params: &Params, keys: &[(KeyId, usize)]) -> Result<u64> {
    Ok(total_len(body_len(params, &names(params, keys)?)))
}

/// Writes a key set, one key at a time.
pub struct KeySetWriter<'a, B, W> {
    codec: Codec<B>,
    sink: EnvelopeWriter<'a, W>,
    /// In reverse: the next key is the last.
    expected: Vec<KeyName>,
}

impl<'a, B: Backend, W: Write> KeySetWriter<'a, B, W> {
    /// Writes the table of the keys `(purpose, limbs)` that will follow in this order.
    pub fn new(codec: &Codec<B>, keys: &[(KeyId, usize)], out: &'a mut W) -> Result<Self> {
        let mut names = names(&codec.params, keys)?;
        let mut sink = EnvelopeWriter::open(out, &codec.header(ObjectKind::KeySet, body_len(&codec.params, &names)))?;
        sink.bytes(&(names.len() as u64).to_le_bytes())?;
        names.iter().try_for_each(|name| sink.bytes(&name.to_bytes()))?;
        let checksum = sink.checksum_so_far();
        sink.bytes(&checksum)?;
        names.reverse();
        Ok(Self { codec: codec.clone(), sink, expected: names })
    }

    /// Writes the next key.
    pub fn write(&mut self, key: &SwitchingKey<B::Packed>) -> Result<()> {
        let name = KeyName::of(key);
        if self.expected.pop() != Some(name) {
            return Err(FormatError::KeyOrder { key: name.id, limbs: name.limbs });
        }
        self.sink.nested(|out| self.codec.write_summed(key, out))
    }

    /// Writes the end, after the last key.
    pub fn finish(self) -> Result<()> {
        match self.expected.last() {
            Some(name) => Err(FormatError::KeyOrder { key: name.id, limbs: name.limbs }),
            None => self.sink.close().map(|_| ()),
        }
    }
}

/// Reads a key set, one key at a time.
pub struct KeySetReader<'a, B, R> {
    codec: Codec<B>,
    source: EnvelopeReader<'a, R>,
    /// In reverse: the next key is the last.
    expected: Vec<KeyName>,
}

impl<'a, B: Backend, R: Read> KeySetReader<'a, B, R> {
    /// Reads the table.
    pub fn new(codec: &Codec<B>, input: &'a mut R) -> Result<Self> {
        let mut source = EnvelopeReader::open(input, ObjectKind::KeySet)?;
        let mut expected = read_table(codec, &mut source)?;
        expected.reverse();
        Ok(Self { codec: codec.clone(), source, expected })
    }

    /// The keys that are still to come: purpose and limbs.
    pub fn remaining(&self) -> impl Iterator<Item = (KeyId, usize)> {
        self.expected.iter().rev().map(|name| (name.id, name.limbs))
    }

    /// Reads the next key.
    pub fn read(&mut self) -> Result<Option<SwitchingKey<B::Packed>>> {
        let Some(name) = self.expected.pop() else { return Ok(None) };
        let key = self.source.nested(|input| {
            let (key, checksum) = self.codec.read_summed(input)?;
            Ok((key, name.total_len(&self.codec.params), checksum))
        })?;
        require_name(&key, name).map(|()| Some(key))
    }

    /// Reads the end, after the last key.
    pub fn finish(self) -> Result<()> {
        self.source.close().map(|_| ())
    }
}

fn require_name<P>(key: &SwitchingKey<P>, name: KeyName) -> Result<()> {
    if KeyName::of(key) == name {
        return Ok(());
    }
    Err(FormatError::KeyOrder { key: key.id, limbs: key.basis.q })
}

/// Parses the table and checks it against its checksum and the declared length.
fn read_table<B: Backend, R: Read>(codec: &Codec<B>, source: &mut EnvelopeReader<'_, R>) -> Result<Vec<KeyName>> {
    source.require_params(codec.params.id())?;
    let count = u64::from_le_bytes(source.array("a key set")?);
    check_count(count)?;
    let parse_next = |_| KeyName::parse(&codec.params, &source.array("a key set's table")?);
    let names = (0..count).map(parse_next).collect::<Result<Vec<_>>>()?;
    check_table(&names)?;
    source.require_len(body_len(&codec.params, &names))?;
    let checksum = source.checksum_so_far();
    if source.array("a key set's table")? != checksum {
        return Err(FormatError::Checksum { part: "the table" });
    }
    Ok(names)
}

/// Writes all keys that are in memory, ordered by purpose and size.
pub fn write_key_set<B: Backend>(
    codec: &Codec<B>,
    keys: &EvaluationKeys<B::Packed>,
    out: &mut impl Write,
) -> Result<()> {
    let mut sorted: Vec<_> = keys.iter().collect();
    sorted.sort_by_key(|key| KeyName::of(key));
    sorted.dedup_by_key(|key| KeyName::of(key));
    let names: Vec<_> = sorted.iter().map(|key| (key.id, key.basis.q)).collect();
    let mut writer = KeySetWriter::new(codec, &names, out)?;
    sorted.iter().try_for_each(|key| writer.write(key))?;
    writer.finish()
}

/// Reads all keys of a set into memory.
pub fn read_key_set<B: Backend>(codec: &Codec<B>, input: &mut impl Read) -> Result<EvaluationKeys<B::Packed>> {
    let mut reader = KeySetReader::new(codec, input)?;
    let mut keys = EvaluationKeys::default();
    while let Some(key) = reader.read()? {
        keys.insert(key);
    }
    reader.finish()?;
    Ok(keys)
}

/// A key set in a file, from which keys are loaded when they are needed:
/// `EvaluationKeys::with_source(Box::new(KeySetFile::open(codec, path)?))`.
pub struct KeySetFile<B> {
    codec: Codec<B>,
    file: File,
    offsets: HashMap<KeyName, u64>,
}

impl<B: Backend> KeySetFile<B> {
    /// Reads the table and checks that the file is whole, as far as can be told without reading the
    /// keys: its length, and the checksum over the keys' checksums.
    pub fn open(codec: &Codec<B>, path: &Path) -> Result<Self> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut buffered = BufReader::new(&mut file);
        let mut source = EnvelopeReader::open(&mut buffered, ObjectKind::KeySet)?;
        let names = read_table(codec, &mut source)?;
        let expected = total_len(body_len(&codec.params, &names));
        if len != expected {
            return Err(FormatError::Length { declared: len, expected });
        }
        let mut offset = HEADER_LEN as u64 + table_len(names.len());
        let mut offsets = HashMap::new();
        for name in names {
            offsets.insert(name, offset);
            offset += name.total_len(&codec.params);
            source.nested(|input| {
                input.seek(SeekFrom::Start(offset - CHECKSUM_LEN as u64))?;
                let mut checksum = [0; CHECKSUM_LEN];
                read_exact(input, &mut checksum, "a key set")?;
                Ok(((), name.total_len(&codec.params), checksum))
            })?;
        }
        source.close()?;
        drop(buffered);
        Ok(Self { codec: codec.clone(), file, offsets })
    }
}

/// A file from an offset on. Several can read one file at the same time.
struct FileFrom<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for FileFrom<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl<B: Backend> KeySource<B::Packed> for KeySetFile<B> {
    fn available(&self) -> Vec<(KeyId, Basis)> {
        let entry = |name: &KeyName| (name.id, name.id.basis(&self.codec.params, name.limbs));
        self.offsets.keys().map(entry).collect()
    }

    fn load(&self, id: KeyId, basis: Basis) -> crate::Result<Option<SwitchingKey<B::Packed>>> {
        let name = KeyName { id, limbs: basis.q };
        let Some(&offset) = self.offsets.get(&name) else { return Ok(None) };
        let key = self.codec.read(&mut FileFrom { file: &self.file, offset })?;
        require_name(&key, name)?;
        Ok(Some(key))
    }
}
