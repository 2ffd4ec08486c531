//! Arrays of numbers or texts, common to all formats.

use crate::problem::reserved;
use crate::{FileProblem, Labels, Parsed};

/// The values of an array.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// Floating-point numbers of any width.
    Floats(Vec<f64>),
    /// Integers of any width.
    Integers(Vec<i64>),
    /// Truth values.
    Booleans(Vec<bool>),
    /// Texts.
    Texts(Vec<String>),
}

/// An array in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its values, as many as the product of the dimensions.
    pub values: Values,
}

impl Array {
    /// Converts the array to rows of numbers. Returns the number of rows, the number of columns and
    /// the values in row-major order.
    pub fn numbers(self, name: &str) -> Parsed<(usize, usize, Vec<f64>)> {
        let [rows, columns] = self.shape[..] else {
            let must = "2 (rows and features)";
            return Err(FileProblem::Dimensions { array: name.to_owned(), found: self.shape.len(), must });
        };
        let values = match self.values {
            Values::Floats(values) => values,
            Values::Integers(values) => collected(values.len(), values.iter().map(|&x| x as f64))?,
            Values::Booleans(values) => collected(values.len(), values.iter().map(|&x| f64::from(u8::from(x))))?,
            Values::Texts(_) => {
                return Err(FileProblem::Kind { array: name.to_owned(), found: "texts".to_owned(), must: "numbers" });
            }
        };
        Ok((rows, columns, values))
    }

    /// Converts the array to one number per row. A second dimension of length 1 is allowed.
    pub fn weights(self, name: &str) -> Parsed<Vec<f64>> {
        let rows = match self.shape[..] {
            [rows] | [rows, 1] => rows,
            _ => {
                let must = "1 (one weight per row)";
                return Err(FileProblem::Dimensions { array: name.to_owned(), found: self.shape.len(), must });
            }
        };
        Ok(Self { shape: vec![rows, 1], ..self }.numbers(name)?.2)
    }

    /// The memory of its values in bytes.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        match &self.values {
            Values::Floats(values) => 8 * values.len(),
            Values::Integers(values) => 8 * values.len(),
            Values::Booleans(values) => values.len(),
            Values::Texts(values) => values.iter().map(|text| size_of::<String>() + text.capacity()).sum(),
        }
    }

    /// Converts the array to labels: one dimension of integers, truth values or texts. A second
    /// dimension of length 1 is allowed.
    pub fn labels(self, name: &str) -> Parsed<Labels> {
        match self.shape[..] {
            [_] | [_, 1] => {}
            [_, found] => return Err(FileProblem::SeveralLabels { column: name.to_owned(), found }),
            _ => {
                let must = "1 (one label per row)";
                return Err(FileProblem::Dimensions { array: name.to_owned(), found: self.shape.len(), must });
            }
        }
        let labels = match self.values {
            Values::Integers(values) => Labels::Integers(values),
            Values::Booleans(values) => Labels::Booleans(values),
            Values::Texts(values) => match values.iter().position(String::is_empty) {
                Some(row) => {
                    let count = values.iter().filter(|text| text.is_empty()).count();
                    return Err(FileProblem::NoLabel { row: row + 1, count, column: name.to_owned() });
                }
                None => Labels::Texts(values),
            },
            Values::Floats(values) => Labels::from_floats(&values, name)?,
        };
        labels.require_few_classes(name)?;
        Ok(labels)
    }

    /// Brings values in Fortran order, in which the first index runs first, into row-major order.
    pub(crate) fn into_row_major(self) -> Parsed<Self> {
        let Self { shape, values } = self;
        let values = match values {
            Values::Floats(values) => Values::Floats(row_major(&shape, values)?),
            Values::Integers(values) => Values::Integers(row_major(&shape, values)?),
            Values::Booleans(values) => Values::Booleans(row_major(&shape, values)?),
            Values::Texts(values) => Values::Texts(row_major(&shape, values)?),
        };
        Ok(Self { shape, values })
    }
}

/// Reorders values from Fortran order to row-major order.
fn row_major<T: Default>(shape: &[usize], mut values: Vec<T>) -> Parsed<Vec<T>> {
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = 1;
    for &length in shape {
        strides.push(stride);
        stride *= length;
    }
    let mut ordered = reserved(values.len())?;
    let (mut index, mut place) = (vec![0; shape.len()], 0);
    for _ in 0..values.len() {
        ordered.push(std::mem::take(&mut values[place]));
        // The last index runs first here.
        for k in (0..shape.len()).rev() {
            index[k] += 1;
            place += strides[k];
            if index[k] < shape[k] {
                break;
            }
            place -= strides[k] * shape[k];
            index[k] = 0;
        }
    }
    Ok(ordered)
}

/// Collects `count` values; a lack of memory is an error.
fn collected<T>(count: usize, values: impl Iterator<Item = T>) -> Parsed<Vec<T>> {
    let mut all = reserved(count)?;
    all.extend(values);
    Ok(all)
}

