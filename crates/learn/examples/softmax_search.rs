//! Finds the softmax constants and prints them as the crate's data file: `cargo run --release -p
//! hetal-learn --example softmax_search > crates/learn/src/softmax/constants.json`
use hetal_learn::softmax::measure::Sampler;
use hetal_learn::softmax::search::{best, two_classes};
use hetal_learn::softmax::{Constants, Schedule};
use hetal_learn::{LevelPlan, judge::RANGES};

const CLASSES: [usize; 17] = [2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128];
const TOP_LEVEL: usize = 13;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut all = vec![two_classes(RANGES[0])?];
    for range in &RANGES[1..] {
        for classes in CLASSES {
            all.push(best(classes, *range)?);
        }
    }
    all.iter().try_for_each(describe)?;
    let lines: Vec<String> = all.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    println!("[\n{}\n]", lines.join(",\n"));
    Ok(())
}

fn describe(constants: &Constants) -> Result<(), Box<dyn std::error::Error>> {
    let schedule = Schedule::new(constants, TOP_LEVEL, LevelPlan::lowest().probabilities())?;
    let mut sampler = Sampler::new(constants.classes, constants.range, 2);
    let noisy = sampler.max_error_with_noise(20_000, constants, &schedule, libm::ldexp(1.0, -22));
    let names: Vec<_> = constants.steps.iter().map(|s| format!("{s:?}").chars().take(4).collect::<String>()).collect();
    eprintln!(
        "{} classes, range {}: {} levels, {} bootstraps, error {:.1e}, with noise {noisy:.1e}, cuts {:?}, degree {} {}",
        constants.classes,
        constants.range,
        constants.depth(),
        schedule.cuts().len() + 1,
        constants.error,
        schedule.cuts(),
        constants.exponential.len() - 1,
        names.join(" "),
    );
    Ok(())
}
