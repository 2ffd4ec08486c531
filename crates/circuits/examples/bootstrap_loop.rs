//! Bootstraps in a loop on one thread, for a profiler: `bootstrap_loop [SET] [COUNT]`.

use hetal_circuits::{Bootstrapper, bootstrap};
use hetal_ckks::EvaluationKeys;
use hetal_testkit::{TestOwner, complex_vector};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let set = arguments.next().unwrap_or_else(|| "insecure-toy12".to_owned());
    let count: usize = arguments.next().map_or(Ok(3), |n| n.parse())?;
    let client = TestOwner::new(&set, 1);
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, bootstrap::keys(&client.params));
    let bootstrapper = Bootstrapper::new(&client.evaluator, &[0])?;
    let ct = client.encrypt(&complex_vector(client.params.slots(), 1), 0);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    println!("ready");
    for _ in 0..count {
        let start = Instant::now();
        pool.install(|| bootstrapper.bootstrap(&client.evaluator, &ct, 0, &keys))?;
        println!("{:.3} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}
