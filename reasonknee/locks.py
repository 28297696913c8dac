"""One build per folder: a lock held by the operating system, so that it ends with its process however that ends."""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path

from reasonknee.errors import LockedError, StorageError


class Lock:
    """Exclusive, or shared among the array jobs that write different shards of one release. The file beside the folder names the owner."""

    def __init__(self, path: Path, shared: bool = False) -> None:
        self.path, self.shared = path, shared

    def __enter__(self) -> Lock:
        import fcntl

        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = self.path.open("a+")
        try:
            fcntl.flock(self.file, (fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if not self.path.exists() or os.fstat(self.file.fileno()).st_ino != self.path.stat().st_ino:
                raise BlockingIOError  # its owner ended, and removed it, between our two calls
        except BlockingIOError:
            self.file.seek(0)
            owner = self.file.read(200).strip() or "another process"
            self.file.close()
            raise LockedError("R002", f"{owner} is building into the same folder", "wait until it ends") from None
        except OSError as error:
            self.file.close()
            raise StorageError("R009", f"no lock on {self.path.name}: {error.strerror}", "build on a file system with locks, then move it") from None
        if not self.shared:
            self.file.truncate(0)
            self.file.write(_owner())
            self.file.flush()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.shared:
            self.path.unlink(missing_ok=True)
        self.file.close()


def _owner() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a user database
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()} (process {os.getpid()})"
