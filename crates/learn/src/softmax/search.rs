//! The search for the constants of normalise-and-sharpen.
//!
//! Logits are centred: they sum to zero over the classes ([`crate::agreement::initial_weights`]),
//! so the first sum lies between `c` and `c cosh(reach)`.
//!
//! What a step does to the worst-case ratio `R` of the sum of the classes (largest over smallest,
//! over all rows in range) is known: [`SoftmaxStep::Normalise`] divides it by almost 4, squaring
//! makes it `c R^2`, sharpening `c (1 + d) / (1 - d)` with `d` the minimax error of a polynomial
//! near `1/s^2` on a range of ratio `R`. After `k` squarings the exponent has grown `2^k`-fold, and
//! `R` must be near 1. A dynamic program over (squarings, bootstraps, level) keeps the sequences
//! that are not beaten in ratio, noise and cost; smaller ratios are always better, so nothing good
//! is lost but by rounding.

use super::Schedule;
use super::constants::{Constants, SoftmaxStep, chebyshev};
use super::measure::Sampler;
use super::remez::{Fit, minimax};
use crate::{Error, LevelPlan, Result};
use hetal_circuits::polynomial::{Polynomial, PolynomialBasis, evaluate};
use hetal_circuits::{Clear, Complex64};
use std::collections::HashMap;

/// What is searched for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// Number of classes, 2 to 128.
    pub classes: usize,
    /// The logits lie in `[-range, range]`.
    pub range: f64,
    /// The level of a bootstrap's result.
    pub top_level: usize,
    /// The level the result must have.
    pub end_level: usize,
    /// Largest error of the final sum of the classes.
    pub tolerance: f64,
    /// Bootstraps may disturb the result this many times their own error, if nothing calmer takes
    /// as few.
    pub gain: f64,
}

impl Target {
    /// The defaults: a full set's 13 levels, 6 of them left for the matrix products.
    pub fn new(classes: usize, range: f64) -> Self {
        Self { classes, range, top_level: 13, end_level: LevelPlan::DEPTH, tolerance: 1e-5, gain: 25.0 }
    }
}

/// The logits may leave the range by this factor before the polynomials leave theirs.
const HEADROOM: f64 = 1.1;
/// Ratios are widened by this for errors of the exponential and of bootstraps.
const MARGIN: f64 = 1.02;
/// Widening on both sides after a step of high degree.
const STEP_MARGIN: f64 = 1.01;
/// Share of the error allowed to the exponential's polynomial.
const EXPONENTIAL_ERROR: f64 = 5e-7;
/// The mean of a row of logits may be this far from zero, in units of the first polynomial's
/// argument: noise moves it by a few thousandths in hundreds of iterations.
const MEAN_MARGIN: f64 = 1.05;
/// The largest degree of the first polynomial.
const MAX_DEGREE: usize = 31;
/// Largest errors of the final sum where they cost no bootstrap. A sum that is not 1 moves the mean
/// of the classes, and nothing moves it back.
const TIGHT_TOLERANCES: [f64; 2] = [1e-9, 1e-6];
/// Largest error of the final sum where a smaller one would cost a bootstrap. The last
/// normalisations converge quadratically, so the typical error is far below.
const LOOSE_TOLERANCE: f64 = 5e-5;
/// One bootstrap more is better than disturbances beyond this many times its error.
const LARGEST_GAIN: f64 = 1000.0;
/// Sequences kept for one state.
const KEPT: usize = 24;

/// The constants for a number of classes and a range, as accurate as the fewest bootstraps allow.
/// If a level less gives about the same accuracy, it is saved.
pub fn best(classes: usize, range: f64) -> Result<Constants> {
    let plain = Target::new(classes, range);
    let shorter = Target { end_level: plain.end_level + 1, ..plain };
    let bootstraps = |constants: &Constants, target: &Target| {
        Schedule::new(constants, target.top_level, target.end_level).map(|schedule| schedule.cuts().len())
    };
    let fewest = bootstraps(&search(&Target { tolerance: LOOSE_TOLERANCE, ..plain })?, &plain)?;
    let tightest = |target: &Target| -> Result<Option<Constants>> {
        for tolerance in TIGHT_TOLERANCES.into_iter().chain([target.tolerance, LOOSE_TOLERANCE]) {
            let found = search(&Target { tolerance, ..*target })?;
            if bootstraps(&found, target)? == fewest {
                return Ok(Some(found));
            }
        }
        Ok(None)
    };
    let found = match (tightest(&plain)?, tightest(&shorter)?) {
        (Some(plain), Some(shorter)) if plain.error < 0.5 * shorter.error && shorter.error > TIGHT_TOLERANCES[1] => {
            Some(plain)
        }
        (plain, shorter) => shorter.or(plain),
    };
    found.ok_or(Error::NoConstants { classes, range })
}

