//! Charts as SVG. Colours and fonts come from the style sheet, so that they follow the page.

use crate::markup::{Markup, Tag, tag};

/// The size of a wide chart, in its own units.
pub const WIDE: (f64, f64) = (380.0, 220.0);
/// The size of a square chart.
pub const SQUARE: (f64, f64) = (380.0, 360.0);
const LEFT: f64 = 52.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 36.0;
/// The space between the frame and the first and last of counted things, so that marks on them
/// cover no label.
const MARGIN: f64 = 12.0;
/// Lines of more points have no marks on them.
const MOST_MARKS: usize = 60;

/// An axis: its name, the values of its ticks and how they are written.
pub struct Axis {
    name: &'static str,
    ticks: Vec<f64>,
    decimals: usize,
    percent: bool,
    margin: f64,
}

impl Axis {
    /// An axis over some values, which begins and ends at ticks.
    pub fn over(name: &'static str, values: impl IntoIterator<Item = f64>) -> Self {
        let finite = values.into_iter().filter(|value| value.is_finite());
        let (low, high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let width = if high > low { high - low } else { high.abs().max(1.0) * 0.1 };
        let step = nice(width / 4.0);
        let (first, last) = ((low / step).floor(), (high / step).ceil());
        let last = if last > first { last } else { first + 1.0 };
        let ticks = (0..=(last - first) as usize).map(|k| (first + k as f64) * step).collect();
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        Self { name, ticks, decimals, percent: false, margin: 0.0 }
    }

    /// An axis of whole numbers from 1 or 0.
    pub fn whole(name: &'static str, first: usize, last: usize) -> Self {
        let last = last.max(first + 1);
        let step = (nice((last - first) as f64 / 6.0).ceil() as usize).max(1);
        let mut ticks: Vec<f64> = (first..=last).filter(|k| *k == first || k % step == 0).map(|k| k as f64).collect();
        // Ticks that are too near each other would be written over each other.
        if ticks.len() > 2 && ticks[1] - ticks[0] < step as f64 * 0.5 {
            ticks.remove(1);
        }
        if ticks.last() != Some(&(last as f64)) {
            if ticks.last().is_some_and(|t| last as f64 - t < step as f64 * 0.5) && ticks.len() > 1 {
                ticks.pop();
            }
            ticks.push(last as f64);
        }
        Self { name, ticks, decimals: 0, percent: false, margin: MARGIN }
    }

    /// Shares from 0 to 1.
    pub fn share(name: &'static str) -> Self {
        Self { name, ticks: [0.0, 0.25, 0.5, 0.75, 1.0].to_vec(), decimals: 0, percent: true, margin: 0.0 }
    }

    /// The same axis, written in percent.
    pub fn in_percent(self) -> Self {
        let decimals = self.decimals.saturating_sub(2);
        Self { decimals, percent: true, ..self }
    }

    fn ends(&self) -> (f64, f64) {
        (self.ticks.first().copied().unwrap_or(0.0), self.ticks.last().copied().unwrap_or(1.0))
    }

    fn label(&self, value: f64) -> String {
        let decimals = self.decimals;
        if self.percent { format!("{:.decimals$} %", 100.0 * value) } else { format!("{value:.decimals$}") }
    }
}

/// The smallest of 1, 2, 5, 10, ... times a power of ten that is at least `width`.
fn nice(width: f64) -> f64 {
    let power = 10f64.powf(width.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| *step >= width * 0.999).unwrap_or(power)
}

/// A chart.
pub struct Chart {
    size: (f64, f64),
    x: Axis,
    y: Axis,
    content: Markup,
}

impl Chart {
    /// A chart without content.
    pub fn new(size: (f64, f64), x: Axis, y: Axis) -> Self {
        Self { size, x, y, content: Markup::none() }
    }

    fn x(&self, value: f64) -> f64 {
        let (low, high) = self.x.ends();
        let margin = self.x.margin;
        LEFT + margin + (value - low) / (high - low) * (self.size.0 - LEFT - RIGHT - 2.0 * margin)
    }

    fn y(&self, value: f64) -> f64 {
        let (low, high) = self.y.ends();
        let height = self.size.1 - TOP - BOTTOM;
        TOP + (1.0 - ((value - low) / (high - low)).clamp(-0.05, 1.05)) * height
    }

