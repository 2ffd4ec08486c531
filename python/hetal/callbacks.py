"""What can follow a training: callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Union

from hetal.errors import InvalidInput

#: One check: ``check``, ``epoch`` (the old name of its number), ``loss``, ``accuracy``,
#: ``largest_logit``, ``verdict``, ``accepted``, ``seconds``.
Epoch = dict[str, Any]


class Callback:
    """Follows a training. Override what you need; an exception stops the training.

    A training that is stopped can continue: the same ``fit`` goes on where it stopped, and calls
    ``on_begin`` again. A training that began ends with either ``on_end`` or ``on_interrupt``.

    Examples
    --------
    >>> import hetal
    >>> class Print(hetal.Callback):
    ...     def on_epoch(self, epoch):
    ...         print(epoch["check"], epoch["loss"])
    >>> clf = hetal.HetalClassifier(callbacks=Print())
    """

    def on_begin(self, training: dict[str, Any]) -> None:
        """The training begins or goes on.

        Parameters
        ----------
        training : dict
            ``name``, ``project`` and ``server`` as texts, ``resumed`` (whether an interrupted
            training goes on), and ``params``, the parameters of the estimator.
        """

    def on_epoch(self, epoch: Epoch) -> None:
        """A check was judged. The name is older than checks, which were once made each epoch.

        Parameters
        ----------
        epoch : dict
            ``check`` (its number from 1; ``epoch`` is its old name), ``loss`` and ``accuracy`` of
            the validation rows, ``largest_logit``, ``verdict`` (``"continue"``, ``"stop"``,
            ``"lower_rate"`` or ``"widen_range"``), ``accepted`` and ``seconds`` (since the check
            before). Loss and accuracy are private.
        """

    def on_interrupt(self, error: BaseException) -> None:
        """The training stopped after ``on_begin`` and before its end.

        Parameters
        ----------
        error : BaseException
            Why: ``KeyboardInterrupt`` after Ctrl-C, or what ``fit`` raises.
        """

    def on_end(self, result: dict[str, Any]) -> None:
        """The training ended.

        Parameters
        ----------
        result : dict
            ``history`` (as ``history_``), and what ``training_`` has, such as
            ``validation_accuracy``, ``best_check`` and ``seconds``.
        """


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
