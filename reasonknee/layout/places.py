"""Where a release is: a folder, or a dataset repo on the Hub, which becomes a folder.

`release_folder` is what every command calls that takes either. `outline` is a repo of which only texts and
footers are fetched: what a quick check looks at.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from reasonknee.errors import StorageError, UsageError, shown
from reasonknee.layout.manifest import inside

REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
MAX_TEXT = 4 << 20  # bytes of a file of a release that is not a shard
_MAX_FOOTER = 1 << 26
_AT_ONCE = 8  # requests
_AHEAD = 1 << 17  # bytes that are fetched with what is read of a shard: small columns lie side by side
_WAITS = (0.5, 1.0)  # seconds before the first question is asked again: a server stumbles, or a connection
_TIMEOUT = 30.0  # seconds for an answer to it


def release_folder(
    target: str | Path, *, revision: str | None = None, configs: Iterable[str] | None = None
) -> Path:
    """The folder of a release: `target` itself, or a copy of the dataset repo that it names.

    A repo is taken at the commit that the Hub names just then; what is in the cache of that very commit is
    not fetched again. With `configs`, only their shards are fetched, and all texts.
    """
    folder = Path(target)
    if folder.is_dir():
        if revision is not None:
            raise UsageError(
                "M004", f"{folder} is a folder, --revision is for a repo on the Hub", "leave --revision out"
            )
        return folder
    return download(repo_named(target, revision), revision, configs)


def repo_named(target: str | Path, revision: str | None = None) -> str:
    """The name of a dataset repo, where there is no folder of that name."""
    if Path(f"{target}.partial").is_dir():
        raise UsageError(
            "M002",
            f"no folder at {target}, only {target}.partial",
            "the build was cut short: the same command goes on from there",
        )
    if not REPO.fullmatch(str(target)):
        hint = "name a folder, or a repo on the Hub as owner/name"
        raise UsageError("M002", f"no folder at {shown(target, 200)}", hint)
    return str(target)


def download(repo: str, revision: str | None = None, configs: Iterable[str] | None = None) -> Path:
    """The files of a dataset repo as they are at the Hub now."""
    from huggingface_hub import snapshot_download

    wanted = None if configs is None else ["*.json", "*.md", *(f"{config}/*.parquet" for config in configs)]

    def fetch() -> str:
        commit = _commit(repo, revision)
        return snapshot_download(repo, repo_type="dataset", revision=commit, allow_patterns=wanted)

    return Path(_asked(repo, fetch))


def fetched(repo: str, commit: str, name: str) -> Path:
    """One file of a repo at a commit, whole; what is in the cache is not fetched again."""
    from huggingface_hub import hf_hub_download

    return Path(_asked(repo, lambda: hf_hub_download(repo, name, repo_type="dataset", revision=commit)))


def in_part(repo: str, commit: str, name: str) -> Any:
    """A file of a repo at a commit, open for reading: what is read of it is fetched, and a little
    of what follows."""
    from huggingface_hub import HfFileSystem

    path = f"datasets/{repo}@{commit}/{name}"
    ahead = {"cache_type": "readahead", "block_size": _AHEAD}
    return _asked(repo, lambda: HfFileSystem().open(path, "rb", **ahead))


def outline(repo: str, revision: str | None, folder: Path) -> None:
    """Every file of a repo under its name and with its size, but only texts and the footers of shards are
    fetched: the rest is a hole."""
    _asked(repo, lambda: _outline(repo, revision, folder))


def _outline(repo: str, revision: str | None, folder: Path) -> None:
    from huggingface_hub import HfFileSystem

    files: Any = HfFileSystem()
    root = f"datasets/{repo}@{_commit(repo, revision)}"
    sizes = {
        path.removeprefix(root + "/"): int(info["size"])
        for path, info in files.find(root, detail=True).items()
    }
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
    """What the Hub says that a revision is.

    The library alone would take the last answer from its cache where the Hub gives none.
    """
    from huggingface_hub import HfApi

    waits = list(_WAITS)
    while True:
        try:
            return str(HfApi().dataset_info(repo, revision=revision, timeout=_TIMEOUT).sha)
        except Exception as error:
            status = getattr(
                getattr(error, "response", None), "status_code", 500
            )  # without an answer, the connection failed
            if status < 500 or not waits:
                raise
        time.sleep(waits.pop(0))


def _asked(repo: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # the library's errors are of many types: no such repo, no access, no network
        raise unreachable(repo, error) from None


def unreachable(repo: str, error: Exception) -> StorageError:
    reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
    return StorageError(
        "M003",
        f"{repo} cannot be downloaded: {reason}",
        "check the name, the revision, your access and the network",
    )
