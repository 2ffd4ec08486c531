//! Files of all kinds that are damaged at random or made to do harm: errors, never a crash.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod common;

use hetal_features::Extractor;
use hetal_features::dataset::{Dataset, DatasetFormat, SampleColumns};
use hetal_features::picture::Picture;
use std::io::Write;
use std::path::Path;

/// Copies of `whole` with some bytes changed, cut out or cut off: the same ones in every run.
fn damaged(whole: &[u8], count: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut state = whole.len() as u64;
    let mut next = move |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below.max(1)
    };
    (0..count).map(move |_| {
        let mut bytes = whole.to_vec();
        for _ in 0..=next(4) {
            let place = next(bytes.len());
            if bytes.is_empty() {
                break;
            }
            match next(8) {
                0 => bytes.truncate(place.max(1)),
                1 => drop(bytes.drain(place..(place + next(16)).min(whole.len()).min(bytes.len()).max(place))),
                2 => bytes[place] = 0xFF,
                3 => bytes[place] = 0,
                _ => bytes[place] ^= 1 << next(8),
            }
        }
        bytes
    })
}

fn png(colour: png::ColorType) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut info = png::Info::with_size(23, 17);
    (info.color_type, info.bit_depth) = (colour, png::BitDepth::Eight);
    info.exif_metadata = Some(b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"[..].into());
    if colour == png::ColorType::Indexed {
        info.palette = Some((0..=255).flat_map(|v| [v, 255 - v, v / 2]).collect::<Vec<u8>>().into());
        info.trns = Some(vec![0, 128].into());
    }
    let channels = colour.samples();
    let mut writer = png::Encoder::with_info(&mut bytes, info).unwrap().write_header().unwrap();
    writer.write_image_data(&(0..23 * 17 * channels).map(|i| (i * 7 % 256) as u8).collect::<Vec<_>>()).unwrap();
    drop(writer);
    bytes
}

#[test]
fn pictures() {
    let wholes = [
        include_bytes!("golden/cmyk.jpg").to_vec(),
        include_bytes!("golden/sideways.jpg").to_vec(),
        png(png::ColorType::Rgba),
        png(png::ColorType::Indexed),
        png(png::ColorType::GrayscaleAlpha),
    ];
    for whole in wholes {
        let picture = Picture::decode(&whole).unwrap();
        let (mut good, mut bad) = (0, 0);
        for bytes in damaged(&whole, 4000) {
            match Picture::decode(&bytes) {
                Ok(found) => good += usize::from(found.pixels().len() == 3 * found.width() * found.height()),
                Err(reason) => bad += usize::from(!reason.is_empty()),
            }
        }
        assert_eq!(good + bad, 4000);
        assert!(bad > 100, "{} x {}: {bad} refused", picture.width(), picture.height());
    }
}

/// Opens damaged copies of a file as a data set and reads all samples of those that open.
fn open_damaged(path: &Path, format: &DatasetFormat, count: usize) {
    let whole = std::fs::read(path).unwrap();
    assert!(Dataset::open(path, format, 0).is_ok());
    let mut refused = 0;
    for bytes in damaged(&whole, count) {
        std::fs::write(path, bytes).unwrap();
        match Dataset::open(path, format, 0) {
            Ok(dataset) => dataset.samples().for_each(|sample| drop(sample.read())),
            Err(error) => {
                refused += usize::from(error.to_string().contains(path.file_name().unwrap().to_str().unwrap()))
            }
        }
    }
    assert!(refused > count / 20, "{refused} of {count} refused by name");
}

#[test]
fn archives() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("derma.npz");
    let array = |shape: &str, bytes: Vec<u8>| {
        let header = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({shape}), }}\n");
        [b"\x93NUMPY\x01\x00".to_vec(), (header.len() as u16).to_le_bytes().to_vec(), header.into_bytes(), bytes]
            .concat()
    };
    let mut archive = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    for part in ["train", "val", "test"] {
        for (name, bytes) in
            [("images", array("7, 2, 2, 3", (0..84).collect())), ("labels", array("7, 1", (0..7).collect()))]
        {
            archive.start_file(format!("{part}_{name}.npy"), zip::write::SimpleFileOptions::default()).unwrap();
            archive.write_all(&bytes).unwrap();
        }
    }
    archive.finish().unwrap();
    open_damaged(&path, &DatasetFormat::MedMnist, 1500);
}

