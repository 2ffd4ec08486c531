//! `hetal reproduce`: writes the tables and figures of the paper again, into one document.
//!
//! Each part stores its results as JSON next to the document. The next run uses stored results with
//! the same settings, so an interrupted run continues with the part that is missing.

use crate::bench::train::{self, CircuitChoice};
use crate::bench::{accuracy, matmul, softmax};
use crate::report::output;
use crate::report::plot::{Band, Plot};
use crate::report::table::TextTable;
use crate::runner::engine::EngineKind;
use crate::tuning::{DataSplits, RATES, ROW_NORMS, Trial, grid_search, preset, train_plain};
use crate::{Error, Result};
use clap::Parser;
use hetal_learn::agreement::PRESETS;
use hetal_learn::nesterov::Momentum;
use hetal_learn::paper::counts::SHAPES;
use hetal_learn::{Agreement, Wishes};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Arguments of `hetal reproduce`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// A folder with the feature folders snips-mpnet and facemask-lite0. Without it, the parts that
    /// train on real features are left out.
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// The folder for reproduce.md and for the folder reproduce with results and figures. Delete a
    /// result to compute it again.
    #[arg(long, default_value = "docs")]
    pub out: PathBuf,
    /// Where matrix products are timed.
    #[arg(long, value_enum, default_value = "clear")]
    pub engine: EngineKind,
    /// Where iterations are timed.
    #[arg(long, value_enum, default_value = "clear")]
    pub iterations_engine: EngineKind,
    /// The parameter set.
    #[arg(long, default_value = "full")]
    pub set: String,
    /// Rows sampled on each box for the softmax.
    #[arg(long, default_value_t = 10_000_000)]
    pub samples: usize,
    /// Compute a small part of everything, as a trial.
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON object with the paths of the document and its results.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let folder = arguments.out.join("reproduce");
    std::fs::create_dir_all(&folder).map_err(|e| file_error(&folder, &e))?;
    let reproduction = Reproduction { arguments, folder };
    let document = [
        HEADER.to_owned(),
        reproduction.softmax()?,
        reproduction.matrix_products()?,
        reproduction.iterations()?,
        reproduction.trainings()?,
        FOOTER.to_owned(),
    ]
    .join("\n");
    let path = arguments.out.join("reproduce.md");
    write(&path, &document)?;
    let value = json!({ "document": path, "results": reproduction.folder });
    output::print(arguments.json, &value, &path.display().to_string());
    Ok(())
}

const HEADER: &str = "# The paper, reproduced

`hetal reproduce` writes this page; do not edit it. It sets the paper's numbers beside ours. The
folder `reproduce/` holds the results of each part, with the settings they were made with.
";

const FOOTER: &str = "## What is not here

Accuracies on MNIST, CIFAR-10 and DermaMNIST (tables `tab:transfer`, `tab:largevit`) need features of
ViT-Base and ViT-Large, whose weights this project does not have. Their shapes are in the table of
iterations above. The data files of the paper's plots are not published, so only the extent of its
axes can be compared.
";

/// A data set of real features, and what the paper prints for its benchmark.
struct RealFeatures {
    folder: &'static str,
    shape: &'static str,
    /// Accuracy of the paper's encrypted training, in percent.
    encrypted_percent: f64,
    /// Accuracy of the paper's plain training, in percent.
    plain_percent: f64,
    /// Seconds of an iteration of the paper.
    seconds: f64,
}

const REAL_FEATURES: [RealFeatures; 2] = [
    RealFeatures {
        folder: "snips-mpnet",
        shape: "snips",
        encrypted_percent: 95.00,
        plain_percent: 94.43,
        seconds: 6.95,
    },
    RealFeatures {
        folder: "facemask-lite0",
        shape: "facemask",
        encrypted_percent: 95.46,
        plain_percent: 95.46,
        seconds: 4.29,
    },
];

/// Seconds of an iteration of the paper: ViT-Base (or MPNet), then ViT-Large.
const PAPER_SECONDS: [(&str, f64); 9] = [
    ("mnist", 9.46),
    ("cifar10", 15.72),
    ("facemask", 4.29),
    ("dermamnist", 7.06),
    ("snips", 6.95),
    ("mnist-large", 11.43),
    ("cifar10-large", 19.95),
    ("facemask-large", 5.80),
    ("dermamnist-large", 8.37),
];

struct Reproduction<'a> {
    arguments: &'a Arguments,
    folder: PathBuf,
}

