"""Work on a file from elsewhere, in a process of its own to which the kernel gives so much of the processor
and of memory, and no more.

A library's limits are those that its authors thought of. What was made by hand to be slow, or to break a
library, ends that process alone: one line, and nothing lost. What comes back is text and bytes, never a
pickle.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

from reasonknee.errors import DataError, LockedError, ReasonKneeError, StorageError, UsageError

SECONDS = 0.75  # of the processor for a file: with the start of Python, it takes less than one
SECONDS_OF_A_SERIES = 10.0  # the same for a folder of DICOM files, which pydicom reads
PATIENT = 60.0  # for a series of DICOM files that a build reads: twenty times what a knee takes
MEMORY = 400 << 20  # what the work may take, besides the 30 to 60 MB of Python and its libraries
WAIT = 60  # seconds by the clock, and those of the processor: for a slow disk, not for ever
_LONGEST = 1000  # characters of a message
_SEEN = set[tuple[object, ...]]()  # files that were looked at
_KINDS = {kind.__name__: kind for kind in (DataError, UsageError, StorageError, LockedError)}

Answer = tuple[str, Any]  # a text, and bytes or what can be seen as bytes


def limited(work: Callable[[], str], seconds: float, memory: int = MEMORY) -> str:
    """What `work` returns or raises, done in a child that is ended after so many seconds of the
    processor, in whatever code it then is."""
    return limited_bytes(lambda: (work()[:_LONGEST], b""), seconds, memory)[0]


def look_first(path: Path, look: Callable[[Path], str], seconds: float) -> None:
    """`limited`, for a file that is looked at before it is read; not again as long as it is the same."""
    about = path.stat()
    named = (look, about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
    if named not in _SEEN:
        limited(partial(look, path), seconds)
        _SEEN.add(named)


def limited_bytes(work: Callable[[], Answer], seconds: float, memory: int = MEMORY) -> tuple[str, bytearray]:
    """The same for work that returns a short text, and bytes of which there may be many."""
    if not hasattr(os, "fork"):  # Windows: without limits
        text, data = work()
        return text, bytearray(data)
    if threading.current_thread() is threading.main_thread():
        # ignored by whoever started us, it would hide how the child ended
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    theirs, ours = os.pipe()
    with warnings.catch_warnings():  # of threads that the child will not have; it needs none of their locks
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        _in_child(work, seconds, memory, ours)
    os.close(ours)
    try:
        with open(theirs, "rb") as pipe:
            said, data = _received(pipe, memory)
    except BaseException:  # Ctrl-C
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    _check_end(ended, seconds, said)
    answer, error = json.loads(said)
    if error:
        raise _KINDS[error[0]](*error[1:])
    return answer, data


def _received(pipe: IO[bytes], most: int) -> tuple[bytes, bytearray]:
    """A line, and the bytes that follow it: as many as the child may have had memory for."""
    said = pipe.readline(1 << 16)
    data = bytearray()
    while len(data) <= most and (block := pipe.read(1 << 20)):
        data += block
    return said, data


def _check_end(ended: int, seconds: float, said: bytes) -> None:
    if ended == -signal.SIGPROF:
        hint = "made to be slow, or a slow machine: `reasonknee check-volume --seconds` gives it more time"
        raise DataError("V010", f"not read to its end in {seconds:g} s of the processor", hint)
    if ended == -signal.SIGALRM:
        raise DataError(
            "V012",
            f"not read to its end in {WAIT} s by the clock",
            "does the disk answer? if it does, the file was made to wait for another",
        )
    if ended or not said.endswith(b"\n"):
        raise DataError(
            "V011",
            f"it ended the process that read it ({_cause(ended)})",
            "a damaged file: copy or download it again",
        )


def _in_child(work: Callable[[], Answer], seconds: float, memory: int, pipe: int) -> NoReturn:
    """Writes what came of it as JSON, and ends at once: nothing that the parent has open or has still to
    print is touched."""
    try:
        _limit_memory(memory)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where a library that gives up says so
        faulthandler.disable()
        for stop in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(stop, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF, signal.SIGALRM})
        signal.setitimer(signal.ITIMER_PROF, min(max(0.001, seconds), 3600))
        signal.setitimer(signal.ITIMER_REAL, WAIT + min(max(0, seconds), 3600))
        text, data, error = _done(work, memory)
        with open(pipe, "wb") as file:
            file.write(json.dumps([text, error]).encode() + b"\n")
            file.write(data)
        os._exit(0)
    finally:
        os._exit(1)


def _done(work: Callable[[], Answer], memory: int) -> tuple[str, Any, list[str] | None]:
    """What `work` returned, or what it raised."""
    error: ReasonKneeError
    try:
        return *work(), None
    except ReasonKneeError as raised:
        error = raised
    except MemoryError:
        told = f"not to be read in {memory >> 20} MB of memory"
        error = DataError("V013", told, "a damaged file, or made to be large")
    except Exception as raised:
        if isinstance(raised, OSError) and raised.errno is not None:  # pyarrow's own have no number
            told = f"cannot be read: {raised.strerror or raised}"
            return _told(StorageError("V000", told, "check the path and its permissions"))
        told = f"{type(raised).__name__} while it was read: {raised}"
        error = DataError("V014", told, "a damaged file, or a fault of a library: copy or download it again")
    return _told(error)


def _told(error: ReasonKneeError) -> tuple[str, bytes, list[str]]:
    return "", b"", [type(error).__name__, *(str(part)[:_LONGEST] for part in error.args)]


def _limit_memory(memory: int) -> None:
    """Address space: what there is now, and so much more.

    Where the system does not tell it (macOS), there is no limit. No core is left behind.
    """
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with open("/proc/self/statm") as file:
            most = int(file.read().split()[0]) * resource.getpagesize() + memory
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(
            resource.RLIMIT_AS, (most if soft == resource.RLIM_INFINITY else min(soft, most), hard)
        )
    except (ImportError, OSError, ValueError):
        pass


def _cause(ended: int) -> str:
    try:
        return signal.Signals(-ended).name
    except ValueError:
        return f"code {ended}"
