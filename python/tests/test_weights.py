"""Weights of rows and classes, L2, priors and scaling: as in the program and in scikit-learn."""

import json
import warnings

import numpy as np
import pandas
import pytest
from conftest import TOY, hetal, toy
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import balanced_accuracy_score, recall_score

from hetal import HetalClassifier, Passphrase, errors


@pytest.fixture(scope="module")
def rare():
    """Two clusters that overlap; one row in eight is of the second class."""
    random = np.random.RandomState(3)
    y = (np.arange(240) % 8 == 0).astype(int)
    return random.normal(size=(240, 3)) + 1.2 * y[:, None], y


def weights(clf):
    """Weights and biases, relative to the largest weight."""
    return np.c_[clf.coef_, clf.intercept_] / np.abs(clf.coef_).max()


def same(one, other):
    np.testing.assert_allclose(weights(one), weights(other), atol=1e-3)


def test_weights_have_the_meaning_of_scikit_learn(rare):
    """A weight of 2 is the same row twice; balanced weights are those of scikit-learn."""
    X, y = rare
    twice = np.where(y == 1, 2, 1)
    weighted = toy(max_epochs=3, batch_size=512, scale="none").fit(X, y, sample_weight=twice)
    same(weighted, toy(max_epochs=3, batch_size=512, scale="none", class_weight={1: 2.0}).fit(X, y))
    same(weighted, toy(max_epochs=3, batch_size=512, scale="none", class_weight={0: 5, 1: 10}).fit(X, y))
    assert weighted.training_["weighted"] and not toy(max_epochs=1).fit(X, y).training_["weighted"]
    balanced = toy(max_epochs=3, batch_size=512, class_weight="balanced").fit(X, y)
    by_hand = {0: 240 / (2 * 210), 1: 240 / (2 * 30)}
    same(balanced, toy(max_epochs=3, batch_size=512, class_weight=by_hand).fit(X, y))
    np.testing.assert_array_equal(balanced.predict_remote(X[:9]), balanced.predict(X[:9]))


def test_equal_weights_change_nothing(rare, tmp_path):
    X, y = rare
    plain = toy(max_epochs=1, project=tmp_path / "p").fit(X, y)
    for params, given in (({}, np.full(240, 0.3)), ({"class_weight": {0: 2, 1: 2}}, None)):
        clf = toy(max_epochs=1, project=tmp_path / "p", **params).fit(X, y, sample_weight=given)
        np.testing.assert_array_equal(clf.coef_, plain.coef_)
        assert clf.training_["sent_row_bytes"] == 0, "the rows are those that were sent"


def test_rare_classes_are_found_with_weights_and_with_a_prior(rare):
    X, y = rare
    plain = toy(max_epochs=10).fit(X, y)
    balanced = toy(max_epochs=10, class_weight="balanced").fit(X, y)
    prior = toy(max_epochs=10, prior=1.0).fit(X, y)
    np.testing.assert_array_equal(prior.coef_.shape, plain.coef_.shape)
    np.testing.assert_allclose(prior.intercept_ - plain.intercept_, np.log(7), atol=0.02)
    assert prior.training_["prior"] == 1.0 and plain.training_["prior"] is None
    for clf in (balanced, prior):
        assert recall_score(y, clf.predict(X)) > recall_score(y, plain.predict(X)) + 0.1
        assert balanced_accuracy_score(y, clf.predict(X)) > balanced_accuracy_score(y, plain.predict(X))


def test_text_and_boolean_classes_have_weights(rare):
    X, y = rare
    plain = toy(max_epochs=1, class_weight={0: 1, 1: 3}).fit(X, y)
    named = toy(max_epochs=1, class_weight={"no": 1, "yes": 3}).fit(X, np.array(["no", "yes"])[y])
    truth = toy(max_epochs=1, class_weight={False: 1, True: 3}).fit(X, y.astype(bool))
    same(plain, named)
    same(plain, truth)


def test_l2_makes_weights_smaller(rare):
    X, y = rare
    sizes = [np.abs(toy(max_epochs=8, alpha=alpha).fit(X, y).coef_).max() for alpha in (0.0, 0.1)]
    assert sizes[0] > 1.2 * sizes[1], sizes
    chosen = toy(max_epochs=1).fit(X, y).training_["alpha"]
    assert chosen > 0 and np.log2(chosen) % 1 == 0, "the default follows from the rows"