/// The encoding of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    Half,
    Bfloat,
    Single,
    Double,
    /// A signed integer of this many bytes.
    Signed(usize),
    /// An unsigned integer of this many bytes.
    Unsigned(usize),
    /// A truth value of one byte.
    Boolean,
    /// A text of this many code points of four bytes each.
    Text(usize),
}

impl Element {
    pub(crate) fn width(self) -> Option<usize> {
        match self {
            Self::Half | Self::Bfloat => Some(2),
            Self::Single => Some(4),
            Self::Double => Some(8),
            Self::Boolean => Some(1),
            Self::Signed(width) | Self::Unsigned(width) => Some(width),
            Self::Text(length) => length.checked_mul(4),
        }
    }

    /// The most memory of a value in bytes.
    pub(crate) fn memory(self) -> Option<usize> {
        match self {
            // A character has at most four bytes in UTF-8.
            Self::Text(length) => length.checked_mul(4)?.checked_add(size_of::<String>()),
            _ => Some(8),
        }
    }

    /// Decodes the values of `bytes`, which must match the shape.
    pub(crate) fn array(self, format: &'static str, shape: Vec<usize>, bytes: &[u8]) -> Parsed<Array> {
        let wrong =
            || FileProblem::format(format, format!("{} bytes of values do not match the shape {shape:?}", bytes.len()));
        let width = self.width().ok_or_else(wrong)?;
        let expected = shape.iter().try_fold(width, |product, &n| product.checked_mul(n)).ok_or_else(wrong)?;
        if width == 0 || expected != bytes.len() {
            return Err(wrong());
        }
        let count = bytes.len() / width;
        let chunks = || bytes.chunks_exact(width);
        let floats = |f: fn(&[u8]) -> f64| collected(count, chunks().map(f)).map(Values::Floats);
        let values = match self {
            Self::Half => floats(|b| half(u16::from_le_bytes(fixed(b)))),
            Self::Bfloat => floats(|b| f32::from_bits(u32::from(u16::from_le_bytes(fixed(b))) << 16).into()),
            Self::Single => floats(|b| f32::from_le_bytes(fixed(b)).into()),
            Self::Double => floats(|b| f64::from_le_bytes(fixed(b))),
            Self::Signed(_) => collected(count, chunks().map(signed)).map(Values::Integers),
            Self::Unsigned(_) => {
                let mut values = reserved(count)?;
                for chunk in chunks() {
                    values.push(unsigned(chunk).ok_or_else(too_large)?);
                }
                Ok(Values::Integers(values))
            }
            Self::Boolean => collected(count, bytes.iter().map(|&byte| byte != 0)).map(Values::Booleans),
            Self::Text(_) => {
                let mut values = reserved(count)?;
                for chunk in chunks() {
                    values.push(text(chunk).ok_or_else(wrong)?);
                }
                Ok(Values::Texts(values))
            }
        }?;
        Ok(Array { shape, values })
    }
}

fn too_large() -> FileProblem {
    let (array, found) = ("the array".to_owned(), "integers of 2^63 or more".to_owned());
    FileProblem::Kind { array, found, must: "smaller ones" }
}

/// The first `N` bytes, padded with zeros.
fn fixed<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|k| bytes.get(k).copied().unwrap_or(0))
}

fn signed(bytes: &[u8]) -> i64 {
    let shift = 64 - 8 * bytes.len().min(8);
    (i64::from_le_bytes(fixed(bytes)) << shift) >> shift
}

fn unsigned(bytes: &[u8]) -> Option<i64> {
    i64::try_from(u64::from_le_bytes(fixed(bytes))).ok()
}

/// Decodes code points and drops trailing zeros.
fn text(bytes: &[u8]) -> Option<String> {
    let text: String =
        bytes.chunks_exact(4).map(|b| char::from_u32(u32::from_le_bytes(fixed(b)))).collect::<Option<_>>()?;
    Some(text.trim_end_matches('\0').to_owned())
}

/// Converts an IEEE half-precision float.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves() {
        for (bits, value) in
            [(0, 0.0), (0x3C00, 1.0), (0xC000, -2.0), (0x3555, 0.333251953125), (1, 2f64.powi(-24)), (0x7BFF, 65504.0)]
        {
            assert_eq!(half(bits), value);
        }
        assert!(half(0x7C00).is_infinite() && half(0x7E00).is_nan());
    }

    #[test]
    fn integers_keep_their_sign() {
        assert_eq!(signed(&[0xFF]), -1);
        assert_eq!(signed(&[0xFE, 0xFF, 0xFF, 0xFF]), -2);
        assert_eq!(unsigned(&[0xFF]), Some(255));
        assert_eq!(unsigned(&[0xFF; 8]), None);
    }
}
