//! Hostile bytes for every reader of tables. `HETAL_FUZZ_RUNS` sets the number of inputs per
//! target.
#![allow(clippy::unwrap_used)]

use hetal_tables::{
    Encoding, FileFormat, Options, Report, columnar, npy, npz, parse, parse_labels, parse_texts, safetensors,
};
use hetal_testkit::allocation::{CountingAllocator, peak_of};
use hetal_testkit::fuzz::{feed, runs};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Memory that does not grow with the input: buffers of the CSV reader and the inflater, error
/// texts.
const MEMORY: usize = 256 << 10;

/// Reads a file as features and as labels. A table that is understood has a report.
fn table(format: FileFormat, bytes: &[u8], label: Option<&str>) -> bool {
    let options = Options { label: label.map(str::to_owned), ..Options::default() };
    let features = parse(format, bytes, &options).map(|table| Report::new(&table, None).text());
    features.is_ok() | parse_labels(format, bytes, label, Some(2), &options).is_ok()
}

fn npy_file(bytes: &[u8]) -> bool {
    table(FileFormat::Npy, bytes, None)
}

fn npz_file(bytes: &[u8]) -> bool {
    table(FileFormat::Npz, bytes, None)
}

/// Wraps bytes into an archive with a valid checksum, so that mutations reach the array parser.
fn packed(bytes: &[u8]) -> bool {
    npz_file(&npz::write(&[("x", bytes.to_vec())]))
}

fn safetensors_file(bytes: &[u8]) -> bool {
    table(FileFormat::Safetensors, bytes, None)
}

fn csv_file(bytes: &[u8]) -> bool {
    table(FileFormat::Csv, bytes, Some("kind"))
        | table(FileFormat::Csv, bytes, None)
        | table(FileFormat::Tsv, bytes, None)
}

fn json_lines(bytes: &[u8]) -> bool {
    table(FileFormat::JsonLines, bytes, Some("kind")) | table(FileFormat::JsonLines, bytes, None)
}

fn utf16(bytes: &[u8]) -> bool {
    let options = Options { encoding: Encoding::Utf16, ..Options::labelled("k") };
    parse(FileFormat::Csv, bytes, &options).is_ok()
}

fn options(bytes: &[u8]) -> bool {
    let chosen = Options {
        columns: vec!["1".into(), "b".into()],
        drop: vec!["kind".into()],
        decimal_comma: true,
        delimiter: Some(b';'),
        keep_missing: true,
        ..Options::default()
    };
    let expected = Options { expected: Some(vec!["b".into(), "a".into()]), ..Options::default() };
    parse(FileFormat::Csv, bytes, &chosen).is_ok() | parse(FileFormat::Csv, bytes, &expected).is_ok()
}

fn column_file(bytes: &[u8]) -> bool {
    columnar::parse(bytes, &Options::labelled("kind")).is_ok()
}

fn column_files() -> Vec<Vec<u8>> {
    use hetal_tables::column_file::{ColumnBlock, ColumnContent, ColumnHeading, ColumnKind, Writer};
    let heading = |name: &str, kind, content| ColumnHeading {
        name: name.to_owned(),
        kind,
        is_index: false,
        content,
        example: None,
    };
    let columns = [
        heading("a", ColumnKind::Float, ColumnContent::Numbers),
        heading("kind", ColumnKind::Integer, ColumnContent::Texts),
    ];
    let mut bytes = Vec::new();
    let mut writer = Writer::new(&mut bytes, &columns).unwrap();
    let labels = (0..6).map(|k| Some((k % 2).to_string())).collect();
    writer.write(6, &[ColumnBlock::Numbers(vec![0.5; 6]), ColumnBlock::Texts(labels)]).unwrap();
    writer.finish().unwrap();
    vec![bytes]
}

fn text_columns(bytes: &[u8]) -> bool {
    parse_texts(FileFormat::Csv, bytes, &["a", "kind"], 1 << 20, &Options::default()).is_ok()
}

fn texts(bytes: &[u8]) -> bool {
    npy::parse(bytes).and_then(|array| array.labels("the array")).is_ok()
}

fn names() -> Vec<String> {
    ["jazz", "été", "a longer name"].map(str::to_owned).into()
}

fn arrays() -> Vec<Vec<u8>> {
    let mut fortran = npy::write_doubles(&[2, 3], &[1.0, -2.5, 1e300, 0.0, 0.25, 7.0]);
    let at = fortran.windows(5).position(|window| window == b"False").unwrap();
    fortran[at..at + 5].copy_from_slice(b"True ");
    vec![
        npy::write_doubles(&[2, 3], &[1.0, -2.5, 1e300, 0.0, 0.25, 8.0]),
        npy::write_integers(&[3], &[0, -1, 2]),
        fortran,
    ]
}

fn lists_of_texts() -> Vec<Vec<u8>> {
    vec![npy::write_texts(&names()), npy::write_texts(&vec!["x".to_owned(); 40])]
}

