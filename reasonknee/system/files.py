"""Files that are whole or not there, and what is in them by its digest."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """The one way to write a file: into the temporary name that this gives, which becomes `path` at the end.

    Under its final name a file is whole, even after a power cut; an error leaves what was there before.
    Whoever removes the temporary file wanted none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # unique to this process, so that two that write the same file by accident cannot mix their bytes
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        yield temporary
        if temporary.exists():
            _commit(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _commit(temporary: Path, final: Path) -> None:
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
