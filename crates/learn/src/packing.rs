//! Packs features, labels and weights into slots, and unpacks weights and logits.

use crate::nesterov::{LOG_WEIGHT_SCALE, WeightsAndBias};
use crate::{Error, Geometry, Matrix, Result};
use hetal_circuits::Complex64;

/// The slots of a batch of features, one vector per block:
/// `X_b[j, i] = X[i, b s1 + j] - i X[i, h + b s1 + j]`, with `h` the number of feature pairs.
/// Missing rows and features are zero.
pub fn features(g: &Geometry, x: &Matrix) -> Result<Vec<Vec<Complex64>>> {
    x.require("a batch of features", g.rows(), g.features())?;
    let feature = |i: usize, h: usize| if h < g.features() { x[(i, h)] } else { 0.0 };
    let block = |b: usize| {
        slots(g, |j, i| {
            let pair = b * g.columns() + j;
            if i >= x.rows() || pair >= g.pairs() {
                return Complex64::ZERO;
            }
            Complex64::new(feature(i, pair), -feature(i, pair + g.pairs()))
        })
    };
    Ok((0..g.blocks()).map(block).collect())
}

/// The features of the first `rows` samples in the slots of a batch: the inverse of [`features`].
pub fn unpack_features(g: &Geometry, blocks: &[impl AsRef<[Complex64]>], rows: usize) -> Result<Matrix> {
    if blocks.len() != g.blocks() {
        let (rows, must_rows) = (blocks.len(), g.blocks());
        return Err(Error::Shape { what: "the blocks of a batch", rows, columns: 1, must_rows, must_columns: 1 });
    }
    blocks.iter().try_for_each(|block| check_length(g, block.as_ref()))?;
    Ok(Matrix::from_fn(rows.min(g.rows()), g.features(), |i, h| {
        let pair = h % g.pairs();
        let value = blocks[pair / g.columns()].as_ref()[pair % g.columns() * g.rows() + i];
        if h < g.pairs() { value.re } else { -value.im }
    }))
}

/// The slots of a batch of labels: 1 where sample `i` has class `(i + j) mod c'`, else 0.
pub fn labels(g: &Geometry, labels: &[usize]) -> Result<Vec<Complex64>> {
    weighted_labels(g, labels, None)
}

/// [`labels`], times the weight of the row.
pub fn weighted_labels(g: &Geometry, labels: &[usize], weights: Option<&[f64]>) -> Result<Vec<Complex64>> {
    if labels.len() > g.rows() {
        let (rows, must_rows) = (labels.len(), g.rows());
        return Err(Error::Shape { what: "a batch of labels", rows, columns: 1, must_rows, must_columns: 1 });
    }
    if let Some(row) = labels.iter().position(|&l| l >= g.classes()) {
        return Err(Error::Label { row, label: labels[row], classes: g.classes() });
    }
    if let Some(weights) = weights.filter(|weights| weights.len() != labels.len()) {
        return Err(Error::LabelCount { rows: weights.len(), labels: labels.len() });
    }
    let weight = |i: usize| weights.map_or(1.0, |weights| weights[i]);
    let hit = |j, i| labels.get(i).is_some_and(|&label| label == g.class(j, i));
    Ok(slots(g, |j, i| Complex64::new(if hit(j, i) { weight(i) } else { 0.0 }, 0.0)))
}

/// The slots of a classifier with weights `w` (classes x features + 1, the bias in the last
/// column), one vector per part: `W_c[j, u, rho] = S (w[k, h] + i w[k, h + pairs])` with
/// `h = b s1 + j`, class `k = (rho + j) mod c'`, `b` the block of group `u` and
/// `S = 2^LOG_WEIGHT_SCALE`; the group after the last block holds the bias in its first column.
pub fn weights(g: &Geometry, w: &Matrix) -> Result<Vec<Vec<Complex64>>> {
    w.require("a classifier", g.classes(), g.features() + 1)?;
    let scaled = |value: f64| libm::ldexp(value, LOG_WEIGHT_SCALE as i32);
    let weight = |k: usize, h: usize| if h < g.features() { scaled(w[(k, h)]) } else { 0.0 };
    let part = |part: usize| {
        slots(g, |j, i| match place_of_weights(g, part, j, i) {
            Some((k, Weights::Pair(pair))) => Complex64::new(weight(k, pair), weight(k, pair + g.pairs())),
            Some((k, Weights::Bias)) => Complex64::new(scaled(w[(k, g.features())]), 0.0),
            None => Complex64::ZERO,
        })
    };
    Ok((0..g.parts()).map(part).collect())
}