/// A deep structure must not use up the stack of a parser that calls itself.
#[test]
fn deep_configurations() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "config.json", "tokenizer_config.json", "modules.json"] {
        common::write_sentence_model(folder.path(), "bert");
        for open in ["[", "{\"a\":"] {
            let path = folder.path().join(name);
            std::fs::write(&path, open.repeat(1 << 20)).unwrap();
            let error = Extractor::open(folder.path()).err().unwrap().to_string();
            assert!(error.contains(name), "{error}");
            let close = if open == "[" { "]" } else { "}" };
            let middle = if open == "[" { "" } else { "1" };
            let depth = 1 << 16;
            std::fs::write(&path, [open.repeat(depth), middle.to_owned(), close.repeat(depth)].concat()).unwrap();
            // Keys that are not used may hold anything.
            drop(Extractor::open(folder.path()));
            std::fs::remove_file(&path).unwrap();
        }
    }
}

/// Every file that is read must be a regular one. A pipe that is opened blocks this test.
#[cfg(target_os = "linux")]
#[test]
fn pipes_instead_of_files() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let folder = tempfile::tempdir().unwrap();
    let pipe = |name: &str| {
        let path = folder.path().join(name);
        std::fs::remove_file(&path).ok();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        path
    };
    let refused = |error: String, name: &str| {
        assert!(error.contains(name) && error.contains("is a named pipe; only regular files are read"), "{error}");
    };
    for name in ["config.json", "tokenizer.json", "model.safetensors", "modules.json", "sentence_bert_config.json"] {
        common::write_sentence_model(folder.path(), "bert");
        let path = pipe(name);
        refused(Extractor::open(folder.path()).err().unwrap().to_string(), name);
        std::fs::remove_file(path).unwrap();
    }
    #[cfg(feature = "onnx")]
    refused(Extractor::open(&pipe("model.onnx")).err().unwrap().to_string(), "model.onnx");
    refused(Picture::open(&pipe("a.png")).err().unwrap().to_string(), "a.png");
    let table = || DatasetFormat::Table(SampleColumns::default());
    for (name, format) in
        [("a.npz", DatasetFormat::MedMnist), ("a.csv", table()), ("a.jsonl", table()), ("a.parquet", table())]
    {
        refused(Dataset::open(&pipe(name), &format, 0).err().unwrap().to_string(), name);
    }
    let write = |name: &str, text: &str| {
        std::fs::create_dir_all(folder.path().join(name).parent().unwrap()).unwrap();
        std::fs::write(folder.path().join(name), text).unwrap();
    };
    write("texts/cat/1.txt", "x");
    write("texts/dog/1.txt", "x");
    pipe("texts/dog/2.txt");
    let dataset = Dataset::open(&folder.path().join("texts"), &DatasetFormat::Folders, 0).unwrap();
    let error = dataset.samples().find_map(|sample| sample.read().err()).unwrap().to_string();
    refused(error, "2.txt");
    write("intents/train/label", "a\nb\n");
    pipe("intents/train/seq.in");
    refused(Dataset::open(&folder.path().join("intents"), &DatasetFormat::Snips, 0).unwrap_err().to_string(), "seq.in");
    write("faces/images/a.png", "");
    write("faces/annotations/b.xml", "");
    pipe("faces/annotations/a.xml");
    refused(Dataset::open(&folder.path().join("faces"), &DatasetFormat::FaceMask, 0).unwrap_err().to_string(), "a.xml");
}

/// A Protocol Buffers field of bytes.
#[cfg(feature = "onnx")]
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    assert!(number < 16 && bytes.len() < 1 << 14);
    let length = [bytes.len() as u8 | 0x80, (bytes.len() >> 7) as u8];
    [&[number << 3 | 2][..], &length, bytes].concat()
}

/// A Protocol Buffers field of a small number.
#[cfg(feature = "onnx")]
fn number(number: u8, value: u8) -> Vec<u8> {
    assert!(number < 16 && value < 128);
    vec![number << 3, value]
}

