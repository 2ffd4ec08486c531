"""Every kind of input gives the same weights; bad input gives an exception that teaches."""

import os
import subprocess
import sys
import weakref

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from conftest import toy
from sklearn.exceptions import NotFittedError

from hetal import Callback, _classifier, errors


@pytest.fixture(scope="module")
def rows():
    """Features that float16 holds exactly, with the sign that decides the class."""
    X = np.random.RandomState(0).randint(-8, 9, size=(96, 5)).astype(np.float64)
    return X, (X[:, 0] + X[:, 1] > 0).astype(int)


@pytest.fixture(scope="module")
def expected(rows, tmp_path_factory):
    return toy(max_epochs=1, project=tmp_path_factory.mktemp("e") / "p").fit(*rows)


def read_only(X):
    X = X.copy()
    X.setflags(write=False)
    return X


NAMES = [f"f{k}" for k in range(5)]
FRAMES = {
    "pandas": lambda X: pandas.DataFrame(X, columns=NAMES),
    "polars": lambda X: polars.DataFrame(X, schema=NAMES),
    "pyarrow": lambda X: pyarrow.table(dict(zip(NAMES, X.T))),
}
INPUTS = {
    "float16": lambda X: X.astype(np.float16),
    "float32": lambda X: X.astype(np.float32),
    "int8": lambda X: X.astype(np.int8),
    "int64": lambda X: X.astype(np.int64),
    "Fortran order": np.asfortranarray,
    "read-only": read_only,
    "non-contiguous": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "big endian": lambda X: X.astype(">f8"),
    "lists": lambda X: X.tolist(),
    **FRAMES,
}


@pytest.mark.parametrize("kind", INPUTS)
def test_every_input_gives_the_same_weights(rows, expected, kind):
    X, y = rows
    given = INPUTS[kind](X)
    # The same project finds the encrypted rows of the first fit, if they are the same.
    clf = toy(max_epochs=1, project=expected.project_).fit(given, y)
    np.testing.assert_array_equal(clf.coef_, expected.coef_)
    np.testing.assert_array_equal(clf.predict_proba(given), expected.predict_proba(X))
    assert hasattr(clf, "feature_names_in_") == (kind in FRAMES)


@pytest.mark.long
def test_torch_gives_the_same_weights(rows, expected):
    torch = pytest.importorskip("torch")
    X, y = rows
    clf = toy(max_epochs=1, project=expected.project_).fit(torch.tensor(X), torch.tensor(y))
    np.testing.assert_array_equal(clf.coef_, expected.coef_)


@pytest.mark.parametrize("kind", FRAMES)
def test_labels_of_tables(rows, expected, kind):
    X, y = rows
    make = {"pandas": pandas.Series, "polars": polars.Series, "pyarrow": pyarrow.array}[kind]
    clf = toy(max_epochs=1, project=expected.project_).fit(FRAMES[kind](X), make(y.tolist()))
    np.testing.assert_array_equal(clf.coef_, expected.coef_)
    assert clf.feature_names_in_.tolist() == NAMES
    with pytest.raises(ValueError, match="feature names"):
        clf.predict(FRAMES["pandas"](X)[NAMES[::-1]])


def test_converted_rows_are_gone_when_the_training_begins(rows, expected, monkeypatch):
    """A training takes long, and keeps one copy of the rows beside those of the caller."""
    converted, alive = [], []
    check = _classifier.validate_data

    def validate(*arguments, **options):
        features, labels = check(*arguments, **options)
        converted.append(weakref.ref(features))
        return features, labels

    class Look(Callback):
        def on_begin(self, training):
            alive.append(converted[0]() is not None)

    monkeypatch.setattr(_classifier, "validate_data", validate)
    X, y = rows
    toy(max_epochs=1, project=expected.project_, callbacks=Look()).fit(X.astype(np.float32), y)
    assert alive == [False]


def test_a_fit_that_failed_leaves_the_names_of_columns(rows, expected):
    X, y = rows
    clf = toy(max_epochs=1, project=expected.project_).fit(FRAMES["pandas"](X), y)
    with pytest.raises(ValueError, match="one class"):
        clf.fit(FRAMES["pandas"](X).rename(columns=str.upper), y * 0)
    assert clf.feature_names_in_.tolist() == NAMES
    with pytest.raises(ValueError, match="one class"):
        clf.fit(X[:, :2], y * 0)
    assert clf.feature_names_in_.tolist() == NAMES and clf.n_features_in_ == 5
    np.testing.assert_array_equal(clf.predict(FRAMES["pandas"](X)), expected.predict(X))


def broken(X, value):
    X = X.copy()
    X[3, 2] = value
    return X