/// A factor for every weight of a part and one for every bias; 0 in slots that hold neither.
pub(crate) fn factors(g: &Geometry, part: usize, factors: WeightsAndBias) -> Vec<Complex64> {
    slots(g, |j, i| match place_of_weights(g, part, j, i) {
        Some((_, Weights::Pair(_))) => Complex64::new(factors.weights, 0.0),
        Some((_, Weights::Bias)) => Complex64::new(factors.bias, 0.0),
        None => Complex64::ZERO,
    })
}

/// The largest weight of a row whose mean is 1. It is a public constant: a bound that follows from
/// the weights would tell how many rows a class has. Classes of one row in 2,048 have this weight
/// if two classes are balanced.
pub const MAX_ROW_WEIGHT: f64 = 1024.0;

/// The slots of the weights of rows: that of sample `i` in every column.
pub fn row_weights(g: &Geometry, weights: &[f64]) -> Result<Vec<Complex64>> {
    if let Some(&value) = weights.iter().find(|weight| !(0.0..=MAX_ROW_WEIGHT).contains(*weight)) {
        return Err(Error::Invalid { what: "weight of a row", value, must: "between 0 and 1024" });
    }
    if weights.len() > g.rows() {
        let (rows, must_rows) = (weights.len(), g.rows());
        return Err(Error::Shape { what: "the weights of a batch", rows, columns: 1, must_rows, must_columns: 1 });
    }
    Ok(slots(g, |_, i| Complex64::new(weights.get(i).copied().unwrap_or(0.0), 0.0)))
}

/// The classifier (classes x features + 1) in the slots of its parts: the inverse of [`weights`].
pub fn unpack_weights(g: &Geometry, parts: &[impl AsRef<[Complex64]>]) -> Result<Matrix> {
    if parts.len() != g.parts() {
        let (rows, columns, must_rows) = (parts.len(), 1, g.parts());
        return Err(Error::Shape { what: "the parts of a classifier", rows, columns, must_rows, must_columns: 1 });
    }
    let mut w = Matrix::zeros(g.classes(), g.features() + 1);
    let unscaled = |value: f64| libm::ldexp(value, -(LOG_WEIGHT_SCALE as i32));
    for (part, slots) in parts.iter().enumerate() {
        check_length(g, slots.as_ref())?;
        for (slot, value) in slots.as_ref().iter().enumerate() {
            let (j, i) = g.place(slot);
            match place_of_weights(g, part, j, i) {
                Some((k, Weights::Bias)) => w[(k, g.features())] = unscaled(value.re),
                Some((k, Weights::Pair(pair))) => {
                    w[(k, pair)] = unscaled(value.re);
                    if pair + g.pairs() < g.features() {
                        w[(k, pair + g.pairs())] = unscaled(value.im);
                    }
                }
                None => {}
            }
        }
    }
    Ok(w)
}

/// The largest magnitude in the slots of a classifier that hold no weight, as a weight. They stay
/// zero but for noise.
pub fn largest_unused(g: &Geometry, parts: &[impl AsRef<[Complex64]>]) -> f64 {
    let unused = |part: usize, slot: usize| {
        let (j, i) = g.place(slot);
        place_of_weights(g, part, j, i).is_none()
    };
    let slots = parts.iter().enumerate().flat_map(|(part, slots)| {
        slots.as_ref().iter().enumerate().filter(move |(slot, _)| unused(part, *slot)).map(|(_, value)| value.norm())
    });
    // NaN is larger than any number.
    let largest = slots.fold(0.0, |m: f64, x| if x > m || x.is_nan() { x } else { m });
    libm::ldexp(largest, -(LOG_WEIGHT_SCALE as i32))
}

