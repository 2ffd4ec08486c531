//! The hyper-parameters that client and server agree on.

use super::TrainingOptions;
use crate::data::TrainingData;
use crate::key_plan_choice::usual_iterations;
use crate::layout::LayoutShape;
use crate::rpc::{HyperParameters, Offer, ParameterSetInfo};
use crate::{Error, KeyPlanWish, Layout, Project, Result, keys};
use hetal_ckks::Params;
use hetal_learn::agreement::check_every;
use hetal_learn::judge::first_range;
use hetal_learn::{KeyPlan, LevelPlan, Wishes};
use std::sync::Arc;

/// The most epochs that are accepted as a server's default.
const MOST_EPOCHS: usize = 200;
/// The largest patience that is accepted as a server's default.
const MOST_PATIENCE: usize = 20;

/// The rows of a batch: the requested number or the server's default, but at most all rows.
pub fn batch_rows(wishes: &Wishes, offer: &Offer, rows: usize) -> usize {
    wishes.batch.unwrap_or(offer.defaults.batch).min(rows)
}

/// The hyper-parameters that follow from an offer and the owner's wishes. The server must answer
/// with these.
pub(super) fn expected_hyper_parameters(
    wishes: &Wishes,
    offer: &Offer,
    data: &TrainingData,
) -> Result<HyperParameters> {
    expected_for(wishes, offer, (data.training.rows(), data.classes.len(), data.is_weighted()))
}

/// [`expected_hyper_parameters`] of a number of rows and classes, with weights or not.
fn expected_for(
    wishes: &Wishes,
    offer: &Offer,
    (rows, classes, weighted): (usize, usize, bool),
) -> Result<HyperParameters> {
    let defaults = &offer.defaults;
    let terms = HyperParameters {
        batch: wishes.batch.unwrap_or(defaults.batch),
        patience: wishes.patience.unwrap_or(defaults.patience),
        max_epochs: wishes.max_epochs.unwrap_or(defaults.max_epochs),
        // A hidden hyper-parameter stays hidden.
        rate: defaults.rate.map(|rate| wishes.rate.unwrap_or(rate)),
        momentum: defaults.momentum.map(|momentum| wishes.momentum.unwrap_or(momentum)),
        alpha: defaults.alpha.map(|alpha| wishes.alpha.unwrap_or(alpha)),
        range: first_range(defaults.range, classes, weighted),
        ..defaults.clone()
    };
    let batches = rows.div_ceil(terms.batch.max(1)).max(1);
    let check_every = check_every(wishes.check_every, defaults.check_every, batches, terms.max_epochs)?;
    let terms = HyperParameters { check_every, ..terms };
    let unasked = |wish: Option<usize>, value: usize, most: usize| wish.is_none() && value > most;
    if unasked(wishes.max_epochs, terms.max_epochs, MOST_EPOCHS)
        || unasked(wishes.patience, terms.patience, MOST_PATIENCE)
    {
        let (epochs, patience) = (terms.max_epochs, terms.patience);
        return Err(Error::TooManyEpochs { epochs, patience, most_epochs: MOST_EPOCHS, most_patience: MOST_PATIENCE });
    }
    Ok(terms)
}

