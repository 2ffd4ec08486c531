//! Histograms by one label, whose values are bounded: a value that was not seen before counts as
//! `other` when there are many.

use prometheus::core::Collector;
use prometheus::proto::{Metric, MetricFamily};
use prometheus::{HistogramOpts, HistogramVec, Registry};
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The most values of a label.
const MOST_SERIES: usize = 64;
/// What later values of a label count as.
const OTHER: &str = "other";
/// Seconds of requests, and of iterations.
pub const SECONDS: &[f64] = &[0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0];
/// Seconds in the queue.
pub const WAITS: &[f64] = &[1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0];
/// Bytes of uploads.
pub const BYTES: &[f64] = &[1e5, 1e6, 1e7, 1e8, 1e9, 2e9, 4e9, 8e9];

/// Observed values of one kind, by a label.
pub struct BoundedHistogram {
    histograms: HistogramVec,
    /// The values of the label that were seen, without those that count as `other`.
    seen: Mutex<BTreeSet<String>>,
}

impl BoundedHistogram {
    /// A histogram without values, as one of a registry's metrics.
    pub fn register(
        registry: &Registry,
        name: &str,
        label: &str,
        bounds: &[f64],
        help: &str,
    ) -> prometheus::Result<Self> {
        let histograms = HistogramVec::new(HistogramOpts::new(name, help).buckets(bounds.to_vec()), &[label])?;
        registry.register(Box::new(histograms.clone()))?;
        Ok(Self { histograms, seen: Mutex::default() })
    }

    /// Counts a value.
    pub fn observe(&self, label: &str, value: f64) {
        let label = if self.admits(label) { label } else { OTHER };
        self.histograms.with_label_values(&[label]).observe(value);
    }

    /// Counts a duration in seconds.
    pub fn observe_time(&self, label: &str, time: Duration) {
        self.observe(label, time.as_secs_f64());
    }

    /// Whether a label was seen before or is one of the first.
    fn admits(&self, label: &str) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.contains(label) || (seen.len() < MOST_SERIES && seen.insert(label.to_owned()))
    }

    /// The label, the number of values and their mean, for people.
    pub fn means(&self) -> Vec<(String, u64, f64)> {
        let mean = |metric: &Metric| {
            let (label, histogram) = (metric.get_label()[0].value().to_owned(), metric.get_histogram());
            let count = histogram.get_sample_count();
            (label, count, histogram.get_sample_sum() / count.max(1) as f64)
        };
        let families = self.histograms.collect();
        let mut means: Vec<_> = families.iter().flat_map(MetricFamily::get_metric).map(mean).collect();
        means.sort_by(|a, b| a.0.cmp(&b.0));
        means
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hetal_testkit::exposition;
    use prometheus::TextEncoder;

    fn histogram(bounds: &[f64]) -> (Registry, BoundedHistogram) {
        let registry = Registry::new();
        let histogram = BoundedHistogram::register(&registry, "h", "l", bounds, "Values.").unwrap();
        (registry, histogram)
    }

    #[test]
    fn values_are_counted_up_to_each_bound() {
        let (registry, histogram) = histogram(&[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 7.0] {
            histogram.observe("a", value);
        }
        let expected = "# HELP h Values.\n\
                        # TYPE h histogram\n\
                        h_bucket{l=\"a\",le=\"1\"} 2\n\
                        h_bucket{l=\"a\",le=\"2\"} 3\n\
                        h_bucket{l=\"a\",le=\"+Inf\"} 4\n\
                        h_sum{l=\"a\"} 10\n\
                        h_count{l=\"a\"} 4\n";
        assert_eq!(TextEncoder::new().encode_to_string(&registry.gather()).unwrap(), expected);
        assert_eq!(histogram.means(), [("a".to_owned(), 4, 2.5)]);
    }

    #[test]
    fn labels_are_bounded() {
        let (_, histogram) = histogram(SECONDS);
        (0..1000).for_each(|k| histogram.observe(&format!("tenant {k}"), 1.0));
        assert_eq!(histogram.means().len(), MOST_SERIES + 1);
        assert!(histogram.means().iter().any(|(label, count, _)| label == OTHER && *count > 900));
        assert!(histogram.means().is_sorted_by(|a, b| a.0 < b.0));
        // Those that were seen count under their names still.
        histogram.observe("tenant 7", 1.0);
        assert!(histogram.means().contains(&("tenant 7".to_owned(), 2, 1.0)));
    }

    /// A name that holds the characters of the format is still one label of one sample.
    #[test]
    fn labels_are_escaped() {
        let (registry, histogram) = histogram(&[1.0]);
        let name = "an \"n\"} 1\nh_sum \\";
        histogram.observe(name, 1.0);
        let text = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let samples = &exposition::parse(&text).unwrap()["h"].samples;
        assert!(samples.len() == 4 && samples.iter().all(|sample| sample.labels["l"] == name), "{text}");
    }
}