/// The contents of a slot of a classifier.
enum Weights {
    /// The weights of a pair of features.
    Pair(usize),
    /// The bias.
    Bias,
}

/// The class and the weights in column `j`, row `i` of a part, if there are any.
fn place_of_weights(g: &Geometry, part: usize, j: usize, i: usize) -> Option<(usize, Weights)> {
    let (block, k) = (g.blocks_of(part).nth(i / g.padded_classes())?, g.class(j, i));
    let pair = block * g.columns() + j;
    let weights = if block == g.blocks() {
        (j == 0).then_some(Weights::Bias)
    } else {
        (pair < g.pairs()).then_some(Weights::Pair(pair))
    };
    weights.filter(|_| k < g.classes()).map(|weights| (k, weights))
}

/// The logits or probabilities (rows x classes) of the first `rows` samples in a vector of slots.
pub fn unpack_logits(g: &Geometry, slots: &[Complex64], rows: usize) -> Result<Matrix> {
    check_length(g, slots)?;
    let c = g.padded_classes();
    // Sample i, class k lies in column (k - i) mod c'.
    let column = |i: usize, k: usize| (k + c - i % c) % c;
    Ok(Matrix::from_fn(rows.min(g.rows()), g.classes(), |i, k| slots[column(i, k) * g.rows() + i].re))
}

/// A vector of slots from its columns and rows.
pub(crate) fn slots(g: &Geometry, f: impl Fn(usize, usize) -> Complex64) -> Vec<Complex64> {
    (0..g.slots()).map(|slot| g.place(slot)).map(|(j, i)| f(j, i)).collect()
}

/// A vector of real slots, `value` where the condition holds and 0 elsewhere.
pub(crate) fn mask(g: &Geometry, value: f64, holds: impl Fn(usize, usize) -> bool) -> Vec<Complex64> {
    slots(g, |j, i| if holds(j, i) { Complex64::new(value, 0.0) } else { Complex64::ZERO })
}

fn check_length(g: &Geometry, slots: &[Complex64]) -> Result<()> {
    if slots.len() == g.slots() {
        return Ok(());
    }
    Err(hetal_circuits::Error::SlotCount { got: slots.len(), slots: g.slots() }.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn features_come_back() {
        for (rows, features) in [(30, 7), (64, 40), (5, 1)] {
            let g = Geometry::new(512, rows, features, 3).unwrap();
            let x = Matrix::from_fn(rows, features, |i, h| (i * 100 + h + 1) as f64);
            let blocks = super::features(&g, &x).unwrap();
            assert_eq!(unpack_features(&g, &blocks, rows).unwrap(), x);
            assert!(unpack_features(&g, &blocks[1..], rows).is_err());
        }
    }

    /// Padding of classes, of features and of groups is seen, and weights are not.
    #[test]
    fn values_where_no_weight_belongs_are_seen() {
        let g = Geometry::new(512, 32, 9, 3).unwrap();
        let w = Matrix::from_fn(3, 10, |k, h| 1.0 + (k + h) as f64);
        let mut parts = weights(&g, &w).unwrap();
        assert_eq!(largest_unused(&g, &parts), 0.0);
        let unused: Vec<usize> = (0..512).filter(|&slot| parts[0][slot] == Complex64::ZERO).collect();
        assert!(unused.len() > 400);
        for slot in [unused[0], unused[100], unused[unused.len() - 1]] {
            parts[0][slot] = Complex64::new(0.0, libm::ldexp(0.5, LOG_WEIGHT_SCALE as i32));
            assert_eq!(largest_unused(&g, &parts), 0.5);
            parts[0][slot] = Complex64::new(f64::NAN, 0.0);
            assert!(largest_unused(&g, &parts).is_nan());
            parts[0][slot] = Complex64::ZERO;
        }
    }
}