BAD = {
    "negative": ({}, [-1.0] + [1.0] * 239, "row 1: its weight is -1"),
    "not a number": ({}, [np.nan] + [1.0] * 239, "NaN"),
    "all zero": ({}, [0.0] * 240, "non-zero number"),
    "other length": ({}, [1.0] * 3, "sample_weight.shape"),
    "unknown class": ({"class_weight": {7: 2.0}}, None, "not in class_weight"),
    "negative class": ({"class_weight": {0: 1.0, 1: -2.0}}, None, "class \"1\": its weight is -2"),
    "unknown word": ({"class_weight": "fair"}, None, "'balanced'"),
    "alpha": ({"alpha": -1.0}, None, "alpha"),
    "prior": ({"prior": 2.0}, None, "prior"),
    "scale": ({"scale": "log"}, None, "unit-row"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_weights_and_parameters(rare, kind):
    params, given, match = BAD[kind]
    with pytest.raises((ValueError, errors.ServerRefused), match=match):
        toy(max_epochs=1, **params).fit(*rare, sample_weight=given)


def test_raw_columns_are_scaled():
    """A column in millions and one in thousandths count as in scaled form."""
    random = np.random.RandomState(1)
    y = np.arange(160) % 2
    X = random.normal(size=(160, 3)) + np.array([1.5, 1.5, 0.0]) * y[:, None]
    X = X * np.array([1e6, 1e-3, 1.0]) + np.array([5e6, 0.0, -3.0])
    clf = toy(max_epochs=6).fit(X, y)
    assert clf.training_["scaling"] == "standard" and clf.score(X, y) > 0.83
    assert toy(max_epochs=6, scale="none").fit(X, y).score(X, y) < 0.83
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        with pytest.raises(ConvergenceWarning, match="max_epochs=? ?2"):
            toy(max_epochs=1).fit(X, y)


@pytest.fixture(scope="module")
def activations():
    """Rows that are never negative, of very different lengths, as a network's."""
    random = np.random.RandomState(5)
    y = np.arange(120) % 3
    X = random.gamma(1.0, size=(120, 6)) * 0.4 + np.eye(6)[y] * 2
    return np.round(X * random.uniform(0.2, 9, size=(120, 1)), 4), y


@pytest.mark.parametrize("scale", ["unit-row", "sqrt", "none", "standard"])
@pytest.mark.parametrize("locked", [False, True], ids=["open", "locked"])
def test_models_of_every_scaling_are_applied_as_by_the_program(server, activations, tmp_path, scale, locked):
    """What weights cannot express is applied, in Python and by `hetal predict`."""
    X, y = activations
    pandas.DataFrame(X).assign(kind=y).to_csv(tmp_path / "rows.csv", index=False)
    params, folder, environment = server.params(), tmp_path / "p", None
    more = []
    if locked:
        (tmp_path / "passphrase").write_text("correct horse\n")
        more = ["--passphrase-file", tmp_path / "passphrase"]
    hetal(
        "train", "--dir", folder, "--set", TOY, "--features", tmp_path / "rows.csv", "--label-column", "kind",
        "--epochs", "4", "--scale", scale, "--server", params["server"], "--authority", params["authority"],
        "--token-file", params["token_file"], *(["--passphrase", *more] if locked else []), env=environment,
    )
    opened = {"passphrase": Passphrase("correct horse")} if locked else {}
    clf = HetalClassifier.from_project(folder, verbose=0, **opened, **params)
    rows = pandas.DataFrame(X, columns=clf.feature_names_in_)
    text = hetal(
        "predict", "--dir", folder, "--features", tmp_path / "rows.csv", "--label-column", "kind", "--exact", "--json",
        *more,
    )
    theirs = json.loads(text)["predictions"]
    np.testing.assert_allclose(clf.predict_proba(rows), [row["probabilities"] for row in theirs], atol=1e-12)
    assert clf.predict(rows).astype(str).tolist() == [row["class"] for row in theirs]
    assert clf.training_["scaling"] == scale
    assert clf.score(rows, y) > 0.6
    np.testing.assert_array_equal(clf.predict_remote(rows[:9]), clf.predict(rows[:9]))


def test_models_that_replace_missing_values(server, activations, tmp_path):
    X, y = activations
    X = X.copy()
    X[3, 2] = np.nan
    pandas.DataFrame(X).assign(kind=y).to_csv(tmp_path / "rows.csv", index=False)
    params = server.params()
    hetal(
        "train", "--dir", tmp_path / "p", "--set", TOY, "--features", tmp_path / "rows.csv", "--label-column", "kind",
        "--epochs", "2", "--impute", "mean", "--server", params["server"], "--authority", params["authority"],
        "--token-file", params["token_file"],
    )
    clf = HetalClassifier.from_project(tmp_path / "p", verbose=0)
    rows = pandas.DataFrame(X, columns=clf.feature_names_in_)
    text = hetal("predict", "--dir", tmp_path / "p", "--features", tmp_path / "rows.csv", "--label-column", "kind",
                 "--exact", "--json")
    theirs = [row["probabilities"] for row in json.loads(text)["predictions"]]
    np.testing.assert_allclose(clf.predict_proba(rows), theirs, atol=1e-12)
    with pytest.raises(ValueError, match="NaN"):
        toy(max_epochs=1).fit(activations[0], y).predict(X)


def test_the_program_and_python_train_the_same(server, activations, tmp_path):
    """The same rows get the same scaling, split, hyper-parameters and, but for noise, weights."""
    X, y = activations
    X, y = np.tile(X, (3, 1)) + np.random.RandomState(0).normal(size=(360, 6)), np.tile(y, 3)
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    frame.assign(kind=y).to_csv(tmp_path / "rows.csv", index=False)
    params = server.params()
    for chosen, flags in (
        ({}, []),
        ({"alpha": 0.02, "learning_rate": 0.5, "class_weight": "balanced", "prior": 0.5},
         ["--alpha", "0.02", "--rate", "0.5", "--class-weight", "balanced", "--prior", "0.5"]),
    ):
        project = tmp_path / f"p{len(flags)}"
        text = hetal(
            "train", "--dir", project, "--set", TOY, "--features", tmp_path / "rows.csv", "--label-column", "kind",
            "--server", params["server"], "--authority", params["authority"], "--token-file", params["token_file"],
            "--epochs", "3", "--json", *flags,
        )
        theirs = HetalClassifier.from_project(project, verbose=0)
        ours = HetalClassifier(
            param_set=TOY, project=project, name="ours", max_epochs=3, verbose=0, **params, **chosen
        ).fit(frame, y)
        names = ("alpha", "learning_rate", "batch_size", "scaling", "rows", "validation_rows", "weighted", "prior",
                 "max_epochs", "patience", "validation_accuracy")
        assert [ours.training_[name] for name in names] == [theirs.training_[name] for name in names]
        assert ours.training_["alpha"] == json.loads(text)["alpha"] > 0
        same(ours, theirs)
        np.testing.assert_array_equal(ours.predict(frame), theirs.predict(frame))
