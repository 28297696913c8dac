"""A repo on the Hub as a folder: all of it, or its outline, which is what a quick check looks at."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from reasonknee.errors import StorageError, UsageError
from reasonknee.validation.files import MAX_TEXT, inside

REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_MAX_FOOTER = 1 << 26
_AT_ONCE = 8  # requests
_WAITS = (0.5, 1.0)  # seconds before the first question is asked again: a server stumbles, a connection is reset
_TIMEOUT = 30.0  # seconds for an answer to it


def download(repo: str, revision: str | None) -> Path:
    """The files of a dataset repo as they are at the Hub now; what is in its cache of that very commit is not fetched again."""
    from huggingface_hub import snapshot_download

    return Path(_asked(repo, lambda: snapshot_download(repo, repo_type="dataset", revision=_commit(repo, revision))))


def outline(repo: str, revision: str | None, folder: Path) -> None:
    """Every file of a repo under its name and with its size, but only texts and the footers of shards are fetched: the rest is a hole."""
    _asked(repo, lambda: _outline(repo, revision, folder))


def _outline(repo: str, revision: str | None, folder: Path) -> None:
    from huggingface_hub import HfFileSystem

    files: Any = HfFileSystem()
    root = f"datasets/{repo}@{_commit(repo, revision)}"
    sizes = {path.removeprefix(root + "/"): int(info["size"]) for path, info in files.find(root, detail=True).items()}
    strange = [name for name in sizes if not inside(name)]
    if strange:
        raise ValueError(f"it has a file that is called {strange[0][:80]!r}")

    def sketch(name: str) -> None:
        size = sizes[name]
        if name.endswith(".parquet"):
            start = _footer(files, f"{root}/{name}", size)
        else:
            start = 0 if size <= MAX_TEXT else size
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("wb") as file:
            file.truncate(size)
            if start < size:
                file.seek(start)
                file.write(files.cat_file(f"{root}/{name}", start=start, end=size))

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(sketch, sizes):
            pass


def _footer(files: Any, path: str, size: int) -> int:
    """Where the footer of a Parquet file starts, as its last eight bytes say: its length, and a mark."""
    if size < 8:
        return 0
    end = files.cat_file(path, start=size - 8, end=size)
    length = int.from_bytes(end[:4], "little") + 8
    return size - length if end[4:] == b"PAR1" and length <= min(size, _MAX_FOOTER) else size - 8


def _commit(repo: str, revision: str | None) -> str:
    """What the Hub says that a revision is. The library alone would take the last answer from its cache where the Hub gives none."""
    from huggingface_hub import HfApi

    waits = list(_WAITS)
    while True:
        try:
            return str(HfApi().dataset_info(repo, revision=revision, timeout=_TIMEOUT).sha)
        except Exception as error:
            status = getattr(getattr(error, "response", None), "status_code", 500)  # without an answer, the connection failed
            if status < 500 or not waits:
                raise
        time.sleep(waits.pop(0))


def _asked(repo: str, call: Callable[[], Any]) -> Any:
    if not REPO.fullmatch(repo):
        raise UsageError("X001", f"{repo!r} is not a repo on the Hub", "owner/name is wanted")
    try:
        return call()
    except Exception as error:  # the library's errors are of many types: no such repo, no access, no network
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise StorageError("X002", f"{repo} cannot be downloaded: {reason}", "check the name, the revision, your access and the network") from None
