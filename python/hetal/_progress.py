"""Progress: one updating line in terminals and notebooks, lines elsewhere."""

from __future__ import annotations

import sys
from typing import Any

_STAGES = {
    "comparing": "checking the key set",
    "keys": "making keys",
    "encrypting": "encrypting rows",
    "sending_keys": "sending keys",
    "sending_rows": "sending rows",
    "preparing": "server: preparing",
    "training": "server: training",
    "validating": "server: validating",
    "classifying": "server: classifying",
}
_LINES = {
    "waiting": "{text} is in use: waiting until it is free",
    "broken": "the server cannot be reached or fails ({text}): retrying",
    "begun": "training {name} on {server}; project folder {project}",
    "chosen": "{text}",
    "queued": "waiting in the server's queue",
    "started": "the server computes on {text}",
    "resting": "the server's GPU failed or has too little memory: the job continues when it works again",
    "stranded": "the interrupted trainings {text} used keys that were replaced: they can only start again",
    "restarted": "the job failed meanwhile ({text}): starting a new one with the same rows",
    "abandoned": "the record of a training was lost; its job is {text}",
    "outliers": "{text} rows are too long for the encrypted circuit: they are classified on this machine",
    "stopping": "stopping: the step in progress ends first",
    "checking": "computing the plaintext reference: the same training on this machine, without encryption",
}
_VERDICTS = {
    "continue": "continue",
    "stop": "stop",
    "lower_rate": "retry with a lower rate",
    "widen_range": "retry with a wider range",
}


def _is_notebook() -> bool:
    shell = sys.modules.get("IPython")
    if shell is None:
        return False
    return type(shell.get_ipython()).__name__ == "ZMQInteractiveShell"


def _is_terminal() -> bool:
    # A program without a console has no standard error.
    return sys.stderr is not None and sys.stderr.isatty()


class Progress:
    """Shows the events of a training on standard error. ``verbose=0`` shows nothing."""

    def __init__(self, verbose: int) -> None:
        self.verbose = verbose
        self.bar: Any = None
        self.stage = ""
        self.updates = _is_notebook() or _is_terminal()

    def show(self, event: dict[str, Any]) -> None:
        """Shows an event."""
        if not self.verbose:
            return
        kind = event["kind"]
        if kind == "epoch":
            self._line(_epoch(event))
        elif kind == "begun" and event["resumed"]:
            self._line("going on with " + _LINES[kind].format(**event))
        elif kind in _LINES:
            self._line(_LINES[kind].format(**event))
        elif kind in _STAGES:
            self._step(_STAGES[kind], event)

    def _line(self, text: str) -> None:
        if self.updates:
            from tqdm.auto import tqdm

            tqdm.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def _step(self, stage: str, event: dict[str, Any]) -> None:
        if "epoch" in event:
            stage += f", epoch {event['epoch']}" if event["epoch"] else ""
        if not self.updates:
            # One line a stage, and all of them only if asked for.
            if stage != self.stage and self.verbose > 1:
                self._line(stage)
            self.stage = stage
            return
        if self.bar is None:
            from tqdm.auto import tqdm

            self.bar = tqdm(total=1, leave=False, dynamic_ncols=True, file=sys.stderr)
        done, total = event.get("done", 0), event.get("total", 1)
        if stage != self.stage or self.bar.total != total:
            self.stage = stage
            self.bar.reset(total=total)
            self.bar.set_description(stage)
        self.bar.n = done
        self.bar.refresh()

    def close(self) -> None:
        """Removes the updating line."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def _epoch(epoch: dict[str, Any]) -> str:
    text = (
        f"check {epoch['check']}: validation accuracy {100 * epoch['accuracy']:.2f} %, loss {epoch['loss']:.3f}, "
        f"largest logit {epoch['largest_logit']:.1f}: {_VERDICTS[epoch['verdict']]}"
    )
    return text if epoch["seconds"] is None else f"{text} ({epoch['seconds']:.1f} s)"
