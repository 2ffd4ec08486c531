//! Hostile bytes for everything that is read from a data set or beside a model: a few seconds of them here, as many of each as
//! `HETAL_FUZZ_RUNS` says where it is set. (`hostile.rs` has pictures and whole models.)
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;
mod tables;

use hetal_features::dataset::{Columns, Dataset, Format};
use hetal_features::parsers;
use hetal_testkit::allocation::{Counting, peak_of};
use hetal_testkit::fuzz::{feed, runs};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Beyond what grows with the input: tables of a parser, text of an error.
const CONFIGURATION: usize = 64 << 10;
/// The same of data sets: buffers of readers, and what a packed kilobyte can hold.
const DATASET: usize = 4 << 20;

type Parser = Box<dyn Fn(&[u8]) -> bool>;

/// Opens a data set of which the bytes are one file, and reads its samples.
fn opened(folder: &Path, file: &str, data: &str, format: Format) -> Parser {
    let data = folder.join(data);
    // Written over, not anew: some file systems take a file that is cut to nothing and written again to the disk at once.
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(file)).unwrap();
    Box::new(move |bytes| {
        let mut file = &file;
        file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(bytes)).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        let dataset = Dataset::open(&data, &format, 0);
        dataset.map(|dataset| dataset.samples().for_each(|sample| drop(sample.read()))).is_ok()
    })
}

fn table() -> Format {
    Format::Table(Columns::default())
}

/// Tables: file, samples.
fn tables() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let csv = "label,text\nyes,\"say \"\"a\"\", twice\"\nno,stop\nyes,\"two\nlines\"\nno,\n";
    let json = "{\"text\": \"play\", \"label\": \"a\"}\n\n{\"label\": 7, \"text\": null}\n{\"text\": \"x\", \"label\": \"b\"}\n";
    vec![
        ("t.csv", vec![csv.as_bytes().to_vec()]),
        ("t.tsv", vec![csv.replace(',', "\t").into_bytes()]),
        ("t.jsonl", vec![json.as_bytes().to_vec()]),
    ]
}

/// Parquet tables in the forms that writers have.
fn parquet_tables() -> Vec<Vec<u8>> {
    use parquet::basic::Compression;
    use parquet::file::properties::WriterVersion;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    let mut tables = Vec::new();
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            let labels = ["binary label (UTF8)", "int32 label", "double label", "boolean label"];
            for (dictionary, label) in [true, false].into_iter().flat_map(|d| labels.map(|label| (d, label))) {
                tables::write_parquet(&path, tables::properties(compression, version, dictionary), 24, label);
                tables.push(std::fs::read(&path).unwrap());
            }
        }
    }
    tables::write_parquet(&path, tables::byte_by_byte(), 24, "float label");
    tables.push(std::fs::read(&path).unwrap());
    tables
}

/// An archive of MedMNIST's form, packed or not.
fn archive(method: zip::CompressionMethod) -> Vec<u8> {
    let array = |shape: &str, bytes: Vec<u8>| {
        let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({shape}), }}\n");
        [b"\x93NUMPY\x01\x00".to_vec(), (header.len() as u16).to_le_bytes().to_vec(), header.into_bytes(), bytes]
            .concat()
    };
    let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(method);
    for part in ["train", "val", "test"] {
        for (name, bytes) in
            [("images", array("3, 2, 2, 3", (0..36).collect())), ("labels", array("3, 1", vec![0, 1, 2]))]
        {
            archive.start_file(format!("{part}_{name}.npy"), options).unwrap();
            archive.write_all(&bytes).unwrap();
        }
    }
    archive.finish().unwrap().into_inner()
}

/// MNIST's four files: their contents, in the order train-images, train-labels, t10k-images, t10k-labels.
fn mnist(folder: &Path) -> (Vec<u8>, Vec<u8>) {
    let images = [[0, 0, 8, 3], [0, 0, 0, 20], [0, 0, 0, 2], [0, 0, 0, 3]].concat();
    let images = [images, vec![7; 120]].concat();
    let labels = [vec![0, 0, 8, 1, 0, 0, 0, 20], (0..20).map(|i| i % 10).collect()].concat();
    for part in ["train", "t10k"] {
        std::fs::write(folder.join(format!("{part}-images-idx3-ubyte")), &images).unwrap();
        std::fs::write(folder.join(format!("{part}-labels-idx1-ubyte")), &labels).unwrap();
    }
    (images, labels)
}