impl Reproduction<'_> {
    /// The results of a part: stored ones with the same settings, or new ones, which are stored.
    fn part(&self, name: &str, settings: Value, compute: impl FnOnce() -> Result<Vec<Value>>) -> Result<Vec<Value>> {
        let path = self.folder.join(format!("{name}.json"));
        if let Some(results) = stored(&path, &settings) {
            eprintln!("{name}: stored results");
            return Ok(results);
        }
        eprintln!("{name} ...");
        let results = compute()?;
        let lines: Vec<String> = results.iter().map(Value::to_string).collect();
        write(&path, &format!("{{\"settings\": {settings}, \"results\": [\n{}\n]}}\n", lines.join(",\n")))?;
        Ok(results)
    }

    fn softmax(&self) -> Result<String> {
        let samples = if self.arguments.quick { softmax::QUICK } else { self.arguments.samples };
        let objects = self.part("softmax", json!({ "samples": samples }), || softmax::measure(samples))?;
        Ok(format!(
            "## Errors of softmax approximations (table `tab:softmaxerr`)

The table uses {samples} uniform rows on each of the boxes `[-4, 4]^c` to `[-128, 128]^c`, accumulated
as in the paper, which drew 100,000,000. The error of a row is that of its worst class.

- `noise` is the deviation per real coordinate of the errors of bootstraps. The first value comes from
  the measured mean of a bootstrap's error at set `full`, 2^-25.4, which is `sqrt(pi/2)` deviations if
  the error is Gaussian. The second comes from its measured maximum over 32768 slots, 2^-22.2, which
  would be `sqrt(2 ln 32768)` deviations; the tails are heavier than Gaussian.
- `near ties` is our largest error on rows with classes close to the largest, and on corners.
- `bound` is the paper's theorem with its best `r`.
- A dash means: not a number, or nothing printed.

{}",
            softmax::table(&objects)
        ))
    }

    fn matrix_products(&self) -> Result<String> {
        let (kind, set) = (self.arguments.engine, &self.arguments.set);
        let shapes = if self.arguments.quick { &SHAPES[..2] } else { &SHAPES[..] };
        let mut objects = Vec::new();
        for &shape in shapes {
            let (a, b, c) = shape;
            let settings = json!({ "engine": kind.name(), "set": set });
            objects.extend(self.part(&format!("matmul-{a}-{b}-{c}"), settings, || matmul::measure(shape, kind, set))?);
        }
        Ok(format!(
            "## Matrix products (tables `tab:matnum_fixed`, `tab:matmul_comp`)

`A B^T` (PrivGD-ABT, ColMajor, DiagABT) and `A^T B` (PrivGD-ATB, RowMajor, DiagATB), with both
matrices at level 12 (in the branch `A<B`, `A` at 11).

- Counts come from a run on plain numbers; \"as printed\" compares them with the corrected table.
- Seconds are those of engine `{}` (a dash for `clear`) and include the encoding of masks.
- A star means: measured on 64 columns and scaled.
- The paper's seconds are those of an A40; its PrivGD rows are estimates.

{}",
            kind.name(),
            matmul::table(&objects)
        ))
    }

    fn iterations(&self) -> Result<String> {
        let (kind, set) = (self.arguments.iterations_engine, &self.arguments.set);
        let iterations = if self.arguments.quick { 1 } else { 4 };
        let mut objects = Vec::new();
        for preset in &PRESETS {
            for circuit in [CircuitChoice::Ours, CircuitChoice::Paper] {
                let kind = if circuit == CircuitChoice::Ours { kind } else { EngineKind::Clear };
                let settings = json!({ "engine": kind.name(), "set": set, "iterations": iterations });
                let name = format!("train-{}-{}", preset.name, circuit.name());
                let arguments = iteration_arguments(preset.name, set, iterations)?;
                let compute = || Ok(vec![train::measure(&arguments, circuit, kind)?]);
                objects.extend(self.part(&name, settings, compute)?);
            }
        }
        for object in &mut objects {
            let paper = PAPER_SECONDS.iter().find(|(name, _)| object["shape"] == *name).map(|(_, seconds)| *seconds);
            object["paper_seconds"] = paper.into();
            if object["engine"] == "clear" {
                object["seconds_per_iteration"] = Value::Null;
            }
        }
        let fields = [
            ("shape", "shape"),
            ("rows", "rows"),
            ("features", "features"),
            ("classes", "classes"),
            ("circuit", "circuit"),
            ("bootstraps_per_iteration", "bootstraps"),
            ("key_switches_per_iteration", "key-switches"),
            ("relinearisations_per_iteration", "relinearisations"),
            ("products_per_iteration", "products"),
            ("levels_per_iteration", "levels"),
            ("validation_bytes_per_epoch", "bytes of validation logits"),
            ("seconds_per_iteration", "seconds"),
            ("paper_seconds", "the paper's (A40)"),
        ];
        Ok(format!(
            "## Iterations (tables `tab:transfer`, `tab:largevit`, `tab:hyperparam`: the shapes)

The table gives means of {iterations} iterations on random features. The paper's circuit bootstraps as
late as its levels allow, which favours it over its own figures. Our figures leave out refreshes of
the momentum (one bootstrap in about 30 iterations) and the row-shifted versions of a batch (made
once). Seconds are those of engine `{}`.

{}",
            kind.name(),
            TextTable::from_objects(&objects, &fields)
        ))
    }

    fn trainings(&self) -> Result<String> {
        let Some(data) = &self.arguments.data else {
            return Ok("## Encrypted and plain training\n\nNot computed: run with `--data DIR`.\n".to_owned());
        };
        let mut text = String::from(
            "## Encrypted and plain training (table `tab:transfer`)

All rows, patience 3. Row length and rate are those with the least loss on validation rows among those
tried, with exact training. Test rows were looked at once, afterwards. \"With noise\" is our circuit on
plain numbers with the errors measured at set `full`: of bootstraps as above, of other operations as
measured in that run.

",
        );
        let (mut reports, mut nesterov, mut sgd) = (Vec::new(), Vec::new(), Vec::new());
        for RealFeatures { folder, shape, .. } in REAL_FEATURES {
            let objects = self.part(&format!("training-{folder}"), json!({ "set": self.arguments.set }), || {
                self.training(&data.join(folder), shape)
            })?;
            let (tried, rest): (Vec<Value>, Vec<Value>) = objects.into_iter().partition(|o| o["chosen"].is_boolean());
            text += &format!("{folder}:\n\n{}\n", accuracy::search_table(&tried));
            for object in rest {
                match object["momentum"].as_str() {
                    Some("nesterov") => nesterov.push(band(folder, &object)),
                    Some("sgd") => sgd.push(band(folder, &object)),
                    _ => reports.push(object),
                }
            }
        }
        text += &accuracy::table(&reports).to_string();
        text += "\nThe paper's results, with ViT-Base and another checkpoint of MPNet:\n\n";
        for RealFeatures { shape, encrypted_percent, plain_percent, seconds, .. } in REAL_FEATURES {
            text += &format!(
                "- {shape}: {encrypted_percent:.2} % encrypted, {plain_percent:.2} % plain, {seconds} s an iteration\n"
            );
        }
        text += &self.figure("nesterov", "Softmax inputs, Nesterov (figure `fig:softmaxinput`)", nesterov)?;
        text += &self.figure("sgd", "Softmax inputs, plain SGD (figure `fig:softmaxinputsgd`)", sgd)?;
        Ok(text)
    }

    /// Trains on one folder of features. Returns the trials of the grid search, the comparison and
    /// the ranges of softmax inputs.
    fn training(&self, folder: &Path, shape: &str) -> Result<Vec<Value>> {
        let data = DataSplits::load(folder, preset(shape)?)?;
        let agreement = data.agreement(&Wishes::default())?;
        let search = grid_search(&data, &agreement, &ROW_NORMS, &RATES)?;
        let mut objects = search.objects();
        let errors = accuracy::OperationErrors::measure(&self.arguments.set)?;
        objects.push(accuracy::measure(&data, &search, &self.arguments.set, errors)?);
        let Trial { row_norm, rate, result: nesterov } = search.best();
        let without_momentum = Agreement { rate: *rate, momentum: Momentum::None, max_epochs: SGD_EPOCHS, ..agreement };
        let sgd = train_plain(&data.normalised(*row_norm)?, &without_momentum)?;
        for (momentum, result) in [("nesterov", nesterov), ("sgd", &sgd)] {
            objects.push(json!({ "momentum": momentum, "epochs": result.checks, "ranges": result.ranges }));
        }
        Ok(objects)
    }

    /// Writes a figure of softmax inputs. Returns its section of the document.
    fn figure(&self, name: &str, title: &str, bands: Vec<Band>) -> Result<String> {
        let (mut lines, mut highest) = (String::new(), 0.0f64);
        for band in &bands {
            let (low, high) = band.values.iter().fold((0.0f64, 0.0f64), |m, v| (m.0.min(v.0), m.1.max(v.1)));
            lines += &format!("- {}: {low:.1} to {high:.1} in {} steps\n", band.name, band.values.len());
            highest = highest.max(high);
        }
        let marks = [-128.0, -32.0, -8.0, -4.0, 4.0, 8.0, 32.0, 128.0];
        let plot =
            Plot { title: "Smallest and largest softmax input of each step", steps: "step", marks: &marks, bands };
        write(&self.folder.join(format!("softmax-inputs-{name}.svg")), &plot.svg())?;
        let conclusion = if highest > 8.0 {
            "The inputs exceed 4 and 8, the ranges of earlier approximations."
        } else {
            "The inputs stay below 8, the range of earlier approximations: these features are shorter than ViT's."
        };
        Ok(format!("\n### {title}\n\n![{title}](reproduce/softmax-inputs-{name}.svg)\n\n{lines}\n{conclusion}\n"))
    }
}

