//! Gauges that are read when somebody asks for metrics.

use crate::compute::device::ComputeDevice;
use hetal_cuda::CardState;
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, GaugeVec, Opts, Registry};

/// The gauges of one answer. Each answer has its own, so that answers at the same time do not see
/// each other's half-read state. What has no value is left out, and never zero.
#[derive(Default)]
pub struct Gauges(Registry);

impl Gauges {
    /// Adds a gauge, if its value is known.
    pub fn add(&self, name: &str, help: &str, value: Option<f64>) -> prometheus::Result<()> {
        let Some(value) = value else { return Ok(()) };
        let gauge = Gauge::new(name, help)?;
        gauge.set(value);
        self.0.register(Box::new(gauge))
    }

    /// Adds a gauge that has a value for each value of a label.
    pub fn add_each(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (String, u64)>,
    ) -> prometheus::Result<()> {
        let gauges = GaugeVec::new(Opts::new(name, help), &[label])?;
        for (of, value) in values {
            gauges.with_label_values(&[of]).set(value as f64);
        }
        self.0.register(Box::new(gauges))
    }

    /// Adds what drivers tell of GPUs.
    pub fn add_cards(&self, cards: &[(usize, CardState)]) -> prometheus::Result<()> {
        type Value = fn(&CardState) -> Option<u64>;
        let gauges: [(&str, &str, Value); 3] = [
            ("hetal_gpu_memory_used_bytes", "Memory of a GPU that programs use.", |card| card.used_bytes),
            ("hetal_gpu_memory_bytes", "All memory of a GPU.", |card| card.total_bytes),
            ("hetal_gpu_temperature_celsius", "Temperature of a GPU.", |card| card.celsius.map(u64::from)),
        ];
        for (name, help, value) in gauges {
            let told = |(card, state): &(usize, CardState)| Some((ComputeDevice::Gpu(*card).label(), value(state)?));
            self.add_each(name, help, "device", cards.iter().filter_map(told))?;
        }
        Ok(())
    }

    /// The gauges that have values.
    pub fn gather(&self) -> Vec<MetricFamily> {
        self.0.gather()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use hetal_testkit::exposition;
    use prometheus::TextEncoder;

    fn text(gauges: &Gauges) -> String {
        TextEncoder::new().encode_to_string(&gauges.gather()).unwrap()
    }

    /// What the driver does not tell is absent, and never zero.
    #[test]
    fn gauges_of_cards_are_those_that_drivers_tell() {
        let full = CardState { used_bytes: Some(7), total_bytes: Some(9), celsius: Some(61), ..CardState::default() };
        let gauges = Gauges::default();
        let cards = [(0, full.clone()), (3, CardState { celsius: None, ..full }), (4, CardState::default())];
        gauges.add_cards(&cards).unwrap();
        let families = exposition::parse(&text(&gauges)).unwrap();
        let values = |(name, family): (&String, &exposition::MetricFamily)| {
            let samples = family.samples.iter().map(|sample| (sample.labels["device"].clone(), sample.value));
            (name.clone(), samples.collect::<Vec<_>>())
        };
        let device = |card: usize, value: f64| (format!("gpu {card}"), value);
        let expected = [
            ("hetal_gpu_memory_bytes".to_owned(), vec![device(0, 9.0), device(3, 9.0)]),
            ("hetal_gpu_memory_used_bytes".to_owned(), vec![device(0, 7.0), device(3, 7.0)]),
            ("hetal_gpu_temperature_celsius".to_owned(), vec![device(0, 61.0)]),
        ];
        assert_eq!(families.iter().map(values).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn unknown_values_are_left_out() {
        let gauges = Gauges::default();
        gauges.add("a", "Known.", Some(-1.5)).unwrap();
        gauges.add("b", "Unknown.", None).unwrap();
        gauges.add_each("c", "Of nothing.", "l", []).unwrap();
        gauges.add_cards(&[]).unwrap();
        assert_eq!(text(&gauges), "# HELP a Known.\n# TYPE a gauge\na -1.5\n");
    }
}
