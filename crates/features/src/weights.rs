//! Checkpoints in the safetensors format. Tensors are read one by one, so that a network is in
//! memory only once.

use crate::ops::{Linear, Norm};
use crate::{Error, Result, untrusted};
use candle_core::{DType, Device, Tensor};
use safetensors::tensor::Metadata;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use sha2::{Digest, Sha256};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Headers above this many bytes are refused before they are read.
const MAX_HEADER: u64 = 64 << 20;

/// An open safetensors file.
pub(crate) struct Weights {
    path: PathBuf,
    file: RefCell<File>,
    metadata: Metadata,
    start: u64,
    prefix: String,
    architecture: &'static str,
    device: Device,
}

impl Weights {
    /// Opens a file and checks that its header describes exactly the bytes that follow.
    pub fn open(path: &Path, architecture: &'static str, device: &Device) -> Result<Self> {
        let mut file = open(path)?;
        let size = file.metadata().map_err(Error::io(path))?.len();
        let (metadata, start) = header(&mut file, size).map_err(|what| {
            Error::file(
                path,
                format!("{what}; the file is truncated, damaged or no safetensors file: download it again"),
            )
        })?;
        let (path, file, prefix) = (path.to_owned(), RefCell::new(file), String::new());
        Ok(Self { path, file, metadata, start, prefix, architecture, device: device.clone() })
    }

    /// Uses the first of `prefixes` under which the tensor `probe` exists, for all names.
    pub fn with_prefix(mut self, prefixes: &[&str], probe: &str) -> Result<Self> {
        match prefixes.iter().find(|prefix| self.metadata.info(&format!("{prefix}{probe}")).is_some()) {
            Some(prefix) => self.prefix = (*prefix).to_owned(),
            None => return Err(self.no_tensor(probe)),
        }
        Ok(self)
    }

    /// Whether there is a tensor of that name.
    pub fn has(&self, name: &str) -> bool {
        self.metadata.info(&format!("{}{name}", self.prefix)).is_some()
    }

    fn no_tensor(&self, name: &str) -> Error {
        let mut names: Vec<String> = self.metadata.tensors().into_keys().collect();
        names.sort();
        let more = names.len().saturating_sub(3);
        names.truncate(3);
        let holds = format!("{} and {more} more", names.join(", "));
        Error::NoTensor { path: self.path.clone(), name: name.to_owned(), architecture: self.architecture, holds }
    }

    /// A tensor of the given shape, in single precision.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let full = format!("{}{name}", self.prefix);
        let info = self.metadata.info(&full).ok_or_else(|| self.no_tensor(&full))?;
        if info.shape != shape {
            let (found, expected) = (info.shape.clone(), shape.to_vec());
            return Err(Error::Shape { path: self.path.clone(), name: full, found, expected });
        }
        let kind = DType::try_from(info.dtype)?;
        let mut bytes = vec![0; info.data_offsets.1 - info.data_offsets.0];
        let mut file = self.file.borrow_mut();
        file.seek(SeekFrom::Start(self.start + info.data_offsets.0 as u64))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(Error::io(&self.path))?;
        let tensor = Tensor::from_raw_buffer(&bytes, kind, shape, &self.device)?.to_dtype(DType::F32)?;
        Ok(tensor)
    }

    /// `name.weight` and `name.bias` of a linear layer.
    pub fn linear(&self, name: &str, outputs: usize, inputs: usize) -> Result<Linear> {
        let weight = self.tensor(&format!("{name}.weight"), &[outputs, inputs])?;
        Ok(Linear::new(&weight, self.tensor(&format!("{name}.bias"), &[outputs])?)?)
    }

    /// Combines three linear layers with the same inputs into one.
    pub fn stacked(&self, names: [String; 3], outputs: usize, inputs: usize) -> Result<Linear> {
        let parts = |part: &str, shape: &[usize]| -> Result<Tensor> {
            let tensor = |name: &String| self.tensor(&format!("{name}.{part}"), shape);
            Ok(Tensor::cat(&names.iter().map(tensor).collect::<Result<Vec<_>>>()?, 0)?)
        };
        Ok(Linear::new(&parts("weight", &[outputs, inputs])?, parts("bias", &[outputs])?)?)
    }

    /// `name.weight` and `name.bias` of a layer normalisation.
    pub fn norm(&self, name: &str, width: usize, epsilon: f64) -> Result<Norm> {
        let scale = self.tensor(&format!("{name}.weight"), &[width])?;
        Ok(Norm { scale, shift: self.tensor(&format!("{name}.bias"), &[width])?, epsilon })
    }

    /// The device that tensors are loaded to.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

/// Reads the header of a safetensors file of `size` bytes. Returns it and the offset of the
/// numbers.
pub(crate) fn header(file: &mut impl Read, size: u64) -> std::result::Result<(Metadata, u64), String> {
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|_| "has no header")?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER.min(size.saturating_sub(8)) {
        return Err("its header is longer than the file or than 64 MiB".to_owned());
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(|e| e.to_string())?;
    let invalid = |e: serde_json::Error| format!("its header is invalid ({e})");
    serde_json::from_slice::<UniqueNames>(&header).map_err(invalid)?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(invalid)?;
    match length + 8 + metadata.data_len() as u64 {
        expected if expected == size => Ok((metadata, length + 8)),
        expected => Err(format!("has {size} bytes, its header announces {expected}")),
    }
}

/// An object whose keys differ. The parser of the header would take the last of equal names, other
/// programs the first.
struct UniqueNames;

impl<'de> Deserialize<'de> for UniqueNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueNamesVisitor)
    }
}

struct UniqueNamesVisitor;

impl<'de> Visitor<'de> for UniqueNamesVisitor {
    type Value = UniqueNames;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a member for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<UniqueNames, A::Error> {
        let mut names = BTreeSet::new();
        while let Some((name, _)) = map.next_entry::<String, IgnoredAny>()? {
            if names.contains(&name) {
                let reason = format!("two tensors are named {}", untrusted::quoted(&name));
                return Err(serde::de::Error::custom(reason));
            }
            names.insert(name);
        }
        Ok(UniqueNames)
    }
}

/// Opens a file of weights. A missing one is an error of its own.
pub(crate) fn open(path: &Path) -> Result<File> {
    untrusted::open(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => Error::NoWeights { path: path.to_owned() },
        _ => Error::Io { path: path.to_owned(), source },
    })
}

/// The SHA-256 of a file, in hexadecimal digits.
pub fn sha256(path: &Path) -> Result<String> {
    let mut file = open(path)?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(Error::io(path))? {
            0 => break,
            read => hash.update(&buffer[..read]),
        }
    }
    Ok(hexadecimal(&hash.finalize()))
}

/// Bytes in hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
