//! Progress bars on the terminal.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A bar of `length` steps on standard error (hidden where that is no terminal).
#[allow(clippy::expect_used)]
pub fn bar(length: u64, message: impl Into<std::borrow::Cow<'static, str>>) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:32} {bar:30} {pos}/{len}  {elapsed_precise} (left {eta})")
        .expect("the template is a constant");
    let bar = ProgressBar::new(length).with_style(style).with_message(message);
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// A message with the time it has been there, for one step of unknown length.
pub fn spinner(message: impl Into<std::borrow::Cow<'static, str>>) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(message);
    spinner.enable_steady_tick(Duration::from_millis(200));
    spinner
}
