"""Splits by patient: both knees and all visits of a patient stay together. Standard library only."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping

from reasonknee.errors import DataError

SPLITS = ("train", "validation", "test")
FRACTIONS = (0.75, 0.10, 0.15)  # 5,977 / 797 / 1,196 in the paper
_PATIENT = re.compile(r"0*([0-9]{7})")


def patient_id(text: str) -> str:
    """The one form of a patient id: seven digits. `09000099` and ` 9000099` are the same patient; anything else is refused."""
    match = _PATIENT.fullmatch(unicodedata.normalize("NFKC", text).strip())
    if not match:
        raise DataError("P001", f"{text[:40]!r} is not a patient id", "seven digits are wanted")
    return match[1]


def volume_id(patient: str, visit: str, side: str) -> str:
    return f"{patient}-{visit}-{side}"


def quintuple_id(volume: str, question: str) -> str:
    return f"{volume}-{question}"


def assign(patients: Iterable[str], seed: int = 0) -> dict[str, str]:
    """A split for each patient: the same for the same patients and seed, whatever their order; none empty from three patients on."""
    ordered = sorted(set(patients), key=lambda p: hashlib.sha256(f"{seed}:{p}".encode()).digest())
    n = len(ordered)
    few = 1 if n >= len(SPLITS) else 0
    validation, test = (max(few, round(n * fraction)) for fraction in FRACTIONS[1:])
    return {p: "validation" if i < validation else "test" if i < validation + test else "train" for i, p in enumerate(ordered)}


def overlap(patients: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Patients that are in more than one split, with those splits; empty for a sound release."""
    seen: dict[str, set[str]] = {}
    for split, ids in patients.items():
        for each in ids:
            seen.setdefault(patient_id(each), set()).add(split)
    return {p: sorted(splits, key=_split_order) for p, splits in sorted(seen.items()) if len(splits) > 1}


def _split_order(split: str) -> int:
    return SPLITS.index(split) if split in SPLITS else len(SPLITS)
