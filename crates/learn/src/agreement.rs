//! The hyper-parameters that client and server fix before anything is encrypted.

use crate::judge::first_range;
use crate::nesterov::Momentum;
use crate::session::MOST_REPEATS;
use crate::split_mix::SplitMix64;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// The version of the circuit: of the levels of uploaded rows, of how weights are stored, of the
/// first weights. Trainings and weights of another version cannot be used.
pub const CIRCUIT_VERSION: u32 = 1;

/// The most by which L2 shrinks the weights in a step: the learning rate times alpha. Weights that
/// shrink faster take a refresh, one bootstrap for each part, in every second step or more often.
pub const MOST_DECAY: f64 = 0.5;
/// The name of that product in [`Error::NotAllowed`].
pub const DECAY: &str = "a product of learning rate and alpha";

/// The most verdicts of a training: each tells the server two bits.
pub const MOST_VERDICTS: usize = 200;
/// The iterations between two checks of a training that asks for no number.
/// docs/adr/030-verdicts-without-waiting.md has the measurements.
pub const CHECK_EVERY: usize = 4;

/// The iterations between two checks of a training of `batches` steps an epoch. What is asked for
/// is refused if it takes too many verdicts ([`MOST_VERDICTS`]). Defaults are spaced out instead.
pub fn check_every(wish: Option<usize>, default: usize, batches: usize, max_epochs: usize) -> Result<usize> {
    let all = batches.saturating_mul(max_epochs).max(1);
    let least = all.div_ceil(MOST_VERDICTS - MOST_REPEATS);
    let what = "a number of iterations between checks";
    match wish {
        Some(every) if every < least => {
            Err(Error::NotAllowed { what, asked: every as f64, lowest: least as f64, highest: all as f64 })
        }
        Some(every) => Ok(every),
        None if default > 0 => Ok(default.max(least)),
        None => Ok(CHECK_EVERY.max(least)),
    }
}

/// The hyper-parameters of a training, agreed by both sides and final.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// Rows of a batch.
    pub batch: usize,
    /// The first learning rate.
    pub rate: f64,
    /// The factor by which [`crate::Verdict::LowerRate`] multiplies the rate.
    pub lowering: f64,
    /// How gradients are turned into steps.
    pub momentum: Momentum,
    /// Checks without improvement before the client stops. The server keeps the weights of one
    /// check more.
    pub patience: usize,
    /// Epochs after which the server stops.
    pub max_epochs: usize,
    /// The initial range of the softmax: logits lie in `[-range, range]`.
    pub range: f64,
    /// Seed of the first weights.
    pub seed: u64,
    /// The factor of `|W|^2 / 2` in the loss; 0 for none.
    #[serde(default)]
    pub alpha: f64,
    /// Whether rows have weights.
    #[serde(default)]
    pub weighted: bool,
    /// [`CIRCUIT_VERSION`] of the server that agreed.
    #[serde(default)]
    pub circuit: u32,
    /// Whether the operator hides the learning rates from the client.
    #[serde(default)]
    pub rate_hidden: bool,
    /// Iterations between two checks. In an agreement before a training, 0 leaves the number to
    /// [`check_every`]; in one of an earlier version, 0 stands for an epoch.
    #[serde(default)]
    pub check_every: usize,
}

impl Agreement {
    /// The same agreement for a number of classes, on which the first range depends.
    pub fn for_classes(self, classes: usize) -> Self {
        Self { range: first_range(self.range, classes, self.weighted), ..self }
    }

    /// The number of checks of `batches` steps an epoch, if none is repeated.
    pub fn checks(&self, batches: usize) -> usize {
        self.iterations(batches).div_ceil(self.iterations_of_a_check(batches)).max(1)
    }

    /// The iterations up to an accepted check, counted from 1.
    pub fn iterations_until(&self, check: usize, batches: usize) -> usize {
        check.saturating_mul(self.iterations_of_a_check(batches)).min(self.iterations(batches))
    }

    fn iterations(&self, batches: usize) -> usize {
        self.max_epochs.saturating_mul(batches)
    }

    fn iterations_of_a_check(&self, batches: usize) -> usize {
        if self.check_every == 0 { batches.max(1) } else { self.check_every }
    }

    /// The published form: everything except hidden rates.
    pub fn published(&self) -> PublishedAgreement {
        let shown = |rate: f64| (!self.rate_hidden).then_some(rate);
        PublishedAgreement {
            batch: self.batch,
            rate: shown(self.rate),
            lowering: shown(self.lowering),
            momentum: self.momentum,
            patience: self.patience,
            max_epochs: self.max_epochs,
            range: self.range,
            seed: self.seed,
        }
    }
}

