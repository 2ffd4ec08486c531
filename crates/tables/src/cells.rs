//! What a field of a text table holds.

/// A field of a text table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cell<'a> {
    /// A number, perhaps an infinite one.
    Number(f64),
    /// True or false.
    Boolean(bool),
    /// Nothing, or one of the usual words for it.
    Missing,
    /// Anything else.
    Text(&'a str),
}

/// The usual words for a missing value, in small letters.
const MISSING: [&str; 13] =
    ["", "na", "n/a", "#n/a", "#na", "<na>", "nan", "-nan", "+nan", "null", "none", "?", "1.#qnan"];

impl<'a> Cell<'a> {
    /// Understands a field. With `comma`, decimals have a comma.
    pub fn of(field: &'a str, comma: bool) -> Self {
        let field = field.trim();
        if MISSING.iter().any(|word| field.eq_ignore_ascii_case(word)) {
            return Self::Missing;
        }
        if let Some(truth) = boolean(field) {
            return Self::Boolean(truth);
        }
        let number = match comma {
            true if field.contains('.') => None,
            true => field.replacen(',', ".", 1).parse().ok(),
            false => field.parse().ok(),
        };
        number.map_or(Self::Text(field), Self::Number)
    }

    pub fn is_number(self) -> bool {
        matches!(self, Self::Number(_))
    }
}

/// The truth value that Python, JSON or a spreadsheet writes like this.
pub(crate) fn boolean(field: &str) -> Option<bool> {
    match field {
        "True" | "true" | "TRUE" => Some(true),
        "False" | "false" | "FALSE" => Some(false),
        _ => None,
    }
}

/// Returns whether a text would be a number if its comma were a point.
pub(crate) fn has_decimal_comma(text: &str) -> bool {
    text.matches(',').count() == 1 && text.replacen(',', ".", 1).parse::<f64>().is_ok_and(f64::is_finite)
}

/// Returns whether a text begins with a date: year, month and day in any order, separated by `-`,
/// `/` or `.`.
pub(crate) fn is_date(text: &str) -> bool {
    let date = text.split(['T', ' ']).next().unwrap_or_default();
    let separated = |mark: char| {
        let parts: Vec<&str> = date.split(mark).collect();
        let digits = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
        let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
        parts.iter().all(digits) && matches!(lengths[..], [4, 1 | 2, 1 | 2] | [1 | 2, 1 | 2, 2 | 4])
    };
    ['-', '/', '.'].into_iter().any(separated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_understood() {
        for (field, cell) in [
            (" 1.5 ", Cell::Number(1.5)),
            ("-3e-2", Cell::Number(-0.03)),
            ("True", Cell::Boolean(true)),
            ("FALSE", Cell::Boolean(false)),
            ("", Cell::Missing),
            ("NaN", Cell::Missing),
            ("NULL", Cell::Missing),
            ("yes", Cell::Text("yes")),
            ("1,5", Cell::Text("1,5")),
            ("inf", Cell::Number(f64::INFINITY)),
        ] {
            assert_eq!(Cell::of(field, false), cell, "{field}");
        }
        assert_eq!(Cell::of("1,5", true), Cell::Number(1.5));
        assert_eq!(Cell::of("1.234", true), Cell::Text("1.234"));
        assert_eq!(Cell::of("1,234,567", true), Cell::Text("1,234,567"));
    }

    #[test]
    fn dates_are_seen() {
        for date in ["2021-01-31", "31.12.1999", "1/2/21", "2020-01-01T10:00:00Z", "2020/1/1 10:00"] {
            assert!(is_date(date), "{date}");
        }
        for other in ["1.5", "2021", "a-b-c", "192.168.1.1", "1-2", "12345-1-1", ""] {
            assert!(!is_date(other), "{other}");
        }
        assert!(has_decimal_comma("1,5") && !has_decimal_comma("a,b") && !has_decimal_comma("1,2,3"));
    }
}
