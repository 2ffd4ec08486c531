//! Parameters and security, and how the model was made.

use super::{Section, facts, lead, missing, name, yes_no};
use crate::markup::{Markup, tag};
use crate::number::{bound, count, moment, or_unknown, plain};
use crate::record::Record;

pub fn parameters(record: &Record) -> Section {
    let (set, terms, preparation) = (&record.parameters, &record.hyper_parameters, &record.preparation);
    let bits = |bits: f64| tag("span").with(plain(bits)).with(" bits");
    let security = match set.security_bits {
        Some(bits) if bits <= 0.0 => tag("strong").with("none: for tests only").into(),
        known => or_unknown(known, bits),
    };
    let encryption = facts([
        ("parameter set", name(&set.set).into()),
        ("security", security),
        ("degree of the ring", or_unknown(set.degree, count)),
        ("largest modulus of a key", or_unknown(set.modulus_bits, bits)),
        ("numbers in a ciphertext", or_unknown(set.slots, count)),
        ("id of the secret key", set.key_id.as_ref().map_or("not known".into(), |id| tag("code").with(id).into())),
    ]);
    let hidden = |value: Option<f64>| value.map_or("hidden by the server".into(), |value| plain(value).into());
    let training = facts([
        ("rows of a batch", count(terms.batch).into()),
        ("first learning rate", hidden(terms.rate)),
        ("alpha, the weight decay", hidden(terms.alpha)),
        ("patience", count(terms.patience).into()),
        ("most epochs", count(terms.max_epochs).into()),
        ("iterations between checks", or_unknown((terms.check_every > 0).then_some(terms.check_every), count)),
        ("first range of logits", plain(terms.range).into()),
        ("scaling of features", name(&preparation.scaling).into()),
        ("missing values filled in", yes_no(preparation.imputes)),
        ("rows have weights", yes_no(preparation.weighted)),
        ("share of the log prior subtracted", plain(preparation.prior).into()),
    ]);
    let content = Markup::from(tag("h3").with("Encryption")).then(encryption);
    let content = content.then(tag("h3").with("Training")).then(training);
    Section { id: "parameters", title: "Parameters and security", content }
}

pub fn section(record: &Record) -> Section {
    let command = match &record.command {
        Some(command) => Markup::from(lead("The command that made it:"))
            .then(super::scrolling("Command", tag("pre").with(tag("code").with(command)))),
        None => missing("The command that made it is not known.").into(),
    };
    let text = |value: &Option<String>| value.as_ref().map_or("not known".into(), |value| name(value).into());
    let time = |value: &Option<String>| value.as_ref().map_or("not known".into(), |value| moment(value).into());
    let outcome = record.outcome.as_ref();
    let bounded = |value| tag("span").with("at most ").with(bound(value));
    let facts = facts([
        ("began", time(&record.began)),
        ("ended", time(&record.ended)),
        ("program", name(&record.program).into()),
        ("server", text(&record.server.address)),
        ("computed on", text(&record.server.engine)),
        ("job", record.server.job.as_ref().map_or("not known".into(), |job| tag("code").with(job).into())),
        (
            "relative difference to the training without encryption",
            outcome.and_then(|o| o.difference_bound).map_or("not compared".into(), |value| bounded(value).into()),
        ),
        ("may be published with hetal model export", yes_no(outcome.is_some_and(|outcome| outcome.exportable))),
        ("model file (private)", text(&record.model_path)),
    ]);
    Section { id: "origin", title: "How it was made", content: command.then(facts.attr("id", "made")) }
}
