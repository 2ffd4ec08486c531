use super::*;
use std::path::Path;

/// Features of a file.
fn parse_table(format: FileFormat, bytes: &[u8], label: Option<&str>) -> Parsed<Table> {
    parse(format, bytes, &Options { label: label.map(str::to_owned), ..Options::default() })
}

/// Labels of a file of their own.
fn labels_in(format: FileFormat, bytes: &[u8], column: Option<&str>) -> Parsed<Labels> {
    parse_labels(format, bytes, column, None, &Options::default()).map(|(labels, _)| labels)
}

fn npy(kind: &str, shape: &str, body: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(body);
    bytes
}

fn three_numbers() -> Vec<u8> {
    [1.5f32, -2.0, 0.25].iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn npy_arrays_parse_or_say_why_not() {
    let good = npy("<f4", "1, 3", &three_numbers());
    assert_eq!(parse_table(FileFormat::Npy, &good, None).unwrap().values, [1.5, -2.0, 0.25]);
    for cut in 0..good.len() {
        assert!(npy::parse(&good[..cut]).is_err(), "cut at {cut}");
    }
    assert!(npy::parse(&npy("<f4", "99999999999, 99999999999", &three_numbers())).is_err());
    assert!(matches!(npy::parse(&npy("|O", "3", &three_numbers())), Err(FileProblem::Kind { .. })));
    assert!(matches!(npy::parse(&npy("<U0", "3", &[])), Err(FileProblem::Format { .. })));
    let flat = parse_table(FileFormat::Npy, &npy("<f4", "3,", &three_numbers()), None);
    assert!(matches!(flat, Err(FileProblem::Dimensions { found: 1, .. })));
    let labels = labels_in(FileFormat::Npy, &npy("|i1", "3,", &[0, 255, 2]), None).unwrap();
    assert_eq!(labels, Labels::Integers(vec![0, -1, 2]));
}

#[test]
fn what_is_written_is_read() {
    let names = vec!["jazz".to_owned(), "été".to_owned()];
    assert_eq!(npy::parse(&npy::write_texts(&names)).unwrap().values, Values::Texts(names.clone()));
    let doubles = npy::write_doubles(&[2, 2], &[1.0, f64::MIN_POSITIVE, -3.5, 1e300]);
    assert_eq!(doubles.len() % 64, 32);
    let archive = npz::write(&[("features", doubles), ("labels", npy::write_texts(&names))]);
    let table = parse_table(FileFormat::Npz, &archive, None).unwrap();
    assert_eq!(table.values, [1.0, f64::MIN_POSITIVE, -3.5, 1e300]);
    assert_eq!(table.labels, Some(Labels::Texts(names)));
    for cut in 0..archive.len() {
        assert!(npz::parse(&archive[..cut]).is_err(), "cut at {cut}");
    }
    let mut damaged = archive;
    damaged[120] ^= 1;
    assert!(npz::parse(&damaged).is_err());
}

#[test]
fn safetensors_files_are_those_of_the_crate() {
    let metadata = [("classes".to_owned(), "a,b".to_owned())].into();
    let values = [0.5, -1.0, 2.0, 1e-30];
    let bytes = safetensors::write(&[("features", &[2, 2], &values), ("y", &[2], &[0.0, 1.0])], &metadata);
    let theirs = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.tensor("features").unwrap().shape(), [2, 2]);
    let table = parse_table(FileFormat::Safetensors, &bytes, None).unwrap();
    assert_eq!(table.values, values);
    assert_eq!(table.labels, Some(Labels::Integers(vec![0, 1])));
    // Their writer, our reader, half precision.
    let halves: Vec<u8> = [0x3C00u16, 0xC000].iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = ::safetensors::tensor::TensorView::new(::safetensors::Dtype::F16, vec![1, 2], &halves).unwrap();
    let bytes = ::safetensors::serialize([("x", view)], None).unwrap();
    assert_eq!(parse_table(FileFormat::Safetensors, &bytes, None).unwrap().values, [1.0, -2.0]);
}

