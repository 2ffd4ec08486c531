//! Splits a data set class by class. A seed gives the same split on every machine.

use crate::dataset::Sample;
use sha2::{Digest, Sha256};

/// Shares of the training, validation and test part.
const SHARES: (usize, usize, usize) = (7, 1, 2);

/// Splits off missing parts: 2 of 10 samples for the test part, 1 of the 8 others for the
/// validation part.
pub(crate) fn complete(
    classes: &[String],
    train: Vec<Sample>,
    val: Option<Vec<Sample>>,
    test: Option<Vec<Sample>>,
    seed: u64,
) -> ([Vec<Sample>; 3], Vec<String>) {
    let notes = notes(classes, &train, val.is_none() || test.is_none());
    let (train_share, val_share, test_share) = SHARES;
    let all = train_share + val_share + test_share;
    let (train, test) = match test {
        Some(test) => (train, test),
        None => split_off(train, classes.len(), test_share, if val.is_some() { all - val_share } else { all }, seed),
    };
    let (train, val) = match val {
        Some(val) => (train, val),
        None => split_off(train, classes.len(), val_share, train_share + val_share, seed ^ 1),
    };
    ([train, val, test], notes)
}

/// Notes about classes without training samples, or with too few for every part.
fn notes(classes: &[String], train: &[Sample], splits: bool) -> Vec<String> {
    let mut counts = vec![0; classes.len()];
    train.iter().for_each(|sample| counts[sample.label] += 1);
    let note = |(class, &count): (&String, &usize)| match count {
        0 => Some(format!("class {class} has no training sample: it cannot be learned")),
        1 | 2 if splits => Some(format!(
            "class {class} has {count} sample{}: training gets the first, so that the class may be missing from validation \
             or test; add samples to judge it",
            if count == 1 { "" } else { "s" }
        )),
        _ => None,
    };
    classes.iter().zip(&counts).filter_map(note).collect()
}

/// Splits off `share` of every `of` samples, `ceil(n share / of)` in all, evenly over the classes.
/// Every class keeps at least one sample.
pub(crate) fn split_off(
    samples: Vec<Sample>,
    classes: usize,
    share: usize,
    of: usize,
    seed: u64,
) -> (Vec<Sample>, Vec<Sample>) {
    let mut members: Vec<Vec<usize>> = vec![vec![]; classes];
    samples.iter().enumerate().for_each(|(index, sample)| members[sample.label].push(index));
    let quotas = quotas(&members.iter().map(Vec::len).collect::<Vec<_>>(), share, of);
    let count = quotas.iter().sum();
    let mut taken = vec![false; samples.len()];
    for (mut class, quota) in members.into_iter().zip(quotas) {
        class.sort_by_cached_key(|&index| rank(seed, &samples[index].name, index));
        class.iter().take(quota).for_each(|&index| taken[index] = true);
    }
    let (mut kept, mut split) = (Vec::with_capacity(samples.len().saturating_sub(count)), Vec::with_capacity(count));
    for (sample, taken) in samples.into_iter().zip(taken) {
        if taken { split.push(sample) } else { kept.push(sample) }
    }
    (kept, split)
}

/// The number of samples of each class: rounded down, then one more for the classes with the
/// largest remainders until the total fits.
fn quotas(counts: &[usize], share: usize, of: usize) -> Vec<usize> {
    let total: usize = counts.iter().sum();
    let mut quotas: Vec<usize> = counts.iter().map(|count| count * share / of).collect();
    let mut missing = (total * share).div_ceil(of) - quotas.iter().sum::<usize>();
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by_key(|&class| std::cmp::Reverse(counts[class] * share % of));
    for class in order {
        if missing > 0 && quotas[class] + 1 < counts[class] {
            quotas[class] += 1;
            missing -= 1;
        }
    }
    quotas
}

/// The sort key of a sample in the shuffle. It depends on the sample alone.
fn rank(seed: u64, name: &str, index: usize) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update((index as u64).to_le_bytes());
    hash.update(name.as_bytes());
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::SampleSource;

    fn samples(counts: &[usize]) -> Vec<Sample> {
        let class = |(label, &count): (usize, &usize)| {
            (0..count).map(move |i| Sample {
                name: format!("{label}/{i}"),
                label,
                source: SampleSource::Text(String::new()),
            })
        };
        counts.iter().enumerate().flat_map(class).collect()
    }

    fn names(parts: &[Vec<Sample>; 3]) -> [Vec<String>; 3] {
        [0, 1, 2].map(|part| parts[part].iter().map(|sample| sample.name.clone()).collect())
    }

    fn classes(count: usize) -> Vec<String> {
        (0..count).map(|class| class.to_string()).collect()
    }

    #[test]
    fn sizes_are_the_papers() {
        // Face Mask Detection has 4072 faces in three classes; MNIST 60000 digits for training,
        // test given.
        let (parts, notes) = complete(&classes(3), samples(&[3232, 717, 123]), None, None, 0);
        assert_eq!(parts.each_ref().map(Vec::len), [2849, 408, 815]);
        assert!(notes.is_empty());
        let digits = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949];
        let (parts, _) = complete(&classes(10), samples(&digits), None, Some(samples(&[1; 10])), 0);
        assert_eq!(parts.each_ref().map(Vec::len), [52500, 7500, 10]);
    }

    #[test]
    fn every_class_is_in_every_part_and_nothing_is_lost() {
        let counts = [100, 40, 13];
        let (parts, _) = complete(&classes(3), samples(&counts), None, None, 5);
        for part in &parts {
            (0..3).for_each(|label| assert!(part.iter().any(|sample| sample.label == label)));
        }
        let mut all = names(&parts).concat();
        all.sort();
        let mut expected: Vec<String> = samples(&counts).into_iter().map(|sample| sample.name).collect();
        expected.sort();
        assert_eq!(all, expected);
    }

    #[test]
    fn the_seed_determines_the_split() {
        let split = |seed| names(&complete(&classes(2), samples(&[50, 50]), None, None, seed).0);
        assert_eq!(split(1), split(1));
        assert_ne!(split(1), split(2));
    }

    #[test]
    fn a_class_of_one_is_trained_on_and_reported() {
        let (parts, notes) = complete(&classes(2), samples(&[1, 30]), None, None, 0);
        assert!(parts[0].iter().any(|sample| sample.label == 0));
        assert!(notes.len() == 1 && notes[0].contains("class 0 has 1 sample:"), "{notes:?}");
    }
}
