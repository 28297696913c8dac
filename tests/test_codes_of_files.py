"""Refusals of texts and of limits that no other test meets, each with its own code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from reasonknee.cohort import Cohort
from reasonknee.errors import DataError, UsageError
from reasonknee.layout.strict_text import MAX_LINE, csv_rows, json_items, parse_json


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"{", "T001"),
        (b'{"a": NaN}', "T001"),
        (b'{"a": 1, "a": 2}', "T002"),
        (b" " * (MAX_LINE + 1), "T005"),
        (b"\xef\xbb\xbf{}", "T006"),
        (b"[]", "T007"),
    ],
)
def test_json_by_its_fault(raw: bytes, code: str) -> None:
    with pytest.raises(DataError) as refused:
        parse_json(raw, "file:1")
    assert (refused.value.code, refused.value.place) == (code, "file:1")


def test_lists_and_tables_by_their_fault(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for raw, code in ((b"[1]", "T007"), (b"[{}\xff", "T008"), (b"[{", "T001")):
        path.write_bytes(raw)
        with pytest.raises(DataError, match=f"^{code}: "):
            list(json_items(path))
    for raw, code in ((b"x,y\n", "T003"), (b"a,b\n1\n", "T004"), (b"a,b\n\xff,1\n", "T009")):
        path.write_bytes(raw)
        with pytest.raises(DataError, match=f"^{code}: "):
            list(csv_rows(path, [("a", "b")]))


def test_annotations_that_change_while_they_are_read(cohort: Path, tmp_path: Path) -> None:
    shutil.copy(cohort / "annotations.jsonl", tmp_path)
    entries = Cohort(tmp_path).entries()
    lines = (tmp_path / "annotations.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["volume_id"] in {e.volume_id for e in entries}
    first = next(e for e in entries if e.offset == 0)
    (tmp_path / "annotations.jsonl").write_text("\n".join(lines[::-1]) + "\n")
    with pytest.raises(UsageError, match=r"^K011: "):
        Cohort(tmp_path).annotation(first)
