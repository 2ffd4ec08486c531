//! ROC and calibration curves.

use super::quality::rows_text;
use super::{cell, details, figure, name, row_head, table};
use crate::chart::{Axis, Chart, SQUARE};
use crate::markup::{Markup, Tag, tag};
use crate::number::{count, or_unknown, percent, percent_text, score};
use crate::record::{MeasureRecord, Record, RocCurve};

/// Colours that people tell apart, also if they are colour-blind.
const HUES: usize = 6;

/// Receiver operating characteristics.
pub fn roc(record: &Record, measures: &MeasureRecord) -> Tag {
    let chart = Chart::new(SQUARE, Axis::share("false positive rate"), Axis::share("true positive rate"));
    let chart = chart.line("chance", &[(0.0, 0.0), (1.0, 1.0)]);
    let chart = measures
        .roc_curves
        .iter()
        .enumerate()
        .fold(chart, |chart, (k, curve)| chart.line(&format!("hue{} dash{}", k % HUES, k / HUES), &curve.points));
    let title = "ROC of each class against the rest";
    let about = "Each curve says which share of the rows of a class is found, for every share of the other rows that \
                 is taken along. The list below has the area under each.";
    let legend = |(k, curve): (usize, &RocCurve)| {
        let class = record.classes.get(curve.class).map_or("?", String::as_str);
        let auc = measures.per_class.get(curve.class).and_then(|class| class.roc_auc);
        tag("li").with(swatch(k)).with(name(class)).with(" ").with(or_unknown(auc, score))
    };
    let legend = tag("ul").class("legend").with_all(measures.roc_curves.iter().enumerate().map(legend));
    let says = if measures.roc_curves.is_empty() {
        "No curve: a class has all validation rows, or none."
    } else if measures.roc_curves.len() < measures.per_class.len() && measures.per_class.len() > 2 {
        "The classes with the smallest areas, which the list gives. Near the upper left corner is good: all rows of \
         the class are found, and few of others with them. The diagonal is chance."
    } else {
        "Near the upper left corner is good: all rows of the class are found, and few of others with them. The \
         diagonal is chance. The list gives the area under each curve."
    };
    figure(title, chart.svg("roc", title, about), says).with(legend)
}

fn swatch(k: usize) -> Tag {
    let line = tag("line").class(format!("line hue{} dash{}", k % HUES, k / HUES));
    let line = line.attr("x1", 0).attr("x2", 26).attr("y1", 5).attr("y2", 5);
    tag("svg").class("swatch").attr("viewBox", "0 0 26 10").attr("aria-hidden", "true").with(line)
}

/// Probabilities against how often they were right.
pub fn calibration(measures: &MeasureRecord) -> Tag {
    let bins = &measures.calibration_curve;
    let chart = Chart::new(SQUARE, Axis::share("probability of the predicted class"), Axis::share("right predictions"));
    let points: Vec<_> = bins.iter().map(|bin| (bin.predicted, bin.right)).collect();
    let chart = chart.line("chance", &[(0.0, 0.0), (1.0, 1.0)]).line("calibration", &points);
    let most = bins.iter().map(|bin| bin.rows).max().unwrap_or(1) as f64;
    let chart = bins.iter().fold(chart, |chart, bin| {
        // The area of a mark grows with the rows.
        let radius = ((3.0 + 7.0 * (bin.rows as f64 / most).sqrt()) * 10.0).round() / 10.0;
        let text = format!(
            "probability {}: {} right, {}",
            percent_text(bin.predicted),
            percent_text(bin.right),
            rows_text(bin.rows)
        );
        chart.bubble("calibration", bin.predicted, bin.right, radius, text)
    });
    let says = "On the diagonal, probabilities are as often right as they say. Larger marks have more rows.";
    let rows = bins.iter().map(|bin| {
        tag("tr").with(row_head(percent(bin.predicted))).with(cell(percent(bin.right))).with(cell(count(bin.rows)))
    });
    let as_table = table("Calibration", &["mean probability", "right", "rows"], rows);
    let title = "Calibration";
    let about = "Mean probability of the predicted class against the share of right predictions, in bins. The table \
                 below has the values.";
    figure(title, chart.svg("calibration", title, about), says).with(details("As a table", Markup::from(as_table)))
}
