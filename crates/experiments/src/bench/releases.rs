//! `hetal bench releases`: the noise of trained weights, its bound, and what publishing a model
//! costs.
//!
//! The bound comes from repetitions of a training on plain numbers with the noise of every
//! operation. With an engine of ciphertexts the same trainings run there, too, and the noise of
//! their weights is compared with the bound.

mod cases;
mod trainings;

use crate::report::output::print_table;
use crate::report::table::{TextTable, digits};
use crate::runner::GpuOptions;
use crate::runner::engine::EngineKind;
use crate::runner::key_plan::ExperimentKeys;
use crate::{Error, Result};
use cases::Case;
use hetal_circuits::clear::Noise;
use hetal_ckks::Params;
use hetal_client::model::export::{ReleaseTable, TOLERATED_LOSS};
use hetal_learn::rehearsal::NoiseEstimate;
use hetal_learn::softmax;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Arguments of `hetal bench releases`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The parameter set.
    #[arg(long, default_value = "full")]
    pub set: String,
    /// The folder of the small tables.
    #[arg(long, default_value = "crates/experiments/data/tables")]
    pub data: PathBuf,
    /// Small tables, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub tables: Vec<String>,
    /// Folders with features_{train,val,test}.npy and labels_{train,val,test}.npy.
    #[arg(long, value_delimiter = ',', value_name = "DIRS")]
    pub features: Vec<PathBuf>,
    /// Trainings on random rows: of several shapes and rates, with L2, row weights and widened
    /// ranges among them.
    #[arg(long, default_value_t = 0)]
    pub trainings: usize,
    /// The first number of the trainings on random rows.
    #[arg(long, default_value_t = 0)]
    pub first: usize,
    /// Run every training on ciphertexts, too, and compare its noise with the bound.
    #[arg(long, value_enum, value_name = "ENGINE", default_value = "clear")]
    pub engine: EngineKind,
    /// Models that may be published under a key.
    #[arg(long, default_value_t = 1)]
    pub models: u64,
    /// Multiply the noise of bootstraps by this factor, where the bound does not know of it.
    #[arg(long, default_value_t = 1.0)]
    pub louder: f64,
    /// Print the deviations of the operations of the set instead.
    #[arg(long)]
    pub measure: bool,
    /// The keys.
    #[command(flatten)]
    pub keys: ExperimentKeys,
    /// The number of the GPU.
    #[arg(long, default_value_t = 0)]
    pub device: usize,
    /// Print an array of JSON objects.
    #[arg(long)]
    pub json: bool,
}

impl Arguments {
    fn gpu(&self) -> GpuOptions {
        GpuOptions { device: self.device, key_plan: self.keys.plan() }
    }

