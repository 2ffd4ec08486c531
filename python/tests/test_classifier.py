"""The estimator: predictions, attributes, labels, life of a training."""

import copy
import inspect
import multiprocessing
import pickle
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import joblib
import numpy as np
import pytest
from conftest import TOY, toy
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import hetal
from hetal import HetalClassifier, Passphrase, errors


@pytest.fixture(scope="module")
def fitted(iris, tmp_path_factory):
    # Four checks of few iterations, and so a higher rate than the default.
    params = {"max_epochs": 8, "check_every": 6, "learning_rate": 0.5}
    return toy(project=tmp_path_factory.mktemp("p") / "project", verify=True, **params).fit(*iris)


def test_it_learns_and_says_how(fitted, iris):
    X, y = iris
    assert fitted.score(X, y) > 0.9
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert (fitted.coef_.shape, fitted.intercept_.shape, fitted.n_features_in_) == ((3, 4), (3,), 4)
    assert not hasattr(fitted, "feature_names_in_")
    probabilities = fitted.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(fitted.predict(X), probabilities.argmax(axis=1))
    np.testing.assert_allclose(fitted.predict_log_proba(X), np.log(probabilities))
    logits = X @ fitted.coef_.T + fitted.intercept_
    np.testing.assert_allclose(fitted.decision_function(X), logits, rtol=1e-9, atol=1e-9)
    accepted = [epoch for epoch in fitted.history_ if epoch["accepted"]]
    assert len(accepted) == 4 and set(accepted[0]) == {
        "check", "epoch", "loss", "accuracy", "largest_logit", "verdict", "accepted", "seconds"
    }
    assert fitted.training_["difference_bound"] < 1e-3
    assert fitted.server_ == "this machine"
    assert Path(fitted.report_).read_text().startswith("<!DOCTYPE html>")


def test_encrypted_predictions_are_the_same(fitted, iris):
    X, _ = iris
    np.testing.assert_array_equal(fitted.predict_remote(X[:40]), fitted.predict(X[:40]))


@pytest.mark.parametrize(
    "labels",
    [["setosa", "versicolor", "virginica"], [10, -3, 7], [True, False, True], [1.0, 2.0, 3.0], ["é", "a,b", "1"]],
    ids=["texts", "integers", "booleans", "floats", "odd texts"],
)
def test_labels_of_every_type(iris, labels):
    X, y = iris
    named = np.asarray(labels)[y]
    clf = toy(max_epochs=1).fit(X, named)
    np.testing.assert_array_equal(clf.classes_, np.unique(named))
    assert clf.predict(X).dtype == named.dtype
    assert clf.score(X, named) > 0.5
    if len(clf.classes_) == 2:
        assert (clf.coef_.shape, clf.intercept_.shape) == ((1, 4), (1,))
        scores = clf.decision_function(X)
        np.testing.assert_array_equal(clf.predict(X), clf.classes_[(scores > 0).astype(int)])
        np.testing.assert_allclose(scores, (X @ clf.coef_.T + clf.intercept_)[:, 0], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(clf.predict_proba(X)[:, 1], 1 / (1 + np.exp(-scores)))


def test_a_second_fit_sends_no_row_twice(iris, home, tmp_path, monkeypatch):
    """From another folder as well: the default project folder does not move."""
    clf = toy(max_epochs=1).fit(*iris)
    first, weights = clf.training_, clf.coef_
    monkeypatch.chdir(tmp_path)
    clf.fit(*iris)
    assert first["sent_row_bytes"] > 0 and clf.training_["sent_row_bytes"] == 0
    assert clf.training_["sent_key_bytes"] == 0
    np.testing.assert_array_equal(clf.coef_, weights)
    assert clf.project_ == str(home / TOY) == str(hetal.default_project(TOY))


def test_random_state_and_validation_fraction(iris):
    weights = [toy(max_epochs=1, random_state=seed).fit(*iris).coef_ for seed in (None, 0, 0, 1)]
    np.testing.assert_array_equal(weights[1], weights[2])
    assert not np.allclose(weights[0], weights[1]) and not np.allclose(weights[1], weights[3])
    clf = toy(max_epochs=1, validation_fraction=0.5).fit(*iris)
    assert (clf.training_["rows"], clf.training_["validation_rows"]) == (75, 75)


def test_names_of_models_say_nothing_about_rows(iris):
    X, y = iris
    first, second = toy(max_epochs=1).fit(X, y), toy(max_epochs=1).fit(X[:100], y[:100])
    assert first.model_name_ != second.model_name_
    assert toy(max_epochs=1, name="mine").fit(X, y).model_name_ == "mine"


def test_clone_pickle_joblib(fitted, iris, tmp_path):
    X, _ = iris
    fresh = clone(fitted)
    assert fresh.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        fresh.predict(X)
    with pytest.warns(errors.PrivateModelWarning, match="private"):
        text = pickle.dumps(fitted)
    with pytest.warns(errors.PrivateModelWarning):
        joblib.dump(fitted, tmp_path / "model.joblib")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pickle.dumps(fresh)
    secret = next(iter([fitted.project_])) + "/secret.key"
    with open(secret, "rb") as file:
        assert file.read()[-64:] not in text
    for again in (pickle.loads(text), joblib.load(tmp_path / "model.joblib")):
        np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))