/// An agreement as it is published to the client and stored with the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedAgreement {
    /// Rows of a batch.
    pub batch: usize,
    /// The first learning rate; `None` if it is hidden.
    pub rate: Option<f64>,
    /// The factor by which [`crate::Verdict::LowerRate`] multiplies the rate; `None` if it is
    /// hidden.
    pub lowering: Option<f64>,
    /// How gradients are turned into steps.
    pub momentum: Momentum,
    /// Checks without improvement before the client stops.
    pub patience: usize,
    /// Epochs after which the server stops.
    pub max_epochs: usize,
    /// The initial range of the softmax: logits lie in `[-range, range]`.
    pub range: f64,
    /// Seed of the first weights.
    pub seed: u64,
}

impl PublishedAgreement {
    /// The rate for the plaintext reference. Fails if the operator hides it.
    pub fn reference_rate(&self) -> Result<f64> {
        self.rate.ok_or(Error::RateHidden)
    }
}

/// The hyper-parameters that a client asks for; `None` leaves the choice to the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wishes {
    /// Rows of a batch.
    pub batch: Option<usize>,
    /// The first learning rate.
    pub rate: Option<f64>,
    /// How gradients are turned into steps.
    pub momentum: Option<Momentum>,
    /// Checks without improvement.
    pub patience: Option<usize>,
    /// The most epochs.
    pub max_epochs: Option<usize>,
    /// The factor of `|W|^2 / 2` in the loss.
    #[serde(default)]
    pub alpha: Option<f64>,
    /// Iterations between two checks.
    #[serde(default)]
    pub check_every: Option<usize>,
}

/// The defaults of a server and the limits of what clients may ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgreementLimits {
    /// The agreement of a client that asks for nothing.
    pub defaults: Agreement,
    /// Fewest and most rows of a batch.
    pub batch: (usize, usize),
    /// Lowest and highest learning rate.
    pub rate: (f64, f64),
    /// Lowest and highest factor of L2. Its product with the rate is limited too
    /// ([`MOST_DECAY`]).
    pub alpha: (f64, f64),
    /// The most patience.
    pub patience: usize,
    /// The most epochs.
    pub max_epochs: usize,
    /// Whether clients may not ask for a rate. They are not told its limits either.
    #[serde(default)]
    pub hide_rate: bool,
}

impl Default for AgreementLimits {
    fn default() -> Self {
        let defaults = Agreement {
            batch: 1024,
            rate: 1.0,
            lowering: 0.5,
            momentum: Momentum::Nesterov,
            patience: 3,
            max_epochs: 50,
            range: 32.0,
            seed: 0,
            alpha: 0.0,
            weighted: false,
            circuit: CIRCUIT_VERSION,
            rate_hidden: false,
            check_every: 0,
        };
        Self {
            defaults,
            batch: (1, 2048),
            rate: (1e-4, 8.0),
            alpha: (0.0, 1.0),
            patience: 10,
            max_epochs: 200,
            hide_rate: false,
        }
    }
}

impl AgreementLimits {
    /// The agreement for a client's wishes. Fails for the first one outside the limits. How often
    /// weights are checked depends on the number of batches ([`check_every`]).
    pub fn agree(&self, wishes: &Wishes) -> Result<Agreement> {
        let defaults = &self.defaults;
        if self.hide_rate && wishes.rate.is_some() {
            return Err(Error::RateHidden);
        }
        let batch = wishes.batch.unwrap_or(defaults.batch);
        let rate = wishes.rate.unwrap_or(defaults.rate);
        let alpha = wishes.alpha.unwrap_or(defaults.alpha);
        let patience = wishes.patience.unwrap_or(defaults.patience);
        let max_epochs = wishes.max_epochs.unwrap_or(defaults.max_epochs);
        within("a batch", batch as f64, self.batch.0 as f64, self.batch.1 as f64)?;
        within("a learning rate", rate, self.rate.0, self.rate.1)?;
        within("an alpha", alpha, self.alpha.0.max(0.0), self.alpha.1)?;
        within(DECAY, rate * alpha, 0.0, MOST_DECAY)?;
        within("a patience", patience as f64, 1.0, self.patience as f64)?;
        within("a number of epochs", max_epochs as f64, 1.0, self.max_epochs as f64)?;
        let momentum = wishes.momentum.unwrap_or(defaults.momentum);
        let rate_hidden = self.hide_rate;
        Ok(Agreement { batch, rate, alpha, momentum, patience, max_epochs, rate_hidden, ..defaults.clone() })
    }
}

