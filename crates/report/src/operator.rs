//! The page of an operator: what the server does, and how well.

use crate::markup::{Markup, Tag, tag};
use crate::number::{bytes, count, or_unknown, seconds};
use crate::page::{cell, document, eyebrow, missing, name, noun, pair, plain_cell, row_head, share_bar, table};
use serde::Serialize;

/// Why something is not known.
const HANGING: &str = "Not known while the disk hangs.";

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
    /// Jobs by state; unknown while the disk hangs.
    pub jobs: Option<Vec<(String, u64)>>,
    /// What went wrong, by kind.
    pub errors: Vec<(String, u64)>,
    /// Bytes received and sent.
    pub transferred: [u64; 2],
    /// What computes.
    pub devices: Vec<DeviceState>,
    /// Tenants' use of what is bounded, the largest first; none while the disk hangs.
    pub tenants: Option<Vec<TenantUse>>,
    /// Tenants that `tenants` leaves out.
    pub more_tenants: u64,
    /// Tenant, started jobs, mean seconds in the queue.
    pub waits: Vec<(String, u64, f64)>,
    /// Tenant, uploads, mean bytes.
    pub uploads: Vec<(String, u64, f64)>,
    /// Request, how many, mean seconds.
    pub requests: Vec<(String, u64, f64)>,
}

/// A device. What its driver does not tell is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DeviceState {
    /// Its name in metrics.
    pub name: String,
    /// The model.
    pub model: Option<String>,
    /// Iterations since the start.
    pub iterations: u64,
    /// Mean seconds of one.
    pub iteration_seconds: Option<f64>,
    /// Bytes of memory in use, by this program or others.
    pub used_bytes: Option<u64>,
    /// Bytes of memory.
    pub total_bytes: Option<u64>,
    /// Degrees Celsius.
    pub celsius: Option<u32>,
}

