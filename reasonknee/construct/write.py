"""Annotations and their report on disk: whole or not at all, and never over something that is there."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reasonknee.cohort import Annotation
from reasonknee.cohort.annotations import write_annotations
from reasonknee.errors import UsageError
from reasonknee.system.files import whole, write_text


def check_free(out: Path, force: bool) -> None:
    """Before the work, not after it."""
    if out.exists() and not force:
        raise UsageError("J009", f"{out} exists", "choose another --out, or --force to replace it")


def save(out: Path, annotations: Iterable[Annotation]) -> None:
    with whole(out) as temporary:
        write_annotations(temporary, annotations)


def save_report(out: Path, report: dict[str, Any]) -> None:
    write_text(out, json.dumps(report, indent=1) + "\n")
