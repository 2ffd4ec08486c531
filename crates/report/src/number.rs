//! Numbers as people read them. Each stands in an element `data` whose `value` is the number of the
//! record.

use crate::markup::{Markup, Tag, tag};

/// What is shown where a number is unknown.
pub const UNKNOWN: &str = "not known";

fn data(value: impl std::fmt::Display, shown: String) -> Tag {
    tag("data").attr("value", value).with(shown)
}

/// A share, in percent.
pub fn percent(share: f64) -> Tag {
    data(share, percent_text(share))
}

/// The text of [`percent`].
pub fn percent_text(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// A loss or a score, in thousandths.
pub fn score(value: f64) -> Tag {
    data(value, score_text(value))
}

/// The text of [`score`].
pub fn score_text(value: f64) -> String {
    format!("{value:.3}")
}

/// A number with as many digits as it has.
pub fn plain(value: f64) -> Tag {
    data(value, plain_text(value))
}

/// The text of [`plain`].
pub fn plain_text(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e6).contains(&value.abs()) { format!("{value:e}") } else { value.to_string() }
}

/// A small bound.
pub fn bound(value: f64) -> Tag {
    data(value, format!("{value:.1e}"))
}

/// A whole number, with commas.
pub fn count(value: impl TryInto<u64> + Copy + std::fmt::Display) -> Tag {
    data(value, count_text(value.try_into().unwrap_or(u64::MAX)))
}

/// The text of [`count`].
pub fn count_text(value: u64) -> String {
    let digits = value.to_string();
    let group = |(k, c): (usize, char)| {
        let comma = k > 0 && (digits.len() - k).is_multiple_of(3);
        comma.then_some(',').into_iter().chain([c])
    };
    digits.chars().enumerate().flat_map(group).collect()
}

/// A number of bytes.
pub fn bytes(value: u64) -> Tag {
    data(value, bytes_text(value))
}

/// The text of [`bytes`].
pub fn bytes_text(value: u64) -> String {
    let number = value as f64;
    match value {
        1_000_000_000_000.. => format!("{:.2} TB", number / 1e12),
        100_000_000_000.. => format!("{:.0} GB", number / 1e9),
        10_000_000_000.. => format!("{:.1} GB", number / 1e9),
        1_000_000_000.. => format!("{:.2} GB", number / 1e9),
        1_000_000.. => format!("{:.1} MB", number / 1e6),
        1_000.. => format!("{:.1} kB", number / 1e3),
        _ => format!("{value} bytes"),
    }
}

/// A duration.
pub fn seconds(value: f64) -> Tag {
    data(value, seconds_text(value))
}

/// The text of [`seconds`].
pub fn seconds_text(value: f64) -> String {
    let whole = value.round() as u64;
    match value {
        s if s >= 3600.0 => format!("{} h {:02} min", whole / 3600, whole / 60 % 60),
        s if s >= 90.0 => format!("{} min {:02} s", whole / 60, whole % 60),
        s if s >= 9.95 => format!("{whole} s"),
        s if s >= 0.0995 => format!("{s:.1} s"),
        s if s > 0.0 => format!("{:.0} ms", (s * 1e3).max(1.0)),
        _ => "0 s".to_owned(),
    }
}

/// A moment in UTC, as the record has it (`2026-11-18T20:31:05Z`).
pub fn moment(iso: &str) -> Tag {
    let shown = iso.replacen('T', " ", 1).replace('Z', " UTC");
    tag("time").attr("datetime", iso).with(shown)
}

/// A number, or that it is not known.
pub fn or_unknown<T>(value: Option<T>, show: impl FnOnce(T) -> Tag) -> Markup {
    value.map_or_else(|| tag("span").class("unknown").with(UNKNOWN).into(), |value| show(value).into())
}

/// Seconds since 1970 as a moment in UTC.
pub fn iso(unix: u64) -> String {
    let (days, rest) = (unix / 86_400, unix % 86_400);
    // Days of the proleptic Gregorian calendar, in years that begin in March.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = 400 * era + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        // As `date -u -d @N +%FT%TZ` prints them.
        for (unix, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_034_165, "2026-11-18T20:36:05Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(iso(unix), expected);
        }
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(["1", "1,234", "1,234,567"], [1, 1234, 1_234_567].map(count_text));
        let durations = [0.0, 0.04, 0.5, 12.3, 95.0, 5400.0].map(seconds_text);
        assert_eq!(["0 s", "40 ms", "0.5 s", "12 s", "1 min 35 s", "1 h 30 min"], durations);
        let sizes = [999, 1_700_000_000, 61_203_000_000, 150_100_000_000].map(bytes_text);
        assert_eq!(["999 bytes", "1.70 GB", "61.2 GB", "150 GB"], sizes);
        assert_eq!(["0.1", "1e-5", "2", "0"], [0.1, 1e-5, 2.0, 0.0].map(plain_text));
    }
}
