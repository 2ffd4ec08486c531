//! Trainings whose noise is looked at, and their verdicts.

use crate::bench::tables;
use crate::{Error, Result};
use hetal_client::TrainingData;
use hetal_learn::agreement::initial_weights;
use hetal_learn::judge::{first_range, wider};
use hetal_learn::nesterov::StepSize;
use hetal_learn::reference::{self, ReferenceModel};
use hetal_learn::rehearsal::{PieceSlots, Rehearsal};
use hetal_learn::split_mix::SplitMix64;
use hetal_learn::{
    Agreement, AgreementLimits, Circuit, EncryptedPiece, Judge, LabelledMatrix, LevelPlan, Matrix, Verdict, packing,
};
use std::ops::Range;
use std::path::Path;

/// The most checks that a client has repeated.
const REPEATS: usize = 6;
/// The first of the splits of a table that its defaults were not chosen on.
const SPLIT: u64 = 11;

/// A training to look at, on normalised rows.
pub(super) struct Case {
    pub name: String,
    pub train: LabelledMatrix,
    pub validation: LabelledMatrix,
    pub test: Option<LabelledMatrix>,
    pub row_weights: Option<Vec<f64>>,
    pub agreement: Agreement,
}

/// The verdicts of a training and the accepted check whose weights are looked at.
pub(super) struct History {
    pub verdicts: Vec<Verdict>,
    pub check: usize,
}

impl History {
    /// The verdicts as letters: continue, stop, lower, widen.
    pub fn text(&self) -> String {
        let letter = |verdict: &Verdict| match verdict {
            Verdict::Continue => 'c',
            Verdict::Stop => 's',
            Verdict::LowerRate => 'l',
            Verdict::WidenRange => 'w',
        };
        self.verdicts.iter().map(letter).collect()
    }
}

/// The circuit of a case and its rows in slots.
pub(super) struct Prepared {
    pub circuit: Circuit,
    pieces: Vec<PieceSlots>,
}

impl Prepared {
    pub fn rehearsal<'a>(&'a self, case: &'a Case, history: &'a History) -> Rehearsal<'a> {
        let (circuit, pieces) = (&self.circuit, &self.pieces[..]);
        Rehearsal { circuit, agreement: &case.agreement, pieces, verdicts: &history.verdicts, check: history.check }
    }
}

impl Case {
    /// A small table with the default settings.
    pub fn of_table(folder: &Path, name: &str) -> Result<Self> {
        let (data, test) = tables::table_data(folder, name, SPLIT)?;
        Self::of_data(name.to_owned(), data, test)
    }

    /// A folder of features with the default settings.
    pub fn of_folder(folder: &Path) -> Result<Self> {
        let (data, test) = tables::folder_data(folder)?;
        let name = folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Self::of_data(name, data, test)
    }

    fn of_data(name: String, data: TrainingData, test: LabelledMatrix) -> Result<Self> {
        let agreement = tables::agreement(&data)?;
        let range = AgreementLimits::default().defaults.range;
        let agreement = Agreement { range, ..agreement }.for_classes(data.classes.len());
        let (train, validation) = (data.training, data.validation);
        Ok(Self { name, train, validation, test: Some(test), row_weights: data.row_weights, agreement })
    }

