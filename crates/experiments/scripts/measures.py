#!/usr/bin/env python3
"""Makes the values that crates/learn/tests/measures.rs compares with.

    python3 crates/experiments/scripts/measures.py > crates/learn/tests/measures/cases.json

Needs scikit-learn 1.7 or later. Probabilities are softmax values of fixed numbers. Some are rounded, so
that there are ties.
"""

import json
import math
import sys

import numpy
import sklearn
from sklearn import metrics
from sklearn.calibration import calibration_curve


def probabilities(rows, classes, steps):
    """Rows of a softmax, the same on every machine."""
    logits = [[3 * math.sin(7.3 * i + 2.1 * k * k + 0.3 * i * k) for k in range(classes)] for i in range(rows)]
    table = []
    for row in logits:
        powers = [math.exp(x) for x in row]
        row = [p / sum(powers) for p in powers]
        if steps is not None:
            # Whole numbers of steps that sum to all of them.
            counts = [int(p * steps) for p in row]
            counts[row.index(max(row))] += steps - sum(counts)
            row = [count / steps for count in counts]
        table.append(row)
    return table


def ranking(score, truth, table, classes):
    per_class = []
    for k in range(classes):
        is_class = [int(label == k) for label in truth]
        defined = 0 < sum(is_class) < len(truth)
        per_class.append(float(score(is_class, table[:, k])) if defined else None)
    return per_class


def means(score, truth, predicted, classes):
    everything = list(range(classes))
    options = {"zero_division": 0}
    return {
        "per_class": [float(x) for x in score(truth, predicted, labels=everything, average=None, **options)],
        "macro_mean": float(score(truth, predicted, average="macro", **options)),
        "weighted_mean": float(score(truth, predicted, average="weighted", **options)),
    }


def case(rows, classes, steps, labels):
    table = numpy.array(probabilities(rows, classes, steps))
    truth = [labels(i, int(numpy.argmax(table[i]))) for i in range(rows)]
    predicted = [int(numpy.argmax(row)) for row in table]
    everything = list(range(classes))
    all_there = set(truth) == set(everything)
    confidence = table.max(axis=1)
    correct = [int(a == b) for a, b in zip(truth, predicted)]
    prob_true, prob_pred = calibration_curve(correct, confidence, n_bins=10)
    auc = average_precision = None
    if classes == 2 and all_there:
        auc = float(metrics.roc_auc_score(truth, table[:, 1]))
        average_precision = float(metrics.average_precision_score(truth, table[:, 1]))
    elif all_there:
        auc = float(metrics.roc_auc_score(truth, table, multi_class="ovr", average="macro"))
        average_precision = float(metrics.average_precision_score(truth, table, average="macro"))
    brier = {"labels": everything} if classes > 2 else {"pos_label": 1}
    return {
        "probabilities": table.tolist(),
        "labels": truth,
        "measures": {
            "accuracy_score": float(metrics.accuracy_score(truth, predicted)),
            "balanced_accuracy_score": float(metrics.balanced_accuracy_score(truth, predicted)),
            "precision_score": means(metrics.precision_score, truth, predicted, classes),
            "recall_score": means(metrics.recall_score, truth, predicted, classes),
            "f1_score": means(metrics.f1_score, truth, predicted, classes),
            "log_loss": float(metrics.log_loss(truth, table, labels=everything)),
            "roc_auc_score": {"per_class": ranking(metrics.roc_auc_score, truth, table, classes), "score": auc},
            "average_precision_score": {
                "per_class": ranking(metrics.average_precision_score, truth, table, classes),
                "score": average_precision,
            },
            "brier_score_loss": float(
                metrics.brier_score_loss(truth, table if classes > 2 else table[:, 1], **brier)
            ),
            "top_k_accuracy_score": [
                {"k": k, "score": float(metrics.top_k_accuracy_score(truth, table, k=k, labels=everything))}
                for k in (2, 3, 5)
                if k < classes
            ],
            "calibration_curve": {"prob_true": prob_true.tolist(), "prob_pred": prob_pred.tolist()},
            "confusion_matrix": metrics.confusion_matrix(truth, predicted, labels=everything).tolist(),
        },
    }


def main():
    cases = [
        # Three classes of which two in three rows are right.
        case(40, 3, None, lambda i, likely: likely if i % 3 else (likely + 1) % 3),
        # Two classes, with ties.
        case(31, 2, 10, lambda i, likely: likely if i % 4 else 1 - likely),
        # Seven classes of different sizes, with ties.
        case(90, 7, 50, lambda i, likely: likely if i % 2 else (i * i) % 7),
        # A class without rows.
        case(24, 4, None, lambda i, likely: min(likely, 2) if i % 3 else i % 3),
        # Nothing is right, and all are.
        case(12, 3, None, lambda i, likely: (likely + 1) % 3),
        case(15, 3, None, lambda i, likely: likely),
    ]
    json.dump({"scikit-learn": sklearn.__version__, "cases": cases}, sys.stdout, indent=None)
    print()


if __name__ == "__main__":
    main()
