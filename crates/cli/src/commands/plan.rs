//! `hetal plan`: estimates what a training takes, before anything is encrypted.

mod key_plans;

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
use hetal_client::key_plan_choice::usual_iterations;
use hetal_client::layout::{LayoutShape, resident_key_bytes, server_bytes};
use hetal_client::row_form::USUAL_UPLINK;
use hetal_client::training::Defaults;
use hetal_client::{KeyPlan, Layout, RowForm};
use hetal_experiments::cost_model::CpuCostModel;
use hetal_learn::agreement::check_every;
use hetal_learn::plan::CostModel;
use hetal_learn::{Agreement, AgreementLimits, Plan, Wishes, plan};
use key_plans::{GPU_LIFT_SECONDS, KeyPlans};
use serde::Serialize;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;

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
    let (shape, facts) = arguments.shape()?;
    let wishes = arguments.wishes.wishes();
    let wishes = match &facts {
        Some(facts) => facts.defaults.fill(&wishes, shape.rows, None),
        None => Defaults::of_rows(&wishes, shape.rows, None),
    };
    let spinner = progress::spinner("planning");
    let plan = PlanReport::new(&shape, &wishes, &arguments.set, arguments.uplink.unwrap_or(USUAL_UPLINK))?;
    spinner.finish_and_clear();
    let (mut value, mut shown) = (json!(plan), plan.text());
    if let Some(FileFacts { report, preparation, weights, .. }) = facts {
        value["data"] = data_value(&report, &preparation);
        value["weights"] = weights.value();
        shown = format!("{}{}{}\n{shown}", report.text(), preparation.text(), weights.text());
    }
    print(arguments.json, &value, &shown);
    Ok(())
}

/// What a training takes. The names of the fields are those of the JSON object.
#[derive(Serialize)]
struct PlanReport {
    set: String,
    security: String,
    security_bits: f64,
    rows: usize,
    validation_rows: usize,
    features: usize,
    classes: usize,
    weighted: bool,
    batch: usize,
    batches: usize,
    pieces: usize,
    /// `None` if it follows from rows that are not known yet.
    rate: Option<f64>,
    /// Likewise.
    alpha: Option<f64>,
    max_epochs: usize,
    check_every: usize,
    checks_at_most: usize,
    classifier_ciphertexts: usize,
    softmax_error: f64,
    bootstraps_per_iteration: u64,
    bootstraps_at_most: u64,
    key_switches_per_iteration: u64,
    bootstrap_failure_log2: Option<f64>,
    training_failure_log2: Option<f64>,
    #[serde(flatten)]
    sizes: Sizes,
    #[serde(flatten)]
    times: Times,
    #[serde(flatten)]
    key_plans: KeyPlans,
}

/// Bytes of payloads, without network framing, and of memory.
#[derive(Serialize)]
struct Sizes {
    keys: usize,
    key_bytes: u64,
    upload_bytes: u64,
    upload_bytes_unseeded: u64,
    upload_bytes_coefficients: u64,
    lifts: u64,
    download_bytes_per_check: u64,
    download_bytes_per_epoch: u64,
    download_bytes_at_the_end: u64,
    owner_disk_bytes: u64,
    server_key_memory_bytes: u64,
    server_batch_memory_bytes: u64,
    server_memory_bytes: u64,
    server_memory_bytes_prepared: u64,
}

/// Seconds. `None` was not measured for the parameter set.
#[derive(Serialize)]
struct Times {
    uplink_mbit_s: f64,
    upload_seconds: f64,
    upload_seconds_coefficients: f64,
    lift_seconds_gpu: f64,
    lift_seconds_here: Option<f64>,
    seconds_per_iteration_here: Option<f64>,
    seconds_per_epoch_here: Option<f64>,
}

