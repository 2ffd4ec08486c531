//! Finds the softmax constants and prints them as the crate's data file: `cargo run --release -p
//! hetal-learn --example softmax_search > crates/learn/src/softmax/constants.json`
use hetal_learn::softmax::Schedule;
use hetal_learn::softmax::measure::Sampler;
use hetal_learn::softmax::search::{Target, search};

const CLASSES: [usize; 17] = [2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut lines = Vec::new();
    for range in [32.0, 128.0, 512.0] {
        for classes in CLASSES {
            let target = Target::new(classes, range);
            let constants = search(&target)?;
            let schedule = Schedule::new(&constants, target.top_level, target.end_level)?;
            let mut sampler = Sampler::new(classes, range, 2);
            let noisy = sampler.max_error_with_noise(20_000, &constants, &schedule, libm::ldexp(1.0, -22));
            let names: Vec<_> =
                constants.steps.iter().map(|s| format!("{s:?}").chars().take(4).collect::<String>()).collect();
            eprintln!(
                "{classes} classes, range {range}: {} levels, {} bootstraps, error {:.1e}, with noise {noisy:.1e}, cuts {:?}, degree {} {}",
                constants.depth(),
                schedule.cuts().len() + 1,
                constants.error,
                schedule.cuts(),
                constants.exponential.len() - 1,
                names.join(" "),
            );
            lines.push(serde_json::to_string(&constants)?);
        }
    }
    println!("[\n{}\n]", lines.join(",\n"));
    Ok(())
}
