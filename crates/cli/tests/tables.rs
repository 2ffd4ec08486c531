//! Tables as people have them, from the file to the prediction.
#![allow(clippy::unwrap_used)]

mod common;

use common::{SET, Server, error, hetal, json, text};
use hetal_client::Model;
use hetal_client::data::LabelType;
use hetal_client::data::tables::npy;
use hetal_testkit::TempDir;
use serde_json::Value;
use std::path::{Path, PathBuf};

const COLUMNS: [&str; 4] = ["a", "b", "c", "d"];

/// Rows of two clusters, and the class of each.
fn rows(count: usize) -> Vec<([f64; 4], usize)> {
    let row = |k: usize| {
        let class = k % 2;
        let wave = |j: usize| ((k * 5 + j * 3) as f64).sin() * 0.4;
        (std::array::from_fn(|j| wave(j) + if j % 2 == class { 1.5 } else { 0.0 }), class)
    };
    (0..count).map(row).collect()
}

/// A table with these columns, each given by its place, and a column of labels.
fn csv(columns: &[(&str, usize)], count: usize) -> String {
    let names: String = columns.iter().map(|(name, _)| format!("{name},")).collect();
    let line = |(values, class): ([f64; 4], usize)| {
        let fields: String = columns.iter().map(|&(_, place)| format!("{},", values[place])).collect();
        format!("{fields}{}\n", [3, 8][class])
    };
    format!("{names}kind\n") + &rows(count).into_iter().map(line).collect::<String>()
}

fn named() -> Vec<(&'static str, usize)> {
    COLUMNS.into_iter().zip(0..).collect()
}

