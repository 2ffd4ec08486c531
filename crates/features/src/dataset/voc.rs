//! Face Mask Detection: pictures with several faces, a Pascal-VOC file beside each with a box for every face.

use super::{Found, Source, entries, number_classes};
use crate::{Error, Result};
use std::path::Path;

/// One sample for each box.
pub(crate) fn read(folder: &Path) -> Result<Found> {
    let (pictures, annotations) = (folder.join("images"), folder.join("annotations"));
    if !pictures.is_dir() || !annotations.is_dir() {
        return Err(Error::dataset(folder, "must hold the folders images and annotations"));
    }
    let mut samples = Vec::new();
    for path in entries(&annotations)?.into_iter().filter(|path| path.extension().is_some_and(|e| e == "xml")) {
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        let file = tag(&text, "filename").ok_or_else(|| Error::dataset(&path, "names no picture (<filename>)"))?;
        for (index, object) in objects(&text).enumerate() {
            let (class, region) = object.ok_or_else(|| {
                Error::dataset(&path, format!("object {} lacks a name or a box of four numbers", index + 1))
            })?;
            let picture = pictures.join(file);
            samples.push((format!("{file} face {}", index + 1), class, Source::Region(picture, region)));
        }
    }
    Ok(number_classes([Some(samples), None, None]))
}

/// The text between the first `<name>` and `</name>`.
fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0.trim())
}

/// Class and box (left, top, right, bottom) of each object; `None` for one that lacks them.
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
