//! Values of Arrow's arrays as numbers or as texts.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrowPrimitiveType};
use arrow_schema::DataType;
use hetal_tables::column_file::ColumnKind;

/// What a column of this type holds.
pub(super) fn kind(data_type: &DataType) -> ColumnKind {
    let other = |what: &str| ColumnKind::Other(what.to_owned());
    match data_type {
        DataType::Boolean => ColumnKind::Boolean,
        data_type if data_type.is_integer() => ColumnKind::Integer,
        data_type if data_type.is_floating() => ColumnKind::Float,
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
            ColumnKind::Float
        }
        // A column without any value: all are missing.
        DataType::Null => ColumnKind::Float,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => ColumnKind::Text,
        // Some programs do not say that their bytes are texts.
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => ColumnKind::Text,
        DataType::Dictionary(_, values) if !matches!(**values, DataType::Dictionary(..)) => kind(values),
        DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 => other("dates"),
        DataType::Time32(_) | DataType::Time64(_) => other("times of day"),
        DataType::Duration(_) | DataType::Interval(_) => other("durations"),
        DataType::List(_)
        | DataType::LargeList(_)
        | DataType::FixedSizeList(..)
        | DataType::ListView(_)
        | DataType::LargeListView(_) => other("lists"),
        DataType::Struct(_) => other("structures"),
        DataType::Map(..) => other("maps"),
        DataType::FixedSizeBinary(_) => other("bytes"),
        _ => other("values of a type that is not read"),
    }
}

/// The values as numbers; NaN where one is missing.
pub(super) fn numbers(array: &dyn Array) -> Result<Vec<f64>, String> {
    Ok(match array.data_type() {
        DataType::Boolean => {
            array.as_boolean().iter().map(|x| x.map_or(f64::NAN, |x| f64::from(u8::from(x)))).collect()
        }
        DataType::Int8 => primitive::<Int8Type>(array, f64::from),
        DataType::Int16 => primitive::<Int16Type>(array, f64::from),
        DataType::Int32 => primitive::<Int32Type>(array, f64::from),
        DataType::Int64 => primitive::<Int64Type>(array, |x| x as f64),
        DataType::UInt8 => primitive::<UInt8Type>(array, f64::from),
        DataType::UInt16 => primitive::<UInt16Type>(array, f64::from),
        DataType::UInt32 => primitive::<UInt32Type>(array, f64::from),
        DataType::UInt64 => primitive::<UInt64Type>(array, |x| x as f64),
        DataType::Float16 => primitive::<Float16Type>(array, |x| x.to_f64()),
        DataType::Float32 => primitive::<Float32Type>(array, f64::from),
        DataType::Float64 => primitive::<Float64Type>(array, |x| x),
        DataType::Null => vec![f64::NAN; array.len()],
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let values = numbers(dictionary.values())?;
            dictionary_indices(dictionary.keys())?
                .map(|place| place.and_then(|k| values.get(k).copied()).unwrap_or(f64::NAN))
                .collect()
        }
        // The digits of a decimal number are exact; a quotient of two numbers is not.
        _ => {
            let number = |text: Option<String>| text.and_then(|text| text.parse().ok()).unwrap_or(f64::NAN);
            texts(array)?.into_iter().map(number).collect()
        }
    })
}

fn primitive<T: ArrowPrimitiveType>(array: &dyn Array, number: impl Fn(T::Native) -> f64) -> Vec<f64> {
    array.as_primitive::<T>().iter().map(|x| x.map_or(f64::NAN, &number)).collect()
}

/// The indices that the keys of a dictionary name.
fn dictionary_indices(keys: &dyn Array) -> Result<impl Iterator<Item = Option<usize>> + use<>, String> {
    Ok(numbers(keys)?.into_iter().map(|key| (key >= 0.0).then_some(key as usize)))
}

/// The values as texts, where they are not missing.
pub(super) fn texts(array: &dyn Array) -> Result<Vec<Option<String>>, String> {
    let utf8 = |bytes: Option<&[u8]>| match bytes.map(std::str::from_utf8) {
        None => Ok(None),
        Some(Ok(text)) => Ok(Some(text.to_owned())),
        Some(Err(_)) => Err("a text is not UTF-8: save it as UTF-8".to_owned()),
    };
    Ok(match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().iter().map(|text| text.map(str::to_owned)).collect(),
        DataType::LargeUtf8 => array.as_string::<i64>().iter().map(|text| text.map(str::to_owned)).collect(),
        DataType::Utf8View => array.as_string_view().iter().map(|text| text.map(str::to_owned)).collect(),
        DataType::Binary => array.as_binary::<i32>().iter().map(utf8).collect::<Result<_, _>>()?,
        DataType::LargeBinary => array.as_binary::<i64>().iter().map(utf8).collect::<Result<_, _>>()?,
        DataType::BinaryView => array.as_binary_view().iter().map(utf8).collect::<Result<_, _>>()?,
        DataType::Boolean => array.as_boolean().iter().map(|x| x.map(|x| x.to_string())).collect(),
        DataType::Int8 => shown::<Int8Type>(array, |x| x.to_string()),
        DataType::Int16 => shown::<Int16Type>(array, |x| x.to_string()),
        DataType::Int32 => shown::<Int32Type>(array, |x| x.to_string()),
        DataType::Int64 => shown::<Int64Type>(array, |x| x.to_string()),
        DataType::UInt8 => shown::<UInt8Type>(array, |x| x.to_string()),
        DataType::UInt16 => shown::<UInt16Type>(array, |x| x.to_string()),
        DataType::UInt32 => shown::<UInt32Type>(array, |x| x.to_string()),
        DataType::UInt64 => shown::<UInt64Type>(array, |x| x.to_string()),
        DataType::Float16 => shown::<Float16Type>(array, |x| format!("{:?}", x.to_f64())),
        DataType::Float32 => shown::<Float32Type>(array, |x| format!("{:?}", f64::from(x))),
        DataType::Float64 => shown::<Float64Type>(array, |x| format!("{x:?}")),
        DataType::Decimal32(..) => decimals::<Decimal32Type>(array),
        DataType::Decimal64(..) => decimals::<Decimal64Type>(array),
        DataType::Decimal128(..) => decimals::<Decimal128Type>(array),
        DataType::Decimal256(..) => decimals::<Decimal256Type>(array),
        DataType::Null => vec![None; array.len()],
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let values = texts(dictionary.values())?;
            dictionary_indices(dictionary.keys())?
                .map(|place| place.and_then(|k| values.get(k).cloned()).flatten())
                .collect()
        }
        other => return Err(format!("a column of type {other} cannot be read as texts")),
    })
}

fn shown<T: ArrowPrimitiveType>(array: &dyn Array, text: impl Fn(T::Native) -> String) -> Vec<Option<String>> {
    array.as_primitive::<T>().iter().map(|x| x.map(&text)).collect()
}

fn decimals<T: DecimalType>(array: &dyn Array) -> Vec<Option<String>> {
    let decimals = array.as_primitive::<T>();
    (0..array.len()).map(|row| decimals.is_valid(row).then(|| decimals.value_as_string(row))).collect()
}
