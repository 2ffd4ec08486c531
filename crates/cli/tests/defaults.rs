//! The defaults of trainings, on the tables of `hetal bench tables`.
#![allow(clippy::unwrap_used)]

mod common;

use common::{SET, Server, json, text};
use hetal_testkit::TempDir;
use serde_json::Value;

const TABLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments/data/tables");

fn bench(arguments: &[&str]) -> Vec<Value> {
    let report = json(&[&["bench", "tables", "--json", "--data", TABLES], arguments].concat());
    report.as_array().unwrap().clone()
}

/// At most half a point below scikit-learn's scaled LogisticRegression, on 20 splits and on those
/// that no default was chosen on. The digits, which take longer, are left to `hetal bench tables`.
#[test]
fn defaults_are_as_good_as_those_of_scikit_learn() {
    let reports = bench(&["--tables", "iris,wine,breast-cancer,separable,separable-id"]);
    assert_eq!(reports.len(), 5);
    for report in reports {
        assert_eq!(report["holds"], true, "{report}");
        let others = report["points_11_to_20"].as_f64().unwrap();
        assert!((-0.5..5.0).contains(&others), "{report}");
        assert!(report["iterations"].as_f64().unwrap() <= 128.0, "{report}");
    }
}

/// The quick part of `hetal bench tables --engine cpu`: fewer epochs, and two of the six tables.
#[test]
fn tables_on_ciphertexts_are_predicted_as_in_the_clear() {
    for report in bench(&["--engine", "cpu", "--set", SET, "--tables", "separable,wine", "--epochs", "8"]) {
        assert_eq!(report["different_predictions"], 0, "{report}");
        assert_eq!((&report["checks"], &report["plain_checks"]), (&2.into(), &2.into()), "{report}");
        assert!(report["weights_relative_difference"].as_f64().unwrap() < 1e-3, "{report}");
        assert!(report["accuracy"].as_f64().unwrap() > 0.9, "{report}");
    }
}

/// A small table validates its own rows: the training ends when their loss has settled, and its
/// last check is taken.
#[test]
fn a_small_table_is_trained_until_its_loss_settles() {
    let folder = TempDir::new();
    let server = Server::start(folder.path());
    let row = |k: usize| {
        let wave = |j: usize| ((k * 5 + j * 3) as f64).sin();
        let class = if wave(0) + 0.7 * wave(4) > 0.2 { "yes" } else { "no" };
        format!("{},{},{class}\n", wave(0), 400.0 * wave(1))
    };
    let features = folder.path().join("rows.csv");
    std::fs::write(&features, format!("a,b,kind\n{}", (0..60).map(row).collect::<String>())).unwrap();
    let dir = folder.path().join("p");
    let mut train = vec!["train", "--json", "--verify", "--set", SET, "--dir", text(&dir)];
    train.extend(["--features", text(&features), "--label-column", "kind", "--verdict-delay-ms", "0"]);
    // Strong L2, for few iterations.
    train.extend(["--alpha", "0.25", "--rate", "0.5", "--patience", "2"]);
    let to_server = server.arguments();
    train.extend(to_server.iter().map(String::as_str));
    let trained = json(&train);
    assert_eq!((&trained["validated_on_training_rows"], &trained["converged"]), (&true.into(), &true.into()));
    assert_eq!(trained["best_epoch"], trained["epochs"], "{trained}");
    assert!((5..40).contains(&trained["epochs"].as_u64().unwrap()), "{trained}");
    assert!(trained["reference_difference_bound"].as_f64().unwrap() < 1e-3, "{trained}");
}
