//! The pages of `hetal ui`: an overview of projects, and trainings while they go on. A small script
//! brings a page up to date; without it a page shows what was known when it was loaded.

use crate::chart::spark;
use crate::markup::{Markup, Tag, tag};
use crate::number::{bytes, count, moment, or_unknown, percent, score, seconds};
use crate::page;
use crate::record::{CurrentPhase, Record, TrainingState, Unit};
use serde::{Deserialize, Serialize};

/// The script that brings pages up to date.
pub const SCRIPT: &str = include_str!("watch.js");
/// What the pages need beyond the style sheet of reports.
pub const WATCH_STYLE: &str = include_str!("watch.css");

/// What `hetal ui` shows first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// The projects, in the order in which they were named.
    pub projects: Vec<ProjectOverview>,
}

/// A project.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProjectOverview {
    /// Its folder.
    pub folder: String,
    /// Trainings that have not ended.
    pub unfinished: Vec<Record>,
    /// Models, the newest first.
    pub models: Vec<Record>,
    /// What cannot be shown, and why.
    pub problems: Vec<String>,
}

/// A whole page around content that the script replaces. All paths begin with `base`.
pub fn shell(base: &str, title: &str, content: &Markup) -> String {
    let head = tag("head")
        .with(tag("meta").attr("charset", "utf-8"))
        .with(tag("meta").attr("name", "viewport").attr("content", "width=device-width, initial-scale=1"))
        .with(tag("meta").attr("name", "color-scheme").attr("content", "light dark"))
        .with(tag("title").with(title))
        .with(tag("link").attr("rel", "icon").attr("href", "data:,"))
        .with(tag("link").attr("rel", "stylesheet").attr("href", format!("{base}/style.css")))
        .with(tag("script").attr("src", format!("{base}/watch.js")).attr("defer", "defer"));
    let lost = "hetal ui has stopped: this page shows what was known then.";
    let body = tag("body")
        .with(tag("a").class("skip").attr("href", "#main").with("Skip to the content"))
        .with(tag("p").attr("id", "said").class("spoken").attr("role", "status"))
        .with(tag("p").attr("id", "lost").attr("hidden", "hidden").with(lost))
        .with(tag("div").attr("id", "live").with(content.clone()));
    let html = tag("html").attr("lang", "en").with(head).with(body);
    format!("<!DOCTYPE html>\n{}\n", Markup::from(html).as_str())
}

/// The page of a training.
pub fn training(base: &str, record: &Record) -> Markup {
    let back = tag("p").class("back").with(tag("a").attr("href", format!("{base}/")).with("All trainings"));
    let said = tag("div").attr("id", "saying").attr("hidden", "hidden").with(sentence(record));
    Markup::from(tag("nav").attr("aria-label", "Back").with(back)).then(page::body(record)).then(said)
}

/// What a screen reader says when it changes.
fn sentence(record: &Record) -> String {
    match (&record.progress, record.checks.last()) {
        (Some(now), Some(check)) => format!("{}, after check {}", now.phase, check.number),
        (Some(now), None) => now.phase.clone(),
        (None, _) => "The training has ended.".to_owned(),
    }
}

/// The overview.
pub fn overview(base: &str, all: &Overview) -> Markup {
    let header = tag("header").with(page::eyebrow("on this machine")).with(tag("h1").with("Trainings"));
    let header =
        header.with(page::private("Accuracies and losses follow from decrypted values. These pages are for you only."));
    let projects = all.projects.iter().enumerate().map(|(k, one)| project(base, k, one));
    let running = all.projects.iter().map(|one| one.unfinished.len()).sum::<usize>();
    let said = format!("{running} {} in progress", page::noun(running, "training", "trainings"));
    Markup::from(header)
        .then(tag("main").attr("id", "main").with_all(projects))
        .then(tag("div").attr("id", "saying").attr("hidden", "hidden").with(said))
}

