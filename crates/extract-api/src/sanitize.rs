//! Names of files and messages of others, before they are shown on a terminal.

/// A text without control characters and without marks that change the direction of writing: it
/// cannot move a terminal's cursor, set its clipboard or reorder what is shown.
pub fn sanitize_terminal(text: &str) -> String {
    text.chars().map(|c| if c.is_control() || changes_direction(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn changes_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The first `most` characters of a text, with `...` where something is left out: a name from a
/// file can have any length.
pub fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(sanitize_terminal("a\x1b[2Jb\r\u{202e}c\u{9b}"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c\u{fffd}");
        assert_eq!(sanitize_terminal("Zürich: 3 × 4 µs"), "Zürich: 3 × 4 µs");
    }

    #[test]
    fn long_texts_lose_their_end() {
        assert_eq!(shorten("über", 4), "über");
        assert_eq!(shorten("über alles", 4), "über...");
    }
}
