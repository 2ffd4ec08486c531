//! Bars on the terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `length` steps on standard error (hidden where that is no terminal).
#[allow(clippy::expect_used)]
pub fn bar(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:32} {bar:30} {pos}/{len}  {elapsed_precise} (left {eta})")
        .expect("the template is a constant");
    ProgressBar::new(length).with_style(style)
}