fn project(base: &str, k: usize, one: &ProjectOverview) -> Tag {
    let heading = format!("project-{k}");
    let mut section = tag("section")
        .attr("aria-labelledby", &heading)
        .with(tag("h2").attr("id", &heading).with("Project ").with(page::name(&one.folder)));
    if !one.unfinished.is_empty() {
        let cards = one.unfinished.iter().map(|record| card(base, k, record));
        section = section.with(tag("h3").with("In progress")).with(tag("ul").class("cards").with_all(cards));
    }
    if !one.models.is_empty() {
        section = section.with(tag("h3").with("Models")).with(models(base, k, &one.models));
    }
    if one.unfinished.is_empty() && one.models.is_empty() && one.problems.is_empty() {
        let how = "No training yet. Start one with hetal train; it appears here by itself.";
        section = section.with(tag("p").class("missing").with(how));
    }
    section.with_all(one.problems.iter().map(|problem| tag("p").class("missing").with(problem)))
}

fn link(base: &str, k: usize, record: &Record) -> Tag {
    tag("a").attr("href", format!("{base}/{k}/{}", record.name)).with(page::name(&record.name))
}

/// A training in progress.
fn card(base: &str, k: usize, record: &Record) -> Tag {
    let state = match record.state {
        TrainingState::Interrupted => "interrupted: the same command continues it",
        TrainingState::Running | TrainingState::Finished => "running",
    };
    let card = tag("li").class(if record.state == TrainingState::Interrupted { "card rests" } else { "card" });
    let title = tag("p").class("title").with(tag("strong").with(link(base, k, record))).with(tag("span").with(state));
    let card = card.with(title);
    let card = match &record.progress {
        Some(now) => card.with(progress(now)),
        None => card.with(tag("p").class("missing").with("Its progress is not known: an earlier version began it.")),
    };
    let losses: Vec<f64> = record.checks.iter().filter(|check| check.accepted).filter_map(|check| check.loss).collect();
    let Some(last) = losses.last() else { return card };
    let text = tag("span").with("loss ").with(score(*last)).with(" after ").with(count(record.checks.len()));
    let text = text.with(page::noun(record.checks.len(), " check", " checks"));
    let curve = tag("p").class("curve");
    card.with(if losses.len() > 1 { curve.with(spark(&losses)) } else { curve }.with(text))
}

/// A phase with its bar.
pub fn progress(now: &CurrentPhase) -> Markup {
    let units = |value: u64| match now.unit {
        Unit::Bytes => bytes(value),
        Unit::Pieces | Unit::Iterations => count(value),
    };
    let line = tag("p").class("now").with(tag("strong").with(&now.phase)).with(" ");
    if now.total == 0 {
        return line.into();
    }
    let done = tag("span").with(units(now.done)).with(" of ").with(units(now.total));
    let done = if now.unit == Unit::Iterations { done.with(" iterations") } else { done };
    let left = now
        .seconds_left
        .filter(|left| *left >= 1.0)
        .map(|left| tag("span").class("left").with(" about ").with(seconds(left)).with(" left"));
    let line = left.into_iter().fold(line.with(done), Tag::with);
    let bar = tag("progress").attr("max", now.total).attr("value", now.done).attr("aria-label", &now.phase);
    Markup::from(line).then(bar)
}

/// Models side by side.
fn models(base: &str, k: usize, all: &[Record]) -> Tag {
    let heads = [
        "model", "accuracy", "balanced", "F-score", "ROC area", "loss", "rows", "features", "classes", "epochs",
        "time", "ended",
    ];
    let row = |record: &Record| {
        let (outcome, measures) = (record.outcome.as_ref(), record.measures.as_ref());
        tag("tr")
            .with(page::row_head(link(base, k, record)))
            .with(page::cell(or_unknown(outcome.map(|outcome| outcome.accuracy), percent)))
            .with(page::cell(or_unknown(measures.map(|m| m.balanced_accuracy_score), percent)))
            .with(page::cell(or_unknown(measures.map(|m| m.f1_macro), score)))
            .with(page::cell(or_unknown(measures.and_then(|m| m.roc_auc_score), score)))
            .with(page::cell(or_unknown(outcome.map(|outcome| outcome.loss), score)))
            .with(page::cell(count(record.shape.rows)))
            .with(page::cell(count(record.shape.features)))
            .with(page::cell(count(record.shape.classes)))
            .with(page::cell(or_unknown(outcome.map(|outcome| outcome.epochs), count)))
            .with(page::cell(or_unknown(record.seconds, seconds)))
            .with(page::cell(or_unknown(record.ended.as_deref(), moment)))
    };
    page::table("Models", &heads, all.iter().map(row))
}
