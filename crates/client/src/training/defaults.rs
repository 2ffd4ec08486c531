//! Hyper-parameters that fit the rows, for those that the owner does not choose.
//!
//! They follow from the number of rows and from 30 products with the normalised rows, without
//! labels. The server learns them, so the learning rate and alpha are powers of two
//! (docs/security/leakage.md). docs/adr/022-scaling-and-defaults.md has the measurements.

use crate::TrainingData;
use crate::data::PreparationReport;
use crate::rpc::Offer;
use hetal_learn::agreement::CHECK_EVERY;
use hetal_learn::spectrum::Spectrum;
use hetal_learn::{Scaling, Wishes};
use serde::Serialize;

/// The most rows of a batch. Larger batches take longer and hardly fewer iterations.
const BATCH: usize = 512;
/// The learning rate times the largest eigenvalue of the rows is between half of this and this. The
/// curvature of the loss is at most half the eigenvalue, and smaller once most rows are right.
/// Nesterov's steps are stable up to 4/3 of the inverse of the curvature.
const STEP: f64 = 4.0;
/// L2 is that of a prior under which the logits of a row of mean length have this variance.
const LOGIT_VARIANCE: f64 = 8.0;
/// The most of a weight that L2 takes in a step.
const MOST_DECAY: f64 = 0.25;
/// At least this many iterations are allowed; most trainings converge in half of them.
const ITERATIONS: usize = 128;
/// At least this many epochs are allowed.
const EPOCHS: usize = 8;
/// A training goes on for about this many iterations without improvement, which is half a period of
/// the oscillations that momentum causes near the end of a training.
const PATIENCE_ITERATIONS: usize = 10;
/// The least patience, and the most.
const PATIENCE: (usize, usize) = (3, 10);
/// The lowest and the highest learning rate, unless a server says otherwise.
const RATES: (f64, f64) = (1.0 / 1024.0, 8.0);

/// Hyper-parameters that fit the rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Defaults {
    /// Rows of a batch.
    pub batch: usize,
    /// The learning rate, a power of two.
    pub rate: f64,
    /// The factor of `|W|^2 / 2` in the loss, a power of two or 0.
    pub alpha: f64,
    /// Checks without improvement before the training stops.
    pub patience: usize,
    /// The most epochs.
    pub max_epochs: usize,
}

impl Defaults {
    /// The hyper-parameters for these rows.
    pub fn new(data: &TrainingData) -> Self {
        let rows = data.training.rows();
        let spectrum = Spectrum::new(data.training.features());
        let batch = rows_of_a_batch(rows);
        let rate = power_of_two_below(STEP / spectrum.largest_eigenvalue).clamp(RATES.0, RATES.1);
        let alpha = match needs_l2(&data.preparation) {
            true => nearest_power_of_two(spectrum.mean_square / (LOGIT_VARIANCE * rows.max(1) as f64)),
            false => 0.0,
        };
        Self {
            batch,
            rate,
            alpha: alpha.min(power_of_two_below(MOST_DECAY / rate)),
            patience: patience(CHECK_EVERY),
            max_epochs: epochs(rows, batch),
        }
    }

    /// The wishes, with these hyper-parameters where the owner has none, within a server's bounds.
    pub fn fill(&self, wishes: &Wishes, rows: usize, offer: Option<&Offer>) -> Wishes {
        let bounds = offer.map(|offer| offer.bounds);
        // What a server hides stays its choice.
        let shown = |value: f64, bounds: Option<Option<(f64, f64)>>| match bounds {
            None => Some(value),
            Some(bounds) => bounds.map(|(least, most)| value.clamp(least, most.max(least))),
        };
        let rate = wishes.rate.or(shown(self.rate, bounds.map(|b| b.rate)));
        let within_rate = |rate: f64| self.alpha.min(power_of_two_below(MOST_DECAY / rate));
        let alpha = rate.filter(|rate| *rate > 0.0).and_then(|rate| shown(within_rate(rate), bounds.map(|b| b.alpha)));
        Wishes { rate, alpha: wishes.alpha.or(alpha), ..Self::of_rows(wishes, rows, offer) }
    }