#[test]
fn tables_of_text_name_the_place() {
    let good = b"a,b,kind\n1,2.5,cat\n-3,4e-1,\"dog, big\"\n";
    let table = parse_table(FileFormat::Csv, good, Some("kind")).unwrap();
    assert_eq!((table.rows, &table.values[..]), (2, &[1.0, 2.5, -3.0, 0.4][..]));
    assert_eq!(table.names(), Some(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(table.labels, Some(Labels::Texts(vec!["cat".into(), "dog, big".into()])));
    let without = parse_table(FileFormat::Csv, b"1,2,7\n3,4,8\n", Some("3")).unwrap();
    assert_eq!((without.labels.clone(), without.names()), (Some(Labels::Integers(vec![7, 8])), None));
    let wrong = parse_table(FileFormat::Csv, b"a,b\n1,2\n3,4\n3,x\n", None).unwrap_err();
    assert_eq!(wrong, FileProblem::NotANumber { row: 3, column: "b".into(), text: "x".into(), others: 2 });
    let ragged = parse_table(FileFormat::Csv, b"1,2\n3\n", None).unwrap_err();
    assert_eq!(ragged, FileProblem::Ragged { row: 2, found: 1, expected: 2 });
    let missing = parse_table(FileFormat::Csv, good, Some("colour")).unwrap_err().to_string();
    assert!(missing.contains("a, b, kind"), "{missing}");
    assert_eq!(parse_table(FileFormat::Csv, b"", None).unwrap_err(), FileProblem::Empty);
    let wide = |count: usize| parse_table(FileFormat::Csv, vec!["1"; count].join(",").as_bytes(), None).unwrap_err();
    let (found, most) = (MAX_FEATURES + 1, MAX_FEATURES);
    assert_eq!(wide(found), FileProblem::TooManyFeatures { found, most });
    assert!(matches!(wide(MAX_COLUMNS + 1), FileProblem::Format { .. }));
    assert_eq!(labels_in(FileFormat::Csv, b"cat\ndog\n", None).unwrap().texts(), ["cat", "dog"]);
    assert_eq!(labels_in(FileFormat::Csv, b"label\n1\n0\n", None).unwrap(), Labels::Integers(vec![1, 0]));
}

#[test]
fn labels_are_there_and_are_those_asked_for() {
    let missing = FileProblem::NoLabel { row: 2, count: 1, column: "kind".into() };
    assert_eq!(parse_table(FileFormat::Csv, b"a,kind\n1,cat\n2,\n", Some("kind")).unwrap_err(), missing);
    assert_eq!(labels_in(FileFormat::Csv, b"id,kind\n1,cat\n2,\n", Some("kind")).unwrap_err(), missing);
    let empty = npy::write_texts(&["cat".to_owned(), String::new()]);
    assert!(matches!(labels_in(FileFormat::Npy, &empty, None), Err(FileProblem::NoLabel { row: 2, .. })));
    // Without a header, rows are counted from the first line.
    for (text, row) in [(&b"\"\"\ncat\ndog\n"[..], 1), (b"cat\n\"\"\ndog\n", 2)] {
        let missing = FileProblem::NoLabel { row, count: 1, column: "1".into() };
        assert_eq!(labels_in(FileFormat::Csv, text, None).unwrap_err(), missing);
    }
    // A header that was asked for is not a label.
    assert_eq!(labels_in(FileFormat::Csv, b"kind\ncat\ndog\n", Some("kind")).unwrap().texts(), ["cat", "dog"]);
    assert_eq!(labels_in(FileFormat::Csv, b"cat\ndog\n", Some("1")).unwrap().texts(), ["cat", "dog"]);
    // An array is taken for labels by its name only, and ignored if labels are given elsewhere.
    let rows = npy::write_doubles(&[2, 1], &[1.0, 2.0]);
    let numbers = npy::write_doubles(&[2], &[0.25, 0.75]);
    let index = npz::write(&[("x", rows.clone()), ("weight", numbers.clone())]);
    assert_eq!(parse_table(FileFormat::Npz, &index, None).unwrap().labels, None);
    let bad = npz::write(&[("x", rows), ("y", numbers)]);
    assert!(matches!(parse_table(FileFormat::Npz, &bad, None), Err(FileProblem::Regression { .. })));
    let ignored = Options { ignore_labels: true, ..Options::default() };
    assert_eq!(parse(FileFormat::Npz, &bad, &ignored).unwrap().values, [1.0, 2.0]);
}

/// Arrays in Fortran order, as pandas often has them, are read like others.
#[test]
fn fortran_order_is_read() {
    let fortran = |shape: &str, values: &[f64]| {
        let mut bytes = npy("<f8", shape, &values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        let at = bytes.windows(5).position(|window| window == b"False").unwrap();
        bytes[at..at + 5].copy_from_slice(b"True ");
        bytes
    };
    let table = parse_table(FileFormat::Npy, &fortran("2, 3", &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]), None).unwrap();
    assert_eq!((table.rows, &table.values[..]), (2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0][..]));
    let cube = npy::parse(&fortran("2, 2, 2", &[0.0, 4.0, 2.0, 6.0, 1.0, 5.0, 3.0, 7.0])).unwrap();
    assert_eq!(cube.values, Values::Floats((0..8).map(f64::from).collect()));
    assert_eq!(npy::header(&fortran("2, 3", &[])).unwrap().memory(), Some(96), "it is copied");
}

/// Columns that a model needs are found by name, in any order.
#[test]
fn needed_columns_are_found_by_name() {
    let needed = |bytes: &[u8]| {
        let expected = Some(vec!["a".to_owned(), "b".to_owned()]);
        parse(FileFormat::Csv, bytes, &Options { expected, ..Options::default() })
    };
    assert_eq!(needed(b"b,a\n2,1\n4,3\n").unwrap().values, [1.0, 2.0, 3.0, 4.0]);
    let more = needed(b"id,b,a\nx7,2,1\n").unwrap();
    assert_eq!(more.values, [1.0, 2.0]);
    assert!(more.notes[0].text.ends_with("not used: id"), "{:?}", more.notes);
    let renamed = needed(b"a,B\n1,2\n").unwrap_err();
    assert_eq!(renamed, FileProblem::OtherColumns { missing: vec!["b".into()], extra: vec!["B".into()] });
    let headless = needed(b"1,2\n3,4\n").unwrap();
    assert_eq!(headless.values, [1.0, 2.0, 3.0, 4.0]);
    assert!(headless.notes.iter().any(|note| note.text.contains("no column names")), "{:?}", headless.notes);
    assert!(matches!(needed(b"1,2,3\n").unwrap_err(), FileProblem::ColumnCount { found: 3, expected: 2, .. }));
    // Names of digits are found as names.
    let digits = Options { expected: Some(vec!["1".into(), "0".into()]), ..Options::default() };
    assert_eq!(parse(FileFormat::Csv, b"0,1\n5,6\n", &digits).unwrap().values, [6.0, 5.0]);
    assert_eq!(parse(FileFormat::Csv, b"0,7\n5,6\n", &digits).unwrap().rows, 2, "a value is not a name");
}

/// The number of rows decides whether a file of labels has a heading.
#[test]
fn a_heading_of_labels_is_found_by_their_number() {
    let read = |text: &str, rows| {
        let (labels, notes) = parse_labels(FileFormat::Csv, text.as_bytes(), None, rows, &Options::default()).unwrap();
        (labels.texts().join(" "), notes.first().map(|note| note.text.clone()).unwrap_or_default())
    };
    assert_eq!(read("colour\nred\nblue\n", Some(2)).0, "red blue");
    assert_eq!(read("colour\nred\nblue\n", Some(2)).1, "\"colour\" above the labels is taken as their heading");
    assert_eq!(read("colour\nred\nblue\n", Some(3)), ("colour red blue".into(), String::new()));
    assert_eq!(read("0\n1\n0\n", Some(2)).0, "1 0", "pandas names a series without a name 0");
    assert_eq!(read("0\n1\n0\n", Some(3)).0, "0 1 0");
    assert_eq!(read("target\n1\n0\n", Some(3)).0, "1 0", "a word above numbers is no label");
    assert_eq!(read(",target\n0,red\n1,blue\n", Some(2)).0, "red blue", "with the index of pandas");
}

#[test]
fn classes_are_the_distinct_labels_in_order() {
    assert_eq!(Labels::Integers(vec![10, 2, 10, -1]).classes(), ["-1", "2", "10"]);
    assert_eq!(Labels::Texts(vec!["b".into(), "a".into(), "b".into()]).classes(), ["a", "b"]);
}

#[test]
fn names_behind_a_hash() {
    assert_eq!(split_name("d.npz#y"), ("d.npz".into(), Some("y".to_owned())));
    assert_eq!(split_name("d.npy"), ("d.npy".into(), None));
    assert!(matches!(FileFormat::of(Path::new("d.txt")), Err(Error { problem: FileProblem::Extension, .. })));
}

/// A small file must not need much memory: arrays that share bytes, and bytes that become words.
#[test]
fn memory_bombs_are_refused() {
    let header = |count: usize, end: usize| -> String {
        let one = |k| format!("\"a{k}\":{{\"dtype\":\"U8\",\"shape\":[{end}],\"data_offsets\":[0,{end}]}}");
        format!("{{{}}}", (0..count).map(one).collect::<Vec<_>>().join(","))
    };
    let file = |header: String, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes.resize(bytes.len() + data, 1);
        bytes
    };
    assert!(safetensors::parse(&file(header(1, 100), 100)).is_ok());
    let shared = safetensors::parse(&file(header(2, 100), 100));
    assert!(shared.is_err_and(|e| e.to_string().contains("shares bytes")));
    let content = npy("|u1", "1000,", &[7; 1000]);
    assert_eq!(npy::header(&content).unwrap().memory(), Some(8000), "a thousand bytes are eight thousand here");
    let letters = npy("<U1", "1000,", &b"x\0\0\0".repeat(1000));
    let taken = 1000 * (size_of::<String>() + 4);
    assert_eq!(npy::header(&letters).unwrap().memory(), Some(taken), "a letter is a text here");
    assert!(npy::parse(&letters).is_ok_and(|array| array.memory() <= taken));
}

