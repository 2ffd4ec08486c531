"""A program that type checkers accept: `mypy --strict` and pyright."""

import numpy as np
from numpy.typing import NDArray

import hetal
from hetal import HetalClassifier, HetalFeatures, Passphrase, errors
from hetal.integrations import MLflow


class Print(hetal.Callback):
    def on_epoch(self, epoch: dict[str, object]) -> None:
        print(epoch["loss"])


def train(rows: NDArray[np.float32], labels: list[str]) -> NDArray[np.float64]:
    clf = HetalClassifier(
        "train.example.org:7443",
        token_file="token",
        authority="ca.pem",
        learning_rate=0.5,
        passphrase=Passphrase("a b c"),
        callbacks=[Print(), MLflow(experiment="x"), lambda epoch: print(epoch["accuracy"])],
    )
    try:
        clf.fit(rows, labels)
    except errors.ServerUnreachable as error:
        print(error)
    losses: list[float] = [epoch["loss"] for epoch in clf.history_]
    print(losses, hetal.default_project("full").name, clf.export("model.onnx"))
    return clf.predict_proba(rows)


def features(sentences: list[str]) -> NDArray[np.float64]:
    return HetalFeatures("all-mpnet-base-v2").fit(sentences).transform(sentences)
