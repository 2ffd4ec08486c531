//! The safetensors format: a JSON header that describes arrays, then their bytes.

use crate::array::Element;
use crate::{Array, FileProblem, Parsed};
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

const FORMAT: &str = "safetensors";
/// The longest header that is read. The header of a large language model has about 100 KB.
const MAX_HEADER: usize = 16 << 20;

fn invalid(reason: impl Into<String>) -> FileProblem {
    FileProblem::format(FORMAT, reason)
}

#[derive(Serialize, Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

/// The arrays of a header, ordered by name.
struct Header {
    tensors: BTreeMap<String, Tensor>,
    /// A name that two arrays have.
    duplicate: Option<String>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object that describes arrays")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut header = Header { tensors: BTreeMap::new(), duplicate: None };
        let mut metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                if std::mem::replace(&mut metadata, true) {
                    header.duplicate = Some(name);
                }
                continue;
            }
            let tensor = map.next_value().map_err(|e| A::Error::custom(format!("array {name}: {e}")))?;
            if header.tensors.insert(name.clone(), tensor).is_some() {
                header.duplicate = Some(name);
            }
        }
        Ok(header)
    }
}

/// Parses a file into arrays and their names, ordered by name. Arrays of unknown types are skipped.
pub fn parse(bytes: &[u8]) -> Parsed<Vec<(String, Array)>> {
    let (length, rest) = bytes.split_first_chunk().ok_or_else(|| invalid("it is too short"))?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > MAX_HEADER {
        return Err(invalid("its header is too long"));
    }
    let (header, data) = rest.split_at_checked(length).ok_or_else(|| invalid("it ends within its header"))?;
    let header: Header = serde_json::from_slice(header).map_err(|e| invalid(format!("its header: {e}")))?;
    if let Some(name) = header.duplicate {
        return Err(FileProblem::Duplicate { what: "arrays", name });
    }
    let mut arrays = Vec::new();
    // Arrays that share bytes could need far more memory than the file has bytes.
    let mut room = data.len();
    for (name, tensor) in header.tensors {
        let Some(element) = element(&tensor.dtype) else { continue };
        let (start, end) = tensor.data_offsets;
        let values = data.get(start..end).ok_or_else(|| invalid(format!("array {name} is outside the file")))?;
        room =
            room.checked_sub(values.len()).ok_or_else(|| invalid(format!("array {name} shares bytes with others")))?;
        arrays.push((name, element.array(FORMAT, tensor.shape, values)?));
    }
    Ok(arrays)
}

fn element(name: &str) -> Option<Element> {
    Some(match name {
        "F16" => Element::Half,
        "BF16" => Element::Bfloat,
        "F32" => Element::Single,
        "F64" => Element::Double,
        "I8" => Element::Signed(1),
        "I16" => Element::Signed(2),
        "I32" => Element::Signed(4),
        "I64" => Element::Signed(8),
        "BOOL" => Element::Boolean,
        "U8" => Element::Unsigned(1),
        "U16" => Element::Unsigned(2),
        "U32" => Element::Unsigned(4),
        "U64" => Element::Unsigned(8),
        _ => return None,
    })
}

/// Encodes arrays of doubles with metadata.
pub fn write(arrays: &[(&str, &[usize], &[f64])], metadata: &BTreeMap<String, String>) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), serde_json::json!(metadata));
    let mut data = Vec::new();
    for (name, shape, values) in arrays {
        let start = data.len();
        data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        let tensor = Tensor { dtype: "F64".to_owned(), shape: shape.to_vec(), data_offsets: (start, data.len()) };
        header.insert((*name).to_owned(), serde_json::json!(tensor));
    }
    let mut text = serde_json::Value::Object(header).to_string();
    // The values start at a multiple of eight bytes.
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.bytes());
    bytes.extend(data);
    bytes
}
