//! Timings of the ring's kernels on one thread, as JSON: `hetal-bench ntt [repetitions]`.

mod kernels;

fn main() {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("ntt") => {
            let repetitions = arguments.next().and_then(|r| r.parse().ok()).unwrap_or(400);
            println!("{:#}", kernels::report(repetitions));
        }
        _ => {
            eprintln!("usage: hetal-bench ntt [repetitions]");
            std::process::exit(2);
        }
    }
}
