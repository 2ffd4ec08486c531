//! Text from a file, made safe to print in a terminal.

use hetal_extract_api::sanitize_terminal;

/// The most characters of a text from a file in a message.
const MAX_CHARACTERS: usize = 500;

/// A text as it may stand in a message: without control characters, and not too long.
pub(crate) fn shown(text: &str) -> String {
    sanitize_terminal(&text.chars().take(MAX_CHARACTERS).collect::<String>())
}
