//! Whole extractions: results, bad samples, interruption.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod common;

use hetal_features::dataset::{Content, Dataset, DatasetFormat, Sample, SampleColumns};
use hetal_features::device::DeviceChoice;
use hetal_features::extraction::{Extraction, OutputFormat, Policy};
use hetal_features::sentence::TextCoverage;
use hetal_features::{Error, Extractor, Manifest};
use std::path::Path;

const WORDS: [&str; 6] = ["play", "some", "jazz", "weather", "book", "table"];

/// 1,500 short texts, row 701 empty.
fn write_table(folder: &Path) -> std::path::PathBuf {
    write_table_without(folder, 701)
}

/// 1,500 short texts, one of them empty.
fn write_table_without(folder: &Path, row: usize) -> std::path::PathBuf {
    let text = |i: usize| match i {
        _ if i + 1 == row => String::new(),
        _ => (0..i % 5 + 1).map(|j| WORDS[(i / 5 + j * j) % 6]).collect::<Vec<_>>().join(" "),
    };
    let rows: String = (0..1500).map(|i| format!("{},class {}\n", text(i), i % 3)).collect();
    let path = folder.join("data.csv");
    std::fs::write(&path, format!("text,label\n{rows}")).unwrap();
    path
}

fn open(path: &Path) -> Dataset {
    let columns = SampleColumns::default();
    Dataset::open(path, &DatasetFormat::Table(columns), 9).unwrap()
}

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let names = |part| [format!("features_{part}.npy"), format!("labels_{part}.npy")];
    let names = ["train", "val", "test"].into_iter().flat_map(names).chain(["manifest.json".to_owned()]);
    names.map(|name| (name.clone(), std::fs::read(folder.join(&name)).unwrap())).collect()
}

#[test]
fn an_interrupted_extraction_continues_with_the_same_result() {
    let folder = tempfile::tempdir().unwrap();
    common::write_sentence_model(folder.path(), "mpnet");
    let extractor = Extractor::open(folder.path()).unwrap();
    let dataset = open(&write_table(folder.path()));
    let (once, twice) = (folder.path().join("once"), folder.path().join("twice"));
    let extraction = |folder| Extraction {
        extractor: &extractor,
        dataset: &dataset,
        seed: 9,
        folder,
        policy: Policy::Skip,
        output: OutputFormat::Npy,
    };
    let manifest = extraction(&once).run(|_| {}).unwrap();
    assert_eq!(manifest.rows.values().sum::<usize>(), 1499);
    assert_eq!((manifest.skipped.len(), manifest.skipped[0].item.as_str()), (1, "data.csv row 701"));
    assert!(manifest.skipped[0].reason.contains("empty"));

    // A panic in the middle stands for a killed process: nothing is cleaned up.
    let mut heard = Vec::new();
    let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        extraction(&twice).run(|done| {
            heard.push(done);
            assert!(done < 1200, "killed here");
        })
    }));
    // Progress is heard within a chunk, too, and always forwards.
    assert!(killed.is_err() && heard.is_sorted() && heard.contains(&512), "{heard:?}");
    assert!(heard.iter().any(|&done| 0 < done && done < 512), "{heard:?}");
    // Half a row more than was recorded, as a kill in the middle of writing leaves it.
    let rows = twice.join("unfinished/rows.f32");
    let mut bytes = std::fs::read(&rows).unwrap();
    bytes.extend([1; 50]);
    std::fs::write(&rows, bytes).unwrap();
    let mut heard = Vec::new();
    extraction(&twice).run(|done| heard.push(done)).unwrap();
    assert_eq!((heard.first(), heard.last()), (Some(&1024), Some(&1500)));
    assert_eq!(files(&once), files(&twice));
    assert!(!twice.join("unfinished").exists());

    // Features in the files are the extractor's own, in the data set's order.
    let read = |sample: &Sample| match sample.read() {
        Ok(Content::Text(text)) => Some(text),
        _ => None,
    };
    let texts: Vec<String> = dataset.parts[2].iter().filter_map(read).collect();
    assert_eq!(texts.len(), manifest.rows["test"]);
    let bytes = std::fs::read(once.join("features_test.npy")).unwrap();
    let stored = &bytes[bytes.len() - texts.len() * 24 * 4..];
    for (text, stored) in texts.iter().zip(stored.chunks_exact(24 * 4)) {
        for (x, bytes) in extractor.extract_text(text).unwrap().iter().zip(stored.chunks_exact(4)) {
            let stored = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            assert!((x - stored).abs() < 1e-5, "{text}: {x}, stored {stored}");
        }
    }
}

