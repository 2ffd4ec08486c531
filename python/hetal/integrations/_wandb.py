"""Weights & Biases."""

from __future__ import annotations

from typing import Any

from hetal.callbacks import Callback, Epoch
from hetal.integrations._values import DIGITS, metrics, parameters, require


class WandB(Callback):
    """Records a training as a run of Weights & Biases: parameters, and metrics of each check.

    Weights & Biases is a service of others: with ``mode="offline"`` nothing leaves this machine.

    Parameters
    ----------
    project : str, default="hetal"
        The project there.
    mode : {"online", "offline", "disabled"}, default="online"
        Where the run goes.
    """

    def __init__(self, project: str = "hetal", mode: str = "online") -> None:
        self.project = project
        self.mode = mode
        self._run: Any = None

    def on_begin(self, training: dict[str, Any]) -> None:
        wandb = require("wandb", "wandb")
        self._run = wandb.init(
            project=self.project, name=training["name"], mode=self.mode, config=parameters(training), reinit=True
        )

    def on_epoch(self, epoch: Epoch) -> None:
        self._run.log(metrics(epoch), step=epoch["epoch"])

    def on_interrupt(self, error: BaseException) -> None:
        if self._run is not None:
            self._run.finish(exit_code=1)
            self._run = None

    def on_end(self, result: dict[str, Any]) -> None:
        self._run.summary["best_epoch"] = result["best_epoch"]
        self._run.summary["best_validation_accuracy"] = round(result["validation_accuracy"], DIGITS)
        self._run.finish()
        self._run = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}
