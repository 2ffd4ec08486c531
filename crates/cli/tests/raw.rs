//! From pictures and sentences to predictions on the command line, with small random networks.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod common;
#[path = "../../features/tests/common/mod.rs"]
mod networks;

use common::{SET, Server, error, json, text};
use hetal_client::data::tables;
use hetal_testkit::TempDir;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Sentences of three classes that have one word in common.
fn write_sentences(folder: &Path) -> PathBuf {
    let kinds = [
        ("music", ["play", "some", "jazz", "song"]),
        ("food", ["book", "a", "table", "of"]),
        ("sky", ["the", "weather", "in", "a"]),
    ];
    let mut rows = String::from("text,label\n");
    for i in 0..180 {
        let (kind, words) = kinds[i % 3];
        let sentence: Vec<&str> = (0..2 + i / 3 % 3).map(|j| words[(i / 3 * (j + 1) + j * j) % 4]).collect();
        rows += &format!("{},{kind}\n", sentence.join(" "));
    }
    let path = folder.join("sentences.csv");
    std::fs::write(&path, rows).unwrap();
    path
}

/// A process without the key reads Parquet and Arrow for `plan`, as for `train` and `predict`.
#[test]
fn parquet_and_arrow_are_read_like_other_tables() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../features/tests/golden/tables");
    for file in ["polars.parquet", "pandas.feather"] {
        let file = golden.join(file);
        let plan = ["plan", "--json", "--set", SET, "--features", text(&file), "--label-column", "kind"];
        let report = json(&[&plan[..], &["--drop", "born,name"]].concat());
        assert_eq!(report["data"]["names"], serde_json::json!(["width", "count", "small", "size", "flag"]));
        assert_eq!(report["data"]["classes"][1], serde_json::json!({ "class": "dög", "rows": 6 }));
        let said = error(&plan);
        assert!(said.contains("column name is text (\"row 0\" in row 1): leave out text with --drop name"), "{said}");
    }
    let labels = golden.join("duckdb.parquet#kind");
    let features = golden.join("zstd.arrow");
    let plan = ["plan", "--json", "--set", SET, "--features", text(&features), "--labels", text(&labels)];
    assert_eq!(json(&[&plan[..], &["--columns", "width,size"]].concat())["data"]["classes"][0]["class"], "cat");
}

fn prediction(report: &Value) -> (&str, f64) {
    let first = &report["predictions"][0];
    (first["class"].as_str().unwrap(), first["probability"].as_f64().unwrap())
}

#[test]
fn a_demo_from_sentences_answers_about_sentences() {
    let folder = TempDir::new();
    let (network, dir) = (folder.path().join("network"), folder.path().join("demo"));
    std::fs::create_dir(&network).unwrap();
    networks::write_sentence_model(&network, "mpnet");
    let sentences = write_sentences(folder.path());
    let arguments = ["--set", SET, "--batch", "64", "--epochs", "6", "--verdict-delay-ms", "0", "--json"];
    let from = ["demo", "--dir", text(&dir), "--from-text", text(&sentences), "--network", text(&network)];
    let report = json(&[&from[..], &arguments].concat());
    assert!(report["test_accuracy"].as_f64().unwrap() > 0.8, "{report}");
    assert!(error(&["demo", "--from-text", text(&sentences)]).contains("--network"));

    let owner = dir.join("owner");
    let predict = ["predict", "--dir", text(&owner), "--model", "demo"];
    let report = json(&[&predict[..], &["--json", "--text", "play some jazz", "--text", "the weather"]].concat());
    assert_eq!(report["inputs"], serde_json::json!(["play some jazz", "the weather"]));
    let (class, probability) = prediction(&report);
    assert_eq!((class, report["predictions"][1]["class"].as_str()), ("music", Some("sky")));
    assert!(probability > 1.0 / 3.0 && probability <= 1.0);

    // Wrong inputs; a network that moved, differs or is unknown.
    let asked = |more: &[&str]| error(&[&predict[..], more].concat());
    assert!(asked(&["--text", "  "]).contains("empty"));
    assert!(asked(&[text(&sentences)]).contains("JPEG"));
    assert!(asked(&["--text", "play", "--features", "x.npy"]).contains("cannot be used with"));
    let moved = folder.path().join("moved");
    std::fs::rename(&network, &moved).unwrap();
    assert!(asked(&["--text", "play"]).contains("--network"));
    let found = json(&[&predict[..], &["--json", "--text", "play some jazz", "--network", text(&moved)]].concat());
    assert_eq!(prediction(&found), (class, probability));
    std::fs::write(
        moved.join("modules.json"),
        r#"[{"type": "models.Transformer", "path": ""}, {"type": "models.Normalize", "path": "2"}]"#,
    )
    .unwrap();
    assert!(asked(&["--text", "play", "--network", text(&moved)]).contains("preprocessing"));
    std::fs::remove_file(moved.join("modules.json")).unwrap();
    let weights = moved.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let refused = asked(&["--text", "play", "--network", text(&moved)]);
    assert!(refused.contains("model.safetensors") && refused.contains("SHA-256"), "{refused}");
    texts_are_private(folder.path(), &predict);
    let path = owner.join("models/demo.json");
    let mut model: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    model.as_object_mut().unwrap().remove("extraction");
    std::fs::write(&path, model.to_string()).unwrap();
    assert!(asked(&["--text", "play"]).contains("hetal extract"));
}

