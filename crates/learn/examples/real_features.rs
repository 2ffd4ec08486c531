//! Trains on a folder of real features (`features_{train,val,test}.npy` in half precision, `labels_*.npy`) to early stopping: exactly, and on
//! `Clear` with the noise of encryption:
//! `cargo run --release -p hetal-learn --example real_features -- FOLDER BATCH RATE ROW_NORM [twin]`
use hetal_circuits::Clear;
use hetal_circuits::clear::{Kind, Noise};
use hetal_learn::agreement::initial_weights;
use hetal_learn::judge::accuracy;
use hetal_learn::session::{self, Task};
use hetal_learn::softmax::{self, Constants};
use hetal_learn::trainer::{Batch, Trainer};
use hetal_learn::twin::{self, Twin};
use hetal_learn::{
    Agreement, Dataset, Geometry, Judge, Ledger, Limits, Matrix, Normalisation, Session, Verdict, Wishes, packing,
};
use std::error::Error;
use std::path::Path;

type Ct = hetal_circuits::clear::Ciphertext;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, batch, rate, row_norm, rest @ ..] = args.as_slice() else {
        return Err("FOLDER BATCH RATE ROW_NORM [twin]".into());
    };
    let folder = Path::new(folder);
    let raw = ["train", "val", "test"].map(|part| load(folder, part));
    let [train, val, test] = raw;
    let (train, val, test) = (train?, val?, test?);
    let classes = train.1.iter().max().map_or(0, |m| m + 1);
    let normalisation = Normalisation::fit(&train.0, row_norm.parse()?)?;
    let set = |(x, y): &(Matrix, Vec<usize>)| Dataset::new(normalisation.apply(x)?, y.clone(), classes);
    let sets = [set(&train)?, set(&val)?, set(&test)?];
    let wishes = Wishes { batch: Some(batch.parse()?), rate: Some(rate.parse()?), ..Wishes::default() };
    let agreement = Limits::default().agree(&wishes)?;
    let (exact, epochs) = train_exactly(&sets, &agreement)?;
    report("exact", &exact, epochs, &sets[2])?;
    if rest.is_empty() {
        let (noisy, epochs) = train_with_noise(&sets, &agreement)?;
        report("with noise", &noisy, epochs, &sets[2])?;
        let difference = noisy.max_difference(&exact) / exact.max_magnitude();
        println!("largest difference of weights: {difference:.1e} of the largest weight");
    }
    Ok(())
}

fn report(name: &str, weights: &Matrix, epochs: (usize, usize), test: &Dataset) -> Result<(), Box<dyn Error>> {
    let accuracy = accuracy(&twin::logits(test.features(), weights)?, test.labels())?;
    println!("{name}: best epoch {} of {}, test accuracy {:.2} %", epochs.0, epochs.1, 100.0 * accuracy);
    Ok(())
}

/// The best weights, their epoch and the number of epochs.
type Trained = Result<(Matrix, (usize, usize)), Box<dyn Error>>;

fn train_exactly(sets: &[Dataset; 3], agreement: &Agreement) -> Trained {
    let [train, val, _] = sets;
    let mut twin =
        Twin::new(initial_weights(train.classes(), train.features().columns(), agreement.seed), agreement.momentum);
    let mut judge = Judge::new(agreement.patience, agreement.range, 0);
    let mut best = twin.weights().clone();
    for epoch in 1..=agreement.max_epochs {
        for r in train.batches(agreement.batch)? {
            let labels = &train.labels()[r.clone()];
            twin.step(&train.features().slice(r), labels, agreement.rate, softmax::exact)?;
        }
        let judgement = judge.judge(&twin::logits(val.features(), twin.weights())?, val.labels())?;
        println!("  epoch {epoch}: {judgement:?}");
        if judge.best_epoch() == Some(epoch) {
            best = twin.weights().clone();
        }
        if judgement.verdict != Verdict::Continue {
            return Ok((best, (judge.best_epoch().unwrap_or(0), epoch)));
        }
    }
    Ok((best, (judge.best_epoch().unwrap_or(0), agreement.max_epochs)))
}