fn within(what: &'static str, asked: f64, lowest: f64, highest: f64) -> Result<()> {
    // The comparison also refuses NaN.
    if lowest <= asked && asked <= highest { Ok(()) } else { Err(Error::NotAllowed { what, asked, lowest, highest }) }
}

/// A benchmark of the paper with its hyper-parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// Its name on the command line.
    pub name: &'static str,
    /// Rows of a batch.
    pub batch: usize,
    /// Features of a row.
    pub features: usize,
    /// Classes.
    pub classes: usize,
    /// The learning rate.
    pub rate: f64,
    /// Rows the paper trains on.
    pub training_rows: usize,
    /// Rows it validates on.
    pub validation_rows: usize,
    /// Epochs of the paper's run. The last [`Preset::PATIENCE`] of them brought no improvement.
    pub epochs: usize,
}

impl Preset {
    /// The paper's patience.
    pub const PATIENCE: usize = 3;

    /// The preset of a name.
    pub fn named(name: &str) -> Option<&'static Preset> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// The wishes that ask a server for this preset.
    pub fn wishes(&self) -> Wishes {
        Wishes { batch: Some(self.batch), rate: Some(self.rate), patience: Some(Self::PATIENCE), ..Wishes::default() }
    }
}

const fn preset(
    name: &'static str,
    batch: usize,
    features: usize,
    classes: usize,
    rate: f64,
    epochs: usize,
    (training_rows, validation_rows): (usize, usize),
) -> Preset {
    Preset { name, batch, features, classes, rate, epochs, training_rows, validation_rows }
}

/// The paper's tables of hyper-parameters, for ViT-Base (or MPNet) and ViT-Large.
pub const PRESETS: [Preset; 9] = [
    preset("mnist", 1024, 768, 10, 2.0, 7, (52500, 7500)),
    preset("cifar10", 2048, 768, 10, 1.0, 9, (43750, 6250)),
    preset("facemask", 512, 768, 3, 0.5, 22, (2849, 408)),
    preset("dermamnist", 1024, 768, 7, 0.3, 23, (7007, 1003)),
    preset("snips", 1024, 768, 7, 1.0, 14, (13084, 700)),
    preset("mnist-large", 1024, 1024, 10, 0.05, 7, (52500, 7500)),
    preset("cifar10-large", 2048, 1024, 10, 0.1, 7, (43750, 6250)),
    preset("facemask-large", 512, 1024, 3, 0.1, 10, (2849, 408)),
    preset("dermamnist-large", 1024, 1024, 7, 0.03, 15, (7007, 1003)),
];

/// The first weights (classes x features + 1): uniform in `[-1/sqrt(f), 1/sqrt(f))`, the bias 0,
/// from a public seed (SplitMix64), and then centred over the classes. Gradients of a softmax sum
/// to zero over the classes, so logits stay centred, which the softmax's constants rely on.
pub fn initial_weights(classes: usize, features: usize, seed: u64) -> crate::Matrix {
    let bound = 1.0 / libm::sqrt(features.max(1) as f64);
    let mut random = SplitMix64(seed);
    let mut weights = crate::Matrix::from_fn(classes, features + 1, |_, h| {
        let uniform = random.next_signed();
        if h == features { 0.0 } else { bound * uniform }
    });
    centre_over_classes(&mut weights);
    weights
}