    /// A training on random rows. The number decides shape, rate, length of rows, L2 and weights.
    pub fn random(slots: usize, number: usize) -> Result<Self> {
        const SMALL: [(usize, usize, usize); 3] = [(32, 9, 3), (48, 12, 2), (64, 6, 5)];
        const LARGE: [(usize, usize, usize); 3] = [(512, 768, 3), (256, 196, 2), (512, 64, 10)];
        let (batch, features, classes) = if slots < 1 << 15 { SMALL } else { LARGE }[number % 3];
        let pick = |values: [f64; 4], every: usize| values[number / every % 4];
        let (norm, rate) = (pick([10.0, 4.0, 30.0, 10.0], 3), pick([0.5, 2.0, 0.125, 1.0], 1));
        let alpha = if number % 5 == 3 { 1.0 / 256.0 } else { 0.0 };
        let weighted = number % 7 == 5;
        let mut random = SplitMix64(number as u64);
        let rows = batch * (1 + number % 2);
        let train = clusters(&mut random, (rows, features, classes), norm, number)?;
        let validation = clusters(&mut random, (rows.min(200), features, classes), norm, number)?;
        let row_weights = weighted.then(|| (0..rows).map(|i| [0.5, 1.5][i % 2]).collect());
        let iterations = [16, 32, 96][number / 2 % 3];
        let max_epochs = iterations / (1 + number % 2);
        let range = first_range(32.0, classes, weighted);
        let defaults = AgreementLimits::default().defaults;
        let agreement = Agreement { batch, rate, alpha, weighted, max_epochs, range, patience: max_epochs, ..defaults };
        Ok(Self { name: format!("random {number}"), train, validation, test: None, row_weights, agreement })
    }

    /// The iterations up to the check of a history.
    pub fn iterations(&self, history: &History) -> Result<usize> {
        Ok(self.agreement.iterations_until(history.check, self.batches()?.len()))
    }

    fn batches(&self) -> Result<Vec<Range<usize>>> {
        Ok(self.train.batches(self.agreement.batch)?)
    }

    /// The verdicts that a client would give, found without encryption.
    pub fn history(&self) -> Result<History> {
        let mut training = Plain::new(self);
        let judge = Judge::new(self.agreement.patience, self.agreement.range, REPEATS);
        let mut judge = if self.train == self.validation { judge.until_settled() } else { judge };
        let mut verdicts = Vec::new();
        while verdicts.last() != Some(&Verdict::Stop) {
            let start = training.clone();
            training.until_check(self, hetal_learn::softmax::exact)?;
            let logits = reference::logits(self.validation.features(), training.model.weights())?;
            let verdict = judge.judge(&logits, self.validation.labels())?.verdict;
            training.apply(self, verdict, start);
            verdicts.push(verdict);
            if training.accepted == self.agreement.checks(self.batches()?.len()) {
                break;
            }
        }
        // Random rows soon have their best check. Their last weights have more noise.
        let last = self.test.is_none().then_some(training.accepted);
        let check = last.or(judge.best_check()).filter(|check| *check > 0).ok_or(Error::NothingLearned)?;
        Ok(History { verdicts, check })
    }

    /// The weights of a training without encryption, with any softmax, centred over the classes.
    pub fn reference(&self, history: &History, softmax: impl Fn(&mut [f64]) + Copy) -> Result<Matrix> {
        let mut training = Plain::new(self);
        for &verdict in &history.verdicts {
            let start = training.clone();
            training.until_check(self, softmax)?;
            training.apply(self, verdict, start);
            if training.accepted == history.check {
                break;
            }
        }
        let mut weights = training.model.weights().clone();
        hetal_learn::agreement::centre_over_classes(&mut weights);
        Ok(weights)
    }

    /// The circuit and the rows in slots.
    pub fn prepared(&self, slots: usize) -> Result<Prepared> {
        let Agreement { batch, range, weighted, .. } = self.agreement;
        let (features, classes) = (self.train.features().columns(), self.train.classes());
        let circuit = Circuit::with_plan(slots, batch, features, classes, range, LevelPlan::of(weighted))?;
        let g = circuit.geometry();
        let piece = |rows: Range<usize>| -> Result<PieceSlots> {
            let weights = self.row_weights.as_ref().map(|weights| &weights[rows.clone()]);
            let labels = &self.train.labels()[rows.clone()];
            Ok(EncryptedPiece {
                features: packing::features(g, &self.train.features().slice(rows.clone()))?,
                labels: packing::weighted_labels(g, labels, weights)?,
                row_weights: weights.map(|weights| packing::row_weights(g, weights)).transpose()?,
                rows: rows.len(),
            })
        };
        let pieces = circuit.pieces(self.train.rows()).into_iter().map(piece).collect::<Result<_>>()?;
        Ok(Prepared { circuit, pieces })
    }
}

