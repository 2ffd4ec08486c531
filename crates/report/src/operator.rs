//! The page of an operator: what the server does, and how well.

use crate::markup::{Markup, Tag, tag};
use crate::number::{bytes, count, or_unknown, seconds};
use crate::page::{cell, document, eyebrow, missing, name, pair, row_head, table};
use serde::Serialize;

/// What an operator sees. No job, row or key of a tenant is in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Operation {
    /// The program.
    pub program: String,
    /// Why the server is not healthy, if it is not.
    pub fault: Option<String>,
    /// Whether it stops.
    pub draining: bool,
    /// Seconds since it started.
    pub uptime: f64,
    /// Free bytes of its folder; unknown while the disk hangs.
    pub free_bytes: Option<u64>,
    /// Seconds until its certificate ends.
    pub certificate_seconds: Option<i64>,
    /// Jobs by state.
    pub jobs: Vec<(String, u64)>,
    /// What went wrong, by kind.
    pub errors: Vec<(String, u64)>,
    /// Bytes received and sent.
    pub transferred: [u64; 2],
    /// Device, iterations, mean seconds of one.
    pub iterations: Vec<(String, u64, f64)>,
    /// Tenant, started jobs, mean seconds in the queue.
    pub waits: Vec<(String, u64, f64)>,
    /// Tenant, uploads, mean bytes.
    pub uploads: Vec<(String, u64, f64)>,
    /// Request, how many, mean seconds.
    pub requests: Vec<(String, u64, f64)>,
}

/// The page, as one HTML file without scripts.
pub fn operation(now: &Operation) -> String {
    let state = match (&now.fault, now.draining) {
        (Some(fault), _) => format!("The server is not healthy: {fault}"),
        (None, true) => "The server finishes what it does and then stops.".to_owned(),
        (None, false) => "The server is healthy.".to_owned(),
    };
    let header = tag("header")
        .with(eyebrow("server"))
        .with(tag("h1").with("Operation"))
        .with(tag("p").class("shape").with(tag("span").with(name(&now.program))).with(uptime(now)));
    let iterations = means("Iterations by device", "device", "iterations", &now.iterations, seconds);
    let requests = means("Requests by kind", "request", "answered", &now.requests, seconds);
    let main = tag("main")
        .attr("id", "main")
        .with(tag("p").class("verdict").attr("role", "status").with(state))
        .with(tiles(now))
        .with(pair(
            section("Jobs", "jobs", counts("Jobs by state", "state", &now.jobs)).into(),
            section("Devices", "devices", iterations).into(),
        ))
        .with(section("Tenants", "tenants", tenants(now)))
        .with(pair(
            section("Requests", "requests", requests).into(),
            section("Errors", "errors", counts("Errors by kind", "kind", &now.errors)).into(),
        ));
    let footer = "Since the start of the server. Load the page again to bring it up to date; the same figures are under \
                  /metrics for Prometheus.";
    document("hetal server", Markup::from(header).then(main).then(tag("footer").with(tag("p").with(footer))))
}

fn uptime(now: &Operation) -> Tag {
    tag("span").with("up for ").with(seconds(now.uptime.round()))
}

fn tiles(now: &Operation) -> Tag {
    let jobs = |state: &str| now.jobs.iter().find(|(name, _)| name == state).map_or(0, |(_, count)| *count);
    let iterations: u64 = now.iterations.iter().map(|(_, count, _)| count).sum();
    let errors: u64 = now.errors.iter().map(|(_, count)| count).sum();
    let tile = |what: &str, figure: Markup, under: &str| {
        tag("li")
            .with(tag("span").class("what").with(what))
            .with(tag("span").class("figure").with(figure))
            .with(tag("span").class("under").with(under))
    };
    let days = now.certificate_seconds.map(|left| count((left / 86_400).max(0) as u64));
    tag("ul").class("tiles").with_all([
        tile("running", count(jobs("running")).into(), "jobs"),
        tile("queued", count(jobs("queued")).into(), "jobs"),
        tile("iterations", count(iterations).into(), "on all devices"),
        tile("errors", count(errors).into(), "of all kinds"),
        tile("free", or_unknown(now.free_bytes, bytes), "on the disk"),
        tile("certificate", days.map_or("none".into(), Markup::from), "days left"),
    ])
}

fn section(title: &str, id: &str, content: impl Into<Markup>) -> Tag {
    let heading = format!("{id}-heading");
    tag("section").attr("aria-labelledby", &heading).with(tag("h2").attr("id", &heading).with(title)).with(content)
}

fn counts(caption: &str, head: &str, rows: &[(String, u64)]) -> Tag {
    let row = |(label, number): &(String, u64)| tag("tr").with(row_head(name(label))).with(cell(count(*number)));
    if rows.is_empty() {
        missing("Not known while the disk hangs.")
    } else {
        table(caption, &[head, "count"], rows.iter().map(row))
    }
}

fn means(caption: &str, head: &str, what: &str, rows: &[(String, u64, f64)], show: fn(f64) -> Tag) -> Tag {
    let row = |(label, number, mean): &(String, u64, f64)| {
        tag("tr").with(row_head(name(label))).with(cell(count(*number))).with(cell(show(*mean)))
    };
    if rows.is_empty() { missing("None yet.") } else { table(caption, &[head, what, "mean"], rows.iter().map(row)) }
}

fn tenants(now: &Operation) -> Markup {
    let bytes_of = |mean: f64| bytes(mean.round() as u64);
    let queue = means("Time in the queue by tenant", "tenant", "started jobs", &now.waits, seconds);
    let uploads = means("Uploads by tenant", "tenant", "uploads", &now.uploads, bytes_of);
    let text = tag("p")
        .with("Received ")
        .with(bytes(now.transferred[0]))
        .with(", sent ")
        .with(bytes(now.transferred[1]))
        .with(".");
    let titled = |title: &str, content: Tag| Markup::from(tag("h3").with(title)).then(content);
    Markup::from(text).then(pair(titled("Time in the queue", queue), titled("Uploads", uploads)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tenants_are_text() {
        let hostile = "</td><script>alert(1)</script>".to_owned();
        let now = Operation {
            fault: Some(hostile.clone()),
            waits: vec![(hostile.clone(), 3, 1.5)],
            jobs: vec![("running".to_owned(), 2)],
            ..Operation::default()
        };
        let page = operation(&now);
        assert!(!page.contains("<script") && page.matches("&lt;script&gt;").count() == 2, "{page}");
        assert!(page.contains("<span class=\"figure\"><data value=\"2\">2</data></span>"), "{page}");
    }
}