    /// The wishes, with the hyper-parameters that follow from the number of training rows alone
    /// (batch, patience and epochs) where the owner has none, within a server's bounds.
    pub fn of_rows(wishes: &Wishes, rows: usize, offer: Option<&Offer>) -> Wishes {
        let bounds = offer.map(|offer| offer.bounds);
        let within = |value: usize, (least, most): (usize, usize)| value.clamp(least, most.max(least));
        let batch = rows_of_a_batch(rows);
        let batch = wishes.batch.unwrap_or_else(|| bounds.map_or(batch, |b| within(batch, b.batch)));
        let (patience, max_epochs) = (patience(wishes.check_every.unwrap_or(CHECK_EVERY)), epochs(rows, batch));
        Wishes {
            batch: Some(batch),
            patience: wishes.patience.or(Some(bounds.map_or(patience, |b| within(patience, (1, b.patience))))),
            max_epochs: wishes.max_epochs.or(Some(bounds.map_or(max_epochs, |b| within(max_epochs, (1, b.epochs))))),
            ..wishes.clone()
        }
    }
}

/// The hyper-parameters that are asked for, as text.
pub fn wishes_text(wishes: &Wishes) -> String {
    let shown = |value: Option<String>| value.unwrap_or_else(|| "of the server".to_owned());
    format!(
        "hyper-parameters: batch {}, rate {}, L2 (alpha) {}, patience {}, at most {} epochs",
        shown(wishes.batch.map(|x| x.to_string())),
        shown(wishes.rate.map(|x| x.to_string())),
        match wishes.alpha {
            Some(0.0) => "none".to_owned(),
            alpha => shown(alpha.map(|x| x.to_string())),
        },
        shown(wishes.patience.map(|x| x.to_string())),
        shown(wishes.max_epochs.map(|x| x.to_string()))
    )
}

/// Whether early stopping is not enough. For features of networks it is, and L2 would cost two
/// bootstraps at every check.
fn needs_l2(rows: &PreparationReport) -> bool {
    rows.scaling == Scaling::Standard || rows.validates_on_training_rows
}

/// The rows of a batch, if all batches of `rows` rows are about equal.
fn rows_of_a_batch(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(BATCH).max(1)).max(1)
}

/// The batches of `rows` rows.
fn batches(rows: usize, batch: usize) -> usize {
    rows.div_ceil(batch.max(1)).max(1)
}

/// The most epochs of `rows` rows in batches of `batch`.
fn epochs(rows: usize, batch: usize) -> usize {
    ITERATIONS.div_ceil(batches(rows, batch)).max(EPOCHS)
}

/// The patience of a training that is checked every so many iterations.
fn patience(iterations: usize) -> usize {
    PATIENCE_ITERATIONS.div_ceil(iterations.max(1)).clamp(PATIENCE.0, PATIENCE.1)
}

/// The largest power of two up to a positive number.
fn power_of_two_below(x: f64) -> f64 {
    libm::exp2(libm::log2(x).floor())
}