/// Texts and secrets are not in the command line or environment, which other users can read.
#[cfg(unix)]
fn texts_are_private(folder: &Path, predict: &[&str]) {
    use std::os::unix::fs::PermissionsExt;
    let (program, seen) = (folder.join("extractor"), folder.join("seen"));
    let version = hetal_extract_api::protocol::version_line();
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo '{version}' && exit\n\
         echo \"$0 $@\" > {seen}; env >> {seen}; head -n 1 > {seen}.request; echo '{{\"Failed\":\"as told\"}}'\n",
        seen = seen.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_hetal"))
        .args(predict)
        .args(["--text", "a private text"])
        .env("HETAL_EXTRACT", &program)
        .env("HETAL_TOKEN", "a secret token")
        .env("HETAL_PASSPHRASE", "a secret passphrase")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("as told"), "{output:?}");
    let seen = std::fs::read_to_string(&seen).unwrap();
    assert!(seen.starts_with(&format!("{} request\n", program.display())), "{seen}");
    assert!(seen.contains("HETAL_EXTRACT=") && !seen.contains("private") && !seen.contains("secret"), "{seen}");
    let request = std::fs::read_to_string(folder.join("seen.request")).unwrap();
    assert!(request.contains("a private text") && !request.contains("secret"), "{request}");
}

#[cfg(not(unix))]
fn texts_are_private(_: &Path, _: &[&str]) {}

/// Control characters in file names do not reach the terminal.
#[cfg(unix)]
#[test]
fn names_of_files_are_shown_and_do_nothing() {
    let folder = TempDir::new();
    let (network, data, out) = (folder.path().join("bert"), folder.path().join("data"), folder.path().join("out"));
    std::fs::create_dir(&network).unwrap();
    networks::write_sentence_model(&network, "bert");
    for class in ["a", "b"] {
        std::fs::create_dir_all(data.join(class)).unwrap();
        (0..5).for_each(|i| std::fs::write(data.join(class).join(format!("{i}.txt")), "play some jazz").unwrap());
    }
    std::fs::write(data.join("a/\x1b[2Jbad\r.txt"), "").unwrap();
    std::fs::write(data.join("a/\x1b]0;note\x07.md"), "").unwrap();
    let extract = ["extract", "--model", text(&network), "--data", text(&data), "--out", text(&out)];
    let refused = error(&extract);
    assert!(refused.contains("[2Jbad") && !refused.contains(['\x1b', '\r', '\x07']), "{refused:?}");
    let report = common::hetal(&[&extract[..], &["--bad", "skip"]].concat());
    let said = String::from_utf8_lossy(&report.stdout);
    assert!(said.contains("[2Jbad") && said.contains("0;note") && said.contains(" on the cpu: "), "{said:?}");
    assert!(!said.contains(['\x1b', '\r', '\x07']), "{said:?}");
}

