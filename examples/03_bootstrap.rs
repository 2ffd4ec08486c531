//! A bootstrap gives a ciphertext its levels back, so that a computation never has to end.
//!
//! ```text
//! cargo run --release --example 03_bootstrap [-- --set full]
//! ```

use hetal::{Context, Engine, OpKind, circuits};
use std::time::Instant;

/// Every number that is bootstrapped is at most 2^0 = 1 in magnitude.
const LOG_BOUND: u32 = 0;

/// `x <- x^2 - 1/2`, more often than there are levels: whenever none is left, a bootstrap follows.
fn iterate<E: Engine>(engine: &E, x: &E::Ciphertext, rounds: usize) -> circuits::Result<E::Ciphertext> {
    let mut x = x.clone();
    for _ in 0..rounds {
        if engine.level(&x) == 0 {
            x = engine.bootstrap_real(&x, LOG_BOUND)?;
        }
        x = engine.add_constant(&engine.square(&x)?, (-0.5).into())?;
    }
    Ok(x)
}

fn main() -> hetal::Result<()> {
    let set = std::env::args().skip_while(|argument| argument != "--set").nth(1);
    let context = Context::named(set.as_deref().unwrap_or("insecure-toy11"))?;
    if context.params().is_insecure_by_name() {
        println!("{} is a toy set: quick and INSECURE. Real data needs `-- --set full`.", context.params().name());
    }
    let rounds = 2 * context.top_level() + 1;
    println!("{rounds} squarings in a row; a fresh ciphertext allows {}", context.top_level());

    // The dry run counts the bootstraps, too, and asks for their keys.
    let counts = context.dry_run(|engine, [x]| iterate(engine, &x, rounds))?;
    println!("dry run: {} bootstraps are needed on the way", counts.count(OpKind::Bootstrap));

    let start = Instant::now();
    let (secret, engine) = context.keygen(&counts.keys())?;
    println!("keys and bootstrapping matrices made in {:.1} s", start.elapsed().as_secs_f64());

    let numbers = [0.9, -0.3, 0.0, 0.55];
    let start = Instant::now();
    let result = iterate(&engine, &context.encrypt(&secret, &numbers)?, rounds)?;
    println!("computed in {:.1} s, level {} is left", start.elapsed().as_secs_f64(), engine.level(&result));

    let decrypted = context.decrypt(&secret, &result)?.expose();
    for (x, found) in numbers.iter().zip(&decrypted) {
        let exact = (0..rounds).fold(*x, |x, _| x * x - 0.5);
        println!("  from {x:5}: {found:.6} (exact {exact:.6})");
        assert!((found - exact).abs() < 1e-3, "the result is off by more than 1e-3");
    }
    Ok(())
}