/// A ZIP archive with deflated content. `unpacked` is the declared size.
fn deflated(content: &[u8], unpacked: usize) -> Vec<u8> {
    let mut bytes = npz::write(&[("x", miniz_oxide::deflate::compress_to_vec(content, 1))]);
    let directory = bytes.len() - 22 - 46 - 5;
    for (method, checksum, size) in [(8, 14, 22), (directory + 10, directory + 16, directory + 24)] {
        bytes[method] = 8;
        bytes[size..size + 4].copy_from_slice(&(unpacked as u32).to_le_bytes());
        bytes[checksum..checksum + 4].copy_from_slice(&crc32fast::hash(content).to_le_bytes());
    }
    bytes
}

/// The header of an array decides before the array is inflated.
#[test]
fn compressed_arrays_are_measured_before_they_are_inflated() {
    let rows = npy("<f8", "1000, 100", &[0; 800_000]);
    let archive = deflated(&rows, rows.len());
    assert!(archive.len() < rows.len() / 64, "well compressed");
    assert_eq!(parse_table(FileFormat::Npz, &archive, None).unwrap().rows, 1000);
    let bytes = npy("|u1", "12000000,", &vec![0; 12_000_000]);
    let said = npz::parse(&deflated(&bytes, bytes.len())).unwrap_err().to_string();
    assert!(said.contains("too much for a file of") && said.contains("savez"), "{said}");
    // What the header, the archive and the compressed bytes declare must be the same.
    let short = npy("|u1", "10,", &vec![0; 1000]);
    let said = npz::parse(&deflated(&short, short.len())).unwrap_err().to_string();
    assert!(said.contains("another number of bytes"), "{said}");
    for declared in [rows.len() - 8, rows.len() + 8, u32::MAX as usize - 1] {
        assert!(npz::parse(&deflated(&rows, declared)).is_err(), "{declared}");
    }
    let mut longer = rows.clone();
    longer.extend([0; 8]);
    assert!(npz::parse(&deflated(&longer, rows.len())).is_err(), "more bytes than declared");
}

