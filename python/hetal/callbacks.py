"""What can follow a training: callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Union

from hetal.errors import InvalidInput

#: One check: ``check``, ``epoch`` (the old name of its number), ``loss``, ``accuracy``, ``largest_logit``, ``verdict``, ``accepted``, ``seconds``.
Epoch = dict[str, Any]


class Callback:
    """Follows a training. Override what you need; an exception stops the training.

    A training that is stopped can continue: the same ``fit`` goes on where it stopped.
    """

    def on_begin(self, training: dict[str, Any]) -> None:
        """The training begins or goes on: ``name``, ``project``, ``server``, ``resumed``, ``params``."""

    def on_epoch(self, epoch: Epoch) -> None:
        """A check was judged; ``on_epoch`` is its old name. Loss and accuracy are those of the validation rows, and private."""

    def on_end(self, result: dict[str, Any]) -> None:
        """The training ended: ``history``, ``validation_accuracy``, ``best_epoch``, ``seconds``."""


class _Function(Callback):
    def __init__(self, function: Callable[[Epoch], object]) -> None:
        self.function = function

    def on_epoch(self, epoch: Epoch) -> None:
        self.function(epoch)


Callbacks = Union[Callback, Callable[[Epoch], object], Iterable[Union[Callback, Callable[[Epoch], object]]], None]


def as_list(callbacks: Callbacks) -> list[Callback]:
    """Callbacks as a list. A function is called with each check."""
    if callbacks is None:
        return []
    if isinstance(callbacks, Callback) or callable(callbacks):
        callbacks = [callbacks]
    found: list[Callback] = []
    for callback in callbacks:
        if isinstance(callback, Callback):
            found.append(callback)
        elif callable(callback):
            found.append(_Function(callback))
        else:
            raise InvalidInput(f"{callback!r} is no callback: give a function or a hetal.Callback")
    return found
