"""The journal of a run: one line for each answer, appended and flushed, so that a run can be killed at any
point and goes on where it was.

A line is whole or it does not count: what a crash tore is cut off when the journal is opened again, and a
line that was damaged later is passed over and counted. The last line of a key holds. An error is a line, too,
and what it was about is asked again. One process at a time may hold a journal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from reasonknee.errors import StorageError, reason, remedy
from reasonknee.models.requests import Reply
from reasonknee.system.locks import Lock

FILE_NAME = "journal.jsonl"


@dataclass(frozen=True)
class Entry:
    """One line: what was asked, and what came of it."""

    key: str
    id: str  # of the quintuple
    step: str
    shown: str  # the volume that was shown; empty for none
    crop: dict[str, int] | None  # the part of it
    reply: Reply | None
    error: dict[str, str] | None = None  # code and message
    cost: float = 0.0
    server: str = ""
    notes: tuple[str, ...] = ()  # such as a fallback

    def line(self) -> bytes:
        return json.dumps(asdict(self), ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Entry | None:
        """None where the line is not one of ours."""
        try:
            fields = json.loads(line)
            reply, error = fields["reply"], fields["error"]
            if (reply is None) == (error is None):
                return None
            entry = cls(
                **{
                    **fields,
                    "reply": None if reply is None else Reply(**reply),
                    "notes": tuple(fields["notes"]),
                }
            )
        except (ValueError, TypeError, KeyError):
            return None
        texts = (entry.key, entry.id, entry.step, entry.reply.text if entry.reply else "")
        return entry if all(isinstance(t, str) for t in texts) else None


@dataclass
class Journal:
    """Answers by key. `with Journal(folder) as journal` holds it against other processes."""

    folder: Path
    answers: dict[str, Entry] = field(default_factory=dict)
    errors: dict[str, Entry] = field(default_factory=dict)  # of keys without an answer
    spent: float = 0.0  # by all lines, also those of answers that were asked twice
    damaged: int = 0  # lines that were passed over
    torn: int = 0  # bytes that were cut off the end

    @property
    def path(self) -> Path:
        return self.folder / FILE_NAME

    def __enter__(self) -> Journal:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = Lock(self.folder / ".lock", code="N030", doing="is asking into the same folder")
        self._lock.__enter__()
        try:
            self._read()
            self._file = self.path.open("ab")
        except OSError as error:
            self._lock.__exit__()
            raise StorageError("N031", f"no journal: {reason(error)}", remedy(error)) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._lock.__exit__()

    def _read(self) -> None:
        whole = 0
        for line in _lines(self.path):
            if not line.endswith(b"\n"):
                self.torn = len(line)
                break
            whole += len(line)
            entry = Entry.read(line)
            if entry is None:
                self.damaged += bool(line.strip())
            else:
                self._take(entry)
        if self.torn:
            os.truncate(self.path, whole)

    def _take(self, entry: Entry) -> None:
        self.spent += entry.cost
        if entry.reply is not None:
            self.answers[entry.key] = entry
            self.errors.pop(entry.key, None)
        elif entry.key not in self.answers:
            self.errors[entry.key] = entry

    def write(self, entry: Entry) -> None:
        try:
            self._file.write(entry.line())
            self._file.flush()  # to the system, which keeps it when this process is killed
        except OSError as error:
            raise StorageError(
                "N031",
                f"the journal cannot be written: {reason(error)}",
                f"{remedy(error)}; the same command goes on",
            ) from None
        self._take(entry)


def _lines(path: Path) -> Iterator[bytes]:
    if path.exists():
        with path.open("rb") as file:
            yield from file
