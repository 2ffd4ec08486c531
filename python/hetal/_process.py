"""The process that native work belongs to."""

from __future__ import annotations

import os

from hetal.errors import HetalError

_owner: int | None = None


def require_same_process() -> None:
    """Refuses native work that would hang.

    Native work shares threads, which are made once for a process. A process that was forked
    afterwards does not have them, and would wait for them forever.
    """
    global _owner
    if _owner is None:
        _owner = os.getpid()
    elif _owner != os.getpid():
        raise HetalError(
            "this process was forked from one that had trained with hetal, and lacks its threads: start processes with "
            "the method \"spawn\" or \"forkserver\" of multiprocessing, or with joblib's backend \"loky\""
        )
