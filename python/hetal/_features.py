"""Features of sentences and pictures, from public pretrained networks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from hetal import _native
from hetal._program import set_extractor
from hetal.errors import InvalidInput

_PICTURES = {".jpg", ".jpeg", ".png"}


class HetalFeatures(TransformerMixin, BaseEstimator):
    """Turns sentences or pictures into features, with a public pretrained network.

    The network runs on this machine, in the program ``hetal-extract`` (``pip install
    'hetal[features]'``). It is not trained: ``fit`` only finds it and records the hashes of its
    files, and ``transform`` refuses another network.

    Parameters
    ----------
    network : str or path, default="all-mpnet-base-v2"
        A short name (``hetal extract models`` lists them), a folder with ``config.json`` and
        ``model.safetensors``, an ``.onnx`` file, or a name on the hub (``owner/name``).
    device : {"auto", "cpu", "cuda"}, default="auto"
        Where the network runs.
    models : path, optional
        Where downloaded networks are kept. By default where ``hetal extract`` keeps them.

    Attributes
    ----------
    network_ : dict
        Which network it is: its source, its files' hashes, its preprocessing.
    n_features_out_ : int
        The number of features.
    is_text_ : bool
        Whether it was fitted on sentences, and not on pictures.

    See Also
    --------
    HetalClassifier : Trains on the features.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from hetal import HetalClassifier, HetalFeatures
    >>> model = make_pipeline(HetalFeatures("all-mpnet-base-v2"), HetalClassifier())
    >>> model.fit(["play some jazz", "will it rain"], ["music", "weather"])  # doctest: +SKIP
    """

    def __init__(
        self,
        network: str | os.PathLike[str] = "all-mpnet-base-v2",
        *,
        device: str = "auto",
        models: str | os.PathLike[str] | None = None,
    ) -> None:
        self.network = network
        self.device = device
        self.models = models

    def fit(self, X: Iterable[Any], y: Any = None) -> HetalFeatures:
        """Find the network, and record which one it is. Nothing is trained.

        Parameters
        ----------
        X : iterable of str or path
            Sentences, or paths of pictures (JPEG or PNG): a list, an array, a column of a table.
        y : ignored
            For pipelines.

        Returns
        -------
        self
            The fitted transformer.
        """
        inputs = _inputs(X)
        self.is_text_ = not _are_pictures(inputs)
        set_extractor()
        self._description = _native.describe(self._network(), self.is_text_, inputs[:24])
        self.network_: dict[str, Any] = json.loads(self._description)["model"]
        self.n_features_out_ = int(self.network_["columns"])
        return self

    def transform(self, X: Iterable[Any]) -> NDArray[np.float64]:
        """The features of sentences or pictures, one row for each.

        Parameters
        ----------
        X : iterable of str or path
            Sentences or paths of pictures, as in ``fit``.

        Returns
        -------
        ndarray of shape (n_samples, n_features_out_)
            The features, or a table of them after ``set_output``.
        """
        check_is_fitted(self)
        inputs = _inputs(X)
        if self.is_text_ == _are_pictures(inputs):
            kinds = ("texts", "pictures") if self.is_text_ else ("pictures", "texts")
            raise InvalidInput(f"fitted on {kinds[0]}, but these are {kinds[1]}")
        set_extractor()
        return _native.encode(self._network(), self._description, self.is_text_, inputs)

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> NDArray[Any]:
        """Names of the features: ``feature0``, ``feature1`` and so on.

        Parameters
        ----------
        input_features : ignored
            For pipelines.

        Returns
        -------
        ndarray of str objects of shape (n_features_out_,)
            The names.
        """
        check_is_fitted(self)
        return np.asarray([f"feature{k}" for k in range(self.n_features_out_)], dtype=object)

    def _network(self) -> dict[str, Any]:
        return {
            "network": os.fspath(self.network),
            "device": self.device,
            "models": None if self.models is None else Path(self.models),
        }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.requires_fit = True
        return tags


def _inputs(X: Union[Iterable[Any], Any]) -> list[str]:
    if isinstance(X, (str, bytes, os.PathLike)):
        raise InvalidInput("one text or path was given: give a list of them")
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if len(shape) == 2:
        # Whoever goes through a table gets the names of its columns.
        if shape[1] != 1:
            raise InvalidInput(f"X has {shape[1]} columns: give one column of texts or of paths")
        X = np.asarray(X, dtype=object)[:, 0]
    inputs: list[str] = []
    for row, value in enumerate(X):
        if hasattr(value, "as_py"):
            # A scalar of pyarrow.
            value = value.as_py()
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, str) or not value:
            raise InvalidInput(f"input {row} is {value!r}, must be a text or the path of a picture")
        inputs.append(str(value))
    if not inputs:
        raise InvalidInput("there are no texts and no pictures")
    return inputs


def _are_pictures(inputs: list[str]) -> bool:
    """Pictures are named by their files; everything else is a text."""
    return all(Path(text).suffix.lower() in _PICTURES and "\n" not in text for text in inputs)
