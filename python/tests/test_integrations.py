"""Callbacks for trackers, with the real packages."""

import builtins
import sys
import types

import pytest
from conftest import toy

from hetal import Callback, errors
from hetal.integrations import MLflow, TensorBoard, WandB


def test_mlflow(iris, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "runs").as_uri()
    callback = MLflow(tracking_uri=uri, experiment="flowers")
    clf = toy(max_epochs=2, learning_rate=0.5, callbacks=callback).fit(*iris)
    client = mlflow.MlflowClient(tracking_uri=uri)
    [run] = client.search_runs([client.get_experiment_by_name("flowers").experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == clf.model_name_
    assert run.data.params["learning_rate"] == "0.5"
    assert not {"passphrase", "token_file", "project"} & set(run.data.params)
    losses = client.get_metric_history(run.info.run_id, "validation_loss")
    assert [point.value for point in losses] == [round(epoch["loss"], 3) for epoch in clf.history_]
    assert [point.step for point in losses] == [epoch["epoch"] for epoch in clf.history_]
    assert run.data.metrics["best_epoch"] == clf.training_["best_epoch"]


def test_an_interrupted_run_goes_on(iris, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "runs").as_uri()
    stops = []

    class Stop(Callback):
        def on_epoch(self, epoch):
            if not stops:
                raise KeyboardInterrupt

        def on_interrupt(self, error):
            stops.append(type(error))

    clf = toy(max_epochs=2, project=tmp_path / "p", name="one", callbacks=[MLflow(uri, "flowers"), Stop()])
    with pytest.raises(KeyboardInterrupt):
        clf.fit(*iris)
    client = mlflow.MlflowClient(tracking_uri=uri)
    runs = lambda: client.search_runs([client.get_experiment_by_name("flowers").experiment_id])  # noqa: E731
    assert stops == [KeyboardInterrupt] and [run.info.status for run in runs()] == ["KILLED"]
    clf.fit(*iris)
    assert stops == [KeyboardInterrupt] and [run.info.status for run in runs()] == ["FINISHED"]


def test_tensorboard(iris, tmp_path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    clf = toy(max_epochs=2, callbacks=TensorBoard(tmp_path)).fit(*iris)
    events = loader.EventAccumulator(str(tmp_path / clf.model_name_))
    events.Reload()
    accuracies = [(event.step, round(event.value, 3)) for event in events.Scalars("validation_accuracy")]
    assert accuracies == [(epoch["epoch"], round(epoch["accuracy"], 3)) for epoch in clf.history_]


def test_a_missing_package_is_named(iris, monkeypatch):
    real = builtins.__import__
    import importlib

    def missing(name, *arguments, **options):
        if name.split(".")[0] == "wandb":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(importlib, "import_module", lambda name: missing(name))
    with pytest.raises(errors.InvalidInput, match="pip install wandb"):
        toy(max_epochs=1, callbacks=WandB(mode="offline")).fit(*iris)


def test_wandb_with_a_stand_in(iris, monkeypatch):
    """The real package needs an account or a service: the calls that it would get."""
    calls = []

    class Run:
        summary = {}

        def log(self, values, step):
            calls.append((step, values))

        def finish(self):
            calls.append("finished")

    def init(**given):
        calls.append(given)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    clf = toy(max_epochs=2, learning_rate=0.5, callbacks=WandB(mode="offline")).fit(*iris)
    begun, *checks, ended = calls
    assert (begun["name"], begun["mode"], begun["config"]["learning_rate"]) == (clf.model_name_, "offline", 0.5)
    assert not {"passphrase", "token_file", "project"} & set(begun["config"])
    assert [(step, values["validation_loss"]) for step, values in checks] == [
        (check["check"], round(check["loss"], 3)) for check in clf.history_
    ]
    assert ended == "finished" and Run.summary["best_epoch"] == clf.training_["best_epoch"]