fn train_with_noise(sets: &[Dataset; 3], agreement: &Agreement) -> Trained {
    let [train, val, _] = sets;
    // Of the set `full`: 42-bit scale, bootstraps good to 25 bits in the mean.
    let noise = Noise { operation: libm::ldexp(1.0, -30), bootstrap: libm::ldexp(1.0, -25), seed: 1 };
    let engine = Clear::with_noise(32768, 13, noise);
    let g = Geometry::new(32768, agreement.batch, train.features().columns(), train.classes())?;
    let constants = Constants::built_in(train.classes(), agreement.range)?;
    let scale = constants.scale;
    let trainer = Trainer::new(&engine, g, Ledger::lowest(), constants, 2)?;
    let (batches, validation) =
        (upload(&engine, &trainer, train, agreement.batch)?, upload(&engine, &trainer, val, g.rows().min(val.rows()))?);
    let first = packing::weights(&g, &initial_weights(train.classes(), train.features().columns(), agreement.seed))?;
    let first = engine.fresh(&first, Ledger::lowest().weights())?;
    let mut session = Session::new(agreement.clone(), batches.len(), first)?;
    let mut judge = Judge::new(agreement.patience, agreement.range, 0);
    let mut epochs = 0;
    engine.take_books();
    while let Task::Validate { epoch, .. } =
        session::advance(&engine, &mut session, &batches[..], |_| Ok(&trainer), |_| true)?
    {
        println!("  epoch {epoch}: {} bootstraps", engine.take_books().count(Kind::Bootstrap));
        let mut logits = Vec::new();
        for batch in &validation {
            let packed = trainer.logits(&engine, &batch.versions, session.weights())?;
            let rows = packing::unpack_logits(&g, engine.values(&packed), batch.rows)?;
            logits.extend(rows.values().iter().map(|v| v * scale));
        }
        let judgement = judge.judge(&Matrix::new(val.rows(), val.classes(), logits)?, val.labels())?;
        println!("  epoch {epoch}: {judgement:?}");
        session.judged(judgement.verdict)?;
        epochs = epoch;
    }
    let best = judge.best_epoch().unwrap_or(0);
    let weights = session.kept().find(|(epoch, _)| *epoch == best).ok_or("the best epoch was not kept")?.1;
    Ok((packing::unpack_weights(&g, engine.values(weights))?, (best, epochs)))
}

fn upload(
    engine: &Clear,
    trainer: &Trainer<Clear>,
    set: &Dataset,
    size: usize,
) -> Result<Vec<Batch<Ct>>, Box<dyn Error>> {
    let (g, ledger) = (trainer.products().geometry(), trainer.products().ledger());
    let mut batches = Vec::new();
    for r in set.batches(size)? {
        let blocks = packing::features(g, &set.features().slice(r.clone()))?;
        let blocks: Vec<_> =
            blocks.iter().map(|b| engine.fresh(b, ledger.fresh_features())).collect::<Result<_, _>>()?;
        let labels = engine.fresh(&packing::labels(g, &set.labels()[r.clone()])?, ledger.probabilities())?;
        batches.push(trainer.batch(engine, &blocks, labels, r.len())?);
    }
    Ok(batches)
}

fn load(folder: &Path, part: &str) -> Result<(Matrix, Vec<usize>), Box<dyn Error>> {
    let labels: Vec<usize> = body(&folder.join(format!("labels_{part}.npy")))?
        .chunks_exact(8)
        .map(|b| b.try_into().map(|b| i64::from_le_bytes(b) as usize))
        .collect::<Result<_, _>>()?;
    let features: Vec<f64> = body(&folder.join(format!("features_{part}.npy")))?
        .chunks_exact(2)
        .map(|b| half(u16::from_le_bytes([b[0], b[1]])))
        .collect();
    Ok((Matrix::new(labels.len(), features.len() / labels.len(), features)?, labels))
}

/// The data of a version 1 `.npy` file.
fn body(path: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let bytes = std::fs::read(path)?;
    let header = bytes.get(8..10).ok_or("too short")?;
    Ok(bytes.get(10 + u16::from_le_bytes([header[0], header[1]]) as usize..).ok_or("too short")?.to_vec())
}

/// A half-precision number.
fn half(bits: u16) -> f64 {
    let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => libm::ldexp(fraction, -24),
        31 => f64::NAN,
        e => libm::ldexp(1024.0 + fraction, e - 25),
    };
    if sign == 1 { -magnitude } else { magnitude }
}
