//! HTML and SVG. Text becomes markup here and nowhere else, so everything that is not ours is
//! escaped.

use std::fmt::Display;

/// Finished HTML or SVG.
#[derive(Clone, Debug, Default)]
pub struct Markup(String);

impl Markup {
    /// Nothing.
    pub const fn none() -> Self {
        Self(String::new())
    }

    /// The markup as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// This markup, then another.
    pub fn then(mut self, next: impl Into<Markup>) -> Self {
        self.0 += &next.into().0;
        self
    }
}

impl From<&str> for Markup {
    fn from(text: &str) -> Self {
        Self(escape(text))
    }
}

impl From<String> for Markup {
    fn from(text: String) -> Self {
        Self(escape(&text))
    }
}

impl From<&String> for Markup {
    fn from(text: &String) -> Self {
        Self(escape(text))
    }
}

impl FromIterator<Markup> for Markup {
    fn from_iter<I: IntoIterator<Item = Markup>>(all: I) -> Self {
        Self(all.into_iter().map(|markup| markup.0).collect())
    }
}

impl FromIterator<Tag> for Markup {
    fn from_iter<I: IntoIterator<Item = Tag>>(all: I) -> Self {
        all.into_iter().map(Markup::from).collect()
    }
}

/// An element that is being written.
pub struct Tag {
    name: &'static str,
    attributes: String,
    content: String,
}

/// Begins an element.
pub fn tag(name: &'static str) -> Tag {
    Tag { name, attributes: String::new(), content: String::new() }
}

impl Tag {
    /// Adds an attribute.
    pub fn attr(mut self, name: &'static str, value: impl Display) -> Self {
        self.attributes += &format!(" {name}=\"{}\"", escape(&value.to_string()));
        self
    }

    /// Adds the attribute `class`.
    pub fn class(self, value: impl Display) -> Self {
        self.attr("class", value)
    }

    /// Adds content.
    pub fn with(mut self, content: impl Into<Markup>) -> Self {
        self.content += &content.into().0;
        self
    }

    /// Adds several pieces of content.
    pub fn with_all<M: Into<Markup>>(self, all: impl IntoIterator<Item = M>) -> Self {
        all.into_iter().fold(self, Self::with)
    }

    /// Adds a style sheet that stands in this program.
    pub fn with_style(mut self, css: &'static str) -> Self {
        self.content += css;
        self
    }
}

/// HTML elements without an end.
const VOID: [&str; 3] = ["meta", "br", "link"];

impl From<Tag> for Markup {
    fn from(Tag { name, attributes, content }: Tag) -> Self {
        let end = if VOID.contains(&name) { String::new() } else { format!("</{name}>") };
        Self(format!("<{name}{attributes}>{content}{end}"))
    }
}

/// Text as it stands in HTML, between tags and in attributes. Control characters, and those that
/// change the direction of text, are replaced: they could make a page read as something else.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&apos;",
            '\n' | '\t' => escaped.push(c),
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => escaped.push('\u{fffd}'),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_text() {
        let hostile = "</script><img src=x onerror='alert(1)'>\u{202e}\u{1b}&";
        let written = Markup::from(tag("p").attr("title", hostile).with(hostile));
        let escaped = "&lt;/script&gt;&lt;img src=x onerror=&apos;alert(1)&apos;&gt;\u{fffd}\u{fffd}&amp;";
        assert_eq!(written.as_str(), format!("<p title=\"{escaped}\">{escaped}</p>"));
    }

    #[test]
    fn markup_in_markup_is_not_escaped_again() {
        let inner = tag("b").with("a < b");
        let written = Markup::from(tag("p").with(inner).with(" & ").with(tag("br")));
        assert_eq!(written.as_str(), "<p><b>a &lt; b</b> &amp; <br></p>");
    }
}