#[test]
fn two_arrays_or_columns_of_one_name_are_an_error() {
    let array = || npy::write_doubles(&[1, 1], &[1.0]);
    let twice = npz::parse(&npz::write(&[("x", array()), ("y", array()), ("x", array())]));
    assert_eq!(twice.unwrap_err(), FileProblem::Duplicate { what: "arrays", name: "x".into() });
    let tensor = "{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}";
    let file = |header: String| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.bytes());
        bytes.resize(bytes.len() + 2, 0);
        bytes
    };
    assert!(safetensors::parse(&file(format!("{{\"x\":{tensor}}}"))).is_ok());
    for header in [format!("{{\"x\":{tensor},\"x\":{tensor}}}"), format!("{{\"\\u0078\":{tensor},\"x\":{tensor}}}")] {
        let twice = safetensors::parse(&file(header)).unwrap_err();
        assert_eq!(twice, FileProblem::Duplicate { what: "arrays", name: "x".into() });
    }
    let shape = tensor.replace("\"shape\"", "\"shape\":[2],\"shape\"");
    assert!(safetensors::parse(&file(format!("{{\"x\":{shape}}}"))).is_err(), "a field twice");
    let metadata = "\"__metadata__\":{\"a\":\"b\"}";
    assert!(safetensors::parse(&file(format!("{{{metadata},{metadata},\"x\":{tensor}}}"))).is_err());
    let columns = parse_table(FileFormat::Csv, b"a,kind,kind\n1,x,y\n", Some("kind")).unwrap_err();
    assert_eq!(columns, FileProblem::Duplicate { what: "columns", name: "kind".into() });
}

