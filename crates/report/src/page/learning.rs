//! How the training went: a chart for each quantity over the checks, and the table of all of them.

use super::{Section, cell, details, figure, figures, lead, missing, row_head, table};
use crate::chart::{Axis, Chart, WIDE};
use crate::markup::{Markup, Tag, tag};
use crate::number::{count, or_unknown, percent, percent_text, plain, plain_text, score, score_text, seconds};
use crate::record::{Check, Record, Verdict};

pub fn section(record: &Record) -> Section {
    let content = if record.checks.is_empty() {
        missing(
            "The checks of this training are not known: none was made yet, or an earlier version of the program \
             trained it and kept no record. The result above is that of the model file.",
        )
        .into()
    } else {
        Markup::from(lead(
            "After every check the owner decrypts the validation logits and answers with one of four verdicts. \
             Nothing else that depends on decrypted values leaves the owner's machine.",
        ))
        .then(figures(charts(record)))
        .then(details("All checks as a table", all_checks(record)))
    };
    Section { id: "learning", title: "How it learned", content }
}

fn charts(record: &Record) -> Vec<Tag> {
    let mut charts = vec![loss(record), accuracy(record), logits(record)];
    let rates: Vec<f64> = record.checks.iter().filter_map(|check| check.rate).collect();
    if rates.windows(2).any(|pair| pair[0] != pair[1]) {
        charts.push(rate(record));
    }
    charts
}

/// The values of accepted checks, with a text for each.
fn accepted(record: &Record, value: impl Fn(&Check) -> Option<f64>) -> Vec<(f64, f64)> {
    let counted = record.checks.iter().filter(|check| check.accepted);
    counted.filter_map(|check| Some((check.number as f64, value(check)?))).collect()
}

fn chart(record: &Record, y: Axis) -> Chart {
    let last = record.checks.last().map_or(1, |check| check.number);
    let chart = Chart::new(WIDE, Axis::whole("check", 1, last), y);
    record.checks.iter().filter(|check| !check.accepted).fold(chart, |chart, check| {
        let (class, word) = match check.verdict {
            Verdict::WidenRange => ("widened", "wider"),
            Verdict::LowerRate => ("lowered", "lower"),
            Verdict::Continue | Verdict::Stop => ("refused", "refused"),
        };
        chart.event(class, check.number as f64, word, format!("check {}: {}", check.number, check.verdict.words()))
    })
}

/// A curve of the accepted checks, with the check that was taken.
fn curve(record: &Record, y: Axis, class: &str, points: &[(f64, f64)], shown: fn(f64) -> String) -> Chart {
    let marked = |(x, y): &(f64, f64)| (*x, *y, format!("check {x}: {}", shown(*y)));
    let marks: Vec<_> = points.iter().map(marked).collect();
    let chart = chart(record, y).area(class, points).line(class, points).marks(class, &marks);
    let best = record.outcome.as_ref().and_then(|outcome| outcome.best_check).map(|best| best as f64);
    match points.iter().find(|(x, _)| Some(*x) == best) {
        Some(&best) => chart.best(best, points, shown(best.1)),
        None => chart,
    }
}

fn loss(record: &Record) -> Tag {
    let points = accepted(record, |check| check.loss);
    let chart = curve(record, Axis::over("loss", values(&points)), "loss", &points, score_text);
    let says = from_to(&points, score, "The loss");
    figure(
        "Loss on the validation rows",
        chart.svg("loss", "Loss over the checks", &described(&points, score_text)),
        says,
    )
}

fn accuracy(record: &Record) -> Tag {
    let points = accepted(record, |check| check.accuracy);
    let axis = Axis::over("accuracy", values(&points)).in_percent();
    let chart = curve(record, axis, "accuracy", &points, percent_text);
    let says = from_to(&points, percent, "The accuracy");
    let svg = chart.svg("accuracy", "Accuracy over the checks", &described(&points, percent_text));
    figure("Accuracy on the validation rows", svg, says)
}

