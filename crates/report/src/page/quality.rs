//! How good the classifier is: scores, the confusion matrix, each class, curves.

use super::{
    Section, cell, curves, facts, figures, lead, missing, name, row_head, scrolling, share_bar, table, wide_pair,
};
use crate::markup::{Markup, Tag, tag};
use crate::number::{count, count_text, or_unknown, percent, score};
use crate::record::{ClassMeasures, MeasureRecord, Record};

/// More classes than this have no table of their confusions: it would not be read.
const MOST_IN_A_TABLE: usize = 24;
/// The most confusions that are listed instead.
const MOST_CONFUSIONS: usize = 20;
/// Columns with longer names have them written upwards.
const LONGEST_ACROSS: usize = 7;
/// Shades of the confusion matrix.
const SHADES: f64 = 8.0;

pub fn section(record: &Record) -> Section {
    let content = match &record.measures {
        Some(measures) => all(record, measures),
        None => missing(
            "The confusion matrix and the curves are not known: the program that trained this model kept no record \
             of them. Classify labelled rows with hetal predict to have them.",
        )
        .into(),
    };
    Section { id: "quality", title: "How good it is", content }
}

fn all(record: &Record, measures: &MeasureRecord) -> Markup {
    let mut about = Markup::from("Measured on ").then(count(record.shape.validation_rows)).then(" validation rows, ");
    about = about
        .then("with the logits by which the training was judged. Names and conventions are those of scikit-learn.");
    if record.preparation.prior != 0.0 {
        about = about.then(" The prior that was subtracted from the biases afterwards is not in these figures.");
    }
    if record.preparation.weighted {
        about = about.then(" Rows count the same here, whatever their weights in the loss.");
    }
    let scores = facts([
        ("accuracy", percent(measures.accuracy_score).into()),
        ("balanced accuracy", percent(measures.balanced_accuracy_score).into()),
        ("largest class alone", percent(measures.largest_class_share).into()),
        ("F-score, macro", score(measures.f1_macro).into()),
        ("F-score, weighted", score(measures.f1_weighted).into()),
        ("area under ROC", or_unknown(measures.roc_auc_score, score)),
        ("average precision", or_unknown(measures.average_precision_score, score)),
        ("log loss", score(measures.log_loss).into()),
        ("Brier score", score(measures.brier_score_loss).into()),
    ]);
    Markup::from(lead(about))
        .then(scores)
        .then(wide_pair(
            Markup::from(tag("h3").with("Which classes are taken for which")).then(confusion(record, measures)),
            Markup::from(tag("h3").with("Each class")).then(classes(record, measures)),
        ))
        .then(figures([curves::roc(record, measures), curves::calibration(measures)]))
}

fn class_name(record: &Record, class: usize) -> Tag {
    name(record.classes.get(class).map_or("?", String::as_str))
}

fn confusion(record: &Record, measures: &MeasureRecord) -> Markup {
    if measures.confusion_matrix.len() > MOST_IN_A_TABLE {
        return confusions(record, measures).into();
    }
    let classes = measures.confusion_matrix.len();
    let corner = tag("th").attr("scope", "col").class("corner").with("true class");
    let heads = (0..classes).map(|k| tag("th").attr("scope", "col").with(class_name(record, k)));
    let rows = measures.confusion_matrix.iter().enumerate().map(|(k, row)| {
        let all: usize = row.iter().sum();
        let cells = row.iter().enumerate().map(|(j, &n)| {
            let shade = if n == 0 { 0.0 } else { (n as f64 / all as f64 * SHADES).ceil() };
            let class = format!("{} q{shade}", if j == k { "right" } else { "wrong" });
            tag("td").class(class).with(count(n))
        });
        tag("tr").with(row_head(class_name(record, k))).with_all(cells)
    });
    let is_tall = record.classes.iter().any(|name| name.chars().count() > LONGEST_ACROSS);
    let caption = "Confusion matrix: a row for each true class, a column for each predicted one";
    let table = tag("table")
        .class(if is_tall { "confusion tall" } else { "confusion" })
        .with(tag("caption").class("spoken").with(caption))
        .with(tag("thead").with(tag("tr").with(corner).with_all(heads)))
        .with(tag("tbody").with_all(rows));
    let legend = "A row for each true class, a column for each predicted one. Blue is right, orange is wrong; a \
                  stronger shade is a larger share of the true class.";
    Markup::from(tag("p").class("says").with(legend)).then(scrolling("Confusion matrix", table))
}

/// The most frequent confusions, where the matrix is too large to be read.
fn confusions(record: &Record, measures: &MeasureRecord) -> Tag {
    let cells = measures.confusion_matrix.iter().enumerate();
    let cells = cells.flat_map(|(i, row)| row.iter().enumerate().map(move |(j, &n)| (n, i, j)));
    let mut wrong: Vec<_> = cells.filter(|&(n, i, j)| i != j && n > 0).collect();
    wrong.sort_by_key(|&(n, i, j)| (std::cmp::Reverse(n), i, j));
    wrong.truncate(MOST_CONFUSIONS);
    let row = |(n, i, j): (usize, usize, usize)| {
        tag("tr")
            .with(row_head(class_name(record, i)))
            .with(tag("td").class("word").with(class_name(record, j)))
            .with(cell(count(n)))
    };
    let heads = ["true class", "predicted class", "rows"];
    let table = table("The most frequent confusions", &heads, wrong.into_iter().map(row));
    tag("div").class("confusions").with(table)
}

fn classes(record: &Record, measures: &MeasureRecord) -> Tag {
    let row = |(k, class): (usize, &ClassMeasures)| {
        tag("tr")
            .with(row_head(class_name(record, k)))
            .with(cell(count(class.rows)))
            .with_all([class.precision, class.recall, class.f1].map(bar))
            .with(cell(or_unknown(class.roc_auc, score)))
    };
    let rows = measures.per_class.iter().enumerate().map(row);
    table("Each class", &["class", "rows", "precision", "recall", "F-score", "ROC area"], rows)
}

/// A share as a number above a bar.
fn bar(share: Option<f64>) -> Tag {
    let Some(share) = share else { return cell(or_unknown(None, percent)) };
    cell(percent(share)).with(share_bar(share))
}

/// The number of rows of a bin, for a title that a mouse shows.
pub fn rows_text(rows: usize) -> String {
    format!("{} {}", count_text(rows as u64), super::noun(rows, "row", "rows"))
}
