//! Hostile bytes for everything that is read of a data set or a model: a few thousand mutations of
//! each file, or as many as `HETAL_FUZZ_RUNS` says. (`hostile.rs` has pictures and whole models.)
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;
mod tables;

use hetal_features::dataset::{Dataset, DatasetFormat, SampleColumns};
use hetal_features::fuzz_targets;
use hetal_features::picture::Picture;
use hetal_testkit::allocation::{CountingAllocator, peak_of};
use hetal_testkit::fuzz::{feed, runs};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Memory of a configuration that does not depend on its size: tables of a parser, text of an
/// error.
const CONFIGURATION: usize = 64 << 10;
/// The same for data sets: buffers of readers, and the content of a packed kilobyte.
const DATASET: usize = 4 << 20;

type Parser = Box<dyn Fn(&[u8]) -> bool>;

/// A parser that writes the bytes to a file of a data set, opens it and reads its samples.
fn opened(folder: &Path, file: &str, data: &str, format: DatasetFormat) -> Parser {
    let data = folder.join(data);
    // Overwritten, not truncated first: some file systems sync a file that is truncated and written
    // again.
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(file)).unwrap();
    Box::new(move |bytes| {
        let mut file = &file;
        file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(bytes)).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        let dataset = Dataset::open(&data, &format, 0);
        dataset.map(|dataset| dataset.samples().for_each(|sample| drop(sample.read()))).is_ok()
    })
}

fn table() -> DatasetFormat {
    DatasetFormat::Table(SampleColumns::default())
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

/// Writes MNIST's four files; returns the contents of the pictures and of the labels.
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
    // Two tensors are enough: the header is what is parsed.
    let header = br#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"F16","shape":[3],"data_offsets":[16,22]}}"#;
    let weights = [&(header.len() as u64).to_le_bytes()[..], header, &[1; 22]].concat();
    vec![
        ("sentence configuration", file_of(mpnet, "config.json"), fuzz_targets::sentence_config),
        ("ViT configuration", file_of(vit, "config.json"), fuzz_targets::vit_config),
        ("preprocessor", json(preprocessor), fuzz_targets::preprocessor),
        ("modules", json(modules), fuzz_targets::modules),
        ("pooling", json(pooling), fuzz_targets::pooling),
        ("manifest", json(manifest), fuzz_targets::manifest),
        ("weights", vec![weights], fuzz_targets::weights),
    ]
}

/// Fuzzes one target: all samples are accepted, some mutations are accepted and some are not.
fn hold(name: &str, samples: &[Vec<u8>], memory: usize, few: usize, parser: impl Fn(&[u8]) -> bool) {
    assert!(samples.iter().all(|sample| parser(sample)), "a {name} that is right is not understood");
    let runs = runs(few);
    let understood = feed(name, samples, 11, runs, memory, parser);
    println!("{name}: {runs} mutations, {understood} understood");
    assert!(understood > 0 && understood < runs, "{name}: {understood} of {runs}");
}

/// Held by each test: tests at the same time would count each other's memory.
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
}

/// The memory budget of a small table (16 MiB) bounds the whole data set, up to the last accepted
/// row. Buffers of the parser come on top.
#[test]
fn tables_take_what_is_promised() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.parquet");
    for label in ["boolean label", "binary label (UTF8)", "int64 label"] {
        let mut peaks = Vec::new();
        for rows in (20_000..).step_by(4_000) {
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
        println!("{label}: {most} bytes for {} rows", 16_000 + 4_000 * peaks.len());
        assert!((8 << 20..=20 << 20).contains(most), "{label}: {most}");
    }
}

#[test]
fn hostile_archives() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let archives = [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated].map(archive);
    hold("npz archive", &archives, DATASET, 4_000, opened(folder.path(), "x.npz", "x.npz", DatasetFormat::MedMnist));
    let batch = cifar10(folder.path());
    hold(
        "CIFAR-10 batch",
        &[batch],
        DATASET,
        2_000,
        opened(folder.path(), "data_batch_3.bin", "", DatasetFormat::Cifar10),
    );
}

/// A PNG picture of one pixel with a colour profile and a text that unpack to 64 MiB each.
fn png_bomb() -> Vec<u8> {
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&vec![0; 64 << 20]).unwrap();
    let chunk = [b"name\0\0".to_vec(), packed.finish().unwrap()].concat();
    let mut bytes = Vec::new();
    let mut writer = png::Encoder::new(&mut bytes, 1, 1).write_header().unwrap();
    writer.write_chunk(png::chunk::iCCP, &chunk).unwrap();
    writer.write_chunk(png::chunk::zTXt, &chunk).unwrap();
    writer.write_image_data(&[7]).unwrap();
    drop(writer);
    bytes
}

