"""hetal: train a classifier on data the server can never read.

    from hetal import HetalClassifier

    clf = HetalClassifier(server="train.example.org:7443", token_file="token", authority="ca.pem")
    clf.fit(X, y)
    clf.predict(X_new)

`HetalClassifier` is a scikit-learn estimator. `HetalFeatures` turns sentences and pictures into
features. `hetal.errors` lists the exceptions, `hetal.callbacks` what can follow a training.
"""

from typing import TYPE_CHECKING, Any

from hetal import errors
from hetal._native import VERSION as __version__
from hetal._passphrase import Passphrase
from hetal.callbacks import Callback

if TYPE_CHECKING:
    from hetal._classifier import HetalClassifier, default_project
    from hetal._features import HetalFeatures

__all__ = [
    "Callback",
    "HetalClassifier",
    "HetalFeatures",
    "Passphrase",
    "__version__",
    "default_project",
    "errors",
]

# What needs scikit-learn, which takes a second and 100 MiB. The program `hetal` does not.
_HOMES = {
    "HetalClassifier": "hetal._classifier",
    "HetalFeatures": "hetal._features",
    "default_project": "hetal._classifier",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
