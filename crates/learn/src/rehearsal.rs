//! A training that is repeated on another engine, under the verdicts that it was given.
//!
//! On plain numbers with the noise of every operation ([`Noise`]) a repetition shows how far the
//! weights of an encrypted training are from those of the same circuit without noise. Its circuit,
//! its rows and its verdicts are those of the training, so the noise grows as it did there,
//! whatever the learning rate, the momentum, L2, row weights and widened ranges do to it. The
//! approximation of the softmax is part of both, because it does not depend on the secret key.

use crate::agreement::{Agreement, centre_over_classes, initial_weights};
use crate::driver::{Host, StepRequest, drive};
use crate::session::{Action, CheckRequest};
use crate::trainer::{ModelState, Trainer};
use crate::{CachedBatch, Circuit, EncryptedPiece, Error, Matrix, Result, Session, Verdict, batches, packing};
use hetal_circuits::clear::Noise;
use hetal_circuits::{Clear, Complex64, Engine};
use rayon::prelude::*;
use std::ops::ControlFlow;

/// The slots of a piece as they are encrypted.
pub type PieceSlots = EncryptedPiece<Vec<Complex64>>;

/// A training that has ended, as it can be repeated.
pub struct Rehearsal<'a> {
    /// Its circuit.
    pub circuit: &'a Circuit,
    /// Its hyper-parameters.
    pub agreement: &'a Agreement,
    /// The rows of all batches.
    pub pieces: &'a [PieceSlots],
    /// The verdicts that it was given, in order.
    pub verdicts: &'a [Verdict],
    /// The accepted check whose weights were taken, counted from 1.
    pub check: usize,
}

/// What the trials of a training on plain numbers say about the 2-norm of the noise of its weights.
/// The mean of the classes is taken out of the weights.
///
/// The noise is near a Gaussian vector of unknown covariance: the sum of many small errors that the
/// remaining steps map linearly. The constants are such that its norm exceeds the bound with
/// probability below 2^-15, even if all of it lies in one direction, where norms vary most
/// (`docs/security/releases.md`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseEstimate {
    /// The root of the mean square of the norms.
    pub typical: f64,
    /// The largest norm.
    pub largest: f64,
    /// The standard deviation of the squares of the norms, relative to their mean: the square root
    /// of 2 over the number of directions, if all have the same noise.
    pub spread: f64,
}

impl NoiseEstimate {
    /// Trials of a training.
    pub const TRIALS: usize = 16;
    /// The share of the bound that covers what the simulated noise does not model.
    const MARGIN: f64 = 1.5;
    /// How many times the spread is added to the typical norm.
    const SPREADS: f64 = 3.0;
    /// A larger spread is not that of a Gaussian vector: the noise grew by chance.
    const LARGEST_SPREAD: f64 = 2.0;

    /// An estimate from the norms of trials.
    pub fn new(norms: &[f64]) -> Result<Self> {
        let count = norms.len() as f64;
        let mean = norms.iter().map(|norm| norm * norm).sum::<f64>() / count;
        let variance = norms.iter().map(|norm| (norm * norm - mean) * (norm * norm - mean)).sum::<f64>() / count;
        let (typical, spread) = (libm::sqrt(mean), libm::sqrt(variance) / mean);
        let largest = norms.iter().copied().fold(0.0, f64::max);
        // The comparisons also refuse what is not a number, and no trials.
        if typical > 0.0 && typical.is_finite() && spread <= Self::LARGEST_SPREAD {
            return Ok(Self { typical, largest, spread });
        }
        Err(Error::UnstableNoise { typical, largest })
    }

    /// The bound on the 2-norm of the noise of the weights.
    pub fn bound(&self) -> f64 {
        Self::MARGIN * self.typical * (1.0 + Self::SPREADS * self.spread)
    }
}

