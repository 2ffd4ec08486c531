//! The readers of all forms of data sets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod common;
mod tables;

use hetal_features::dataset::{Content, Dataset, DatasetFormat, Sample, SampleColumns};
use hetal_tables::Encoding;
use parquet::basic::Compression;
use parquet::file::properties::WriterVersion;
use std::io::Write;
use std::path::Path;

fn sizes(dataset: &Dataset) -> [usize; 3] {
    dataset.parts.each_ref().map(Vec::len)
}

fn write(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn text(sample: &Sample) -> String {
    match sample.read().unwrap() {
        Content::Text(text) => text,
        Content::Picture(_) => panic!("{} is a picture", sample.name),
    }
}

fn pixels(sample: &Sample) -> (usize, usize, Vec<u8>) {
    match sample.read().unwrap() {
        Content::Picture(picture) => (picture.width(), picture.height(), picture.pixels().to_vec()),
        Content::Text(_) => panic!("{} is a text", sample.name),
    }
}

#[test]
fn folders_of_classes_and_of_parts() {
    let folder = tempfile::tempdir().unwrap();
    for class in ["cat", "dog"] {
        (0..10).for_each(|i| write(folder.path(), &format!("{class}/{i}.txt"), format!("{class} number {i}")));
        write(folder.path(), &format!("{class}/.hidden.txt"), "no sample");
        write(folder.path(), &format!("{class}/notes.md"), "no sample");
    }
    let dataset = Dataset::open(folder.path(), &DatasetFormat::Folders, 3).unwrap();
    assert_eq!((sizes(&dataset), &dataset.classes[..]), ([14, 2, 4], &["cat".to_owned(), "dog".to_owned()][..]));
    assert!(dataset.is_text());
    for sample in dataset.samples() {
        assert!(text(sample).starts_with(&dataset.classes[sample.label]), "{}", sample.name);
    }
    // The same from wherever it is seen: samples are named by their place in the data set.
    assert!(dataset.samples().all(|sample| sample.name.starts_with(&dataset.classes[sample.label])));
    let mut thin = Dataset::open(folder.path(), &DatasetFormat::Folders, 3).unwrap();
    thin.subsample([6, 9, 2], 0);
    assert_eq!(sizes(&thin), [6, 2, 2]);
    assert_eq!(thin.parts[0].iter().filter(|sample| sample.label == 1).count(), 3);
    // However few are kept, no class is lost.
    (0..2).for_each(|i| write(folder.path(), &format!("rare/{i}.txt"), "rare"));
    let mut thin = Dataset::open(folder.path(), &DatasetFormat::Folders, 3).unwrap();
    thin.subsample([5, 9, 9], 0);
    assert_eq!(thin.parts[0].len(), 5);
    assert!((0..3).all(|class| thin.parts[0].iter().any(|sample| sample.label == class)));
    std::fs::remove_dir_all(folder.path().join("rare")).unwrap();
    // A class may have the name of a part.
    (0..10).for_each(|i| write(folder.path(), &format!("train/{i}.txt"), "train number 1"));
    assert_eq!(Dataset::open(folder.path(), &DatasetFormat::Folders, 3).unwrap().classes, ["cat", "dog", "train"]);
    // What lies deeper is the class's too; what is no sample is said.
    std::fs::remove_dir_all(folder.path().join("train")).unwrap();
    write(folder.path(), "dog/old/2019/a.txt", "dog of long ago");
    let deeper = Dataset::open(folder.path(), &DatasetFormat::Folders, 3).unwrap();
    assert!(deeper.samples().any(|sample| sample.name == "dog/old/2019/a.txt" && text(sample) == "dog of long ago"));
    assert!(
        deeper.notes.iter().any(|note| note.contains("ignored, because") && note.contains("cat/notes.md and 1 more"))
    );
    // With parts given nothing is moved.
    let parted = tempfile::tempdir().unwrap();
    for (part, count) in [("train", 5), ("valid", 2), ("test", 3)] {
        for class in ["a", "b"] {
            for i in 0..count {
                write(parted.path(), &format!("{part}/{class}/{i}.txt"), "x");
            }
        }
    }
    assert_eq!(sizes(&Dataset::open(parted.path(), &DatasetFormat::Folders, 3).unwrap()), [10, 4, 6]);
}

#[test]
fn folders_of_parts_by_other_names() {
    let layouts = [
        ["Train", "Validation", "Test"],
        ["training_set", "validation_set", "test_set"],
        ["TRAINING", "val", "testing"],
        ["train data", "valid", "testdata"],
    ];
    for names in layouts {
        let folder = tempfile::tempdir().unwrap();
        for (part, count) in names.into_iter().zip([5, 2, 3]) {
            for class in ["cat", "dog"] {
                (0..count).for_each(|i| write(folder.path(), &format!("{part}/{class}/{i}.txt"), "x"));
            }
        }
        let dataset = Dataset::open(folder.path(), &DatasetFormat::Folders, 3).unwrap();
        assert_eq!((sizes(&dataset), dataset.classes), ([10, 4, 6], vec!["cat".to_owned(), "dog".to_owned()]));
        // Of one part there is one folder.
        write(folder.path(), "trainset/cat/0.txt", "x");
        let error = Dataset::open(folder.path(), &DatasetFormat::Folders, 3).unwrap_err().to_string();
        assert!(error.contains("beside another folder of the same part"), "{error}");
    }
}

/// What could be a class or a part is asked about, not guessed.
#[test]
fn folders_that_could_be_parts_or_classes_are_refused() {
    let error = |folder: &Path| Dataset::open(folder, &DatasetFormat::Folders, 3).unwrap_err().to_string();
    // Parts under names that are none.
    for (one, two) in [("Trainingsbilder", "Testbilder"), ("seg_train/seg_train", "seg_test/seg_test")] {
        let folder = tempfile::tempdir().unwrap();
        for part in [one, two] {
            for class in ["cat", "dog"] {
                (0..3).for_each(|i| write(folder.path(), &format!("{part}/{class}/{i}.txt"), "x"));
            }
            write(folder.path(), &format!("{part}/readme.md"), "x");
        }
        let said = error(folder.path());
        assert!(said.contains("name the folders above them train, val and test"), "{said}");
    }
    // A class with the name of a part and folders in it.
    let folder = tempfile::tempdir().unwrap();
    for class in ["bus", "plane", "train/2019", "train/2020"] {
        (0..3).for_each(|i| write(folder.path(), &format!("{class}/{i}.txt"), "x"));
    }
    let said = error(folder.path());
    assert!(said.contains("bus, which has samples and is no part"), "{said}");
    // Classes with folders of different names are classes.
    std::fs::rename(folder.path().join("train"), folder.path().join("rail")).unwrap();
    (0..3).for_each(|i| write(folder.path(), &format!("ship/2018/{i}.txt"), "x"));
    let dataset = Dataset::open(folder.path(), &DatasetFormat::Folders, 3).unwrap();
    assert_eq!(dataset.classes, ["bus", "plane", "rail", "ship"]);
}

#[test]
fn ignored_files_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    for class in ["train/cat", "train/dog"] {
        (0..3).for_each(|i| write(folder.path(), &format!("{class}/{i}.txt"), "x"));
    }
    // Test samples without classes, a folder without samples, files here and there.
    for file in ["test/1.txt", "test/2.txt", "licences/MIT", "readme.md", "train/labels.csv", "train/cat/notes.md"] {
        write(folder.path(), file, "x");
    }
    let dataset = Dataset::open(folder.path(), &DatasetFormat::Folders, 3).unwrap();
    let note = dataset.notes.iter().find(|note| note.contains("ignored, because")).unwrap();
    assert!(note.ends_with("train/cat/notes.md and 4 more"), "{note}");
    assert_eq!(dataset.samples().count(), 6);
    // The same without parts.
    let folder = tempfile::tempdir().unwrap();
    for file in ["cat/1.txt", "dog/1.txt", "readme.md", "stray.png"] {
        write(folder.path(), file, "x");
    }
    let dataset = Dataset::open(folder.path(), &DatasetFormat::Folders, 3).unwrap();
    assert!(dataset.notes.iter().any(|note| note.ends_with("readme.md and 1 more")), "{:?}", dataset.notes);
}

