//! `hetal plan`: estimates what a training takes, before anything is encrypted.

use crate::args::data::{DataArguments, ReadRows, data_value};
use crate::args::hyper_parameters::HyperParameterArguments;
use crate::args::preparation::PreparationArguments;
use crate::args::row_form;
use crate::args::table::TableArguments;
use crate::args::weights::{ChosenWeights, WeightArguments};
use crate::terminal::format::{bytes, seconds, security};
use crate::terminal::output::print;
use crate::terminal::progress;
use crate::{Error, Result};
use hetal_circuits::clear::OpKind;
use hetal_ckks::Params;
use hetal_client::data::tables::Report;
use hetal_client::data::{PreparationReport, validation_rows};
use hetal_client::layout::{LayoutShape, resident_key_bytes, server_bytes};
use hetal_client::row_form::USUAL_UPLINK;
use hetal_client::training::Defaults;
use hetal_client::{Layout, RowForm};
use hetal_experiments::cost_model::CpuCostModel;
use hetal_learn::agreement::check_every;
use hetal_learn::plan::CostModel;
use hetal_learn::{Agreement, AgreementLimits, Plan, plan};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// Seconds of a lift on a GPU, as servers with one tell their clients.
const GPU_LIFT_SECONDS: f64 = 0.0125;

/// Arguments of `hetal plan`: files as for `hetal train`, or numbers of rows.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Features of the training rows: .npy, .npz, .safetensors, .csv, .tsv, .jsonl, .parquet or
    /// .arrow.
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub features: Option<PathBuf>,
    /// Labels of the training rows in a file of their own (FILE#NAME selects an array or column).
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub labels: Option<String>,
    /// The column (by name, or by number; the first is 1) or the array (.npz, .safetensors) of the
    /// feature file that contains the labels.
    #[arg(long, conflicts_with = "labels", value_name = "NAME", help_heading = "Rows")]
    pub label_column: Option<String>,
    /// Features of validation rows. Without it, one row in 16 of each class is used for
    /// validation; of a table below 512 rows none are, and training rows are validated.
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub validation: Option<PathBuf>,
    /// Labels of the validation rows.
    #[arg(long, value_name = "FILE", help_heading = "Rows")]
    pub validation_labels: Option<String>,
    /// All rows. One in 16 is used for validation, unless --validation-rows is given. Below 512
    /// rows, the training rows are validated.
    #[arg(long, value_name = "COUNT", help_heading = "Numbers, if there is no file yet")]
    pub rows: Option<usize>,
    /// With --features: the feature columns, by name or by number (the first is 1), separated by
    /// commas. Without: the number of features of a row.
    #[arg(long, value_name = "NAMES|COUNT", value_delimiter = ',', help_heading = "Numbers, if there is no file yet")]
    pub columns: Vec<String>,
    /// How the files are read.
    #[command(flatten)]
    pub table: TableArguments,
    /// Weights of rows and classes.
    #[command(flatten)]
    pub weights: WeightArguments,
    /// Classes.
    #[arg(long, value_name = "COUNT", help_heading = "Numbers, if there is no file yet")]
    pub classes: Option<usize>,
    /// Validation rows, in addition to --rows.
    #[arg(long, value_name = "COUNT", help_heading = "Numbers, if there is no file yet")]
    pub validation_rows: Option<usize>,
    /// How the rows are prepared.
    #[command(flatten)]
    pub preparation: PreparationArguments,
    /// Rows have weights.
    #[arg(long, conflicts_with = "features", help_heading = "Numbers, if there is no file yet")]
    pub weighted: bool,
    /// Hyper-parameters to request.
    #[command(flatten)]
    pub wishes: HyperParameterArguments,
    /// The rate of the line to the server, in Mbit/s (by default 100).
    #[arg(long, value_name = "MBIT_S", value_parser = row_form::rate)]
    pub uplink: Option<f64>,
    /// The parameter set.
    #[arg(long, default_value = "full")]
    pub set: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// The size of a training.
struct Shape {
    rows: usize,
    validation: usize,
    features: usize,
    classes: usize,
    weighted: bool,
}

/// What is known about rows in a file.
pub struct FileFacts {
    report: Report,
    preparation: PreparationReport,
    weights: ChosenWeights,
    defaults: Defaults,
}

