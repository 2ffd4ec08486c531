//! The client's verdict on a check, from the loss, the patience and the range of the logits.

use crate::softmax::exact;
use crate::{Error, Matrix, Result};
use serde::{Deserialize, Serialize};

/// The client's answer to the server at a check. An abort is a [`Verdict::Stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// Go on.
    Continue,
    /// Stop and return the kept weights.
    Stop,
    /// Go back to the last accepted check, and on with a lower rate.
    LowerRate,
    /// Go back to the last accepted check, and on with a softmax of a wider range.
    WidenRange,
}

/// The ranges a session can be widened to, one after the other. The first is for two classes only.
pub const RANGES: [f64; 4] = [16.0, 32.0, 128.0, 512.0];

/// The first range of a training whose server begins with `range`: two classes take half of the
/// smallest, where their softmax is one polynomial. Their centred logits are half of their
/// difference. Row weights leave no level for that polynomial.
pub fn first_range(range: f64, classes: usize, weighted: bool) -> f64 {
    if classes == 2 && !weighted && range <= RANGES[1] { RANGES[0] } else { range.max(RANGES[1]) }
}

/// The next wider range, if there is one.
pub fn wider(range: f64) -> Option<f64> {
    RANGES.into_iter().find(|&r| r > range)
}

/// Logits beyond this share of the range are too close to its end. Rows of the training set, which
/// are not seen, lie somewhat beyond those of the validation set.
pub const NEAR_THE_END: f64 = 0.8;

/// The classes' logits sum to zero but for noise. A mean beyond this is not noise.
pub const LARGEST_MEAN: f64 = 1.0;

/// A loss that changes by less than this share of itself has settled.
pub const SETTLED: f64 = 0.01;

/// The client's assessment of a check.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judgement {
    /// The verdict to send.
    pub verdict: Verdict,
    /// Mean cross-entropy on the validation rows.
    pub loss: f64,
    /// Share of validation rows whose largest logit is their label's.
    pub accuracy: f64,
    /// The largest magnitude of a logit.
    pub largest: f64,
}

/// Follows a training from the client's side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judge {
    patience: usize,
    range: f64,
    repeats_left: usize,
    /// The accepted checks.
    #[serde(rename = "epoch")]
    checks: usize,
    best: Option<(usize, f64)>,
    /// Whether the range was widened since the last accepted check.
    #[serde(default)]
    widened: bool,
    /// Of a training that ends when its loss settles: the check since which it has been within
    /// [`SETTLED`] of its loss then.
    #[serde(default, skip_serializing_if = "Settling::is_off")]
    settling: Settling,
}

/// Whether a training ends when its loss settles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
enum Settling {
    /// It ends when the loss no longer falls, and the check of the lowest loss is taken.
    #[default]
    Off,
    /// It does, and no check was accepted yet.
    Begun,
    /// It does, and the loss has been about the same since a check.
    Since(usize, f64),
}

impl Settling {
    fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

impl Judge {
    /// A judge before the first check. It goes back at most `repeats` times in all.
    pub fn new(patience: usize, range: f64, repeats: usize) -> Self {
        Self { patience, range, repeats_left: repeats, checks: 0, best: None, widened: false, settling: Settling::Off }
    }

    /// The judge of a training that validates its own rows. Their loss lacks the term of L2, so its
    /// lowest value, through which momentum passes, is not the minimum that is sought. The training
    /// ends when the loss has settled for `patience` checks, and the last check is taken.
    #[must_use]
    pub fn until_settled(self) -> Self {
        Self { settling: Settling::Begun, ..self }
    }

    /// The number of accepted checks.
    pub fn checks(&self) -> usize {
        self.checks
    }

    /// The accepted check that is taken, counted from 1: the one with the lowest loss, or the last
    /// one of a training that ends when its loss settles.
    pub fn best_check(&self) -> Option<usize> {
        self.best.map(|(check, _)| check)
    }

    /// Judges a check by its validation logits.
    pub fn judge(&mut self, logits: &Matrix, labels: &[usize]) -> Result<Judgement> {
        self.judge_weighted(logits, labels, None)
    }

    /// [`Judge::judge`] by a loss in which rows have weights.
    pub fn judge_weighted(&mut self, logits: &Matrix, labels: &[usize], weights: Option<&[f64]>) -> Result<Judgement> {
        let (loss, accuracy) = (weighted_cross_entropy(logits, labels, weights)?, accuracy(logits, labels)?);
        let largest =
            logits.values().iter().fold(0.0, |m: f64, v| if v.is_nan() { f64::INFINITY } else { m.max(v.abs()) });
        let verdict = self.guard(largest, largest_mean(logits)).unwrap_or_else(|| self.accept(loss));
        Ok(Judgement { verdict, loss, accuracy, largest })
    }

