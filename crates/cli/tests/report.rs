//! `hetal train` leaves a record and a page; `hetal report` shows both.
#![allow(clippy::unwrap_used)]

mod common;

use common::{SET, Server, error, hetal, json, text};
use hetal_testkit::TempDir;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

const HOSTILE: &str = "</script><b onclick=x>";

/// A table of two clusters. The name of the second class is markup.
fn table(rows: usize) -> String {
    let mut text = String::from("a,b,c,kind\n");
    for row in 0..rows {
        let class = row % 2;
        let noise = |k: usize| ((row * 7919 + k * 104_729) % 1000) as f64 / 1000.0 - 0.5;
        let near = |k: usize| 2.0 * f64::from(u8::from(k == class)) + 1.6 * noise(k);
        writeln!(text, "{:.4},{:.4},{:.4},{}", near(0), near(1), noise(2), ["ant", HOSTILE][class]).unwrap();
    }
    text
}

/// Trains on a server in this process, which need not live longer. Returns the result.
fn train(folder: &Path, dir: &str, more: &[&str]) -> Value {
    train_with_events(folder, dir, more).0
}

/// The same, with what was written to standard error.
fn train_with_events(folder: &Path, dir: &str, more: &[&str]) -> (Value, String) {
    let server = Server::start(folder);
    let features = folder.join("train.csv");
    std::fs::write(&features, table(300)).unwrap();
    let server = server.arguments();
    let server: Vec<&str> = server.iter().map(String::as_str).collect();
    let arguments = ["train", "--json", "--verify", "--dir", dir, "--set", SET, "--features", text(&features)];
    let rest =
        ["--label-column", "kind", "--epochs", "3", "--batch", "64", "--check-every", "1", "--verdict-delay-ms", "0"];
    let output = hetal(&[&arguments[..], &rest, &server, more].concat());
    let events = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{events}");
    // One object, and nothing else.
    (serde_json::from_slice(&output.stdout).unwrap(), events)
}

fn mode(path: &Path) -> u32 {
    std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions()) & 0o777
}

#[test]
fn a_training_ends_with_a_report() {
    let folder = TempDir::new();
    let project = folder.path().join("project");
    let dir = text(&project);
    let trained = train(folder.path(), dir, &["--name", "birds"]);
    let page = project.join("reports/birds.html");
    assert_eq!(trained["report_path"], text(&page));
    let written = std::fs::read_to_string(&page).unwrap();
    assert_eq!((mode(&page), mode(&project.join("reports/birds.json"))), (0o600, 0o600));
    // The name of a class is text.
    assert!(!written.contains(HOSTILE) && written.contains("&lt;/script&gt;&lt;b onclick=x&gt;"));

    let record = json(&["report", "birds", "--dir", dir, "--json"]);
    assert_eq!(record["outcome"]["accuracy"], trained["validation_accuracy"]);
    assert_eq!(record["outcome"]["accuracy"], record["measures"]["accuracy_score"]);
    assert_eq!(record["outcome"]["loss"], trained["validation_loss"]);
    assert_eq!(record["outcome"]["loss"], record["measures"]["log_loss"]);
    assert_eq!(record["outcome"]["difference_bound"], trained["reference_difference_bound"]);
    assert_eq!(record["outcome"]["agrees"], true);
    let checks = record["checks"].as_array().unwrap();
    let best = record["outcome"]["best_check"].as_u64().unwrap() as usize;
    assert_eq!(checks[best - 1]["loss"], record["outcome"]["loss"]);
    assert_eq!(checks[best - 1]["accuracy"], record["outcome"]["accuracy"]);
    assert!(checks.len() >= 3 && checks.iter().all(|check| check["seconds"].is_number()), "{checks:?}");
    let rows: u64 = record["measures"]["confusion_matrix"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|row| row.as_array().unwrap())
        .map(|count| count.as_u64().unwrap())
        .sum();
    assert_eq!(record["shape"]["validation_rows"], rows);
    assert!(record["command"].as_str().unwrap().contains(" train --json "), "{record}");
    let names: Vec<_> =
        record["phases"].as_array().unwrap().iter().map(|phase| phase["name"].as_str().unwrap()).collect();
    for phase in ["making keys", "encrypting rows", "sending keys", "sending rows", "server: training"] {
        assert!(names.contains(&phase), "{names:?}");
    }
    let sum: f64 = record["phases"].as_array().unwrap().iter().map(|phase| phase["seconds"].as_f64().unwrap()).sum();
    let wall = trained["wall_s"].as_f64().unwrap();
    assert!((sum - wall).abs() < 0.1 * wall + 0.5, "{sum} of {wall} seconds");
    let sent = &record["transfers"].as_array().unwrap()[..4];
    assert_eq!(sent[0]["bytes"], trained["key_bytes"]);
    assert_eq!(
        sent[3]["transferred"].as_u64().unwrap(),
        ["sent_key_bytes", "sent_row_bytes"].map(|name| trained[name].as_u64().unwrap()).iter().sum::<u64>()
    );

    // The page that the command writes is the one that the training wrote.
    let other = folder.path().join("other.html");
    assert!(hetal(&["report", "birds", "--dir", dir, "--out", text(&other)]).status.success());
    assert_eq!(std::fs::read_to_string(&other).unwrap(), written);
    assert_eq!(mode(&other), 0o600);

    // A model without a record, as earlier versions left it.
    std::fs::remove_dir_all(project.join("reports")).unwrap();
    let record = json(&["report", "birds", "--dir", dir, "--json"]);
    assert_eq!(record["outcome"]["accuracy"], trained["validation_accuracy"]);
    assert!(record["measures"].is_null() && record["checks"].as_array().unwrap().is_empty());
    assert!(hetal(&["report", "birds", "--dir", dir]).status.success());
    assert!(std::fs::read_to_string(&page).unwrap().contains("are not known"));

    let error = error(&["report", "wolves", "--dir", dir]);
    assert!(error.contains("wolves"), "{error}");
}

