"""Work on a file from elsewhere, in a process of its own to which the kernel gives so much of the processor and of memory, and no more.

A library's limits are those that its authors thought of. What was made by hand to be slow, or to break a library, ends that process alone.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import NoReturn

from reasonknee.errors import DataError, ReasonKneeError, StorageError, UsageError

SECONDS = 0.75  # of the processor for a file: with the start of Python, it takes less than one
_WAIT = 60  # seconds by the clock, and those of the processor: for a slow disk, not for ever
_LONGEST = 1000  # characters of a message
MEMORY = 400 << 20  # what the work may take, besides the 30 to 60 MB of Python and its libraries


def limited(work: Callable[[], str], seconds: float) -> str:
    """What `work` returns or raises, done in a child that is ended after so many seconds of the processor, in whatever code it then is."""
    if not hasattr(os, "fork"):  # Windows: without limits
        return work()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by whoever started us, it would hide how the child ended
    theirs, ours = os.pipe()
    child = os.fork()
    if not child:
        _in_child(work, seconds, ours)
    os.close(ours)
    try:
        with open(theirs, "rb") as pipe:
            said = pipe.read()
    except BaseException:  # Ctrl-C
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended == -signal.SIGPROF:
        hint = "made to be slow, or a slow machine: --seconds 10 gives it more time"
        raise DataError("V010", f"not read to its end in {seconds:g} s of the processor", hint)
    if ended == -signal.SIGALRM:
        raise DataError(
            "V010", f"not read to its end in {_WAIT} s by the clock", "does the disk answer? if it does, the file was made to wait for another"
        )
    if ended or not said:
        raise DataError("V011", f"it ended the process that read it ({_cause(ended)})", "a damaged file: copy or download it again")
    line, error = json.loads(said)
    if error:
        kind = next((k for k in (UsageError, StorageError) if k.exit_code == error[0]), DataError)
        raise kind(*error[1:])
    return str(line)


def _in_child(work: Callable[[], str], seconds: float, pipe: int) -> NoReturn:
    """Writes what came of it as JSON, and ends at once: nothing that the parent has open or has still to print is touched."""
    try:
        _limit_memory()
        for stop in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(stop, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF, signal.SIGALRM})
        signal.setitimer(signal.ITIMER_PROF, min(max(0.001, seconds), 3600))
        signal.setitimer(signal.ITIMER_REAL, _WAIT + min(max(0, seconds), 3600))
        answer = json.dumps(_done(work)).encode()
        with open(pipe, "wb") as file:
            file.write(answer)
        os._exit(0)
    finally:
        os._exit(1)


def _done(work: Callable[[], str]) -> list[object]:
    """What `work` returned and what it raised, one of the two."""
    try:
        return [work()[:_LONGEST], None]
    except ReasonKneeError as error:
        return [None, [error.exit_code, error.code, error.message[:_LONGEST], error.hint[:_LONGEST]]]
    except MemoryError:
        return [None, [DataError.exit_code, "V010", f"not to be read in {MEMORY >> 20} MB of memory", "a damaged file, or made to be large"]]
    except OSError as error:
        return [None, [StorageError.exit_code, "V000", f"cannot be read: {error.strerror or error}", "check the path and its permissions"]]
    except Exception as error:
        told = f"{type(error).__name__} while it was read: {error}"[:_LONGEST]
        return [None, [DataError.exit_code, "V011", told, "a fault of the program, or of a library: please report it"]]


def _limit_memory() -> None:
    """Address space: what there is now, and so much more. Where the system does not tell it (macOS), there is no limit. No core is left behind."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with open("/proc/self/statm") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + MEMORY
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most if soft == resource.RLIM_INFINITY else min(soft, most), hard))
    except (ImportError, OSError, ValueError):
        pass


def _cause(ended: int) -> str:
    try:
        return signal.Signals(-ended).name
    except ValueError:
        return f"code {ended}"
