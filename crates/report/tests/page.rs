//! The page shows the record, all of it is text, and it asks nobody for anything.
#![allow(clippy::unwrap_used)]

use hetal_report::*;
use serde_json::Value;

/// A training of `checks` checks, one of which widened the range.
fn record(checks: usize, classes: usize) -> Record {
    let loss = |k: usize| (800.0 / (k + 1) as f64).round() / 1000.0 + 0.1;
    let check = |k: usize| Check {
        number: k + 1,
        verdict: match k {
            1 => Verdict::WidenRange,
            _ if k + 1 == checks => Verdict::Stop,
            _ => Verdict::Continue,
        },
        accepted: k != 1,
        loss: Some(loss(k)),
        accuracy: Some(1.0 - loss(k) / 2.0),
        largest_logit: Some(20.0 + k as f64 / 8.0),
        range: if k < 2 { 32.0 } else { 128.0 },
        limit: if k < 2 { 25.6 } else { 102.4 },
        rate: Some(2.0),
        seconds: Some(12.5 * (k + 1) as f64),
    };
    let class = |k: usize| ClassMeasures {
        rows: 70 + k,
        precision: Some(0.91),
        recall: Some(0.875),
        f1: Some(0.892),
        roc_auc: Some(0.987),
    };
    let row =
        |i: usize| (0..classes).map(|j| if i == j { 65 } else { usize::from((i + j).is_multiple_of(3)) }).collect();
    let curve = |class: usize| RocCurve { class, points: vec![(0.0, 0.0), (0.02, 0.85), (0.25, 0.96875), (1.0, 1.0)] };
    let bin = |k: usize| CalibrationBin {
        predicted: 0.345 + 0.1 * k as f64,
        right: 0.3125 + 0.1 * k as f64,
        rows: 17 * k + 1,
    };
    let mut record = Record {
        format: FORMAT.to_owned(),
        version: VERSION,
        notice: "PRIVATE: like the model file.".to_owned(),
        name: "birds".to_owned(),
        program: "hetal 0.1.0".to_owned(),
        began: Some("2026-11-18T20:01:05Z".to_owned()),
        ended: Some("2026-11-18T20:31:05Z".to_owned()),
        command: Some("hetal train --features birds.csv".to_owned()),
        shape: TrainedShape {
            features: 768,
            classes,
            rows: 2048,
            validation_rows: 511,
            validated_on_training_rows: false,
        },
        classes: (0..classes).map(|k| format!("species {k}")).collect(),
        outcome: Some(Outcome {
            epochs: checks - 1,
            best_epoch: checks - 1,
            checks: checks - 1,
            best_check: Some(checks),
            iterations: 4 * checks as u64,
            loss: loss(checks - 1),
            accuracy: 1.0 - loss(checks - 1) / 2.0,
            converged: Some(true),
            difference_bound: Some(2.5e-7),
            agrees: Some(true),
            exportable: true,
        }),
        measures: Some(MeasureRecord {
            accuracy_score: 0.9531,
            balanced_accuracy_score: 0.9487,
            f1_macro: 0.951,
            f1_weighted: 0.953,
            log_loss: 0.162,
            brier_score_loss: 0.071,
            roc_auc_score: Some(0.996),
            average_precision_score: None,
            largest_class_share: 0.1546,
            per_class: (0..classes).map(class).collect(),
            confusion_matrix: (0..classes).map(row).collect(),
            roc_curves: (0..classes.min(12)).map(curve).collect(),
            calibration_curve: (0..6).map(bin).collect(),
        }),
        phases: ["making keys", "encrypting rows", "sending rows", "training"]
            .iter()
            .enumerate()
            .map(|(k, name)| PhaseSeconds { name: (*name).to_owned(), seconds: 3.25 * (k + 1) as f64 })
            .collect(),
        seconds: Some(32.5),
        iteration_seconds: Some(0.875),
        transfers: vec![
            Transfer { what: "key set".to_owned(), sent: true, bytes: 1_660_000_000, transferred: Some(1_660_000_000) },
            Transfer { what: ALL_SENT.to_owned(), sent: true, bytes: 1_900_000_000, transferred: Some(1_800_000_000) },
        ],
        server: ServerRecord {
            address: Some("localhost:7443".to_owned()),
            engine: Some("cpu".to_owned()),
            job: Some("0f".repeat(16)),
        },
        parameters: ParameterRecord {
            set: "full".to_owned(),
            security_bits: Some(132.2),
            degree: Some(65536),
            modulus_bits: Some(1740.0),
            slots: Some(32768),
            key_id: Some("3a5b".to_owned()),
        },
        hyper_parameters: HyperParameterRecord {
            batch: 512,
            rate: Some(2.0),
            patience: 3,
            max_epochs: 10,
            range: 32.0,
            alpha: Some(0.001),
            lowering: Some(0.5),
            seed: Some(1),
            check_every: 4,
        },
        preparation: PreparationRecord { scaling: "unit-row".to_owned(), prior: 0.5, ..PreparationRecord::default() },
        model_path: Some("hetal-project/models/birds.json".to_owned()),
        ..Record::default()
    };
    record.set_checks((0..checks).map(check).collect());
    record
}