    fn cases(&self) -> Result<Vec<Case>> {
        let slots = Params::named(&self.set)?.slots();
        let tables = self.tables.iter().map(|name| Case::of_table(&self.data, name));
        let folders = self.features.iter().map(|folder| Case::of_folder(folder));
        let random = (self.first..self.first + self.trainings).map(|number| Case::random(slots, number));
        tables.chain(folders).chain(random).collect()
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.measure {
        let measured = trainings::measure(&arguments.set, arguments.engine, arguments.gpu())?;
        print_table(arguments.json, &[measured], |objects| {
            let fields = ["set", "log2_encryption", "log2_operation", "log2_bootstrap"];
            TextTable::from_objects(objects, &fields.map(|name| (name, name)))
        });
        return Ok(());
    }
    let unmeasured = || Error::NotMeasured { set: arguments.set.clone() };
    let noise = Noise::measured(&arguments.set).ok_or_else(unmeasured)?;
    let mut objects = Vec::new();
    for case in arguments.cases()? {
        objects.push(measure_case(arguments, &case, noise)?);
    }
    print_table(arguments.json, &objects, table);
    Ok(())
}

/// Estimates the noise of a training, and compares it with that of an engine. Returns a flat object
/// but for the lines of the release.
fn measure_case(arguments: &Arguments, case: &Case, noise: Noise) -> Result<Value> {
    let params = Params::named(&arguments.set)?;
    let history = case.history()?;
    let prepared = case.prepared(params.slots())?;
    let rehearsal = prepared.rehearsal(case, &history);
    let start = std::time::Instant::now();
    let estimate = rehearsal.estimate(params.top_level(), noise, &|| ())?;
    let seconds = start.elapsed().as_secs_f64();
    let exact = rehearsal.weights(params.top_level(), Noise::default())?;
    let reference = case.reference(&history, softmax::exact)?;
    let mut object = json!({
        "case": case.name,
        "set": arguments.set,
        "rows": case.train.rows(),
        "features": case.train.features().columns(),
        "classes": case.train.classes(),
        "batch": case.agreement.batch,
        "rate": case.agreement.rate,
        "alpha": case.agreement.alpha,
        "weighted": case.agreement.weighted,
        "first_range": case.agreement.range,
        "verdicts": history.text(),
        "iterations": case.iterations(&history)?,
        "estimate_seconds": seconds,
        "largest_weight": exact.max_magnitude(),
        "approximation": hetal_learn::rehearsal::distance(&exact, &reference)?,
        "noise_typical": estimate.typical,
        "noise_largest": estimate.largest,
        "noise_spread": estimate.spread,
        "noise_bound": estimate.bound(),
        "trials": NoiseEstimate::TRIALS,
    });
    if arguments.engine != EngineKind::Clear || arguments.louder != 1.0 {
        let noise = Noise { bootstrap: arguments.louder * noise.bootstrap, ..noise };
        let run = trainings::EngineTraining {
            rehearsal: &rehearsal,
            alpha: case.agreement.alpha,
            top_level: params.top_level(),
            noise,
        };
        let measured = run.measure(arguments.engine, &arguments.set, arguments.gpu(), &exact)?;
        object["noise"] = measured.noise.into();
        object["distance"] = measured.distance.into();
        object["overestimate"] = (estimate.bound() / measured.noise).into();
        object["holds"] = (measured.noise <= estimate.bound()).into();
    }
    let (rows, labels) = (case.validation.features(), case.validation.labels());
    let table = ReleaseTable::new(&exact, rows, labels, estimate.bound(), arguments.models)?;
    object["private_accuracy"] = table.private_accuracy.into();
    object["highest_security"] = table.highest(TOLERATED_LOSS).into();
    object["lines"] = json!(table.lines);
    if let Some(test) = &case.test {
        let tested = ReleaseTable::new(&exact, test.features(), test.labels(), estimate.bound(), arguments.models)?;
        object["test_private_accuracy"] = tested.private_accuracy.into();
        object["test_lines"] = json!(tested.lines);
    }
    Ok(object)
}

/// Reports as a table.
fn table(objects: &[Value]) -> TextTable {
    let titles = [
        "case",
        "iterations",
        "noise, typical",
        "largest",
        "bound",
        "on ciphertexts",
        "overestimate",
        "private accuracy",
        "sigma and accuracy at 12",
        "15",
        "highest security",
    ];
    let mut table = TextTable::new(&titles);
    for object in objects {
        let number = |name: &str| object[name].as_f64().map_or("-".to_owned(), digits);
        let percent = |value: &Value| format!("{:.2} %", 100.0 * value.as_f64().unwrap_or(f64::NAN));
        let line = |security: usize| {
            let line = &object["lines"][security - 10];
            format!("{:.1e}: {}", line["sigma"].as_f64().unwrap_or(f64::NAN), percent(&line["accuracy"]))
        };
        table.push(vec![
            object["case"].as_str().unwrap_or_default().to_owned(),
            object["iterations"].to_string(),
            number("noise_typical"),
            number("noise_largest"),
            number("noise_bound"),
            number("noise"),
            number("overestimate"),
            percent(&object["private_accuracy"]),
            line(12),
            line(15),
            object["highest_security"].to_string(),
        ]);
    }
    table
}