/// Names and values of a file are quoted in errors without what a terminal obeys.
/// A heading without an end is refused before anything quotes it.
#[test]
fn headings_end() {
    let long = "x".repeat(5000);
    for (format, text) in [
        (FileFormat::Csv, format!("a,\"b{long}\n1,2\n3,4\n")),
        (FileFormat::Csv, format!("a,b{long},c\n1,2,0\n3,4,1\n")),
        (FileFormat::JsonLines, format!("{{\"a\": 1, \"b{long}\": 2}}\n{{\"a\": 1}}\n")),
    ] {
        let said = parse_table(format, text.as_bytes(), Some("missing")).unwrap_err().to_string();
        assert!(said.contains("column 2: the field has more than 4096 bytes") && said.len() < 200, "{said:.300}");
    }
    let (name, rows) = ("x".repeat(4096), "1,2\n".repeat(4));
    assert_eq!(parse_table(FileFormat::Csv, format!("a,{name}\n{rows}").as_bytes(), None).unwrap().rows, 4);
}

#[test]
fn what_a_file_says_does_nothing_to_a_terminal() {
    let bad = "\x1b]52;c;cm0gLXJm\x07\u{9b}2J\u{202e}";
    let doubles = || npy::write_doubles(&[1], &[0.5]);
    let escaped = bad.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect::<String>();
    let header = format!("{{\"{escaped}\":{{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]}}}}");
    let mut tensors = (header.len() as u64).to_le_bytes().to_vec();
    tensors.extend(header.bytes());
    let csv = |text: String| text.into_bytes();
    let cases: Vec<(FileFormat, Vec<u8>, Option<&str>)> = vec![
        (FileFormat::Npy, npy(bad, "3,", &[]), None),
        (FileFormat::Npz, npz::write(&[(bad, doubles())]), None),
        (FileFormat::Npz, npz::write(&[(bad, doubles()), (bad, doubles())]), None),
        (FileFormat::Npz, npz::write(&[("x", npy::write_doubles(&[1, 1], &[0.5])), (bad, doubles())]), Some(bad)),
        (FileFormat::Safetensors, tensors, None),
        (FileFormat::Csv, csv(format!("a,{bad}\n1,{bad}\n")), None),
        (FileFormat::Csv, csv(format!("a,{bad}\n1,x\n")), Some("missing")),
        (FileFormat::Csv, csv(format!("a,{bad}\n1,\n")), Some(bad)),
        (FileFormat::Csv, csv(format!("a,{bad},{bad}\n1,x,y\n")), Some(bad)),
    ];
    for (k, (format, bytes, label)) in cases.into_iter().enumerate() {
        let problem = parse_table(format, &bytes, label).unwrap_err();
        let error = Error { path: "rows".into(), problem }.to_string();
        assert!(!error.contains(['\x1b', '\x07', '\u{9b}', '\u{202e}']), "{k}: {error:?}");
        assert!(error.contains("\u{fffd}]52"), "{k}: the name is quoted: {error:?}");
    }
}

