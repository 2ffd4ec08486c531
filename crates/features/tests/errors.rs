//! Errors name the input that they are about.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod common;

use hetal_features::dataset::{Dataset, DatasetFormat, SampleColumns};
#[cfg(not(feature = "cuda"))]
use hetal_features::device::DeviceChoice;
use hetal_features::picture::Picture;
use hetal_features::{Error, Extractor};
use std::path::Path;

fn refusal(path: &Path) -> Error {
    match Extractor::open(path) {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => error,
    }
}

#[test]
fn weights_are_no_model_without_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    common::write_sentence_model(folder.path(), "bert");
    assert!(refusal(&folder.path().join("model.safetensors")).to_string().contains("give the folder it is in"));
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_gpu_is_refused_by_a_build_without_gpu_support() {
    let folder = tempfile::tempdir().unwrap();
    common::write_sentence_model(folder.path(), "bert");
    let error = Extractor::open_on(folder.path(), DeviceChoice::Cuda).err().unwrap().to_string();
    assert!(error.contains("--features cuda") && error.contains("--device cpu"), "{error}");
    assert_eq!(Extractor::open_on(folder.path(), DeviceChoice::Auto).unwrap().device(), "cpu");
}

#[test]
fn missing_weights() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nowhere");
    assert!(matches!(refusal(&nowhere), Error::NoWeights { .. }));
    #[cfg(feature = "onnx")]
    assert!(matches!(refusal(&nowhere.join("model.onnx")), Error::NoWeights { .. }));
    for file in ["model.safetensors", "tokenizer.json", "config.json"] {
        common::write_sentence_model(folder.path(), "mpnet");
        std::fs::remove_file(folder.path().join(file)).unwrap();
        let error = refusal(folder.path());
        assert!(error.to_string().contains(file), "{error}");
    }
}

#[test]
fn wrong_architecture() {
    let folder = tempfile::tempdir().unwrap();
    common::write_sentence_model(folder.path(), "mpnet");
    // The weights of a BERT under the configuration of an MPNet, and the other way round.
    let weights = folder.path().join("model.safetensors");
    common::write_checkpoint(&weights, "", &common::sentence_tensors("bert"));
    let error = refusal(folder.path());
    assert!(matches!(error, Error::NoTensor { architecture: "MPNet", .. }), "{error}");
    common::write_checkpoint(&weights, "", &[("something.else".to_owned(), vec![2, 2])]);
    assert!(refusal(folder.path()).to_string().contains("something.else"));
    // Another family altogether.
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    let error = refusal(folder.path());
    assert!(matches!(&error, Error::Architecture { found, .. } if found == "llama"), "{error}");
}

#[test]
fn wrong_shape() {
    let folder = tempfile::tempdir().unwrap();
    common::write_sentence_model(folder.path(), "bert");
    let mut tensors = common::sentence_tensors("bert");
    let broken = tensors.iter_mut().find(|(name, _)| name == "encoder.layer.1.output.dense.weight").unwrap();
    broken.1 = vec![24, 41];
    common::write_checkpoint(&folder.path().join("model.safetensors"), "", &tensors);
    let error = refusal(folder.path());
    assert!(
        matches!(&error, Error::Shape { found, expected, .. } if found == &[24, 41] && expected == &[24, 40]),
        "{error}"
    );
}

#[test]
fn sizes_no_network_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let refused = |name: &str, value: serde_json::Value| {
        let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        config[name] = value;
        std::fs::write(&path, config.to_string()).unwrap();
        let error = refusal(folder.path()).to_string();
        assert!(error.contains(name) && error.contains("config.json"), "{name}: {error}");
    };
    let sentence = [
        ("hidden_size", 0u64),
        ("intermediate_size", 0),
        ("intermediate_size", 1 << 40),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", u64::MAX),
        ("max_position_embeddings", 1 << 20),
        ("relative_attention_num_buckets", 3),
        ("relative_attention_num_buckets", 512),
        ("vocab_size", 1 << 40),
    ];
    for (name, value) in sentence {
        common::write_sentence_model(folder.path(), "mpnet");
        refused(name, value.into());
    }
    common::write_sentence_model(folder.path(), "mpnet");
    refused("layer_norm_eps", (-1.0).into());
    for (name, value) in [("image_size", 0u64), ("image_size", 1 << 33), ("patch_size", 0), ("intermediate_size", 0)] {
        common::write_vit(folder.path(), "");
        refused(name, value.into());
    }
    // Sides that fit, in patches that are too many.
    common::write_vit(folder.path(), "");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(
        &path,
        text.replace("\"image_size\": 32, \"patch_size\": 8", "\"image_size\": 2048, \"patch_size\": 1"),
    )
    .unwrap();
    assert!(refusal(folder.path()).to_string().contains("number of patches"));
    common::write_vit(folder.path(), "");
    std::fs::write(folder.path().join("preprocessor_config.json"), r#"{"size": 4096}"#).unwrap();
    assert!(refusal(folder.path()).to_string().contains("1 to 2048"));
    // A file of 65 MiB of zeros.
    std::fs::File::create(&path).unwrap().set_len(65 << 20).unwrap();
    assert!(refusal(folder.path()).to_string().contains("more than"));
}