/// Progress is JSON lines: phases, uploads and checks, with the fields and digits of the record.
#[test]
fn events_tell_what_the_record_tells() {
    let folder = TempDir::new();
    let project = folder.path().join("project");
    let dir = text(&project);
    let (trained, written) = train_with_events(folder.path(), dir, &["--name", "birds"]);
    let record = json(&["report", "birds", "--dir", dir, "--json"]);
    let lines: Vec<Value> =
        written.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect();
    // The other lines warn of the parameter set and of permissions.
    let others = written.lines().filter(|line| !line.starts_with('{'));
    assert!(others.map(str::to_lowercase).all(|line| line.starts_with("warning: ")), "{written}");
    assert_eq!((&lines[0]["event"], &lines[0]["version"]), (&"begin".into(), &1.into()));
    let of = |kind: &str| lines.iter().filter(|line| line["event"] == kind).collect::<Vec<_>>();

    let (checks, recorded) = (of("check"), record["checks"].as_array().unwrap());
    assert_eq!(checks.len(), recorded.len());
    for (check, recorded) in checks.iter().zip(recorded) {
        for field in ["number", "verdict", "accepted", "loss", "accuracy", "largest_logit"] {
            assert_eq!(check[field], recorded[field], "{field}");
        }
    }
    let phases = of("phase");
    let names: Vec<&Value> = record["phases"].as_array().unwrap().iter().map(|phase| &phase["name"]).collect();
    assert!(names.iter().all(|name| phases.iter().any(|phase| phase["phase"] == **name)), "{written}");
    assert!(phases.iter().all(|phase| names.contains(&&phase["phase"])), "{written}");
    for (name, bytes) in [("sending keys", "sent_key_bytes"), ("sending rows", "sent_row_bytes")] {
        let sent = phases.iter().rfind(|phase| phase["phase"] == name).unwrap();
        assert_eq!((&sent["done"], &sent["total"], &sent["unit"]), (&trained[bytes], &trained[bytes], &"bytes".into()));
    }
    assert_eq!(of("engine")[0]["engine"], record["server"]["engine"]);
    assert!(of("note").iter().any(|note| note["text"].as_str().unwrap().contains("300 rows")), "{written}");
    let seconds: Vec<f64> = lines[1..].iter().map(|line| line["seconds"].as_f64().unwrap()).collect();
    assert!(seconds.is_sorted(), "{seconds:?}");
}

#[test]
fn a_locked_project_keeps_its_record_locked() {
    let folder = TempDir::new();
    let project = folder.path().join("project");
    let (dir, secret) = (text(&project), folder.path().join("passphrase"));
    std::fs::write(&secret, "correct horse battery staple").unwrap();
    let passphrase = ["--passphrase-file", text(&secret)];
    let trained = train(folder.path(), dir, &[&["--passphrase"][..], &passphrase].concat());
    assert!(trained["report_path"].is_null());
    assert!(!project.join("reports/model.html").exists());
    let stored = std::fs::read(project.join("reports/model.json")).unwrap();
    assert!(!stored.windows(8).any(|bytes| bytes == b"accuracy"), "locked");
    let record = json(&[&["report", "--dir", dir, "--json"][..], &passphrase].concat());
    assert_eq!(record["outcome"]["accuracy"], trained["validation_accuracy"]);
    assert!(!record["checks"].as_array().unwrap().is_empty());
}
