//! The operations of a parameter set beside tfhe-ntt's transform, in one run.

use crate::kernels;
use hetal_circuits::bootstrap::Steps;
use hetal_cli::{Result, ops};
use serde_json::Value;

/// The figures of `hetal bench ops`, tfhe-ntt's forward transform (N = 65536, 50-bit prime) before and after them, and the
/// ratios. One *NTT unit* is the lesser of tfhe-ntt's two times: it cancels the machine.
pub fn report(set: &str, steps: Steps) -> Result<Value> {
    let before = kernels::forward_pair(400);
    let mut report = ops::report(set, 1, steps, &["peers", "--set", "small"])?;
    let after = kernels::forward_pair(400);
    let (ours, theirs) = (before.0.min(after.0), before.1.min(after.1));
    let units = |microseconds: f64| microseconds / theirs;
    let figure = |name: &str| report.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let ratios = [
        ("ntt_us", ours),
        ("tfhe_ntt_us", theirs),
        ("ntt_ratio", ours / theirs),
        ("bootstrap_ntt_units", units(1e6 * figure("bootstrap_cpu_s"))),
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