/// Subtracts the mean over the classes from every column, which changes no prediction.
pub fn centre_over_classes(weights: &mut crate::Matrix) {
    for h in 0..weights.columns() {
        let mean = (0..weights.rows()).map(|k| weights[(k, h)]).sum::<f64>() / weights.rows().max(1) as f64;
        (0..weights.rows()).for_each(|k| weights[(k, h)] -= mean);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Geometry;

    #[test]
    fn wishes_within_limits_are_granted() {
        let limits = AgreementLimits::default();
        assert_eq!(limits.agree(&Wishes::default()).unwrap(), limits.defaults);
        let granted = limits.agree(&Preset::named("cifar10").unwrap().wishes()).unwrap();
        assert_eq!((granted.batch, granted.rate, granted.patience), (2048, 1.0, 3));
        assert_eq!(limits.agree(&Wishes { alpha: Some(0.01), ..Wishes::default() }).unwrap().alpha, 0.01);
        for wishes in [
            Wishes { batch: Some(4096), ..Wishes::default() },
            Wishes { batch: Some(0), ..Wishes::default() },
            Wishes { rate: Some(f64::NAN), ..Wishes::default() },
            Wishes { rate: Some(100.0), ..Wishes::default() },
            Wishes { patience: Some(11), ..Wishes::default() },
            Wishes { max_epochs: Some(0), ..Wishes::default() },
            Wishes { alpha: Some(-0.1), ..Wishes::default() },
            Wishes { alpha: Some(f64::NAN), ..Wishes::default() },
            Wishes { alpha: Some(1.5), rate: Some(0.1), ..Wishes::default() },
            Wishes { alpha: Some(0.51), ..Wishes::default() },
        ] {
            assert!(matches!(limits.agree(&wishes), Err(Error::NotAllowed { .. })), "{wishes:?}");
        }
    }

    /// Whatever is asked for, a training takes at most 200 verdicts, and its last iteration is
    /// checked.
    #[test]
    fn checks_are_few_enough() {
        for (batches, epochs) in [(1, 1), (1, 50), (3, 1), (26, 8), (26, 50), (51, 50), (1, 200), (1, 100_000)] {
            let every = check_every(None, 0, batches, epochs).unwrap();
            let agreement = Agreement { check_every: every, max_epochs: epochs, ..AgreementLimits::default().defaults };
            let checks = agreement.checks(batches);
            assert!(checks + MOST_REPEATS <= MOST_VERDICTS, "{batches} {epochs}: {every}");
            assert!(every == CHECK_EVERY || checks > 150, "{batches} {epochs}: {every}");
            assert_eq!(agreement.iterations_until(checks, batches), batches * epochs);
            assert!(agreement.iterations_until(checks - 1, batches) < batches * epochs);
            let few = check_every(Some(1), 0, batches, epochs);
            assert_eq!(few.is_ok(), batches * epochs + MOST_REPEATS <= MOST_VERDICTS, "{batches} {epochs}");
        }
        assert_eq!(check_every(Some(7), 0, 3, 50), Ok(7));
        assert_eq!((check_every(None, 7, 3, 50), check_every(None, 2, 26, 50)), (Ok(7), Ok(7)));
        for bad in [0, 5, 6] {
            let refused = check_every(Some(bad), 0, 26, 50).unwrap_err().to_string();
            assert!(refused.contains(&format!("between checks of {bad} is not allowed here: 7 to 1300")), "{refused}");
        }
        // Agreements of earlier versions name no number and mean an epoch.
        let agreement = AgreementLimits::default().defaults;
        assert_eq!((agreement.checks(26), agreement.iterations_until(2, 26)), (50, 52));
    }

    #[test]
    fn a_hidden_rate_stays_hidden() {
        let open = AgreementLimits::default();
        let published = open.agree(&Wishes::default()).unwrap().published();
        assert_eq!(published.reference_rate(), Ok(open.defaults.rate));
        let hidden = AgreementLimits { hide_rate: true, ..open };
        let agreement = hidden.agree(&Wishes::default()).unwrap();
        let published = agreement.published();
        assert_eq!((agreement.rate, published.rate, published.lowering), (1.0, None, None));
        assert_eq!(
            published.reference_rate().unwrap_err().to_string().split(':').next(),
            Some("the operator hides the learning rates")
        );
        let manifest = serde_json::to_string(&published).unwrap();
        assert!(manifest.contains("\"rate\":null"), "{manifest}");
        // A wish would tell what is allowed.
        let wish = Wishes { rate: Some(1.0), ..Wishes::default() };
        assert_eq!(hidden.agree(&wish), Err(Error::RateHidden));
    }

    #[test]
    fn every_preset_fits_the_slots_and_the_limits() {
        for preset in PRESETS {
            assert!(Geometry::new(32768, preset.batch, preset.features, preset.classes).is_ok(), "{}", preset.name);
            AgreementLimits::default().agree(&preset.wishes()).unwrap();
        }
        assert!(Preset::named("none").is_none());
    }

    #[test]
    fn first_weights_come_from_the_seed_alone() {
        let w = initial_weights(3, 100, 7);
        assert_eq!(w, initial_weights(3, 100, 7));
        assert_ne!(w, initial_weights(3, 100, 8));
        assert!(w.max_magnitude() <= 0.2 && w.max_magnitude() > 0.09);
        assert!((0..3).all(|k| w[(k, 100)] == 0.0));
        assert!((0..=100).all(|h| (0..3).map(|k| w[(k, h)]).sum::<f64>().abs() < 1e-15));
    }
}