/// Weights of rows are taken if they are asked for, and are no features.
#[test]
fn weights_of_rows_are_read() {
    let asked = |label: Option<&str>, weight: &str| Options {
        label: label.map(str::to_owned),
        weight: Some(weight.to_owned()),
        ..Options::default()
    };
    let text = b"a,w,kind\n1,0.5,cat\n2,3,dog\n";
    let table = parse(FileFormat::Csv, text, &asked(Some("kind"), "w")).unwrap();
    assert_eq!((&table.values[..], table.weights.clone()), (&[1.0, 2.0][..], Some(vec![0.5, 3.0])));
    assert_eq!((table.weight_name.as_deref(), table.names()), (Some("w"), Some(vec!["a".to_owned()])));
    let by_number = parse(FileFormat::Csv, b"1,0.5\n2,3\n", &asked(None, "2")).unwrap();
    assert_eq!((by_number.values, by_number.weights), (vec![1.0, 2.0], Some(vec![0.5, 3.0])));
    // Without being asked for, a column of this name is a feature like others.
    assert_eq!(parse_table(FileFormat::Csv, text, Some("kind")).unwrap().weights, None);
    let both = parse(FileFormat::Csv, text, &asked(Some("w"), "w")).unwrap_err();
    assert_eq!(both, FileProblem::LabelAndWeight { column: "w".into() });
    for (text, field) in [(&b"a,w\n1,0.5\n2,\n"[..], ""), (b"a,w\n1,0.5\n2,heavy\n", "heavy")] {
        let wrong = parse(FileFormat::Csv, text, &asked(None, "w")).unwrap_err();
        assert_eq!(wrong, FileProblem::Weight { row: 2, column: "w".into(), text: field.into() });
    }
    let (rows, weights) = (npy::write_doubles(&[2, 1], &[1.0, 2.0]), npy::write_doubles(&[2], &[0.5, 3.0]));
    let several = npz::write(&[("x", rows.clone()), ("w", weights.clone())]);
    assert_eq!(parse(FileFormat::Npz, &several, &asked(None, "w")).unwrap().weights, Some(vec![0.5, 3.0]));
    assert!(parse(FileFormat::Npz, &several, &asked(None, "v")).is_err());
    let advice = parse(FileFormat::Npy, &rows, &asked(None, "w")).unwrap_err().to_string();
    assert!(advice.contains("--sample-weight"), "{advice}");
}

#[test]
fn weights_come_in_files_of_their_own() {
    let read = |format, bytes: &[u8], name: Option<&str>| {
        parse_weights(format, bytes, name, &Options::default()).map(|(weights, _)| weights)
    };
    let weights = npy::write_doubles(&[2], &[0.5, 3.0]);
    assert_eq!(read(FileFormat::Npy, &weights, None), Ok(vec![0.5, 3.0]));
    assert_eq!(read(FileFormat::Npy, &npy::write_doubles(&[2, 1], &[0.5, 3.0]), None), Ok(vec![0.5, 3.0]));
    assert!(read(FileFormat::Npy, &npy::write_doubles(&[1, 2], &[0.5, 3.0]), None).is_err());
    let several = npz::write(&[("a", weights.clone()), ("weights", npy::write_doubles(&[2], &[1.0, 2.0]))]);
    assert_eq!(read(FileFormat::Npz, &several, None), Ok(vec![1.0, 2.0]));
    assert_eq!(read(FileFormat::Npz, &several, Some("a")), Ok(vec![0.5, 3.0]));
    assert!(read(FileFormat::Npz, &several, Some("b")).is_err());
    for text in [&b"0.5\n3\n"[..], b"weight\n0.5\n3\n"] {
        assert_eq!(read(FileFormat::Csv, text, None), Ok(vec![0.5, 3.0]));
    }
    assert_eq!(read(FileFormat::Csv, b"id,w\n1,0.5\n2,3\n", Some("w")), Ok(vec![0.5, 3.0]));
    let unclear = read(FileFormat::Csv, b"id,w\n1,0.5\n2,3\n", None).unwrap_err().to_string();
    assert!(unclear.contains("FILE#NAME"), "{unclear}");
    assert!(read(FileFormat::Csv, b"0.5\nx\n", None).is_err());
}
