//! Sums and products of encrypted numbers.
//!
//! ```text
//! cargo run --release --example 01_arithmetic [-- --set full]
//! ```

use hetal::{Context, Engine, OpKind, circuits};

/// The circuit, written once: it runs on plain numbers and on ciphertexts.
///
/// Each ciphertext holds a vector of numbers. Every operation works on all of them at once, number
/// by number: this is `a * b + 2 a - 1`.
fn circuit<E: Engine>(engine: &E, a: &E::Ciphertext, b: &E::Ciphertext) -> circuits::Result<E::Ciphertext> {
    let product = engine.mul(a, b)?;
    let sum = engine.add(&product, &engine.mul_integer(a, 2)?)?;
    engine.add_constant(&sum, (-1.0).into())
}

fn main() -> hetal::Result<()> {
    // A parameter set fixes the size of everything and how hard it is to break.
    let set = std::env::args().skip_while(|argument| argument != "--set").nth(1);
    let context = Context::named(set.as_deref().unwrap_or("insecure-toy11"))?;
    println!("parameter set {}: security {}", context.params().name(), context.params().security());
    if context.params().is_insecure_by_name() {
        println!("  A toy set is quick and INSECURE. Real data needs `-- --set full`.");
    }
    println!("  {} numbers in a ciphertext, {} multiplications in a row", context.slots(), context.top_level());

    // A dry run on plain numbers finds out which keys the circuit needs.
    let counts = context.dry_run(|engine, [a, b]| circuit(engine, &a, &b))?;
    println!("dry run: {} product, keys needed: {:?}", counts.count(OpKind::Product), counts.keys());

    // The secret key stays with the owner of the data. The engine can compute and cannot decrypt.
    let (secret, engine) = context.keygen(&counts.keys())?;

    let (a, b) = ([1.5, -2.0, 3.0], [4.0, 0.25, -1.0]);
    let result = {
        let (a, b) = (context.encrypt(&secret, &a)?, context.encrypt(&secret, &b)?);
        println!("encrypted at level {}", engine.level(&a));
        circuit(&engine, &a, &b)?
    };
    // A multiplication takes a level. When none is left, a bootstrap is needed: see 03_bootstrap.
    println!("the result has level {}", engine.level(&result));

    // CKKS is approximate: the decrypted numbers are right to some digits.
    let decrypted = context.decrypt(&secret, &result)?.expose();
    for i in 0..a.len() {
        let exact = a[i] * b[i] + 2.0 * a[i] - 1.0;
        println!("  {} * {} + 2 * {} - 1 = {:.6} (exact {exact})", a[i], b[i], a[i], decrypted[i]);
        assert!((decrypted[i] - exact).abs() < 1e-4, "the result is off by more than 1e-4");
    }
    Ok(())
}
