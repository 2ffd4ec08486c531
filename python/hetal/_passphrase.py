"""Passphrases that no `repr` and no pickle shows."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Union

from hetal.errors import InvalidInput

#: The environment variable that serves where no passphrase is given.
_VARIABLE = "HETAL_PASSPHRASE"


class Passphrase:
    """A passphrase for the secret key. `repr` does not show it, and a pickle does not hold it.

    Parameters
    ----------
    text : str
        The passphrase. An empty one protects nothing and is refused.

    Examples
    --------
    >>> from hetal import Passphrase
    >>> Passphrase("correct horse")
    Passphrase(***)
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text: str | None = _checked(text)

    def reveal(self) -> str:
        """The passphrase itself."""
        if self._text is None:
            raise InvalidInput(
                "a pickle holds no passphrase, and with n_jobs other processes get a pickle: give it again with "
                "set_params(passphrase=...), or give a function that returns it"
            )
        return self._text

    def __repr__(self) -> str:
        return "Passphrase(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Passphrase) and self._text == other._text

    def __hash__(self) -> int:
        return hash(type(self))

    def __copy__(self) -> Passphrase:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Passphrase:
        return self

    def __reduce__(self) -> tuple[Callable[[], Passphrase], tuple[()]]:
        return _without_text, ()


def _without_text() -> Passphrase:
    passphrase = Passphrase.__new__(Passphrase)
    passphrase._text = None
    return passphrase


Source = Union[Passphrase, Callable[[], str], None]


def reveal(source: Source) -> str | None:
    """The passphrase of a parameter, or of the environment, if there is one."""
    if source is None:
        return _of_environment()
    if isinstance(source, Passphrase):
        return source.reveal()
    if callable(source):
        return _checked(source())
    raise InvalidInput(
        "passphrase is a plain value, which repr and pickle of an estimator would show: give "
        "hetal.Passphrase(...), or a function that returns it, such as getpass.getpass"
    )


def _of_environment() -> str | None:
    text = os.environ.get(_VARIABLE)
    if text == "":
        raise InvalidInput(
            f"{_VARIABLE} is set, but empty, and an empty passphrase protects nothing: set it to the passphrase, or "
            "unset it"
        )
    return text


def _checked(text: Any) -> str:
    """A key must not stay without protection because a prompt was answered with Enter."""
    if not isinstance(text, str):
        raise InvalidInput(f"the passphrase is of type {type(text).__name__}, must be a text")
    if not text:
        raise InvalidInput("the passphrase is empty, which protects nothing: leave passphrase out for none")
    return text