/// Earlier versions read fewer files of a model. Their unfinished extractions continue, unless
/// those files change the features.
#[test]
fn an_extraction_of_an_earlier_version_continues() {
    let folder = tempfile::tempdir().unwrap();
    common::write_sentence_model(folder.path(), "mpnet");
    let (dataset, out) = (open(&write_table(folder.path())), folder.path().join("out"));
    let run = |extractor: &Extractor, most: usize| {
        let extraction = Extraction {
            extractor,
            dataset: &dataset,
            seed: 9,
            folder: &out,
            policy: Policy::Skip,
            output: OutputFormat::Npy,
        };
        let mut first = None;
        let run = || {
            extraction.run(|done| {
                first.get_or_insert(done);
                assert!(done < most, "killed here");
            })
        };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        (first, ended.ok())
    };
    assert!(run(&Extractor::open(folder.path()).unwrap(), 800).1.is_none());
    // A file that changes what is done is another model, one that does not is none.
    let beside = folder.path().join("tokenizer_config.json");
    std::fs::write(&beside, r#"{"model_max_length": 5}"#).unwrap();
    let (_, refused) = run(&Extractor::open(folder.path()).unwrap(), 9999);
    assert!(refused.unwrap().unwrap_err().to_string().contains("another model"));
    std::fs::write(&beside, "{}").unwrap();
    let (first, manifest) = run(&Extractor::open(folder.path()).unwrap(), 9999);
    assert_eq!(first, Some(512));
    assert!(manifest.unwrap().unwrap().model.files.contains_key("tokenizer_config.json"));
    assert!(!out.join("unfinished").exists());
}

/// The files of a folder, to be put back.
fn kept(folder: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

#[test]
fn an_extraction_stopped_after_its_manifest_is_done() {
    let folder = tempfile::tempdir().unwrap();
    common::write_sentence_model(folder.path(), "bert");
    let extractor = Extractor::open(folder.path()).unwrap();
    let (dataset, out) = (open(&write_table(folder.path())), folder.path().join("out"));
    let other = open(&write_table_without(folder.path(), 3));
    let extraction = |dataset| Extraction {
        extractor: &extractor,
        dataset,
        seed: 9,
        folder: &out,
        policy: Policy::Skip,
        output: OutputFormat::Npy,
    };
    let work = out.join("unfinished");
    let mut record = Vec::new();
    let manifest = extraction(&dataset)
        .run(|done| {
            if done == 1500 {
                record = kept(&work);
            }
        })
        .unwrap();
    assert_eq!(record.len(), 2, "{record:?}");
    // Stopped before, in the middle of and after the removal of its record.
    for rest in [&record[..], &record[..1], &record[1..], &[]] {
        std::fs::create_dir(&work).unwrap();
        rest.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
        let mut heard = Vec::new();
        assert_eq!(extraction(&dataset).run(|done| heard.push(done)).unwrap(), manifest);
        assert_eq!((heard, work.exists()), (vec![1500], false));
    }
    // The record of another extraction is kept, and that extraction continues.
    let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        extraction(&other).run(|done| assert!(done < 1200, "killed here"))
    }));
    assert!(killed.is_err());
    assert_eq!(extraction(&dataset).run(|_| {}).unwrap(), manifest);
    let mut heard = Vec::new();
    extraction(&other).run(|done| heard.push(done)).unwrap();
    assert_eq!((heard.first(), heard.last()), (Some(&1024), Some(&1500)));
    // One at a time.
    let lock = std::fs::File::open(&out).unwrap();
    lock.try_lock().unwrap();
    assert!(extraction(&other).run(|_| {}).unwrap_err().to_string().contains("another extraction runs"));
}