/// Arguments of `hetal bench train`; those that are not given have their default values.
fn iteration_arguments(shape: &str, set: &str, iterations: usize) -> Result<train::Arguments> {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        arguments: train::Arguments,
    }
    let iterations = iterations.to_string();
    let line = Line::try_parse_from(["train", "--shape", shape, "--set", set, "--iterations", &iterations]);
    line.map(|line| line.arguments).map_err(|e| Error::Arguments { reason: e.to_string() })
}

/// The limit of epochs without momentum, which needs about ten times as many.
const SGD_EPOCHS: usize = 200;

/// The band of softmax inputs that a stored object holds.
fn band(name: &str, object: &Value) -> Band {
    let pair = |v: &Value| Some((v[0].as_f64()?, v[1].as_f64()?));
    let values = object["ranges"].as_array().map_or(Vec::new(), |all| all.iter().filter_map(pair).collect());
    Band { name: name.to_owned(), values }
}

/// The results of a file, if its settings are the same.
fn stored(path: &Path, settings: &Value) -> Option<Vec<Value>> {
    let text = std::fs::read_to_string(path).ok()?;
    let part: Value = serde_json::from_str(&text).ok()?;
    if part["settings"] != *settings {
        return None;
    }
    part["results"].as_array().cloned()
}

/// Writes a file atomically.
fn write(path: &Path, text: &str) -> Result<()> {
    let part = path.with_extension("part");
    let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, path));
    written.map_err(|e| file_error(path, &e))
}