/// Every number of a value, and every text.
fn leaves<'a>(value: &'a Value, numbers: &mut Vec<f64>, texts: &mut Vec<&'a str>) {
    match value {
        Value::Number(number) => numbers.push(number.as_f64().unwrap()),
        Value::String(text) => texts.push(text),
        Value::Array(all) => all.iter().for_each(|value| leaves(value, numbers, texts)),
        Value::Object(all) => all.values().for_each(|value| leaves(value, numbers, texts)),
        Value::Null | Value::Bool(_) => {}
    }
}

/// What stands between `start` and `end`, each time.
fn all_between<'a>(page: &'a str, start: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    page.split(start).skip(1).map(move |rest| rest.split(end).next().unwrap())
}

/// A page without elements of a name.
fn without(page: &str, name: &str) -> String {
    let (start, end) = (format!("<{name}"), format!("</{name}>"));
    let mut pieces = page.split(&start);
    let first = pieces.next().unwrap().to_owned();
    pieces.fold(first, |kept, piece| {
        let goes_on = piece.starts_with(['>', ' ']);
        if goes_on { kept + piece.split_once(&end).unwrap().1 } else { kept + &start + piece }
    })
}

/// What is written for people to read, without tags.
fn visible(page: &str) -> String {
    page.split('<').map(|piece| piece.split_once('>').map_or(piece, |(_, text)| text)).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_number_of_the_page_is_a_number_of_the_record() {
    for (checks, classes) in [(1, 2), (5, 7), (200, 7), (5, 60)] {
        let record = record(checks, classes);
        let (page, value) = (page(&record), serde_json::to_value(&record).unwrap());
        let (mut numbers, mut texts) = (Vec::new(), Vec::new());
        leaves(&value, &mut numbers, &mut texts);
        let mut shown = 0;
        for attribute in ["<data value=\"", " data-x=\"", " data-y=\"", " data-value=\""] {
            for number in all_between(&page, attribute, "\"") {
                let number: f64 = number.parse().unwrap();
                assert!(numbers.contains(&number), "{attribute}{number} is not in the record");
                shown += 1;
            }
        }
        assert!(shown > 60, "{shown} numbers");
        for time in all_between(&page, "datetime=\"", "\"") {
            assert!(texts.contains(&time), "{time}");
        }
        // Nothing else has digits: neither prose nor captions. Ticks of axes and what names points
        // to a mouse follow from the numbers above.
        let body = page.split_once("<body>").unwrap().1;
        let rest = ["data", "time", "bdi", "code", "title", "desc", "text"]
            .iter()
            .fold(body.to_owned(), |rest, name| without(&rest, name));
        let rest = visible(&rest);
        let digit = rest.find(|c: char| c.is_ascii_digit()).map(|at| &rest[at.saturating_sub(60)..at + 1]);
        assert_eq!(digit, None);
    }
}

#[test]
fn what_others_wrote_is_text() {
    let hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&";
    let mut record = record(5, 2);
    record.name = hostile.to_owned();
    record.classes = vec![hostile.to_owned(), "</title></svg><b onclick=x>".to_owned()];
    record.command = Some(hostile.to_owned());
    record.program = hostile.to_owned();
    record.notice = hostile.to_owned();
    record.server =
        ServerRecord { address: Some(hostile.into()), engine: Some(hostile.into()), job: Some(hostile.into()) };
    record.parameters.set = hostile.to_owned();
    record.parameters.key_id = Some(hostile.to_owned());
    record.preparation.scaling = hostile.to_owned();
    record.model_path = Some(hostile.to_owned());
    record.phases[0].name = hostile.to_owned();
    record.transfers[0].what = hostile.to_owned();
    record.began = Some(hostile.to_owned());
    let page = page(&record);
    let honest = self::record(5, 2);
    let tags = |page: &str| {
        let mut names: Vec<String> =
            all_between(page, "<", ">").map(|tag| tag.split(' ').next().unwrap().to_owned()).collect();
        names.dedup();
        names
    };
    assert_eq!(tags(&page), tags(&hetal_report::page(&honest)), "the same elements");
    assert!(!page.contains("<script") && !page.contains("<img") && !page.contains("<b "), "{page}");
    assert!(page.contains("&lt;/script&gt;"));
}

#[test]
fn the_page_asks_nobody_for_anything() {
    let page = page(&record(5, 7));
    for word in ["http:", "https:", "//", "@import", "url(", "<script", " style=", " src="] {
        let found = page.split(word).nth(1).map(|rest| &rest[..40]);
        assert!(!page.contains(word), "{word}: {found:?}");
    }
    assert!(page.contains("default-src 'none'") || page.contains("default-src &apos;none&apos;"));
}

#[test]
fn the_policy_allows_the_style_sheet_of_the_page() {
    use sha2::{Digest, Sha256};
    let page = page(&record(2, 2));
    let style = all_between(&page, "<style>", "</style>").next().unwrap();
    let hash = base64(&Sha256::digest(style.as_bytes()));
    assert!(page.contains(&format!("sha256-{hash}&apos;")), "write {hash} into src/page/style.hash");
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |chunk: &[u8]| -> String {
        let bits = chunk.iter().enumerate().fold(0u32, |bits, (k, byte)| bits | u32::from(*byte) << (16 - 8 * k));
        let letter =
            |k: usize| if k <= chunk.len() { LETTERS[(bits >> (18 - 6 * k) & 63) as usize] as char } else { '=' };
        (0..4).map(letter).collect()
    };
    bytes.chunks(3).map(group).collect()
}

/// Every name that one element gives is one that another element has.
#[test]
fn references_lead_somewhere() {
    let page = page(&record(5, 7));
    let ids: Vec<&str> = all_between(&page, " id=\"", "\"").collect();
    let mut unique = ids.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), ids.len(), "{ids:?}");
    let links = all_between(&page, "href=\"#", "\"");
    let labels = all_between(&page, "aria-labelledby=\"", "\"").flat_map(|names| names.split(' '));
    for name in links.chain(labels) {
        assert!(ids.contains(&name), "{name}");
    }
}

