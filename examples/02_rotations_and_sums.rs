//! Rotations move numbers between slots. With them a circuit can add up a whole vector.
//!
//! ```text
//! cargo run --release --example 02_rotations_and_sums [-- --set full]
//! ```

use hetal::{Context, Engine, OpKind, circuits};

/// The inner product `a[0] b[0] + a[1] b[1] + ...`, in every slot of the result.
///
/// A rotation by `k` moves slot `i + k` to slot `i`. Rotations by 1, 2, 4, ... and additions double
/// the number of terms in each sum, so a vector of `n` slots takes `log2(n)` rotations.
fn inner_product<E: Engine>(engine: &E, a: &E::Ciphertext, b: &E::Ciphertext) -> circuits::Result<E::Ciphertext> {
    let mut sum = engine.mul(a, b)?;
    let mut distance = 1;
    while distance < engine.slots() {
        sum = engine.add(&sum, &engine.rotate(&sum, distance as i64)?)?;
        distance *= 2;
    }
    Ok(sum)
}

fn main() -> hetal::Result<()> {
    let set = std::env::args().skip_while(|argument| argument != "--set").nth(1);
    let context = Context::named(set.as_deref().unwrap_or("insecure-toy11"))?;
    if context.params().is_insecure_by_name() {
        println!("{} is a toy set: quick and INSECURE. Real data needs `-- --set full`.", context.params().name());
    }

    // Every rotation distance needs a key of its own. Dry runs list them, so nobody has to.
    let single = context.dry_run(|engine, [a]| engine.rotate(&a, 2))?;
    let counts = context.dry_run(|engine, [a, b]| inner_product(engine, &a, &b))?;
    let needs = single.keys().union(counts.keys());
    println!("an inner product of {} slots takes {} rotations", context.slots(), counts.count(OpKind::Rotation));
    let distances: Vec<i64> = needs.rotations.iter().map(|(distance, _level)| *distance).collect();
    println!("rotation keys for the distances {distances:?}");
    let (secret, engine) = context.keygen(&needs)?;

    // First a single rotation: the numbers move to the left, the first ones come back at the end.
    let numbers: Vec<f64> = (0..context.slots()).map(|i| (i % 10) as f64).collect();
    let ciphertext = context.encrypt(&secret, &numbers)?;
    let rotated = context.decrypt(&secret, &engine.rotate(&ciphertext, 2)?)?.expose();
    println!("before: {:?}", &numbers[..6]);
    println!("rotated by 2: {:?}", rotated[..6].iter().map(|x| x.round()).collect::<Vec<_>>());

    // Then the inner product with a second vector.
    let weights: Vec<f64> = (0..context.slots()).map(|i| if i % 2 == 0 { 0.01 } else { -0.005 }).collect();
    let product = inner_product(&engine, &ciphertext, &context.encrypt(&secret, &weights)?)?;
    let decrypted = context.decrypt(&secret, &product)?.expose();
    let exact: f64 = numbers.iter().zip(&weights).map(|(x, w)| x * w).sum();
    println!("inner product: {:.6} (exact {exact:.6})", decrypted[0]);
    println!("every slot has it, the last one too: {:.6}", decrypted[context.slots() - 1]);
    assert!((decrypted[0] - exact).abs() < 1e-3, "the inner product is off by more than 1e-3");
    Ok(())
}
