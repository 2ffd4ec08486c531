//! The security bound of parameter sets, as a table.
//!
//! The table was computed with the formulas of the public lattice-estimator: attacks usvp, bdd,
//! bdd-hybrid, mitm-hybrid and EJK dual under the MATZOV cost model, error sigma 3.2.
//! `docs/security/` shows how to derive a row again. An entry is the largest log2(QP) for which the
//! best attack costs at least 2^128. The sparse columns are lowered by 1.5 % because the fast
//! implementation that computed them is too optimistic about mitm-hybrid by that much.

use crate::{Error, Result};

/// Secret weights of the table's columns, densest first; `usize::MAX` stands for uniform ternary
/// secrets.
const WEIGHTS: [usize; 7] = [usize::MAX, 512, 256, 192, 128, 64, 32];

/// `(log N, largest log2(QP) per column)`; 0 where no figure was computed.
const LARGEST_LOG_QP: [(u32, [f64; 7]); 4] = [
    (13, [214.0, 0.0, 205.0, 198.0, 182.0, 129.0, 47.0]),
    (14, [430.0, 0.0, 409.0, 395.0, 366.0, 265.0, 99.0]),
    (15, [868.0, 848.0, 820.0, 797.0, 743.0, 549.0, 216.0]),
    (16, [1746.0, 1711.0, 1654.0, 1613.0, 1514.0, 1143.0, 474.0]),
];

/// Figures of the estimator itself for weight 512: `(log N, log2(QP), bits)`.
const ESTIMATED: [(u32, f64, f64); 6] = [
    (15, 828.0, 131.0),
    (15, 840.0, 129.2),
    (15, 848.0, 128.0),
    (16, 1661.0, 132.2),
    (16, 1687.0, 130.1),
    (16, 1711.0, 128.4),
];

/// How hard the scheme is to break.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Security {
    /// Bits by linear interpolation between two points of the estimator.
    Bits(f64),
    /// At least 128 bits by the table; no finer figure is stored.
    AtLeast128,
    /// Less than 128 bits, or no figure is known.
    None,
}

impl Security {
    /// Bits that may be claimed: the interpolated figure, 128, or 0.
    pub fn bits(self) -> f64 {
        match self {
            Self::Bits(bits) => bits,
            Self::AtLeast128 => 128.0,
            Self::None => 0.0,
        }
    }
}

impl std::fmt::Display for Security {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bits(bits) => write!(f, "{bits:.1}"),
            Self::AtLeast128 => write!(f, ">= 128"),
            Self::None => write!(f, "insecure"),
        }
    }
}

/// The largest log2(QP) with 128 bits at degree `2^log_n` for secrets with `weight` nonzero
/// coefficients (`usize::MAX` for uniform ternary ones). A degree or weight between those of the
/// table has the limit of the next smaller one. 0 when nothing is known.
pub fn largest_log_qp(log_n: u32, weight: usize) -> f64 {
    let row = LARGEST_LOG_QP.iter().rev().find(|(row, _)| *row <= log_n);
    let known = |(_, limits): &(u32, [f64; 7])| {
        WEIGHTS.iter().zip(limits).find(|&(&column, &limit)| column <= weight && limit > 0.0).map(|(_, &limit)| limit)
    };
    row.and_then(known).unwrap_or(0.0)
}

/// The security of a modulus of `log_qp` bits.
pub fn estimate(log_n: u32, weight: usize, log_qp: f64) -> Security {
    if log_qp > largest_log_qp(log_n, weight) {
        return Security::None;
    }
    let points: Vec<_> = ESTIMATED.iter().filter(|p| p.0 == log_n && weight == 512).collect();
    let between = points.windows(2).find(|w| (w[0].1..=w[1].1).contains(&log_qp));
    match between {
        Some(w) => Security::Bits(w[0].2 + (w[1].2 - w[0].2) * (log_qp - w[0].1) / (w[1].1 - w[0].1)),
        None => Security::AtLeast128,
    }
}

/// Fails for a modulus with less than 128 bits of security.
pub fn require(what: &str, log_n: u32, weight: usize, log_qp: f64) -> Result<()> {
    match estimate(log_n, weight, log_qp) {
        Security::None => {
            let limit = largest_log_qp(log_n, weight);
            Err(Error::Insecure { what: what.to_owned(), log_n, weight, log_qp, limit })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_points_interpolate_and_nothing_extrapolates() {
        assert!((estimate(16, 512, 1661.0).bits() - 132.2).abs() < 1e-9);
        assert!((estimate(16, 512, 1674.0).bits() - 131.15).abs() < 1e-9);
        assert_eq!(estimate(16, 512, 1500.0), Security::AtLeast128);
        assert_eq!(estimate(16, 512, 1711.5), Security::None);
        assert!((estimate(15, 512, 848.0).bits() - 128.0).abs() < 1e-9);
        assert_eq!(estimate(12, 512, 10.0), Security::None);
    }

    #[test]
    fn a_set_of_127_bits_is_refused() {
        // The estimator gives 127.4 bits for N = 2^15, h = 512, log QP = 853.
        assert!(matches!(require("set", 15, 512, 853.0), Err(Error::Insecure { .. })));
        assert!(require("set", 15, 512, 848.0).is_ok());
    }

    #[test]
    fn sparser_secrets_and_smaller_rings_allow_less() {
        for log_n in 13..=17 {
            let limits: Vec<f64> = [32, 64, 128, 192, 256, usize::MAX].map(|w| largest_log_qp(log_n, w)).to_vec();
            assert!(limits.windows(2).all(|w| w[0] <= w[1]), "{log_n}: {limits:?}");
        }
        for weight in [32, 64, 128, 192, 256, 512, usize::MAX] {
            assert!(largest_log_qp(15, weight) < largest_log_qp(16, weight));
        }
        assert_eq!(largest_log_qp(16, 300), largest_log_qp(16, 256));
        assert_eq!(largest_log_qp(16, 16), 0.0);
    }
}
