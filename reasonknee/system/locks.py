"""One build per folder: a lock held by the operating system, so that it ends with its process however
that ends."""

from __future__ import annotations

import getpass
import os
import socket
import stat
from pathlib import Path
from typing import IO

from reasonknee.errors import LockedError, ReasonKneeError, StorageError, UsageError, shown
from reasonknee.system.folders import not_ours

_OURS = "reasonknee: "  # how a lock of ours begins; any other file is left as it is


class Lock:
    """Exclusive, or shared among the array jobs that write different shards of one release.

    The file beside the folder names the owner.
    """

    def __init__(
        self,
        path: Path,
        shared: bool = False,
        *,
        code: str = "R002",
        doing: str = "is building into the same folder",
    ) -> None:
        self.path, self.shared, self.code, self.doing = path, shared, code, doing

    def __enter__(self) -> Lock:
        try:
            import fcntl
        except ImportError:  # Windows
            hint = "run it on Linux, macOS or in WSL; loading, streaming and scoring need no lock"
            raise UsageError("R015", "this system has no file locks that a build can hold", hint) from None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = _opened(self.path)
        try:
            owner = self.file.read(200)
            if owner and not owner.startswith(_OURS):
                raise not_ours(self.path)
            fcntl.flock(self.file, (fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if not self.path.exists() or os.fstat(self.file.fileno()).st_ino != self.path.stat().st_ino:
                raise BlockingIOError  # its owner ended, and removed it, between our two calls
        except BlockingIOError:
            self.file.close()
            name = shown(owner.removeprefix(_OURS).strip(), 200) or "another process"
            raise LockedError(self.code, f"{name} {self.doing}", "wait until it ends") from None
        except OSError as error:
            self.file.close()
            raise StorageError(
                "R009",
                f"no lock on {self.path.name}: {error.strerror}",
                "build on a file system with locks, then move it",
            ) from None
        except ReasonKneeError:
            self.file.close()
            raise
        if not self.shared:
            self.file.truncate(0)
            self.file.seek(0)
            self.file.write(_OURS + _owner())
            self.file.flush()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.shared:
            self.path.unlink(missing_ok=True)
        self.file.close()


def _opened(path: Path) -> IO[str]:
    """The file itself, never what a link leads to; a pipe would keep us waiting."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if path.is_symlink():
            raise StorageError("R012", f"{path} is a link", "no link is followed here: remove it") from None
        if path.exists() and not path.is_file():
            raise not_ours(path) from None
        raise error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise not_ours(path)
    return open(descriptor, "r+", encoding="utf-8", errors="replace")


def _owner() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()} (process {os.getpid()})"
