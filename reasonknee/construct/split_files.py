"""The published split files: which volumes there are, and the split, visit and side of each.

Their paths are not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from reasonknee.cohort.scans import Key, visit_in
from reasonknee.errors import DataError, counted
from reasonknee.layout import SIDES, SPLITS, patient_id
from reasonknee.layout.splits import SPLIT_COLUMNS, overlap
from reasonknee.layout.strict_text import csv_rows

_HEADERS = (SPLIT_COLUMNS, tuple(c for c in SPLIT_COLUMNS if c != "path"))
_WORDS = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}


@dataclass(frozen=True)
class Listed:
    """One row of a split file."""

    split: str
    visit: str
    side: str


def read_split_files(paths: Iterable[Path]) -> dict[Key, Listed]:
    """All rows by (patient, study, series), from files whose names say their split."""
    listed_by_key: dict[Key, Listed] = {}
    for path in sorted(paths):
        split = _split_of(path)
        for line, row in csv_rows(path, _HEADERS):
            key, listed = _row(row, split, f"{path.name}:{line}")
            if key in listed_by_key:
                raise DataError(
                    "J021", f"{path.name}:{line}: {'/'.join(key)} is listed twice", "keep one row per volume"
                )
            listed_by_key[key] = listed
    if not listed_by_key:
        raise DataError(
            "J020", "the split files list no volume", f"the columns are {','.join(SPLIT_COLUMNS)}"
        )
    shared = overlap(
        {split: [key[0] for key, row in listed_by_key.items() if row.split == split] for split in SPLITS}
    )
    if shared:
        names = ", ".join(f"{p} ({' and '.join(splits)})" for p, splits in list(shared.items())[:5])
        raise DataError(
            "J022",
            f"{counted(len(shared), 'patient')} in more than one split: {names}",
            "a patient belongs to one split",
        )
    return listed_by_key


def _split_of(path: Path) -> str:
    words = {_WORDS[w] for w in re.split("[^a-z]+", path.stem.lower()) if w in _WORDS}
    if len(words) != 1:
        raise DataError(
            "J020",
            f"{path.name}: its name does not tell its split",
            "train.csv, val.csv and test.csv are wanted",
        )
    return words.pop()


def _row(row: dict[str, str], split: str, where: str) -> tuple[Key, Listed]:
    try:
        patient = patient_id(row["patient_id"])
    except DataError as error:
        raise error.at(where) from None
    study, series, side = (
        row["study_folder"].strip(),
        row["series_folder"].strip(),
        row["knee_side"].strip().lower(),
    )
    visit = visit_in((row["time"].strip(),))
    if not (study and series and visit and side in SIDES):
        wrong = next(
            name
            for name, good in (
                ("study_folder", study),
                ("series_folder", series),
                ("time", visit),
                ("knee_side", ""),
            )
            if not good
        )
        raise DataError(
            "J023", f"{where}: {wrong} is {row[wrong][:40]!r}", "for example 00M, 20040909, 10012345, right"
        )
    return (patient, study, series), Listed(split, visit, side)