/// A training without encryption.
#[derive(Clone)]
struct Plain {
    model: ReferenceModel,
    rate: f64,
    range: f64,
    accepted: usize,
    iteration: usize,
}

impl Plain {
    fn new(case: &Case) -> Self {
        let initial = initial_weights(case.train.classes(), case.train.features().columns(), case.agreement.seed);
        let model = ReferenceModel::new(initial, case.agreement.momentum);
        Self { model, rate: case.agreement.rate, range: case.agreement.range, accepted: 0, iteration: 0 }
    }

    /// The iterations up to the next check.
    fn until_check(&mut self, case: &Case, softmax: impl Fn(&mut [f64]) + Copy) -> Result<()> {
        let size = StepSize { rate: self.rate, alpha: case.agreement.alpha };
        let batches = case.batches()?;
        while self.iteration < case.agreement.iterations_until(self.accepted + 1, batches.len()) {
            let rows = batches[self.iteration % batches.len()].clone();
            let weights = case.row_weights.as_ref().map(|weights| &weights[rows.clone()]);
            let (x, labels) = (case.train.features().slice(rows.clone()), &case.train.labels()[rows]);
            self.model.weighted_step(&x, labels, weights, size, softmax)?;
            self.iteration += 1;
        }
        self.model.prepare_for_judgement();
        Ok(())
    }

    fn apply(&mut self, case: &Case, verdict: Verdict, start: Self) {
        match verdict {
            Verdict::Continue | Verdict::Stop => self.accepted += 1,
            Verdict::LowerRate => *self = Self { rate: start.rate * case.agreement.lowering, ..start },
            Verdict::WidenRange => *self = Self { range: wider(start.range).unwrap_or(start.range), ..start },
        }
    }
}

/// Random rows around one centre for each class; the longest has length `norm`. The centres follow
/// from the number.
fn clusters(
    random: &mut SplitMix64,
    (rows, features, classes): (usize, usize, usize),
    norm: f64,
    number: usize,
) -> Result<LabelledMatrix> {
    let mut of_centres = SplitMix64(!(number as u64));
    let centres = Matrix::from_fn(classes, features, |_, _| of_centres.next_signed());
    let labels: Vec<usize> = (0..rows).map(|i| (i * 7 + i / 3) % classes).collect();
    // Columns of different scales have curvatures of different size.
    let scale = |h: usize| (-((h % 5) as f64)).exp2();
    let raw = Matrix::from_fn(rows, features, |i, h| scale(h) * (centres[(labels[i], h)] + 1.5 * random.next_signed()));
    let longest = (0..rows).map(|i| raw.row(i).iter().map(|x| x * x).sum::<f64>().sqrt()).fold(0.0, f64::max);
    let features = Matrix::from_fn(rows, features, |i, h| raw[(i, h)] * norm / longest);
    Ok(LabelledMatrix::new(features, labels, classes)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hetal_circuits::clear::Noise;
    use hetal_learn::rehearsal::distance;
    use hetal_learn::softmax;

    /// What is repeated on an engine is the training that was judged: its checks, its verdicts and
    /// the check whose weights are taken.
    #[test]
    fn the_training_that_was_judged_is_repeated() {
        let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/tables");
        for case in [Case::of_table(&tables, "iris").unwrap(), Case::random(1024, 1).unwrap()] {
            let history = case.history().unwrap();
            let prepared = case.prepared(1024).unwrap();
            let repeated = prepared.rehearsal(&case, &history).weights(20, Noise::default()).unwrap();
            let judged = case.reference(&history, softmax::exact).unwrap();
            let difference = distance(&repeated, &judged).unwrap() / judged.max_magnitude();
            assert!(difference < 1e-3, "{}: {difference}, {}", case.name, history.text());
        }
    }
}
