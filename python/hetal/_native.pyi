"""The native module: see crates/python."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

VERSION: str

def fit(
    settings: dict[str, Any],
    features: NDArray[np.float64],
    labels: NDArray[np.int64] | list[bool] | list[str],
    columns: list[str] | None,
    on_event: Callable[[dict[str, Any]], object],
) -> dict[str, Any]: ...
def load(settings: dict[str, Any]) -> dict[str, Any]: ...
def probabilities(
    weights: NDArray[np.float64], bias: NDArray[np.float64], rows: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...
def predict_remote(
    settings: dict[str, Any],
    rows: NDArray[np.float64],
    on_event: Callable[[dict[str, Any]], object],
) -> NDArray[np.float64]: ...
def export(settings: dict[str, Any], format: str, out: str | PathLike[str]) -> tuple[float, int | None]: ...
def describe(network: dict[str, Any], is_text: bool, samples: list[str]) -> str: ...
def encode(network: dict[str, Any], description: str, is_text: bool, inputs: list[str]) -> NDArray[np.float64]: ...
def main(arguments: Sequence[str]) -> int: ...