#[cfg(unix)]
#[test]
fn a_link_that_leads_back_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    ["cat", "dog"].iter().for_each(|class| write(folder.path(), &format!("{class}/1.txt"), "x"));
    std::os::unix::fs::symlink(folder.path().join("dog"), folder.path().join("dog/again")).unwrap();
    let error = Dataset::open(folder.path(), &DatasetFormat::Folders, 3).unwrap_err().to_string();
    assert!(error.contains("dog/again: is a link to a folder that the class holds already"), "{error}");
}

/// Two links in each of 28 folders lead to the next one: 2^28 paths, none of them round.
#[cfg(unix)]
#[test]
fn links_that_multiply_a_folder_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    ["cat", "dog"].iter().for_each(|class| write(folder.path(), &format!("{class}/1.txt"), "x"));
    let elsewhere = tempfile::tempdir().unwrap();
    let level = |depth: usize| elsewhere.path().join(depth.to_string());
    (0..=28).for_each(|depth| std::fs::create_dir(level(depth)).unwrap());
    for depth in 0..28 {
        for name in ["a", "b"] {
            std::os::unix::fs::symlink(level(depth + 1), level(depth).join(name)).unwrap();
        }
    }
    std::os::unix::fs::symlink(level(0), folder.path().join("dog/many")).unwrap();
    let error = Dataset::open(folder.path(), &DatasetFormat::Folders, 3).unwrap_err().to_string();
    assert!(error.contains("is a link to a folder that the class holds already"), "{error}");
}

