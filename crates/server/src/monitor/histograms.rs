//! Histograms in Prometheus' text format.
//!
//! Labels are bounded: a name that was not seen before counts as `other` when there are many.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The most values of a label.
const MOST_SERIES: usize = 64;
/// Seconds of requests, and of iterations.
pub const SECONDS: &[f64] = &[0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0];
/// Seconds in the queue.
pub const WAITS: &[f64] = &[1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0];
/// Bytes of uploads.
pub const BYTES: &[f64] = &[1e5, 1e6, 1e7, 1e8, 1e9, 2e9, 4e9, 8e9];

/// Observed values of one kind, by a label.
pub struct Histogram {
    name: &'static str,
    label: &'static str,
    bounds: &'static [f64],
    series: Mutex<BTreeMap<String, Series>>,
}

/// The values of one label.
#[derive(Clone, Default)]
struct Series {
    /// Values up to each bound, and beyond the last one.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// A histogram without values.
    pub fn new(name: &'static str, label: &'static str, bounds: &'static [f64]) -> Self {
        Self { name, label, bounds, series: Mutex::default() }
    }

    /// Counts a value.
    pub fn observe(&self, label: &str, value: f64) {
        let mut all = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let label = if all.contains_key(label) || all.len() < MOST_SERIES { label } else { "other" };
        let series = all.entry(label.to_owned()).or_default();
        series.counts.resize(self.bounds.len() + 1, 0);
        series.counts[self.bounds.partition_point(|bound| *bound < value)] += 1;
        series.sum += value;
    }

    /// Counts a duration in seconds.
    pub fn observe_time(&self, label: &str, time: Duration) {
        self.observe(label, time.as_secs_f64());
    }

    /// Adds the text for Prometheus.
    pub fn write(&self, text: &mut String) {
        let (name, label) = (self.name, self.label);
        let _ = writeln!(text, "# TYPE {name} histogram");
        for (value, series) in self.series.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let mut all = 0;
            let bounds = self.bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
            for (bound, count) in bounds.zip(&series.counts) {
                all += count;
                let _ = writeln!(text, "{name}_bucket{{{label}=\"{value}\",le=\"{bound}\"}} {all}");
            }
            let _ = writeln!(text, "{name}_sum{{{label}=\"{value}\"}} {}", series.sum);
            let _ = writeln!(text, "{name}_count{{{label}=\"{value}\"}} {all}");
        }
    }

    /// The label, the number of values and their mean, for people.
    pub fn means(&self) -> Vec<(String, u64, f64)> {
        let all = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        let mean = |(label, series): (&String, &Series)| {
            let count: u64 = series.counts.iter().sum();
            (label.clone(), count, series.sum / count.max(1) as f64)
        };
        all.iter().map(mean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_up_to_each_bound() {
        let histogram = Histogram::new("h", "l", &[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 7.0] {
            histogram.observe("a", value);
        }
        let mut text = String::new();
        histogram.write(&mut text);
        let expected = "# TYPE h histogram\n\
                        h_bucket{l=\"a\",le=\"1\"} 2\n\
                        h_bucket{l=\"a\",le=\"2\"} 3\n\
                        h_bucket{l=\"a\",le=\"+Inf\"} 4\n\
                        h_sum{l=\"a\"} 10\n\
                        h_count{l=\"a\"} 4\n";
        assert_eq!(text, expected);
        assert_eq!(histogram.means(), [("a".to_owned(), 4, 2.5)]);
    }

    #[test]
    fn labels_are_bounded() {
        let histogram = Histogram::new("h", "l", SECONDS);
        (0..1000).for_each(|k| histogram.observe(&format!("tenant {k}"), 1.0));
        assert_eq!(histogram.means().len(), MOST_SERIES + 1);
        assert!(histogram.means().iter().any(|(label, count, _)| label == "other" && *count > 900));
    }
}