/// The layout of the training, and the wishes with the number of rows of a batch. A training that
/// was begun before keeps its key plan, unless another one is wished for.
pub(super) fn agree_on_layout(
    project: &Project,
    offer: &Offer,
    data: &TrainingData,
    options: &TrainingOptions,
    begun: Option<KeyPlan>,
) -> Result<(Layout, Wishes)> {
    let params = keys::params(project)?;
    if !offer.accepts(params.id()) {
        return Err(set_refused(params.name(), offer));
    }
    let batch = batch_rows(&options.wishes, offer, data.training.rows());
    let wishes = Wishes { batch: Some(batch), ..options.wishes.clone() };
    let (features, classes, weighted) = (data.features(), data.classes.len(), data.is_weighted());
    let terms = expected_hyper_parameters(&wishes, offer, data)?;
    let range = offer.defaults.range;
    let shape = LayoutShape { batch, features, classes, range, weighted, key_plan: KeyPlan::default() };
    let candidates = |plans: &[KeyPlan]| -> Result<Vec<(KeyPlan, u64)>> {
        plans.iter().map(|&plan| Ok((plan, bytes_to_send(project, &params, shape, plan)?))).collect()
    };
    let iterations = usual_iterations(data.training.rows().div_ceil(batch.max(1)), terms.max_epochs);
    let wish = KeyPlanWish { plan: options.key_plan.plan.or(begun), ..options.key_plan };
    let key_plan = wish.choose(offer, candidates, iterations, project.settings().uplink)?;
    Ok((Layout::new(Arc::clone(&params), LayoutShape { key_plan, ..shape })?, wishes))
}

/// The bytes of a key set that the project does not have yet.
fn bytes_to_send(project: &Project, params: &Arc<Params>, shape: LayoutShape, key_plan: KeyPlan) -> Result<u64> {
    let layout = Layout::new(Arc::clone(params), LayoutShape { key_plan, ..shape })?;
    let is_there = project.settings().keys.iter().any(|keys| keys.layout == layout.key());
    if is_there { Ok(0) } else { layout.key_bytes(&layout.sent_keys()?) }
}

