//! Line plots as SVG.

use std::fmt::Write;

/// A band between a lower and an upper line.
pub struct Band {
    /// The name in the legend.
    pub name: String,
    /// The ends of the band at each step, as `(low, high)`.
    pub values: Vec<(f64, f64)>,
}

/// Bands over a common axis of steps.
pub struct Plot<'a> {
    /// The title.
    pub title: &'a str,
    /// The label of the horizontal axis.
    pub steps: &'a str,
    /// Heights at which a grid line is drawn.
    pub marks: &'a [f64],
    /// The bands.
    pub bands: Vec<Band>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const MARGIN: f64 = 48.0;
const COLOURS: [&str; 5] = ["#b5179e", "#2a9d4a", "#1d6fd1", "#e08a00", "#c1121f"];
/// The largest number of points of a line. Longer lines are thinned.
const POINTS: usize = 800;

/// Coordinates of a plot.
struct Axes {
    low: f64,
    high: f64,
    steps: usize,
}

impl Axes {
    /// Axes that include all values of the bands.
    fn of(bands: &[Band]) -> Self {
        let all = || bands.iter().flat_map(|band| &band.values);
        Self {
            low: all().fold(0.0f64, |m, v| m.min(v.0)) * 1.1,
            high: all().fold(1.0f64, |m, v| m.max(v.1)) * 1.1,
            steps: bands.iter().map(|band| band.values.len()).max().unwrap_or(1).max(2),
        }
    }

    fn x(&self, step: usize) -> f64 {
        MARGIN + (WIDTH - 2.0 * MARGIN) * step as f64 / (self.steps - 1) as f64
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - MARGIN - (HEIGHT - 2.0 * MARGIN) * (value - self.low) / (self.high - self.low)
    }
}

impl Plot<'_> {
    /// The plot as an SVG document.
    pub fn svg(&self) -> String {
        let axes = Axes::of(&self.bands);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
             <text x=\"{}\" y=\"24\" text-anchor=\"middle\" font-size=\"14\">{}</text>\n",
            WIDTH / 2.0,
            self.title
        );
        self.draw_axes(&axes, &mut svg);
        for (n, band) in self.bands.iter().enumerate() {
            draw_band(&axes, band, n, &mut svg);
        }
        svg + "</svg>\n"
    }

    /// Draws grid lines, step numbers and the label of the horizontal axis.
    fn draw_axes(&self, axes: &Axes, svg: &mut String) {
        for &mark in self.marks.iter().filter(|&&mark| axes.low <= mark && mark <= axes.high) {
            let (y, end) = (axes.y(mark), WIDTH - MARGIN);
            let _ = writeln!(
                svg,
                "<path d=\"M{MARGIN} {y:.1}H{end}\" stroke=\"#bbb\" stroke-width=\"0.5\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{mark}</text>",
                MARGIN - 6.0,
                y + 4.0
            );
        }
        for step in [0, axes.steps / 2, axes.steps - 1] {
            let (x, y) = (axes.x(step), HEIGHT - MARGIN + 18.0);
            let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{}</text>", step + 1);
        }
        let (middle, bottom) = (WIDTH / 2.0, HEIGHT - 10.0);
        let _ = writeln!(svg, "<text x=\"{middle}\" y=\"{bottom}\" text-anchor=\"middle\">{}</text>", self.steps);
    }
}

/// Draws both lines of band number `n` and its entry of the legend.
fn draw_band(axes: &Axes, band: &Band, n: usize, svg: &mut String) {
    let colour = COLOURS[n % COLOURS.len()];
    let every = band.values.len().div_ceil(POINTS).max(1);
    for end in [|v: &(f64, f64)| v.0, |v: &(f64, f64)| v.1] {
        let point = |(step, v): (usize, &(f64, f64))| format!("{:.1},{:.1} ", axes.x(step), axes.y(end(v)));
        let points: String = band.values.iter().enumerate().step_by(every).map(point).collect();
        let points = points.trim_end();
        let _ = writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.2\"/>");
    }
    let (x, y) = (MARGIN + 10.0, MARGIN + 16.0 * (n as f64 + 1.0));
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{}</text>", band.name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_two_lines_a_band_and_stays_inside() {
        let band = |name: &str, n: usize| Band {
            name: name.to_owned(),
            values: (0..n).map(|i| (-(i as f64), 2.0 * i as f64)).collect(),
        };
        let plot = Plot { title: "t", steps: "s", marks: &[8.0, 1e9], bands: vec![band("a", 10), band("b", 5000)] };
        let svg = plot.svg();
        assert_eq!(svg.matches("<polyline").count(), 4);
        assert_eq!(svg.matches("stroke=\"#bbb\"").count(), 1);
        let coordinates = svg.split('"').filter(|part| part.contains(',') && !part.contains('<'));
        for pair in coordinates.flat_map(|part| part.split(' ')) {
            let inside = pair.split_once(',').is_some_and(|(x, y)| {
                let inside = |v: &str, end: f64| v.parse::<f64>().is_ok_and(|v| (0.0..=end).contains(&v));
                inside(x, WIDTH) && inside(y, HEIGHT)
            });
            assert!(inside, "{pair}");
        }
    }
}
