//! Compares a card with the CPU, byte for byte, and measures it.
//!
//! ```text
//! check [--emulated] [--quick] [--gpu NUMBER] [ops SET | ntt SET | bench SET | bootstrap SET]...
//! ```
//!
//! Without a task: `ops` at the toy sets, then everything at `full`.

#![allow(clippy::unwrap_used, clippy::panic)]

use hetal_circuits::{Bootstrapper, bootstrap as circuit};
use hetal_ckks::{Backend, Ciphertext, EvaluationKeys, Evaluator, KeyId, Params};
use hetal_cuda::selftest::{RingPrimes, compare};
use hetal_cuda::{CudaBackend, CudaPoly};
use hetal_ring::{Isa, Poly, RnsRing};
use hetal_testkit::{TestOwner, complex_vector, max_error, mean_error};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

struct Options {
    emulated: bool,
    quick: bool,
    gpu: usize,
}

fn main() -> ExitCode {
    let mut options = Options { emulated: false, quick: false, gpu: 0 };
    let mut tasks: Vec<(String, String)> = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--emulated" => options.emulated = true,
            "--quick" => options.quick = true,
            "--gpu" => options.gpu = args.next().and_then(|n| n.parse().ok()).unwrap_or(0),
            _ => tasks.push((arg, args.next().unwrap_or_else(|| "full".to_owned()))),
        }
    }
    if tasks.is_empty() {
        let all = [("ops", "insecure-toy11"), ("ops", "insecure-toy12"), ("ops", "full"), ("bench", "full")];
        tasks = all.iter().chain(&[("bootstrap", "full")]).map(|(t, s)| ((*t).to_owned(), (*s).to_owned())).collect();
    }
    let mut good = true;
    for (task, set) in tasks {
        let start = Instant::now();
        let result = match task.as_str() {
            "ops" => ops(&options, &set),
            "ntt" => ntt(&options, &set),
            "bench" => bench(&options, &set),
            "bootstrap" => bootstrap(&options, &set),
            _ => Err(format!("no task is called {task}")),
        };
        match result {
            Ok(()) => println!("{task} {set}: good, {:.1} s", start.elapsed().as_secs_f64()),
            Err(error) => {
                println!("{task} {set}: FAILED: {error}");
                good = false;
            }
        }
    }
    ExitCode::from(u8::from(!good))
}

type Outcome = Result<(), String>;

fn open(options: &Options, params: &Params) -> Result<CudaBackend, String> {
    let start = Instant::now();
    let (log_n, q, p) = (params.log_n(), params.chain(), params.special());
    let backend =
        if options.emulated { CudaBackend::emulated(log_n, q, p) } else { CudaBackend::open(options.gpu, log_n, q, p) };
    let backend = backend.map_err(|e| e.to_string())?;
    println!("{}: opened in {:.2} s", backend.describe(), start.elapsed().as_secs_f64());
    Ok(backend)
}

fn healthy(backend: &CudaBackend) -> Outcome {
    backend.synchronize().map_err(|e| e.to_string())
}

fn ops(options: &Options, set: &str) -> Outcome {
    let params = Params::named(set).map_err(|e| e.to_string())?;
    let backend = open(options, &params)?;
    let (q, p) = (params.chain(), params.special());
    let cpu = RnsRing::new(params.log_n(), q, p, Isa::detect()).map_err(|q| format!("{q} is no prime"))?;
    let ring = RingPrimes { log_n: params.log_n(), q, p, digit_starts: params.digit_starts() };
    for salt in 1..=(if options.quick { 1 } else { 2 }) {
        let report = compare(&backend, &cpu, &ring, salt).map_err(|e| e.to_string())?;
        println!("  {} results compared, {} differ", report.compared, report.mismatches.len());
        if !report.mismatches.is_empty() {
            return Err(format!("{:?}", &report.mismatches[..report.mismatches.len().min(12)]));
        }
    }
    Ok(())
}

/// Milliseconds of `run`: until the card is done, and until all of it is queued. Best of five
/// means.
fn time(backend: &CudaBackend, repeats: u32, mut run: impl FnMut()) -> (f64, f64) {
    (0..3).for_each(|_| run());
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..5 {
        backend.synchronize().unwrap();
        let start = Instant::now();
        (0..repeats).for_each(|_| run());
        let queued = start.elapsed().as_secs_f64() * 1e3 / f64::from(repeats);
        backend.synchronize().unwrap();
        let done = start.elapsed().as_secs_f64() * 1e3 / f64::from(repeats);
        best = (best.0.min(done), best.1.min(queued));
    }
    best
}