impl Rehearsal<'_> {
    /// Estimates the noise of the weights by trials with the noise of a parameter set of
    /// `top_level` levels. Each trial calls `done` when it ends, as does the one without noise.
    pub fn estimate(&self, top_level: usize, noise: Noise, done: &(dyn Fn() + Sync)) -> Result<NoiseEstimate> {
        let trial = |seed: usize| -> Result<Matrix> {
            let noise = if seed == 0 { Noise::default() } else { Noise { seed: seed as u64, ..noise } };
            let weights = self.weights(top_level, noise);
            done();
            weights
        };
        let weights: Vec<Matrix> = (0..=NoiseEstimate::TRIALS).into_par_iter().map(trial).collect::<Result<_>>()?;
        let Some((exact, noisy)) = weights.split_first() else { return Err(Error::NoRows) };
        let norms: Vec<f64> = noisy.iter().map(|weights| distance(weights, exact)).collect::<Result<_>>()?;
        NoiseEstimate::new(&norms)
    }

    /// The weights of the training on plain numbers with some noise, centred over the classes.
    pub fn weights(&self, top_level: usize, noise: Noise) -> Result<Matrix> {
        let engine = Clear::with_noise(self.circuit.geometry().slots(), top_level, noise);
        let parts = self.run(&engine, &|values, level| Ok::<_, Error>(engine.fresh(values, level)?))?;
        let slots: Vec<&[Complex64]> = parts.iter().map(|part| engine.values(part)).collect();
        self.unpacked(&slots)
    }

    /// The weights in the slots of their parts, centred over the classes.
    pub fn unpacked(&self, parts: &[impl AsRef<[Complex64]>]) -> Result<Matrix> {
        let mut weights = packing::unpack_weights(self.circuit.geometry(), parts)?;
        centre_over_classes(&mut weights);
        Ok(weights)
    }

    /// Repeats the training on an engine. Returns the parts of the weights.
    pub fn run<E: Engine, X: From<Error>>(
        &self,
        engine: &E,
        encrypt: &dyn Fn(&[Complex64], usize) -> std::result::Result<E::Ciphertext, X>,
    ) -> std::result::Result<Vec<E::Ciphertext>, X> {
        let (g, plan) = (self.circuit.geometry(), self.circuit.level_plan());
        let piece = |piece: &PieceSlots| -> std::result::Result<CachedBatch<E::Ciphertext>, X> {
            let fresh = |block: &Vec<Complex64>| encrypt(block, plan.fresh_features());
            Ok(CachedBatch::Raw(EncryptedPiece {
                features: piece.features.iter().map(fresh).collect::<std::result::Result<_, X>>()?,
                labels: encrypt(&piece.labels, plan.labels())?,
                row_weights: piece.row_weights.as_ref().map(|w| encrypt(w, plan.row_weights())).transpose()?,
                rows: piece.rows,
            }))
        };
        let pieces: Vec<_> = self.pieces.iter().map(piece).collect::<std::result::Result<_, X>>()?;
        let initial = packing::weights(g, &initial_weights(g.classes(), g.features(), self.agreement.seed))?;
        let initial =
            initial.iter().map(|part| encrypt(part, plan.weights())).collect::<std::result::Result<_, X>>()?;
        let mut session = Session::new(self.agreement.clone(), self.circuit.batches(pieces.len()), initial)?;
        let mut host = Repetition { of: self, engine, pieces, trainer: None, verdict: None, weights: None };
        drive(&mut session, &mut host)?;
        host.weights.ok_or(Error::NoSuchCheck { check: self.check }.into())
    }
}

/// The 2-norm of the difference of two matrices of one shape.
pub fn distance(a: &Matrix, b: &Matrix) -> Result<f64> {
    a.require("a classifier", b.rows(), b.columns())?;
    Ok(libm::sqrt(a.values().iter().zip(b.values()).map(|(a, b)| (a - b) * (a - b)).sum()))
}

/// The host of a repeated training.
struct Repetition<'a, E: Engine> {
    of: &'a Rehearsal<'a>,
    engine: &'a E,
    pieces: Vec<CachedBatch<E::Ciphertext>>,
    /// The circuit of the last range.
    trainer: Option<(f64, Trainer<E>)>,
    /// The verdict on the open check.
    verdict: Option<Verdict>,
    weights: Option<Vec<E::Ciphertext>>,
}

impl<E: Engine> Repetition<'_, E> {
    /// The verdict on the next check. No check is open, because every verdict is taken at once.
    fn verdict_ahead(&self, session: &Session<E::Ciphertext>) -> Result<Verdict> {
        self.of.verdicts.get(session.rounds()).copied().ok_or(Error::NoSuchCheck { check: self.of.check })
    }

    fn trainer(&mut self, range: f64) -> Result<&Trainer<E>> {
        let trainer = match self.trainer.take().filter(|(of, _)| *of == range) {
            Some((_, trainer)) => trainer,
            None => self.of.circuit.trainer(self.engine, range)?,
        };
        Ok(&self.trainer.insert((range, trainer)).1)
    }
}