/// What earlier versions did not record is said to be missing.
#[test]
fn a_model_without_a_record_has_a_page() {
    let mut record = record(5, 3);
    record.set_checks(Vec::new());
    (record.measures, record.phases, record.transfers, record.command) = (None, Vec::new(), Vec::new(), None);
    (record.began, record.ended, record.seconds, record.iteration_seconds) = (None, None, None, None);
    record.server = ServerRecord::default();
    record.parameters = ParameterRecord { set: "full".to_owned(), ..ParameterRecord::default() };
    let page = page(&record);
    assert_eq!(page.matches("class=\"missing\"").count(), 4, "{page}");
    assert!(page.contains("earlier version") && !page.contains("<svg class=\"chart\""));
}

#[test]
fn pages_are_light() {
    for (checks, classes, most) in [(5, 7, 64), (200, 7, 200), (200, 128, 300)] {
        let kilobytes = page(&record(checks, classes)).len() / 1000;
        assert!(kilobytes < most, "{checks} checks, {classes} classes: {kilobytes} kB");
    }
}

/// A record comes back from its file to the last bit, and from a file that lacks everything new.
#[test]
fn records_are_read_back() {
    let record = record(5, 7);
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    assert_eq!(serde_json::from_str::<Record>("{}").unwrap(), Record::default());
}

