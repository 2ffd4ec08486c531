//! The table of parameter sets that `hetal params` prints.

use crate::Result;
use hetal_circuits::bootstrap;
use hetal_ckks::Params;
use hetal_ckks::params::BUILT_IN;
use serde_json::{Value, json};

/// The error of a bootstrap over all slots, as log2.
#[derive(Clone, Copy, Debug)]
pub struct ErrorLog2 {
    /// The mean of `|error|`.
    pub mean: f64,
    /// The largest `|error|`.
    pub max: f64,
}

const fn error(mean: f64, max: f64) -> ErrorLog2 {
    ErrorLog2 { mean, max }
}

/// The precision of a set's bootstraps.
struct Precision {
    set: &'static str,
    /// Extrapolated from measurements of another library.
    modelled: Option<ErrorLog2>,
    /// Measured by `hetal bench ops` (docs/benchmarks.md).
    measured: ErrorLog2,
}

const PRECISION: [Precision; 4] = [
    Precision { set: "full", modelled: Some(error(-25.1, -22.2)), measured: error(-25.4, -22.2) },
    Precision { set: "small", modelled: Some(error(-15.7, -12.9)), measured: error(-16.1, -13.9) },
    Precision { set: "insecure-toy11", modelled: None, measured: error(-27.4, -25.3) },
    Precision { set: "insecure-toy12", modelled: None, measured: error(-27.0, -24.7) },
];

/// The measured error of a set's bootstraps; `None` for a set that was not measured.
pub fn measured_precision(set: &str) -> Option<ErrorLog2> {
    PRECISION.iter().find(|p| p.set == set).map(|p| p.measured)
}

/// All built-in sets, one flat JSON object each.
pub fn table() -> Result<Vec<Value>> {
    BUILT_IN.iter().map(|literal| describe(&Params::named(&literal.name)?)).collect()
}

fn describe(params: &Params) -> Result<Value> {
    let wanted = bootstrap::keys(params);
    let limbs: usize = wanted.iter().map(|&(id, q)| id.total_limbs(params, q)).sum();
    let bytes = limbs * params.degree() * 8;
    let stored = hetal_ckks::bytes::key_set_len(params, &wanted).map_err(hetal_ckks::Error::from)?;
    let modelled = PRECISION.iter().find(|p| p.set == params.name()).and_then(|p| p.modelled);
    let pair = |error: Option<ErrorLog2>| error.map(|error| json!([error.mean, error.max]));
    Ok(json!({
        "set": params.name(),
        "log_n": params.log_n(),
        "slots": params.slots(),
        "log_qp": (params.log_qp(params.full_basis()) * 10.0).round() / 10.0,
        "security": params.security().to_string(),
        "security_bits": params.security().bits(),
        "usable_levels": params.top_level(),
        "limbs_q": params.full_basis().q,
        "limbs_p": params.full_basis().p,
        "digits": params.digits(params.full_basis().q),
        "bootstrap_keys": wanted.len(),
        "bootstrap_keys_gib": bytes as f64 / f64::from(1 << 30),
        "bootstrap_keys_bytes_gib": stored as f64 / f64::from(1 << 30),
        "precision_modelled_log2": pair(modelled),
        "precision_measured_log2": pair(measured_precision(params.name())),
    }))
}

/// The table as text, with one column for each set.
pub fn text(table: &[Value]) -> String {
    let Some(names) = table.first().and_then(Value::as_object) else { return String::new() };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_f64().map_or_else(String::new, short),
        Value::Array(values) => values.iter().filter_map(Value::as_f64).map(short).collect::<Vec<_>>().join(" / "),
        _ => "-".to_owned(),
    };
    let names = std::iter::once("set").chain(names.keys().map(String::as_str).filter(|&name| name != "set"));
    let line = |name: &str| {
        let cells: String = table.iter().map(|set| format!("{:>16}", text(&set[name]))).collect();
        format!("{name:26}{cells}\n")
    };
    names.map(line).collect()
}

/// A number with at most two decimals.
fn short(x: f64) -> String {
    if x.fract() == 0.0 { format!("{x}") } else { format!("{:.2}", x).trim_end_matches('0').to_owned() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bootstrap_noise::BootstrapNoise;

    /// A new built-in set needs a measured precision, and no entry is of a set that is gone.
    #[test]
    fn every_built_in_set_has_a_measured_precision() {
        for literal in &BUILT_IN {
            assert!(measured_precision(&literal.name).is_some(), "no entry for {}", literal.name);
            assert!(BootstrapNoise::of(&literal.name).is_ok());
        }
        assert!(PRECISION.iter().all(|entry| Params::named(entry.set).is_ok()));
        let table = table().unwrap();
        assert_eq!(table.len(), BUILT_IN.len());
        assert!(table.iter().all(|set| set["precision_measured_log2"].is_array()));
    }
}
