"""Makes the tables of `hetal bench tables` and scikit-learn's results on them.

    python3 -m venv venv && venv/bin/pip install scikit-learn==1.9.1
    venv/bin/python crates/experiments/scripts/tables.py crates/experiments/data/tables

Writes one CSV file for each table and scikit-learn.json: the accuracy of
StandardScaler and LogisticRegressionCV (10 values of C, 5 folds, all defaults but the number of
iterations) on the 20 test sets. Split number s takes three in ten rows of each class for testing:
the first in the order that SplitMix64 with the seed s gives. `hetal bench tables` makes the same
splits.
"""

import json
import pathlib
import sys
import warnings

import numpy
import sklearn
from sklearn import datasets
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

SPLITS = 20
MASK = (1 << 64) - 1


def permutation(count, seed):
    """The numbers below count, shuffled by SplitMix64 as hetal_learn::split_mix does."""
    state, order = seed, list(range(count))
    for k in range(count - 1, 0, -1):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        j = (z ^ (z >> 31)) % (k + 1)
        order[k], order[j] = order[j], order[k]
    return order


def split(labels, seed):
    counts = {label: sum(labels == label) * 3 // 10 for label in set(labels)}
    training, test = [], []
    for row in permutation(len(labels), seed):
        counts[labels[row]] -= 1
        (test if counts[labels[row]] >= 0 else training).append(row)
    return training, test


def separable(with_id):
    """Two normal classes of 100 rows whose means are 4.6 deviations apart."""
    random = numpy.random.default_rng(2026)
    labels = random.permutation(numpy.arange(200) % 2)
    features = random.normal(size=(200, 5)) + numpy.outer(2 * labels - 1, [1.3, 1.1, 1.0, 0.9, 0.8])
    features, names = numpy.round(features, 4), [f"x{k}" for k in range(1, 6)]
    if with_id:
        ids = random.permutation(numpy.arange(100001, 100201)).astype(float)
        features, names = numpy.column_stack([ids, features]), ["customer_id", *names]
    return features, numpy.array(["no", "yes"])[labels], names


def tables():
    loaders = {
        "iris": datasets.load_iris,
        "wine": datasets.load_wine,
        "breast-cancer": datasets.load_breast_cancer,
        "digits": datasets.load_digits,
    }
    for name, load in loaders.items():
        data = load()
        classes = numpy.array([str(x) for x in data.target_names])
        yield name, (data.data, classes[data.target], list(data.feature_names))
    yield "separable", separable(False)
    yield "separable-id", separable(True)


def write(path, features, labels, names):
    lines = [",".join([*names, "target"])]
    for row, label in zip(features, labels):
        lines.append(",".join([f"{x:.10g}" for x in row] + [label]))
    path.write_text("\n".join(lines) + "\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    warnings.simplefilter("ignore")
    results = {}
    for name, (features, labels, names) in tables():
        write(folder / f"{name}.csv", features, labels, names)
        accuracy, strength = [], []
        for seed in range(1, SPLITS + 1):
            training, test = split(labels, seed)
            model = make_pipeline(StandardScaler(), LogisticRegressionCV(max_iter=5000))
            model.fit(features[training], labels[training])
            accuracy.append(round(model.score(features[test], labels[test]), 6))
            strength.append(float(numpy.atleast_1d(model[-1].C_)[0]))
        first = split(labels, 1)[1]
        results[name] = {"test_rows": len(first), "first_test_rows": first[:8], "accuracy": accuracy, "C": strength}
        print(name, len(labels), numpy.mean(accuracy[:10]), numpy.mean(accuracy[10:]), flush=True)
    about = {"scikit_learn": sklearn.__version__, "model": "StandardScaler, LogisticRegressionCV(max_iter=5000)"}
    text = json.dumps({**about, "tables": results}, indent=1)
    (folder / "scikit-learn.json").write_text(text + "\n")


main()