/// Finds constants and states the error measured on uniform and near-tie rows.
pub fn search(target: &Target) -> Result<Constants> {
    if !(2..=crate::geometry::MAX_CLASSES).contains(&target.classes) || !(1.0..=4096.0).contains(&target.range) {
        return Err(Error::NoConstants { classes: target.classes, range: target.range });
    }
    let mut sharpeners = SharpenErrors::default();
    let mut best: Option<(FoundSequence, Exponential)> = None;
    for start in starts(target) {
        let found = Search { target, start: &start, sharpeners: &mut sharpeners }.run();
        for candidate in found {
            if best.as_ref().is_none_or(|(b, _)| candidate.rank(target.gain) < b.rank(target.gain)) {
                best = Some((candidate, start.clone()));
            }
        }
    }
    let (found, start) = best.ok_or(Error::NoConstants { classes: target.classes, range: target.range })?;
    let mut constants = build(target, &start, &found.steps);
    constants.error = Sampler::new(target.classes, target.range, 1).max_error(20_000, |row| constants.evaluate(row));
    constants.checked()
}

/// Degree of the polynomial for two classes: seven levels.
const TANH_DEGREE: usize = 127;

/// The constants of two classes in a small range: the Chebyshev series of `(1 + tanh) / 2`.
pub fn two_classes(range: f64) -> Result<Constants> {
    const POINTS: usize = 4096;
    let scale = range * HEADROOM;
    let angle = |n: usize| core::f64::consts::PI * (n as f64 + 0.5) / POINTS as f64;
    let value = |n: usize| 0.5 + 0.5 * libm::tanh(scale * libm::cos(angle(n)));
    let coefficient = |k: usize| {
        let sum: f64 = (0..POINTS).map(|n| value(n) * libm::cos(k as f64 * angle(n))).sum();
        sum * if k == 0 { 1.0 } else { 2.0 } / POINTS as f64
    };
    // The function is odd but for its mean.
    let exponential = (0..=TANH_DEGREE).map(|k| if k > 0 && k % 2 == 0 { 0.0 } else { coefficient(k) }).collect();
    let mut constants =
        Constants { classes: 2, range, scale, error: 0.0, exponential, steps: Vec::new(), bounds: vec![1.0] };
    constants.error = Sampler::new(2, range, 1).max_error(20_000, |row| constants.evaluate(row));
    constants.checked()
}

/// A first polynomial: `exp(reach t)`, to be squared `squarings` times.
#[derive(Clone)]
struct Exponential {
    squarings: usize,
    reach: f64,
    fit: Fit,
}

impl Exponential {
    fn depth(&self) -> usize {
        self.fit.coefficients.len().next_power_of_two().ilog2() as usize
    }

    fn cost(&self) -> usize {
        relinearisations(&self.fit.coefficients)
    }
}

/// Key-switches of a polynomial, counted by evaluating it in the clear.
fn relinearisations(coefficients: &[f64]) -> usize {
    let polynomial = Polynomial::real(PolynomialBasis::Chebyshev, coefficients);
    let engine = Clear::new(1, polynomial.depth());
    let zero = engine.fresh(&[Complex64::ZERO], polynomial.depth());
    let _ = zero.and_then(|zero| evaluate(&engine, &zero, &polynomial));
    engine.op_counts().key_switches() as usize
}