fn columns(content: &str) -> DatasetFormat {
    DatasetFormat::Table(SampleColumns {
        content: content.to_owned(),
        files: content == "path",
        ..SampleColumns::default()
    })
}

/// What is not guessed of a table is said: its encoding, its delimiter, that it has no heading.
#[test]
fn tables_are_read_as_they_are_described() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.csv");
    std::fs::write(&path, b"caf\xe9 noir, please|ordre\nstop|fin\n").unwrap();
    let open = |encoding| {
        let (content, label) = ("1".to_owned(), "2".to_owned());
        let encoding = Encoding::named(encoding).unwrap();
        let columns = SampleColumns { content, files: false, label, encoding, header: false, delimiter: Some(b'|') };
        Dataset::open(&path, &DatasetFormat::Table(columns), 0)
    };
    let data = open("latin1").unwrap();
    assert_eq!(data.classes, ["fin", "ordre"]);
    let mut texts: Vec<_> = data.samples().map(text).collect();
    texts.sort();
    assert_eq!(texts, ["caf\u{e9} noir, please", "stop"]);
    let error = open("utf-8").unwrap_err().to_string();
    assert!(error.contains("line 1, byte 3: 0xe9") && error.contains("--encoding"), "{error}");
}

#[test]
fn tables_of_three_forms_are_one_data_set() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<(String, &str)> = (0..20).map(|i| (format!("say \"{i}\", twice"), ["yes", "no"][i % 2])).collect();
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let csv: String = rows.iter().map(|(text, label)| format!("{label},{}\n", quoted(text))).collect();
    write(folder.path(), "data.csv", format!("label,text\n{csv}"));
    let tsv: String = rows.iter().map(|(text, label)| format!("{}\t{label}\n", quoted(text))).collect();
    write(folder.path(), "data.tsv", format!("text\tlabel\n{tsv}"));
    let json: String =
        rows.iter().map(|(text, label)| format!("{}\n", serde_json::json!({"text": text, "label": label}))).collect();
    write(folder.path(), "data.jsonl", &json);
    write(folder.path(), "marked.jsonl", format!("\u{feff}{json}"));
    let european: String = rows.iter().map(|(text, label)| format!("{label};{}\n", quoted(text))).collect();
    write(folder.path(), "european.csv", format!("\u{feff}label;text\n{european}"));
    for name in ["data.csv", "european.csv", "data.tsv", "data.jsonl", "marked.jsonl"] {
        let dataset = Dataset::open(&folder.path().join(name), &columns("text"), 0).unwrap();
        let mut texts: Vec<(String, &str)> =
            dataset.samples().map(|sample| (text(sample), dataset.classes[sample.label].as_str())).collect();
        let mut expected = rows.clone();
        texts.sort();
        expected.sort();
        assert_eq!((texts, sizes(&dataset)), (expected, [14, 2, 4]), "{name}");
    }
}

