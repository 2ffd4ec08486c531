//! The plaintext reference: the same training on plain numbers, with which an encrypted run is
//! compared.

use crate::nesterov::{Momentum, Recursion, StepSize};
use crate::{Matrix, Result};

/// A classifier in plaintext training (classes x features + 1, the bias in the last column).
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceModel {
    weights: Matrix,
    lookahead: Matrix,
    recursion: Recursion,
}

impl ReferenceModel {
    /// A model before its first step.
    pub fn new(weights: Matrix, momentum: Momentum) -> Self {
        Self { lookahead: weights.clone(), weights, recursion: Recursion::new(momentum) }
    }

    /// The weights `W`.
    pub fn weights(&self) -> &Matrix {
        &self.weights
    }

    /// `V`, at which the next gradient is computed.
    pub fn lookahead(&self) -> &Matrix {
        &self.lookahead
    }

    /// One step `W' = decay V - rate/rows * (softmax(X V^T) - Y)^T X`, `V' = W' + beta (W' - W)` on
    /// a batch, with any row softmax. Returns the smallest and the largest logit.
    pub fn step(
        &mut self,
        x: &Matrix,
        labels: &[usize],
        size: StepSize,
        softmax: impl Fn(&mut [f64]),
    ) -> Result<(f64, f64)> {
        self.weighted_step(x, labels, None, size, softmax)
    }

    /// [`ReferenceModel::step`] with a weight for each row.
    pub fn weighted_step(
        &mut self,
        x: &Matrix,
        labels: &[usize],
        row_weights: Option<&[f64]>,
        size: StepSize,
        softmax: impl Fn(&mut [f64]),
    ) -> Result<(f64, f64)> {
        let mut differences = logits(x, &self.lookahead)?;
        let range = differences.values().iter().fold((0.0f64, 0.0f64), |(low, high), &v| (low.min(v), high.max(v)));
        for (i, &label) in labels.iter().enumerate().take(differences.rows()) {
            let row = differences.row_mut(i);
            softmax(row);
            if let Some(p) = row.get_mut(label) {
                *p -= 1.0;
            }
            let weight = row_weights.and_then(|weights| weights.get(i)).copied().unwrap_or(1.0);
            row.iter_mut().for_each(|d| *d *= weight);
        }
        let gradient = gradient(x, &differences)?;
        self.descend(&gradient, size, size.rate / x.rows().max(1) as f64);
        Ok(range)
    }

    fn descend(&mut self, gradient: &Matrix, size: StepSize, factor: f64) {
        let (recursion, beta) = self.recursion.advance_refreshed(size);
        self.recursion = recursion;
        let (rows, columns) = (self.weights.rows(), self.weights.columns());
        // The bias, in the last column, does not decay.
        let decay = |h: usize| if h + 1 == columns { 1.0 } else { size.decay() };
        let beta = |h: usize| if h + 1 == columns { beta.bias } else { beta.weights };
        let weights =
            Matrix::from_fn(rows, columns, |k, h| decay(h) * self.lookahead[(k, h)] - factor * gradient[(k, h)]);
        self.lookahead =
            Matrix::from_fn(rows, columns, |k, h| weights[(k, h)] + beta(h) * (weights[(k, h)] - self.weights[(k, h)]));
        self.weights = weights;
    }

    /// Refreshes the model as [`crate::trainer::Trainer::refresh`] does, which changes how the next
    /// momentum is rounded.
    pub fn refresh(&mut self) {
        self.recursion = self.recursion.refreshed();
    }

    /// Refreshes the model if a session would, before its weights are judged.
    pub fn prepare_for_judgement(&mut self) {
        if !self.recursion.has_plain_weights() {
            self.refresh();
        }
    }
}

/// `[X 1] W^T`: rows x classes.
pub fn logits(x: &Matrix, weights: &Matrix) -> Result<Matrix> {
    x.require("a matrix of features", usize::MAX, weights.columns().saturating_sub(1))?;
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let bias = |k: usize| weights.row(k).last().copied().unwrap_or(0.0);
    Ok(Matrix::from_fn(x.rows(), weights.rows(), |i, k| dot(x.row(i), weights.row(k)) + bias(k)))
}

/// `D^T [X 1]`: classes x features + 1.
pub fn gradient(x: &Matrix, differences: &Matrix) -> Result<Matrix> {
    differences.require("a matrix of differences", x.rows(), differences.columns())?;
    let mut gradient = Matrix::zeros(differences.columns(), x.columns() + 1);
    for i in 0..differences.rows() {
        for (k, &d) in differences.row(i).iter().enumerate() {
            let features = x.row(i).iter().chain(std::iter::once(&1.0));
            gradient.row_mut(k).iter_mut().zip(features).for_each(|(g, x)| *g += d * x);
        }
    }
    Ok(gradient)
}