/// Reaches from 1 to 9, with the lowest degree that is good enough.
fn starts(target: &Target) -> Vec<Exponential> {
    let scale = target.range * HEADROOM;
    let mut starts = Vec::new();
    for squarings in 1..=13 {
        let factor = (1u64 << squarings) as f64;
        let reach = scale / factor;
        if !(0.9..9.0).contains(&reach) {
            continue;
        }
        let fits = (3..=MAX_DEGREE).map(|degree| minimax(degree, |t| libm::exp(-reach * t)));
        let good = fits.into_iter().find(|fit| fit.error * factor / 2.0 <= EXPONENTIAL_ERROR);
        starts.extend(good.map(|fit| Exponential { squarings, reach, fit }));
    }
    starts
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Move {
    Normalise,
    Square,
    Sharpen(usize),
    Bootstrap,
}

/// A way to get somewhere.
#[derive(Clone, Debug)]
struct Sequence {
    ratio: f64,
    noise: f64,
    cost: usize,
    moves: Vec<Move>,
}

impl Sequence {
    fn beats(&self, other: &Sequence) -> bool {
        self.ratio <= other.ratio && self.noise <= other.noise && self.cost <= other.cost
    }
}

struct FoundSequence {
    bootstraps: usize,
    noise: f64,
    cost: usize,
    steps: Vec<Move>,
}

impl FoundSequence {
    /// Fewest bootstraps, calm enough, cheapest, calmest.
    fn rank(&self, gain: f64) -> (usize, f64, usize, f64) {
        let excess = (libm::sqrt(self.noise) - gain).max(0.0);
        (self.bootstraps, excess, self.cost, self.noise)
    }
}

/// Errors of minimax polynomials near `1/s^2`, by quadratics and ratio.
#[derive(Default)]
struct SharpenErrors(HashMap<(usize, i64), f64>);

impl SharpenErrors {
    /// The error on a range of ratio `r`, rounded up to half a per cent in the ratio.
    fn error(&mut self, quadratics: usize, ratio: f64) -> f64 {
        let step = libm::ceil(libm::log(ratio) / 0.005) as i64;
        *self
            .0
            .entry((quadratics, step))
            .or_insert_with(|| inverse_square(quadratics, libm::exp(step as f64 * 0.005)).error)
    }
}

/// The polynomial of degree `2 quadratics` nearest to `1/s^2` on `[1/ratio, 1]`.
fn inverse_square(quadratics: usize, ratio: f64) -> Fit {
    minimax(2 * quadratics, |t| {
        let s = variable(ratio, t);
        s * s
    })
}

/// `t` in `[-1, 1]` to `s` in `[1/ratio, 1]`.
fn variable(ratio: f64, t: f64) -> f64 {
    let low = 1.0 / ratio;
    ((1.0 - low) * t + 1.0 + low) / 2.0
}

struct Search<'a> {
    target: &'a Target,
    start: &'a Exponential,
    sharpeners: &'a mut SharpenErrors,
}

