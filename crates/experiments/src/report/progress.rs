//! Progress bars on standard error.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `length` steps; hidden if standard error is not a terminal.
#[allow(clippy::expect_used)]
pub fn bar(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:32} {bar:30} {pos}/{len}  {elapsed_precise} (left {eta})")
        .expect("the template is a constant");
    ProgressBar::new(length).with_style(style)
}

/// A message with a spinner, for one step of unknown length.
pub fn spinner(message: impl Into<std::borrow::Cow<'static, str>>) -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_message(message);
    spinner.enable_steady_tick(std::time::Duration::from_millis(200));
    spinner
}
