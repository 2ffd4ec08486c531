//! The same ciphertext operations on an NVIDIA GPU, with the same bytes as on the CPU.
//!
//! ```text
//! cargo run --release --example 07_gpu [-- --set full]
//! ```

use hetal::ckks::{Backend, Evaluator};
use hetal::{Context, Encrypted, Engine, circuits};
use hetal_cuda::CudaBackend;
use std::sync::Arc;
use std::time::Instant;

/// `(a b)` rotated by one, and the bootstrap of it.
fn circuit<E: Engine>(engine: &E, a: &E::Ciphertext, b: &E::Ciphertext) -> circuits::Result<E::Ciphertext> {
    engine.bootstrap_real(&engine.rotate(&engine.mul(a, b)?, 1)?, 0)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let set = std::env::args().skip_while(|argument| argument != "--set").nth(1);
    let context = Context::named(set.as_deref().unwrap_or("insecure-toy11"))?;
    let params = context.params();
    if params.is_insecure_by_name() {
        println!("{} is a toy set: quick and INSECURE. Real data needs `-- --set full`.", params.name());
    }

    // The driver says how many GPUs there are. Without a driver there are none.
    match hetal_cuda::cards() {
        Ok(0) => {
            println!("no GPU: the driver knows none. Nothing to show here.");
            return Ok(());
        }
        Err(reason) => {
            println!("no GPU: {reason}. Nothing to show here.");
            return Ok(());
        }
        Ok(count) => println!("{count} GPU(s)"),
    }
    let gpu = Arc::new(CudaBackend::open(0, params.log_n(), params.chain(), params.special())?);
    println!("using {}", gpu.describe());

    // Keys are made on the CPU and copied to the GPU.
    let needs = context.dry_run(|engine, [a, b]| circuit(engine, &a, &b))?.keys();
    let secret = context.secret_key();
    let keys = context.evaluation_keys(&secret, &needs)?;
    let gpu_evaluator = Evaluator::new(Arc::clone(params), Arc::clone(&gpu));
    let bootstrapper = circuits::Bootstrapper::new(&gpu_evaluator, &needs.bounds)?;
    let gpu_engine = Encrypted::new(gpu_evaluator, gpu.upload_keys(&keys), bootstrapper);
    let cpu_engine = context.engine(keys, &needs)?;

    let a = context.encrypt(&secret, &[0.5, 0.25, -0.75])?;
    let b = context.encrypt(&secret, &[0.5, -1.0, 0.5])?;
    let start = Instant::now();
    let on_cpu = circuit(&cpu_engine, &a, &b)?;
    println!("CPU: {:.3} s", start.elapsed().as_secs_f64());

    let [a, b] = [&a, &b].map(|ciphertext| gpu_engine.import(gpu.upload_ciphertext(ciphertext.inner())));
    let start = Instant::now();
    let on_gpu = circuit(&gpu_engine, &a?, &b?)?;
    gpu.synchronize()?;
    println!("GPU: {:.3} s", start.elapsed().as_secs_f64());

    let same = gpu.download(&on_gpu.inner().c0)? == context.ring().download(&on_cpu.inner().c0)?
        && gpu.download(&on_gpu.inner().c1)? == context.ring().download(&on_cpu.inner().c1)?;
    println!("the bytes are {}", if same { "the same" } else { "different" });
    let decrypted = context.decrypt(&secret, &on_cpu)?.expose();
    println!("decrypted: {:.4?}", &decrypted[..2]);
    if same { Ok(()) } else { Err("GPU and CPU do not agree".into()) }
}