fn logits(record: &Record) -> Tag {
    let largest = accepted(record, |check| check.largest_logit);
    let of = |value: fn(&Check) -> f64| -> Vec<(f64, f64)> {
        let points = record.checks.iter().map(|check| (check.number as f64, value(check)));
        // A single check has a line too.
        let single = record.checks.first().filter(|_| record.checks.len() == 1).map(|check| (2.0, value(check)));
        points.chain(single).collect()
    };
    let (ranges, limits) = (of(|check| check.range), of(|check| check.limit));
    // Those that made the owner widen the range or lower the rate, as far as they fit.
    let top = values(&ranges).fold(0.0, f64::max);
    let beyond = record.checks.iter().filter(|check| !check.accepted);
    let beyond = beyond.filter_map(|check| Some((check.number as f64, check.largest_logit.filter(|l| *l <= top)?)));
    let beyond: Vec<_> = beyond.map(|(x, y)| (x, y, format!("check {x}: {}", plain_text(y)))).collect();
    let axis = Axis::over("logit", values(&ranges).chain(values(&largest)).chain([0.0]));
    let marks: Vec<_> = largest.iter().map(|(x, y)| (*x, *y, format!("check {x}: {}", plain_text(*y)))).collect();
    let chart = chart(record, axis)
        .area("logit", &largest)
        .line("logit", &largest)
        .marks("logit", &marks)
        .marks("beyond", &beyond);
    let chart = chart.steps("range", &ranges).steps("limit", &limits);
    let chart = match (ranges.last(), limits.last()) {
        (Some(&(x, range)), Some(&(_, limit))) => {
            chart.word("range", x, range, "end", "range").word("limit", x, limit, "end", "limit")
        }
        _ => chart,
    };
    let widened = record.checks.iter().filter(|check| check.verdict == Verdict::WidenRange).count();
    let says = Markup::from("The encrypted softmax is exact within the range. Logits above the limit make the owner ");
    let says = says.then(if widened == 0 {
        "widen it, which was not necessary."
    } else {
        "widen it, and the steps since the last accepted check are done again."
    });
    let svg = chart.svg("logits", "Largest logit and range over the checks", &described(&largest, plain_text));
    figure("Largest logit against the range", svg, says)
}

fn rate(record: &Record) -> Tag {
    let rates = record.checks.iter().filter_map(|check| Some((check.number as f64, check.rate?)));
    let rates: Vec<_> = rates.collect();
    let axis = Axis::over("rate", values(&rates).chain([0.0]));
    let svg = chart(record, axis).steps("rate", &rates).svg(
        "rate",
        "Learning rate over the checks",
        &described(&rates, plain_text),
    );
    figure("Learning rate", svg, "A lower rate follows when a training diverges.")
}

fn values(points: &[(f64, f64)]) -> impl Iterator<Item = f64> {
    points.iter().map(|point| point.1)
}

fn from_to(points: &[(f64, f64)], show: fn(f64) -> Tag, what: &str) -> Markup {
    match points {
        [] => format!("{what} is not known.").into(),
        [(_, only)] => Markup::from(format!("{what} was ")).then(show(*only)).then(" at the only check."),
        [(_, first), .., (_, last)] => {
            let text = Markup::from(format!("{what} went from ")).then(show(*first)).then(" to ");
            text.then(show(*last)).then(".")
        }
    }
}

/// What a chart shows, for those who do not see it.
fn described(points: &[(f64, f64)], show: fn(f64) -> String) -> String {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return "No accepted check.".to_owned() };
    let (low, high) = points.iter().fold((first.1, first.1), |(a, b), (_, v)| (a.min(*v), b.max(*v)));
    format!(
        "{} at check {}, {} at check {}; lowest {}, highest {}. The table of all checks has every value.",
        show(first.1),
        first.0,
        show(last.1),
        last.0,
        show(low),
        show(high)
    )
}

fn all_checks(record: &Record) -> Tag {
    let best = record.outcome.as_ref().and_then(|outcome| outcome.best_check);
    let heads = ["check", "loss", "accuracy", "largest logit", "range", "rate", "after", "verdict"];
    let row = |check: &Check| {
        let is_best = best == Some(check.number);
        let number = tag("span").with(count(check.number)).with(if is_best { " (taken)" } else { "" });
        tag("tr")
            .class(if is_best {
                "taken"
            } else if check.accepted {
                ""
            } else {
                "again"
            })
            .with(row_head(number))
            .with(cell(or_unknown(check.loss, score)))
            .with(cell(or_unknown(check.accuracy, percent)))
            .with(cell(or_unknown(check.largest_logit, plain)))
            .with(cell(plain(check.range)))
            .with(cell(or_unknown(check.rate, plain)))
            .with(cell(or_unknown(check.seconds, seconds)))
            .with(tag("td").class("word").with(check.verdict.words()))
    };
    table("All checks", &heads, record.checks.iter().map(row))
}
