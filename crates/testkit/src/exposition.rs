//! Checks metrics in Prometheus' text format, version 0.0.4. It is written from the description of
//! the format and shares no code with what writes metrics.

use std::collections::{BTreeMap, BTreeSet};

/// One value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSample {
    /// The metric's name, with `_bucket`, `_sum` or `_count` for a histogram.
    pub name: String,
    /// Values by label.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

/// The values of one metric.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricFamily {
    /// `counter`, `gauge` or `histogram`.
    pub kind: String,
    /// Its values, in the order of the text.
    pub samples: Vec<MetricSample>,
}

impl MetricFamily {
    /// The names of all labels.
    pub fn labels(&self) -> BTreeSet<&str> {
        self.samples.iter().flat_map(|sample| sample.labels.keys()).map(String::as_str).collect()
    }

    /// The upper bounds of a histogram's buckets as they are written.
    pub fn bounds(&self) -> Vec<&str> {
        let mut bounds = Vec::new();
        for bound in self.samples.iter().filter_map(|sample| sample.labels.get("le")) {
            if !bounds.contains(&bound.as_str()) {
                bounds.push(bound);
            }
        }
        bounds
    }
}

/// The metrics of a text, or what is wrong with it.
pub fn parse(text: &str) -> Result<BTreeMap<String, MetricFamily>, String> {
    if !text.ends_with('\n') {
        return Err("the last line does not end".to_owned());
    }
    let (mut families, mut current, mut explained) = (BTreeMap::new(), String::new(), BTreeSet::new());
    for line in text.lines() {
        let wrong = |reason: &str| format!("{reason}: {line}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let name = rest.split(' ').next().unwrap_or_default();
            if families.contains_key(name) || !explained.insert(name.to_owned()) {
                return Err(wrong("a second help, or one below the type"));
            }
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or_else(|| wrong("no type"))?;
            if !is_name(name) || !["counter", "gauge", "histogram"].contains(&kind) {
                return Err(wrong("no name, or an unknown type"));
            }
            let family = MetricFamily { kind: kind.to_owned(), samples: Vec::new() };
            if families.insert(name.to_owned(), family).is_some() {
                return Err(wrong("a second type of one metric"));
            }
            current = name.to_owned();
        } else {
            let sample = sample(line).ok_or_else(|| wrong("not a sample"))?;
            let family = families.get_mut(&current).ok_or_else(|| wrong("a sample without a type"))?;
            if !belongs(&sample, &current, &family.kind) {
                return Err(wrong(&format!("the type above is that of {current}")));
            }
            family.samples.push(sample);
        }
    }
    families.iter().try_for_each(|(name, family)| check(name, family))?;
    Ok(families)
}

/// Whether a sample may stand below the type of a metric.
fn belongs(sample: &MetricSample, metric: &str, kind: &str) -> bool {
    let end = sample.name.strip_prefix(metric);
    let has_bound = sample.labels.contains_key("le");
    match (kind, end) {
        ("histogram", Some("_bucket")) => has_bound,
        ("histogram", Some("_sum" | "_count")) => !has_bound,
        ("counter" | "gauge", Some("")) => !has_bound,
        _ => false,
    }
}

fn check(name: &str, family: &MetricFamily) -> Result<(), String> {
    for (index, sample) in family.samples.iter().enumerate() {
        if family.samples[..index].iter().any(|other| (&other.name, &other.labels) == (&sample.name, &sample.labels)) {
            return Err(format!("{name} has two samples of {:?}", sample.labels));
        }
        // Temperatures and the time that a certificate has left may be negative.
        if family.kind != "gauge" && (sample.value.is_nan() || sample.value < 0.0) {
            return Err(format!("{name} is negative or no number"));
        }
    }
    if family.kind == "histogram" { check_histogram(name, &family.samples) } else { Ok(()) }
}

/// Checks the buckets, the sum and the count of each value of a histogram's labels.
fn check_histogram(name: &str, samples: &[MetricSample]) -> Result<(), String> {
    let mut series: BTreeMap<_, Vec<&MetricSample>> = BTreeMap::new();
    for sample in samples {
        let mut labels = sample.labels.clone();
        labels.remove("le");
        series.entry(labels).or_default().push(sample);
    }
    for (labels, samples) in series {
        let wrong = |reason: &str| Err(format!("{name} of {labels:?}: {reason}"));
        let find = |end: &str| samples.iter().find(|sample| sample.name == format!("{name}_{end}"));
        let (Some(_), Some(count)) = (find("sum"), find("count")) else { return wrong("no sum or no count") };
        let buckets: Vec<_> = samples.iter().filter_map(|s| Some((number(s.labels.get("le")?)?, s.value))).collect();
        if buckets.len() + 2 != samples.len() {
            return wrong("a bound is not a number");
        }
        if !buckets.windows(2).all(|pair| pair[0].0 < pair[1].0) {
            return wrong("bounds do not rise");
        }
        if !buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1) {
            return wrong("buckets are not cumulative");
        }
        if buckets.last() != Some(&(f64::INFINITY, count.value)) {
            return wrong("the last bucket is not +Inf with the count");
        }
    }
    Ok(())
}

