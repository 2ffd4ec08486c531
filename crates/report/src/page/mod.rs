//! The page that shows a record.

mod cost;
mod curves;
mod head;
mod learning;
mod origin;
mod quality;
mod seen;

pub(crate) use head::{eyebrow, private};

use crate::markup::{Markup, Tag, tag};
use crate::record::{Record, TrainingState};

/// The style sheet. A page needs no other file.
pub const STYLE: &str = include_str!("style.css");
/// What [`STYLE`] hashes to, by which the page allows it and no other style.
const STYLE_HASH: &str = include_str!("style.hash");

/// The page of a record, as one HTML file that asks nobody for anything.
pub fn page(record: &Record) -> String {
    document(&format!("{}: report on a training", record.name), body(record))
}

/// A file with the style sheet and without scripts.
pub(crate) fn document(title: &str, content: Markup) -> String {
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; img-src data:; base-uri 'none'; form-action 'none'",
        STYLE_HASH.trim()
    );
    let head = tag("head")
        .with(tag("meta").attr("charset", "utf-8"))
        .with(tag("meta").attr("http-equiv", "Content-Security-Policy").attr("content", policy))
        .with(tag("meta").attr("name", "viewport").attr("content", "width=device-width, initial-scale=1"))
        .with(tag("meta").attr("name", "referrer").attr("content", "no-referrer"))
        .with(tag("meta").attr("name", "color-scheme").attr("content", "light dark"))
        .with(tag("title").with(title))
        .with(tag("link").attr("rel", "icon").attr("href", "data:,"))
        .with(tag("style").with_style(STYLE));
    let skip = tag("a").class("skip").attr("href", "#main").with("Skip to the content");
    let html = tag("html").attr("lang", "en").with(head).with(tag("body").with(skip).with(content));
    format!("<!DOCTYPE html>\n{}\n", Markup::from(html).as_str())
}

/// The content of the page without what surrounds it.
pub fn body(record: &Record) -> Markup {
    let sections: Vec<Section> = match record.state {
        TrainingState::Finished => vec![
            learning::section(record),
            quality::section(record),
            cost::section(record),
            seen::section(record),
            origin::parameters(record),
            origin::section(record),
        ],
        TrainingState::Running | TrainingState::Interrupted => {
            vec![learning::section(record), cost::section(record), seen::section(record), origin::parameters(record)]
        }
    };
    let links = sections.iter().map(|s| tag("li").with(tag("a").attr("href", format!("#{}", s.id)).with(s.title)));
    let contents = tag("nav").class("contents").attr("aria-label", "Sections").with(tag("ul").with_all(links));
    let sections: Markup = sections.into_iter().map(Section::markup).collect();
    Markup::from(head::header(record))
        .then(contents)
        .then(tag("main").attr("id", "main").with(head::summary(record)).with(sections))
        .then(tag("footer").with(tag("p").with(&record.notice)))
}

/// A section of the page.
struct Section {
    id: &'static str,
    title: &'static str,
    content: Markup,
}

impl Section {
    fn markup(self) -> Tag {
        let Self { id, title, content } = self;
        let heading = format!("{id}-heading");
        tag("section")
            .attr("id", id)
            .attr("aria-labelledby", &heading)
            .with(tag("h2").attr("id", &heading).with(title))
            .with(content)
    }
}

/// A paragraph that introduces a section.
fn lead(content: impl Into<Markup>) -> Tag {
    tag("p").class("lead").with(content)
}

/// What is not known, and why.
pub(crate) fn missing(text: &str) -> Tag {
    tag("p").class("missing").with(text)
}

/// A name that somebody else chose.
pub(crate) fn name(text: &str) -> Tag {
    tag("bdi").with(text)
}

/// A chart with its title above, and a sentence on what it shows below.
fn figure(title: &str, chart: Tag, says: impl Into<Markup>) -> Tag {
    let caption = tag("figcaption").with(tag("h3").with(title));
    tag("figure").with(caption).with(chart).with(tag("p").class("says").with(says))
}

/// Charts beside each other where there is space.
fn figures(all: impl IntoIterator<Item = Tag>) -> Tag {
    tag("div").class("figures").with_all(all)
}

/// Two parts beside each other where there is space.
pub(crate) fn pair(left: Markup, right: Markup) -> Tag {
    pair_of("pair", left, right)
}

/// Two parts that need more space before they stand beside each other.
fn wide_pair(left: Markup, right: Markup) -> Tag {
    pair_of("pair roomy", left, right)
}

fn pair_of(class: &str, left: Markup, right: Markup) -> Tag {
    tag("div").class(class).with(tag("div").with(left)).with(tag("div").with(right))
}

/// A list of names and values.
fn facts(all: impl IntoIterator<Item = (&'static str, Markup)>) -> Tag {
    let pair =
        |(name, value): (&'static str, Markup)| tag("div").with(tag("dt").with(name)).with(tag("dd").with(value));
    tag("dl").class("facts").with_all(all.into_iter().map(pair))
}

/// A table that scrolls by itself where the page is narrow. A heading above says what it holds, so
/// its caption is for screen readers.
pub(crate) fn table(caption: &str, heads: &[&str], rows: impl IntoIterator<Item = Tag>) -> Tag {
    let column = |name: &&str| tag("th").attr("scope", "col").with(*name);
    let table = tag("table")
        .with(tag("caption").class("spoken").with(caption))
        .with(tag("thead").with(tag("tr").with_all(heads.iter().map(column))))
        .with(tag("tbody").with_all(rows));
    scrolling(caption, table)
}

/// Something wide, which the keyboard can scroll too.
fn scrolling(name: &str, content: Tag) -> Tag {
    tag("div").class("scroll").attr("role", "region").attr("aria-label", name).attr("tabindex", 0).with(content)
}

/// What is shown when asked for.
fn details(summary: &str, content: impl Into<Markup>) -> Tag {
    tag("details").with(tag("summary").with(summary)).with(content)
}

pub(crate) fn cell(content: impl Into<Markup>) -> Tag {
    tag("td").with(content)
}

pub(crate) fn row_head(content: impl Into<Markup>) -> Tag {
    tag("th").attr("scope", "row").with(content)
}

/// A cell of words.
pub(crate) fn plain_cell(words: &str) -> Tag {
    cell(tag("span").class("unknown").with(words))
}

/// A share as a bar, beside the number that tells it.
pub(crate) fn share_bar(share: f64) -> Tag {
    let bar = tag("svg").class("bar").attr("viewBox", "0 0 100 4").attr("preserveAspectRatio", "none");
    let bar = bar.attr("aria-hidden", "true").with(tag("rect").class("all").attr("width", 100).attr("height", 4));
    let width = format!("{:.1}", 100.0 * share);
    bar.with(tag("rect").class("part").attr("width", width).attr("height", 4))
}

/// A word and its plural.
pub(crate) fn noun(count: usize, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}

/// Yes or no.
fn yes_no(is: bool) -> Markup {
    if is { "yes" } else { "no" }.into()
}
