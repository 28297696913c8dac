"""`reasonknee` and `python -m reasonknee`: the command, by the short way where that is enough."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from reasonknee.errors import reported


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # whatever a file is called, and whatever the terminal can write
    reported(_command)


def _command() -> None:
    name, *words = sys.argv[1:] or [""]
    if name == "check-volume":
        os.environ.setdefault(
            "OPENBLAS_NUM_THREADS", "1"
        )  # before numpy comes: threads take time to start, and the gate forks
    if name == "check-volume" and words and not any(word.startswith("-") for word in words):
        from reasonknee.volumes.gate import print_verdicts

        sys.exit(
            print_verdicts(map(Path, words))
        )  # without typer, which takes as long to import as a knee takes to check
    from reasonknee.cli import run

    run()


if __name__ == "__main__":
    main()