/// Manifests of earlier versions name fewer files and no device. Their extractions are not
/// repeated, and their network is found.
#[test]
fn manifests_of_earlier_versions_hold() {
    let folder = tempfile::tempdir().unwrap();
    common::write_sentence_model(folder.path(), "bert");
    std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"model_max_length": 9}"#).unwrap();
    let extractor = Extractor::open(folder.path()).unwrap();
    let (dataset, out) = (open(&write_table(folder.path())), folder.path().join("out"));
    let (policy, output) = (Policy::Skip, OutputFormat::Npy);
    let extraction = Extraction { extractor: &extractor, dataset: &dataset, seed: 9, folder: &out, policy, output };
    let manifest = extraction.run(|_| {}).unwrap();
    assert!(manifest.model.files.contains_key("tokenizer_config.json"));
    assert_eq!(manifest.devices.iter().collect::<Vec<_>>(), ["cpu"]);
    let path = out.join("manifest.json");
    let mut earlier: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(earlier.as_object_mut().unwrap().remove("devices").is_some());
    assert!(earlier["model"]["files"].as_object_mut().unwrap().remove("tokenizer_config.json").is_some());
    std::fs::write(&path, earlier.to_string()).unwrap();
    let mut heard = Vec::new();
    let found = extraction.run(|done| heard.push(done)).unwrap();
    // Nothing was run now, so that nothing is said of where.
    assert_eq!((heard, found.devices.len()), (vec![1500], 0));
    assert!(Extractor::from_manifest(&found, None, DeviceChoice::Cpu).is_ok());
    // A file that both name is another.
    std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"model_max_length":9}"#).unwrap();
    assert!(Extractor::from_manifest(&found, None, DeviceChoice::Cpu).is_ok());
    let error = Extractor::from_manifest(&manifest, None, DeviceChoice::Cpu).err().unwrap().to_string();
    assert!(error.contains("tokenizer_config.json is not the file"), "{error}");
}

#[test]
fn a_text_file_that_changed_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    common::write_sentence_model(folder.path(), "bert");
    let extractor = Extractor::open(folder.path()).unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("out"));
    for class in ["a", "b"] {
        std::fs::create_dir_all(data.join(class)).unwrap();
        (0..10).for_each(|i| std::fs::write(data.join(class).join(format!("{i}.txt")), WORDS[i % 6]).unwrap());
    }
    let run = || {
        let dataset = Dataset::open(&data, &DatasetFormat::Folders, 0).unwrap();
        let (policy, output) = (Policy::Refuse, OutputFormat::Npy);
        let extraction = Extraction { extractor: &extractor, dataset: &dataset, seed: 0, folder: &out, policy, output };
        let mut heard = Vec::new();
        extraction.run(|done| heard.push(done)).unwrap();
        (heard, files(&out))
    };
    let (_, first) = run();
    assert_eq!(run(), (vec![20], first.clone()));
    // As many bytes as before.
    std::fs::write(data.join("a/0.txt"), "some").unwrap();
    let (heard, second) = run();
    assert!(heard.first() == Some(&0) && first != second, "{heard:?}");
}

#[test]
fn faces_of_one_picture_are_its_boxes() {
    let folder = tempfile::tempdir().unwrap();
    let (model, data, out) = (folder.path().join("model"), folder.path().join("data"), folder.path().join("out"));
    ["model", "data/images", "data/annotations"]
        .iter()
        .for_each(|name| std::fs::create_dir_all(folder.path().join(name)).unwrap());
    common::write_vit(&model, "");
    let extractor = Extractor::open(&model).unwrap();
    for (index, name) in ["one", "two", "three"].iter().enumerate() {
        common::write_pattern(&data.join(format!("images/{name}.png")), 40 + index, 30);
        let object = |i: usize| {
            let class = ["with", "without"][i % 2];
            format!(
                "<object><name>{class}</name><bndbox><xmin>{i}</xmin><ymin>{i}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>",
                i + 9,
                i + 7
            )
        };
        let text = format!("<filename>{name}.png</filename>{}", (0..10).map(object).collect::<String>());
        std::fs::write(data.join(format!("annotations/{name}.xml")), text).unwrap();
    }
    std::fs::write(data.join("images/two.png"), "no picture").unwrap();
    let dataset = Dataset::open(&data, &DatasetFormat::FaceMask, 0).unwrap();
    let (policy, output) = (Policy::Skip, OutputFormat::Npy);
    let extraction = Extraction { extractor: &extractor, dataset: &dataset, seed: 0, folder: &out, policy, output };
    let manifest = extraction.run(|_| {}).unwrap();
    assert_eq!((manifest.rows.values().sum::<usize>(), manifest.skipped.len()), (20, 10));
    assert!(manifest.skipped.iter().all(|skipped| skipped.item.starts_with("two.png face ")));
    let alone = |sample: &Sample| match sample.read() {
        Ok(Content::Picture(picture)) => extractor.extract_pictures(&[picture]).unwrap().pop(),
        _ => None,
    };
    let expected: Vec<f32> = dataset.parts[0].iter().filter_map(alone).flatten().collect();
    let bytes = std::fs::read(out.join("features_train.npy")).unwrap();
    let stored = bytes[bytes.len() - 4 * expected.len()..].chunks_exact(4);
    for (x, stored) in expected.iter().zip(stored) {
        let stored = f32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]);
        assert!((x - stored).abs() < 1e-5, "{x}, stored {stored}");
    }
    assert_eq!(expected.len(), manifest.rows["train"] * 24);
}

