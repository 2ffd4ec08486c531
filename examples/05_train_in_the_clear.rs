//! Training on plain numbers, exactly as it would run under encryption: same layout, levels,
//! operations.
//!
//! ```text
//! cargo run --release --example 05_train_in_the_clear [-- --set full]
//! ```

use hetal::learn::agreement::initial_weights;
use hetal::learn::nesterov::{Momentum, StepSize};
use hetal::learn::reference::{self, ReferenceModel};
use hetal::learn::trainer::ModelState;
use hetal::learn::{Circuit, Matrix, judge, packing, softmax};
use hetal::{Clear, OpKind, Params};

const ROWS: usize = 64;
const FEATURES: usize = 12;
const CLASSES: usize = 3;
const STEPS: usize = 10;
const RATE: f64 = 1.0;
/// The logits lie in `[-RANGE, RANGE]`.
const RANGE: f64 = 32.0;

/// Rows around one centre for each class, from a fixed formula.
fn rows() -> (Matrix, Vec<usize>) {
    let labels: Vec<usize> = (0..ROWS).map(|i| i % CLASSES).collect();
    let noise = |i: usize, h: usize| ((i * 31 + h * 17 + i * h) % 19) as f64 / 19.0 - 0.5;
    let x = Matrix::from_fn(ROWS, FEATURES, |i, h| f64::from(h % CLASSES == labels[i]) + 0.6 * noise(i, h));
    (x, labels)
}

fn main() -> hetal::Result<()> {
    let set = std::env::args().skip_while(|argument| argument != "--set").nth(1);
    let params = Params::named(set.as_deref().unwrap_or("insecure-toy11"))?;
    // Nothing is encrypted here, so no set is insecure: it only fixes slots and levels.
    println!("layout of {}: {} slots, {} levels", params.name(), params.slots(), params.top_level());
    let circuit = Circuit::new(params.slots(), ROWS, FEATURES, CLASSES, RANGE)?;
    let (g, levels) = (*circuit.geometry(), circuit.level_plan());
    let engine = Clear::new(params.slots(), params.top_level());
    let trainer = circuit.trainer(&engine, RANGE)?;

    // What a client would encrypt: blocks of features, labels, the first weights.
    let (x, labels) = rows();
    let blocks = packing::features(&g, &x)?;
    let blocks =
        blocks.iter().map(|block| engine.fresh(block, levels.fresh_features())).collect::<Result<Vec<_>, _>>()?;
    let sealed = engine.fresh(&packing::labels(&g, &labels)?, levels.labels())?;
    let batch = trainer.batch(&engine, &blocks, sealed, ROWS)?;
    let initial = initial_weights(CLASSES, FEATURES, 0);
    let parts = packing::weights(&g, &initial)?;
    let parts = parts.iter().map(|part| engine.fresh(part, levels.weights())).collect::<Result<Vec<_>, _>>()?;
    let mut model = ModelState::new(parts, Momentum::Nesterov);
    engine.take_op_counts();

    // The plaintext reference trains with the exact softmax beside it.
    let mut exact = ReferenceModel::new(initial, Momentum::Nesterov);
    for step in 1..=STEPS {
        model = trainer.step(&engine, &model, &batch, StepSize::of(RATE))?;
        exact.step(&x, &labels, StepSize::of(RATE), softmax::exact)?;
        let slots: Vec<_> = model.weights.iter().map(|part| engine.values(part)).collect();
        let weights = packing::unpack_weights(&g, &slots)?;
        let accuracy = judge::accuracy(&reference::logits(&x, &weights)?, &labels)?;
        let difference = weights.max_difference(exact.weights());
        println!("step {step:2}: accuracy {:5.1} %, differs from the reference by {difference:.1e}", 100.0 * accuracy);
        assert!(difference < 1e-3, "the circuit does not follow the reference");
    }
    let counts = engine.take_op_counts();
    println!("an encrypted run would do these operations in {STEPS} steps:");
    for kind in OpKind::ALL {
        println!("  {kind:?}: {}", counts.count(kind));
    }
    println!("and needs keys for {} rotations", circuit.keys(params.top_level())?.rotations.len());
    Ok(())
}
