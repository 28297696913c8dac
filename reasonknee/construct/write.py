"""Annotations and their report on disk: whole or not at all, and never over something that is there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from reasonknee.annotations import Annotation, write_annotations
from reasonknee.errors import UsageError


def check_free(out: Path, force: bool) -> None:
    """Before the work, not after it."""
    if out.exists() and not force:
        raise UsageError("J009", f"{out} exists", "choose another --out, or --force to replace it")


def save(out: Path, annotations: Iterable[Annotation]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    whole(out, lambda path: write_annotations(path, annotations))


def save_report(out: Path, report: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1) + "\n"
    whole(out, lambda path: path.write_text(text, encoding="utf-8"))


def whole(path: Path, write: Callable[[Path], object]) -> None:
    """A file under its name only when all of it is on the disk."""
    partial = path.with_name(path.name + ".partial")
    try:
        write(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
