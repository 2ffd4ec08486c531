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

/// log2 of the largest accepted probability that a bootstrap overflows in any coefficient.
const LOG_OVERFLOW: f64 = -60.0;
/// log2 of the largest accepted error of the bootstrap series, relative to the bound of the
/// message.
const LOG_SERIES_ERROR: f64 = -10.0;

/// The fault of the range or the degree of EvalMod, if there is one.
///
/// A coefficient of the raised message exceeds its value by a multiple `I` of `q0`. Up to less than
/// one, `I` is the sum of `weight + 1` numbers uniform in `[-1/2, 1/2]`; Chernoff's bound limits
/// its tail. The Chebyshev series of `exp(i z t)` leaves out coefficients of which the first is
/// `2 J_(d+1)(z) <= 2 (z/2)^(d+1) / (d+1)!`. A squaring doubles an error, and the message is
/// smaller than `q0` by the message ratio.
pub(super) fn eval_mod_fault(literal: &ParamsLiteral) -> Option<String> {
    let eval_mod = literal.eval_mod;
    if eval_mod.degree == 0 {
        return None;
    }
    let (terms, k) = (literal.sparse_weight as f64 + 1.0, f64::from(eval_mod.k));
    let exponent = |s: f64| terms * libm::log(2.0 * libm::sinh(s / 2.0) / s) - s * k;
    let tail = (1..=4000).map(|i| exponent(f64::from(i) / 20.0)).fold(0.0, f64::min) / std::f64::consts::LN_2 + 1.0;
    let overflow = tail + f64::from(literal.log_n);
    // The sum cannot exceed half the number of its terms.
    if terms > 2.0 * k && overflow > LOG_OVERFLOW {
        return Some(format!("EvalMod's range K = {k} is exceeded with probability 2^{overflow:.0}"));
    }
    let half = std::f64::consts::PI * k / libm::exp2(eval_mod.squarings as f64);
    let next = eval_mod.degree as f64 + 1.0;
    let dropped = 1.0 + next * libm::log2(half) - libm::lgamma(next + 1.0) / std::f64::consts::LN_2;
    let error = dropped + eval_mod.squarings as f64 + f64::from(literal.log_message_ratio);
    (error > LOG_SERIES_ERROR).then(|| format!("a series of degree {} is wrong by 2^{error:.0}", eval_mod.degree))
}