/// A row of a table whose every fifth text is missing.
fn assert_row(row: usize, sample: &Sample) {
    match sample.read() {
        Ok(Content::Text(text)) => assert_eq!(text, format!("text {row}")),
        Err(error) => assert!(row % 5 == 4 && error.to_string().contains("empty"), "{error}"),
        Ok(Content::Picture(_)) => panic!("{} is a picture", sample.name),
    }
}

#[test]
fn parquet_tables() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.parquet");
    let labels = [
        ("binary label (UTF8)", ["class 0", "class 1"]),
        ("binary label", ["class 0", "class 1"]),
        ("boolean label", ["false", "true"]),
        ("int32 label", ["-1", "-2"]),
        ("int32 label (UINT_32)", ["4294967295", "4294967294"]),
        ("int64 label (INTEGER(64,false))", ["18446744073709551615", "18446744073709551614"]),
        ("int64 label (INTEGER(64,true))", ["-1", "-2"]),
        ("float label", ["0.0", "0.5"]),
        ("double label", ["0.0", "0.5"]),
    ];
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            for (dictionary, (label, classes)) in [true, false].into_iter().flat_map(|d| labels.map(|label| (d, label)))
            {
                tables::write_parquet(&path, tables::properties(compression, version, dictionary), 100, label);
                let dataset = Dataset::open(&path, &columns("text"), 0).unwrap();
                assert_eq!(sizes(&dataset), [70, 10, 20], "{label}");
                for sample in dataset.samples() {
                    let row: usize = sample.name.strip_prefix("data.parquet row ").unwrap().parse().unwrap();
                    let row = row - 1;
                    assert_eq!(dataset.classes[sample.label], classes[row % 2]);
                    assert_row(row, sample);
                }
            }
        }
    }
}

/// Numbers whose bytes are far from each other.
#[test]
fn parquet_tables_byte_by_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.parquet");
    let labels = [
        ("float label", ["0.0", "0.5"]),
        ("double label", ["0.0", "0.5"]),
        ("int32 label", ["-1", "-2"]),
        ("int64 label", ["-1", "-2"]),
    ];
    for (label, classes) in labels {
        tables::write_parquet(&path, tables::byte_by_byte(), 100, label);
        let dataset = Dataset::open(&path, &columns("text"), 0).unwrap();
        assert_eq!(sizes(&dataset), [70, 10, 20], "{label}");
        for sample in dataset.samples() {
            let row = sample.name.rsplit(' ').next().unwrap().parse::<usize>().unwrap() - 1;
            assert_eq!(dataset.classes[sample.label], classes[row % 2], "{label}");
        }
    }
}

#[test]
fn tables_of_parts_by_other_names() {
    let folder = tempfile::tempdir().unwrap();
    for (name, rows) in [("Train.csv", 3), ("validation_set.csv", 2), ("TEST.csv", 1)] {
        write(folder.path(), name, format!("text,label\n{}", "play,a\nstop,b\n".repeat(rows)));
    }
    assert_eq!(DatasetFormat::detect(folder.path(), SampleColumns::default()), columns("text"));
    assert_eq!(sizes(&Dataset::open(folder.path(), &columns("text"), 0).unwrap()), [6, 4, 2]);
    write(folder.path(), "test_data.csv", "text,label\nplay,a\n");
    let error = Dataset::open(folder.path(), &columns("text"), 0).unwrap_err().to_string();
    assert!(error.contains("holds TEST.csv and test_data.csv, tables of one part"), "{error}");
}

