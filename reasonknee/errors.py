"""One family of errors that a user can act on: a stable code, what is wrong and where, and what to do about it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any, ClassVar


class ReasonKneeError(Exception):
    """Printed as one line; `exit_code` is what the command ends with."""

    exit_code: ClassVar[int] = 3

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(code, message, hint)  # all three as args, so that the error survives a trip between processes
        self.code, self.message, self.hint = code, message, hint

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" + (f" ({self.hint})" if self.hint else "")


class UsageError(ReasonKneeError):
    """The call is wrong: an unknown name, an option that does not fit, an output folder that exists."""

    exit_code = 2


class DataError(ReasonKneeError):
    """A file, table, row or text from elsewhere is not what it should be."""

    exit_code = 3


class StorageError(ReasonKneeError):
    """Reading or writing failed: no such file, no space, no permission."""

    exit_code = 4


class LockedError(ReasonKneeError):
    """Another process is at work on the same folder."""

    exit_code = 5


def told_by_worker(text: str) -> ReasonKneeError | None:
    """The error of ours that a text ends with: torch hands on what a worker raised as a RuntimeError with its traceback as words."""
    kinds = {kind.__name__: kind for kind in (UsageError, DataError, StorageError, LockedError)}
    found = re.findall(r"^reasonknee\.errors\.(\w+): ([A-Z][0-9]{3}): (.*)$", text, re.MULTILINE)
    return kinds[found[-1][0]](*found[-1][1:]) if found and found[-1][0] in kinds else None


def needed_torch() -> Any:
    """torch, where there is no going on without it: it is an extra, so it may not be installed."""
    try:
        import torch
    except ImportError:
        raise UsageError("G070", "batches of tensors need torch", "pip install 'reasonknee[torch]'") from None
    return torch


def shown(text: object, most: int = 80) -> str:
    """Text from elsewhere as a message may show it: short, on one line, and nothing that a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:most])


def reason(error: OSError) -> str:
    """What the system said, and of which file."""
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


def reported(command: Callable[[], object]) -> None:
    """Runs a command. Errors that a user can act on are one line on standard error and an exit code, never a traceback."""
    try:
        command()
    except ReasonKneeError as error:
        print(f"error {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it flushes at its end
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        print(f"error I000: {reason(error)} (check space and permissions)", file=sys.stderr)
        sys.exit(4)