fn same(gpu: &CudaBackend, cpu: &RnsRing, a: &Ciphertext<CudaPoly>, b: &Ciphertext<Poly>) -> Outcome {
    healthy(gpu)?;
    let equal = a.limbs == b.limbs
        && a.scale.to_bits() == b.scale.to_bits()
        && gpu.download(&a.c0) == cpu.download(&b.c0)
        && gpu.download(&a.c1) == cpu.download(&b.c1);
    if equal { Ok(()) } else { Err("the CPU's bytes are others".to_owned()) }
}

fn profile(backend: &CudaBackend, most: usize, run: impl Fn()) {
    backend.profile(true);
    run();
    let times = backend.profile(false);
    let total: f64 = times.iter().map(|t| t.seconds).sum();
    println!("    kernels {:.3} ms in {} launches", total * 1e3, times.iter().map(|t| t.launches).sum::<usize>());
    let mut by_name: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for t in &times {
        let sum = by_name.entry(t.name).or_default();
        *sum = (sum.0 + t.launches, sum.1 + t.seconds);
    }
    let line = |name: &str, launches: usize, seconds: f64| {
        let mean = seconds * 1e6 / launches as f64;
        println!("    {name:32} {launches:5} x {mean:8.2} us = {:8.3} ms", seconds * 1e3);
    };
    let mut by_name: Vec<_> = by_name.into_iter().collect();
    by_name.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    by_name.into_iter().for_each(|(name, (launches, seconds))| line(name, launches, seconds));
    println!("    the longest, by limbs of a launch:");
    times.iter().take(most).for_each(|t| line(&format!("{} of {}", t.name, t.limbs), t.launches, t.seconds));
}

fn transforms(gpu: &CudaBackend, batches: &[usize], repeats: u32) -> Outcome {
    for &limbs in batches {
        let (forward, inverse) = gpu.time_transforms(limbs, repeats).map_err(|e| e.to_string())?;
        println!("  ntt of {limbs} limbs: forward {:.3} us, inverse {:.3} us each", forward * 1e6, inverse * 1e6);
    }
    Ok(())
}

/// The transforms alone, for a profiler.
fn ntt(options: &Options, set: &str) -> Outcome {
    let params = Params::named(set).map_err(|e| e.to_string())?;
    transforms(&open(options, &params)?, &[128], if options.quick { 2 } else { 100 })
}

fn bench(options: &Options, set: &str) -> Outcome {
    let client = TestOwner::new(set, 7);
    let params = &client.params;
    let gpu = Arc::new(open(options, params)?);
    let repeats = if options.quick { 1 } else { 20 };
    transforms(&gpu, &[1, 8, 16, 29, 64, 128], 5 * repeats)?;
    let evaluator = Evaluator::new(Arc::clone(params), Arc::clone(&gpu));
    let top = params.chain().len();
    let rotation = client.evaluator.galois_of_rotation(1);
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, [(KeyId::Relinearisation, top), (KeyId::Galois(rotation), top)]);
    let on_gpu = gpu.upload_keys(&keys);
    for limbs in [top, params.limbs(params.top_level().saturating_sub(1)), params.limbs(5.min(params.top_level()))] {
        let scale = params.scale(params.top_level());
        let v = complex_vector(params.slots(), limbs as u64);
        let (a, b) = (client.encrypt_at(&v, limbs, scale), client.encrypt_at(&v, limbs, scale));
        let (x, y) = (gpu.upload_ciphertext(&a), gpu.upload_ciphertext(&b));
        let product = evaluator.sum_of_products(&[(&x, &y)], &on_gpu).map_err(|e| e.to_string())?;
        let expected = client.evaluator.sum_of_products(&[(&a, &b)], &keys).map_err(|e| e.to_string())?;
        same(&gpu, &client.ring, &product, &expected).map_err(|e| format!("product: {e}"))?;
        let rotated = evaluator.automorphism(&x, rotation, &on_gpu).map_err(|e| e.to_string())?;
        let expected = client.evaluator.automorphism(&a, rotation, &keys).map_err(|e| e.to_string())?;
        same(&gpu, &client.ring, &rotated, &expected).map_err(|e| format!("rotation: {e}"))?;
        let multiply = || drop(evaluator.sum_of_products(&[(&x, &y)], &on_gpu).unwrap());
        let rotate = || drop(evaluator.automorphism(&x, rotation, &on_gpu).unwrap());
        let (done, queued) = time(&gpu, repeats, multiply);
        println!("  {limbs} limbs: multiply, relinearise and rescale {done:.4} ms (queued in {queued:.4})");
        let (done, queued) = time(&gpu, repeats, rotate);
        println!("  {limbs} limbs: rotate {done:.4} ms (queued in {queued:.4})");
        let (done, _) = time(&gpu, repeats, || _ = gpu.join(multiply, multiply));
        println!("  {limbs} limbs: two multiplications side by side {done:.4} ms");
        if limbs == top && !options.emulated {
            profile(&gpu, 0, multiply);
            profile(&gpu, 0, rotate);
        }
    }
    healthy(&gpu)
}

