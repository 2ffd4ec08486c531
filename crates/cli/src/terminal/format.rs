//! Formats numbers for people.

/// Formats a number of bytes.
pub fn bytes(count: u64) -> String {
    let count = count as f64;
    match count {
        _ if count >= 1e9 => format!("{:.2} GB", count / 1e9),
        _ if count >= 1e6 => format!("{:.1} MB", count / 1e6),
        _ if count >= 1e3 => format!("{:.1} kB", count / 1e3),
        _ => format!("{count} bytes"),
    }
}

/// Formats a duration.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 5400.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 90.0 => format!("{:.1} min", s / 60.0),
        s if s >= 9.95 => format!("{s:.0} s"),
        s => format!("{s:.1} s"),
    }
}

/// Formats the security of a parameter set.
pub fn security(params: &hetal_ckks::Params) -> String {
    let security = params.security();
    if security.bits() > 0.0 {
        format!("{security} bits of security")
    } else {
        "NO SECURITY: for tests only".to_owned()
    }
}

/// Warns on standard error if a parameter set gives no security, whoever chose it.
pub fn warn_if_insecure(params: &hetal_ckks::Params) {
    if params.security().bits() <= 0.0 {
        eprintln!(
            "WARNING: parameter set {} gives NO SECURITY: the server can read everything. It is for tests with public \
             rows; use a new --dir without --set for a secure project",
            params.name()
        );
    }
}

/// The suffix of an ordinal number.
pub fn ordinal(n: usize) -> &'static str {
    match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    }
}
