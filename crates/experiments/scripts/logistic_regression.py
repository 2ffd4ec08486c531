#!/usr/bin/env python3
"""Makes the optima that crates/learn/tests/optimum.rs compares with.

    python3 crates/experiments/scripts/logistic_regression.py > crates/learn/tests/optimum/cases.json

Needs scikit-learn 1.7 or later. The rows are fixed numbers.
"""

import json
import math

import numpy
from sklearn.linear_model import LogisticRegression


def rows(count, features, classes):
    """Overlapping classes, the same on every machine."""
    labels = [(i * i + i // 3) % classes for i in range(count)]
    x = [
        [math.sin(1.7 * i + 0.9 * h * h + 0.2 * i * h) + (0.8 if h % classes == labels[i] else 0.0) for h in range(features)]
        for i in range(count)
    ]
    return x, labels


def case(count, features, classes, c, weighted):
    x, labels = rows(count, features, classes)
    weights = [1.0 + (i % 5) / 2.0 for i in range(count)] if weighted else [1.0] * count
    mean = sum(weights) / count
    weights = [w / mean for w in weights]
    model = LogisticRegression(C=c, tol=1e-12, max_iter=100_000)
    model.fit(numpy.array(x), numpy.array(labels), sample_weight=numpy.array(weights))
    coefficients, intercept = model.coef_, model.intercept_
    if classes == 2:
        # One vector for the difference of both classes.
        coefficients, intercept = numpy.vstack([-coefficients, coefficients]) / 2, numpy.hstack([-intercept, intercept]) / 2
    intercept = intercept - intercept.mean()
    optimum = [[*row, bias] for row, bias in zip(coefficients.tolist(), intercept.tolist())]
    # scikit-learn minimises C sum w_i loss_i + |W|^2 / 2. With two classes its W is the difference of
    # ours, which has half of its square.
    alpha = 1.0 / (c * count) * (2.0 if classes == 2 else 1.0)
    return {"x": x, "labels": labels, "weights": weights if weighted else None, "alpha": alpha, "optimum": optimum}


cases = [case(60, 6, 3, 1.0, False), case(60, 6, 3, 1.0, True), case(48, 5, 4, 10.0, True), case(64, 4, 2, 0.5, True)]
print(json.dumps(cases))