impl Search<'_> {
    /// The unbeaten sequences with the fewest bootstraps.
    fn run(mut self) -> Vec<FoundSequence> {
        let Some(level) = self.target.top_level.checked_sub(self.start.depth()) else { return Vec::new() };
        let ratio = first_ratio(self.target.classes, self.start.reach);
        let first = Sequence { ratio, noise: 0.0, cost: self.start.cost(), moves: Vec::new() };
        let mut stage = self.stage();
        stage[level][0].push(first);
        let mut loud = Vec::new();
        for bootstraps in 0..8 {
            let (found, next) = self.advance(stage, bootstraps);
            if found.iter().any(|sequence| libm::sqrt(sequence.noise) <= LARGEST_GAIN) {
                return found;
            }
            loud.extend(found);
            stage = next;
        }
        loud
    }

    /// Sequences by level and squarings.
    fn stage(&self) -> Vec<Vec<Vec<Sequence>>> {
        vec![vec![Vec::new(); self.start.squarings + 1]; self.target.top_level + 1]
    }

    /// All moves between one bootstrap and the next; what is found, and where the next bootstrap
    /// leaves off.
    fn advance(
        &mut self,
        mut stage: Vec<Vec<Vec<Sequence>>>,
        bootstraps: usize,
    ) -> (Vec<FoundSequence>, Vec<Vec<Vec<Sequence>>>) {
        let (mut found, mut next) = (Vec::new(), self.stage());
        for level in (0..stage.len()).rev() {
            for squarings in 0..=self.start.squarings {
                for sequence in unbeaten(std::mem::take(&mut stage[level][squarings])) {
                    let done = squarings == self.start.squarings && level >= self.target.end_level;
                    if done && sequence.ratio <= 1.0 + 2.0 * self.target.tolerance {
                        let Sequence { noise, cost, moves, .. } = sequence;
                        found.push(FoundSequence { bootstraps, noise, cost, steps: moves });
                        continue;
                    }
                    for (step, depth, squared) in MOVES {
                        if depth <= level
                            && squarings + squared <= self.start.squarings
                            && let Some(sequence) = self.moved(&sequence, step)
                        {
                            stage[level - depth][squarings + squared].push(sequence);
                        }
                    }
                    next[self.target.top_level][squarings].push(self.bootstrapped(&sequence, squarings));
                }
            }
        }
        (found, next)
    }

    fn moved(&mut self, sequence: &Sequence, step: Move) -> Option<Sequence> {
        let classes = self.target.classes as f64;
        let sums = self.target.classes.next_power_of_two().ilog2() as usize;
        let widened = STEP_MARGIN * STEP_MARGIN;
        let (ratio, cost) = match step {
            Move::Normalise => (normalised(sequence.ratio), 2),
            Move::Square => (classes * sequence.ratio * sequence.ratio * widened, 1 + sums),
            Move::Sharpen(quadratics) => {
                let error = self.sharpeners.error(quadratics, sequence.ratio);
                // A polynomial much better than needed has a leading coefficient of rounding
                // errors.
                if !(1e-6..0.8).contains(&error) {
                    return None;
                }
                (classes * (1.0 + error) / (1.0 - error) * widened, 2 + quadratics + sums)
            }
            Move::Bootstrap => return None,
        };
        (ratio < 1e4).then(|| Sequence {
            ratio,
            cost: sequence.cost + cost,
            moves: appended(sequence, step),
            ..sequence.clone()
        })
    }

    /// An error before `r` more squarings grows `2^r`-fold, and counts against a sum that may be
    /// `1/R` of its largest value.
    fn bootstrapped(&self, sequence: &Sequence, squarings: usize) -> Sequence {
        let gain = libm::ldexp(sequence.ratio, (self.start.squarings - squarings) as i32);
        let sums = self.target.classes.next_power_of_two().ilog2() as usize;
        Sequence {
            ratio: sequence.ratio,
            noise: sequence.noise + gain * gain,
            cost: sequence.cost + sums,
            moves: appended(sequence, Move::Bootstrap),
        }
    }
}

/// The largest sum of `exp(l_k)` over its smallest, `c`, for logits within the reach that sum to
/// zero: an even number of classes at the ends, and one at 0 if their number is odd.
fn first_ratio(classes: usize, reach: f64) -> f64 {
    let (pairs, all) = ((classes / 2 * 2) as f64, classes as f64);
    (pairs * libm::cosh(reach) + all - pairs) / all * MARGIN * MEAN_MARGIN
}

/// Moves with their levels and squarings.
const MOVES: [(Move, usize, usize); 4] =
    [(Move::Normalise, 1, 0), (Move::Square, 1, 1), (Move::Sharpen(1), 2, 1), (Move::Sharpen(3), 3, 1)];

fn appended(sequence: &Sequence, step: Move) -> Vec<Move> {
    let mut moves = sequence.moves.clone();
    moves.push(step);
    moves
}

/// `s (a - s)` with `a = 1 + 1/R` on `[1/R, 1]`: from `1/R` to `a^2/4`.
fn normalised(ratio: f64) -> f64 {
    let a = 1.0 + 1.0 / ratio;
    a * a / 4.0 * ratio
}

/// Drops what another sequence beats, and thins out what is left.
fn unbeaten(mut sequences: Vec<Sequence>) -> Vec<Sequence> {
    sequences.sort_by(|a, b| a.ratio.total_cmp(&b.ratio).then(a.noise.total_cmp(&b.noise)).then(a.cost.cmp(&b.cost)));
    let mut kept: Vec<Sequence> = Vec::new();
    for sequence in sequences {
        if !kept.iter().any(|k| k.beats(&sequence)) {
            kept.push(sequence);
        }
    }
    let stride = kept.len().div_ceil(KEPT).max(1);
    kept.into_iter().step_by(stride).collect()
}

/// One step on the interval `[1/R, 1]`: its constants there, its largest sum there, and its degree
/// in `p`.
struct NormalisedStep {
    step: SoftmaxStep,
    largest: f64,
    degree: i32,
}