impl PlanReport {
    /// Plans the training that a server with the usual limits agrees to.
    fn new(shape: &Shape, wishes: &Wishes, set: &str, uplink: f64) -> Result<Self> {
        let Shape { rows, validation: validation_rows, features, classes, weighted } = *shape;
        let params = Arc::new(Params::named(set)?);
        let agreement = AgreementLimits::default().agree(wishes)?;
        let agreement = Agreement { weighted, ..agreement }.for_classes(classes);
        let (batch, range) = (agreement.batch.min(rows.max(1)), agreement.range);
        // Rows that are not known yet may get L2, which takes more bootstraps.
        let alpha = wishes.alpha.unwrap_or(1.0);
        let workload = plan::Workload { rows, validation_rows, batch, features, classes, range, weighted, alpha };
        let layout_shape = LayoutShape { batch, features, classes, range, weighted, key_plan: KeyPlan::default() };
        let layout = Layout::new(Arc::clone(&params), layout_shape)?;
        let plan = Plan::new(&workload, params.slots(), params.top_level())?;
        let check_every = check_every(wishes.check_every, 0, plan.batches, agreement.max_epochs)?;
        let agreement = Agreement { check_every, ..agreement };
        let sizes = Sizes::new(&layout, &plan, &agreement)?;
        let machine = CpuCostModel::measure(set)?;
        let times = Times::new(&machine, &plan, &sizes, check_every, uplink);
        let iterations = usual_iterations(plan.batches, agreement.max_epochs);
        let key_plans = KeyPlans::new(&params, layout_shape, (uplink, iterations, machine.seconds(OpKind::Lift, 0)))?;
        // By the union bound, a training fails at most as often as all its bootstraps together.
        let (bootstraps, failure) = (plan.bootstraps_of_training(agreement.max_epochs), params.log_bootstrap_failure());
        Ok(Self {
            set: params.name().to_owned(),
            security: security(&params),
            security_bits: params.security().bits(),
            rows,
            validation_rows,
            features,
            classes,
            weighted,
            batch,
            batches: plan.batches,
            pieces: plan.pieces,
            rate: wishes.rate,
            alpha: wishes.alpha,
            max_epochs: agreement.max_epochs,
            check_every,
            checks_at_most: agreement.checks(plan.batches),
            classifier_ciphertexts: plan.geometry.parts(),
            softmax_error: plan.constants.error,
            bootstraps_per_iteration: plan.bootstraps(),
            bootstraps_at_most: bootstraps,
            key_switches_per_iteration: plan.key_switches(),
            bootstrap_failure_log2: failure,
            training_failure_log2: failure.map(|failure| failure + (bootstraps.max(1) as f64).log2()),
            sizes,
            times,
            key_plans,
        })
    }

    fn text(&self) -> String {
        let Self { sizes, times, rows, validation_rows, features, classes, batches, batch, set, security, .. } = self;
        let here = |time: Option<f64>| match time {
            Some(taken) => format!("about {} on this machine's CPU", seconds(taken)),
            None => "not measured for this parameter set".to_owned(),
        };
        let chosen = |value: Option<f64>| value.map_or_else(|| "by the rows".to_owned(), |value| format!("{value:?}"));
        // A bound is rounded up.
        let failure = |log2: Option<f64>| format!("2^{:.0}", log2.unwrap_or(f64::NEG_INFINITY).ceil());
        let weighted = if self.weighted { " with weights" } else { "" };
        let kind = if *batches == 1 { "batch" } else { "batches" };
        let lines = [
            format!(
                "{rows} training rows{weighted} and {validation_rows} validation rows of {features} features, \
                 {classes} classes"
            ),
            format!("{batches} {kind} of {batch} rows; parameter set {set} ({security})"),
            String::new(),
            format!(
                "sent once          keys {} ({} of them, with the plan fast), rows {} (without seeds {})",
                bytes(sizes.key_bytes),
                sizes.keys,
                bytes(sizes.upload_bytes),
                bytes(sizes.upload_bytes_unseeded)
            ),
            format!(
                "rows in            slots: {} at {} Mbit/s; coefficients: {}, {}, and {} lifts: {} on a GPU, {}",
                seconds(times.upload_seconds),
                times.uplink_mbit_s,
                bytes(sizes.upload_bytes_coefficients),
                seconds(times.upload_seconds_coefficients),
                sizes.lifts,
                seconds(times.lift_seconds_gpu),
                here(times.lift_seconds_here)
            ),
            self.key_plans.text(),
            format!(
                "received           {} a check, {} at the end",
                bytes(sizes.download_bytes_per_check),
                bytes(sizes.download_bytes_at_the_end)
            ),
            format!("disk of the owner  {}", bytes(sizes.owner_disk_bytes)),
            format!(
                "server's memory    {} (keys {}); {} with all batches prepared (otherwise they are prepared one by one)",
                bytes(sizes.server_memory_bytes),
                bytes(sizes.server_key_memory_bytes),
                bytes(sizes.server_memory_bytes_prepared)
            ),
            format!(
                "an iteration       {} bootstraps, {} key switches; {}",
                self.bootstraps_per_iteration,
                self.key_switches_per_iteration,
                here(times.seconds_per_iteration_here)
            ),
            format!(
                "an epoch           {}; at most {} epochs, rate {}, L2 (alpha) {}",
                here(times.seconds_per_epoch_here),
                self.max_epochs,
                chosen(self.rate),
                chosen(self.alpha)
            ),
            format!(
                "checks             every {} iterations, at most {} of them",
                self.check_every, self.checks_at_most
            ),
            format!(
                "a wrong result     by chance at most {} ({} a bootstrap, at most {} of them)",
                failure(self.training_failure_log2),
                failure(self.bootstrap_failure_log2),
                self.bootstraps_at_most
            ),
            format!("softmax            error at most {:.1e}", self.softmax_error),
        ];
        lines.join("\n")
    }
}

