//! Compares hetal with other libraries, which the product never links. All commands print JSON.
//!
//! - `hetal-bench ntt [repetitions]`: every kernel on one thread, and the transform of tfhe-ntt
//! - `hetal-bench bytes [repetitions]`: writing and reading keys
//! - `hetal-bench peers [--set NAME] [--more-keys] [--json]`: the operations of a parameter set, in
//!   units of tfhe-ntt's transform

mod bytes;
mod kernels;
mod peers;

use hetal_circuits::KeyPlan;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let repetitions = arguments.get(1).and_then(|r| r.parse().ok());
    let value_of = |flag: &str| {
        let place = arguments.iter().position(|a| a == flag)?;
        arguments.get(place + 1).map(String::as_str)
    };
    match arguments.first().map(String::as_str) {
        Some("ntt") => println!("{:#}", kernels::report(repetitions.unwrap_or(400))),
        Some("bytes") => println!("{:#}", bytes::report(repetitions.unwrap_or(5))),
        Some("peers") => {
            let more_keys = arguments.iter().any(|a| a == "--more-keys");
            let key_plan = if more_keys { KeyPlan::Most } else { KeyPlan::Fast };
            match peers::report(value_of("--set").unwrap_or("full"), key_plan) {
                Ok(report) => println!("{report}"),
                Err(error) => {
                    eprintln!("hetal-bench: {error}");
                    std::process::exit(1);
                }
            }
        }
        _ => {
            eprintln!(
                "usage: hetal-bench ntt|bytes [repetitions] | hetal-bench peers [--set NAME] [--more-keys] [--json]"
            );
            std::process::exit(2);
        }
    }
}
