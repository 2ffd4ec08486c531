//! Tables, written for tests.

use std::path::Path;

/// A Parquet table of texts `text 0` ... and labels `class 0` and `class 1`.
pub fn write_parquet(path: &Path, compression: parquet::basic::Compression, rows: usize) {
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::{properties::WriterProperties, writer::SerializedFileWriter};
    let schema = "message rows { required binary text (UTF8); optional binary label (UTF8); }";
    let schema = parquet::schema::parser::parse_message_type(schema).unwrap();
    let properties = WriterProperties::builder().set_compression(compression).build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema.into(), properties.into()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = |values: Vec<String>, levels: Option<&[i16]>| {
        let values: Vec<ByteArray> = values.iter().map(|value| value.as_str().into()).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&values, levels, None).unwrap();
        column.close().unwrap();
    };
    column((0..rows).map(|i| format!("text {i}")).collect(), None);
    column((0..rows).map(|i| format!("class {}", i % 2)).collect(), Some(&vec![1; rows]));
    group.close().unwrap();
    writer.close().unwrap();
}