fn write(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn classes(report: &Value) -> Vec<Value> {
    report["predictions"].as_array().unwrap().iter().map(|p| p["class"].clone()).collect()
}

/// Trains on named columns, then predicts with files whose columns are in another order, renamed,
/// missing or too many.
#[test]
fn a_model_finds_its_columns_by_name() {
    let folder = TempDir::new();
    let server = Server::start(folder.path());
    let dir = folder.path().join("p");
    let features = write(folder.path(), "rows.csv", csv(&named(), 120));
    let (dir, features) = (text(&dir), text(&features));
    let mut train = vec!["train", "--set", SET, "--dir", dir, "--features", features, "--label-column", "kind"];
    train.extend(["--batch", "64", "--epochs", "2", "--rate", "2", "--verdict-delay-ms", "0"]);
    let to_server = server.arguments();
    train.extend(to_server.iter().map(String::as_str));
    let trained = hetal(&train);
    let said = String::from_utf8_lossy(&trained.stderr).into_owned();
    assert!(trained.status.success(), "{said}");
    // The report comes before anything is sent, and the next command can be copied.
    assert!(said.contains("120 rows, 4 columns: a, b, c, d\n2 classes, whole numbers: 3 (60), 8 (60)\n"), "{said}");
    let out = String::from_utf8_lossy(&trained.stdout).into_owned();
    assert!(out.contains(&format!("next: hetal predict --dir {dir} --features FILE --model model")), "{out}");
    let path = Path::new(dir).join("models/model.json");
    let model = Model::load(&path).unwrap();
    assert_eq!(model.columns, Some(COLUMNS.map(str::to_owned).to_vec()));
    assert_eq!(model.class_type, Some(LabelType::Integer));

    let predict =
        |file: &Path| ["predict", "--json", "--dir", dir, "--features", text(file)].map(str::to_owned).to_vec();
    let run = |file: &Path, more: &[&str]| {
        let words = predict(file);
        json(&words.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>())
    };
    let refused = |file: &Path, more: &[&str]| {
        let words = predict(file);
        error(&words.iter().map(String::as_str).chain(more.iter().copied()).collect::<Vec<_>>())
    };
    let labelled = ["--label-column", "kind"];
    let right = run(Path::new(features), &labelled);
    assert!(right["evaluation"]["accuracy"].as_f64().unwrap() > 0.95, "{right}");
    let auc = right["evaluation"]["measures"]["roc_auc_score"]["score"].as_f64().unwrap();
    assert!(auc > 0.95, "{right}");

    let moved: Vec<(&str, usize)> = vec![("d", 3), ("b", 1), ("a", 0), ("c", 2)];
    let moved = write(folder.path(), "moved.csv", csv(&moved, 120));
    assert_eq!(classes(&run(&moved, &labelled)), classes(&right), "the order does not matter");
    assert_eq!(classes(&run(&moved, &["--label-column", "kind", "--remote"])), classes(&right));
    let renamed = write(folder.path(), "renamed.csv", csv(&[("a", 0), ("B", 1), ("c", 2), ("d", 3)], 120));
    let words = refused(&renamed, &labelled);
    assert!(words.contains("lacks these columns of the training: b; it has these besides: B"), "{words}");
    let fewer = write(folder.path(), "fewer.csv", csv(&named()[..3], 120));
    assert!(refused(&fewer, &labelled).contains("lacks these columns of the training: d. Rename"));
    // Columns that the model does not know are named and left out, even the labels.
    let more = hetal(&["predict", "--json", "--dir", dir, "--features", features]);
    let note = String::from_utf8_lossy(&more.stderr).into_owned();
    assert!(more.status.success() && note.contains("are not used: kind"), "{note}");

    let values: Vec<f64> = rows(120).into_iter().flat_map(|(values, _)| values).collect();
    let array = write(folder.path(), "rows.npy", npy::write_doubles(&[120, 4], &values));
    assert_eq!(classes(&run(&array, &[])), classes(&right), "arrays are taken by the number of columns");
    let narrow = write(folder.path(), "narrow.npy", npy::write_doubles(&[160, 3], &values));
    assert!(refused(&narrow, &[]).contains("3 columns without names, and 4 are needed (a, b, c, d)"));

    // One row that is far off is named, and does not stop the others.
    let mut far = values.clone();
    far[4 * 6 + 1] = 900.0;
    let far = write(folder.path(), "far.npy", npy::write_doubles(&[120, 4], &far));
    let remote = hetal(&["predict", "--json", "--dir", dir, "--features", text(&far), "--remote"]);
    let note = String::from_utf8_lossy(&remote.stderr).into_owned();
    assert!(remote.status.success() && note.contains("note: row 7 is more than 2 times as long as"), "{note}");
    let remote: Value = serde_json::from_slice(&remote.stdout).unwrap();
    assert_eq!(classes(&remote), classes(&run(&far, &[])));
    let all = write(folder.path(), "all.npy", npy::write_doubles(&[2, 4], &[900.0; 8]));
    assert!(refused(&all, &["--remote"]).contains("rows 1, 2: more than 2 times as long as the longest"));

    names_and_probabilities(folder.path(), dir);
    lost_keys_are_sent_again(folder.path(), dir, features);
    jobs_uploads_and_models(dir);

    // A model file of an earlier version has no names: columns are taken in their order, and that
    // is said.
    let mut old: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    old.as_object_mut().unwrap().remove("columns");
    old.as_object_mut().unwrap().remove("class_type");
    std::fs::write(&path, old.to_string()).unwrap();
    let by_count = hetal(&["predict", "--json", "--dir", dir, "--features", features, "--label-column", "kind"]);
    let note = String::from_utf8_lossy(&by_count.stderr).into_owned();
    assert!(note.contains("the model has no names of columns"), "{note}");
    let by_count: Value = serde_json::from_slice(&by_count.stdout).unwrap();
    assert_eq!(classes(&by_count), classes(&right));
}

/// `predict` writes names of rows and the probabilities of all classes.
fn names_and_probabilities(folder: &Path, dir: &str) {
    let table = csv(&[("customer", 0), ("a", 0), ("b", 1), ("c", 2), ("d", 3)], 4);
    let mut lines: Vec<String> = table.lines().map(str::to_owned).collect();
    for (k, line) in lines.iter_mut().enumerate().skip(1) {
        *line = format!("Ann {k},{}", line.split_once(',').unwrap().1);
    }
    let (file, out) = (write(folder, "customers.csv", lines.join("\n")), folder.join("out.csv"));
    let words = ["predict", "--dir", dir, "--features", text(&file), "--drop", "kind", "--id-column", "customer"];
    let predicted = hetal(&[&words[..], &["--out", text(&out)]].concat());
    let said = String::from_utf8_lossy(&predicted.stderr).into_owned();
    assert!(predicted.status.success() && said.is_empty(), "{said}");
    let written = std::fs::read_to_string(&out).unwrap();
    let lines: Vec<Vec<&str>> = written.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0], ["customer", "class", "probability", "probability 3", "probability 8"]);
    assert_eq!((lines.len(), lines[1][0], lines[4][0]), (5, "Ann 1", "Ann 4"));
    for line in &lines[1..] {
        let numbers: Vec<f64> = line[2..].iter().map(|field| field.parse().unwrap()).collect();
        assert_eq!(numbers[0], numbers[1].max(numbers[2]), "{line:?}");
        assert!((numbers[1] + numbers[2] - 1.0).abs() < 0.011, "{line:?}");
    }
    let report = json(&[&words[..], &["--json"]].concat());
    assert_eq!(report["inputs"][3], "Ann 4");
    assert_eq!(report["predictions"][0]["probabilities"].as_array().unwrap().len(), 2);
    let unknown = error(&[&words[..7], &["--id-column", "name"]].concat());
    assert!(unknown.contains("column name not found; the file contains: customer, a, b, c, d, kind"), "{unknown}");
}