/// A training in progress.
fn running(checks: usize) -> Record {
    let progress = CurrentPhase {
        phase: "server: training".to_owned(),
        done: 17,
        total: 24,
        unit: Unit::Iterations,
        epoch: 4,
        engine: Some("cpu".to_owned()),
        seconds_left: Some(21.0),
        at: "2026-11-18T20:11:05Z".to_owned(),
    };
    let (state, ended) = (TrainingState::Running, None);
    Record { state, ended, progress: Some(progress), outcome: None, measures: None, ..record(checks, 7) }
}

/// The overview with a project of each kind.
fn overview_of(unfinished: Record, model: Record, problem: &str) -> Overview {
    let project = ProjectOverview {
        folder: problem.to_owned(),
        unfinished: vec![unfinished],
        models: vec![model, record(3, 2)],
        problems: vec![problem.to_owned()],
    };
    Overview { projects: vec![project, ProjectOverview::default()] }
}

#[test]
fn every_number_of_the_live_pages_is_a_number_of_the_json() {
    let all = overview_of(running(5), record(9, 7), "cannot be read");
    let pages = [
        (overview("/token", &all), serde_json::to_value(&all).unwrap()),
        (training("/token", &running(5)), serde_json::to_value(running(5)).unwrap()),
    ];
    for (page, value) in &pages {
        let (mut numbers, mut texts) = (Vec::new(), Vec::new());
        leaves(value, &mut numbers, &mut texts);
        let shown: Vec<f64> =
            all_between(page.as_str(), "<data value=\"", "\"").map(|number| number.parse().unwrap()).collect();
        assert!(shown.len() > 12 && shown.iter().all(|number| numbers.contains(number)), "{shown:?}");
        assert!([17.0, 24.0, 21.0].iter().all(|number| shown.contains(number)), "{shown:?}");
    }
}

#[test]
fn what_others_wrote_is_text_on_live_pages() {
    let hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&";
    let mut record = running(5);
    record.name = hostile.to_owned();
    record.progress.as_mut().unwrap().phase = hostile.to_owned();
    record.progress.as_mut().unwrap().engine = Some(hostile.to_owned());
    let model = Record { name: hostile.to_owned(), ended: Some(hostile.to_owned()), ..self::record(2, 2) };
    let pages = [training("/token", &record), overview("/token", &overview_of(record, model, hostile))];
    for page in pages {
        let page = shell("/token", hostile, &page);
        // The page has one script, from its own server.
        assert_eq!(page.matches("<script").count(), 1, "{page}");
        assert!(page.contains("<script src=\"/token/watch.js\"") && !page.contains("<img"), "{page}");
        assert!(page.contains("&lt;/script&gt;"));
    }
}