impl Sizes {
    fn new(layout: &Layout, plan: &Plan, agreement: &Agreement) -> Result<Self> {
        let params = &layout.params;
        let [keys, working] = layout.accepted_keys()?;
        let (pieces, validation) = (plan.pieces as u64, plan.validation_batches as u64);
        let all = |whole: u64, features: u64| pieces * whole + validation * features;
        let in_form = |form| all(layout.row_bytes(form, true), layout.row_bytes(form, false));
        let (key_bytes, upload_bytes) = (layout.key_bytes(&keys)?, in_form(RowForm::Slots));
        let prepared = (pieces + validation) * layout.shifted_version_bytes();
        let logits = validation * layout.logit_bytes();
        let checks_of_an_epoch = plan.batches as f64 / agreement.check_every as f64;
        // The weights of the last checks, whichever of them is the best.
        let returned = (agreement.patience + 1).min(agreement.checks(plan.batches));
        Ok(Self {
            keys: keys.len(),
            key_bytes,
            upload_bytes,
            upload_bytes_unseeded: all(layout.unseeded_row_bytes(true), layout.unseeded_row_bytes(false)),
            upload_bytes_coefficients: in_form(RowForm::Coefficients),
            lifts: all(layout.row_vectors(true).len() as u64, layout.row_vectors(false).len() as u64),
            download_bytes_per_check: logits,
            download_bytes_per_epoch: (checks_of_an_epoch * logits as f64).ceil() as u64,
            download_bytes_at_the_end: layout.weight_bytes() * returned as u64,
            owner_disk_bytes: key_bytes + upload_bytes,
            server_key_memory_bytes: resident_key_bytes(params, &working),
            server_batch_memory_bytes: prepared,
            server_memory_bytes: server_bytes(params, &working),
            server_memory_bytes_prepared: server_bytes(params, &working) + prepared,
        })
    }
}

impl Times {
    fn new(machine: &CpuCostModel, plan: &Plan, sizes: &Sizes, check_every: usize, uplink: f64) -> Self {
        let sending = |bytes: u64| bytes as f64 * 8e-6 / uplink;
        let (iteration, logits) = (plan.seconds_per_iteration(machine), plan.seconds_of_validation(machine));
        let batches = plan.batches as f64;
        let checks = batches / check_every as f64;
        Self {
            uplink_mbit_s: uplink,
            upload_seconds: sending(sizes.upload_bytes),
            upload_seconds_coefficients: sending(sizes.upload_bytes_coefficients),
            lift_seconds_gpu: sizes.lifts as f64 * GPU_LIFT_SECONDS,
            lift_seconds_here: machine.seconds(OpKind::Lift, 0).map(|seconds| sizes.lifts as f64 * seconds),
            seconds_per_iteration_here: iteration,
            seconds_per_epoch_here: iteration.zip(logits).map(|(i, v)| batches * i + checks * v),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The training that docs/security/parameters.md computes, by plain arithmetic.
    #[test]
    fn a_training_fails_as_seldom_as_all_its_bootstraps_together() {
        let shape = Shape { rows: 13_084, validation: 700, features: 768, classes: 7, weighted: false };
        let wishes =
            Wishes { batch: Some(512), max_epochs: Some(8), alpha: Some(0.0), rate: Some(1.0), ..Wishes::default() };
        let report = PlanReport::new(&shape, &wishes, "full", USUAL_UPLINK).unwrap();
        let (batches, epochs, bootstraps) = (26, 8, 5);
        assert_eq!((report.batches, report.bootstraps_at_most), (batches, (batches * epochs * bootstraps) as u64));
        // A coefficient of 65,536 fails with 2^-102.4.
        let bootstrap = 65_536.0 * 2f64.powf(-102.4);
        assert!((report.bootstrap_failure_log2.unwrap() - bootstrap.log2()).abs() < 0.05);
        let training = (1..=batches * epochs * bootstraps).map(|_| bootstrap).sum::<f64>();
        assert!((report.training_failure_log2.unwrap() - training.log2()).abs() < 0.05);
        let line = |report: &PlanReport| {
            let text = report.text();
            text.lines().find(|line| line.starts_with("a wrong result")).unwrap().to_owned()
        };
        let said = "a wrong result     by chance at most 2^-76 (2^-86 a bootstrap, at most 1040 of them)";
        assert_eq!(line(&report), said);
        // A bound is never printed smaller than it is.
        let rarer = PlanReport { training_failure_log2: Some(-78.9), ..report };
        assert!(line(&rarer).contains("at most 2^-78 "), "{}", line(&rarer));
    }
}
