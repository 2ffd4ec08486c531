"""Labels, as the native module takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight

from hetal.errors import InvalidInput

#: Whole numbers up to this have an exact double.
_EXACT = 2**53


def classes_of(y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The distinct labels in order, and the number of each row's label."""
    try:
        classes, numbers = np.unique(y, return_inverse=True)
    except TypeError as error:
        kinds = sorted({type(label).__name__ for label in y})
        raise InvalidInput(f"y mixes labels of several types ({', '.join(kinds)}): give labels of one type") from error
    return classes, numbers.reshape(-1)


def native_labels(
    classes: NDArray[Any], numbers: NDArray[np.intp]
) -> NDArray[np.int64] | list[bool] | list[str]:
    """The labels of all rows as whole numbers, truth values or texts."""
    values = classes.tolist()
    if all(isinstance(value, bool) for value in values):
        return [values[number] for number in numbers]
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        whole = [int(value) for value in values]
        if any(number != value or abs(number) > _EXACT for number, value in zip(whole, values)):
            raise InvalidInput("y holds numbers with fractions, or beyond 2**53: labels are classes, not amounts")
        return np.asarray(whole, dtype=np.int64)[numbers]
    if all(isinstance(value, str) for value in values):
        return [values[number] for number in numbers]
    kinds = sorted({type(value).__name__ for value in values})
    raise InvalidInput(f"labels of type {', '.join(kinds)} are not supported: give texts, whole numbers or truth values")


def class_weights(
    weights: Mapping[Any, float] | str | None, classes: NDArray[Any], y: NDArray[Any]
) -> str | list[float] | None:
    """Weights of classes: none, the word balanced, or one for each class."""
    if weights is None or isinstance(weights, str) and weights == "balanced":
        return weights
    if not isinstance(weights, Mapping):
        raise InvalidInput(f"class_weight is {weights!r}, must be a dict, 'balanced' or None")
    by_class: list[float] = compute_class_weight(dict(weights), classes=classes, y=y).tolist()
    return by_class


def python_classes(model: dict[str, Any]) -> NDArray[Any]:
    """The classes of a model file."""
    texts: list[str] = model["classes"]
    if model["class_type"] == "integer":
        return np.asarray([int(text) for text in texts], dtype=np.int64)
    if model["class_type"] == "boolean":
        return np.asarray([text == "True" for text in texts], dtype=np.bool_)
    return np.asarray(texts)


def require_same_order(classes: NDArray[Any], model: dict[str, Any]) -> None:
    """The model's classes must be in the order of ``classes``: weights belong to them by position."""
    found = python_classes(model)
    if len(found) != len(classes) or not all(a == b for a, b in zip(found.tolist(), classes.tolist())):
        raise RuntimeError(f"the model has the classes {found.tolist()} instead of {classes.tolist()}")
