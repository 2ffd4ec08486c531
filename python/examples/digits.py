"""Trains on scikit-learn's digits without a server, and compares with training in the clear.

    python digits.py [PARAM_SET]

A server is started on this machine. At the default parameter set, full, it needs 13 GiB of memory.
If you interrupt the program, it goes on when you run it again. insecure-toy11 is fast and gives no
security: it is to try the program out.

The training is repeated on plain numbers (verify), which bounds how far the decrypted weights are
from those of the same training in the clear. From the bound follows how many test rows could be in
another class there: if none could, both have the same accuracy.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hetal import HetalClassifier


def rows_that_could_differ(clf, X):
    """How many rows could be in another class in the same training in the clear.

    The bound is on the weights for scaled rows, relative to the largest one. The model file says
    how rows were scaled.
    """
    model = json.loads((Path(clf.project_) / "models" / f"{clf.model_name_}.json").read_text())
    scaling, weights = model["normalisation"], np.asarray(model["weights"])
    shift = np.asarray(scaling["shift"])
    factors = scaling["factor"] * np.asarray(scaling.get("scale") or np.ones(len(shift)))
    scaled = np.divide(weights, factors, out=np.zeros_like(weights), where=factors != 0)
    largest = max(np.abs(scaled).max(), np.abs(weights @ shift + model["bias"]).max())
    # Each logit can be off by the bound times the sum of a row's values, the 1 of the bias included.
    lengths = np.abs((X - shift) * factors).sum(axis=1) + 1
    best = np.sort(clf.decision_function(X), axis=1)
    return int(np.sum(best[:, -1] - best[:, -2] <= 2 * clf.training_["difference_bound"] * largest * lengths))


def main():
    param_set = sys.argv[1] if len(sys.argv) > 1 else "full"
    X, X_test, y, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)

    start = time.monotonic()
    clf = HetalClassifier(param_set=param_set, verify=True).fit(X, y)
    seconds = time.monotonic() - start

    accuracy, differ = clf.score(X_test, y_test), rows_that_could_differ(clf, X_test)
    apart = differ / len(X_test)
    plain = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X, y).score(X_test, y_test)
    training = clf.training_
    print(f"{len(X)} rows to train on, {len(X_test)} to test, {X.shape[1]} features, {len(clf.classes_)} classes")
    print(f"encrypted training        {100 * accuracy:.2f} % of the test rows are right")
    if differ:
        print(f"the same in the clear     {100 * (accuracy - apart):.2f} to {100 * (accuracy + apart):.2f} %")
    else:
        print(f"the same in the clear     {100 * accuracy:.2f} %: no test row can be in another class")
    print(f"difference of weights     at most {training['difference_bound']:.1e} of the largest")
    print(f"scikit-learn in the clear {100 * plain:.2f} % (LogisticRegression, for comparison)")
    counts = f"{training['iterations']} iterations, {training['checks']} checks"
    print(f"time                      {seconds:.0f} s for fit, {training['seconds']:.0f} s in all runs: {counts}")


if __name__ == "__main__":
    main()
