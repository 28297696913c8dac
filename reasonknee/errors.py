"""One family of errors that a user can act on: a stable code, what is wrong and where, and what to do
about it."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

Told = TypeVar("Told", bound="ReasonKneeError")
_LONGEST = 4000  # characters of a line


class ReasonKneeError(Exception):
    """Printed as one line; `exit_code` is what the command ends with."""

    exit_code: ClassVar[int] = 3

    def __init__(self, code: str, message: str, hint: str = "", place: str = "") -> None:
        # all of them as args, so that the error survives a trip between processes
        super().__init__(code, message, hint, place)
        self.code, self.message, self.hint, self.place = code, message, hint, place

    def at(self: Told, place: object) -> Told:
        """The same error with the file, line or volume that it is about; the closest place, told first,
        stays."""
        return self if self.place else type(self)(self.code, self.message, self.hint, str(place))

    @property
    def told(self) -> str:
        """What is wrong and where, without code and hint."""
        return f"{self.place}: {self.message}" if self.place else self.message

    def __str__(self) -> str:
        return f"{self.code}: {self.told}" + (f" ({self.hint})" if self.hint else "")


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
    """The error of ours that a text ends with: torch hands on what a worker raised as a RuntimeError with
    its traceback as words."""
    kinds = {kind.__name__: kind for kind in (UsageError, DataError, StorageError, LockedError)}
    lines = re.findall(r"^reasonknee\.errors\.(\w+): ([A-Z][0-9]{3}): (.*)$", text, re.MULTILINE)
    return kinds[lines[-1][0]](*lines[-1][1:]) if lines and lines[-1][0] in kinds else None


def needed_torch() -> Any:
    """torch, where there is no going on without it: it is an extra, so it may not be installed."""
    try:
        import torch
    except ImportError:
        raise UsageError("G070", "batches of tensors need torch", "pip install 'reasonknee[torch]'") from None
    return torch


def shown(text: object, most: int = 80) -> str:
    """Text from elsewhere as a message may show it: short, on one line, and nothing that a terminal would
    obey."""
    return "".join(c if c.isprintable() else "?" for c in str(text)[:most])


def counted(count: int, what: str) -> str:
    """`1 patient`, `2 patients`."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def near(name: str, legal: Iterable[str]) -> str:
    """The start of a hint: the name that was probably meant, if one is close enough."""
    import difflib  # only a mistake needs it

    close = difflib.get_close_matches(name[:200], list(legal), 1)
    return f"did you mean {close[0]}? " if close else ""


def reason(error: OSError) -> str:
    """What the system said, and of which file."""
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


def remedy(error: OSError) -> str:
    """What helps against it, as far as its number tells."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "make room"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "check the permissions"
    if error.errno == errno.ELOOP:
        return "a link leads back to itself: remove it"
    if error.errno == errno.ENAMETOOLONG:
        return "choose a shorter name"
    return "check the path and the disk"


def reported(command: Callable[[], object]) -> None:
    """Runs a command. Errors that a user can act on are one line on standard error and an exit code,
    never a traceback."""
    try:
        command()
    except ReasonKneeError as error:
        print(f"error {shown(error, _LONGEST)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # else Python complains when it flushes at its end
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except UnicodeEncodeError as error:  # of a library that is given a path
        told = f"{shown(error.object, _LONGEST)!r} is not UTF-8"
        print(f"error I002: {told} (rename the file or folder)", file=sys.stderr)
        sys.exit(UsageError.exit_code)
    except OSError as error:
        print(f"error I000: {shown(reason(error), _LONGEST)} ({remedy(error)})", file=sys.stderr)
        sys.exit(4)