fn cifar10(folder: &Path) -> Vec<u8> {
    let batch: Vec<u8> = [1, 9].into_iter().flat_map(|label| [vec![label], vec![10; 3072]].concat()).collect();
    let names = (1..=5).map(|i| format!("data_batch_{i}.bin")).chain(["test_batch.bin".to_owned()]);
    names.for_each(|name| std::fs::write(folder.join(name), &batch).unwrap());
    batch
}

fn faces(folder: &Path) -> Vec<u8> {
    ["images", "annotations"].iter().for_each(|name| std::fs::create_dir(folder.join(name)).unwrap());
    common::write_png(&folder.join("images/a.png"), 8, 6, &[9; 3 * 8 * 6]);
    let object = |class: &str, right: usize| {
        format!(
            "<object><name>{class}</name><bndbox><xmin>2</xmin><ymin>1</ymin><xmax>{right}</xmax><ymax>4</ymax></bndbox></object>"
        )
    };
    let objects = [object("with_mask", 5), object("without_mask", 99)].concat();
    format!("<annotation><filename>a.png</filename>{objects}</annotation>").into_bytes()
}

/// SNIPS' three forms: the file that is mutated, its samples.
fn snips(folder: &Path) -> Vec<(&'static str, &'static str, Vec<u8>)> {
    ["json", "tsv", "seq/train"].iter().for_each(|name| std::fs::create_dir_all(folder.join(name)).unwrap());
    std::fs::write(folder.join("seq/train/label"), "A\nB\nA\n").unwrap();
    let json = r#"{"PlayMusic": [{"data": [{"text": "play "}, {"text": "jazz", "entity": "x"}]}], "B": [{"data": [{"text": "x"}]}]}"#;
    vec![
        ("json", "json/train_X.json", json.as_bytes().to_vec()),
        ("tsv", "tsv/train.tsv", b"PlayMusic\tplay some jazz\nGetWeather\tis it raining\n".to_vec()),
        ("seq", "seq/train/seq.in", b"play some jazz\nis it raining\nstop\n".to_vec()),
    ]
}

fn json(value: serde_json::Value) -> Vec<Vec<u8>> {
    vec![value.to_string().into_bytes()]
}

/// A file of a model that the tests write.
fn file_of(model: fn(&Path), name: &str) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    model(folder.path());
    vec![std::fs::read(folder.path().join(name)).unwrap()]
}

fn configurations() -> Vec<(&'static str, Vec<Vec<u8>>, fn(&[u8]) -> bool)> {
    let mpnet: fn(&Path) = |folder| common::write_sentence_model(folder, "mpnet");
    let vit: fn(&Path) = |folder| common::write_vit(folder, "");
    let preprocessor = serde_json::json!({
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "size": {"height": 224, "width": 224}, "resample": 2,
        "do_resize": true, "do_rescale": true, "rescale_factor": 0.00392156862745098, "do_normalize": true,
    });
    let modules = serde_json::json!([
        {"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1_Pooling"}, {"type": "a.Normalize", "path": ""},
    ]);
    let pooling = serde_json::json!({"word_embedding_dimension": 24, "pooling_mode_mean_tokens": true});
    let manifest = serde_json::json!({
        "version": 1,
        "model": {
            "source": "owner/name", "revision": "0123", "architecture": "mpnet", "columns": 768,
            "files": {"model.safetensors": "ab", "config.json": "cd"},
            "preprocessing": {"sentence": {"pooling": "mean", "normalise": true, "max_tokens": 384}},
        },
        "classes": ["a", "b"], "rows": {"train": 7, "val": 1, "test": 2}, "seed": 0, "samples": "ef",
        "skipped": [{"part": "train", "item": "x.png", "reason": "is empty"}], "notes": ["a note"],
    });
    // Of the weights, two tensors: what is wrong is wrong in the header.
    let header = br#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"F16","shape":[3],"data_offsets":[16,22]}}"#;
    let weights = [&(header.len() as u64).to_le_bytes()[..], header, &[1; 22]].concat();
    vec![
        ("sentence configuration", file_of(mpnet, "config.json"), parsers::sentence_config),
        ("ViT configuration", file_of(vit, "config.json"), parsers::vit_config),
        ("preprocessor", json(preprocessor), parsers::preprocessor),
        ("modules", json(modules), parsers::modules),
        ("pooling", json(pooling), parsers::pooling),
        ("manifest", json(manifest), parsers::manifest),
        ("weights", vec![weights], parsers::weights),
    ]
}

