//! The orientation of a picture, from its EXIF data.

/// The tag of the orientation.
const ORIENTATION: u16 = 0x0112;

/// The orientation (1 to 8) in EXIF data; `None` if the bytes hold none or are no EXIF data.
pub(crate) fn of(exif: &[u8]) -> Option<u16> {
    // The segment of a JPEG file begins with a name, which some decoders keep.
    let tiff = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    let little = match tiff.get(..4)? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = [*tiff.get(at)?, *tiff.get(at + 1)?];
        Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let long = |at: usize| {
        let bytes: [u8; 4] = tiff.get(at..at + 4)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let directory = long(4)? as usize;
    let entries = usize::from(short(directory)?);
    let entry = (0..entries).map(|i| directory + 2 + 12 * i).find(|&entry| short(entry) == Some(ORIENTATION))?;
    // A value of type short (3) is in the first two of the last four bytes of the entry.
    (short(entry + 2)? == 3).then(|| short(entry + 8)).flatten().filter(|value| (1..=8).contains(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exif(little: bool, orientation: u16) -> Vec<u8> {
        let short = |x: u16| if little { x.to_le_bytes() } else { x.to_be_bytes() };
        let long = |x: u32| if little { x.to_le_bytes() } else { x.to_be_bytes() };
        let mut bytes = if little { b"II*\0".to_vec() } else { b"MM\0*".to_vec() };
        bytes.extend([long(8).as_slice(), &short(2)].concat());
        for (tag, value) in [(0x0100, 640), (ORIENTATION, orientation)] {
            bytes.extend([&short(tag)[..], &short(3), &long(1), &short(value), &[0, 0]].concat());
        }
        bytes
    }

    #[test]
    fn both_byte_orders_are_read_and_nothing_else_is() {
        for little in [true, false] {
            let bytes = exif(little, 6);
            assert_eq!(of(&bytes), Some(6));
            assert_eq!(of(&[b"Exif\0\0", &bytes[..]].concat()), Some(6));
            // Truncated data has no orientation.
            (0..bytes.len() - 2).for_each(|cut| assert_eq!(of(&bytes[..cut]), None, "cut at {cut}"));
            assert_eq!(of(&exif(little, 9)), None);
        }
        assert_eq!(of(b"II*\0\xFF\xFF\xFF\xFF"), None);
    }
}
