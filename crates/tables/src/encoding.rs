//! Text of a file, decoded exactly or refused.

use crate::problem::reserved;
use crate::{Encoding, FileProblem, Parsed};
use std::borrow::Cow;

const UTF8_MARK: &[u8] = b"\xEF\xBB\xBF";

/// What Windows-1252 has in the place of the control characters from 0x80 on. Five bytes are not
/// assigned.
const WINDOWS: [Option<char>; 32] = [
    Some('€'),
    None,
    Some('‚'),
    Some('ƒ'),
    Some('„'),
    Some('…'),
    Some('†'),
    Some('‡'),
    Some('ˆ'),
    Some('‰'),
    Some('Š'),
    Some('‹'),
    Some('Œ'),
    None,
    Some('Ž'),
    None,
    None,
    Some('‘'),
    Some('’'),
    Some('“'),
    Some('”'),
    Some('•'),
    Some('–'),
    Some('—'),
    Some('˜'),
    Some('™'),
    Some('š'),
    Some('›'),
    Some('œ'),
    None,
    Some('ž'),
    Some('Ÿ'),
];

/// Decodes the bytes of a file. What is not valid text is an error with its row and byte.
pub(crate) fn decode(bytes: &[u8], encoding: Encoding) -> Parsed<Cow<'_, str>> {
    let text = match encoding {
        Encoding::Utf8 => utf8(bytes)?.into(),
        Encoding::Latin1 => single_bytes(bytes, |byte| (!(0x80..0xA0).contains(&byte)).then(|| char::from(byte)))
            .map_err(|at| wrong(bytes, at, "latin1", "is it windows-1252? Give --encoding windows-1252"))??
            .into(),
        Encoding::Windows1252 => single_bytes(bytes, windows)
            .map_err(|at| {
                wrong(bytes, at, "windows-1252", "give the --encoding of the file: utf-8, latin1 or utf-16")
            })??
            .into(),
        Encoding::Utf16 => utf16(bytes)?.into(),
    };
    let text: Cow<'_, str> = text;
    match text.find('\0') {
        Some(at) => Err(FileProblem::Binary { row: line(text.as_bytes(), at), byte: at }),
        None => Ok(text),
    }
}

fn utf8(bytes: &[u8]) -> Parsed<&str> {
    if bytes.starts_with(b"\xFF\xFE") || bytes.starts_with(b"\xFE\xFF") {
        return Err(wrong(bytes, 0, "UTF-8", "it begins like UTF-16: give --encoding utf-16"));
    }
    let content = bytes.strip_prefix(UTF8_MARK).unwrap_or(bytes);
    let advice = "give the file's --encoding (latin1, windows-1252 or utf-16), or save it as UTF-8";
    let at = |e: std::str::Utf8Error| wrong(bytes, bytes.len() - content.len() + e.valid_up_to(), "UTF-8", advice);
    std::str::from_utf8(content).map_err(at)
}

fn windows(byte: u8) -> Option<char> {
    match byte {
        0x80..0xA0 => WINDOWS[usize::from(byte - 0x80)],
        _ => Some(char::from(byte)),
    }
}

/// Decodes byte by byte, or gives the place of a byte that means nothing.
fn single_bytes(bytes: &[u8], decode: impl Fn(u8) -> Option<char>) -> Result<Parsed<String>, usize> {
    if let Some(at) = bytes.iter().position(|&byte| decode(byte).is_none()) {
        return Err(at);
    }
    let length = bytes.iter().filter_map(|&byte| decode(byte)).map(char::len_utf8).sum();
    Ok(with_room(length).map(|mut text| {
        text.extend(bytes.iter().filter_map(|&byte| decode(byte)));
        text
    }))
}

fn utf16(bytes: &[u8]) -> Parsed<String> {
    let (big, content) = match bytes {
        [0xFE, 0xFF, rest @ ..] => (true, rest),
        [0xFF, 0xFE, rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let mark = bytes.len() - content.len();
    let bad = |at: usize| {
        // Rows are counted by the line feeds of two bytes before.
        let lines = content[..at].chunks_exact(2).filter(|pair| unit(pair, big) == u16::from(b'\n')).count();
        encoding_problem(
            lines + 1,
            mark + at,
            bytes.get(mark + at),
            "UTF-16",
            "give the file's --encoding, or save it as UTF-8",
        )
    };
    if content.len() % 2 != 0 {
        return Err(bad(content.len() - 1));
    }
    // A unit of two bytes becomes at most three bytes.
    let mut text = with_room(content.len() / 2 * 3)?;
    let mut at = 0;
    for decoded in char::decode_utf16(content.chunks_exact(2).map(|pair| unit(pair, big))) {
        let character = decoded.map_err(|_| bad(at))?;
        at += 2 * character.len_utf16();
        text.push(character);
    }
    Ok(text)
}

fn unit(pair: &[u8], big: bool) -> u16 {
    let pair = [pair[0], pair[1]];
    if big { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) }
}

fn with_room(length: usize) -> Parsed<String> {
    Ok(String::from_utf8(reserved(length)?).unwrap_or_default())
}

fn wrong(bytes: &[u8], at: usize, encoding: &'static str, advice: &'static str) -> FileProblem {
    encoding_problem(line(bytes, at), at, bytes.get(at), encoding, advice)
}

fn encoding_problem(
    row: usize,
    byte: usize,
    value: Option<&u8>,
    encoding: &'static str,
    advice: &'static str,
) -> FileProblem {
    FileProblem::Encoding { row, byte, value: value.copied().unwrap_or(0), encoding, advice }
}

/// The line of a place, counted from 1.
fn line(bytes: &[u8], at: usize) -> usize {
    bytes[..at.min(bytes.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_read_exactly() {
        let read = |bytes: &[u8], encoding| decode(bytes, encoding).unwrap().into_owned();
        assert_eq!(read("\u{feff}é€".as_bytes(), Encoding::Utf8), "é€");
        assert_eq!(read(b"caf\xe9", Encoding::Latin1), "café");
        assert_eq!(read(b"\x80 \x9f \xe9", Encoding::Windows1252), "€ Ÿ é");
        assert_eq!(read(b"\xff\xfea\0\x3d\xd8\x00\xde", Encoding::Utf16), "a😀");
        assert_eq!(read(b"\xfe\xff\0a\0b", Encoding::Utf16), "ab");
        assert_eq!(read(b"a\0b\0", Encoding::Utf16), "ab");
    }

    #[test]
    fn what_is_no_text_is_refused_with_its_place() {
        let said = |bytes: &[u8], encoding| decode(bytes, encoding).unwrap_err().to_string();
        let latin = said(b"a,b\nMontr\xe9al,1\n", Encoding::Utf8);
        assert!(latin.starts_with("line 2, byte 9: 0xe9 is not valid UTF-8"), "{latin}");
        assert!(latin.contains("--encoding (latin1, windows-1252 or utf-16)"), "{latin}");
        assert!(said(b"\xff\xfea\0", Encoding::Utf8).contains("give --encoding utf-16"));
        assert!(said(b"a\0b\0", Encoding::Utf8).contains("--encoding utf-16"), "{}", said(b"a\0b\0", Encoding::Utf8));
        assert!(said(b"ab\x80", Encoding::Latin1).contains("--encoding windows-1252"));
        assert!(said(b"a\n\x81", Encoding::Windows1252).starts_with("line 2, byte 2: 0x81"));
        assert!(said(b"a\0\n\0\0\xd8", Encoding::Utf16).starts_with("line 2, byte 4"));
        assert!(said(b"a\0b", Encoding::Utf16).contains("not valid UTF-16"));
    }
}
