//! Text from a file, made safe to print in a terminal.

/// The most characters of a text from a file in a message.
const MAX_CHARACTERS: usize = 500;

/// Replaces control characters and characters that change the writing direction, so that a text
/// cannot move the cursor of a terminal, set its clipboard or reorder letters.
pub fn sanitize_terminal(text: &str) -> String {
    text.chars().map(sanitize_character).collect()
}

/// The character, or the replacement character if it does something to a terminal.
pub fn sanitize_character(c: char) -> char {
    if c.is_control() || changes_direction(c) { char::REPLACEMENT_CHARACTER } else { c }
}

/// Returns whether a character changes the writing direction.
fn changes_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text as it may stand in a message: without control characters, and not too long.
pub(crate) fn shown(text: &str) -> String {
    sanitize_terminal(&text.chars().take(MAX_CHARACTERS).collect::<String>())
}
