//! Timings as JSON: of the ring's kernels on one thread, `hetal-bench ntt [repetitions]`; of reading and writing keys,
//! `hetal-bench bytes [repetitions]`.

mod bytes;
mod kernels;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next();
    let repetitions = arguments.next().and_then(|r| r.parse().ok());
    match command.as_deref() {
        Some("ntt") => println!("{:#}", kernels::report(repetitions.unwrap_or(400))),
        Some("bytes") => println!("{:#}", bytes::report(repetitions.unwrap_or(5))),
        _ => {
            eprintln!("usage: hetal-bench ntt|bytes [repetitions]");
            std::process::exit(2);
        }
    }
}