/// A table beside folders of classes may describe them. Of two tables for one part, neither may be
/// lost.
#[test]
fn tables_beside_classes_and_beside_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let detected = || DatasetFormat::detect(folder.path(), SampleColumns::default());
    write(folder.path(), "training_data.csv", "text,label\nplay,a\nstop,b\n");
    write(folder.path(), "notes/read me.txt", "a folder beside a table");
    assert_eq!(detected(), columns("text"));
    write(folder.path(), "cats/1.txt", "miaow");
    assert_eq!(detected(), DatasetFormat::Folders);
    let pictures = SampleColumns { content: "path".to_owned(), files: true, ..SampleColumns::default() };
    assert_eq!(DatasetFormat::detect(folder.path(), pictures), columns("path"));
    std::fs::remove_dir_all(folder.path().join("cats")).unwrap();
    write(folder.path(), "train/cats/1.txt", "miaow");
    assert_eq!(detected(), DatasetFormat::Folders);
    std::fs::rename(folder.path().join("training_data.csv"), folder.path().join("train.csv")).unwrap();
    assert_eq!(detected(), columns("text"));
    write(folder.path(), "train.jsonl", r#"{"text": "play", "label": "a"}"#);
    assert_eq!(detected(), columns("text"));
    let error = Dataset::open(folder.path(), &columns("text"), 0).unwrap_err().to_string();
    assert!(error.contains("holds train.csv and train.jsonl, tables of one part"), "{error}");
}

/// Tables of 12 rows, written by other programs with their default settings and packed with snappy:
/// pyarrow 26 (two row groups), polars 2.1, duckdb 2.0 (version 2 of pages).
#[test]
fn parquet_tables_of_other_programs() {
    for writer in ["arrow", "polars", "duckdb"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(writer).with_extension("parquet");
        let dataset = Dataset::open(&path, &columns("text"), 0).unwrap();
        assert_eq!(dataset.samples().count(), 12, "{writer}");
        for sample in dataset.samples() {
            let row = sample.name.rsplit(' ').next().unwrap().parse::<usize>().unwrap() - 1;
            assert_eq!(sample.label, row % 2, "{writer}");
            assert_row(row, sample);
        }
    }
}

#[test]
fn parquet_tables_that_cannot_be_read_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.parquet");
    let properties = || tables::properties(Compression::SNAPPY, WriterVersion::PARQUET_1_0, true);
    let error = |column: &str| Dataset::open(&path, &columns(column), 0).unwrap_err().to_string();
    tables::write_parquet(&path, properties(), 10, "binary label (UTF8)");
    assert!(error("sentence").contains("no column sentence, but tags, text, label"), "{}", error("sentence"));
    assert!(error("tags").contains("column tags holds lists"), "{}", error("tags"));
    tables::write_parquet(&path, properties(), 10, "int32 label (DATE)");
    assert!(error("text").contains("column label holds dates"), "{}", error("text"));
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(error("text").contains("the file is damaged or of an unknown form"), "{}", error("text"));
    std::fs::write(&path, b"PAR1").unwrap();
    let short = error("text");
    assert!(short.contains("data.parquet: ") && short.ends_with("write it again, or save it as CSV"), "{short}");
}

#[test]
fn rows_without_a_label_are_named() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "data.csv", "text,label\nplay,a\nstop,\n");
    let error = Dataset::open(&folder.path().join("data.csv"), &columns("text"), 0).unwrap_err().to_string();
    assert!(error.contains("row 2: no label"), "{error}");
    write(folder.path(), "latin.csv", b"text,label\nplay,a\nna\xEFve,b\n");
    let error = Dataset::open(&folder.path().join("latin.csv"), &columns("text"), 0).unwrap_err().to_string();
    assert!(error.contains("save it as UTF-8") && error.contains("line 3"), "{error}");
}

#[test]
fn tables_of_pictures() {
    let folder = tempfile::tempdir().unwrap();
    common::write_png(&folder.path().join("a.png"), 1, 1, &[1, 2, 3]);
    write(folder.path(), "data.csv", "path,label\na.png,x\na.png,y\n");
    let dataset = Dataset::open(&folder.path().join("data.csv"), &columns("path"), 0).unwrap();
    assert!(dataset.samples().all(|sample| pixels(sample) == (1, 1, vec![1, 2, 3])));
}

