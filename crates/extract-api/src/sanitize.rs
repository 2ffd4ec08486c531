//! Text from others (a server, a file, a file name), made safe to print in a terminal.

/// Replaces control characters and characters that change the writing direction, so that a text
/// cannot move the cursor of a terminal, set its clipboard or reorder letters.
pub fn sanitize_terminal(text: &str) -> String {
    text.chars().map(sanitized).collect()
}

/// Sanitizes a text of several lines and keeps the ends of lines and tabs.
pub fn sanitize_lines(text: &str) -> String {
    let clean = |c| if c == '\n' || c == '\t' { c } else { sanitized(c) };
    text.chars().map(clean).collect()
}

/// Escapes in JSON what [`sanitize_terminal`] replaces elsewhere. The value stays the same.
pub fn escape_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if sanitized(c) == c {
            escaped.push(c);
        } else {
            escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
        }
    }
    escaped
}

/// The first `most` characters of a text, with `...` where something is left out: a name from a
/// file can have any length.
pub fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// The character, or the replacement character if it does something to a terminal.
fn sanitized(c: char) -> char {
    if c.is_control() || changes_direction(c) { char::REPLACEMENT_CHARACTER } else { c }
}

/// Returns whether a character changes the writing direction.
fn changes_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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
    fn lines_stay_lines_and_json_stays_the_same_value() {
        assert_eq!(sanitize_lines("a\n\tb\x1b[1m\u{9b}"), "a\n\tb\u{fffd}[1m\u{fffd}");
        let value = serde_json::json!({ "class": "a\x1b\u{9b}2J\u{202e}b" });
        let shown = escape_json(&value.to_string());
        assert!(!shown.chars().any(|c| c.is_control() || changes_direction(c)), "{shown:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }

    #[test]
    fn long_texts_lose_their_end() {
        assert_eq!(shorten("über", 4), "über");
        assert_eq!(shorten("über alles", 4), "über...");
    }
}
