"""The program `hetal`, as a console script."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import sysconfig

from hetal import _native


def set_extractor() -> None:
    """Names the `hetal-extract` of this environment, unless the user named another one."""
    if not os.environ.get("HETAL_EXTRACT"):
        found = shutil.which("hetal-extract", path=sysconfig.get_path("scripts"))
        if found:
            os.environ["HETAL_EXTRACT"] = found


def main() -> int:
    """Runs the program and returns its exit status."""
    # As in any other program: interrupted commands end at once and can be repeated.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    set_extractor()
    return _native.main(["hetal", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