#[test]
fn mnist() {
    let folder = tempfile::tempdir().unwrap();
    let images = |count: u8| {
        let header = [[0, 0, 8, 3], [0, 0, 0, count], [0, 0, 0, 2], [0, 0, 0, 3]].concat();
        [header, (0..count * 6).collect::<Vec<u8>>()].concat()
    };
    let labels = |count: u8| [vec![0, 0, 8, 1, 0, 0, 0, count], (0..count).map(|i| i % 10).collect()].concat();
    write(folder.path(), "train-images-idx3-ubyte", images(24));
    write(folder.path(), "train-labels-idx1-ubyte", labels(24));
    write(folder.path(), "t10k-images.idx3-ubyte", images(10));
    write(folder.path(), "t10k-labels.idx1-ubyte", labels(10));
    let dataset = Dataset::open(folder.path(), &DatasetFormat::Mnist, 0).unwrap();
    assert_eq!((sizes(&dataset), dataset.classes.len()), ([21, 3, 10], 10));
    let second = &dataset.parts[2][1];
    assert_eq!((second.label, pixels(second)), (1, (3, 2, (6..12).flat_map(|v| [v; 3]).collect())));
    // As it is downloaded: packed.
    let packed = |bytes: Vec<u8>| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&bytes).unwrap();
        encoder.finish().unwrap()
    };
    let downloads = tempfile::tempdir().unwrap();
    for (part, count) in [("train", 24), ("t10k", 10)] {
        write(downloads.path(), &format!("{part}-images-idx3-ubyte.gz"), packed(images(count)));
        write(downloads.path(), &format!("{part}-labels-idx1-ubyte.gz"), packed(labels(count)));
    }
    assert_eq!(DatasetFormat::detect(downloads.path(), SampleColumns::default()), DatasetFormat::Mnist);
    let again = Dataset::open(downloads.path(), &DatasetFormat::Mnist, 0).unwrap();
    assert_eq!((sizes(&again), pixels(&again.parts[2][1])), (sizes(&dataset), pixels(second)));
    write(folder.path(), "train-labels-idx1-ubyte", &labels(24)[..30]);
    assert!(Dataset::open(folder.path(), &DatasetFormat::Mnist, 0).unwrap_err().to_string().contains("truncated"));
    std::fs::remove_file(folder.path().join("train-labels-idx1-ubyte")).unwrap();
    assert!(Dataset::open(folder.path(), &DatasetFormat::Mnist, 0).unwrap_err().to_string().contains("train-labels"));
}

#[test]
fn cifar10() {
    let folder = tempfile::tempdir().unwrap();
    // Red 10, green 20, blue 30 everywhere, for one picture of each class.
    let record = |label: u8| [vec![label], vec![10; 1024], vec![20; 1024], vec![30; 1024]].concat();
    let batch: Vec<u8> = (0..10).flat_map(record).collect();
    (1..=5).for_each(|i| write(folder.path(), &format!("data_batch_{i}.bin"), &batch));
    write(folder.path(), "test_batch.bin", &batch);
    let dataset = Dataset::open(folder.path(), &DatasetFormat::Cifar10, 0).unwrap();
    assert_eq!((sizes(&dataset), dataset.classes[8].as_str()), ([43, 7, 10], "ship"));
    assert_eq!(pixels(&dataset.parts[0][0]), (32, 32, [10, 20, 30].repeat(1024)));
    write(folder.path(), "test_batch.bin", &batch[1..]);
    assert!(Dataset::open(folder.path(), &DatasetFormat::Cifar10, 0).unwrap_err().to_string().contains("3073"));
}

#[test]
fn face_masks_are_cropped() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("images")).unwrap();
    let ramp: Vec<u8> = (0..3 * 8 * 6).collect();
    common::write_png(&folder.path().join("images/a.png"), 8, 6, &ramp);
    let object = |class: &str, box_: [usize; 4]| {
        let [left, top, right, bottom] = box_;
        format!(
            "<object>\n <name>{class}</name><pose>Unspecified</pose><bndbox> <xmin>{left}</xmin><ymin>{top}</ymin>\
             <xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        )
    };
    let objects = [
        object("with_mask", [2, 1, 5, 3]),
        object("without_mask", [0, 0, 99, 99]),
        object("without_mask", [9, 9, 12, 12]),
    ];
    let text = format!("<annotation><filename>a.png</filename>{}</annotation>", objects.concat());
    write(folder.path(), "annotations/a.xml", text);
    let dataset = Dataset::open(folder.path(), &DatasetFormat::FaceMask, 0).unwrap();
    let sample = |end: &str| dataset.samples().find(|sample| sample.name.ends_with(end)).unwrap();
    let (width, height, values) = pixels(sample("face 1"));
    assert_eq!((width, height, values[0]), (3, 2, 3 * (8 + 2)));
    assert_eq!(pixels(sample("face 2")).2, ramp);
    assert!(sample("face 3").read().err().unwrap().to_string().contains("outside"));
}

