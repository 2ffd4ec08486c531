"""TensorBoard."""

from __future__ import annotations

import os
import time
from typing import Any

from hetal.callbacks import Callback, Epoch
from hetal.integrations._values import metrics, require


class TensorBoard(Callback):
    """Writes the metrics of each check as event files of TensorBoard.

    Parameters
    ----------
    log_dir : str or path, default="runs"
        The folder; each training gets a folder of its name in it.
    """

    def __init__(self, log_dir: str | os.PathLike[str] = "runs") -> None:
        self.log_dir = log_dir
        self._writer: Any = None

    def on_begin(self, training: dict[str, Any]) -> None:
        writers = require("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._writer = writers.EventFileWriter(os.path.join(os.fspath(self.log_dir), training["name"]))

    def on_epoch(self, epoch: Epoch) -> None:
        summaries = require("tensorboard.compat.proto.summary_pb2", "tensorboard")
        events = require("tensorboard.compat.proto.event_pb2", "tensorboard")
        values = [summaries.Summary.Value(tag=name, simple_value=value) for name, value in metrics(epoch).items()]
        summary = summaries.Summary(value=values)
        self._writer.add_event(events.Event(summary=summary, step=epoch["epoch"], wall_time=time.time()))
        # On disk before the next check, which may be interrupted.
        self._writer.flush()

    def on_interrupt(self, error: BaseException) -> None:
        self._close()

    def on_end(self, result: dict[str, Any]) -> None:
        self._close()

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_writer": None}
