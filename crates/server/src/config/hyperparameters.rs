//! The table `[hyperparameters]`: every key may be left out.

use crate::{Error, Result};
use hetal_learn::judge::RANGES;
use hetal_learn::nesterov::Momentum;
use hetal_learn::{Agreement, AgreementLimits, Wishes};
use serde::{Deserialize, Deserializer};

/// The table as it is written. Missing keys keep their defaults.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Table {
    defaults: Defaults,
    batch: Option<(usize, usize)>,
    rate: Option<(f64, f64)>,
    alpha: Option<(f64, f64)>,
    patience: Option<usize>,
    max_epochs: Option<usize>,
    hide_rate: Option<bool>,
}

/// The table `[hyperparameters.defaults]`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Defaults {
    batch: Option<usize>,
    rate: Option<f64>,
    lowering: Option<f64>,
    momentum: Option<Momentum>,
    patience: Option<usize>,
    max_epochs: Option<usize>,
    range: Option<f64>,
    seed: Option<u64>,
    alpha: Option<f64>,
    check_every: Option<usize>,
}

/// Reads the table.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<AgreementLimits, D::Error> {
    let (table, otherwise) = (Table::deserialize(deserializer)?, AgreementLimits::default());
    let (given, defaults) = (table.defaults, otherwise.defaults);
    Ok(AgreementLimits {
        defaults: Agreement {
            batch: given.batch.unwrap_or(defaults.batch),
            rate: given.rate.unwrap_or(defaults.rate),
            lowering: given.lowering.unwrap_or(defaults.lowering),
            momentum: given.momentum.unwrap_or(defaults.momentum),
            patience: given.patience.unwrap_or(defaults.patience),
            max_epochs: given.max_epochs.unwrap_or(defaults.max_epochs),
            range: given.range.unwrap_or(defaults.range),
            seed: given.seed.unwrap_or(defaults.seed),
            alpha: given.alpha.unwrap_or(defaults.alpha),
            check_every: given.check_every.unwrap_or(defaults.check_every),
            ..defaults
        },
        batch: table.batch.unwrap_or(otherwise.batch),
        rate: table.rate.unwrap_or(otherwise.rate),
        alpha: table.alpha.unwrap_or(otherwise.alpha),
        patience: table.patience.unwrap_or(otherwise.patience),
        max_epochs: table.max_epochs.unwrap_or(otherwise.max_epochs),
        hide_rate: table.hide_rate.unwrap_or(otherwise.hide_rate),
    })
}

/// Checks that a client who asks for nothing gets a training that can run.
pub fn check(limits: &AgreementLimits) -> Result<()> {
    let refuse = |reason: String| Err(Error::Config { reason: format!("hyperparameters: {reason}") });
    let Agreement { range, lowering, .. } = limits.defaults;
    if !RANGES.contains(&range) {
        return refuse(format!("`defaults.range` is {range}, but must be one of {RANGES:?}"));
    }
    if !(lowering > 0.0 && lowering < 1.0) {
        return refuse(format!("`defaults.lowering` is {lowering}, but must be between 0 and 1"));
    }
    match limits.agree(&Wishes::default()) {
        Ok(_) => Ok(()),
        Err(error) => refuse(format!("the defaults are outside the limits: {error}")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn missing_keys_keep_their_defaults() {
        let parse = |text: &str| Config::parse(text).unwrap().hyperparameters;
        assert_eq!(parse("[hyperparameters]\n"), AgreementLimits::default());
        let limits = parse("[hyperparameters]\nalpha = [0.0, 0.01]\n[hyperparameters.defaults]\nalpha = 1e-3\n");
        assert_eq!((limits.alpha, limits.defaults.alpha), ((0.0, 0.01), 1e-3));
        let expected = AgreementLimits { patience: 4, ..AgreementLimits::default() };
        assert_eq!(parse("[hyperparameters]\npatience = 4\n"), expected);
        let limits = parse("[hyperparameters.defaults]\nrange = 512.0\nmomentum = \"None\"\n");
        let defaults = Agreement { range: 512.0, momentum: Momentum::None, ..AgreementLimits::default().defaults };
        assert_eq!(limits, AgreementLimits { defaults, ..AgreementLimits::default() });
        assert_eq!(parse("[hyperparameters.defaults]\ncheck_every = 8\n").defaults.check_every, 8);
        for misspelt in ["[hyperparameters]\npatiense = 4\n", "[hyperparameters.defaults]\nrates = 1.0\n"] {
            assert!(Config::parse(misspelt).is_err(), "{misspelt}");
        }
    }

    #[test]
    fn defaults_that_no_training_can_use_are_refused() {
        check(&AgreementLimits::default()).unwrap();
        let refused = |change: fn(&mut AgreementLimits)| {
            let mut limits = AgreementLimits::default();
            change(&mut limits);
            check(&limits).unwrap_err().to_string()
        };
        assert!(refused(|limits| limits.defaults.range = 100.0).contains("range"));
        assert!(refused(|limits| limits.defaults.range = f64::NAN).contains("range"));
        assert!(refused(|limits| limits.defaults.lowering = 1.5).contains("lowering"));
        assert!(refused(|limits| limits.defaults.batch = 4096).contains("batch"));
        assert!(refused(|limits| limits.rate = (2.0, 8.0)).contains("learning rate"));
        assert!(refused(|limits| limits.alpha = (0.1, 0.2)).contains("alpha"));
        assert!(refused(|limits| limits.defaults.alpha = f64::NAN).contains("alpha"));
        assert!(refused(|limits| limits.defaults.alpha = 0.9).contains("alpha"));
    }
}
