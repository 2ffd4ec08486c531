//! The operations of a parameter set and the transform of tfhe-ntt, measured in one run.

use crate::kernels::{ForwardPair, median};
use hetal_circuits::KeyPlan;
use hetal_experiments::Result;
use hetal_experiments::bench::ops::{self, CpuOptions};
use serde_json::Value;

/// Measures `hetal bench ops` and, after each bootstrap on one thread, the forward transforms
/// (N = 65536, 50-bit prime) of hetal and of tfhe-ntt.
///
/// Clock rate and load of the machine are then the same for all three. One *NTT unit* is the time
/// of tfhe-ntt's transform. Ratios and units are medians over the bootstraps.
pub fn report(set: &str, key_plan: KeyPlan) -> Result<Value> {
    let mut pair = ForwardPair::new();
    let (mut ours, mut theirs, mut ratios, mut bootstraps) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut on_bootstrap = |seconds: f64| {
        let (our_us, their_us) = pair.measure();
        ours.push(our_us);
        theirs.push(their_us);
        ratios.push(our_us / their_us);
        bootstraps.push(1e6 * seconds / their_us);
    };
    let options = CpuOptions { set, threads: 1, key_plan, small_set_command: &["peers", "--set", "small"] };
    let mut report = ops::measure(&options, &mut on_bootstrap)?;
    let [ours, theirs, ratio, bootstrap] = [ours, theirs, ratios, bootstraps].map(|mut values| median(&mut values));
    let units = |microseconds: f64| microseconds / theirs;
    let figure = |name: &str| report.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let ratios = [
        ("ntt_us", ours),
        ("tfhe_ntt_us", theirs),
        ("ntt_ratio", ratio),
        ("bootstrap_ntt_units", bootstrap),
        ("mult_relin_rescale_ntt_units", units(1e3 * figure("mult_relin_rescale_ms"))),
        ("rotate_ntt_units", units(1e3 * figure("rotate_ms"))),
        ("two_thread_ratio", figure("bootstrap_wall_2t_s") / figure("bootstrap_wall_1t_s")),
        ("small_bootstrap_ratio", figure("small_bootstrap_cpu_s") / figure("bootstrap_cpu_s")),
    ];
    for (name, value) in ratios {
        if value.is_finite() {
            report.insert(name.to_owned(), value.into());
        }
    }
    Ok(report.into())
}