/// An ONNX model that multiplies a picture of 4 x 4 pixels by a number in the file `location`.
#[cfg(feature = "onnx")]
fn onnx_with_external_weights(location: &str) -> Vec<u8> {
    let node = [field(1, b"x"), field(1, b"w"), field(2, b"y"), field(4, b"Mul")].concat();
    let entry = [field(1, b"location"), field(2, location.as_bytes())].concat();
    let tensor = [number(1, 1), number(2, 1), field(8, b"w"), field(13, &entry), number(14, 1)].concat();
    let shape: Vec<u8> = [1, 3, 4, 4].iter().flat_map(|&size| field(1, &number(1, size))).collect();
    let kind = field(2, &field(1, &[number(1, 1), field(2, &shape)].concat()));
    let value = |name: &[u8]| [field(1, name), kind.clone()].concat();
    let graph =
        [field(1, &node), field(2, b"g"), field(5, &tensor), field(11, &value(b"x")), field(12, &value(b"y"))].concat();
    [number(1, 8), field(8, &number(2, 13)), field(7, &graph)].concat()
}

/// Weights in a file beside the model are a part of its identity, and must be in a regular file.
#[cfg(all(target_os = "linux", feature = "onnx"))]
#[test]
fn external_weights_of_onnx_models() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.onnx");
    let weights = folder.path().join("weights.bin");
    std::fs::write(&model, onnx_with_external_weights("weights.bin")).unwrap();
    let open = |weight: f32| {
        std::fs::write(&weights, weight.to_le_bytes()).unwrap();
        let extractor = Extractor::open(&model).unwrap();
        assert_eq!(extractor.identity().columns, 3);
        extractor.identity().files["model.onnx: weights.bin"].clone()
    };
    assert_ne!(open(1.0), open(2.0));
    let refused = || Extractor::open(&model).err().unwrap().to_string();
    std::fs::write(&weights, [0; 3]).unwrap();
    assert!(refused().contains("model.onnx"), "{}", refused());
    std::fs::remove_file(&weights).unwrap();
    mknodat(CWD, &weights, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert!(refused().contains("weights.bin: is a named pipe"), "{}", refused());
    std::fs::write(&model, onnx_with_external_weights("/dev/zero")).unwrap();
    assert!(refused().contains("model.onnx"), "{}", refused());
}

/// The parser divides by the strides of a convolution, and panics if they are 0.
#[cfg(feature = "onnx")]
#[test]
fn an_onnx_model_whose_parser_panics_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.onnx");
    let mut bytes = include_bytes!("golden/small.onnx").to_vec();
    let strides = bytes.windows(4).position(|window| window == b"@\x02@\x02").unwrap();
    bytes[strides..strides + 4].copy_from_slice(b"@\0@\0");
    std::fs::write(&model, bytes).unwrap();
    let said = Extractor::open(&model).err().unwrap().to_string();
    assert!(said.contains("model.onnx") && said.contains("its parser failed"), "{said}");
}

/// Names from a file must not move the cursor of a terminal or set its title.
#[test]
fn control_characters_of_files_are_in_no_message() {
    let folder = tempfile::tempdir().unwrap();
    let evil = "\x1b]0;owned\x07\u{202e}";
    let path = folder.path().join("t.csv");
    let mut messages = Vec::new();
    for text in [format!("{evil},label\nx,y\n"), format!("text,label\nx,{evil}\n")] {
        std::fs::write(&path, text).unwrap();
        messages
            .push(Dataset::open(&path, &DatasetFormat::Table(SampleColumns::default()), 0).unwrap_err().to_string());
    }
    let path = folder.path().join("a.npz");
    let header = format!("{{'descr': '|{evil}1', 'fortran_order': False, 'shape': (1,), }}\n");
    let array = [&b"\x93NUMPY\x01\x00"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes(), &[0]].concat();
    let mut archive = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    archive.start_file("train_labels.npy", zip::write::SimpleFileOptions::default()).unwrap();
    archive.write_all(&array).unwrap();
    archive.finish().unwrap();
    messages.push(Dataset::open(&path, &DatasetFormat::MedMnist, 0).unwrap_err().to_string());
    common::write_sentence_model(folder.path(), "bert");
    let configuration = folder.path().join("config.json");
    let text = std::fs::read_to_string(&configuration).unwrap();
    for (key, value) in [("\"bert\"", "model_type"), ("\"gelu\"", "hidden_act")] {
        assert!(text.contains(key), "{value}");
        let evil = serde_json::to_string(evil).unwrap();
        std::fs::write(&configuration, text.replace(key, &evil)).unwrap();
        messages.push(Extractor::open(folder.path()).err().unwrap().to_string());
    }
    for message in messages {
        assert!(!message.chars().any(|c| c.is_control() || c == '\u{202e}'), "{message:?}");
    }
}

