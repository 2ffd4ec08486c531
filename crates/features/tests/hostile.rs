//! Files of all kinds, damaged at random: errors, never a crash.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod common;
mod tables;

use hetal_features::Extractor;
use hetal_features::dataset::{Columns, Dataset, Format};
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
fn open_damaged(path: &Path, format: &Format, count: usize) {
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
fn parquet_tables() {
    use parquet::basic::Compression;
    use parquet::file::properties::WriterVersion;
    let folder = tempfile::tempdir().unwrap();
    for (name, compression, version) in [
        ("plain.parquet", Compression::UNCOMPRESSED, WriterVersion::PARQUET_1_0),
        ("packed.parquet", Compression::SNAPPY, WriterVersion::PARQUET_2_0),
    ] {
        let path = folder.path().join(name);
        tables::write_parquet(&path, tables::properties(compression, version, true), 40, "binary label (UTF8)");
        open_damaged(&path, &Format::Table(Columns::default()), 1500);
    }
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
    open_damaged(&path, &Format::MedMnist, 1500);
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