/// Reads `name value` or `name{label="value",...} value`.
fn sample(line: &str) -> Option<MetricSample> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            if !is_name(label) || labels.insert(label.to_owned(), value).is_some() {
                return None;
            }
            rest = after
                .strip_prefix(',')
                .filter(|rest| !rest.starts_with('}'))
                .or(after.starts_with('}').then_some(after))?;
        }
        rest = &rest[1..];
    }
    let value = number(rest.strip_prefix(' ')?)?;
    is_name(name).then(|| MetricSample { name: name.to_owned(), labels, value })
}

/// The value of a label, and what follows its closing quote.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                escaped @ ('\\' | '"') => escaped,
                _ => return None,
            }),
            plain => value.push(plain),
        }
    }
    None
}

fn number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    if plain || ["+Inf", "-Inf", "NaN"].contains(&text) { text.parse().ok() } else { None }
}

fn is_name(name: &str) -> bool {
    let start = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    start && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# HELP a_total counts\n\
                        # TYPE a_total counter\n\
                        a_total 3\n\
                        # TYPE h histogram\n\
                        h_bucket{l=\"x\",le=\"0.5\"} 1\n\
                        h_bucket{l=\"x\",le=\"2\"} 4\n\
                        h_bucket{l=\"x\",le=\"+Inf\"} 5\n\
                        h_sum{l=\"x\"} 7.25\n\
                        h_count{l=\"x\"} 5\n\
                        # TYPE g gauge\n\
                        g{l=\"a \\\"b\\\" \\\\ \\n, } c\"} -1\n";

    #[test]
    fn the_format_is_read() {
        let families = parse(GOOD).unwrap();
        assert_eq!(families.keys().collect::<Vec<_>>(), ["a_total", "g", "h"]);
        assert_eq!((families["a_total"].samples[0].value, &*families["a_total"].kind), (3.0, "counter"));
        assert_eq!(families["h"].bounds(), ["0.5", "2", "+Inf"]);
        assert_eq!(families["h"].labels(), BTreeSet::from(["l", "le"]));
        let gauge = &families["g"].samples[0];
        assert_eq!((gauge.labels["l"].as_str(), gauge.value), ("a \"b\" \\ \n, } c", -1.0));
    }

    #[test]
    fn mistakes_are_found() {
        for (good, bad, reason) in [
            ("# TYPE a_total counter\n", "", "without a type"),
            ("# TYPE g gauge\n", "", "the type above is that of h"),
            ("# TYPE g gauge\n", "# TYPE g gouge\n", "unknown type"),
            ("# TYPE g gauge\n", "# TYPE h gauge\n", "a second type"),
            ("# TYPE g gauge\n", "# HELP h late\n", "below the type"),
            ("a_total 3\n", "a_total 3\na_total 3\n", "two samples"),
            ("a_total 3\n", "a_total -3\n", "negative"),
            ("a_total 3\n", "a_total three\n", "not a sample"),
            ("a_total 3\n", "a_total{l=\"x\",} 3\n", "not a sample"),
            ("{l=\"a \\\"b\\\"", "{l=\"a \"b\\\"", "not a sample"),
            ("\\n, }", "\\t, }", "not a sample"),
            ("le=\"0.5\"} 1", "le=\"0.5\"} 5", "not cumulative"),
            ("le=\"0.5\"} 1", "le=\"3\"} 1", "do not rise"),
            ("le=\"0.5\"} 1", "le=\"half\"} 1", "a bound is not a number"),
            ("h_count{l=\"x\"} 5", "h_count{l=\"x\"} 6", "+Inf with the count"),
            ("h_bucket{l=\"x\",le=\"+Inf\"} 5\n", "", "+Inf with the count"),
            ("h_sum{l=\"x\"} 7.25\n", "", "no sum"),
            ("} -1\n", "} -1", "does not end"),
        ] {
            let text = GOOD.replacen(good, bad, 1);
            assert_ne!(text, GOOD, "{good}");
            let found = parse(&text).unwrap_err();
            assert!(found.contains(reason), "{reason}: {found}");
        }
    }
}