/// Programs differ in which of two entries of one name they take.
#[test]
fn two_entries_of_one_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let mut archive = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    for name in ["train_labels.npy", "train_labelz.npy"] {
        archive.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        archive.write_all(b"x").unwrap();
    }
    archive.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let text: Vec<u8> = bytes.iter().map(|&byte| if byte == b'z' { b's' } else { byte }).collect();
    std::fs::write(&path, text).unwrap();
    let error = Dataset::open(&path, &DatasetFormat::MedMnist, 0).unwrap_err().to_string();
    assert!(error.contains("two arrays of one name"), "{error}");

    let path = folder.path().join("t.csv");
    std::fs::write(&path, "text,label,text\nx,a,y\nx,b,y\n").unwrap();
    let error = Dataset::open(&path, &DatasetFormat::Table(SampleColumns::default()), 0).unwrap_err().to_string();
    assert!(error.contains("two columns text"), "{error}");

    common::write_sentence_model(folder.path(), "bert");
    let path = folder.path().join("model.safetensors");
    let header =
        br#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0]].concat();
    std::fs::write(&path, bytes).unwrap();
    let error = Extractor::open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("two tensors are named a"), "{error}");
}

/// A missing quotation mark or line end makes one row of a whole file.
#[test]
fn rows_without_end() {
    let folder = tempfile::tempdir().unwrap();
    for (name, start, expected) in [
        (
            "t.csv",
            "text,label\n\"",
            "row 1, column 1: the field has more than 16777216 bytes; is a quotation mark missing?",
        ),
        ("heading.csv", "label,\"text", "row 1, column 2: the field has more than 16777216 bytes"),
        ("t.jsonl", "{\"text\": \"", "has more than 16777216 bytes"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, [start.as_bytes(), &vec![b'x'; 40 << 20]].concat()).unwrap();
        let error = Dataset::open(&path, &DatasetFormat::Table(SampleColumns::default()), 0).unwrap_err().to_string();
        assert!(error.contains(expected) && error.len() < 1000, "{error:.1000}");
    }
}

#[test]
fn weights_and_configurations() {
    let folder = tempfile::tempdir().unwrap();
    common::write_sentence_model(folder.path(), "mpnet");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let modules = r#"[{"type": "sentence_transformers.models.Transformer", "path": ""}, {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}, {"idx": 2, "name": "2", "type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}]"#;
    std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    write("modules.json", modules);
    write("1_Pooling/config.json", r#"{"pooling_mode_mean_tokens": true}"#);
    write("sentence_bert_config.json", r#"{"max_seq_length": 12}"#);
    let names = [
        "config.json",
        "tokenizer.json",
        "modules.json",
        "1_Pooling/config.json",
        "sentence_bert_config.json",
        "model.safetensors",
    ];
    for name in names {
        let path = folder.path().join(name);
        let whole = std::fs::read(&path).unwrap();
        // Of the weights, the header: damaged numbers are numbers.
        let head = if name.ends_with("safetensors") { whole.len().min(4000) } else { whole.len() };
        let (mut opened, mut refused) = (0, 0);
        for bytes in damaged(&whole[..head], 300) {
            std::fs::write(&path, [&bytes, &whole[head..]].concat()).unwrap();
            match Extractor::open(folder.path()) {
                Ok(extractor) => {
                    opened += 1;
                    let texts = ["play some jazz", "book a table", &"weather ".repeat(200)];
                    if let Ok(vectors) = extractor.extract_texts(&texts) {
                        assert!(vectors.iter().all(|vector| vector.len() == 24), "{name}");
                    }
                }
                Err(_) => refused += 1,
            }
        }
        // Every byte of the weights' header counts; of the other files some do not.
        let some = opened > 0 || name == "model.safetensors";
        assert!(some && refused > 30, "{name}: {opened} opened, {refused} refused");
        std::fs::write(&path, whole).unwrap();
    }
    assert!(Extractor::open(folder.path()).is_ok());
}