    /// The verdict that the range of the logits demands, if any.
    fn guard(&mut self, largest: f64, mean: f64) -> Option<Verdict> {
        if largest <= NEAR_THE_END * self.range && mean <= LARGEST_MEAN {
            return None;
        }
        if self.repeats_left == 0 {
            return Some(Verdict::Stop);
        }
        self.repeats_left -= 1;
        // A wider range first. If that was just done and the logits are beyond the widest one as
        // well, the training diverges, and a lower rate helps.
        match wider(self.range) {
            Some(range) if range <= RANGES[2] || !self.widened || largest <= NEAR_THE_END * range => {
                (self.range, self.widened) = (range, true);
                Some(Verdict::WidenRange)
            }
            _ => Some(Verdict::LowerRate),
        }
    }

    fn accept(&mut self, loss: f64) -> Verdict {
        self.widened = false;
        self.checks += 1;
        if !self.settling.is_off() {
            return self.settle(loss);
        }
        match self.best {
            Some((best, lowest)) if loss >= lowest || loss.is_nan() => {
                if self.checks - best >= self.patience.max(1) {
                    Verdict::Stop
                } else {
                    Verdict::Continue
                }
            }
            _ => {
                self.best = Some((self.checks, loss));
                Verdict::Continue
            }
        }
    }

    fn settle(&mut self, loss: f64) -> Verdict {
        self.best = Some((self.checks, loss));
        match self.settling {
            // The comparison is false for NaN.
            Settling::Since(since, then) if (loss - then).abs() <= SETTLED * then => {
                if self.checks - since >= self.patience.max(1) { Verdict::Stop } else { Verdict::Continue }
            }
            _ => {
                self.settling = Settling::Since(self.checks, loss);
                Verdict::Continue
            }
        }
    }
}

/// `-mean log softmax(logits)[label]`.
pub fn cross_entropy(logits: &Matrix, labels: &[usize]) -> Result<f64> {
    weighted_cross_entropy(logits, labels, None)
}

/// [`cross_entropy`] as a mean in which rows have weights. Fails if their sum is not positive.
pub fn weighted_cross_entropy(logits: &Matrix, labels: &[usize], weights: Option<&[f64]>) -> Result<f64> {
    check(logits, labels)?;
    if let Some(weights) = weights.filter(|weights| weights.len() != labels.len()) {
        return Err(Error::LabelCount { rows: weights.len(), labels: labels.len() });
    }
    let row = |(i, &label): (usize, &usize)| {
        let mut p = logits.row(i).to_vec();
        exact(&mut p);
        -libm::log(p[label].max(f64::MIN_POSITIVE))
    };
    let losses = labels.iter().enumerate().map(row);
    let Some(weights) = weights else { return Ok(losses.sum::<f64>() / labels.len() as f64) };
    let all: f64 = weights.iter().sum();
    // The comparison also refuses NaN.
    if all > 0.0 {
        return Ok(losses.zip(weights).map(|(loss, weight)| loss * weight).sum::<f64>() / all);
    }
    Err(Error::Invalid { what: "sum of the weights of rows", value: all, must: "positive" })
}

/// The largest magnitude of the mean over the classes.
fn largest_mean(logits: &Matrix) -> f64 {
    let mean = |i: usize| logits.row(i).iter().sum::<f64>().abs() / logits.columns().max(1) as f64;
    (0..logits.rows()).map(mean).fold(0.0, f64::max)
}

/// The share of rows whose largest logit is their label's.
pub fn accuracy(logits: &Matrix, labels: &[usize]) -> Result<f64> {
    check(logits, labels)?;
    let right = labels.iter().enumerate().filter(|&(i, &label)| predicted(logits.row(i)) == label).count();
    Ok(right as f64 / labels.len() as f64)
}

/// The class with the largest logit, the first of equals.
pub fn predicted(row: &[f64]) -> usize {
    (0..row.len()).rev().max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0)
}