fn file_error(path: &Path, error: &std::io::Error) -> Error {
    Error::File { path: path.display().to_string(), reason: error.to_string() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The stored results of the repository give its page and figures again, without computation.
    #[test]
    fn the_page_of_the_repository_agrees_with_this_program() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let out = std::env::temp_dir().join(format!("hetal-reproduce-page-{}", std::process::id()));
        std::fs::create_dir_all(out.join("reproduce")).unwrap();
        for entry in std::fs::read_dir(docs.join("reproduce")).unwrap().map(|entry| entry.unwrap()) {
            std::fs::copy(entry.path(), out.join("reproduce").join(entry.file_name())).unwrap();
        }
        let arguments = Arguments {
            data: Some(PathBuf::from("not-read")),
            out: out.clone(),
            engine: EngineKind::Cuda,
            iterations_engine: EngineKind::Cuda,
            set: "full".to_owned(),
            samples: 1_000_000,
            quick: false,
            json: false,
        };
        run(&arguments).unwrap();
        for file in ["reproduce.md", "reproduce/softmax-inputs-nesterov.svg", "reproduce/softmax-inputs-sgd.svg"] {
            let read = |folder: &Path| std::fs::read_to_string(folder.join(file)).unwrap();
            assert_eq!(read(&out), read(&docs), "{file}");
        }
        std::fs::remove_dir_all(out).unwrap();
    }

    #[test]
    fn a_part_is_computed_once_for_the_same_settings() {
        let folder = std::env::temp_dir().join(format!("hetal-reproduce-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let arguments = Arguments {
            data: None,
            out: folder.clone(),
            engine: EngineKind::Clear,
            iterations_engine: EngineKind::Clear,
            set: "full".to_owned(),
            samples: 1,
            quick: true,
            json: false,
        };
        let reproduction = Reproduction { arguments: &arguments, folder: folder.clone() };
        let part = |samples: u64, results: u64| {
            reproduction.part("p", json!({ "samples": samples }), || Ok(vec![json!({ "x": results })])).unwrap()
        };
        assert_eq!(part(1, 10), [json!({ "x": 10 })]);
        assert_eq!(part(1, 20), [json!({ "x": 10 })]);
        assert_eq!(part(2, 30), [json!({ "x": 30 })]);
        std::fs::write(folder.join("p.json"), "{\"settings\": {\"sam").unwrap();
        assert_eq!(part(2, 40), [json!({ "x": 40 })]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