/// A server whose disk lost a key set gets it again; if the owner lost it, too, that is said with
/// what to do.
fn lost_keys_are_sent_again(folder: &Path, dir: &str, features: &str) {
    let predict = ["predict", "--json", "--dir", dir, "--features", features, "--label-column", "kind", "--remote"];
    let keys = files(&folder.join("server")).into_iter().max_by_key(|file| file.metadata().unwrap().len()).unwrap();
    let (there, size) = (classes(&json(&predict)), keys.metadata().unwrap().len());
    std::fs::remove_file(&keys).unwrap();
    assert_eq!(classes(&json(&predict)), there);
    std::fs::remove_file(&keys).unwrap();
    let own: Vec<PathBuf> =
        files(Path::new(dir)).into_iter().filter(|file| file.metadata().unwrap().len() == size).collect();
    assert_eq!(own.len(), 1, "{own:?}");
    let kept = std::fs::read(&own[0]).unwrap();
    std::fs::remove_file(&own[0]).unwrap();
    let said = error(&predict);
    assert!(said.contains("the key set of model model is missing on") && said.contains("without --remote"), "{said}");
    std::fs::write(&own[0], kept).unwrap();
    assert_eq!(classes(&json(&predict)), there);
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// An owner sees what he has on the server and in his project, and frees what no job uses.
fn jobs_uploads_and_models(dir: &str) {
    let jobs = String::from_utf8_lossy(&hetal(&["jobs", "--dir", dir]).stdout).into_owned();
    let job = jobs.lines().find(|line| line.contains(" model ")).unwrap().split(' ').next().unwrap().to_owned();
    assert_eq!(job.len(), 8, "{jobs}");
    let status = String::from_utf8_lossy(&hetal(&["status", &job[..4], "--dir", dir]).stdout).into_owned();
    assert!(status.starts_with(&job) && status.contains("finished"), "{status}");
    let models = String::from_utf8_lossy(&hetal(&["model", "list", "--dir", dir]).stdout).into_owned();
    let begins = models.starts_with("model                4 features, 2 classes, ");
    assert!(begins && models.contains(" rows, accuracy on them "), "{models}");

    let uploads = || json(&["uploads", "--json", "--dir", dir]);
    let before = uploads();
    let all = before["uploads"].as_array().unwrap();
    assert!(!all.is_empty() && all.iter().all(|upload| upload["jobs"] == 1 && upload["complete"] == true), "{before}");
    assert!(before["bytes"].as_u64() < before["bytes_most"].as_u64(), "{before}");
    let freed = json(&["uploads", "--free", "--json", "--dir", dir]);
    assert_eq!((&freed["deleted"], uploads()), (&serde_json::json!([]), before.clone()), "all are used");
    // A project that lost its record does not know the uploads of a job.
    let record = Path::new(dir).join("jobs/model/job.json");
    let kept = std::fs::read(&record).unwrap();
    std::fs::remove_file(&record).unwrap();
    json(&["delete", &job, "--json", "--dir", dir]);
    std::fs::write(&record, kept).unwrap();
    assert!(uploads()["uploads"].as_array().unwrap().iter().all(|upload| upload["jobs"] == 0));
    let text = String::from_utf8_lossy(&hetal(&["uploads", "--dir", dir]).stdout).into_owned();
    assert!(text.contains("used by no job") && text.contains("`hetal uploads --free`"), "{text}");
    let freed = json(&["uploads", "--free", "--json", "--dir", dir]);
    assert_eq!(freed["deleted"].as_array().unwrap().len(), all.len());
    assert_eq!((&uploads()["uploads"], &uploads()["bytes"]), (&serde_json::json!([]), &serde_json::json!(0)));
}

/// Raw columns in different units, with missing values and a constant column: the model remembers
/// how they were prepared, so that predictions here and on the server and exports agree.
#[test]
fn rows_are_prepared_the_same_way_everywhere() {
    let folder = TempDir::new();
    let server = Server::start(folder.path());
    let dir = folder.path().join("p");
    let field = |k: usize, j: usize, x: f64| match j {
        0 => format!("{}", 40_000.0 + 9_000.0 * x),
        1 if k % 17 == 3 => String::new(),
        2 => "7.5".to_owned(),
        _ => x.to_string(),
    };
    let line = |(k, (values, class)): (usize, ([f64; 4], usize))| {
        let fields: String = (0..4).map(|j| field(k, j, values[j]) + ",").collect();
        format!("{fields}{}\n", ["no", "yes"][class])
    };
    let table = "pay,b,same,d,kind\n".to_owned() + &rows(120).into_iter().enumerate().map(line).collect::<String>();
    let features = write(folder.path(), "rows.csv", table);
    let (dir, features) = (text(&dir), text(&features));
    let mut train =
        vec!["train", "--verify", "--set", SET, "--dir", dir, "--features", features, "--label-column", "kind"];
    train.extend(["--batch", "64", "--epochs", "6", "--verdict-delay-ms", "0"]);
    let to_server = server.arguments();
    train.extend(to_server.iter().map(String::as_str));
    let refused = error(&train);
    assert!(refused.contains("7 values are missing") && refused.contains("--impute median"), "{refused}");
    for scale in ["auto", "sqrt"] {
        // The noise of one model tells nothing about that of the other: each has a key of its own.
        let own = ["--impute", "mean", "--scale", scale, "--name", scale, "--fresh-keys"];
        let trained = hetal(&[&train[..], if scale == "auto" { &own[..6] } else { &own }].concat());
        let said = String::from_utf8_lossy(&trained.stderr).into_owned();
        assert!(trained.status.success(), "{said}");
        let chosen = if scale == "auto" { "scaling: standard (every column" } else { "scaling: sqrt (square roots" };
        assert!(said.contains(chosen) && said.contains("by the mean of their column: 7"), "{said}");
        assert!(said.contains("few rows: all 120 are trained on"), "{said}");
        let out = String::from_utf8_lossy(&trained.stdout).into_owned();
        assert!(out.contains("accuracy on the training rows"), "{out}");
        assert!(out.contains("matches the plaintext reference"), "{out}");

        let predict = ["predict", "--json", "--exact", "--dir", dir, "--features", features, "--label-column", "kind"];
        let predict = [&predict[..], &["--model", scale]].concat();
        let (here, there) = (json(&predict), json(&[&predict[..], &["--remote"]].concat()));
        assert_eq!(classes(&here), classes(&there));
        let probability = |report: &Value, k: usize| report["predictions"][k]["probability"].as_f64().unwrap();
        for k in 0..120 {
            assert!((probability(&here, k) - probability(&there, k)).abs() < 1e-3, "{scale}, row {}", k + 1);
        }
        assert!(scale == "sqrt" || here["evaluation"]["accuracy"].as_f64().unwrap() > 0.95, "{here}");

        // The published weights apply to rows as they are, once the file's preparation is done.
        let out = folder.path().join("model.json");
        json(&[
            "model",
            "export",
            "--json",
            "--dir",
            dir,
            "--model",
            scale,
            "--format",
            "sklearn",
            "--out",
            text(&out),
            "--models",
            "4",
            "--security",
            "10",
        ]);
        let model: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
        let fill: Vec<f64> = model["rows"]["impute"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
        assert_eq!(model["rows"]["scale"], if scale == "sqrt" { "sqrt".into() } else { Value::Null });
        for (k, (values, _)) in rows(120).into_iter().enumerate() {
            let mut row: Vec<f64> = (0..4).map(|j| field(k, j, values[j]).parse().unwrap_or(fill[j])).collect();
            if scale == "sqrt" {
                row.iter_mut().for_each(|x| *x = x.signum() * x.abs().sqrt());
                let length = row.iter().map(|x| x * x).sum::<f64>().sqrt();
                row.iter_mut().for_each(|x| *x /= length);
            }
            let weights = model["coef"][0].as_array().unwrap().iter().map(|w| w.as_f64().unwrap());
            let logit = weights.zip(&row).map(|(w, x)| w * x).sum::<f64>() + model["intercept"][0].as_f64().unwrap();
            let likelier = if logit > 0.0 { "yes" } else { "no" };
            // The noise of a release may decide near the boundary.
            assert!(
                logit.abs() < 0.5 || here["predictions"][k]["class"] == likelier,
                "{scale}, row {}: {logit}",
                k + 1
            );
        }
    }
}

/// `plan` reports on the rows, with what was guessed, and options decide what is read.
#[test]
fn plans_report_on_tables() {
    let folder = TempDir::new();
    let plan = |file: &Path, more: &[&str]| {
        let words = ["plan", "--set", SET, "--features", text(file)];
        hetal(&[&words[..], more].concat())
    };
    let said = |file: &Path, more: &[&str]| {
        let output = plan(file, more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let refused = |file: &Path, more: &[&str]| String::from_utf8_lossy(&plan(file, more).stderr).into_owned();
    let semicolons = csv(&named(), 60).replace(',', ";");
    let file = write(folder.path(), "semicolons.csv", &semicolons);
    let words = said(&file, &["--label-column", "kind"]);
    assert!(words.starts_with("60 rows, 4 columns: a, b, c, d\n"), "{words}");
    assert!(words.contains("guessed: fields are separated by semicolons (--delimiter ,)"), "{words}");
    let decided = said(&file, &["--label-column", "kind", "--delimiter", ";", "--columns", "a,c", "--header", "yes"]);
    assert!(decided.starts_with("60 rows, 2 columns: a, c\n") && !decided.contains("guessed"), "{decided}");
    let report = plan(&file, &["--label-column", "5", "--drop", "1,b", "--json"]);
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["data"]["names"], serde_json::json!(["c", "d"]));
    assert_eq!(report["data"]["classes"][1], serde_json::json!({ "class": "8", "rows": 30 }));

    let commas = write(folder.path(), "commas.csv", semicolons.replace('.', ","));
    assert!(refused(&commas, &["--label-column", "kind"]).contains("give --decimal ,"));
    assert!(said(&commas, &["--label-column", "kind", "--decimal", ","]).starts_with("60 rows, 4 columns"));
    let latin: Vec<u8> = csv(&named(), 60).replace(",3\n", ",caf\u{e9}\n").chars().map(|c| c as u8).collect();
    let latin = write(folder.path(), "latin.csv", latin);
    assert!(
        refused(&latin, &["--label-column", "kind"]).contains("0xe9 is not valid UTF-8: give the file's --encoding")
    );
    assert!(said(&latin, &["--label-column", "kind", "--encoding", "latin1"]).contains("café (30)"));

    // The labels that pandas writes have a heading.
    let features = write(folder.path(), "x.npy", npy::write_doubles(&[60, 1], &[1.5; 60]));
    let labels = write(folder.path(), "y.csv", format!("species\n{}", "setosa\nvirginica\n".repeat(30)));
    let output = plan(&features, &["--labels", text(&labels)]);
    let note = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(note.contains("\"species\" above the labels is taken as their heading (--header no)"), "{note}");
    let words = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(words.contains("2 classes: setosa (30), virginica (30)"), "{words}");
    assert!(words.contains("warning: column 1 has in every row the same value"), "{words}");
    let wide = plan(
        &features,
        &["--labels", text(&labels), "--validation", text(&file), "--validation-labels", text(&labels)],
    );
    let wide = String::from_utf8_lossy(&wide.stderr).into_owned();
    assert!(!wide.contains("18446744073709551615"), "{wide}");
    // Without a file, the number of columns is a number.
    let numbers = json(&["plan", "--json", "--set", SET, "--rows", "80", "--columns", "4", "--classes", "2"]);
    assert_eq!(numbers["features"], 4);
}

/// A plan for a number of rows is that for a file of as many, as far as the number decides.
#[test]
fn a_plan_without_a_file_is_that_of_its_training() {
    let folder = TempDir::new();
    let file = write(folder.path(), "rows.csv", csv(&named(), 1100));
    let same = |more: &[&str]| {
        let plan = |rows: &[&str]| json(&[&["plan", "--json", "--set", SET], rows, more].concat());
        let of_file = plan(&["--features", text(&file), "--label-column", "kind"]);
        let (rows, validation) = (of_file["rows"].to_string(), of_file["validation_rows"].to_string());
        let numbers = ["--rows", &rows, "--validation-rows", &validation, "--columns", "4", "--classes", "2"];
        let of_numbers = plan(&numbers);
        for name in ["batch", "batches", "max_epochs", "check_every", "checks_at_most", "upload_bytes", "key_bytes"] {
            assert_eq!(of_numbers[name], of_file[name], "{name}");
        }
        assert_eq!(of_numbers["download_bytes_at_the_end"], of_file["download_bytes_at_the_end"]);
        of_numbers
    };
    let plan = same(&[]);
    assert_eq!((&plan["rate"], &plan["alpha"]), (&Value::Null, &Value::Null));
    assert_eq!((plan["batches"].as_u64(), plan["max_epochs"].as_u64()), (Some(3), Some(43)));
    same(&["--batch", "100"]);
    same(&["--epochs", "5", "--check-every", "2"]);
}
