"""MLflow."""

from __future__ import annotations

from typing import Any

from hetal.callbacks import Callback, Epoch
from hetal.integrations._values import DIGITS, metrics, parameters, require

#: The tag by which a training that goes on finds its run.
_TAG = "hetal.training"


class MLflow(Callback):
    """Records a training as a run of MLflow: parameters, and metrics of each check.

    The model itself is not recorded: decrypted weights are private. A training that was interrupted
    ends its run as killed or failed. When it goes on, so does its run.

    Parameters
    ----------
    tracking_uri : str, optional
        Where MLflow stores runs, e.g. ``"file:./mlruns"``; MLflow's own default otherwise.
    experiment : str, optional
        The name of the experiment.
    run_name : str, optional
        The name of the run; the name of the training otherwise.
    """

    def __init__(
        self, tracking_uri: str | None = None, experiment: str | None = None, run_name: str | None = None
    ) -> None:
        self.tracking_uri = tracking_uri
        self.experiment = experiment
        self.run_name = run_name
        self.run_id: str | None = None

    def on_begin(self, training: dict[str, Any]) -> None:
        # A run of an earlier training is none of this one.
        self.run_id = None
        client = self._client()
        name = self.experiment or "Default"
        known = client.get_experiment_by_name(name)
        experiment = known.experiment_id if known is not None else client.create_experiment(name)
        tag = f"{training['project']}/{training['name']}"
        if training["resumed"]:
            for run in client.search_runs([experiment], order_by=["attributes.start_time DESC"]):
                if run.data.tags.get(_TAG) == tag and run.info.status != "FINISHED":
                    self.run_id = run.info.run_id
                    client.update_run(self.run_id, status="RUNNING")
                    return
        run = client.create_run(experiment, run_name=self.run_name or training["name"], tags={_TAG: tag})
        self.run_id = run.info.run_id
        for key, value in parameters(training).items():
            client.log_param(self.run_id, key, value)

    def on_epoch(self, epoch: Epoch) -> None:
        client = self._client()
        for key, value in metrics(epoch).items():
            client.log_metric(self.run_id, key, value, step=epoch["epoch"])
        client.set_tag(self.run_id, "verdict", epoch["verdict"])

    def on_interrupt(self, error: BaseException) -> None:
        if self.run_id is None:
            return
        status = "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
        self._client().set_terminated(self.run_id, status)

    def on_end(self, result: dict[str, Any]) -> None:
        client = self._client()
        client.log_metric(self.run_id, "best_epoch", result["best_epoch"])
        client.log_metric(self.run_id, "best_validation_accuracy", round(result["validation_accuracy"], DIGITS))
        client.set_terminated(self.run_id, "FINISHED")

    def _client(self) -> Any:
        return require("mlflow.tracking", "mlflow-skinny").MlflowClient(tracking_uri=self.tracking_uri)