fn check(logits: &Matrix, labels: &[usize]) -> Result<()> {
    if labels.is_empty() {
        return Err(Error::NoRows);
    }
    if logits.rows() != labels.len() {
        return Err(Error::LabelCount { rows: logits.rows(), labels: labels.len() });
    }
    match labels.iter().position(|&label| label >= logits.columns()) {
        Some(row) => Err(Error::Label { row, label: labels[row], classes: logits.columns() }),
        None => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// One row of two classes with a given logit for its label: lower logits, higher losses.
    fn margin(m: f64) -> Matrix {
        Matrix::new(1, 2, vec![m, -m]).unwrap()
    }

    #[test]
    fn loss_and_accuracy() {
        let logits = Matrix::new(2, 2, vec![0.0, 0.0, 3.0, 1.0]).unwrap();
        let loss = cross_entropy(&logits, &[0, 1]).unwrap();
        let expected = (libm::log(2.0) + libm::log(1.0 + libm::exp(2.0))) / 2.0;
        assert!((loss - expected).abs() < 1e-12);
        assert_eq!(accuracy(&logits, &[0, 1]).unwrap(), 0.5);
        // A weight counts like repeated rows.
        let repeated = Matrix::new(4, 2, vec![0.0, 0.0, 3.0, 1.0, 3.0, 1.0, 3.0, 1.0]).unwrap();
        let weighted = weighted_cross_entropy(&logits, &[0, 1], Some(&[0.5, 1.5])).unwrap();
        assert!((weighted - cross_entropy(&repeated, &[0, 1, 1, 1]).unwrap()).abs() < 1e-12);
        for bad in [&[1.0][..], &[0.0, 0.0], &[f64::NAN, 1.0]] {
            assert!(weighted_cross_entropy(&logits, &[0, 1], Some(bad)).is_err(), "{bad:?}");
        }
        assert!(cross_entropy(&logits, &[0]).is_err());
        assert!(cross_entropy(&logits, &[0, 2]).is_err());
        assert!(cross_entropy(&Matrix::zeros(0, 2), &[]).is_err());
    }

    #[test]
    fn patience_counts_checks_without_improvement() {
        let mut judge = Judge::new(3, 128.0, 2);
        let verdicts: Vec<_> =
            [1.0, 2.0, 1.5, 1.9, 2.5, 2.4, 2.3, 2.2].map(|m| judge.judge(&margin(m), &[0]).unwrap().verdict).into();
        let mut expected = vec![Verdict::Continue; 7];
        expected.push(Verdict::Stop);
        assert_eq!(verdicts, expected);
        assert_eq!(judge.best_check(), Some(5));
    }

    /// On its own rows a training goes on through the lowest loss until nothing changes, and its
    /// last check is taken.
    #[test]
    fn a_training_on_its_own_rows_ends_when_its_loss_settles() {
        let mut judge = Judge::new(3, 128.0, 2).until_settled();
        let mut stored = String::new();
        // The loss falls, rises again, and stays: margins of equal size have equal losses.
        for (epoch, m) in [1.0, 2.0, 3.0, 2.5, 2.2, 2.0, 2.0001, 1.9999, 2.0].into_iter().enumerate() {
            let verdict = judge.judge(&margin(m), &[0]).unwrap().verdict;
            assert_eq!(verdict, if epoch == 8 { Verdict::Stop } else { Verdict::Continue }, "epoch {}", epoch + 1);
            assert_eq!(judge.best_check(), Some(epoch + 1));
            stored = serde_json::to_string(&judge).unwrap();
            assert_eq!(serde_json::from_str::<Judge>(&stored).unwrap(), judge);
        }
        assert!(stored.contains("settling"), "{stored}");
        // A judge of an earlier version takes the lowest loss.
        let plain = serde_json::to_string(&Judge::new(3, 128.0, 2)).unwrap();
        assert!(!plain.contains("settling"), "{plain}");
        assert_eq!(serde_json::from_str::<Judge>(&plain).unwrap(), Judge::new(3, 128.0, 2));
        // Slow steps in one direction are no rest.
        let mut judge = Judge::new(3, 128.0, 2).until_settled();
        let falling = (0..40).map(|k| judge.judge(&margin(1.0 + 0.02 * f64::from(k)), &[0]).unwrap().verdict);
        assert!(falling.into_iter().all(|verdict| verdict == Verdict::Continue));
    }

    #[test]
    fn the_guard_acts_before_the_range_ends() {
        let mut judge = Judge::new(3, 128.0, 3);
        let mut verdict = |m: f64| judge.judge(&margin(m), &[0]).unwrap().verdict;
        assert_eq!(verdict(100.0), Verdict::Continue);
        assert_eq!(verdict(110.0), Verdict::WidenRange);
        assert_eq!(verdict(200.0), Verdict::Continue);
        assert_eq!(verdict(f64::NAN), Verdict::LowerRate);
        assert_eq!(verdict(450.0), Verdict::LowerRate);
        assert_eq!(verdict(450.0), Verdict::Stop);
        assert_eq!((judge.checks, judge.range), (2, 512.0));
        // Beyond the range: a wider one first, then a lower rate.
        let mut judge = Judge::new(3, 32.0, 3);
        let mut verdict = |m: f64| judge.judge(&margin(m), &[0]).unwrap().verdict;
        assert_eq!(
            [verdict(4000.0), verdict(4000.0), verdict(120.0)],
            [Verdict::WidenRange, Verdict::LowerRate, Verdict::WidenRange]
        );
        assert_eq!(judge.range, 512.0);
    }

    /// Logits that do not sum to zero are not a softmax's of this training.
    #[test]
    fn the_guard_watches_the_mean_of_the_classes() {
        let off = |mean: f64| Matrix::new(1, 2, vec![3.0 + mean, -3.0 + mean]).unwrap();
        assert_eq!(Judge::new(3, 32.0, 1).judge(&off(0.9), &[0]).unwrap().verdict, Verdict::Continue);
        assert_eq!(Judge::new(3, 32.0, 1).judge(&off(-1.1), &[0]).unwrap().verdict, Verdict::WidenRange);
    }

    #[test]
    fn two_classes_begin_with_half_the_range() {
        assert_eq!(first_range(32.0, 2, false), 16.0);
        assert_eq!((first_range(32.0, 2, true), first_range(32.0, 3, false)), (32.0, 32.0));
        assert_eq!((first_range(128.0, 2, false), first_range(16.0, 3, false)), (128.0, 32.0));
        assert_eq!([16.0, 32.0, 128.0, 512.0].map(wider), [Some(32.0), Some(128.0), Some(512.0), None]);
    }
}
