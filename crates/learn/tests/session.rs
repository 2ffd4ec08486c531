//! A whole training to early stopping on `Clear`: client and server, checkpoints, resuming, the
//! reference.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Random, decrypt_weights, encrypt_batch, encrypt_weights};
use hetal_circuits::Clear;
use hetal_circuits::clear::{Ciphertext, Noise};
use hetal_learn::agreement::initial_weights;
use hetal_learn::driver::{Ended, EngineHost, drive};
use hetal_learn::judge::accuracy;
use hetal_learn::nesterov::StepSize;
use hetal_learn::reference::{self, ReferenceModel};
use hetal_learn::session::Action;
use hetal_learn::softmax::{self, Constants};
use hetal_learn::trainer::{Batch, Trainer};
use hetal_learn::{
    Agreement, AgreementLimits, Geometry, Judge, LabelledMatrix, LevelPlan, Matrix, Normalisation, Result, Session,
    Verdict, Wishes, batches, packing,
};
use std::ops::ControlFlow;

const CLASSES: usize = 5;
const SMALL: f64 = 1.0 / (1u64 << 30) as f64;
const NOISE: Noise = Noise { encryption: SMALL, operation: SMALL, bootstrap: 32.0 * SMALL, rounding: 0.0, seed: 4 };

/// The shape of a training.
struct Shape {
    slots: usize,
    batch: usize,
    rate: f64,
    /// Ciphertexts of its classifier.
    parts: usize,
    /// Pieces of its batches.
    pieces: usize,
}

const SHAPES: [Shape; 4] = [
    Shape { slots: 2048, batch: 64, rate: 0.5, parts: 1, pieces: 1 },
    Shape { slots: 128, batch: 16, rate: 0.1, parts: 2, pieces: 1 },
    Shape { slots: 256, batch: 64, rate: 0.5, parts: 1, pieces: 2 },
    Shape { slots: 128, batch: 40, rate: 0.3, parts: 2, pieces: 3 },
];

struct Server {
    engine: Clear,
    trainer: Trainer<Clear>,
    batches: Vec<Batch<Ciphertext>>,
    validation: Vec<Batch<Ciphertext>>,
    rows: usize,
}

struct Client {
    normalisation: Normalisation,
    training: LabelledMatrix,
    validation: LabelledMatrix,
    raw_validation: LabelledMatrix,
}

fn agreement(&Shape { batch, rate, .. }: &Shape) -> Agreement {
    let wishes =
        Wishes { batch: Some(batch), rate: Some(rate), patience: Some(2), max_epochs: Some(30), ..Wishes::default() };
    AgreementLimits::default().agree(&wishes).unwrap()
}

fn client() -> Client {
    let (x, y) = Random(3).clusters(300, 20, CLASSES);
    let raw_training = LabelledMatrix::for_training(x.slice(0..200), y[..200].to_vec(), CLASSES).unwrap();
    let raw_validation = LabelledMatrix::new(x.slice(200..300), y[200..].to_vec(), CLASSES).unwrap();
    let normalisation = Normalisation::fit(raw_training.features(), 4.0).unwrap();
    let normalised = |set: &LabelledMatrix| set.with_features(normalisation.apply(set.features()).unwrap()).unwrap();
    Client {
        training: normalised(&raw_training),
        validation: normalised(&raw_validation),
        raw_validation,
        normalisation,
    }
}

fn server(client: &Client, &Shape { slots, batch, parts, pieces, .. }: &Shape) -> Server {
    let engine = Clear::with_noise(slots, 13, NOISE);
    let g = Geometry::new(slots, batch, 20, CLASSES).unwrap();
    assert_eq!((g.parts(), g.pieces(batch)), (parts, pieces));
    let constants = Constants::built_in(CLASSES, 32.0).unwrap();
    let trainer = Trainer::new(&engine, g, LevelPlan::lowest(), constants).unwrap();
    let upload = |set: &LabelledMatrix| -> Vec<Batch<Ciphertext>> {
        let ranges = batches::pieces(&g, set.rows(), batch).into_iter();
        let batch = |r: std::ops::Range<usize>| {
            encrypt_batch(&engine, &trainer, &set.features().slice(r.clone()), &set.labels()[r])
        };
        ranges.map(batch).collect()
    };
    let (batches, validation) = (upload(&client.training), upload(&client.validation));
    Server { engine, trainer, batches, validation, rows: client.training.rows() }
}

impl Server {
    fn session(&self, agreement: Agreement) -> Session<Ciphertext> {
        let g = self.trainer.products().geometry();
        let initial = initial_weights(CLASSES, 20, agreement.seed);
        let weights = encrypt_weights(&self.engine, g, LevelPlan::lowest(), &initial);
        let steps = self.rows.div_ceil(agreement.batch);
        Session::new(agreement, steps, weights).unwrap()
    }

    /// The validation logits as the client decrypts them.
    fn validation_logits(&self, session: &Session<Ciphertext>) -> Matrix {
        let g = self.trainer.products().geometry();
        let scale = self.trainer.softmax().constants().scale;
        let mut values = Vec::new();
        for batch in &self.validation {
            let logits = self.trainer.logits(&self.engine, &batch.versions, session.weights()).unwrap();
            let rows = packing::unpack_logits(g, self.engine.values(&logits), batch.rows).unwrap();
            values.extend(rows.values().iter().map(|v| v * scale));
        }
        Matrix::new(values.len() / CLASSES, CLASSES, values).unwrap()
    }

