"""The estimator."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from hetal import _native
from hetal._labels import class_weights, classes_of, native_labels, python_classes, require_same_order
from hetal._passphrase import Source, reveal
from hetal._process import require_same_process
from hetal._progress import Progress
from hetal.callbacks import Callback, Callbacks, as_list
from hetal.errors import HetalError, InvalidInput, PrivateModelWarning, UntrustedServerWarning

PathOrText = Union[str, "os.PathLike[str]"]

_FORMATS = {".onnx": "onnx", ".npz": "npz", ".safetensors": "safetensors", ".json": "sklearn"}
_PRIVATE = (
    "this file holds decrypted weights. They are private: whoever has them and the server's ciphertexts can compute "
    "the secret key. Use clf.export(...) for a model that may be published"
)


def default_project(param_set: str = "full") -> Path:
    """The project folder of estimators that name none.

    It does not depend on the current folder, so that an interrupted ``fit`` is found again:
    ``$HETAL_HOME``, or ``hetal`` in ``$XDG_DATA_HOME`` (``~/.local/share``), and in it a folder for
    each parameter set.
    """
    home = os.environ.get("HETAL_HOME")
    data = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return Path(home) / param_set if home else Path(data) / "hetal" / param_set


class HetalClassifier(ClassifierMixin, BaseEstimator):
    """A softmax classifier that a server trains on encrypted data.

    ``fit`` encrypts the rows on this machine, uploads them, lets the server train on the
    ciphertexts, and decrypts the result. The server never sees a feature, a label, a weight or an
    accuracy. If no server is named, one is started on this machine, to try it out: at the default
    parameter set it needs about 13 GiB of memory.

    Everything is kept in a project folder, which the program ``hetal`` uses as well. If ``fit`` is
    interrupted (Ctrl-C, a crash, a lost connection), the same ``fit`` with the same rows goes on
    where it stopped: nothing is encrypted or sent twice.

    Parameters
    ----------
    server : str, optional
        The server, as ``"host:port"``. Without it, one is started on this machine for each ``fit``
        and ``predict_remote``.
    token_file : path, optional
        A file whose first line is your token from the server's operator. The environment variable
        ``HETAL_TOKEN`` serves as well.
    authority : path, optional
        A file with the certificate authority (PEM) that issued the server's certificate.
    certificate : (path, path), optional
        Files with your certificate and its key (PEM), instead of a token.
    project : path, optional
        The project folder: secret key, key sets, encrypted rows, models. By default
        ``hetal.default_project(param_set)``, which does not depend on the current folder. One
        process or thread at a time uses a folder; the others wait.
    name : str, optional
        The name of the training and its model. The server sees it. By default a random name; the
        same rows and parameters find it again.
    learning_rate : float, optional
        The size of a step, from 0.0001 to 8. By default it follows from the rows. As all
        hyper-parameters it is what ``hetal train`` chooses, and an operator may allow other ranges.
    batch_size : int, optional
        The number of rows of a step, from 1 to 2,048. By default at most 512.
    max_epochs : int, optional
        The most passes over the training rows, from 1 to 200. By default as many as give 128
        iterations, but at least 8.
    patience : int, optional
        The number of checks without improvement before the training stops, from 1 to 10. By default
        3, or more so that they cover 10 iterations.
    check_every : int, optional
        The number of iterations between two checks of the validation rows. By default 4, or more:
        a training takes at most 192 checks, and each verdict tells the server two bits.
    alpha : float, optional
        The strength of L2: ``alpha * |coef|**2 / 2`` is added to the mean loss, for scaled rows.
        It is ``1 / (C * n_samples)`` for scikit-learn's ``C``. By default it follows from the rows;
        0 is none.
    scale : {"auto", "standard", "none", "unit-row", "sqrt"}, default="auto"
        How rows are scaled before they are encrypted, as with ``hetal train --scale``. ``"auto"``
        standardises the columns of tables, and leaves the features of pretrained networks as they
        are, or takes their square roots if none is negative. ``coef_`` and ``predict`` are for rows
        as they are given.
    class_weight : dict, "balanced", optional
        Weights of classes, as in scikit-learn. The server learns that rows have weights, and no
        weight.
    prior : float, default=0.0
        Subtract this share of the logarithm of each class's share of the rows from its bias after
        the training, from 0 to 1. Rare classes are then predicted more often; 0.5 does nearly what
        balanced weights do.
    validation_fraction : float, optional
        The share of the rows of each class that is set aside for checks. By default one row in
        16, and at least 32; of fewer than 512 rows none are, and the training rows are judged.
    verify : bool, default=False
        Repeat the training without encryption on this machine and compare: a server that computed
        something else is found (``UntrustedServerWarning``). ``training_["difference_bound"]`` is
        then a bound on the difference of the weights.
    passphrase : hetal.Passphrase or callable, optional
        Locks a new secret key and its models, and unlocks them later. A callable returns the
        passphrase, for example ``getpass.getpass``. The environment variable ``HETAL_PASSPHRASE``
        serves as well.
    verbose : int, default=1
        0 is silent; 1 shows progress; 2 also shows stages where progress cannot be updated.
    random_state : int, RandomState, optional
        Decides which rows are set aside and the order of the others. By default both are fixed.
        With a ``RandomState`` each ``fit`` is another training, so an interrupted one does not go
        on: give an int. Keys and encryption are always random.
    param_set : str, default="full"
        The encryption parameters. Only ``"full"`` (132 bits) is secure. Sets whose names begin with
        ``insecure-`` are fast and give no security: they are for tests with public rows.
    replace : bool, default=False
        Discard an interrupted training of the same ``name`` that has other rows or parameters.
    callbacks : callable, hetal.Callback or list of them, optional
        A function is called with a dict for each check. See ``hetal.integrations`` for MLflow,
        TensorBoard and Weights & Biases.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes.
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        The decrypted weights, for features as they were given (with ``scale="unit-row"`` and
        ``"sqrt"``: for transformed rows). Private.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        The decrypted biases. Private.
    history_ : list of dict
        One dict for each check: ``check``, ``loss``, ``accuracy``, ``largest_logit``, ``verdict``,
        ``accepted`` and ``seconds`` (None for checks of an earlier run that was interrupted).
        ``epoch`` is the old name of ``check``.
    n_features_in_ : int
        The number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        The names of the columns, if they have names.
    model_name_ : str
        The name of the model in the project.
    project_ : str
        The project folder.
    server_ : str or None
        Where the model was trained. None if the model was opened with ``from_project``.
    report_ : str or None
        The HTML page that reports on the training. None if a passphrase locks the project.
    training_ : dict
        What else is known about the training: the hyper-parameters and the scaling that were
        chosen, ``checks``, ``best_check``, ``validation_accuracy``, bytes sent, ``seconds``, the
        bound on the difference to the plaintext reference.

    See Also
    --------
    HetalFeatures : Features of sentences and pictures.
    sklearn.linear_model.LogisticRegression : The same model, trained on rows in the clear.

    Notes
    -----
    The model is multinomial logistic regression. It is trained with Nesterov's momentum on batches.
    It has at most 2,048 features and 128 classes.

    Decrypted weights are private, and so are all digits of ``predict_proba`` and of losses: whoever
    has them and the server's ciphertexts can compute the secret key. ``export`` writes a model that
    may be published. A pickle holds the decrypted weights (``PrivateModelWarning``), and neither
    the secret key nor a ``hetal.Passphrase``.

    All exceptions but those of scikit-learn are ``hetal.errors.HetalError``. Ctrl-C raises
    ``KeyboardInterrupt`` when the step in progress has ended.

    Examples
    --------
    A server on this machine, at the secure parameter set:

    >>> from sklearn.datasets import load_digits
    >>> from hetal import HetalClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> clf = HetalClassifier().fit(X, y)  # doctest: +SKIP

    A server elsewhere, and a passphrase that is asked for:

    >>> from getpass import getpass
    >>> clf = HetalClassifier(
    ...     "train.example.org:7443", token_file="token", authority="ca.pem", passphrase=getpass
    ... )
    >>> clf.fit(X, y).predict_remote(X[:2])  # doctest: +SKIP
    array([0, 1])

    A quick try without security:

    >>> HetalClassifier(param_set="insecure-toy11", verbose=0).fit(X, y).score(X, y)  # doctest: +SKIP
    """

    def __init__(
        self,
        server: str | None = None,
        *,
        token_file: PathOrText | None = None,
        authority: PathOrText | None = None,
        certificate: tuple[PathOrText, PathOrText] | None = None,
        project: PathOrText | None = None,
        name: str | None = None,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        max_epochs: int | None = None,
        patience: int | None = None,
        check_every: int | None = None,
        alpha: float | None = None,
        scale: str = "auto",
        class_weight: Mapping[Any, float] | str | None = None,
        prior: float = 0.0,
        validation_fraction: float | None = None,
        verify: bool = False,
        passphrase: Source = None,
        verbose: int = 1,
        random_state: Any = None,
        param_set: str = "full",
        replace: bool = False,
        callbacks: Callbacks = None,
    ) -> None:
        self.server = server
        self.token_file = token_file
        self.authority = authority
        self.certificate = certificate
        self.project = project
        self.name = name
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.check_every = check_every
        self.alpha = alpha
        self.scale = scale
        self.class_weight = class_weight
        self.prior = prior
        self.validation_fraction = validation_fraction
        self.verify = verify
        self.passphrase = passphrase
        self.verbose = verbose
        self.random_state = random_state
        self.param_set = param_set
        self.replace = replace
        self.callbacks = callbacks

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> HetalClassifier:
        """Train on encrypted rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The features: NumPy, pandas, polars, pyarrow or torch (CPU).
        y : array-like of shape (n_samples,)
            The labels: texts, whole numbers or truth values, of at least 2 and at most 128 classes.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows; a row of weight 2 counts like the same row twice. The server learns
            that rows have weights, and no weight.

        Returns
        -------
        self
            The fitted estimator.

        Raises
        ------
        ValueError
            Rows, labels or a parameter cannot be used (also ``hetal.errors.InvalidInput``).
        hetal.errors.HetalError
            The training cannot begin, or ended: see ``hetal.errors``. Where nothing else is said,
            the same ``fit`` goes on.
        KeyboardInterrupt
            Ctrl-C. The same ``fit`` goes on.

        Warns
        -----
        ConvergenceWarning
            The loss had not converged. The message says what to try.
        hetal.errors.UntrustedServerWarning
            With ``verify``: the server computed something else.
        """
        callbacks = as_list(self.callbacks)
        # What is set is set at once, at the end: attributes are always those of one training.
        trained = self._unfitted()
        advice = trained._train(X, y, sample_weight, callbacks)
        self._become(trained)
        try:
            for callback in callbacks:
                callback.on_end({"history": self.history_, **self.training_})
            if self.verbose and self.report_:
                print(f"report: {self.report_}", file=sys.stderr)
        finally:
            # At the end: where warnings are errors, the model is there all the same.
            self._warn(advice)
        return self

    def _unfitted(self) -> HetalClassifier:
        """An estimator with the same parameters, which are not copied."""
        unfitted: HetalClassifier = type(self).__new__(type(self))
        unfitted.__dict__ = self.get_params(deep=False)
        return unfitted

    def _become(self, trained: HetalClassifier) -> None:
        """Takes the attributes of an estimator that was fitted."""
        params = self.get_params(deep=False)
        fitted = {name: value for name, value in vars(trained).items() if name not in params}
        others = {name: value for name, value in vars(self).items() if name != "feature_names_in_"}
        self.__dict__ = others | fitted

    def _train(self, X: ArrayLike, y: ArrayLike, sample_weight: Any, callbacks: list[Callback]) -> str | None:
        """Trains, and sets the attributes. Returns what to try if the loss had not converged."""
        settings, classes, rows = self._training_rows(X, y, sample_weight)
        project = Path(settings["project"])
        progress = Progress(self.verbose)
        begun: dict[str, Any] = {}
        following: list[Callback] = []

        def on_event(event: dict[str, Any]) -> None:
            progress.show(event)
            kind = event["kind"]
            if kind == "begun":
                begun.update(event)
                for callback in callbacks:
                    following.append(callback)
                    callback.on_begin({**event, "params": self.get_params(deep=False)})
            elif kind == "epoch":
                epoch = {key: value for key, value in event.items() if key != "kind"}
                for callback in callbacks:
                    callback.on_epoch(dict(epoch))

        require_same_process()
        try:
            classifier, result = _native.fit(settings, rows, on_event)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                _say_how_to_continue(error, project, begun.get("name"), self.verbose)
            for callback in following:
                callback.on_interrupt(error)
            raise
        finally:
            progress.close()
        require_same_order(classes, classifier.about())
        advice: str | None = result.pop("advice")
        self.server_ = result.pop("server")
        self.history_ = result.pop("history")
        self._set_model(classifier, classes, result)
        self._set_project(project)
        return advice

    def _training_rows(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None
    ) -> tuple[dict[str, Any], NDArray[Any], _native.FitRows]:
        """The parameters, the classes, and the rows as the native module keeps them.

        Converted arrays end here: a training takes long, and needs its own copy of the rows only.
        """
        features, labels = validate_data(self, X, y, dtype=np.float64, order="C")
        classes, numbers = classes_of(labels)
        check_classification_targets(labels)
        if len(classes) < 2:
            raise InvalidInput(f"y has one class only, {classes[0]!r}: a classifier needs at least 2 classes")
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, features, dtype=np.float64)
        settings = self._settings(self.name, class_weights(self.class_weight, classes, labels))
        settings["random_state"] = _seed(self.random_state)
        names = getattr(self, "feature_names_in_", None)
        columns = None if names is None else names.tolist()
        return settings, classes, _native.FitRows(features, native_labels(classes, numbers), weights, columns)

    @classmethod
    def from_project(cls, project: PathOrText, name: str = "model", **params: Any) -> HetalClassifier:
        """Open a model that was trained before, in Python or with the program ``hetal``.

        Parameters
        ----------
        project : path
            The project folder.
        name : str, default="model"
            The name of the model.
        **params
            Parameters of the estimator, such as ``server`` or ``passphrase``.

        Returns
        -------
        HetalClassifier
            A fitted estimator. Its ``history_`` is empty.

        Examples
        --------
        >>> from hetal import HetalClassifier
        >>> clf = HetalClassifier.from_project("project", "flowers")  # doctest: +SKIP
        """
        estimator = cls(project=project, name=name, **params)
        classifier, path = _native.load(estimator._settings(name))
        about = classifier.about()
        estimator.param_set = params.get("param_set", about["param_set"])
        estimator.n_features_in_ = about["features"]
        if about["columns"] is not None:
            estimator.feature_names_in_ = np.asarray(about["columns"], dtype=object)
        estimator._set_model(classifier, python_classes(about), {"path": path})
        estimator._set_project(project)
        estimator.server_ = None
        estimator.history_ = []
        return estimator

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Predict classes on this machine, with the decrypted weights.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The features, as ``fit`` takes them.

        Returns
        -------
        ndarray of shape (n_samples,)
            The class of each row.
        """
        probabilities, _ = self._probabilities(X)
        return np.asarray(self.classes_[np.argmax(probabilities, axis=1)])

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The probability of each class.

        All digits are private: see the notes of the class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The features, as ``fit`` takes them.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            The probabilities, in the order of ``classes_``.
        """
        return self._probabilities(X)[0]

    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """The logarithm of the probability of each class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The features, as ``fit`` takes them.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            The logarithms, in the order of ``classes_``. Private, as the probabilities.
        """
        _, logits = self._probabilities(X)
        largest = logits.max(axis=1, keepdims=True)
        shifted = logits - largest
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """The logits. With two classes, how much larger that of the second class is.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The features, as ``fit`` takes them.

        Returns
        -------
        ndarray of shape (n_samples, n_classes) or (n_samples,)
            The logits, in the order of ``classes_``. Private, as the probabilities.
        """
        _, logits = self._probabilities(X)
        return np.asarray(logits[:, 1] - logits[:, 0]) if len(self.classes_) == 2 else logits

    def predict_remote(self, X: ArrayLike) -> NDArray[Any]:
        """Predict classes on the server that trained the model, on ciphertexts.

        The server sees neither the rows nor the model nor the prediction.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The features, as ``fit`` takes them.

        Returns
        -------
        ndarray of shape (n_samples,)
            The class of each row.
        """
        rows = self._rows(X)
        settings = self._settings(self.model_name_, project=self.project_)
        progress = Progress(self.verbose)
        require_same_process()
        try:
            probabilities = _native.predict_remote(settings, rows, progress.show)
        finally:
            progress.close()
        return np.asarray(self.classes_[np.argmax(probabilities, axis=1)])

    def export(self, path: PathOrText, format: str | None = None) -> float:
        """Write a model that may be published: noise hides what exact weights say about the key.

        Parameters
        ----------
        path : path
            The file to write. Only a few models may be published under one secret key.
        format : {"onnx", "npz", "safetensors", "sklearn"}, optional
            The format; by default that of the file's name (``sklearn`` is ``.json``).

        Returns
        -------
        float
            The standard deviation of the noise of each weight for normalised features.
        """
        check_is_fitted(self)
        chosen = format or _FORMATS.get(Path(path).suffix, "")
        if chosen not in _FORMATS.values():
            raise InvalidInput(f"unknown format of {os.fspath(path)!r}: use one of {', '.join(_FORMATS)}")
        settings = self._settings(self.model_name_, project=self.project_)
        require_same_process()
        sigma, _ = _native.export(settings, chosen, os.fspath(path))
        return sigma

    def _probabilities(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rows = self._rows(X)
        return self._classifier.probabilities(rows)

    def _rows(self, X: ArrayLike) -> NDArray[np.float64]:
        """Rows to classify. A model that replaces missing values takes them."""
        check_is_fitted(self)
        finite = "allow-nan" if self.training_["imputes"] else True
        rows: NDArray[np.float64] = validate_data(
            self, X, dtype=np.float64, order="C", reset=False, ensure_all_finite=finite
        )
        return rows

    def _set_model(self, classifier: _native.Classifier, classes: NDArray[Any], more: dict[str, Any]) -> None:
        about = classifier.about()
        weights, bias = classifier.weights()
        self.classes_ = classes
        self._classifier = classifier
        binary = len(classes) == 2
        self.coef_ = weights[1:] - weights[:1] if binary else weights
        self.intercept_ = bias[1:] - bias[:1] if binary else bias
        self.model_name_ = about["name"]
        known = ("name", "classes", "class_type", "columns", "features")
        self.training_ = {key: value for key, value in about.items() if key not in known} | more

    def _set_project(self, project: PathOrText) -> None:
        self.project_ = os.fspath(project)
        page = Path(project) / "reports" / f"{self.model_name_}.html"
        self.report_ = os.fspath(page) if page.exists() else None

    def _warn(self, advice: str | None) -> None:
        if self.training_["matches_reference"] is False:
            bound = self.training_["difference_bound"]
            warnings.warn(
                f"the weights differ from the plaintext reference by up to {bound:.1e}: do not trust this server",
                UntrustedServerWarning,
                stacklevel=3,
            )
        if advice is not None:
            warnings.warn(advice, ConvergenceWarning, stacklevel=3)

    def _settings(
        self, name: str | None, class_weight: str | list[float] | None = None, project: str | None = None
    ) -> dict[str, Any]:
        """The parameters as the native module takes them. ``project`` is where a model was trained."""
        if not isinstance(self.param_set, str):
            raise InvalidInput(f"param_set is {self.param_set!r}, must be a text such as \"full\"")
        folder = self.project if self.project is not None else project
        return {
            "project": Path(default_project(self.param_set) if folder is None else folder),
            "param_set": self.param_set,
            "server": _text("server", self.server),
            "authority": _path(self.authority),
            "token_file": _path(self.token_file),
            "certificate": _certificate(self.certificate),
            "passphrase": reveal(self.passphrase),
            "name": _text("name", name),
            "replace": bool(self.replace),
            "learning_rate": _number("learning_rate", self.learning_rate),
            "batch_size": _whole("batch_size", self.batch_size),
            "max_epochs": _whole("max_epochs", self.max_epochs),
            "patience": _whole("patience", self.patience),
            "check_every": _whole("check_every", self.check_every),
            "alpha": _number("alpha", self.alpha),
            "class_weight": class_weight,
            "prior": _number("prior", self.prior) or 0.0,
            "scale": str(self.scale),
            "verify": bool(self.verify),
            "validation_fraction": _number("validation_fraction", self.validation_fraction),
            "random_state": None,
        }

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "coef_"):
            warnings.warn(_PRIVATE, PrivateModelWarning, stacklevel=2)
        state: dict[str, Any] = super().__getstate__()
        return state


def _path(path: PathOrText | None) -> Path | None:
    return None if path is None else Path(path)


def _text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise InvalidInput(f"{name} is {value!r}, must be a text or None")


def _certificate(files: Any) -> tuple[Path, Path] | None:
    if files is None:
        return None
    if not isinstance(files, (tuple, list)) or len(files) != 2:
        raise InvalidInput(f"certificate is {files!r}, must be two paths: of your certificate and of its key")
    return Path(files[0]), Path(files[1])


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidInput(f"{name} is {value!r}, must be a number or None")
    if not np.isfinite(value):
        raise InvalidInput(f"{name} is {value!r}, must be finite")
    return float(value)


def _whole(name: str, value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise InvalidInput(f"{name} is {value!r}, must be a whole number above 0 or None")
    return int(value)


def _seed(random_state: Any) -> int | None:
    if random_state is None:
        return None
    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool) and random_state >= 0:
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def _say_how_to_continue(
    interrupt: KeyboardInterrupt, project: Path, name: str | None, verbose: int
) -> None:
    training = f"training {name} " if name else ""
    text = f"interrupted: {training}in {project} continues where it stopped when the same fit is called again"
    interrupt.args = interrupt.args or (text,)
    if verbose:
        print(text, file=sys.stderr)


__all__ = ["HetalClassifier", "HetalError", "default_project"]
