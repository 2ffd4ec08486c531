//! The live view of a terminal: what is done, a bar for what is done now, the curve of the loss.

use hetal_client::training::{Round, shown_loss};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// The most checks of a curve.
const WIDTH: usize = 40;
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The lines at the bottom of a terminal, below everything that stays.
#[derive(Default)]
pub struct LiveView {
    all: MultiProgress,
    now: Option<ProgressBar>,
    curve: Option<ProgressBar>,
    /// Number, loss and accuracy of the accepted checks.
    checks: Vec<(usize, f64, f64)>,
}

impl LiveView {
    /// A view on standard error.
    pub fn new() -> Self {
        Self::default()
    }

    /// Prints a line that stays.
    pub fn line(&self, text: &str) {
        // A terminal that is gone shows nothing.
        let _ = self.all.println(text);
    }

    /// Begins a bar, of bytes or of anything else.
    pub fn begin(&mut self, name: &str, total: u64, is_bytes: bool) {
        self.clear();
        let counted = if is_bytes { "{bytes}/{total_bytes}" } else { "{pos}/{len}" };
        let template = match total {
            0 => "{spinner} {msg}  {elapsed}".to_owned(),
            _ => format!("{{msg:30}} {{bar:30}} {counted}, {{elapsed}}, about {{eta}} left"),
        };
        let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(total).with_style(style).with_message(name.to_owned());
        let bar = self.all.insert(0, bar);
        bar.enable_steady_tick(std::time::Duration::from_millis(500));
        self.now = Some(bar);
    }

    /// Moves the bar.
    pub fn set(&self, done: u64, total: u64) {
        if let Some(bar) = &self.now {
            bar.set_length(total);
            bar.set_position(done);
        }
    }

    /// Removes the bar.
    pub fn clear(&mut self) {
        if let Some(bar) = self.now.take() {
            bar.finish_and_clear();
        }
    }

    /// Adds an accepted check to the curve.
    pub fn check(&mut self, number: usize, round: &Round) {
        self.checks.push((number, shown_loss(round.loss), round.accuracy));
        let curve = self.curve.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_spinner());
            self.all.add(ProgressBar::new_spinner().with_style(style))
        });
        curve.set_message(curve_text(&self.checks));
        curve.tick();
    }

    /// Removes everything but the curve, which stays.
    pub fn end(&mut self) {
        self.clear();
        if let Some(curve) = self.curve.take() {
            curve.finish_and_clear();
            self.line(&curve_text(&self.checks));
        }
    }
}

/// The last losses as a small curve, the last one and the best one in figures.
fn curve_text(checks: &[(usize, f64, f64)]) -> String {
    let shown = &checks[checks.len().saturating_sub(WIDTH)..];
    let (low, high) = shown.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), c| (a.min(c.1), b.max(c.1)));
    let level = |loss: f64| match high > low {
        true => LEVELS[((loss - low) / (high - low) * (LEVELS.len() - 1) as f64).round() as usize],
        false => LEVELS[0],
    };
    let curve: String = shown.iter().map(|check| level(check.1)).collect();
    let best = checks.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let (Some(last), Some(best)) = (checks.last(), best) else { return String::new() };
    format!(
        "validation loss {curve} {:.3}, accuracy {:.2} % at check {}; lowest loss {:.3} at check {}",
        last.1,
        100.0 * last.2,
        last.0,
        best.1,
        best.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_falls_with_the_loss() {
        let text = curve_text(&[(1, 0.9, 0.5), (3, 0.2, 0.75), (4, 0.55, 0.7)]);
        let expected = "validation loss █▁▅ 0.550, accuracy 70.00 % at check 4; lowest loss 0.200 at check 3";
        assert_eq!(text, expected);
        assert!(curve_text(&[(1, 0.9, 0.5)]).contains(" ▁ 0.900"));
        let many: Vec<_> = (1..100).map(|k| (k, 1.0 / k as f64, 0.5)).collect();
        assert_eq!(curve_text(&many).chars().filter(|c| LEVELS.contains(c)).count(), WIDTH);
    }
}