#[test]
fn bad_samples_can_be_refused() {
    let folder = tempfile::tempdir().unwrap();
    common::write_sentence_model(folder.path(), "bert");
    let extractor = Extractor::open(folder.path()).unwrap();
    // The split knows names only, so that it shows which row comes last.
    let last = open(&write_table(folder.path())).parts[2].last().unwrap().name.clone();
    let row = last.strip_prefix("data.csv row ").unwrap().parse().unwrap();
    let dataset = open(&write_table_without(folder.path(), row));
    let out = folder.path().join("out");
    let extraction = |policy| Extraction {
        extractor: &extractor,
        dataset: &dataset,
        seed: 9,
        folder: &out,
        policy,
        output: OutputFormat::Npy,
    };
    let refused = |error: &Error| matches!(error, Error::Item { item, .. } if *item == last);
    let error = extraction(Policy::Refuse).run(|_| {}).unwrap_err();
    assert!(refused(&error), "{error}");
    // With the policy Skip it continues from there. Killed then, and run with Refuse, it names the
    // sample again.
    let mut heard = Vec::new();
    let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        extraction(Policy::Skip).run(|done| {
            heard.push(done);
            assert!(done < 1500, "killed here");
        })
    }));
    assert!(killed.is_err() && heard.first() == Some(&1024), "{heard:?}");
    let error = extraction(Policy::Refuse).run(|_| {}).unwrap_err();
    assert!(refused(&error), "{error}");
    let manifest = extraction(Policy::Skip).run(|_| {}).unwrap();
    // What is done is not done again, but is under a stricter rule or with other data.
    let mut heard = Vec::new();
    assert_eq!(extraction(Policy::Skip).run(|done| heard.push(done)).unwrap(), manifest);
    assert_eq!(heard, [1500]);
    assert!(extraction(Policy::Refuse).run(|_| {}).is_err());
}

#[test]
fn samples_of_the_other_kind_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    common::write_vit(&model, "");
    let extractor = Extractor::open(&model).unwrap();
    let data = folder.path().join("data");
    for class in ["a", "b"] {
        std::fs::create_dir_all(data.join(class)).unwrap();
        (0..8).for_each(|i| common::write_pattern(&data.join(class).join(format!("{i}.png")), 9, 9 + i));
    }
    // Most samples are pictures, though the first of all is not.
    std::fs::write(data.join("a/! notes.txt"), "where these are from").unwrap();
    let dataset = Dataset::open(&data, &DatasetFormat::Folders, 0).unwrap();
    let out = folder.path().join("out");
    let extraction = |policy| Extraction {
        extractor: &extractor,
        dataset: &dataset,
        seed: 0,
        folder: &out,
        policy,
        output: OutputFormat::Npy,
    };
    let error = extraction(Policy::Refuse).run(|_| {}).unwrap_err();
    assert!(matches!(&error, Error::Item { item, .. } if item == "a/! notes.txt"), "{error}");
    let manifest = extraction(Policy::Skip).run(|_| {}).unwrap();
    assert_eq!((manifest.rows.values().sum::<usize>(), manifest.skipped.len()), (16, 1));
}

