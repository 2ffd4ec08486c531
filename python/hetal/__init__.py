"""hetal: train a classifier on data the server can never read.

    from hetal import HetalClassifier

    clf = HetalClassifier(server="train.example.org:7443", token_file="token", authority="ca.pem")
    clf.fit(X, y)
    clf.predict(X_new)

`HetalClassifier` is a scikit-learn estimator. `HetalFeatures` turns sentences and pictures into
features. `hetal.errors` lists the exceptions, `hetal.callbacks` what can follow a training.
"""

from hetal import errors
from hetal._classifier import HetalClassifier, default_project
from hetal._features import HetalFeatures
from hetal._native import VERSION as __version__
from hetal._passphrase import Passphrase
from hetal.callbacks import Callback

__all__ = [
    "Callback",
    "HetalClassifier",
    "HetalFeatures",
    "Passphrase",
    "__version__",
    "default_project",
    "errors",
]
