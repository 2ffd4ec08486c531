//! What the server saw, and what it did not.

use super::{Section, lead, name, noun};
use crate::markup::{Markup, Tag, tag};
use crate::number::{bytes, count, plain};
use crate::record::{Record, Verdict, VerdictCount};

pub fn section(record: &Record) -> Section {
    let columns = tag("div")
        .class("columns")
        .with(tag("div").class("never").with(tag("h3").with("Never left the owner's machine")).with(list(never())))
        .with(tag("div").class("saw").with(tag("h3").with("The server saw")).with(list(saw(record))));
    let about = "The server computed on ciphertexts and holds no key that decrypts. The page docs/security/leakage.md of \
                 the program lists everything that any server learns, with a test for each line.";
    let content = Markup::from(lead(about)).then(columns).then(verdicts(record));
    Section { id: "seen", title: "What the server saw", content }
}

fn list(items: Vec<Markup>) -> Tag {
    tag("ul").with_all(items.into_iter().map(|item| tag("li").with(item)))
}

fn never() -> Vec<Markup> {
    let named = Markup::from("which check was the best, until ")
        .then(tag("code").class("whole").with("hetal predict --remote"))
        .then(" names it");
    let others = [
        "features and labels",
        "the names of classes and columns",
        "the classifier and its predictions",
        "accuracies and losses",
        "the secret key",
    ];
    others.map(Markup::from).into_iter().chain([named]).collect()
}

fn saw(record: &Record) -> Vec<Markup> {
    let (shape, terms) = (&record.shape, &record.hyper_parameters);
    let mut all = Vec::new();
    if shape.features > 0 {
        let text = Markup::from("the shape: ").then(count(shape.rows)).then(" training rows, ");
        let text = text.then(count(shape.validation_rows)).then(" validation rows, ").then(count(shape.features));
        all.push(text.then(" features, ").then(count(shape.classes)).then(" classes"));
    }
    all.extend(
        record.transfers.iter().filter(|transfer| transfer.sent && transfer.what != crate::ALL_SENT).map(|transfer| {
            Markup::from(format!("{} (it cannot decrypt): ", transfer.what)).then(bytes(transfer.bytes))
        }),
    );
    let mut asked = Markup::from("hyper-parameters: batches of ").then(count(terms.batch)).then(" rows");
    if let Some(rate) = terms.rate {
        asked = asked.then(", rate ").then(plain(rate));
    }
    if let Some(alpha) = terms.alpha.filter(|alpha| *alpha != 0.0) {
        asked = asked.then(", alpha ").then(plain(alpha));
    }
    asked = asked.then(", patience ").then(count(terms.patience)).then(", at most ").then(count(terms.max_epochs));
    asked = asked.then(" epochs");
    if terms.check_every > 0 {
        asked = asked.then(", a check every ").then(count(terms.check_every)).then(" iterations");
    }
    all.push(asked);
    all.push(Markup::from("who the tenant is, and the parameter set: ").then(name(&record.parameters.set)));
    all.push(Markup::from("the name of the training: ").then(name(&record.name)));
    if record.preparation.weighted {
        all.push("that rows have weights, but no weight".into());
    }
    if !record.checks.is_empty() {
        let verdicts = record.checks.len();
        let text = Markup::from(count(verdicts)).then(noun(verdicts, " verdict", " verdicts"));
        all.push(text.then(" of two bits, each sent after a fixed delay"));
    }
    all.push("the times and sizes of all messages".into());
    all
}

/// The verdicts in order: all that the server learned from decrypted values.
fn verdicts(record: &Record) -> Markup {
    if record.checks.is_empty() {
        return Markup::none();
    }
    let class = |verdict: Verdict| verdict.words().split(' ').next().unwrap_or_default();
    let tape = record.checks.iter().map(|check| tag("span").class(class(check.verdict)));
    let count = |verdict: &VerdictCount| {
        let square = tag("i").attr("aria-hidden", "true");
        let words = tag("span").with(format!("{}: ", verdict.verdict.words()));
        tag("li").class(class(verdict.verdict)).with(square).with(words).with(count(verdict.count))
    };
    Markup::from(tag("h3").with("The owner's only answers that depend on decrypted values"))
        .then(tag("div").class("tape").attr("aria-hidden", "true").with_all(tape))
        .then(tag("ul").class("counts").with_all(record.verdicts.iter().map(count)))
}