/// One target: all samples are understood, some mutations are and some are not.
fn hold(name: &str, samples: &[Vec<u8>], memory: usize, few: usize, parser: impl Fn(&[u8]) -> bool) {
    assert!(samples.iter().all(|sample| parser(sample)), "a {name} that is right is not understood");
    let runs = runs(few);
    let understood = feed(name, samples, 11, runs, memory, parser);
    println!("{name}: {runs} mutations, {understood} understood");
    assert!(understood > 0 && understood < runs, "{name}: {understood} of {runs}");
}

/// One test at a time: two would count each other's memory.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn hostile_configurations() {
    let _alone = alone();
    for (name, samples, parser) in configurations() {
        hold(name, &samples, CONFIGURATION, 20_000, parser);
    }
}

#[test]
fn hostile_tables() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    for (file, samples) in tables() {
        hold(file, &samples, DATASET, 4_000, opened(folder.path(), file, file, table()));
    }
    let file = "t.parquet";
    hold(file, &parquet_tables(), DATASET, 12_000, opened(folder.path(), file, file, table()));
}

/// What a small table may take (4 MiB) is enough for all that is made of it, up to the last row that is accepted.
#[test]
fn tables_take_what_is_promised() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    for label in ["boolean label", "binary label (UTF8)", "int64 label"] {
        let mut peaks = Vec::new();
        for rows in (1000..).step_by(250) {
            tables::write_repeated(&path, rows, label);
            assert!(std::fs::metadata(&path).unwrap().len() < 16 << 10, "{label}");
            let mut opened = None;
            let peak = peak_of(|| opened = Some(Dataset::open(&path, &table(), 0)));
            match opened.unwrap() {
                Ok(_) => peaks.push(peak),
                Err(error) => {
                    assert!(error.to_string().contains("256 times"), "{error}");
                    break;
                }
            }
        }
        let most = peaks.iter().max().unwrap();
        println!("{label}: {most} bytes for {} rows", 750 + 250 * peaks.len());
        assert!((2 << 20..=4 << 20).contains(most), "{label}: {most}");
    }
}

#[test]
fn hostile_archives() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let archives = [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated].map(archive);
    hold("npz archive", &archives, DATASET, 4_000, opened(folder.path(), "x.npz", "x.npz", Format::MedMnist));
    let batch = cifar10(folder.path());
    hold("CIFAR-10 batch", &[batch], DATASET, 2_000, opened(folder.path(), "data_batch_3.bin", "", Format::Cifar10));
}

#[test]
fn hostile_digits() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (images, labels) = mnist(folder.path());
    let name = "train-images-idx3-ubyte";
    hold("idx3", std::slice::from_ref(&images), DATASET, 4_000, opened(folder.path(), name, "", Format::Mnist));
    std::fs::write(folder.path().join(name), images).unwrap();
    hold("idx1", &[labels], DATASET, 4_000, opened(folder.path(), "train-labels-idx1-ubyte", "", Format::Mnist));
}

#[test]
fn hostile_boxes_and_intents() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let boxes = faces(folder.path());
    let parser = opened(folder.path(), "annotations/a.xml", "", Format::FaceMask);
    hold("Pascal-VOC boxes", &[boxes], DATASET, 4_000, parser);
    for (data, file, sample) in snips(folder.path()) {
        hold(file, &[sample], DATASET, 4_000, opened(folder.path(), file, data, Format::Snips));
    }
}
