"""What trackers are told."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from hetal.errors import InvalidInput

#: Digits far above the noise of a decryption.
DIGITS = 3


def metrics(epoch: dict[str, Any]) -> dict[str, float]:
    """The numbers of an epoch, rounded to what may be shown."""
    names = {"loss": "validation_loss", "accuracy": "validation_accuracy", "largest_logit": "largest_logit"}
    values = {shown: round(float(epoch[name]), DIGITS) for name, shown in names.items()}
    if epoch["seconds"] is not None:
        values["seconds"] = round(float(epoch["seconds"]), DIGITS)
    return values


def parameters(training: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a training that may be shown: no passphrase, no names of files."""
    hidden = {"passphrase", "token_file", "authority", "certificate", "callbacks", "project", "verbose"}
    return {name: value for name, value in training["params"].items() if name not in hidden and value is not None}


def require(module: str, package: str) -> ModuleType:
    """Imports a package, or says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InvalidInput(f"this callback needs the package {package}: pip install {package}") from error