BAD_ROWS = {
    "NaN": (lambda X, y: (broken(X, np.nan), y), "NaN"),
    "infinity": (lambda X, y: (broken(X, np.inf), y), "infinity"),
    "huge": (lambda X, y: (broken(X, 1e13), y), "row 4"),
    "one class": (lambda X, y: (X, np.zeros_like(y)), "class"),
    "0 rows": (lambda X, y: (X[:0], y[:0]), "0 sample"),
    "0 columns": (lambda X, y: (X[:, :0], y), "0 feature"),
    "one dimension": (lambda X, y: (X[:, 0], y), "Expected 2D array"),
    "other lengths": (lambda X, y: (X, y[:-1]), "inconsistent numbers of samples"),
    "200 classes": (lambda X, y: (np.tile(X, (5, 1)), np.arange(480) % 200), "128 classes"),
    "a row for each class": (lambda X, y: (X, np.arange(96)), "one row"),
    "mixed labels": (lambda X, y: (X, np.array(["a", 1] * 48, dtype=object)), "label|types"),
    "fractions as labels": (lambda X, y: (X, y + X[:, 0] / 7), "continuous"),
    "texts as features": (lambda X, y: (np.full((96, 5), "x"), y), "could not convert|numeric"),
    "2,100 columns": (lambda X, y: (np.tile(X, (1, 420)), y), "2048"),
    "labels of two columns": (lambda X, y: (X, np.stack([y, y], axis=1)), "1d array|multi"),
}


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_bad_rows(rows, kind):
    make, match = BAD_ROWS[kind]
    with pytest.raises(ValueError, match=match) as raised:
        toy(max_epochs=1).fit(*make(*rows))
    assert "--" not in str(raised.value), "an option of the program"


BAD_PARAMETERS = {
    "batch_size": (0, "batch_size is 0"),
    "max_epochs": (-1, "max_epochs is -1"),
    "patience": (1.5, "patience is 1.5"),
    "check_every": (0, "check_every is 0"),
    "learning_rate": ("fast", "learning_rate is 'fast'"),
    "validation_fraction": (1.0, "validation share"),
    "param_set": ("insecure-none", "insecure-none"),
    "name": ("a/b", "name"),
    "token_file": ("token", "no server"),
    "server": ("nonsense", "authority"),
}


@pytest.mark.parametrize("name", BAD_PARAMETERS)
def test_bad_parameters(rows, name):
    value, match = BAD_PARAMETERS[name]
    with pytest.raises(errors.HetalError, match=match) as raised:
        toy(**{name: value}).fit(*rows)
    assert "--" not in str(raised.value), "an option of the program"


BAD_TYPES = {
    "server": 3, "name": 4, "certificate": "certificate.pem", "param_set": None, "learning_rate": np.nan,
    "alpha": np.inf, "class_weight": 2, "callbacks": "print",
}


@pytest.mark.parametrize("name", BAD_TYPES)
def test_parameters_of_a_wrong_type_are_named(rows, name):
    with pytest.raises(errors.InvalidInput, match=name.rstrip("s")):
        toy(**{name: BAD_TYPES[name]}).fit(*rows)


def test_sparse_rows(rows):
    sparse = pytest.importorskip("scipy.sparse")
    X, y = rows
    with pytest.raises(TypeError, match="(?i)sparse"):
        toy().fit(sparse.csr_matrix(X), y)


def test_not_fitted(rows):
    X, _ = rows
    for method in ("predict", "predict_proba", "predict_remote", "decision_function"):
        with pytest.raises(NotFittedError):
            getattr(toy(), method)(X)
    with pytest.raises(NotFittedError):
        toy().export("model.onnx")


def test_fitted_again_with_other_columns(rows):
    X, y = rows
    clf = toy(max_epochs=1).fit(X, y)
    clf.fit(X[:, :3], y)
    assert clf.n_features_in_ == 3 and clf.coef_.shape == (1, 3)
    with pytest.raises(ValueError, match="3 features"):
        clf.predict(X)


def test_no_server(rows, tmp_path):
    X, y = rows
    (tmp_path / "ca.pem").write_text("no certificate")
    clf = toy(server="localhost:1", authority=tmp_path / "ca.pem", token_file=tmp_path / "token")
    (tmp_path / "token").write_text("x\n")
    with pytest.raises(errors.AuthenticationFailed, match="PEM"):
        clf.fit(X, y)
    clf.set_params(token_file=tmp_path / "nowhere")
    with pytest.raises(errors.StorageError, match="nowhere"):
        clf.fit(X, y)


SMALL_MACHINE = """
import sys, numpy, resource
from hetal import HetalClassifier, errors
X = numpy.random.RandomState(0).normal(size=(96, 5)); y = (X[:, 0] > 0).astype(int)
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
try:
    HetalClassifier(project=sys.argv[1], verbose=0).fit(X, y)
except errors.NotEnoughMemory as error:
    assert isinstance(error, MemoryError)
    print("NotEnoughMemory", error)
"""


def test_too_little_memory_is_said_before_anything_starts(tmp_path):
    """At the real set, on a machine that gives 8 GiB: nothing is made, nothing is started."""
    done = subprocess.run(
        [sys.executable, "-c", SMALL_MACHINE, str(tmp_path / "p")], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.startswith("NotEnoughMemory"), (done.stdout, done.stderr)
    assert "GiB are available" in done.stdout and "server" in done.stdout
    assert not (tmp_path / "p" / "local-server").exists()
    assert not list((tmp_path / "p").glob("*.key")) and not list((tmp_path / "p").glob("*.hetal"))


def test_a_folder_that_cannot_be_written(rows, tmp_path):
    if os.geteuid() == 0:
        folder = "/proc/hetal"
    else:
        (tmp_path / "locked").mkdir(mode=0o500)
        folder = tmp_path / "locked" / "p"
    with pytest.raises(errors.StorageError):
        toy(project=folder).fit(*rows)