/// What a tenant uses, and the most that he may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TenantUse {
    /// The tenant.
    pub name: String,
    /// Bytes that count against his bound.
    pub bytes: u64,
    /// The bound.
    pub most_bytes: u64,
    /// Uploads.
    pub uploads: u64,
    /// The bound.
    pub most_uploads: u64,
    /// Stored jobs.
    pub jobs: u64,
    /// The bound.
    pub most_jobs: u64,
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
    let requests = means("Requests by kind", "request", "answered", &now.requests, seconds);
    let main = tag("main")
        .attr("id", "main")
        .with(tag("p").class("verdict").attr("role", "status").with(state))
        .with(tiles(now))
        .with(pair(
            section("Jobs", "jobs", jobs(now)).into(),
            section("Devices", "devices", devices(&now.devices)).into(),
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
    let jobs = |state: &str| {
        let known = now.jobs.as_ref();
        known.map(|all| all.iter().find(|(name, _)| name == state).map_or(0, |(_, count)| *count))
    };
    let iterations: u64 = now.devices.iter().map(|device| device.iterations).sum();
    let errors: u64 = now.errors.iter().map(|(_, count)| count).sum();
    let tile = |what: &str, figure: Markup, under: &str| {
        tag("li")
            .with(tag("span").class("what").with(what))
            .with(tag("span").class("figure").with(figure))
            .with(tag("span").class("under").with(under))
    };
    let days = now.certificate_seconds.map(|left| count((left / 86_400).max(0) as u64));
    tag("ul").class("tiles").with_all([
        tile("running", or_unknown(jobs("running"), count), "jobs"),
        tile("queued", or_unknown(jobs("queued"), count), "jobs"),
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
    table(caption, &[head, "count"], rows.iter().map(row))
}

fn jobs(now: &Operation) -> Tag {
    match &now.jobs {
        None => missing(HANGING),
        Some(all) if all.is_empty() => missing("No job yet."),
        Some(all) => counts("Jobs by state", "state", all),
    }
}

fn means(caption: &str, head: &str, what: &str, rows: &[(String, u64, f64)], show: fn(f64) -> Tag) -> Tag {
    let row = |(label, number, mean): &(String, u64, f64)| {
        tag("tr").with(row_head(name(label))).with(cell(count(*number))).with(cell(show(*mean)))
    };
    if rows.is_empty() { missing("None yet.") } else { table(caption, &[head, what, "mean"], rows.iter().map(row)) }
}

/// What computes. Columns that no driver fills are left out.
fn devices(all: &[DeviceState]) -> Tag {
    let has_memory = all.iter().any(|device| device.total_bytes.is_some());
    let has_sensor = all.iter().any(|device| device.celsius.is_some());
    let mut heads = vec!["device", "iterations", "each"];
    heads.extend(has_memory.then_some("memory in use"));
    heads.extend(has_sensor.then_some("temperature"));
    let row = |device: &DeviceState| {
        let mut title = row_head(tag("span").class("whole").with(name(&device.name)));
        if let Some(model) = &device.model {
            title = title.with(tag("span").class("under").with(name(model)));
        }
        let each = match device.iteration_seconds {
            Some(each) => cell(seconds(each)),
            None => plain_cell("none yet"),
        };
        let mut row = tag("tr").with(title).with(cell(count(device.iterations))).with(each);
        if has_memory {
            row = row.with(match device.used_bytes.zip(device.total_bytes) {
                Some((used, total)) => of(bytes(used), bytes(total), used, total),
                None => cell(or_unknown(None, bytes)),
            });
        }
        if has_sensor {
            row = row.with(cell(or_unknown(device.celsius, |celsius| tag("span").with(count(celsius)).with(" °C"))));
        }
        row
    };
    table("Devices", &heads, all.iter().map(row))
}

/// A part of something bounded, with a bar.
fn of(part: Tag, all: Tag, used: u64, most: u64) -> Tag {
    let share = if most == 0 { 0.0 } else { used as f64 / most as f64 };
    cell(tag("span").class("whole").with(part).with(" of ").with(all)).with(share_bar(share.min(1.0)))
}

fn tenants(now: &Operation) -> Markup {
    let bytes_of = |mean: f64| bytes(mean.round() as u64);
    let queue = means("Time in the queue by tenant", "tenant", "started jobs", &now.waits, seconds);
    let uploads = means("Uploads by tenant", "tenant", "uploads", &now.uploads, bytes_of);
    let text = tag("p")
        .class("lead")
        .with("All tenants together: received ")
        .with(bytes(now.transferred[0]))
        .with(", sent ")
        .with(bytes(now.transferred[1]))
        .with(".");
    let titled = |title: &str, content: Tag| Markup::from(tag("h3").with(title)).then(content);
    Markup::from(text)
        .then(titled("Use and bounds", usage(now)))
        .then(pair(titled("Time in the queue", queue), titled("Uploads since the start", uploads)))
}

/// What is stored for each tenant, against his bounds.
fn usage(now: &Operation) -> Tag {
    let Some(all) = &now.tenants else { return missing(HANGING) };
    if all.is_empty() {
        return missing("No tenant is configured: add one with hetal-server token.");
    }
    let row = |one: &TenantUse| {
        tag("tr")
            .with(row_head(tag("span").class("whole").with(name(&one.name))))
            .with(of(bytes(one.bytes), bytes(one.most_bytes), one.bytes, one.most_bytes))
            .with(of(count(one.uploads), count(one.most_uploads), one.uploads, one.most_uploads))
            .with(of(count(one.jobs), count(one.most_jobs), one.jobs, one.most_jobs))
    };
    let more = (now.more_tenants > 0).then(|| {
        let words = noun(now.more_tenants as usize, " tenant who uses less is", " tenants who use less are");
        tag("p").class("missing").with(count(now.more_tenants)).with(words).with(" not listed.")
    });
    let rows = table("What tenants use", &["tenant", "stored", "uploads", "jobs"], all.iter().map(row));
    more.into_iter().fold(tag("div").class("usage").with(rows), Tag::with)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is not the same as not known.
    #[test]
    fn an_idle_server_is_not_one_whose_disk_hangs() {
        let hangs = operation(&Operation::default());
        assert_eq!(hangs.matches(HANGING).count(), 2, "jobs and tenants");
        assert_eq!(hangs.matches("class=\"unknown\"").count(), 3, "running, queued, free");
        let idle = operation(&Operation { jobs: Some(Vec::new()), tenants: Some(Vec::new()), ..Operation::default() });
        assert!(!idle.contains(HANGING) && idle.contains("No job yet."), "{idle}");
        assert_eq!(idle.matches("<data value=\"0\">0</data></span><span class=\"under\">jobs").count(), 2, "{idle}");
    }

    #[test]
    fn names_of_tenants_are_text() {
        let hostile = "</td><script>alert(1)</script>".to_owned();
        let now = Operation {
            fault: Some(hostile.clone()),
            waits: vec![(hostile.clone(), 3, 1.5)],
            jobs: Some(vec![("running".to_owned(), 2)]),
            ..Operation::default()
        };
        let page = operation(&now);
        assert!(!page.contains("<script") && page.matches("&lt;script&gt;").count() == 2, "{page}");
        assert!(page.contains("<span class=\"figure\"><data value=\"2\">2</data></span>"), "{page}");
    }
}