/// The constants of a sequence: ratios forward, scales backward.
fn build(target: &Target, start: &Exponential, moves: &[Move]) -> Constants {
    let classes = target.classes as f64;
    let mut ratio = first_ratio(target.classes, start.reach);
    let first_ratio = ratio;
    let mut pieces = Vec::new();
    for step in moves {
        let (piece, next) = match step {
            Move::Bootstrap => continue,
            Move::Normalise => {
                let a = 1.0 + 1.0 / ratio;
                (NormalisedStep { step: SoftmaxStep::Normalise(a), largest: a * a / 4.0, degree: 2 }, normalised(ratio))
            }
            Move::Square => {
                let next = classes * ratio * ratio * STEP_MARGIN * STEP_MARGIN;
                (NormalisedStep { step: SoftmaxStep::Square, largest: STEP_MARGIN, degree: 2 }, next)
            }
            Move::Sharpen(quadratics) => sharpener(*quadratics, ratio, classes),
        };
        ratio = next;
        pieces.push(piece);
    }
    // The largest sum is 1. The last normalisation is flat there, so almost all sums are.
    let mut bounds = vec![1.0];
    for piece in pieces.iter().rev() {
        let after = bounds[bounds.len() - 1];
        bounds.push(libm::pow(after / piece.largest, 1.0 / f64::from(piece.degree)));
    }
    bounds.reverse();
    let steps = pieces.into_iter().zip(&bounds).map(|(piece, &bound)| piece.step.scaled(bound)).collect();
    // The margins are shared out between both ends.
    let largest = classes * first_ratio / libm::sqrt(MARGIN * MEAN_MARGIN);
    let exponential = start.fit.coefficients.iter().map(|c| c * bounds[0] / largest).collect();
    let scale = target.range * HEADROOM;
    Constants { classes: target.classes, range: target.range, scale, error: 0.0, exponential, steps, bounds }
}

/// `s^2 q(s)` near 1 with `q` split into monic quadratics.
fn sharpener(quadratics: usize, ratio: f64, classes: f64) -> (NormalisedStep, f64) {
    let fit = inverse_square(quadratics, ratio);
    let next = classes * (1.0 + fit.error) / (1.0 - fit.error) * STEP_MARGIN * STEP_MARGIN;
    let (factors, leading) = monic_quadratics(&fit.coefficients, ratio);
    let largest = (1.0 + fit.error) / leading * STEP_MARGIN;
    (NormalisedStep { step: SoftmaxStep::Sharpen(factors), largest, degree: 2 + 2 * quadratics as i32 }, next)
}

/// `q = leading * prod (s^2 + b s + g)` for a polynomial of even degree given on `[1/ratio, 1]`,
/// positive there.
fn monic_quadratics(coefficients: &[f64], ratio: f64) -> (Vec<[f64; 2]>, f64) {
    let (roots, leading) = roots(coefficients, ratio);
    // Conjugate roots and neighbouring real ones come in pairs in this order.
    let mut sorted = roots;
    sorted.sort_by(|a, b| a.re.total_cmp(&b.re).then(a.im.total_cmp(&b.im)));
    let mut quadratics = Vec::new();
    while let Some(root) = sorted.pop() {
        let partner = |z: &Complex64| (z - root.conj()).norm();
        let nearest = (0..sorted.len()).min_by(|&a, &b| partner(&sorted[a]).total_cmp(&partner(&sorted[b])));
        let other = nearest.map_or(root, |i| sorted.remove(i));
        quadratics.push([-(root + other).re, (root * other).re]);
    }
    (quadratics, leading)
}

/// The roots in `s` and the leading coefficient (Durand and Kerner's simultaneous iteration, in
/// `t`).
fn roots(coefficients: &[f64], ratio: f64) -> (Vec<Complex64>, f64) {
    let degree = coefficients.len() - 1;
    // T_n leads with 2^(n-1) t^n, and t = (2 s - 1 - 1/R) / (1 - 1/R).
    let leading_in_t = libm::ldexp(coefficients[degree], degree as i32 - 1);
    let slope = 2.0 / (1.0 - 1.0 / ratio);
    let value = |t: Complex64| clenshaw(coefficients, t) / leading_in_t;
    let mut roots: Vec<Complex64> = (0..degree).map(|k| Complex64::new(0.4, 0.9).powu(k as u32) * 1.5).collect();
    for _ in 0..500 {
        for k in 0..degree {
            let others: Complex64 = (0..degree).filter(|&j| j != k).map(|j| roots[k] - roots[j]).product();
            let step = value(roots[k]) / others;
            roots[k] -= step;
        }
    }
    let in_s = roots.into_iter().map(|t| t / slope + (1.0 + 1.0 / ratio) / 2.0).collect();
    (in_s, leading_in_t * libm::pow(slope, degree as f64))
}