#[test]
fn medmnist_archives() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("derma.npz");
    let array = |shape: &str, bytes: Vec<u8>| {
        let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({shape}), }}\n");
        [b"\x93NUMPY\x01\x00".to_vec(), (header.len() as u16).to_le_bytes().to_vec(), header.into_bytes(), bytes]
            .concat()
    };
    let mut archive = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    for (part, count) in [("train", 7), ("val", 2), ("test", 3)] {
        let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
        let images = array(&format!("{count}, 2, 2, 3"), (0..count as u8 * 12).collect());
        let labels = array(&format!("{count}, 1"), (0..count as u8).collect());
        for (name, bytes) in [("images", images), ("labels", labels)] {
            archive.start_file(format!("{part}_{name}.npy"), options).unwrap();
            archive.write_all(&bytes).unwrap();
        }
    }
    archive.finish().unwrap();
    let dataset = Dataset::open(&path, &DatasetFormat::MedMnist, 0).unwrap();
    assert_eq!((sizes(&dataset), dataset.classes[4].as_str()), ([7, 2, 3], "melanoma"));
    assert_eq!(pixels(&dataset.parts[2][1]), (2, 2, (12..24).collect()));
    std::fs::write(&path, b"no archive").unwrap();
    assert!(Dataset::open(&path, &DatasetFormat::MedMnist, 0).unwrap_err().to_string().contains(".npz"));
}

#[test]
fn snips_in_three_forms() {
    let folder = tempfile::tempdir().unwrap();
    let sentences = [("PlayMusic", "play some jazz"), ("GetWeather", "is it raining")];
    let parts = [("tsv", "train", "val", "test"), ("seq", "train", "valid", "test")];
    for (form, train, val, test) in parts {
        for part in [train, val, test] {
            match form {
                "tsv" => {
                    let lines: String = sentences.iter().map(|(intent, text)| format!("{intent}\t{text}\n")).collect();
                    write(folder.path(), &format!("tsv/{part}.tsv"), lines);
                }
                _ => {
                    write(folder.path(), &format!("seq/{part}/seq.in"), sentences.map(|s| s.1).join("\n"));
                    write(folder.path(), &format!("seq/{part}/label"), sentences.map(|s| s.0).join("\n"));
                }
            }
        }
    }
    for (intent, text) in sentences {
        let sentence = serde_json::json!({"data": [{"text": &text[..4]}, {"text": &text[4..], "entity": "x"}]});
        let original = |count| serde_json::json!({ intent: vec![sentence.clone(); count] }).to_string();
        write(folder.path(), &format!("json/train_{intent}_full.json"), original(8));
        write(folder.path(), &format!("json/validate_{intent}.json"), original(2));
        // The layout of the original repository: a folder for each intent, with two training files.
        write(folder.path(), &format!("published/{intent}/train_{intent}_full.json"), original(8));
        write(folder.path(), &format!("published/{intent}/train_{intent}.json"), original(3));
        write(folder.path(), &format!("published/{intent}/validate_{intent}.json"), original(2));
    }
    let forms = [("tsv", [2, 2, 2]), ("seq", [2, 2, 2]), ("json", [14, 2, 4]), ("published", [14, 2, 4])];
    for (form, expected) in forms {
        assert_eq!(
            DatasetFormat::detect(&folder.path().join(form), SampleColumns::default()),
            DatasetFormat::Snips,
            "{form}"
        );
        let dataset = Dataset::open(&folder.path().join(form), &DatasetFormat::Snips, 0).unwrap();
        assert_eq!(sizes(&dataset), expected, "{form}");
        for sample in dataset.samples() {
            let expected = sentences.iter().find(|(intent, _)| *intent == dataset.classes[sample.label]).unwrap().1;
            assert_eq!(text(sample), expected, "{form}");
        }
    }
}
