"""Compares default settings of trainings on tables of two synthetic families.

    python3 -m venv venv && venv/bin/pip install scikit-learn==1.9.1
    venv/bin/python crates/experiments/scripts/defaults.py

The tables are none of `hetal bench tables`, so that those measure what was chosen here. Each has
4,000 test rows. Trainings are a model of `hetal train` in numpy: the same preparation of rows, batches,
Nesterov steps with L2, and checks; other random numbers. For each choice the script prints the
accuracy relative to StandardScaler and LogisticRegressionCV in points (mean and worst table), the
test loss relative to it, the mean iterations, and the largest logit. It takes some minutes.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import warnings

import numpy as np
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

TEST_ROWS = 4000
ROW_NORM = 10.0
ITERATIONS = 128


def clusters(random):
    """Clusters of several shapes, with and without mislabelled rows."""
    for n in (50, 120, 240, 400, 800, 2000):
        for columns in (4, 12, 40):
            for classes in (2, 4):
                for flipped in (0.0, 0.08):
                    for clusters_of_a_class in (1, 2):
                        informative = min(columns, max(3, columns // 2))
                        features, labels = make_classification(
                            n + TEST_ROWS,
                            columns,
                            n_informative=informative,
                            n_redundant=min(columns - informative, columns // 4),
                            n_classes=classes,
                            n_clusters_per_class=clusters_of_a_class,
                            flip_y=flipped,
                            class_sep=float(clusters_of_a_class),
                            shift=None,
                            scale=None,
                            random_state=random.randint(1 << 30),
                        )
                        yield n, features, labels


def linear(random):
    """Noisy labels of a linear model; correlated, skewed and useless columns in all units."""
    for n in (60, 120, 250, 350, 480, 800, 1600):
        for columns in (5, 15, 50):
            for classes in (2, 3, 6):
                for strength in (1.5, 4.0):
                    rows = n + TEST_ROWS
                    common = random.normal(size=(rows, max(2, columns // 3)))
                    features = 0.7 * common @ random.normal(size=(common.shape[1], columns))
                    features += random.normal(size=(rows, columns))
                    skewed = random.rand(columns) < 0.3
                    features[:, skewed] = np.exp(0.5 * features[:, skewed])
                    weights = random.normal(size=(columns, classes)) * (random.rand(columns, 1) < 0.4)
                    logits = (features - features.mean(0)) / features.std(0) @ weights
                    logits *= strength / logits.std()
                    labels = (logits + random.gumbel(size=logits.shape)).argmax(1)
                    yield n, features * 10.0 ** random.uniform(-3, 3, columns), labels


def softmax(logits):
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def cross_entropy(logits, labels):
    chosen = softmax(logits)[np.arange(len(labels)), labels]
    return -np.log(np.maximum(chosen, 1e-300)).mean()


class Standard:
    """Columns of unit deviation; rows up to twice the median length become ROW_NORM long."""

    def __init__(self, features):
        self.mean, deviation = features.mean(0), features.std(0)
        self.scale = np.where(deviation > 0, 1 / np.where(deviation > 0, deviation, 1), 0)
        lengths = np.linalg.norm((features - self.mean) * self.scale, axis=1)
        self.scale = self.scale * ROW_NORM / min(lengths.max(), 2 * np.median(lengths))

    def rows(self, features, shorten):
        rows = (features - self.mean) * self.scale
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = np.where(lengths > ROW_NORM, rows * ROW_NORM / np.maximum(lengths, 1e-300), rows) if shorten else rows
        return np.c_[rows, np.ones(len(rows))]


def train(features, labels, classes, *, step, variance, whole_below, settle, every, patience):
    """The scaling and the weights of a training, its iterations and its largest logit."""
    order = np.random.RandomState(0).permutation(len(labels))
    aside = np.zeros(len(labels), bool)
    if len(labels) >= whole_below:
        share = min(max(len(labels) // 32, 1), 16)
        for label in range(classes):
            of_class = order[labels[order] == label]
            aside[of_class[: max(len(of_class) // share, 1)]] = True
    own = not aside.any()
    training, validation = order[~aside[order]], order if own else order[aside[order]]
    scaling = Standard(features[training])
    x, y = scaling.rows(features[training], True), labels[training]
    checked, truth = scaling.rows(features[validation], True), labels[validation]
    n = len(x)
    largest = np.linalg.eigvalsh(x.T @ x / n)[-1]
    rate = min(2.0 ** np.floor(np.log2(step / largest)), 8.0)
    mean_square = (x[:, :-1] ** 2).sum(1).mean()
    alpha = min(2.0 ** np.round(np.log2(mean_square / (variance * n))), 0.25 / rate)
    batches = -(-n // 512)
    size = -(-n // batches)
    every = every or batches
    patience = min(max(-(-10 // every), 3), 10) if patience is None else patience
    weights = np.random.RandomState(0).uniform(-1, 1, (classes, x.shape[1])) / np.sqrt(x.shape[1])
    weights[:, -1] = 0
    ahead, momentum, taken, lowest, waited, logit = weights.copy(), 1.0, weights, None, 0, 0.0
    decay, damped = np.full(x.shape[1], 1 - rate * alpha), np.sqrt(min(rate * alpha, 1))
    decay[-1] = 1
    for iteration in range(1, max(-(-ITERATIONS // batches), 8) * batches + 1):
        batch = slice((iteration - 1) % batches * size, (iteration - 1) % batches * size + size)
        logits = x[batch] @ ahead.T
        logit = max(logit, abs(logits).max())
        difference = softmax(logits)
        difference[np.arange(len(logits)), y[batch]] -= 1
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        beta = np.full(x.shape[1], min((momentum - 1) / following, (1 - damped) / (1 + damped)))
        beta[-1], momentum = (momentum - 1) / following, following
        moved = decay * ahead - rate / len(logits) * difference.T @ x[batch]
        ahead, weights = moved + beta * (moved - weights), moved
        if iteration % every:
            continue
        loss = cross_entropy(checked @ weights.T, truth)
        by_settling = own and settle
        goes_on = lowest is None or (abs(loss - lowest) > 0.01 * lowest if by_settling else loss < lowest)
        lowest, waited = (loss, 0) if goes_on else (lowest, waited + 1)
        taken = weights if goes_on or by_settling else taken
        if waited >= patience:
            break
    return scaling, taken, iteration, logit


def prepared_tables():
    warnings.simplefilter("ignore")
    for name, family in (("clusters", clusters(np.random.RandomState(1))), ("linear", linear(np.random.RandomState(7)))):
        tables = []
        for n, features, labels in family:
            classes = int(labels.max()) + 1
            if classes < 2 or min(np.bincount(labels[:n], minlength=classes)) < 6:
                continue
            model = make_pipeline(StandardScaler(), LogisticRegressionCV(max_iter=2000)).fit(features[:n], labels[:n])
            expected = model.score(features[n:], labels[n:]), -np.log(
                np.maximum(model.predict_proba(features[n:])[np.arange(TEST_ROWS), labels[n:]], 1e-12)
            ).mean()
            tables.append((n, features, labels, classes, expected))
        yield name, tables


def measured(tables, choice):
    results = []
    for n, features, labels, classes, (accuracy, loss) in tables:
        scaling, weights, iterations, logit = train(features[:n], labels[:n], classes, **choice)
        logits = scaling.rows(features[n:], False) @ weights.T
        points = 100 * ((logits.argmax(1) == labels[n:]).mean() - accuracy)
        results.append((n, points, cross_entropy(logits, labels[n:]) - loss, iterations, logit))
    results = np.array(results)
    middle = results[(results[:, 0] > 256) & (results[:, 0] < 512), 1].mean()
    return (
        f"{results[:, 1].mean():+.2f} points, worst {results[:, 1].min():+.1f}, 256 to 511 rows {middle:+.2f}; "
        f"loss {results[:, 2].mean():+.3f}; {results[:, 3].mean():.0f} iterations; logits {results[:, 4].max():.0f}"
    )


def main():
    decided = {"step": 4, "variance": 8, "whole_below": 512, "settle": True, "every": None, "patience": None}
    choices = [
        ("as decided", {}),
        ("checks every 4 iterations, patience 3", {"every": 4, "patience": 3}),
        ("steps up to 8 / e", {"step": 8}),
        ("steps up to 8 / (3 e)", {"step": 8 / 3}),
        ("variance 4", {"variance": 4}),
        ("variance 16", {"variance": 16}),
        ("variance 32", {"variance": 32}),
        ("the lowest loss of training rows", {"settle": False}),
        ("whole tables below 256 rows", {"whole_below": 256}),
        ("whole tables below 1024 rows", {"whole_below": 1024}),
        ("patience 3", {"patience": 3}),
        ("steps up to 8 / e, variance 16, lowest loss, whole below 256, patience 3",
         {"step": 8, "variance": 16, "settle": False, "whole_below": 256, "patience": 3}),
    ]
    for name, tables in prepared_tables():
        print(f"{name}: {len(tables)} tables")
        for what, other in choices:
            print(f"  {what}: {measured(tables, {**decided, **other})}", flush=True)


main()