/// An archive with one deflated array: method, size and checksum are set in both headers.
fn deflated(array: &[u8], level: u8) -> Vec<u8> {
    let mut bytes = npz::write(&[("x", miniz_oxide::deflate::compress_to_vec(array, level))]);
    let directory = bytes.len() - 22 - 46 - 5;
    for (method, checksum, size) in [(8, 14, 22), (directory + 10, directory + 16, directory + 24)] {
        bytes[method] = 8;
        bytes[size..size + 4].copy_from_slice(&(array.len() as u32).to_le_bytes());
        bytes[checksum..checksum + 4].copy_from_slice(&crc32fast::hash(array).to_le_bytes());
    }
    bytes
}

fn archives() -> Vec<Vec<u8>> {
    let [features, labels] = [npy::write_doubles(&[2, 2], &[1.0; 4]), npy::write_texts(&names()[..2])];
    let zeros = deflated(&npy::write_doubles(&[4, 3], &[0.0; 12]), 6);
    vec![npz::write(&[("features", features), ("labels", labels)]), zeros]
}

fn tensors() -> Vec<Vec<u8>> {
    let metadata = [("classes".to_owned(), "a,b".to_owned())].into();
    vec![safetensors::write(&[("features", &[2, 2], &[0.5; 4]), ("y", &[2], &[0.0, 1.0])], &metadata)]
}

fn tables() -> Vec<Vec<u8>> {
    let all = [
        "a,b,kind\n1,2.5,cat\n-3,4e-1,\"dog, big\"\n",
        "1,2,7\n3,4,8\n",
        "cat\ndog\n",
        "kind\n1\n0\n",
        "a;b;kind\n1;2;True\n",
        "2019\t2020\tkind\n1\t2\tx\n",
    ];
    all.map(|text| text.as_bytes().to_vec()).into()
}

fn lines() -> Vec<Vec<u8>> {
    let all =
        ["{\"a\": 1, \"b\": 2.5, \"kind\": \"x\"}\n{\"kind\": \"y\", \"a\": true, \"b\": 0}\n", "[1, 2]\n[3, 4]\n"];
    all.map(|text| text.replace("true", "3").into_bytes()).into()
}

fn wide_texts() -> Vec<Vec<u8>> {
    let units = "a,b,k\n1,2,é\n3,4,😀\n".encode_utf16();
    vec![[0xFF, 0xFE].into_iter().chain(units.flat_map(u16::to_le_bytes)).collect()]
}

fn comma_tables() -> Vec<Vec<u8>> {
    ["a;b;kind\n1,5;2;x\n;3;y\n", "a,b\n1,2\n"].map(|text| text.as_bytes().to_vec()).into()
}

fn named_texts() -> Vec<Vec<u8>> {
    vec![b"a,kind\n\"hello, you\",greet\nbye,leave\n".to_vec()]
}

/// An array of zeros that is compressed a thousandfold: it is refused before it is inflated.
fn bomb() -> Vec<u8> {
    let shape = 16 << 20;
    let mut array = npy::write_integers(&[0], &[]);
    let header = array.len();
    let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({shape},), }}");
    array[10..10 + text.len()].copy_from_slice(text.as_bytes());
    array.resize(header + shape, 0);
    deflated(&array, 1)
}

type Target = (&'static str, Vec<Vec<u8>>, fn(&[u8]) -> bool);

/// One test for all targets, because concurrent tests would count each other's memory.
#[test]
fn hostile_bytes_are_refused_or_understood() {
    let bomb = bomb();
    let peak = peak_of(|| assert!(!npz_file(&bomb)));
    assert!(peak < 64 * bomb.len() + MEMORY, "{peak} bytes of memory for a file of {} bytes", bomb.len());
    let targets: [Target; 11] = [
        ("column file", column_files(), column_file),
        (".npy", arrays(), npy_file),
        (".npy of texts", lists_of_texts(), texts),
        (".npz", archives(), npz_file),
        (".npy in .npz", arrays(), packed),
        (".safetensors", tensors(), safetensors_file),
        ("CSV", tables(), csv_file),
        ("JSON lines", lines(), json_lines),
        ("CSV in UTF-16", wide_texts(), utf16),
        ("CSV with options", comma_tables(), options),
        ("columns of texts", named_texts(), text_columns),
    ];
    for (name, samples, parser) in targets {
        for (k, sample) in samples.iter().enumerate() {
            assert!(parser(sample), "{name} {k} is valid but was refused");
        }
        let runs = runs(10_000);
        let understood = feed(name, &samples, 12, runs, MEMORY, parser);
        println!("{name}: {runs} mutations, {understood} understood");
        // Mutations must produce valid and invalid inputs.
        assert!(understood > 0 && understood < runs, "{name}: {understood} of {runs}");
    }
}
