//! The softmax of encrypted logits: probabilities without a maximum, a comparison or a division.
//!
//! ```text
//! cargo run --release --example 04_softmax [-- --set full]
//! ```

use hetal::learn::softmax::{self, Constants, Sharpen};
use hetal::learn::{self, Geometry, LevelPlan, packing};
use hetal::{Complex64, Context, Engine, OpKind};

/// Logits may lie in [-32, 32].
const RANGE: f64 = 32.0;
/// Three rows of three logits.
const LOGITS: [[f64; 3]; 3] = [[2.0, 1.0, 0.1], [-20.0, 5.0, 4.5], [0.0, 0.0, 30.0]];

/// Polynomials that approximate the softmax, with the bootstraps that they need.
fn probabilities<E: Engine>(engine: &E, g: &Geometry, logits: &E::Ciphertext) -> learn::Result<E::Ciphertext> {
    let end = LevelPlan::lowest().probabilities();
    Sharpen::new(engine, Constants::built_in(g.classes(), RANGE)?, g, end)?.evaluate(engine, logits)
}

fn main() -> hetal::Result<()> {
    let set = std::env::args().skip_while(|argument| argument != "--set").nth(1);
    let context = Context::named(set.as_deref().unwrap_or("insecure-toy11"))?;
    if context.params().is_insecure_by_name() {
        println!("{} is a toy set: quick and INSECURE. Real data needs `-- --set full`.", context.params().name());
    }

    // A geometry says where rows and classes lie in the slots. One feature is enough here.
    let g = Geometry::new(context.slots(), LOGITS.len(), 1, 3)?;
    let constants = Constants::built_in(3, RANGE)?;
    println!("softmax of 3 classes: {} levels, error at most {:.0e}", constants.depth(), constants.error);
    let counts = context.dry_run(|engine, [logits]| probabilities(engine, &g, &logits))?;
    println!(
        "dry run: {} products, {} rotations, {} bootstraps",
        counts.count(OpKind::Product),
        counts.count(OpKind::Rotation),
        counts.count(OpKind::Bootstrap)
    );
    let (secret, engine) = context.keygen(&counts.keys())?;

    // The circuit takes logits divided by a scale, so that they lie in [-1, 1].
    let logit = |slot| {
        let (column, row) = g.place(slot);
        let class = g.class(column, row);
        let logit = LOGITS.get(row).and_then(|row| row.get(class));
        Complex64::new(logit.copied().unwrap_or(0.0) / constants.scale, 0.0)
    };
    let slots: Vec<_> = (0..context.slots()).map(logit).collect();
    let encrypted = context.encrypt_at(&secret, &slots, 0)?;
    println!("{} rows of logits are encrypted in one ciphertext", LOGITS.len());

    let result = probabilities(&engine, &g, &encrypted)?;
    let decrypted = context.decrypt_complex(&secret, &result)?;
    let found = packing::unpack_logits(&g, decrypted.peek(), LOGITS.len())?;
    for (i, logits) in LOGITS.iter().enumerate() {
        let mut exact = *logits;
        softmax::exact(&mut exact);
        println!("  {logits:?} -> {:.4?} (exact {exact:.4?})", found.row(i));
        assert!(exact.iter().zip(found.row(i)).all(|(a, b)| (a - b).abs() < 1e-3), "off by more than 1e-3");
    }
    Ok(())
}
