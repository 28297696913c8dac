"""Splits by patient: both knees and all visits of a patient stay together. Standard library only."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping

from reasonknee.errors import DataError

SPLITS = ("train", "validation", "test")
"""The splits; each patient is in one."""
FRACTIONS = (0.75, 0.10, 0.15)  # 5,977 / 797 / 1,196 in the paper
SPLIT_FILES = {
    "train": "train.csv",
    "validation": "val.csv",
    "test": "test.csv",
}  # as published, with these columns or without `path`
SPLIT_COLUMNS = (
    "patient_id",
    "time",
    "study_folder",
    "series_folder",
    "knee_side",
    "path",
    "image_filepath",
    "label_filepath",
)
Features = Mapping[str, int]
Grades = Mapping[str, Mapping[str, int]]  # question id -> attribute id -> grade
# of a visit, a side or a volume against one grade of one attribute: there are many grades and few visits
_VISIT_WEIGHT = 30
_PATIENT = re.compile(r"0*([0-9]{7})")


def patient_id(text: str) -> str:
    """The one form of a patient id: seven digits.

    `09000099` and ` 9000099` are the same patient; anything else is refused.
    """
    match = _PATIENT.fullmatch(unicodedata.normalize("NFKC", text).strip())
    if not match:
        raise DataError("P001", f"{text[:40]!r} is not a patient id", "seven digits are wanted")
    return match[1]


def is_synthetic(patient: str) -> bool:
    """OAI's ids start with 9; those of the synthetic cohort with 1, so that its releases and scores can
    say so."""
    return patient.startswith("1")


VISIT = "(?:[0-9]{2}|[1-9][0-9]{2})m"  # months after baseline, one spelling of each


def volume_id(patient: str, visit: str, side: str) -> str:
    """The id of a volume: `<patient>-<visit>-<side>`."""
    return f"{patient}-{visit}-{side}"


def quintuple_id(volume: str, question: str) -> str:
    """The id of a row: `<volume id>-<question id>`."""
    return f"{volume}-{question}"


def features(knees: Iterable[tuple[str, str, str, Grades]]) -> dict[str, Features]:
    """What each patient brings to a split, counted over (patient, visit, side, grades) of all its
    volumes: visits, sides and grades."""
    found: dict[str, Counter[str]] = {}
    for patient, visit, side, grades in knees:
        mine = found.setdefault(patient, Counter())
        mine.update(("volumes", f"visit {visit}", f"side {side}"))
        mine.update(
            f"grade {question} {attribute} {grade}"
            for question, given in grades.items()
            for attribute, grade in given.items()
        )
    return dict(found)


def assign(patients: Mapping[str, Features], seed: int = 0) -> dict[str, str]:
    """A split for each patient: the same for the same patients and seed, whatever their order; none empty
    from three patients on.

    Patients with the rarest features come first, and each goes to the split that lacks most of what it brings
    (iterative stratification over patients). How many patients a split gets is fixed, so that the fractions
    hold exactly.
    """
    total: Counter[str] = Counter()
    for counts in patients.values():
        total.update(counts)
    room = _room(len(patients))
    share = {split: n / max(1, len(patients)) for split, n in room.items()}
    lack = {split: {f: n * share[split] for f, n in total.items()} for split in SPLITS}
    weight = {f: 1 if f.startswith("grade ") else _VISIT_WEIGHT for f in total}
    rarity = {p: sum(n / total[f] for f, n in counts.items()) for p, counts in patients.items()}
    chosen: dict[str, str] = {}
    for p in sorted(
        patients, key=lambda p: (-round(rarity[p], 9), hashlib.sha256(f"{seed}:{p}".encode()).digest())
    ):
        open_splits = [split for split in SPLITS if room[split]]
        # what is rare counts more, and so does a lack that is large for the split
        need = {
            s: sum(n * weight[f] * lack[s][f] / (total[f] ** 2 * share[s]) for f, n in patients[p].items())
            for s in open_splits
        }
        best = max(open_splits, key=lambda s: (round(need[s], 9), room[s] / share[s]))
        chosen[p] = best
        room[best] -= 1
        for f, n in patients[p].items():
            lack[best][f] -= n
    return chosen


def _room(patients: int) -> dict[str, int]:
    few = 1 if patients >= len(SPLITS) else 0
    validation, test = (max(few, round(patients * fraction)) for fraction in FRACTIONS[1:])
    return {"train": patients - validation - test, "validation": validation, "test": test}


def imbalance(patients: Mapping[str, Features], split_of: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """For each split, by how much the share of a visit, side or grade differs from its share in the whole
    cohort: mean and largest."""
    whole: Counter[str] = Counter()
    parts: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
    for p, counts in patients.items():
        whole.update(counts)
        parts[split_of[p]].update(counts)
    found: dict[str, dict[str, float]] = {}
    for split, counts in parts.items():
        if not counts["volumes"]:
            continue
        found[split] = {"patients": sum(s == split for s in split_of.values()), "volumes": counts["volumes"]}
        for kind in ("visit", "side", "grade"):
            off = [
                abs(counts[f] / counts["volumes"] - n / whole["volumes"])
                for f, n in whole.items()
                if f.startswith(kind + " ")
            ]
            found[split] |= {
                f"{kind}_mean": round(sum(off) / max(1, len(off)), 4),
                f"{kind}_largest": round(max(off, default=0.0), 4),
            }
    return found


def overlap(patients: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Patients that are in more than one split, with those splits; empty for a sound release."""
    seen: dict[str, set[str]] = {}
    for split, ids in patients.items():
        for each in ids:
            seen.setdefault(patient_id(each), set()).add(split)
    return {p: sorted(splits, key=_split_order) for p, splits in sorted(seen.items()) if len(splits) > 1}


def _split_order(split: str) -> int:
    return SPLITS.index(split) if split in SPLITS else len(SPLITS)
