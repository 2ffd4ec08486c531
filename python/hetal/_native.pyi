"""The native module: see crates/python."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VERSION: str

class Classifier:
    def __new__(cls, text: str) -> Classifier: ...
    def weights(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...
    def probabilities(self, rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...
    def about(self) -> dict[str, Any]: ...

class FitRows:
    def __new__(
        cls,
        features: NDArray[np.float64],
        labels: NDArray[np.int64] | list[bool] | list[str],
        weights: NDArray[np.float64] | None,
        columns: list[str] | None,
    ) -> FitRows: ...

def fit(
    settings: dict[str, Any],
    rows: FitRows,
    on_event: Callable[[dict[str, Any]], object],
) -> tuple[Classifier, dict[str, Any]]: ...
def load(settings: dict[str, Any]) -> tuple[Classifier, Path]: ...
def predict_remote(
    settings: dict[str, Any],
    rows: NDArray[np.float64],
    on_event: Callable[[dict[str, Any]], object],
) -> NDArray[np.float64]: ...
def export(settings: dict[str, Any], format: str, out: str | PathLike[str]) -> tuple[float, int | None]: ...
def describe(network: dict[str, Any], is_text: bool, samples: list[str]) -> str: ...
def encode(network: dict[str, Any], description: str, is_text: bool, inputs: list[str]) -> NDArray[np.float64]: ...
def main(arguments: Sequence[str]) -> int: ...
