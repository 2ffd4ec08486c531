//! The top of the page: what was trained, and how it went, in a sentence and in six figures.

use super::{name, noun};
use crate::markup::{Markup, Tag, tag};
use crate::number::{bytes, count, moment, percent, plain, score, seconds};
use crate::record::{Outcome, Record, TrainingState};

/// The name of the training and its shape.
pub fn header(record: &Record) -> Tag {
    let shape = &record.shape;
    let part = |number: usize, one, many| tag("span").with(count(number)).with(format!(" {}", noun(number, one, many)));
    let mut line = tag("p").class("shape");
    if shape.features > 0 {
        line = line
            .with(part(shape.rows, "training row", "training rows"))
            .with(part(shape.features, "feature", "features"))
            .with(part(shape.classes, "class", "classes"));
    }
    if let Some(ended) = &record.ended {
        line = line.with(tag("span").with("finished ").with(moment(ended)));
    } else if let Some(began) = &record.began {
        line = line.with(tag("span").with("began ").with(moment(began)));
    }
    tag("header")
        .with(eyebrow("report on a training"))
        .with(tag("h1").with(name(&record.name)))
        .with(line)
        .with(private("Accuracies and losses follow from decrypted values. Keep this page like the model file."))
}

/// The line above a title.
pub(crate) fn eyebrow(what: &str) -> Tag {
    tag("p").class("eyebrow").with(mark()).with("hetal").with(tag("span").with(what))
}

/// Why a page is for its owner only.
pub(crate) fn private(why: &str) -> Tag {
    tag("p").class("private").with(lock()).with(tag("span").with(tag("strong").with("Private. ")).with(why))
}

/// The mark of the program: two lines that meet.
fn mark() -> Tag {
    let path = tag("path").attr("d", "M3 2v12M13 2v12M3 8c3-4 7 4 10 0");
    tag("svg").class("logo").attr("viewBox", "0 0 16 16").attr("aria-hidden", "true").with(path)
}

fn lock() -> Tag {
    let path = tag("path").attr("d", "M4 7h8v6H4zM5.5 7V5a2.5 2.5 0 0 1 5 0v2");
    tag("svg").class("lock").attr("viewBox", "0 0 16 16").attr("aria-hidden", "true").with(path)
}

/// What happened, in words, and the figures that people look for first.
pub fn summary(record: &Record) -> Markup {
    let Some(outcome) = &record.outcome else { return progress(record) };
    let tiles = [
        Some(tile(
            "accuracy",
            percent(outcome.accuracy),
            tag("span")
                .with("of ")
                .with(count(record.shape.validation_rows))
                .with(if record.shape.validated_on_training_rows { " training rows" } else { " validation rows" }),
        )),
        Some(tile("loss", score(outcome.loss), tag("span").with("on the same rows"))),
        Some(tile(
            "best check",
            count(outcome.best_check.unwrap_or(outcome.best_epoch)),
            tag("span").with("of ").with(count(outcome.accepted_checks())).with(" that counted"),
        )),
        record.seconds.map(|all| tile("time", seconds(all), per_iteration(record))),
        sent(record).map(|sum| tile("sent", bytes(sum), tag("span").with("keys and rows, encrypted"))),
        record.parameters.security_bits.map(|bits| security(bits, &record.parameters.set)),
    ];
    let tiles = tag("ul").class("tiles").with_all(tiles.into_iter().flatten());
    Markup::from(tag("p").class("verdict").with(sentence(record, outcome))).then(tiles).then(warnings(record, outcome))
}

fn per_iteration(record: &Record) -> Tag {
    match record.iteration_seconds {
        Some(one) => tag("span").with(seconds(one)).with(" an iteration"),
        None => tag("span").with("over all runs"),
    }
}

/// Bytes that left this machine.
fn sent(record: &Record) -> Option<u64> {
    record.transfers.iter().find(|transfer| transfer.what == crate::ALL_SENT).and_then(|all| all.transferred)
}

fn security(bits: f64, set: &str) -> Tag {
    let under = tag("span").with("parameter set ").with(name(set));
    if bits > 0.0 {
        return tile("security", tag("span").with(plain(bits)).with(" bits"), under);
    }
    tile("security", tag("span").with("none"), under).class("alarm")
}

fn tile(title: &str, figure: Tag, under: Tag) -> Tag {
    let text = |class: &str, content: Tag| tag("span").class(class).with(content);
    tag("li").with(tag("span").class("what").with(title)).with(text("figure", figure)).with(text("under", under))
}

fn sentence(record: &Record, outcome: &Outcome) -> Markup {
    let rows = if record.shape.validated_on_training_rows {
        " of the rows that it was trained on. "
    } else {
        " of rows that it has not seen. "
    };
    let start = Markup::from("The classifier names the right class for ").then(percent(outcome.accuracy)).then(rows);
    let chance = record.measures.as_ref().map_or(Markup::none(), |measures| {
        Markup::from("Always naming the largest class would be right for ")
            .then(percent(measures.largest_class_share))
            .then(". ")
    });
    let fell = match outcome.converged {
        Some(true) => "The loss no longer fell when the training stopped.",
        Some(false) => "The loss was still falling when the training ended: more epochs or a higher rate may help.",
        None => "",
    };
    start.then(chance).then(fell)
}

/// What a reader must not miss.
fn warnings(record: &Record, outcome: &Outcome) -> Markup {
    let warning =
        |text: &str| tag("p").class("warning").attr("role", "note").with(tag("strong").with("Warning. ")).with(text);
    let insecure = record.parameters.security_bits.is_some_and(|bits| bits <= 0.0).then(|| {
        warning("The parameter set gives no security: the server could read everything. It is for tests only.")
    });
    let differs = (outcome.agrees == Some(false))
        .then(|| warning("The result differs from the same training without encryption: do not trust this server."));
    insecure.into_iter().chain(differs).collect()
}

/// A training that has not ended.
fn progress(record: &Record) -> Markup {
    let state = match record.state {
        TrainingState::Running => "The training is in progress.",
        _ => "The training was interrupted. The same command continues it.",
    };
    let state = tag("p").class("verdict").attr("role", "status").with(state);
    let Some(now) = &record.progress else { return state.into() };
    let most = record.hyper_parameters.max_epochs;
    let epoch = match now.epoch {
        0 => "not begun".into(),
        epoch if most == 0 => Markup::from(count(epoch)),
        epoch => Markup::from(count(epoch)).then(" of at most ").then(count(most)),
    };
    let facts = super::facts([
        ("epoch", epoch),
        ("the server computes on", now.engine.as_ref().map_or("-".into(), |engine| name(engine).into())),
        ("last sign of life", moment(&now.at).into()),
    ]);
    Markup::from(state).then(crate::watch::progress(now)).then(facts)
}