#[test]
fn a_text_without_known_tokens_is_named() {
    let folder = tempfile::tempdir().unwrap();
    common::write_sentence_model(folder.path(), "bert");
    // A tokenizer that adds no tokens of its own and drops what it does not know.
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    tokenizer["post_processor"] = serde_json::Value::Null;
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    let extractor = Extractor::open(folder.path()).unwrap();
    assert_eq!(extractor.tokens("play").unwrap().reading, TextCoverage::All);
    assert_eq!(extractor.tokens("  ").unwrap().reading, TextCoverage::Nothing);
    assert!(matches!(extractor.extract_text("  "), Err(Error::Item { .. })));
    // Fewer tokens in all than the marks a tokenizer adds.
    common::write_sentence_model(folder.path(), "bert");
    std::fs::write(folder.path().join("sentence_bert_config.json"), r#"{"max_seq_length": 2}"#).unwrap();
    assert!(Extractor::open(folder.path()).err().unwrap().to_string().contains("adds 2 tokens"));
}

#[test]
fn pictures_that_cannot_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    common::write_vit(&model, "");
    let extractor = Extractor::open(&model).unwrap();
    let data = folder.path().join("data");
    for class in ["a", "b"] {
        std::fs::create_dir_all(data.join(class)).unwrap();
        (0..20).for_each(|i| common::write_pattern(&data.join(class).join(format!("{i}.png")), 9 + i, 12));
    }
    std::fs::write(data.join("a/3.png"), "no picture").unwrap();
    std::fs::write(data.join("b/7.png"), b"\xFF\xD8 cut").unwrap();
    let dataset = Dataset::open(&data, &DatasetFormat::Folders, 0).unwrap();
    let out = folder.path().join("out");
    let extraction = Extraction {
        extractor: &extractor,
        dataset: &dataset,
        seed: 0,
        folder: &out,
        policy: Policy::Skip,
        output: OutputFormat::Safetensors,
    };
    let manifest = extraction.run(|_| {}).unwrap();
    let mut skipped: Vec<&str> = manifest.skipped.iter().map(|s| s.item.as_str()).collect();
    skipped.sort();
    assert!(skipped.len() == 2 && skipped[0].ends_with("3.png") && skipped[1].ends_with("7.png"), "{skipped:?}");
    let bytes = std::fs::read(out.join("train.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let rows = manifest.rows["train"];
    assert_eq!(tensors.tensor("features").unwrap().shape(), [rows, 24]);
    assert_eq!(tensors.tensor("labels").unwrap().shape(), [rows]);

    // The manifest leads back to the network, and to no other.
    let manifest = Manifest::read(&out).unwrap();
    let again = Extractor::from_manifest(&manifest, None, DeviceChoice::Cpu).unwrap();
    let picture = data.join("a/0.png");
    assert_eq!(again.extract_image(&picture).unwrap(), extractor.extract_image(&picture).unwrap());
    std::fs::write(model.join("preprocessor_config.json"), r#"{"image_mean": [0.1, 0.1, 0.1]}"#).unwrap();
    assert!(
        Extractor::from_manifest(&manifest, None, DeviceChoice::Cpu)
            .err()
            .unwrap()
            .to_string()
            .contains("preprocessing")
    );
    std::fs::remove_file(model.join("preprocessor_config.json")).unwrap();
    common::write_vit(&model, "vit.");
    assert!(
        Extractor::from_manifest(&manifest, Some(&model), DeviceChoice::Cpu)
            .err()
            .unwrap()
            .to_string()
            .contains("SHA-256")
    );
}

#[test]
fn texts_for_a_network_of_pictures_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    common::write_vit(folder.path(), "");
    let extractor = Extractor::open(folder.path()).unwrap();
    let dataset = open(&write_table(folder.path()));
    let out = folder.path().join("out");
    let extraction = Extraction {
        extractor: &extractor,
        dataset: &dataset,
        seed: 0,
        folder: &out,
        policy: Policy::Skip,
        output: OutputFormat::Npy,
    };
    assert!(matches!(extraction.run(|_| {}), Err(Error::Kind { reads: "pictures", holds: "texts" })));
    assert!(matches!(extractor.extract_text("play"), Err(Error::Kind { .. })));
}
