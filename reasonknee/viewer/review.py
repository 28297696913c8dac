"""The file that a review is kept in: lines are appended, never changed, and each is on the disk before the
page hears of it."""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from reasonknee.boxes import Shape
from reasonknee.cohort.review import Entry, checked_entry, read_review, standing
from reasonknee.errors import DataError, StorageError, UsageError, reason

WRITABLE = ("id", "kind", "flag", "note", "grades", "box", "blind")


class Review:
    def __init__(self, path: Path, reader: str, outside: Path) -> None:
        if path.resolve().is_relative_to(outside.resolve()):
            raise UsageError("H010", f"{path} lies in what is reviewed", "name a file outside with --review")
        if not reader.strip() or len(reader) > 100 or not reader.isprintable():
            raise UsageError("H011", f"{reader[:40]!r} is no name of a reader", "--reader with a short name")
        self.path, self.reader, self.lock = path, reader.strip(), threading.Lock()
        self.entries: list[Entry] = read_review(path) if path.exists() else []

    def add(self, said: Mapping[str, Any], shape: Shape) -> Entry:
        """A new entry, by this reader and of now."""
        given = {name: said[name] for name in WRITABLE if said.get(name) is not None}
        entry = self._entry(given)
        if entry.box is not None and not entry.box.fits(shape):
            raise DataError("H012", f"the box leaves the volume of {shape} voxels", "draw it inside")
        return self._write(entry)

    def undo(self) -> Entry | None:
        """Takes back the last of this reader's entries that stands; None if there is none."""
        last = next((e for e in reversed(standing(self.entries)) if e.reader == self.reader), None)
        if last is None:
            return None
        self._write(self._entry({"id": last.id, "kind": "undo", "undoes": last.entry}))
        return last

    def of(self, id_: str) -> list[Entry]:
        return [e for e in standing(self.entries) if e.id == id_]

    def export(self) -> Iterator[str]:
        """What stands, a line each: what `construct --corrections` takes."""
        for entry in standing(self.entries):
            yield json.dumps(entry.as_dict()) + "\n"

    def predictions(self) -> Iterator[str]:
        """Readings made before the answer was seen, as predictions: of several of one row the last."""
        last = {
            e.id: e
            for e in standing(self.entries)
            if e.kind == "reading" and e.blind and e.reader == self.reader
        }
        for entry in last.values():
            box = entry.box.as_dict() if entry.box else None
            line = {"id": entry.id, "grades": dict(entry.grades or {}), "box": box, "reasoning": entry.note}
            yield json.dumps(line) + "\n"

    def _entry(self, said: Mapping[str, Any]) -> Entry:
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return checked_entry(
            {**said, "entry": secrets.token_hex(8), "reader": self.reader, "at": now}, "the review"
        )

    def _write(self, entry: Entry) -> Entry:
        line = json.dumps(entry.as_dict()).encode() + b"\n"
        try:
            with self.lock:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a+b") as file:
                    if file.tell() and _last_byte(file) != b"\n":  # cut short by a full disk: its own line
                        line = b"\n" + line
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
                self.entries.append(entry)
        except OSError as error:
            raise StorageError(
                "H013", f"the review is not saved: {reason(error)}", "check --review"
            ) from None
        return entry


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    found: bytes = file.read(1)
    return found