impl<E: Engine> Host for Repetition<'_, E> {
    type Ciphertext = E::Ciphertext;
    type Error = Error;
    type Interruption = ();

    fn interruption(&mut self) -> Result<Option<()>> {
        Ok(self.weights.is_some().then_some(()))
    }

    fn step(
        &mut self,
        session: &Session<E::Ciphertext>,
        StepRequest { batch, size, range }: StepRequest,
    ) -> Result<ModelState<E::Ciphertext>> {
        // Iterations that were repeated left no trace, and their logits may have left the range.
        if matches!(self.verdict_ahead(session)?, Verdict::LowerRate | Verdict::WidenRange) {
            return Ok(session.model().clone());
        }
        self.trainer(range)?;
        let Some((_, trainer)) = &self.trainer else { return Err(Error::NoRows) };
        let g = self.of.circuit.geometry();
        let pieces = batches::pieces_of(g, self.of.agreement.batch, batch, self.pieces.len());
        batches::step(self.engine, trainer, session.model(), &self.pieces[..], pieces, size, &mut |_| {})
    }

    fn refresh(&mut self, session: &Session<E::Ciphertext>, range: f64) -> Result<ModelState<E::Ciphertext>> {
        let engine = self.engine;
        self.trainer(range)?.refresh(engine, session.model())
    }

    fn advanced(&mut self, _: &Session<E::Ciphertext>, _: Action) -> Result<()> {
        Ok(())
    }

    fn validate(&mut self, session: &Session<E::Ciphertext>, check: CheckRequest) -> Result<ControlFlow<()>> {
        let verdict = self.verdict_ahead(session)?;
        if matches!(verdict, Verdict::Continue | Verdict::Stop) && check.number == self.of.check {
            self.weights = Some(session.weights().to_vec());
            return Ok(ControlFlow::Break(()));
        }
        self.verdict = Some(verdict);
        Ok(ControlFlow::Continue(()))
    }

    fn opened(&mut self, _: &Session<E::Ciphertext>, _: CheckRequest) -> Result<()> {
        Ok(())
    }

    fn verdict(&mut self, _: &Session<E::Ciphertext>) -> Result<Option<Verdict>> {
        Ok(self.verdict.take())
    }

    fn await_verdict(&mut self, _: &Session<E::Ciphertext>) -> Result<ControlFlow<(), Verdict>> {
        Ok(ControlFlow::Break(()))
    }

    fn judged(&mut self, _: &Session<E::Ciphertext>) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::AgreementLimits;
    use crate::nesterov::StepSize;
    use crate::reference::ReferenceModel;
    use crate::softmax;
    use crate::split_mix::SplitMix64;

    const NOISE: Noise = Noise { encryption: 1e-9, operation: 1e-9, bootstrap: 1e-7, rounding: 0.0, seed: 0 };
    const TOP: usize = 13;

    /// Two batches of rows of length 2 at most, around a centre for each class.
    fn rows(features: usize, classes: usize) -> (Matrix, Vec<usize>) {
        let mut random = SplitMix64(5);
        let centres = Matrix::from_fn(classes, features, |_, _| random.next_signed());
        let labels: Vec<usize> = (0..60).map(|i| (i * 7 + i / 4) % classes).collect();
        let size = 1.0 / libm::sqrt(features as f64);
        (Matrix::from_fn(60, features, |i, h| size * (centres[(labels[i], h)] + random.next_signed())), labels)
    }

    struct Training {
        circuit: Circuit,
        agreement: Agreement,
        pieces: Vec<PieceSlots>,
    }

    impl Training {
        fn new(alpha: f64) -> Self {
            let (features, classes, batch) = (8, 3, 32);
            let agreement = Agreement { batch, alpha, rate: 2.0, ..AgreementLimits::default().defaults };
            let circuit = Circuit::new(512, batch, features, classes, 32.0).unwrap();
            let (x, labels) = rows(features, classes);
            let piece = |r: std::ops::Range<usize>| EncryptedPiece {
                features: packing::features(circuit.geometry(), &x.slice(r.clone())).unwrap(),
                labels: packing::labels(circuit.geometry(), &labels[r.clone()]).unwrap(),
                row_weights: None,
                rows: r.len(),
            };
            let pieces = circuit.pieces(60).into_iter().map(piece).collect();
            Self { circuit, agreement, pieces }
        }

        fn rehearsal<'a>(&'a self, verdicts: &'a [Verdict], check: usize) -> Rehearsal<'a> {
            let Self { circuit, agreement, pieces } = self;
            Rehearsal { circuit, agreement, pieces, verdicts, check }
        }
    }

    /// Lowered rates and widened ranges are those of the training, checks come where they came,
    /// and the check is the one asked for.
    #[test]
    fn a_repetition_follows_the_verdicts() {
        use Verdict::{Continue, LowerRate, WidenRange};
        // Checks at every iteration, at an epoch of two as in earlier versions, and across epochs.
        for check_every in [1, 0, 3] {
            let mut training = Training::new(0.01);
            training.agreement.check_every = check_every;
            let verdicts = [Continue, LowerRate, Continue, WidenRange, Continue, Continue];
            let repeated = training.rehearsal(&verdicts, 3).weights(TOP, Noise::default()).unwrap();
            let (x, labels) = rows(8, 3);
            let mut exact = ReferenceModel::new(initial_weights(3, 8, 0), training.agreement.momentum);
            let mut batches = [0..32, 32..60].into_iter().cycle();
            for rate in [2.0, 1.0, 1.0] {
                for r in batches.by_ref().take(if check_every == 0 { 2 } else { check_every }) {
                    let size = StepSize { rate, alpha: 0.01 };
                    exact.step(&x.slice(r.clone()), &labels[r], size, softmax::exact).unwrap();
                }
                exact.prepare_for_judgement();
            }
            let mut exact = exact.weights().clone();
            centre_over_classes(&mut exact);
            let difference = repeated.max_difference(&exact);
            assert!(difference < 1e-4 * exact.max_magnitude(), "{check_every}: {difference}");
            let early = training.rehearsal(&verdicts, 5).weights(TOP, Noise::default());
            assert_eq!(early, Err(Error::NoSuchCheck { check: 5 }));
        }
    }

    /// The bound holds for other noise of the same size, and fails for bootstraps that are 32 times
    /// as loud.
    #[test]
    fn the_bound_holds_and_notices_loud_bootstraps() {
        let training = Training::new(0.0);
        let verdicts = [Verdict::Continue; 12];
        let rehearsal = training.rehearsal(&verdicts, 12);
        let estimate = rehearsal.estimate(TOP, NOISE, &|| ()).unwrap();
        let exact = rehearsal.weights(TOP, Noise::default()).unwrap();
        let norm = |noise| distance(&rehearsal.weights(TOP, noise).unwrap(), &exact).unwrap();
        for seed in 100..110 {
            let quiet = norm(Noise { seed, ..NOISE });
            assert!(quiet < estimate.bound() && quiet > estimate.bound() / 16.0, "{seed}: {quiet:e} {estimate:?}");
            let loud = norm(Noise { seed, bootstrap: 32.0 * NOISE.bootstrap, ..NOISE });
            assert!(loud > estimate.bound(), "{seed}: {loud:e} {estimate:?}");
        }
    }

    #[test]
    fn noise_that_grows_by_chance_gives_no_bound() {
        assert!(NoiseEstimate::new(&[1.0; 16]).unwrap().bound() == 1.5);
        let mut norms = [1.0; 16];
        norms[7] = 20.0;
        assert!(matches!(NoiseEstimate::new(&norms), Err(Error::UnstableNoise { .. })));
        norms[7] = f64::NAN;
        assert!(NoiseEstimate::new(&norms).is_err() && NoiseEstimate::new(&[]).is_err());
        // Sixteen numbers of a normal distribution: noise in one direction has a bound.
        let one = [0.06, 0.19, 0.32, 0.45, 0.58, 0.73, 0.89, 1.08, 1.32, 1.68, 0.12, 0.25, 0.38, 0.51, 0.66, 2.2];
        let estimate = NoiseEstimate::new(&one).unwrap();
        assert!((4.0..9.0).contains(&estimate.bound()), "{estimate:?}");
    }
}
