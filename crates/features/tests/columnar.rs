//! Parquet and Arrow files, read by `hetal_tables` through the process that parses them.
#![cfg(all(target_os = "linux", feature = "hub"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

use hetal_tables::{Error, FileProblem, Labels, Options, Table, read, read_labels};
use hetal_testkit::TempDir;
use hetal_testkit::fuzz::{feed, runs};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a test again in a process that knows where `hetal-extract` is; true in that process.
fn is_inside(test: &str) -> bool {
    if std::env::var_os("HETAL_EXTRACT").is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", test, "--nocapture", "--test-threads", "1"];
    let mut command = Command::new(program);
    let command = command.args(arguments).env("HETAL_EXTRACT", env!("CARGO_BIN_EXE_hetal-extract"));
    assert!(command.status().unwrap().success(), "{test}");
    false
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tables").join(name)
}

fn options(label: &str, drop: &[&str]) -> Options {
    let drop = drop.iter().map(|name| (*name).to_owned()).collect();
    Options { label: Some(label.to_owned()), drop, ..Options::default() }
}

fn problem(result: Result<Table, Error>) -> FileProblem {
    result.unwrap_err().problem
}

/// The rows of `crates/features/reference/tables.py`: width, count, small, size, flag.
fn row(i: usize) -> Vec<f64> {
    let x = i as f64;
    vec![0.5 * x - 1.25, x * x - 3.0, x, f64::from((0.1 * x) as f32), f64::from(u8::from(i.is_multiple_of(3)))]
}

const NUMBERS: [&str; 5] = ["width", "count", "small", "size", "flag"];

#[test]
fn tables_of_other_programs_are_read() {
    if !is_inside("tables_of_other_programs_are_read") {
        return;
    }
    for file in [
        "pandas.parquet",
        "pandas_gzip.parquet",
        "pandas_lz4_v2.parquet",
        "pandas_categories.parquet",
        "pandas.feather",
        "polars.parquet",
        "polars.arrow",
        "duckdb.parquet",
        "spark.parquet",
        "spark_settings.parquet",
        "spark_fastparquet.parquet",
        "stream.arrow",
        "zstd.arrow",
    ] {
        let options = Options { id: Some("name".to_owned()), ..options("kind", &["born"]) };
        let table = read(&golden(file), &options).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(table.names().unwrap(), NUMBERS, "{file}");
        assert_eq!(table.values, (0..12).flat_map(row).collect::<Vec<f64>>(), "{file}");
        let kinds = (0..12).map(|i| ["cat", "dög"][i % 2].to_owned()).collect();
        assert_eq!(table.labels, Some(Labels::Texts(kinds)), "{file}");
        assert_eq!(table.ids, Some((0..12).map(|i| format!("row {i}")).collect()), "{file}");
        assert_eq!(table.booleans, ["flag"], "{file}");
        assert_eq!(table.notes, [], "{file}");
    }
}

#[test]
fn columns_of_a_model_are_found_by_name_and_labels_keep_their_type() {
    if !is_inside("columns_of_a_model_are_found_by_name_and_labels_keep_their_type") {
        return;
    }
    let expected = Some(vec!["size".to_owned(), "width".to_owned()]);
    let table = read(&golden("polars.parquet"), &Options { expected, ..Options::default() }).unwrap();
    assert_eq!(table.row(3), [row(3)[3], row(3)[0]]);
    assert!(table.notes[0].text.contains("not used: name, count, small, flag, born, kind"), "{:?}", table.notes);
    let expected = Some(vec!["length".to_owned()]);
    let lacks = problem(read(&golden("polars.parquet"), &Options { expected, ..Options::default() }));
    assert!(lacks.to_string().contains("lacks these columns of the training: length"), "{lacks}");
    let labels = |column| read_labels(&golden("duckdb.parquet"), Some(column), None, &Options::default()).unwrap().0;
    assert_eq!(labels("small"), Labels::Integers((0..12).collect()));
    assert_eq!(labels("flag"), Labels::Booleans((0..12).map(|i: usize| i.is_multiple_of(3)).collect()));
    let fractions = read_labels(&golden("duckdb.parquet"), Some("width"), None, &Options::default()).unwrap_err();
    assert!(fractions.to_string().contains("regression target"), "{fractions}");
    let several = read_labels(&golden("duckdb.parquet"), None, None, &Options::default()).unwrap_err();
    assert!(several.to_string().contains("FILE#NAME"), "{several}");
    // Decimal numbers are exact.
    let exact = Options { columns: vec!["exact".to_owned()], ..Options::default() };
    let exact = read(&golden("duckdb_zstd.parquet"), &exact).unwrap();
    assert_eq!(exact.values, (0..12).map(|i| row(i)[0]).collect::<Vec<_>>());
}

/// The index of a table is no feature: a row number would be learnt by heart.
#[test]
fn the_index_of_a_pandas_table_is_left_out_with_a_note() {
    if !is_inside("the_index_of_a_pandas_table_is_left_out_with_a_note") {
        return;
    }
    let table = read(&golden("pandas_index.parquet"), &options("kind", &["born", "name"])).unwrap();
    assert_eq!(table.names().unwrap(), NUMBERS);
    let note = table.notes[0].text.as_str();
    assert_eq!(note, "column __index_level_0__ is the index of a pandas table and is not used");
    let table = read(&golden("pandas_named_index.parquet"), &options("kind", &["born"])).unwrap();
    assert_eq!((table.names().unwrap(), table.notes.len()), (NUMBERS.map(str::to_owned).to_vec(), 1));
    let asked = Options { columns: vec!["__index_level_0__".to_owned()], ..Options::default() };
    assert_eq!(read(&golden("pandas_index.parquet"), &asked).unwrap().values[..3], [3.0, 1.0, 4.0]);
}