fn bootstrap(options: &Options, set: &str) -> Outcome {
    let text = |e: hetal_circuits::Error| e.to_string();
    let lap = |start: &mut Instant, what: &str| {
        println!("  {what}: {:.2} s", start.elapsed().as_secs_f64());
        *start = Instant::now();
    };
    let mut start = Instant::now();
    let client = TestOwner::new(set, 5);
    let params = &client.params;
    let gpu = Arc::new(open(options, params)?);
    let evaluator = Evaluator::new(Arc::clone(params), Arc::clone(&gpu));
    let mut keys = EvaluationKeys::default();
    client.add_keys(&mut keys, circuit::keys(params));
    lap(&mut start, "keys made");
    let on_gpu = gpu.upload_keys(&keys);
    healthy(&gpu)?;
    lap(&mut start, "keys uploaded");
    let bootstrapper = Bootstrapper::new(&evaluator, &[0]).map_err(text)?;
    healthy(&gpu)?;
    lap(&mut start, "matrices encoded for the card");
    let v = complex_vector(params.slots(), 3);
    let ct = client.encrypt(&v, 0);
    let x = gpu.upload_ciphertext(&ct);
    let out = bootstrapper.bootstrap(&evaluator, &x, 0, &on_gpu).map_err(text)?;
    healthy(&gpu)?;
    lap(&mut start, "first bootstrap");
    println!("  device memory held: {:.2} GiB", gpu.pool_bytes() as f64 / f64::from(1 << 30));
    let run = || drop(bootstrapper.bootstrap(&evaluator, &x, 0, &on_gpu).unwrap());
    let (alone, queued) = time(&gpu, 1, run);
    println!("  bootstrap {alone:.3} ms alone (queued in {queued:.3})");
    if !options.quick {
        println!("  bootstrap {:.3} ms in a row", time(&gpu, 5, run).0);
    }
    let mut begin = Instant::now();
    let mut stages: Vec<(&str, f64)> = Vec::new();
    let mut ended = |stage: &'static str| {
        gpu.synchronize().unwrap();
        stages.push((stage, begin.elapsed().as_secs_f64() * 1e3));
        begin = Instant::now();
    };
    bootstrapper.bootstrap_observed(&evaluator, &x, 0, &on_gpu, &mut ended).map_err(text)?;
    println!("  stages, waited for, in ms: {stages:.3?}");
    if !options.emulated {
        profile(&gpu, 24, run);
    }
    start = Instant::now();
    if !options.quick {
        let cpu = Bootstrapper::new(&client.evaluator, &[0]).map_err(text)?;
        lap(&mut start, "matrices encoded for the CPU");
        let expected = cpu.bootstrap(&client.evaluator, &ct, 0, &keys).map_err(text)?;
        lap(&mut start, "bootstrap on the CPU");
        same(&gpu, &client.ring, &out, &expected)?;
        println!("  the same bytes as the CPU");
        let got = client.decrypt(&expected);
        println!("  error: max 2^{:.2}, mean 2^{:.2}", max_error(&got, &v).log2(), mean_error(&got, &v).log2());
    }
    healthy(&gpu)
}