/// The error for a server that does not accept a set. It advises only sets that are secure,
/// whatever the server calls them: their parameters are those of this program.
fn set_refused(set: &str, offer: &Offer) -> Error {
    let is_secure = |offered: &&ParameterSetInfo| {
        Params::named(&offered.name).is_ok_and(|known| {
            *known.id() == offered.id && known.security().bits() >= 128.0 && known.top_level() >= LevelPlan::DEPTH
        })
    };
    let names = |sets: Vec<&ParameterSetInfo>| sets.iter().map(|set| set.name.as_str()).collect::<Vec<_>>().join(", ");
    let (set, secure) = (set.to_owned(), names(offer.sets.iter().filter(is_secure).collect()));
    if secure.is_empty() {
        return Error::NoSecureSet { set, offered: names(offer.sets.iter().collect()) };
    }
    Error::SetRefused { set, offered: secure }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetal_learn::nesterov::Momentum;

    /// An insecure set is never advised, nor a set that only has the name of a secure one.
    #[test]
    fn insecure_sets_are_not_advised() {
        let named = |name: &str| ParameterSetInfo { name: name.to_owned(), id: *Params::named(name).unwrap().id() };
        let refused =
            |sets: Vec<ParameterSetInfo>| set_refused("insecure-toy12", &Offer { sets, ..offer() }).to_string();
        let said = refused(vec![named("insecure-toy11")]);
        assert!(said.contains("NO SECURITY") && !said.contains("--set") && !said.contains("--dir"), "{said}");
        let forged = ParameterSetInfo { name: "full".to_owned(), ..named("insecure-toy11") };
        assert!(refused(vec![forged]).contains("NO SECURITY"));
        let said = refused(vec![named("insecure-toy11"), named("full")]);
        assert!(said.contains("it accepts full.") && !said.contains("toy11"), "{said}");
    }

    /// Rows, classes, and no weights.
    const ROWS: (usize, usize, bool) = (200, 3, false);

    fn offer() -> Offer {
        let defaults = HyperParameters {
            batch: 1024,
            patience: 3,
            max_epochs: 50,
            range: 128.0,
            rate: Some(1.0),
            lowering: Some(0.5),
            momentum: Some(Momentum::Nesterov),
            seed: Some(0),
            alpha: Some(0.0),
            check_every: 0,
        };
        Offer { defaults, ..Offer::default() }
    }

    #[test]
    fn terms_are_the_offer_with_the_wishes() {
        let wishes = Wishes { batch: Some(64), rate: Some(2.0), max_epochs: Some(7), ..Wishes::default() };
        let terms = expected_for(&wishes, &offer(), ROWS).unwrap();
        let expected =
            HyperParameters { batch: 64, rate: Some(2.0), max_epochs: 7, check_every: 4, ..offer().defaults };
        assert_eq!(terms, expected);
        let l2 = expected_for(&Wishes { alpha: Some(0.1), ..wishes.clone() }, &offer(), ROWS).unwrap();
        assert_eq!(l2, HyperParameters { alpha: Some(0.1), ..expected });
        // Checks that are asked for may be too many, and those that are not are spaced out.
        let long = Wishes { max_epochs: Some(300), ..wishes.clone() };
        assert_eq!(expected_for(&long, &offer(), ROWS).unwrap().check_every, 7);
        let refused = expected_for(&Wishes { check_every: Some(2), ..long }, &offer(), ROWS).unwrap_err().to_string();
        assert!(refused.contains("iterations between checks of 2") && refused.contains("7 to 1200"), "{refused}");
        let mut hiding = offer();
        (hiding.defaults.rate, hiding.defaults.momentum) = (None, None);
        assert_eq!(expected_for(&wishes, &hiding, ROWS).unwrap().rate, None);
    }

    /// A training that was begun keeps its plan, unless another one is wished for or it is refused.
    #[test]
    fn a_begun_training_keeps_its_key_plan() {
        let folder = hetal_testkit::TempDir::new();
        let project = Project::open(folder.path(), Some("insecure-toy11")).unwrap();
        let features = hetal_learn::Matrix::from_fn(70, 3, |i, j| ((7 * i + 3 * j + i * i) % 23) as f64);
        let labels = crate::data::Labels::Integers((0..70).map(|i| i % 3).collect());
        let rows = crate::Labelled { features, labels, file: String::new(), columns: None, weights: None };
        let data = TrainingData::new(&rows, None, &crate::data::Preparation::default()).unwrap();
        let set = ParameterSetInfo { name: "insecure-toy11".to_owned(), id: *keys::params(&project).unwrap().id() };
        let offer = Offer { sets: vec![set], key_plans: KeyPlan::OFFERED.into(), lift_seconds: 3.0, ..offer() };
        let plan_of = |offer: &Offer, wish, begun| {
            let mut options = TrainingOptions::new("t");
            options.key_plan.plan = wish;
            let agreed = agree_on_layout(&project, offer, &data, &options, begun);
            agreed.map(|(layout, _)| layout.shape().key_plan)
        };
        use KeyPlan::{Balanced, Fast, Small};
        // Toy keys are small, so more of them cost nothing.
        assert_eq!(plan_of(&offer, None, None).unwrap(), Fast);
        assert_eq!(plan_of(&offer, None, Some(Small)).unwrap(), Small);
        assert_eq!(plan_of(&offer, Some(Balanced), Some(Small)).unwrap(), Balanced);
        let fewer = Offer { key_plans: vec![Fast], ..offer.clone() };
        assert!(matches!(plan_of(&fewer, None, Some(Small)), Err(Error::KeyPlan { plan: "small" })));
    }

    #[test]
    fn endless_defaults_are_not_taken_without_a_word() {
        let mut endless = offer();
        endless.defaults.max_epochs = 100_000;
        let refused = expected_for(&Wishes::default(), &endless, ROWS);
        assert!(matches!(refused, Err(Error::TooManyEpochs { epochs: 100_000, .. })), "{refused:?}");
        let asked = Wishes { max_epochs: Some(1000), ..Wishes::default() };
        assert_eq!(expected_for(&asked, &endless, ROWS).unwrap().max_epochs, 1000);
        endless.defaults = HyperParameters { patience: 1000, ..offer().defaults };
        assert!(expected_for(&Wishes::default(), &endless, ROWS).is_err());
    }
}