    fn add(self, content: impl Into<Markup>) -> Self {
        let content = self.content.clone().then(content);
        Self { content, ..self }
    }

    /// A line through points, of a class of the style sheet.
    pub fn line(self, class: &str, points: &[(f64, f64)]) -> Self {
        let path = self.path(points);
        self.add(tag("path").class(format!("line {class}")).attr("d", path))
    }

    /// A line that changes in steps: what holds at a point holds since the point before.
    pub fn steps(self, class: &str, points: &[(f64, f64)]) -> Self {
        let corners = points.windows(2).flat_map(|pair| [pair[0], (pair[0].0, pair[1].1)]);
        let corners: Vec<_> = corners.chain(points.last().copied()).collect();
        self.line(class, &corners)
    }

    /// The area below a line.
    pub fn area(self, class: &str, points: &[(f64, f64)]) -> Self {
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return self };
        let low = self.y.ends().0;
        let around: Vec<_> = [(first.0, low)].into_iter().chain(points.to_vec()).chain([(last.0, low)]).collect();
        let path = self.path(&around) + "Z";
        self.add(tag("path").class(format!("area {class}")).attr("d", path))
    }

    /// Marks on points, each with a text that a mouse shows.
    pub fn marks(self, class: &str, points: &[(f64, f64, String)]) -> Self {
        if points.len() > MOST_MARKS {
            return self;
        }
        let radius = if points.len() > 24 { 2.2 } else { 3.2 };
        let marks: Markup =
            points.iter().map(|(x, y, text)| self.mark(class, *x, *y, radius).with(tag("title").with(text))).collect();
        self.add(marks)
    }

    fn mark(&self, class: &str, x: f64, y: f64, radius: f64) -> Tag {
        let tag = tag("circle").class(format!("mark {class}")).attr("data-x", x).attr("data-y", y);
        tag.attr("cx", short(self.x(x))).attr("cy", short(self.y(y))).attr("r", radius)
    }

    /// A mark of a size of its own.
    pub fn bubble(self, class: &str, x: f64, y: f64, radius: f64, text: String) -> Self {
        let mark = self.mark(class, x, y, radius).with(tag("title").with(text));
        self.add(mark)
    }

    /// A ring around the point that matters most, with its value beside it. If the line goes up
    /// on that side, the value is below.
    pub fn best(self, (x, y): (f64, f64), points: &[(f64, f64)], label: String) -> Self {
        let (px, py) = (self.x(x), self.y(y));
        let ring = tag("circle").class("best").attr("cx", short(px)).attr("cy", short(py)).attr("r", 6.5);
        // Above the point if there is space, and never beyond the frame.
        let near_end = px > self.size.0 * 0.72;
        let neighbour = match near_end {
            true => points.iter().rfind(|point| point.0 < x),
            false => points.iter().find(|point| point.0 > x),
        };
        let is_free = neighbour.is_none_or(|point| point.1 <= y) || py + 26.0 > self.size.1 - BOTTOM;
        let above = py > TOP + 26.0 && is_free;
        let anchor = if near_end { "end" } else { "start" };
        let (tx, ty) = (px + if near_end { -2.0 } else { 2.0 }, if above { py - 12.0 } else { py + 22.0 });
        let text = text_at(tx, ty, anchor, label).class("callout").attr("data-value", y);
        self.add(ring).add(text)
    }

    /// A vertical line with a short word.
    pub fn event(self, class: &str, x: f64, word: &str, text: String) -> Self {
        let px = short(self.x(x));
        let line =
            tag("line").attr("x1", px).attr("x2", px).attr("y1", short(TOP)).attr("y2", short(self.size.1 - BOTTOM));
        let label = text_at(px + 3.0, TOP + 9.0, "start", word).class("eventword");
        self.add(tag("g").class(format!("event {class}")).with(line).with(label).with(tag("title").with(text)))
    }

    /// A word at a point, to name a line without a legend.
    pub fn word(self, class: &str, x: f64, y: f64, anchor: &'static str, text: &str) -> Self {
        let label = text_at(self.x(x), self.y(y) - 5.0, anchor, text).class(format!("word {class}"));
        self.add(label)
    }

