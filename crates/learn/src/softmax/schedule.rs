//! Where the softmax is bootstrapped.

use super::Constants;
use super::measure::centre;
use crate::{Error, Result};

/// Before which steps of a softmax its values are bootstrapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    cuts: Vec<usize>,
    levels_left: usize,
}

impl Schedule {
    /// The schedule with the fewest bootstraps, and among those the one whose bootstraps disturb
    /// the result least, for arguments of level `top` (bootstraps go back to it) and a result of
    /// level `end` or more.
    pub fn new(constants: &Constants, top: usize, end: usize) -> Result<Self> {
        let depths: Vec<usize> = constants.steps.iter().map(|s| s.depth()).collect();
        let first = top.checked_sub(constants.exponential_depth());
        let first = first.ok_or(too_deep("the exponential", constants.exponential_depth(), top))?;
        let deepest = depths.iter().copied().max().unwrap_or(0);
        if deepest > top || end > top {
            return Err(too_deep("a step of the softmax", deepest.max(end), top));
        }
        let search = Search { depths: &depths, top, end };
        let mut after = vec![None; depths.len()];
        for (cut, gain) in gains(constants).into_iter().enumerate().rev() {
            after[cut] = search.best(cut, top, &after).map(|rest| rest.preceded_by(cut, gain));
        }
        let best = search.best(0, first, &after).ok_or(too_deep("the softmax's last step", deepest + end, top))?;
        let last = best.cuts.last().copied();
        let used: usize = depths[last.unwrap_or(0)..].iter().sum();
        Ok(Self { levels_left: last.map_or(first, |_| top) - used, cuts: best.cuts })
    }

    /// The steps that a bootstrap comes before, in ascending order.
    pub fn cuts(&self) -> &[usize] {
        &self.cuts
    }

    /// The level of the result.
    pub fn levels_left(&self) -> usize {
        self.levels_left
    }
}

/// Bootstraps of the steps from some step on, and their noise power.
#[derive(Clone, PartialEq, PartialOrd)]
struct Tail {
    count: usize,
    power: f64,
    cuts: Vec<usize>,
}

impl Tail {
    fn preceded_by(mut self, cut: usize, gain: f64) -> Self {
        self.cuts.insert(0, cut);
        Self { count: self.count + 1, power: self.power + gain * gain, cuts: self.cuts }
    }
}

struct Search<'a> {
    depths: &'a [usize],
    top: usize,
    end: usize,
}

impl Search<'_> {
    /// The best way to do the steps from `from` on, starting at `level` without a bootstrap, where
    /// `after[cut]` is the best way that bootstraps before `cut` first.
    fn best(&self, from: usize, level: usize, after: &[Option<Tail>]) -> Option<Tail> {
        let needs = self.depths[from..].iter().sum::<usize>() + self.end;
        if needs <= level {
            return Some(Tail { count: 0, power: 0.0, cuts: Vec::new() });
        }
        let reached = |cut: &usize| self.depths[from..*cut].iter().sum::<usize>() <= level;
        // A bootstrap right at the start of a fresh stretch would change nothing.
        let first = if level == self.top { from + 1 } else { from };
        let tails = (first..self.depths.len()).take_while(reached).filter_map(|cut| after[cut].clone());
        tails.min_by(|a, b| (a.count, a.power).partial_cmp(&(b.count, b.power)).unwrap_or(std::cmp::Ordering::Equal))
    }
}

/// How much a unit error of a bootstrap before each step changes a probability at worst, the
/// bootstrap's bound included: found by disturbing sample rows.
pub(crate) fn gains(constants: &Constants) -> Vec<f64> {
    const DISTURBANCE: f64 = 1e-7;
    let rows = sample_rows(constants.classes, constants.range);
    let clean: Vec<Vec<f64>> = rows.iter().map(|row| evaluated(constants, row, |_, _| {})).collect();
    let gain = |step: usize| {
        let bound = libm::ldexp(1.0, constants.log_bound(step) as i32);
        let worst = rows.iter().zip(&clean).enumerate().map(|(n, (row, clean))| {
            let moved = evaluated(constants, row, |j, p| {
                if j == step {
                    p.iter_mut().enumerate().for_each(|(k, p)| *p += DISTURBANCE * sign(n, k));
                }
            });
            clean.iter().zip(&moved).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
        });
        worst.fold(0.0, f64::max) * bound / DISTURBANCE
    };
    (0..constants.steps.len()).map(gain).collect()
}

fn evaluated(constants: &Constants, row: &[f64], disturb: impl FnMut(usize, &mut [f64])) -> Vec<f64> {
    let mut row = row.to_vec();
    constants.evaluate_disturbed(&mut row, disturb);
    row
}

/// Near ties of every number of classes, near the top, the middle and the bottom of the range.
fn sample_rows(classes: usize, range: f64) -> Vec<Vec<f64>> {
    let mut rows = Vec::new();
    for top in [range, 0.0, -range * 0.9] {
        for tied in [1, 2, classes.div_ceil(2), classes] {
            for spread in [0.0, 0.7, 2.0] {
                let value = |k: usize| if k < tied { top - spread * (k % 3) as f64 / 2.0 } else { -range };
                let mut row: Vec<f64> = (0..classes).map(value).collect();
                centre(&mut row, range);
                rows.push(row);
            }
        }
    }
    rows
}

/// A fixed pattern of signs.
fn sign(row: usize, class: usize) -> f64 {
    let mixed = (row as u64 * 31 + class as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if mixed >> 63 == 0 { 1.0 } else { -1.0 }
}

fn too_deep(operation: &'static str, needs: usize, has: usize) -> Error {
    Error::TooDeep { operation, needs, has }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Levels before each bootstrap and at the end never go below what is needed.
    fn check(constants: &Constants, top: usize, end: usize, schedule: &Schedule) {
        let mut level = top - constants.exponential_depth();
        for (j, step) in constants.steps.iter().enumerate() {
            if schedule.cuts().contains(&j) {
                level = top;
            }
            level = level.checked_sub(step.depth()).unwrap();
        }
        assert!(level >= end && level == schedule.levels_left());
    }

    #[test]
    fn two_cuts_for_every_shape_of_the_paper() {
        for classes in [3, 5, 7, 10] {
            let constants = Constants::built_in(classes, 128.0).unwrap();
            let schedule = Schedule::new(&constants, 13, 7).unwrap();
            assert_eq!(schedule.cuts().len(), 2);
            check(&constants, 13, 7, &schedule);
        }
    }

    #[test]
    fn any_number_of_levels_gets_a_schedule_or_an_error() {
        let constants = Constants::built_in(10, 128.0).unwrap();
        for top in (0..14).chain([29, 39]) {
            for end in [0, top / 2, top] {
                match Schedule::new(&constants, top, end) {
                    Ok(schedule) => check(&constants, top, end, &schedule),
                    Err(error) => assert!(matches!(error, Error::TooDeep { .. }) && (top < 4 || end == top)),
                }
            }
        }
        assert!(Schedule::new(&constants, constants.depth(), 0).unwrap().cuts().is_empty());
    }
}