#[test]
fn pictures_are_extracted_trained_on_and_classified() {
    let folder = TempDir::new();
    let (network, data, out) = (folder.path().join("vit"), folder.path().join("data"), folder.path().join("features"));
    std::fs::create_dir(&network).unwrap();
    networks::write_vit(&network, "");
    // Two classes of pictures: dark and light, with noise.
    for (kind, base) in [("night", 10), ("day", 170)] {
        std::fs::create_dir_all(data.join(kind)).unwrap();
        for i in 0..40usize {
            let pixels: Vec<u8> = (0..3 * 20 * 20).map(|j| (base + (i * 37 + j * 11) % 80) as u8).collect();
            networks::write_png(&data.join(kind).join(format!("{i}.png")), 20, 20, &pixels);
        }
    }
    let extract = ["extract", "--json", "--model", text(&network), "--data", text(&data), "--out", text(&out)];
    let report = json(&extract);
    assert_eq!(
        (&report["rows"]["train"], &report["rows"]["test"], &report["columns"]),
        (&56.into(), &16.into(), &24.into())
    );

    let server = Server::start(folder.path());
    let names = ["train", "val", "test"].map(|part| [format!("features_{part}.npy"), format!("labels_{part}.npy")]);
    let [train, val, test] = names.map(|pair| pair.map(|name| out.join(name).display().to_string()));
    let (dir, to_server) = (folder.path().join("p"), server.arguments());
    let rows = ["--features", &train[0], "--labels", &train[1]];
    let validation = ["--validation", &val[0], "--validation-labels", &val[1]];
    let wishes = ["--set", SET, "--verdict-delay-ms", "0", "--batch", "64", "--epochs", "4", "--rate", "2"];
    let named = ["train", "--json", "--dir", text(&dir), "--name", "sky"];
    let to_server: Vec<&str> = to_server.iter().map(String::as_str).collect();
    let trained = json(&[&named[..], &rows, &validation, &wishes, &to_server].concat());
    assert_eq!(trained["classes"], serde_json::json!(["day", "night"]), "the manifest's names, not the files' numbers");

    let predict = ["predict", "--json", "--dir", text(&dir), "--model", "sky"];
    let tested = json(&[&predict[..], &["--features", &test[0], "--labels", &test[1]]].concat());
    assert!(tested["evaluation"]["accuracy"].as_f64().unwrap() > 0.9, "{tested}");
    let photo = folder.path().join("photo.png");
    networks::write_png(&photo, 31, 9, &[200; 3 * 31 * 9]);
    let local = json(&[&predict[..], &[text(&photo)]].concat());
    assert_eq!(prediction(&local).0, "day");
    let remote = json(&[&predict[..], &[text(&photo), "--remote"]].concat());
    assert_eq!(prediction(&remote).0, "day");
    assert!(error(&[&predict[..], &["--text", "play"]].concat()).contains("reads pictures"));

    // Own labels keep their names if the manifest is not named. The model stores the manifest.
    let mine = folder.path().join("mine.csv");
    let labels = tables::read_labels(Path::new(&train[1]), None, None, &tables::Options::default()).unwrap().0.texts();
    std::fs::write(
        &mine,
        labels.iter().map(|label| format!("{}\n", label.parse::<i64>().unwrap() * 7)).collect::<String>(),
    )
    .unwrap();
    let own =
        ["train", "--json", "--dir", text(&dir), "--name", "own", "--features", &train[0], "--labels", text(&mine)];
    let trained = json(&[&own[..], &wishes, &to_server].concat());
    assert_eq!(trained["classes"], serde_json::json!(["0", "7"]));
    let own = json(&["predict", "--json", "--dir", text(&dir), "--model", "own", text(&photo)]);
    assert!(["0", "7"].contains(&prediction(&own).0), "{own}");
    let rows_of_mine = ["--features", &train[0], "--labels", text(&mine)];
    let tested = json(&[&["predict", "--json", "--dir", text(&dir), "--model", "own"][..], &rows_of_mine].concat());
    assert!(tested["evaluation"]["accuracy"].as_f64().unwrap() > 0.9, "{tested}");

    // A manifest of other features is an error if it is named, and is ignored otherwise.
    let manifest = out.join("manifest.json");
    let mut other: Value = serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    other["model"]["columns"] = 25.into();
    std::fs::write(&manifest, other.to_string()).unwrap();
    assert_eq!(json(&[&["plan", "--json"][..], &rows].concat())["classes"], 2);
    let named = [&["train", "--dir", text(&dir)][..], &rows, &["--manifest", text(&manifest)]].concat();
    assert!(error(&named).contains("25 columns"));
}