#[test]
fn truncated_weights() {
    let folder = tempfile::tempdir().unwrap();
    common::write_sentence_model(folder.path(), "bert");
    let path = folder.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    for length in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = refusal(folder.path());
        assert!(error.to_string().contains("truncated"), "{length} bytes: {error}");
    }
    std::fs::write(&path, [whole, vec![0]].concat()).unwrap();
    assert!(refusal(folder.path()).to_string().contains("announces"));
}

#[test]
fn one_pixel_and_damaged_pictures() {
    let folder = tempfile::tempdir().unwrap();
    common::write_vit(folder.path(), "");
    let extractor = Extractor::open(folder.path()).unwrap();
    let path = folder.path().join("one.png");
    common::write_png(&path, 1, 1, &[200, 100, 50]);
    assert!(extractor.extract_image(&path).unwrap().iter().all(|x| x.is_finite()));
    let whole = std::fs::read(&path).unwrap();
    for length in 0..whole.len() - 12 {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = extractor.extract_image(&path).unwrap_err();
        assert!(matches!(&error, Error::Item { item, .. } if item.ends_with("one.png")), "{length}: {error}");
    }
}

#[test]
fn a_cmyk_jpeg_has_the_right_colours() {
    // 16 x 16 pixels in four colours, written by Pillow with an Adobe marker. Expected are the
    // values that Pillow reads at the centres.
    let picture = Picture::decode(include_bytes!("golden/cmyk.jpg")).unwrap();
    let expected: [[u8; 3]; 4] = [[220, 40, 30], [30, 200, 60], [40, 60, 210], [240, 240, 240]];
    for (index, colour) in expected.into_iter().enumerate() {
        let (x, y) = (4 + 8 * (index % 2), 4 + 8 * (index / 2));
        let found = &picture.pixels()[3 * (y * 16 + x)..][..3];
        let close = found.iter().zip(colour).all(|(&a, b)| a.abs_diff(b) <= 4);
        assert!(close, "at {x}, {y}: {found:?}, not {colour:?}");
    }
    // Every cut of the file is an error, not a crash.
    let bytes = include_bytes!("golden/cmyk.jpg");
    (0..bytes.len() / 2).for_each(|length| assert!(Picture::decode(&bytes[..length]).is_err(), "cut at {length}"));
}

#[test]
fn a_photo_taken_sideways_stands_upright() {
    // 16 x 8, red left and blue right, with EXIF orientation 6: red is above blue.
    let picture = Picture::decode(include_bytes!("golden/sideways.jpg")).unwrap();
    assert_eq!((picture.width(), picture.height()), (8, 16));
    let pixel = |x: usize, y: usize| &picture.pixels()[3 * (y * 8 + x)..][..3];
    assert!(pixel(4, 4)[0] > 150 && pixel(4, 12)[2] > 150, "{:?} {:?}", pixel(4, 4), pixel(4, 12));
}

#[test]
fn empty_folders() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path| Dataset::open(path, &DatasetFormat::Folders, 0).unwrap_err().to_string();
    assert!(open(folder.path()).contains("no samples"));
    std::fs::create_dir(folder.path().join("cats")).unwrap();
    assert!(open(folder.path()).contains("no samples"));
    common::write_pattern(&folder.path().join("cats/1.png"), 3, 3);
    assert!(open(folder.path()).contains("two or more"));
    assert!(open(&folder.path().join("dogs")).contains("no such"));
}

#[test]
fn tables_without_their_columns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.csv");
    std::fs::write(&path, "sentence,intent\nplay,a\n").unwrap();
    let columns = SampleColumns { label: "intent".to_owned(), ..SampleColumns::default() };
    let error = Dataset::open(&path, &DatasetFormat::Table(columns), 0).unwrap_err().to_string();
    assert!(error.contains("no column text") && error.contains("sentence, intent"), "{error}");
}
