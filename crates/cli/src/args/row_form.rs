//! Arguments about the form in which rows are sent.

use hetal_client::RowFormWish;
use hetal_learn::RowForm;

/// A form of rows, or the choice between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RowFormChoice {
    /// The form that is ready sooner.
    Auto,
    /// In slots, as the circuit uses them.
    Slots,
    /// In coefficients: a fourteenth of the bytes, which the server first lifts.
    Coefficients,
}

/// Arguments about the form in which rows are sent.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct RowFormArguments {
    /// The form of the encrypted rows. `auto` takes coefficients if the server lifts a ciphertext
    /// sooner than the saved bytes would arrive.
    #[arg(long, value_enum, default_value = "auto")]
    pub rows_form: RowFormChoice,
    /// The rate of the line to the server, in Mbit/s (by default that of the last upload, or 100).
    #[arg(long, value_name = "MBIT_S", value_parser = rate)]
    pub uplink: Option<f64>,
}

impl RowFormArguments {
    /// What they ask for.
    pub fn wish(&self) -> RowFormWish {
        let form = match self.rows_form {
            RowFormChoice::Auto => None,
            RowFormChoice::Slots => Some(RowForm::Slots),
            RowFormChoice::Coefficients => Some(RowForm::Coefficients),
        };
        RowFormWish { form, uplink: self.uplink }
    }
}

/// A rate in Mbit/s.
pub fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if rate > 0.0 && rate.is_finite() { Ok(rate) } else { Err("a rate must be positive".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_positive_numbers() {
        assert_eq!(rate("12.5"), Ok(12.5));
        for bad in ["0", "-1", "inf", "NaN", "fast"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }
}