/// [`chebyshev`] at a complex point.
fn clenshaw(coefficients: &[f64], t: Complex64) -> Complex64 {
    if t.im == 0.0 {
        return Complex64::new(chebyshev(coefficients, t.re), 0.0);
    }
    let (mut b1, mut b2) = (Complex64::ZERO, Complex64::ZERO);
    for c in coefficients.iter().skip(1).rev() {
        (b1, b2) = (2.0 * t * b1 - b2 + c, b1);
    }
    t * b1 - b2 + coefficients[0]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// 1e-4 without noise and 3e-4 with bootstraps good to 2^-22, with margin, for every range,
    /// with row weights or without; two bootstraps at the smallest range.
    #[test]
    fn constants_meet_their_targets() {
        for range in [32.0, 128.0, 512.0] {
            for classes in [2, 3, 5, 7, 8, 10, 12, 16] {
                for level_plan in [LevelPlan::lowest(), LevelPlan::weighted()] {
                    let constants = Constants::for_plan(classes, range, level_plan).unwrap();
                    assert!(constants.error < 5e-5, "{classes}: {:e}", constants.error);
                    let schedule = Schedule::new(&constants, 13, level_plan.probabilities()).unwrap();
                    // The measured deviation is 2^-25.4; logits of the widest range lose most.
                    let sigma = libm::ldexp(1.0, if range > 128.0 { -24 } else { -22 });
                    let mut sampler = Sampler::new(classes, range, 3);
                    let noisy = sampler.max_error_with_noise(2000, &constants, &schedule, sigma);
                    assert!(noisy < 1.5e-4, "{classes} on {range}: {noisy:e}");
                    assert!(range > 32.0 || schedule.cuts().len() == 1, "{classes}");
                }
            }
        }
    }

    /// One bootstrap: that of the logits.
    #[test]
    fn two_classes_take_one_polynomial() {
        let constants = two_classes(16.0).unwrap();
        assert_eq!(Constants::built_in(2, 16.0).unwrap(), constants);
        assert!(constants.error < 5e-5, "{:e}", constants.error);
        let schedule = Schedule::new(&constants, 13, LevelPlan::DEPTH).unwrap();
        assert!(schedule.cuts().is_empty() && schedule.levels_left() == LevelPlan::DEPTH);
        // Beyond the range, within the scale, it is still a softmax.
        let worst = Sampler::new(2, constants.scale, 2).max_error(2000, |row| constants.evaluate(row));
        assert!(worst < 5e-5, "{worst:e}");
    }

    /// The file is what the search finds.
    #[test]
    fn built_in_constants_can_be_found_again() {
        for (classes, range) in [(3, 32.0), (10, 128.0)] {
            assert_eq!(best(classes, range).unwrap(), Constants::built_in(classes, range).unwrap());
        }
    }

    #[test]
    fn quadratics_multiply_to_the_polynomial() {
        for ratio in [3.0, 20.0, 80.0] {
            let fit = inverse_square(3, ratio);
            let (quadratics, leading) = monic_quadratics(&fit.coefficients, ratio);
            for i in 0..=20 {
                let t = f64::from(i) / 10.0 - 1.0;
                let s = variable(ratio, t);
                let product: f64 = quadratics.iter().map(|[b, g]| s * s + b * s + g).product();
                let (a, b) = (leading * product, chebyshev(&fit.coefficients, t));
                assert!((a / b - 1.0).abs() < 1e-9, "{ratio} {s}: {a} {b}");
            }
        }
    }

    #[test]
    fn impossible_targets_are_errors() {
        assert!(search(&Target::new(1, 128.0)).is_err());
        assert!(search(&Target::new(10, f64::NAN)).is_err());
        assert!(search(&Target { top_level: 3, ..Target::new(10, 128.0) }).is_err());
        assert!(search(&Target { end_level: 14, ..Target::new(10, 128.0) }).is_err());
    }
}