#[test]
fn what_cannot_be_a_feature_is_refused_with_a_sentence() {
    if !is_inside("what_cannot_be_a_feature_is_refused_with_a_sentence") {
        return;
    }
    for (file, drop, sentence) in [
        ("polars.parquet", &["name"][..], "column born holds dates: write them as columns of numbers"),
        ("spark.parquet", &["name"], "column born holds dates"),
        ("spark_settings.parquet", &["name"], "column born holds dates"),
        ("polars.parquet", &["born"], "column name is text (\"row 0\" in row 1)"),
        ("polars_nested.parquet", &[], "column vector holds lists: write them as columns of numbers, or leave"),
        ("polars_holes.parquet", &[], "2 values are missing: row 2, column a; row 3, column b"),
        ("polars.parquet", &["colour"], "column colour not found; the file contains: name, width"),
    ] {
        let said = read(&golden(file), &options("kind", drop)).unwrap_err().to_string();
        assert!(said.contains(sentence) && said.contains(file), "{file}: {said}");
    }
    let folder = TempDir::new();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        read(&path, &Options::default()).unwrap_err().to_string()
    };
    let whole = std::fs::read(golden("polars.parquet")).unwrap();
    for (name, bytes) in [
        ("cut.parquet", &whole[..whole.len() - 1]),
        ("empty.parquet", b""),
        ("short.parquet", b"PAR1"),
        ("other.arrow", &whole),
        ("empty.feather", b""),
    ] {
        let said = write(name, bytes);
        assert!(said.contains(name) && said.contains("is damaged or of an unknown form: write it again"), "{said}");
    }
    assert!(write("old.feather", b"FEA1 and so on").contains("Feather of version 1"));
    let nowhere = read(&folder.path().join("none.parquet"), &Options::default()).unwrap_err().to_string();
    assert!(nowhere.contains("none.parquet: No such file"), "{nowhere}");
}

/// A table whose only text has this many bytes, which pack into a few thousand.
fn bomb(path: &Path, bytes: usize) {
    let schema = "message rows { required binary kind (UTF8); required binary width (UTF8); }";
    let schema = parquet::schema::parser::parse_message_type(schema).unwrap();
    let zstd = Compression::ZSTD(ZstdLevel::try_new(1).unwrap());
    let properties = WriterProperties::builder().set_compression(zstd).set_dictionary_enabled(false).build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema.into(), properties.into()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for value in [vec![b'a'; bytes], b"1".to_vec()] {
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&[ByteArray::from(value)], None, None).unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

/// A small file that unpacks to more memory than there may be ends its reader, and nobody else.
#[test]
fn a_file_that_needs_too_much_memory_is_refused() {
    const PROGRAM: &str = "HETAL_TEST_EXTRACT";
    let folder = TempDir::new();
    let path = folder.path().join("bomb.parquet");
    bomb(&path, 160 << 20);
    assert!(std::fs::metadata(&path).unwrap().len() < 64 << 10);
    // The limit of tables is 4 GiB; a lower one that was set before stays.
    let script = folder.path().join("limited");
    std::fs::write(&script, format!("#!/bin/sh\nulimit -d 131072\nexec \"${PROGRAM}\" \"$@\"\n")).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let test = "a_file_that_needs_too_much_memory_is_refused_inside";
    let mut command = Command::new(std::env::current_exe().unwrap());
    let command = command.args(["--exact", test, "--nocapture"]).env("HETAL_EXTRACT", &script);
    let command = command.env(PROGRAM, env!("CARGO_BIN_EXE_hetal-extract")).env("HETAL_TEST_BOMB", &path);
    assert!(command.status().unwrap().success());
}

#[test]
fn a_file_that_needs_too_much_memory_is_refused_inside() {
    let Some(path) = std::env::var_os("HETAL_TEST_BOMB") else { return };
    let said = read_labels(Path::new(&path), Some("kind"), None, &Options::default()).unwrap_err().to_string();
    assert!(said.contains("bomb.parquet: reading needed more than") && said.contains("of memory while"), "{said}");
    assert!(!said.contains("--memory-gib"), "{said}");
}

/// Mutations of files of all writers: each is read or refused with a sentence that names the file,
/// and its reader dies by no signal.
#[test]
fn hostile_files_are_read_or_refused() {
    if !is_inside("hostile_files_are_read_or_refused") {
        return;
    }
    let folder = TempDir::new();
    for (name, files) in [
        ("t.parquet", &["pandas.parquet", "polars.parquet", "duckdb_zstd.parquet", "spark.parquet"][..]),
        ("t.arrow", &["pandas.feather", "polars.arrow", "stream.arrow", "zstd.arrow"]),
    ] {
        let samples: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(golden(file)).unwrap()).collect();
        let path = folder.path().join(name);
        let parser = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            match read(&path, &options("kind", &["born", "name"])) {
                Ok(_) => true,
                Err(error) => {
                    let said = error.to_string();
                    assert!(said.contains(name) && !said.contains("signal"), "{said}");
                    false
                }
            }
        };
        assert!(samples.iter().all(|sample| parser(sample)));
        let runs = runs(150);
        let understood = feed(name, &samples, 11, runs, usize::MAX >> 1, parser);
        println!("{name}: {runs} mutations, {understood} understood");
        assert!(understood < runs, "{understood}");
    }
}
