"""Folders that are whole or not there, and working folders that are known to be ours.

Nothing is cleared, written into or renamed that does not carry our mark: a folder of the user's may well have
the name that we would have chosen. No link is followed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reasonknee.errors import StorageError, UsageError
from reasonknee.system.files import write_text

MARK = ".reasonknee"  # the file that says whose a working folder is, and for what
_RESULTS = "reasonknee replaces these files, which it wrote:"  # the mark of a folder of results


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A new folder beside `out`, which gets its name at the end; an error leaves nothing of it."""
    out = Path(os.path.abspath(out))
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        folder.chmod(0o777 & ~_umask())
        yield folder
        folder.rename(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def claim(folder: Path, purpose: str) -> None:
    """Makes a working folder, or takes up the one that an earlier run for the same purpose left."""
    _refuse_link(folder)
    if is_ours(folder, purpose):
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise not_ours(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # made outside: for the next array job the folder is empty, and then ours
    descriptor, name = tempfile.mkstemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(purpose + "\n")
    os.replace(name, folder / MARK)


def clear(folder: Path, pattern: str) -> None:
    """Removes a working folder with those of its files that are ours; others stay, and so does the folder."""
    for path in [*folder.glob(pattern), *folder.glob(".*.tmp")]:
        path.unlink(missing_ok=True)
    if {path.name for path in folder.iterdir()} == {MARK}:
        (folder / MARK).unlink()
        folder.rmdir()


def is_ours(folder: Path, purpose: str) -> bool:
    mark = folder / MARK
    if folder.is_symlink() or mark.is_symlink() or not mark.is_file():
        return False
    return mark.read_text(encoding="utf-8", errors="surrogateescape") == purpose + "\n"


def check_free(folder: Path, names: Iterable[str]) -> set[str]:
    """In a folder of results, which may hold anything: none of these files is somebody else's.

    Returns the names that an earlier run of ours noted.
    """
    note = folder / MARK
    ours: set[str] = set()
    if note.is_file() and not note.is_symlink():
        title, *listed = note.read_text(encoding="utf-8", errors="surrogateescape").splitlines()[:100] or [""]
        ours = set(listed) if title == _RESULTS else set()
    for name in sorted(set(names) - ours):
        if os.path.lexists(folder / name):
            raise not_ours(folder / name)
    if not ours and os.path.lexists(note):  # a build works here
        raise not_ours(note)
    return ours


def note_ours(folder: Path, names: Iterable[str]) -> None:
    """Before these files are written: that the next run may replace them."""
    wanted = set(names)
    ours = check_free(folder, wanted)
    if not wanted <= ours:
        write_text(folder / MARK, "\n".join([_RESULTS, *sorted(ours | wanted)]) + "\n")


def not_ours(path: Path) -> UsageError:
    return UsageError(
        "R011", f"{path} is there, and not from this command", "move it away, or choose another name"
    )


def refuse_links(folder: Path) -> None:
    """Of a working folder: what is written below it shall lie below it."""
    _refuse_link(folder)
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            _refuse_link(Path(place, name))


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise StorageError("R012", f"{path} is a link", "no link is followed here: remove it")