def test_pipeline_search_and_cross_validation(iris):
    X, y = iris
    model = make_pipeline(StandardScaler(), toy(max_epochs=1))
    assert model.fit(X, y).score(X, y) > 0.6
    assert cross_val_score(model, X, y, cv=2).min() > 0.5
    search = GridSearchCV(model, {"hetalclassifier__learning_rate": [0.01, 1.0]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.5
    assert set(search.cv_results_["param_hetalclassifier__learning_rate"].tolist()) == {0.01, 1.0}


def test_calibration(iris):
    X, y = iris
    model = CalibratedClassifierCV(toy(max_epochs=1), cv=2).fit(X, y)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    assert model.score(X, y) > 0.6


def test_two_processes_share_a_project(iris):
    """The folder is one's at a time: the other waits."""
    X, y = iris
    assert cross_val_score(toy(max_epochs=1), X, y, cv=2, n_jobs=2).min() > 0.4


def test_secrets_are_not_shown(iris, tmp_path):
    X, y = iris
    clf = toy(max_epochs=1, project=tmp_path / "p", passphrase=Passphrase("correct horse")).fit(X, y)
    shown = [repr(clf), repr(make_pipeline(clf)), clf._repr_html_(), str(clf.get_params())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown.append(pickle.dumps(clf).decode("latin-1"))
    assert not any("correct horse" in text for text in shown)
    assert clone(clf).passphrase == clf.passphrase
    again = HetalClassifier.from_project(tmp_path / "p", clf.model_name_, passphrase=lambda: "correct horse")
    np.testing.assert_array_equal(again.predict(X), clf.predict(X))
    with pytest.raises(errors.KeyMismatch):
        HetalClassifier.from_project(tmp_path / "p", clf.model_name_)
    with pytest.raises(errors.KeyMismatch, match="passphrase"):
        toy(max_epochs=2, project=tmp_path / "p", passphrase=Passphrase("wrong")).fit(X, y)
    with pytest.raises(errors.InvalidInput, match="hetal.Passphrase"):
        toy(passphrase="correct horse").fit(X, y)
    with pytest.raises(errors.InvalidInput, match="not.*pickle|pickle holds no"):
        pickle.loads(pickle.dumps(clone(clf))).fit(X, y)


@pytest.mark.parametrize("entered", ["", None, 3], ids=["empty", "none", "a number"])
def test_a_passphrase_that_protects_nothing_is_refused(iris, home, entered):
    """A prompt that was answered with Enter must not leave the key without protection."""
    with pytest.raises(errors.InvalidInput, match="passphrase"):
        toy(max_epochs=1, passphrase=lambda: entered).fit(*iris)
    with pytest.raises(errors.InvalidInput, match="passphrase"):
        Passphrase(entered)
    assert not list(home.rglob("secret.key"))


def test_an_empty_variable_is_refused(iris, home, monkeypatch):
    """As in the program: a variable that was to hold a passphrase must not leave the key without one."""
    monkeypatch.setenv("HETAL_PASSPHRASE", "")
    clf = toy(max_epochs=1)
    with pytest.raises(errors.InvalidInput, match="HETAL_PASSPHRASE is set, but empty.*unset it"):
        clf.fit(*iris)
    assert not list(home.rglob("secret.key"))
    clf.set_params(passphrase=Passphrase("correct horse")).fit(*iris)
    monkeypatch.setenv("HETAL_PASSPHRASE", "correct horse")
    again = HetalClassifier.from_project(clf.project_, clf.model_name_)
    np.testing.assert_array_equal(again.coef_, clf.coef_)
    monkeypatch.setenv("HETAL_PASSPHRASE", "")
    with pytest.raises(errors.InvalidInput, match="HETAL_PASSPHRASE is set, but empty"):
        HetalClassifier.from_project(clf.project_, clf.model_name_)


def test_passphrases_are_copied_and_not_pickled():
    passphrase = Passphrase("correct horse")
    assert copy.copy(passphrase) == passphrase == copy.deepcopy(passphrase)
    text = pickle.dumps(passphrase)
    assert b"correct" not in text and pickle.loads(text) != passphrase
    with pytest.raises(errors.InvalidInput, match="n_jobs"):
        pickle.loads(text).reveal()


def test_export(fitted, iris, tmp_path):
    X, _ = iris
    sigma = fitted.export(tmp_path / "model.npz")
    assert sigma > 0
    with np.load(tmp_path / "model.npz") as exported:
        assert exported["coef"].shape == (3, 4)
        assert not np.array_equal(exported["coef"], fitted.coef_)
    fitted.export(tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").stat().st_size > 0
    with pytest.raises(errors.InvalidInput, match="unknown format"):
        fitted.export(tmp_path / "model.exe")


def test_callbacks(iris):
    told = []

    class Follow(hetal.Callback):
        def on_begin(self, training):
            told.append(("begin", training["server"]))

        def on_end(self, result):
            told.append(("end", result["best_epoch"]))

    epochs = []
    clf = toy(max_epochs=2, callbacks=[Follow(), epochs.append]).fit(*iris)
    assert [kind for kind, _ in told] == ["begin", "end"]
    assert epochs == clf.history_

    def stop(epoch):
        raise RuntimeError("enough")

    stopped = toy(max_epochs=3, callbacks=stop, name="stopped")
    with pytest.raises(RuntimeError, match="enough"):
        stopped.fit(*iris)
    stopped.set_params(callbacks=None)
    clf = stopped.fit(*iris)
    assert clf.history_[0]["seconds"] is None, "the first epoch was judged before"
    with pytest.raises(errors.InvalidInput, match="no callback"):
        toy(callbacks=[3]).fit(*iris)


def test_a_warning_made_an_error_leaves_the_model(iris):
    clf = toy(max_epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        with pytest.raises(ConvergenceWarning):
            clf.fit(*iris)
    assert clf.predict(iris[0]).shape == (150,)


WARN_TWICE = """
import warnings
from hetal.errors import UntrustedServerWarning

for _ in range(2):
    warnings.warn("do not trust this server", UntrustedServerWarning)
"""


def test_every_warning_of_an_untrusted_server_is_shown():
    """By default Python shows a warning of one place and text once, and then no more."""
    done = subprocess.run([sys.executable, "-c", WARN_TWICE], capture_output=True, text=True, check=True)
    assert done.stderr.count("do not trust this server") == 2, done.stderr
    ended = subprocess.run([sys.executable, "-W", "error", "-c", WARN_TWICE], capture_output=True, text=True)
    assert ended.returncode == 1, "filters of the user come first"


def test_a_callback_that_fails_hides_no_untrusted_server(iris, monkeypatch):
    class Tracker(hetal.Callback):
        def on_end(self, result):
            raise RuntimeError("the tracker is gone")

    train = hetal._native.fit

    def fit(*arguments):
        classifier, result = train(*arguments)
        return classifier, {**result, "matches_reference": False}

    monkeypatch.setattr(hetal._native, "fit", fit)
    clf = toy(max_epochs=1, verify=True, callbacks=Tracker())
    with pytest.warns(errors.UntrustedServerWarning), pytest.raises(RuntimeError, match="tracker"):
        clf.fit(*iris)
    assert clf.predict(iris[0]).shape == (150,), "the training ended, and its model is there"


def test_the_lock_of_the_interpreter_is_free(iris):
    """Another thread counts on while native code works."""
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1
            done.wait(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    clf = toy(max_epochs=2).fit(*iris)
    done.set()
    counter.join()
    # Without the lock a step takes a few milliseconds.
    assert counted[0] > 20 * clf.training_["seconds"]


def test_it_agrees_with_plain_training(iris):
    """With its defaults it finds what scikit-learn finds on standardised columns."""
    X, y = iris
    clf = HetalClassifier(param_set=TOY, verbose=0).fit(X, y)
    rows = StandardScaler().fit_transform(X)
    plain = LogisticRegression(C=8 / X.shape[1], max_iter=1000).fit(rows, y)
    assert clf.training_["scaling"] == "standard" and clf.training_["batch_size"] == 150
    assert abs(clf.score(X, y) - plain.score(rows, y)) <= 0.02
    assert np.mean(clf.predict(X) == plain.predict(rows)) >= 0.97


def test_the_documentation_is_a_page():
    """Every parameter has an entry with its type, in the order of the signature."""
    text = inspect.getdoc(HetalClassifier)
    sections = re.findall(r"^(\w[\w ]*)\n-+$", text, re.MULTILINE)
    assert sections == ["Parameters", "Attributes", "See Also", "Notes", "Examples"]
    parameters = re.findall(r"^(\w+) : \S", text[: text.index("\nAttributes\n")], re.MULTILINE)
    assert parameters == list(inspect.signature(HetalClassifier).parameters)
    for name in ("fit", "predict", "predict_proba", "decision_function", "predict_remote", "export", "from_project"):
        assert "Returns\n-------" in inspect.getdoc(getattr(HetalClassifier, name)), name


def test_attributes_are_documented(fitted):
    text = inspect.getdoc(HetalClassifier)
    attributes = {name for name in vars(fitted) if name.endswith("_")}
    assert attributes <= set(re.findall(r"^(\w+_) : \S", text, re.MULTILINE))


def test_a_fit_that_failed_is_not_fitted(iris):
    def stop(epoch):
        raise RuntimeError("enough")

    clf = toy(callbacks=stop)
    with pytest.raises(RuntimeError, match="enough"):
        clf.fit(*iris)
    assert not [name for name in vars(clf) if name.endswith("_")]
    with pytest.raises(NotFittedError):
        clf.predict(iris[0])


FAILED_FITS = {
    "a refused parameter": lambda X, y: (toy(name="a/b"), (X, y)),
    "one class": lambda X, y: (toy(), (X, y * 0)),
    "labels of a mixed type": lambda X, y: (toy(), (X, np.array(["a", 1] * 75, dtype=object))),
    "weights of other rows": lambda X, y: (toy(), (X, y, [1.0])),
    "a callback": lambda X, y: (toy(max_epochs=1, callbacks=lambda epoch: 1 / 0), (X, y)),
}


@pytest.mark.parametrize("kind", FAILED_FITS)
def test_a_fit_that_failed_leaves_the_model_before(iris, kind):
    """Attributes are never of two trainings: whoever catches the exception has the model of before."""
    X, y = iris
    clf = toy(max_epochs=1).fit(X[:, :2], y > 0)
    predicted = clf.predict(X[:, :2])
    other, arguments = FAILED_FITS[kind](X, y)
    clf.set_params(**other.get_params())
    before = dict(vars(clf))
    with pytest.raises((ValueError, errors.HetalError, ZeroDivisionError)):
        clf.fit(*arguments)
    assert vars(clf).keys() == before.keys()
    assert all(vars(clf)[name] is before[name] for name in before)
    np.testing.assert_array_equal(clf.predict(X[:, :2]), predicted)


def test_weights_are_routed(iris):
    """scikit-learn's metadata routing passes weights of rows on to `fit`."""
    X, y = iris
    with config_context(enable_metadata_routing=True):
        clf = toy(max_epochs=1).set_fit_request(sample_weight=True)
        model = make_pipeline(StandardScaler().set_fit_request(sample_weight=False), clf)
        model.fit(X, y, sample_weight=np.where(y == 1, 2.0, 1.0))
    assert model[-1].training_["weighted"]


def test_only_fit_draws_from_a_random_state(iris):
    X, y = iris
    random = np.random.RandomState(0)
    clf = toy(max_epochs=1, random_state=random).fit(X, y)
    expected = np.random.RandomState(0)
    expected.randint(2**31)
    clf.predict_remote(X[:4])
    assert random.randint(2**31) == expected.randint(2**31)


def test_another_parameter_set_has_another_default_project(iris, home):
    """The first `fit` does not decide where the second one works."""
    clf = toy(max_epochs=1).fit(*iris)
    clf.set_params(param_set="insecure-toy12").fit(*iris)
    assert clf.project_ == str(home / "insecure-toy12") and clf.training_["param_set"] == "insecure-toy12"


def fit_in_a_fork(rows):
    try:
        toy(max_epochs=1).fit(*rows)
    except errors.HetalError as error:
        return str(error)


def test_a_forked_process_does_not_hang(fitted, iris):
    """It lacks the threads of native work. Predictions need none."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert "spawn" in pool.apply_async(fit_in_a_fork, (iris,)).get(60)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted = pool.apply_async(fitted.predict, (iris[0],)).get(60)
    np.testing.assert_array_equal(predicted, fitted.predict(iris[0]))


LIGHT = """
import sys
import sklearn.base
before = set(sys.modules)
import hetal, hetal.integrations
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""


def test_importing_imports_no_tracker_and_no_frame():
    """Beyond what scikit-learn imports."""
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert "hetal" in done.stdout.split()
    heavy = {"mlflow", "tensorboard", "wandb", "pandas", "polars", "pyarrow", "torch", "tqdm", "joblib", "scipy", "IPython"}
    assert not heavy & set(done.stdout.split())


def test_the_program_does_not_import_scikit_learn():
    """It takes a second and much memory, also for `hetal --version`."""
    source = "import sys, hetal._program; print(*sys.modules); import hetal; print(hetal.HetalClassifier, *dir(hetal))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    of_program, of_package = done.stdout.splitlines()
    assert "hetal._native" in of_program.split() and not {"sklearn", "numpy"} & set(of_program.split())
    assert "hetal._classifier.HetalClassifier" in of_package and set(hetal.__all__) <= set(of_package.split())
    with pytest.raises(AttributeError, match="HetalRegressor"):
        hetal.HetalRegressor


def test_every_exception_is_one_of_ours():
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, UserWarning if name.endswith("Warning") else errors.HetalError) and kind.__doc__
    builtin = {
        "InvalidInput": ValueError, "ServerUnreachable": ConnectionError, "RangeExceeded": ValueError,
        "StorageError": OSError, "NotEnoughMemory": MemoryError,
    }
    for name, kind in builtin.items():
        again = pickle.loads(pickle.dumps(getattr(errors, name)("why")))
        assert isinstance(again, kind) and str(again) == "why"


def test_deep_copies_are_models(fitted, iris):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = copy.deepcopy(fitted)
    np.testing.assert_array_equal(again.predict(iris[0]), fitted.predict(iris[0]))
