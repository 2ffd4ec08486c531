//! Face Mask Detection: pictures with several faces, and a Pascal-VOC file for each picture that
//! gives the class and the box of every face.

use super::{FoundSamples, SampleSource, entries, number_classes};
use crate::{Error, Result, untrusted};
use std::path::Path;

/// Larger files are refused; usual ones have a few KiB.
const MAX_BYTES: u64 = 16 << 20;

/// Reads the folder: one sample for each box.
pub(crate) fn read(folder: &Path) -> Result<FoundSamples> {
    let (pictures, annotations) = (folder.join("images"), folder.join("annotations"));
    if !pictures.is_dir() || !annotations.is_dir() {
        return Err(Error::dataset(folder, "must hold the folders images and annotations"));
    }
    let mut samples = Vec::new();
    for path in entries(&annotations)?.into_iter().filter(|path| path.extension().is_some_and(|e| e == "xml")) {
        let text = untrusted::read_text(&path, MAX_BYTES).map_err(Error::io(&path))?;
        let file = tag(&text, "filename")
            .ok_or_else(|| Error::dataset(&path, "names no picture (<filename>); correct the file"))?;
        for (index, object) in objects(&text).enumerate() {
            let (class, region) = object.ok_or_else(|| {
                Error::dataset(
                    &path,
                    format!("object {} lacks a name or a box of four numbers; correct the file", index + 1),
                )
            })?;
            let picture = pictures.join(file);
            samples.push((format!("{file} face {}", index + 1), class, SampleSource::Region(picture, region)));
        }
    }
    Ok(number_classes([Some(samples), None, None]))
}

/// The text between the first `<name>` and `</name>`.
fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0.trim())
}

/// The class and the box (left, top, right, bottom) of each object; `None` for one without them.
fn objects(text: &str) -> impl Iterator<Item = Option<(String, [usize; 4])>> {
    text.split("<object>").skip(1).map(|object| {
        let object = object.split("</object>").next()?;
        let number = |name: &str| tag(object, name)?.parse::<f64>().ok().map(|x| x.max(0.0) as usize);
        let region = [number("xmin")?, number("ymin")?, number("xmax")?, number("ymax")?];
        Some((tag(object, "name")?.to_owned(), region))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_read() {
        let text = "<annotation><filename>a.png</filename><object><name>with_mask</name><bndbox><xmin>1</xmin>\
            <ymin>2</ymin><xmax>30</xmax><ymax>4</ymax></bndbox></object><object><name>x</name></object></annotation>";
        let found: Vec<_> = objects(text).collect();
        assert_eq!(found, [Some(("with_mask".to_owned(), [1, 2, 30, 4])), None]);
    }
}
