//! Writes Parquet tables for tests.

use parquet::basic::{Compression, Encoding};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use std::path::Path;

/// Settings of a writer: version 1 or 2 of pages, with or without dictionaries, in several pages.
pub fn properties(compression: Compression, version: WriterVersion, dictionary: bool) -> WriterProperties {
    let pages = WriterProperties::builder().set_data_page_row_count_limit(16).set_write_batch_size(16);
    pages.set_compression(compression).set_writer_version(version).set_dictionary_enabled(dictionary).build()
}

/// Labels of which all first bytes are written, then all second ones, and so on.
#[allow(dead_code, reason = "not every test program writes such tables")]
pub fn byte_by_byte() -> WriterProperties {
    let properties = properties(Compression::SNAPPY, WriterVersion::PARQUET_2_0, false).into_builder();
    properties.set_column_encoding("label".into(), Encoding::BYTE_STREAM_SPLIT).build()
}

/// Writes a table of texts `text 0` and so on, every fifth of which is missing, and labels of two
/// classes, of the type in `label`. It has two row groups and an unused column of lists.
#[allow(dead_code, reason = "not every test program writes such tables")]
pub fn write_parquet(path: &Path, properties: WriterProperties, rows: usize, label: &str) {
    let schema = format!(
        "message rows {{ optional group tags (LIST) {{ repeated group list {{ optional int32 element; }} }} \
         optional binary text (UTF8); required {label}; }}"
    );
    let schema = parquet::schema::parser::parse_message_type(&schema).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema.into(), properties.into()).unwrap();
    for part in [0..rows / 2, rows / 2..rows] {
        let mut group = writer.next_row_group().unwrap();
        let mut tags = group.next_column().unwrap().unwrap();
        let levels = vec![0; part.len()];
        tags.typed::<Int32Type>().write_batch(&[], Some(&levels), Some(&levels)).unwrap();
        tags.close().unwrap();
        let mut texts = group.next_column().unwrap().unwrap();
        let there = |row: &usize| row % 5 != 4;
        let values: Vec<ByteArray> =
            part.clone().filter(there).map(|row| format!("text {row}").as_str().into()).collect();
        let levels: Vec<i16> = part.clone().map(|row| i16::from(there(&row))).collect();
        texts.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        texts.close().unwrap();
        let mut labels = group.next_column().unwrap().unwrap();
        write_labels(&mut labels, part.map(|row| row % 2), label);
        labels.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// A table of one text, again and again, and labels of two classes.
#[allow(dead_code, reason = "not every test program writes such tables")]
pub fn write_repeated(path: &Path, rows: usize, label: &str) {
    let schema = format!("message rows {{ required binary text (UTF8); required {label}; }}");
    let schema = parquet::schema::parser::parse_message_type(&schema).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = SerializedFileWriter::new(file, schema.into(), properties.into()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut texts = group.next_column().unwrap().unwrap();
    texts.typed::<ByteArrayType>().write_batch(&vec!["play".into(); rows], None, None).unwrap();
    texts.close().unwrap();
    let mut labels = group.next_column().unwrap().unwrap();
    write_labels(&mut labels, (0..rows).map(|row| row % 2), label);
    labels.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

fn write_labels(column: &mut SerializedColumnWriter, rows: impl Iterator<Item = usize>, label: &str) {
    let written = match label.split(' ').next().unwrap() {
        "boolean" => column.typed::<BoolType>().write_batch(&rows.map(|row| row == 1).collect::<Vec<_>>(), None, None),
        // Negative, or the highest numbers that there are without a sign.
        "int32" => {
            column.typed::<Int32Type>().write_batch(&rows.map(|row| -1 - row as i32).collect::<Vec<_>>(), None, None)
        }
        "int64" => {
            column.typed::<Int64Type>().write_batch(&rows.map(|row| -1 - row as i64).collect::<Vec<_>>(), None, None)
        }
        "float" => {
            column.typed::<FloatType>().write_batch(&rows.map(|row| row as f32 / 2.0).collect::<Vec<_>>(), None, None)
        }
        "double" => {
            column.typed::<DoubleType>().write_batch(&rows.map(|row| row as f64 / 2.0).collect::<Vec<_>>(), None, None)
        }
        _ => {
            let texts: Vec<ByteArray> = rows.map(|row| format!("class {row}").as_str().into()).collect();
            column.typed::<ByteArrayType>().write_batch(&texts, None, None)
        }
    };
    written.unwrap();
}