impl Arguments {
    fn shape(&self) -> Result<(Shape, Option<FileFacts>)> {
        if let Some(features) = self.features.clone() {
            let data = DataArguments {
                features,
                labels: self.labels.clone(),
                label_column: self.label_column.clone(),
                columns: self.columns.clone(),
                table: self.table.clone(),
                weights: self.weights.clone(),
                validation: self.validation.clone(),
                validation_labels: self.validation_labels.clone(),
                preparation: self.preparation.clone(),
                manifest: None,
            };
            let ReadRows { task, report, weights, .. } = data.read()?;
            let (rows, validation) = (task.training.rows(), task.validation.rows());
            let (features, classes, weighted) = (task.features(), task.classes.len(), task.is_weighted());
            let facts = FileFacts { report, weights, defaults: Defaults::new(&task), preparation: task.preparation };
            return Ok((Shape { rows, validation, features, classes, weighted }, Some(facts)));
        }
        let columns = match &self.columns[..] {
            [count] => count.parse().ok(),
            _ => None,
        };
        let (Some(all), Some(features), Some(classes)) = (self.rows, columns, self.classes) else {
            return Err(Error::NothingToPlan);
        };
        let (rows, validation) = match (self.validation_rows, validation_rows(all)) {
            (Some(validation), _) => (all, validation),
            (None, 0) => (all, all),
            (None, aside) => (all - aside, aside),
        };
        Ok((Shape { rows, validation, features, classes, weighted: self.weighted }, None))
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (mut value, data) = report(arguments)?;
    let mut shown = text(&value);
    if let Some(data) = data {
        value["data"] = data_value(&data.report, &data.preparation);
        value["weights"] = data.weights.value();
        shown = format!("{}{}{}\n{shown}", data.report.text(), data.preparation.text(), data.weights.text());
    }
    print(arguments.json, &value, &shown);
    Ok(())
}

/// The plan as a JSON object, and the report on the rows if there is a file. Bytes are those of
/// payloads, without network framing.
pub fn report(arguments: &Arguments) -> Result<(Value, Option<FileFacts>)> {
    let (shape, data) = arguments.shape()?;
    let params = Arc::new(Params::named(&arguments.set)?);
    let spinner = progress::spinner("planning");
    let wishes = arguments.wishes.wishes();
    let wishes = match &data {
        Some(data) => data.defaults.fill(&wishes, shape.rows, None),
        None => Defaults::of_rows(&wishes, shape.rows, None),
    };
    let agreement = AgreementLimits::default().agree(&wishes)?;
    let agreement = Agreement { weighted: shape.weighted, ..agreement }.for_classes(shape.classes);
    let batch = agreement.batch.min(shape.rows.max(1));
    let Shape { features, classes, weighted, .. } = shape;
    let layout =
        Layout::new(Arc::clone(&params), LayoutShape { batch, features, classes, range: agreement.range, weighted })?;
    let keys = layout.keys()?;
    let task = plan::Workload {
        rows: shape.rows,
        validation_rows: shape.validation,
        batch,
        features: shape.features,
        classes: shape.classes,
        range: agreement.range,
        weighted,
        // Rows that are not known yet may get L2, which takes more bootstraps.
        alpha: wishes.alpha.unwrap_or(1.0),
    };
    let plan = Plan::new(&task, params.slots(), params.top_level())?;
    let (batches, pieces, validation) = (plan.batches as u64, plan.pieces as u64, plan.validation_batches as u64);
    let machine = CpuCostModel::measure(&arguments.set)?;
    spinner.finish_and_clear();
    let prepared = (pieces + validation) * layout.shifted_version_bytes();
    let all = |whole: u64, features: u64| pieces * whole + validation * features;
    let in_form = |form| all(layout.row_bytes(form, true), layout.row_bytes(form, false));
    let (rows, coefficients) = (in_form(RowForm::Slots), in_form(RowForm::Coefficients));
    let lifts = all(layout.row_vectors(true).len() as u64, layout.row_vectors(false).len() as u64);
    let uplink = arguments.uplink.unwrap_or(USUAL_UPLINK);
    let sending = |bytes: u64| bytes as f64 * 8e-6 / uplink;
    let iteration = plan.seconds_per_iteration(&machine);
    let logits = plan.seconds_of_validation(&machine);
    let check_every = check_every(wishes.check_every, 0, batches as usize, agreement.max_epochs)?;
    let agreement = Agreement { check_every, ..agreement };
    let checks = agreement.checks(batches as usize);
    let checks_of_an_epoch = batches as f64 / check_every as f64;
    let epoch = iteration.zip(logits).map(|(i, v)| batches as f64 * i + checks_of_an_epoch * v);
    // By the union bound, a training fails at most as often as all its bootstraps together.
    let (bootstraps, failure) = (plan.bootstraps_of_training(agreement.max_epochs), params.log_bootstrap_failure());
    let mut value = json!({
        "set": params.name(),
        "security": security(&params),
        "security_bits": params.security().bits(),
        "rows": shape.rows,
        "validation_rows": shape.validation,
        "features": shape.features,
        "classes": shape.classes,
        "weighted": weighted,
        "batch": batch,
        "batches": batches,
        "pieces": pieces,
        "classifier_ciphertexts": plan.geometry.parts(),
        "softmax_error": plan.constants.error,
        "keys": keys.len(),
        "key_bytes": layout.key_bytes(&keys)?,
        "upload_bytes": rows,
        "upload_bytes_unseeded": all(layout.unseeded_row_bytes(true), layout.unseeded_row_bytes(false)),
        "download_bytes_per_epoch": (checks_of_an_epoch * (validation * layout.logit_bytes()) as f64).ceil() as u64,
        // The weights of the last checks, whichever of them is the best.
        "download_bytes_at_the_end": layout.weight_bytes() * (agreement.patience + 1).min(checks) as u64,
        "owner_disk_bytes": layout.key_bytes(&keys)? + rows,
        "server_key_memory_bytes": resident_key_bytes(&params, &keys),
        "server_batch_memory_bytes": prepared,
        "server_memory_bytes": server_bytes(&params, &keys),
        "server_memory_bytes_prepared": server_bytes(&params, &keys) + prepared,
        "bootstraps_per_iteration": plan.bootstraps(),
        "bootstraps_at_most": bootstraps,
        "bootstrap_failure_log2": failure,
        "training_failure_log2": failure.map(|failure| failure + (bootstraps.max(1) as f64).log2()),
        "key_switches_per_iteration": plan.key_switches(),
        "seconds_per_iteration_here": iteration,
        "seconds_per_epoch_here": epoch,
        // Null if they will follow from the rows.
        "rate": wishes.rate,
        "alpha": wishes.alpha,
        "max_epochs": agreement.max_epochs,
        "check_every": check_every,
        "checks_at_most": checks,
        "download_bytes_per_check": validation * layout.logit_bytes(),
    });
    value["upload_bytes_coefficients"] = coefficients.into();
    value["uplink_mbit_s"] = uplink.into();
    value["upload_seconds"] = sending(rows).into();
    value["upload_seconds_coefficients"] = sending(coefficients).into();
    value["lifts"] = lifts.into();
    value["lift_seconds_gpu"] = (lifts as f64 * GPU_LIFT_SECONDS).into();
    value["lift_seconds_here"] = machine.seconds(OpKind::Lift, 0).map(|seconds| lifts as f64 * seconds).into();
    Ok((value, data))
}

fn text(plan: &Value) -> String {
    let number = |name: &str| plan[name].as_u64().unwrap_or(0);
    let float = |name: &str| plan[name].as_f64().unwrap_or(f64::NAN);
    let size = |name: &str| bytes(number(name));
    let time = |name: &str| match plan[name].as_f64() {
        Some(taken) => format!("about {} on this machine's CPU", seconds(taken)),
        None => "not measured for this parameter set".to_owned(),
    };
    let chosen = |name: &str| match &plan[name] {
        Value::Null => "by the rows".to_owned(),
        value => value.to_string(),
    };
    let batches = if number("batches") == 1 { "batch" } else { "batches" };
    format!(
        "{} training rows{} and {} validation rows of {} features, {} classes\n\
         {} {batches} of {} rows; parameter set {} ({})\n\
         \n\
         sent once          keys {} ({} of them), rows {} (without seeds {})\n\
         rows in            slots: {} at {} Mbit/s; coefficients: {}, {}, and {} lifts: {} on a GPU, {}\n\
         received           {} a check, {} at the end\n\
         disk of the owner  {}\n\
         server's memory    {} (keys {}); {} with all batches prepared (otherwise they are prepared one by one)\n\
         an iteration       {} bootstraps, {} key switches; {}\n\
         an epoch           {}; at most {} epochs, rate {}, L2 (alpha) {}\n\
         checks             every {} iterations, at most {} of them\n\
         a wrong result     by chance at most 2^{:.0} (2^{:.0} a bootstrap, at most {} of them)\n\
         softmax            error at most {:.1e}",
        number("rows"),
        if plan["weighted"] == true { " with weights" } else { "" },
        number("validation_rows"),
        number("features"),
        number("classes"),
        number("batches"),
        number("batch"),
        plan["set"].as_str().unwrap_or_default(),
        plan["security"].as_str().unwrap_or_default(),
        size("key_bytes"),
        number("keys"),
        size("upload_bytes"),
        size("upload_bytes_unseeded"),
        seconds(float("upload_seconds")),
        float("uplink_mbit_s"),
        size("upload_bytes_coefficients"),
        seconds(float("upload_seconds_coefficients")),
        number("lifts"),
        seconds(float("lift_seconds_gpu")),
        time("lift_seconds_here"),
        size("download_bytes_per_check"),
        size("download_bytes_at_the_end"),
        size("owner_disk_bytes"),
        size("server_memory_bytes"),
        size("server_key_memory_bytes"),
        size("server_memory_bytes_prepared"),
        number("bootstraps_per_iteration"),
        number("key_switches_per_iteration"),
        time("seconds_per_iteration_here"),
        time("seconds_per_epoch_here"),
        number("max_epochs"),
        chosen("rate"),
        chosen("alpha"),
        number("check_every"),
        number("checks_at_most"),
        plan["training_failure_log2"].as_f64().unwrap_or(f64::NEG_INFINITY),
        plan["bootstrap_failure_log2"].as_f64().unwrap_or(f64::NEG_INFINITY),
        number("bootstraps_at_most"),
        plan["softmax_error"].as_f64().unwrap_or(0.0),
    )
}