#[test]
fn unused_parts_of_pictures_are_not_unpacked() {
    let _alone = alone();
    let bytes = png_bomb();
    assert!(bytes.len() < 2 << 20);
    let peak = peak_of(|| assert_eq!(Picture::decode(&bytes).unwrap().pixels(), [7; 3]));
    assert!(peak < 4 << 20, "{peak} bytes");
}

/// Headers that announce 169 million pixels, with next to nothing behind them.
#[test]
fn announced_pixels_take_no_memory() {
    let _alone = alone();
    let mut announced = Vec::new();
    let mut encoder = png::Encoder::new(&mut announced, 13_000, 13_000);
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().unwrap();
    writer.write_chunk(png::chunk::IDAT, &[0x78, 0x9C]).unwrap();
    drop(writer);
    let mut jpeg = include_bytes!("golden/sideways.jpg").to_vec();
    let frame = jpeg.windows(2).position(|two| matches!(two, [0xFF, 0xC0 | 0xC2])).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[13_000u16.to_be_bytes(), 13_000u16.to_be_bytes()].concat());
    for bytes in [announced, jpeg] {
        let peak = peak_of(|| {
            let error = Picture::decode(&bytes).unwrap_err();
            assert!(error.contains("cannot hold 13000 x 13000 pixels"), "{error}");
        });
        assert!(peak < 4 << 20, "{peak} bytes");
    }
}

/// Arrays are bounded by the size of their archive before they are unpacked.
#[test]
fn packed_zeros_are_not_unpacked() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npz");
    let mut archive = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (104857600,), }\n";
    archive.start_file("train_labels.npy", zip::write::SimpleFileOptions::default()).unwrap();
    archive.write_all(b"\x93NUMPY\x01\x00").unwrap();
    archive.write_all(&(header.len() as u16).to_le_bytes()).unwrap();
    archive.write_all(header.as_bytes()).unwrap();
    (0..100).for_each(|_| archive.write_all(&[0; 1 << 20]).unwrap());
    archive.finish().unwrap();
    let peak = peak_of(|| {
        let error = Dataset::open(&path, &DatasetFormat::MedMnist, 0).unwrap_err().to_string();
        assert!(error.contains("at most 67108864 are read"), "{error}");
    });
    assert!(peak < 4 << 20, "{peak} bytes");
    let path = folder.path().join("train-images-idx3-ubyte.gz");
    let file = std::fs::File::create(&path).unwrap();
    let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    (0..80).for_each(|_| packed.write_all(&[0; 1 << 20]).unwrap());
    packed.finish().unwrap();
    std::fs::write(folder.path().join("train-labels-idx1-ubyte"), "").unwrap();
    let error = Dataset::open(folder.path(), &DatasetFormat::Mnist, 0).unwrap_err().to_string();
    assert!(error.contains("cannot be unpacked: has more than 67108864 bytes"), "{error}");
}

/// The first line decides what a table is, and may have any length.
#[test]
fn a_heading_without_end_takes_no_memory() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("train.tsv"), vec![b'x'; 40 << 20]).unwrap();
    let peak = peak_of(|| drop(DatasetFormat::detect(folder.path(), SampleColumns::default())));
    assert!(peak < 8 << 20, "{peak} bytes");
}

#[test]
fn hostile_digits() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (images, labels) = mnist(folder.path());
    let name = "train-images-idx3-ubyte";
    hold("idx3", std::slice::from_ref(&images), DATASET, 4_000, opened(folder.path(), name, "", DatasetFormat::Mnist));
    std::fs::write(folder.path().join(name), images).unwrap();
    hold("idx1", &[labels], DATASET, 4_000, opened(folder.path(), "train-labels-idx1-ubyte", "", DatasetFormat::Mnist));
}

#[test]
fn hostile_boxes_and_intents() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let boxes = faces(folder.path());
    let parser = opened(folder.path(), "annotations/a.xml", "", DatasetFormat::FaceMask);
    hold("Pascal-VOC boxes", &[boxes], DATASET, 4_000, parser);
    for (data, file, sample) in snips(folder.path()) {
        hold(file, &[sample], DATASET, 4_000, opened(folder.path(), file, data, DatasetFormat::Snips));
    }
}
