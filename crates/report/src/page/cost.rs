//! What the training took: time by phase, bytes by what they were.

use super::{Section, cell, lead, missing, pair, row_head, table};
use crate::markup::{Markup, Tag, tag};
use crate::number::{bytes, count, or_unknown, seconds};
use crate::record::{PhaseSeconds, Record, Transfer};

/// Phases shorter than this share of all have no place in the bar.
const SHORTEST: f64 = 0.002;

pub fn section(record: &Record) -> Section {
    let mut content = Markup::none();
    if record.phases.is_empty() && record.transfers.is_empty() {
        content =
            content.then(missing("Times and bytes are not known: the program that trained this model kept none."));
    }
    if !record.phases.is_empty() {
        let about = Markup::from("Seconds on the owner's clock, over all runs of the command.");
        let about = match record.outcome.as_ref().zip(record.iteration_seconds) {
            Some((outcome, one)) => about
                .then(" An iteration took ")
                .then(seconds(one))
                .then(", and there were ")
                .then(count(outcome.iterations))
                .then("."),
            None => about,
        };
        content = content.then(lead(about)).then(bar(&record.phases));
    }
    let times = (!record.phases.is_empty()).then(|| titled("Time", times(&record.phases)));
    let bytes =
        (!record.transfers.is_empty()).then(|| titled("What crossed the network", transfers(&record.transfers)));
    content = content.then(pair(times.unwrap_or_default(), bytes.unwrap_or_default()));
    Section { id: "cost", title: "What it took", content }
}

fn titled(title: &str, content: Tag) -> Markup {
    Markup::from(tag("h3").with(title)).then(content)
}

fn bar(phases: &[PhaseSeconds]) -> Tag {
    let all: f64 = phases.iter().map(|phase| phase.seconds).sum();
    let mut x = 0.0;
    let mut bar = tag("svg").class("times").attr("viewBox", "0 0 1000 28").attr("preserveAspectRatio", "none");
    bar = bar.attr("aria-hidden", "true");
    for (k, phase) in phases.iter().enumerate() {
        let share = if all > 0.0 { phase.seconds / all } else { 0.0 };
        if share >= SHORTEST {
            let width = format!("{:.1}", (1000.0 * share - 2.0).max(1.0));
            let rect = tag("rect").class(format!("phase{}", k % 9)).attr("x", format!("{x:.1}")).attr("width", width);
            bar = bar.with(rect.attr("height", 28));
        }
        x += 1000.0 * share;
    }
    bar
}

fn times(phases: &[PhaseSeconds]) -> Tag {
    let row = |(k, phase): (usize, &PhaseSeconds)| {
        let square = tag("rect").class(format!("phase{}", k % 9)).attr("width", 10).attr("height", 10).attr("rx", 2);
        let key = tag("svg").class("key").attr("viewBox", "0 0 10 10").attr("aria-hidden", "true").with(square);
        tag("tr").with(row_head(tag("span").with(key).with(&phase.name))).with(cell(seconds(phase.seconds)))
    };
    table("Time by phase", &["phase", "time"], phases.iter().enumerate().map(row))
}

fn transfers(all: &[Transfer]) -> Tag {
    let row = |transfer: &Transfer| {
        tag("tr")
            .with(row_head(&transfer.what))
            .with(tag("td").class("word").with(if transfer.sent { "to the server" } else { "to the owner" }))
            .with(cell(bytes(transfer.bytes)))
            .with(cell(or_unknown(transfer.transferred, bytes)))
    };
    let heads = ["what", "direction", "size", "really sent"];
    table("Bytes by what they were", &heads, all.iter().map(row))
}
