//! The client's verdict on an epoch, from the loss, the patience and the range of the logits.

use crate::softmax::exact;
use crate::{Error, Matrix, Result};
use serde::{Deserialize, Serialize};

/// The client's answer to the server after an epoch. An abort is a [`Verdict::Stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// Go on.
    Continue,
    /// Stop and return the kept weights.
    Stop,
    /// Do the epoch again from its start with a lower rate.
    LowerRate,
    /// Do the epoch again from its start with a softmax of a wider range.
    WidenRange,
}

/// The ranges a session can be widened to, one after the other.
pub const RANGES: [f64; 3] = [32.0, 128.0, 512.0];

/// The next wider range, if there is one.
pub fn wider(range: f64) -> Option<f64> {
    RANGES.into_iter().find(|&r| r > range)
}

/// Logits beyond this share of the range are too close to its end.
pub const NEAR_THE_END: f64 = 0.7;

/// The client's assessment of an epoch.
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
    epoch: usize,
    best: Option<(usize, f64)>,
}

impl Judge {
    /// A judge before the first epoch. It asks for at most `repeats` repeated epochs in all.
    pub fn new(patience: usize, range: f64, repeats: usize) -> Self {
        Self { patience, range, repeats_left: repeats, epoch: 0, best: None }
    }

    /// The accepted epoch with the lowest loss, counted from 1.
    pub fn best_epoch(&self) -> Option<usize> {
        self.best.map(|(epoch, _)| epoch)
    }

    /// Judges an epoch by its validation logits.
    pub fn judge(&mut self, logits: &Matrix, labels: &[usize]) -> Result<Judgement> {
        let (loss, accuracy) = (cross_entropy(logits, labels)?, accuracy(logits, labels)?);
        let largest =
            logits.values().iter().fold(0.0, |m: f64, v| if v.is_nan() { f64::INFINITY } else { m.max(v.abs()) });
        let verdict = self.guard(largest).unwrap_or_else(|| self.accept(loss));
        Ok(Judgement { verdict, loss, accuracy, largest })
    }

    /// The verdict that the range of the logits demands, if any.
    fn guard(&mut self, largest: f64) -> Option<Verdict> {
        if largest <= NEAR_THE_END * self.range {
            return None;
        }
        if self.repeats_left == 0 {
            return Some(Verdict::Stop);
        }
        self.repeats_left -= 1;
        // Beyond the range the softmax was wrong, and a lower rate helps. Near the end of the
        // range, a wider range helps.
        match wider(self.range) {
            Some(range) if largest <= self.range => {
                self.range = range;
                Some(Verdict::WidenRange)
            }
            _ => Some(Verdict::LowerRate),
        }
    }

    fn accept(&mut self, loss: f64) -> Verdict {
        self.epoch += 1;
        match self.best {
            Some((best, lowest)) if loss >= lowest || loss.is_nan() => {
                if self.epoch - best >= self.patience.max(1) {
                    Verdict::Stop
                } else {
                    Verdict::Continue
                }
            }
            _ => {
                self.best = Some((self.epoch, loss));
                Verdict::Continue
            }
        }
    }
}

/// `-mean log softmax(logits)[label]`.
pub fn cross_entropy(logits: &Matrix, labels: &[usize]) -> Result<f64> {
    check(logits, labels)?;
    let row = |(i, &label): (usize, &usize)| {
        let mut p = logits.row(i).to_vec();
        exact(&mut p);
        -libm::log(p[label].max(f64::MIN_POSITIVE))
    };
    Ok(labels.iter().enumerate().map(row).sum::<f64>() / labels.len() as f64)
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

    /// One row of two classes with a given margin for its label: lower margins, higher losses.
    fn margin(m: f64) -> Matrix {
        Matrix::new(1, 2, vec![m, 0.0]).unwrap()
    }

    #[test]
    fn loss_and_accuracy() {
        let logits = Matrix::new(2, 2, vec![0.0, 0.0, 3.0, 1.0]).unwrap();
        let loss = cross_entropy(&logits, &[0, 1]).unwrap();
        let expected = (libm::log(2.0) + libm::log(1.0 + libm::exp(2.0))) / 2.0;
        assert!((loss - expected).abs() < 1e-12);
        assert_eq!(accuracy(&logits, &[0, 1]).unwrap(), 0.5);
        assert!(cross_entropy(&logits, &[0]).is_err());
        assert!(cross_entropy(&logits, &[0, 2]).is_err());
        assert!(cross_entropy(&Matrix::zeros(0, 2), &[]).is_err());
    }

    #[test]
    fn patience_counts_epochs_without_improvement() {
        let mut judge = Judge::new(3, 128.0, 2);
        let verdicts: Vec<_> =
            [1.0, 2.0, 1.5, 1.9, 2.5, 2.4, 2.3, 2.2].map(|m| judge.judge(&margin(m), &[0]).unwrap().verdict).into();
        let mut expected = vec![Verdict::Continue; 7];
        expected.push(Verdict::Stop);
        assert_eq!(verdicts, expected);
        assert_eq!(judge.best_epoch(), Some(5));
    }

    #[test]
    fn the_guard_acts_before_the_range_ends() {
        let mut judge = Judge::new(3, 128.0, 3);
        let mut verdict = |m: f64| judge.judge(&margin(m), &[0]).unwrap().verdict;
        assert_eq!(verdict(80.0), Verdict::Continue);
        assert_eq!(verdict(100.0), Verdict::WidenRange);
        assert_eq!(verdict(200.0), Verdict::Continue);
        assert_eq!(verdict(f64::NAN), Verdict::LowerRate);
        assert_eq!(verdict(400.0), Verdict::LowerRate);
        assert_eq!(verdict(400.0), Verdict::Stop);
        assert_eq!((judge.epoch, judge.range), (2, 512.0));
        // Far outside, more room would come too late.
        assert_eq!(Judge::new(3, 128.0, 1).judge(&margin(200.0), &[0]).unwrap().verdict, Verdict::LowerRate);
    }
}
