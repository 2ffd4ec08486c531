//! Checks of a literal before anything is computed from it.

use super::{EvalMod, MAX_NAME, ParamsLiteral};

/// Fails for numbers outside their ranges, before anything is computed from them. A literal may
/// come from an untrusted file.
pub(super) fn check_numbers(literal: &ParamsLiteral) -> std::result::Result<(), String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if literal.name.is_empty() || literal.name.len() > MAX_NAME || !literal.name.chars().all(plain) {
        return Err(format!("a name is 1 to {MAX_NAME} of a-z, 0-9 and -"));
    }
    if !(10..=17).contains(&literal.log_n) {
        return Err(format!("log N = {} is outside 10..=17", literal.log_n));
    }
    let degree = 1u64 << literal.log_n;
    let EvalMod { k, degree: series, squarings, .. } = literal.eval_mod;
    let ranges = [
        ("secret weight", literal.secret_weight as u64, 1, degree),
        ("sparse weight", literal.sparse_weight as u64, 1, degree),
        ("log scale", literal.log_scale.into(), 1, 50),
        ("log message ratio", literal.log_message_ratio.into(), 0, 30),
        ("K of EvalMod", k.into(), 1, 1 << 12),
        ("degree of EvalMod", series as u64, 0, 1 << 12),
        ("squarings of EvalMod", squarings as u64, 0, 16),
    ];
    match ranges.iter().find(|(_, value, low, high)| !(low..=high).contains(&value)) {
        Some((what, value, low, high)) => Err(format!("{what} = {value} is outside {low}..={high}")),
        None => Ok(()),
    }
}

/// log2 of the largest probability with which a bootstrap may fail, for sets whose name begins with
/// `insecure-`: beyond it EvalMod's range is a mistake.
const LOG_FAILURE: f64 = -60.0;
/// log2 of the largest probability with which a bootstrap of any other set may fail. A million
/// bootstraps then fail with less than 2^-60.
pub(super) const LOG_SECURE_FAILURE: f64 = -80.0;
/// log2 of the largest accepted error of the bootstrap series, relative to the bound of the
/// message.
const LOG_SERIES_ERROR: f64 = -10.0;

/// log2 of a bound on the probability that a bootstrap fails: that a coefficient of the raised
/// message, over `q0`, is outside EvalMod's range `[-K, K]`. Minus infinity if none can be.
///
/// Such a coefficient is the sum of `weight + 1` numbers uniform in `[-1/2, 1/2]`. Two bounds limit
/// its tails, and the smaller one counts: Chernoff's, and `m^terms / terms!` for `m = terms/2 - K`,
/// the volume of the corner of the cube in which the numbers fall short of their largest sum by
/// less than `m`. There are two tails and `N` coefficients.
pub(super) fn log_failure(literal: &ParamsLiteral) -> f64 {
    let (terms, k) = (literal.sparse_weight as f64 + 1.0, f64::from(literal.eval_mod.k));
    let margin = terms / 2.0 - k;
    if margin <= 0.0 {
        return f64::NEG_INFINITY;
    }
    let exponent = |s: f64| terms * libm::log(2.0 * libm::sinh(s / 2.0) / s) - s * k;
    let chernoff = (1..=4000).map(|i| exponent(f64::from(i) / 20.0)).fold(0.0, f64::min);
    let corner = terms * libm::log(margin) - libm::lgamma(terms + 1.0);
    let log_coefficients = f64::from(literal.log_n);
    (chernoff.min(corner) / std::f64::consts::LN_2 + 1.0 + log_coefficients).min(0.0)
}

/// The fault of the range or the degree of EvalMod, if there is one.
///
/// The Chebyshev series of `exp(i z t)` leaves out coefficients of which the first is
/// `2 J_(d+1)(z) <= 2 (z/2)^(d+1) / (d+1)!`. A squaring doubles an error, and the message is
/// smaller than `q0` by the message ratio.
pub(super) fn eval_mod_fault(literal: &ParamsLiteral) -> Option<String> {
    let eval_mod = literal.eval_mod;
    if eval_mod.degree == 0 {
        return None;
    }
    let (k, failure) = (eval_mod.k, log_failure(literal));
    if failure > LOG_FAILURE {
        return Some(format!("EvalMod's range K = {k} is exceeded with probability 2^{failure:.0}"));
    }
    let k = f64::from(k);
    let half = std::f64::consts::PI * k / libm::exp2(eval_mod.squarings as f64);
    let next = eval_mod.degree as f64 + 1.0;
    let dropped = 1.0 + next * libm::log2(half) - libm::lgamma(next + 1.0) / std::f64::consts::LN_2;
    let error = dropped + eval_mod.squarings as f64 + f64::from(literal.log_message_ratio);
    (error > LOG_SERIES_ERROR).then(|| format!("a series of degree {} is wrong by 2^{error:.0}", eval_mod.degree))
}