/// What a server with two tenants does.
fn operation_of_a_server() -> Operation {
    let named = |name: &str, count, mean| (name.to_owned(), count, mean);
    let counted = |name: &str, count| (name.to_owned(), count);
    let gpu = |name: &str, iterations, each| DeviceState {
        name: name.to_owned(),
        model: Some("NVIDIA H200".to_owned()),
        iterations,
        iteration_seconds: Some(each),
        used_bytes: Some(58_400_000_000),
        total_bytes: Some(150_100_000_000),
        celsius: Some(61),
    };
    let uses = |name: &str, bytes| TenantUse {
        name: name.to_owned(),
        bytes,
        most_bytes: 128 << 30,
        uploads: 412,
        most_uploads: 10_000,
        jobs: 37,
        most_jobs: 1000,
    };
    Operation {
        program: "hetal-server 0.1.0".to_owned(),
        uptime: 93_784.0,
        free_bytes: Some(812_000_000_000),
        certificate_seconds: Some(31_000_000),
        jobs: Some(vec![counted("queued", 3), counted("running", 2), counted("waiting", 1), counted("finished", 418)]),
        errors: vec![counted("failed jobs", 1), counted("requests that were refused or failed", 12)],
        transferred: [1_240_000_000_000, 3_900_000_000],
        devices: vec![gpu("gpu 0", 20_412, 0.0483), DeviceState { celsius: None, ..gpu("gpu 1", 19_877, 0.0491) }],
        tenants: Some(vec![uses("clinic-a", 61_203_000_000), uses("clinic-b", 412_000_000)]),
        more_tenants: 3,
        waits: vec![named("clinic-a", 210, 4.2), named("clinic-b", 208, 61.7)],
        uploads: vec![named("clinic-a", 4_200, 151_000_000.0), named("clinic-b", 4_160, 148_000_000.0)],
        requests: vec![named("Hello", 911, 0.002), named("Upload", 8_360, 3.4), named("Watch", 880, 412.0)],
        ..Operation::default()
    }
}

#[test]
fn every_number_of_the_operator_s_page_is_a_number_of_the_server() {
    let now = operation_of_a_server();
    let (page, value) = (operation(&now), serde_json::to_value(&now).unwrap());
    let (mut numbers, mut texts) = (Vec::new(), Vec::new());
    leaves(&value, &mut numbers, &mut texts);
    // What the tiles sum up or convert.
    numbers.extend([f64::from(20_412 + 19_877), f64::from(1 + 12), f64::from(31_000_000 / 86_400)]);
    let shown: Vec<f64> = all_between(&page, "<data value=\"", "\"").map(|number| number.parse().unwrap()).collect();
    assert!(shown.len() > 25 && shown.iter().all(|number| numbers.contains(number)), "{shown:?}");
}

/// What the driver does not tell is absent. It is never zero.
#[test]
fn what_a_driver_does_not_tell_is_not_shown() {
    let now = operation_of_a_server();
    let both = operation(&now);
    assert!(both.contains("<data value=\"61\">61</data> °C") && both.contains("NVIDIA H200"), "{both}");
    assert_eq!(both.matches("not known").count(), 1, "one card has no sensor");
    let cpu = DeviceState { name: "cpu".to_owned(), ..DeviceState::default() };
    let none = operation(&Operation { devices: vec![cpu], ..now });
    for word in ["temperature", "°C", "memory in use", "not known", "NVIDIA"] {
        assert!(!none.contains(word), "{word}");
    }
    assert!(none.contains("none yet"));
}

/// Writes a page to look at: `HETAL_PAGES=FOLDER cargo test -p hetal-report --test page`.
#[test]
fn pages_to_look_at() {
    let Ok(folder) = std::env::var("HETAL_PAGES") else { return };
    for (name, checks, classes) in [("seven", 9, 7), ("two", 3, 2), ("many", 120, 60)] {
        std::fs::write(format!("{folder}/{name}.html"), page(&record(checks, classes))).unwrap();
    }
    std::fs::write(format!("{folder}/operator.html"), operation(&operation_of_a_server())).unwrap();
}