    fn path(&self, points: &[(f64, f64)]) -> String {
        let step = |(k, (x, y)): (usize, &(f64, f64))| {
            format!("{}{} {}", if k == 0 { 'M' } else { 'L' }, short(self.x(*x)), short(self.y(*y)))
        };
        points.iter().enumerate().map(step).collect()
    }

    /// The chart with a name and a description for those who do not see it.
    pub fn svg(self, id: &str, name: &str, description: &str) -> Tag {
        let (width, height) = self.size;
        let mut frame = tag("g").class("frame");
        for &tick in &self.y.ticks {
            let y = short(self.y(tick));
            frame = frame.with(tag("line").attr("x1", LEFT).attr("x2", width - RIGHT).attr("y1", y).attr("y2", y));
            frame = frame.with(text_at(LEFT - 7.0, y + 4.0, "end", self.y.label(tick)).class("tick"));
        }
        for &tick in &self.x.ticks {
            frame =
                frame.with(text_at(self.x(tick), height - BOTTOM + 16.0, "middle", self.x.label(tick)).class("tick"));
        }
        let names = [
            text_at(width - RIGHT, height - 6.0, "end", self.x.name).class("axis"),
            text_at(10.0, 16.0, "start", self.y.name).class("axis"),
        ];
        let (title, about) = (format!("{id}-title"), format!("{id}-about"));
        tag("svg")
            .class("chart")
            .attr("viewBox", format!("0 0 {width} {height}"))
            .attr("role", "img")
            .attr("aria-labelledby", format!("{title} {about}"))
            .with(tag("title").attr("id", title).with(name))
            .with(tag("desc").attr("id", about).with(description))
            .with(frame)
            .with_all(names)
            .with(self.content)
    }
}

/// A small curve without axes, beside text that says what it is.
pub fn spark(values: &[f64]) -> Tag {
    let (low, high) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
    let point = |(k, value): (usize, &f64)| {
        let x = 4.0 + 104.0 * k as f64 / (values.len() - 1).max(1) as f64;
        let y = if high > low { 24.0 - 20.0 * (value - low) / (high - low) } else { 14.0 };
        (short(x), short(y))
    };
    let points: Vec<_> = values.iter().enumerate().map(point).collect();
    let path: Vec<String> = points.iter().map(|(x, y)| format!("{x} {y}")).collect();
    let svg = tag("svg").class("spark").attr("viewBox", "0 0 112 28").attr("aria-hidden", "true");
    let svg = svg.with(tag("polyline").class("line").attr("points", path.join(",")));
    let end = points.last().map(|(x, y)| tag("circle").class("mark").attr("cx", x).attr("cy", y).attr("r", 3));
    end.into_iter().fold(svg, Tag::with)
}

fn text_at(x: f64, y: f64, anchor: &'static str, text: impl Into<Markup>) -> Tag {
    tag("text").attr("x", short(x)).attr("y", short(y)).attr("text-anchor", anchor).with(text)
}

/// A coordinate with the digits that matter.
fn short(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_ticks() {
        assert_eq!(Axis::over("x", [0.13, 0.92]).ticks, [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(Axis::over("x", [3.0]).ticks.len(), 2);
        assert_eq!(Axis::over("x", []).ends(), (0.0, 1.0));
        assert_eq!(Axis::over("x", [f64::NAN, 1.0, 2.0]).ends(), (1.0, 2.0));
        assert_eq!(Axis::whole("x", 1, 11).ticks, [1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 11.0]);
        assert_eq!(Axis::whole("x", 1, 1).ticks, [1.0, 2.0]);
        assert!(Axis::whole("x", 1, 200).ticks.len() < 9);
        assert_eq!(Axis::over("x", [0.93, 0.96]).in_percent().label(0.94), "94 %");
        assert_eq!(Axis::over("x", [0.931, 0.934]).in_percent().label(0.932), "93.2 %");
    }

    /// The frame holds every value, whatever it is.
    #[test]
    fn points_stay_in_their_chart() {
        let chart = Chart::new(WIDE, Axis::whole("x", 1, 5), Axis::over("y", [0.0, 1.0]));
        for value in [0.0, 1.0, 1e300, -1e300] {
            assert!((0.0..=WIDE.1).contains(&chart.y(value)), "{value}");
        }
        assert!(chart.x(1.0) >= LEFT && chart.x(5.0) <= WIDE.0 - RIGHT);
    }
}