/// The power of two that a positive number is nearest to, by ratio; 0 for 0.
fn nearest_power_of_two(x: f64) -> f64 {
    if x > 0.0 { libm::exp2(libm::log2(x).round()) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Labels, Preparation};
    use crate::rpc::{HyperParameters, ServerLimits};
    use crate::{Labelled, TrainingData};
    use hetal_learn::Matrix;

    fn data(rows: usize, columns: usize) -> TrainingData {
        let features = Matrix::from_fn(rows, columns, |i, j| libm::sin((i * (j + 2) + j * j) as f64));
        let labels = Labels::Integers((0..rows as i64).map(|i| i % 3).collect());
        let rows = Labelled { features, labels, file: String::new(), columns: None, weights: None };
        TrainingData::new(&rows, None, &Preparation::default()).unwrap()
    }

    /// What the server learns about the rows beyond their number is two powers of two.
    #[test]
    fn defaults_are_coarse() {
        for (rows, columns) in [(20, 1), (140, 5), (900, 12)] {
            let defaults = Defaults::new(&data(rows, columns));
            for x in [defaults.rate, defaults.alpha] {
                assert_eq!(libm::log2(x).fract(), 0.0, "{defaults:?}");
            }
            assert!(defaults.rate * defaults.alpha <= MOST_DECAY, "{defaults:?}");
        }
        let wide = data(600, 256);
        assert_eq!((wide.preparation.scaling, Defaults::new(&wide).alpha), (Scaling::None, 0.0));
    }

    #[test]
    fn a_small_table_gets_many_iterations_of_all_rows() {
        let defaults = Defaults::new(&data(140, 5));
        assert_eq!((defaults.batch, defaults.max_epochs), (140, 128));
        // 1100 rows less 66 for validation, in three batches of one size.
        let defaults = Defaults::new(&data(1100, 5));
        assert_eq!((defaults.batch, defaults.max_epochs), (345, 43));
        assert_eq!((epochs(13_084, 512), epochs(1_000_000, 512)), (8, 8));
    }

    /// Three checks of every iteration are three iterations, which is no time to wait.
    #[test]
    fn patience_is_counted_in_iterations() {
        let of = |check_every| {
            let wishes = Wishes { check_every, ..Wishes::default() };
            Defaults::new(&data(140, 5)).fill(&wishes, 140, None).patience.unwrap()
        };
        assert_eq!([None, Some(4), Some(1), Some(2), Some(3), Some(9)].map(of), [3, 3, 10, 5, 4, 3]);
        assert_eq!(Defaults::new(&data(140, 5)).patience, 3);
        let wishes = |patience: usize| {
            let bounds = ServerLimits { batch: (1, 512), epochs: 200, patience, ..ServerLimits::default() };
            let offer = Offer { bounds, ..Offer::default() };
            let every = Wishes { check_every: Some(1), ..Wishes::default() };
            Defaults::new(&data(140, 5)).fill(&every, 140, Some(&offer)).patience
        };
        assert_eq!([20, 10, 4, 0].map(wishes), [10, 10, 4, 1].map(Some));
        let asked = Wishes { patience: Some(2), ..Wishes::default() };
        assert_eq!(Defaults::new(&data(140, 5)).fill(&asked, 140, None).patience, Some(2));
    }

    #[test]
    fn wishes_and_bounds_come_first() {
        let data = data(140, 5);
        let (defaults, rows) = (Defaults::new(&data), data.training.rows());
        let wishes = Wishes { batch: Some(14), rate: Some(0.3), ..Wishes::default() };
        let filled = defaults.fill(&wishes, rows, None);
        assert_eq!((filled.batch, filled.rate, filled.max_epochs), (Some(14), Some(0.3), Some(13)));
        let bounds = ServerLimits { batch: (1, 64), epochs: 20, rate: Some((0.5, 1.0)), ..ServerLimits::default() };
        let offer = Offer { bounds, defaults: HyperParameters::default(), ..Offer::default() };
        let filled = defaults.fill(&Wishes::default(), rows, Some(&offer));
        assert_eq!((filled.batch, filled.max_epochs), (Some(64), Some(20)));
        assert!((0.5..=1.0).contains(&filled.rate.unwrap()));
        let hiding = Offer { bounds: ServerLimits { rate: None, ..bounds }, ..offer };
        let filled = defaults.fill(&Wishes::default(), rows, Some(&hiding));
        assert_eq!((filled.rate, filled.alpha), (None, None));
    }

    /// The L2 of the defaults is asked for, within what the learning rate and the server allow.
    #[test]
    fn l2_is_asked_for() {
        let data = data(140, 5);
        let (defaults, rows) = (Defaults::new(&data), data.training.rows());
        assert!(defaults.alpha > 0.0, "{defaults:?}");
        let asked = |wishes: Wishes, offer: Option<&Offer>| defaults.fill(&wishes, rows, offer).alpha;
        assert_eq!(asked(Wishes::default(), None), Some(defaults.alpha));
        for alpha in [0.0, 0.3] {
            assert_eq!(asked(Wishes { alpha: Some(alpha), ..Wishes::default() }, None), Some(alpha));
        }
        let fast = Wishes { rate: Some(1024.0), ..Wishes::default() };
        assert_eq!(asked(fast, None), Some(MOST_DECAY / 1024.0));
        let offering = |alpha| {
            let bounds = ServerLimits {
                batch: (1, 512),
                epochs: 200,
                rate: Some((1e-4, 8.0)),
                alpha,
                ..ServerLimits::default()
            };
            Offer { bounds, ..Offer::default() }
        };
        assert_eq!(asked(Wishes::default(), Some(&offering(Some((0.0, 1e-9))))), Some(1e-9));
        // A server that hides its L2, or knows none, is not asked.
        assert_eq!(asked(Wishes::default(), Some(&offering(None))), None);
        let text = |wishes: Wishes| wishes_text(&defaults.fill(&wishes, rows, None));
        assert!(text(Wishes::default()).contains(&format!("L2 (alpha) {},", defaults.alpha)));
        assert!(text(Wishes { alpha: Some(0.0), ..Wishes::default() }).contains("L2 (alpha) none,"));
    }
}