    /// Trains to the end, calling `between` after every step.
    fn run(
        &self,
        session: &mut Session<Ciphertext>,
        judge: &mut Judge,
        labels: &[usize],
        mut between: impl FnMut() -> bool,
    ) -> bool {
        let ask = |session: &Session<Ciphertext>, _| -> Result<_> {
            let judgement = judge.judge(&self.validation_logits(session), labels)?;
            Ok(ControlFlow::Continue(judgement.verdict))
        };
        // The last step of a check is followed by its verdict.
        let advanced = |session: &Session<Ciphertext>, _| match (between(), session.next_action()) {
            (true, _) | (false, Action::Validate(_)) => ControlFlow::Continue(()),
            (false, _) => ControlFlow::Break(()),
        };
        let host = EngineHost::new(&self.engine, &self.batches[..], |_| Ok(&self.trainer), ask);
        drive(session, &mut host.on_advance(advanced)).unwrap() == Ended::Complete
    }
}

/// The same protocol in the clear, exactly: the best weights and their epoch.
fn reference(client: &Client, agreement: &Agreement) -> (Matrix, usize) {
    let mut reference = ReferenceModel::new(initial_weights(CLASSES, 20, agreement.seed), agreement.momentum);
    let mut judge = Judge::new(agreement.patience, agreement.range, 3);
    let mut best = (Matrix::zeros(0, 0), 0);
    for epoch in 1..=agreement.max_epochs {
        for r in client.training.batches(agreement.batch).unwrap() {
            let x = client.training.features().slice(r.clone());
            reference.step(&x, &client.training.labels()[r], StepSize::of(agreement.rate), softmax::exact).unwrap();
        }
        let logits = reference::logits(client.validation.features(), reference.weights()).unwrap();
        let verdict = judge.judge(&logits, client.validation.labels()).unwrap().verdict;
        if judge.best_check() == Some(epoch) {
            best = (reference.weights().clone(), epoch);
        }
        if verdict == Verdict::Stop {
            break;
        }
    }
    best
}

#[test]
fn training_stops_early_at_the_best_epoch_of_the_plaintext_reference() {
    SHAPES.iter().for_each(stops_early_at_the_best_epoch_of_the_reference);
}

fn stops_early_at_the_best_epoch_of_the_reference(shape: &Shape) {
    let (client, agreement) = (client(), agreement(shape));
    let server = server(&client, shape);
    let mut session = server.session(agreement.clone());
    let mut judge = Judge::new(agreement.patience, agreement.range, 3);
    assert!(server.run(&mut session, &mut judge, client.validation.labels(), || true));
    let (exact, best) = reference(&client, &agreement);
    assert_eq!(judge.best_check(), Some(best));
    assert!(best > 1 && best < agreement.max_epochs, "{best}");
    // Not told which, the server returns them all; the client finds the best among them.
    assert_eq!(session.kept().count(), agreement.patience + 1);
    let (_, weights) = session.kept().find(|(epoch, _)| *epoch == best).unwrap();
    let weights = decrypt_weights(&server.engine, server.trainer.products().geometry(), weights);
    assert!(weights.max_difference(&exact) < 1e-4 * exact.max_magnitude());
    // Folded weights work on features as they are.
    let (raw, labels) = (client.raw_validation.features(), client.validation.labels());
    let folded = reference::logits(raw, &client.normalisation.fold(&weights).unwrap()).unwrap();
    let normalised = reference::logits(client.validation.features(), &weights).unwrap();
    assert_eq!(accuracy(&folded, labels).unwrap(), accuracy(&normalised, labels).unwrap());
    assert!(accuracy(&folded, labels).unwrap() > 1.5 / CLASSES as f64);
}

/// Killed after every step and resumed from what was written down, a session ends with the same
/// bits.
#[test]
fn a_killed_session_ends_with_the_same_bits() {
    SHAPES.iter().for_each(killed_it_ends_with_the_same_bits);
}

fn killed_it_ends_with_the_same_bits(shape: &Shape) {
    let (client, agreement) = (client(), Agreement { max_epochs: 3, ..agreement(shape) });
    let server = server(&client, shape);
    let judge = || Judge::new(agreement.patience, agreement.range, 3);
    let mut whole = server.session(agreement.clone());
    let mut rests = 0;
    server.run(&mut whole, &mut judge(), client.validation.labels(), || {
        rests += 1;
        true
    });
    let (mut session, mut judge) = (server.session(agreement.clone()), judge());
    let mut kills = 0;
    while !server.run(&mut session, &mut judge, client.validation.labels(), || false) {
        let (record, ciphertexts) = session.checkpoint();
        let text = serde_json::to_string(&record).unwrap();
        let ciphertexts = ciphertexts.into_iter().cloned().collect();
        session = Session::resume(serde_json::from_str(&text).unwrap(), ciphertexts).unwrap();
        kills += 1;
    }
    // After every step and refresh but the last of an epoch, which is followed by its verdict.
    assert_eq!(kills, rests - 3);
    assert!(kills >= 3 * (200usize.div_ceil(shape.batch) - 1));
    let (a, b): (Vec<_>, Vec<_>) = (whole.kept().collect(), session.kept().collect());
    assert_eq!(a, b);
}
