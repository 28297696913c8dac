"""From sources to questions: the published ones, or new ones from the tables of fastMRI+.

Either way the result is `qa.jsonl` beside `report.json`, which counts what was odd in the sources by code.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from reasonknee.errors import DataError, UsageError
from reasonknee.sgmri.derive import Deriving, derive
from reasonknee.sgmri.fastmri_plus import read_table
from reasonknee.sgmri.images import Scan, find_scans, read_scan
from reasonknee.sgmri.published import read_published
from reasonknee.sgmri.records import FILE_NAME, Record, record_lines
from reasonknee.system.files import write_text

REPORT = "report.json"
_TEST_SHARE = 0.2
ODDITIES = {
    "Z101": "labels with blanks around them",
    "Z102": "boxes without area, left out",
    "Z103": "boxes that leave the image, cut to it",
    "Z104": "rows that stand twice, counted once",
    "Z105": "pairs of boxes of one label on one slice that overlap by half or more",
    "Z106": "studies that are called normal and have boxes",
    "Z107": "rows with a label that is not known",
    "Z108": "lines of the list of reviewed files that name no file",
    "Z201": "questions whose choices stand in their text",
    "Z202": "boxes that stand in a text alone",
    "Z203": "published boxes without area, or outside the image",
    "Z204": "answers that are not of their type, kept as text",
    "Z205": "paths from another machine, left out",
    "Z206": "questions without text or answer, left out",
    "Z207": "questions that stand twice on one place",
}
Progress = Callable[[str, int, int], object]


@dataclass(frozen=True)
class Made:
    """What was written, and what was odd."""

    records: int
    by_task: dict[str, int]
    odd: dict[str, int]
    notes: list[str]


def construct_published(folder: Path, out: Path, images: Path | None = None) -> Made:
    """The published questions, with the patient of each volume where its image is at hand."""
    counts: Counter[str] = Counter()
    scans = find_scans(images) if images else {}
    known: dict[str, Scan] = {}

    def with_patient() -> Iterator[Record]:
        for record in read_published(folder, counts):
            name = record.volume_id
            if name in scans and name not in known:
                known[name] = read_scan(scans[name])
            scan = known.get(name)
            yield replace(record, patient=scan.patient, shape=scan.shape) if scan else record

    return _write(with_patient(), out, counts, [] if images else [_NO_PATIENT])


_NO_PATIENT = "no image tells whose volume it is: intervals are by volume, not by patient"


def construct_derived(
    tables: list[Path], out: Path, options: Deriving, images: Path | None = None, splits: Path | None = None
) -> Made:
    """Questions from the readers' boxes. A volume's split is its image's folder, or what `splits` (a JSON
    object of volume -> train or test) says, or else drawn by its name: one in five is test."""
    counts: Counter[str] = Counter()
    scans = {name: read_scan(path) for name, path in (find_scans(images) if images else {}).items()}
    given = _read_splits(splits) if splits else {}
    notes = (
        []
        if images
        else [
            _NO_PATIENT,
            "no image tells how many frames a negative volume has: no slice of it is asked about",
        ]
    )
    drawn = 0

    def records() -> Iterator[Record]:
        nonlocal drawn
        for table in tables:
            reviewed = table.with_name(f"{table.stem}_file_list.csv")
            for volume in read_table(table, counts, reviewed if reviewed.is_file() else None):
                scan = scans.get(volume.volume_id)
                split = given.get(volume.volume_id) or (scan.split if scan else None)
                if split is None:
                    split, drawn = _drawn_split(volume.volume_id, scan), drawn + 1
                patient, depth = (scan.patient, scan.shape[0]) if scan else (None, None)
                for record in derive(volume, split, options, patient, depth):
                    yield replace(record, shape=scan.shape if scan else None)

    made = _write(records(), out, counts, notes)
    if drawn:
        made.notes.append(
            f"{drawn} volumes have no known split: it was drawn by patient or, without one, by volume"
        )
    _write_report(out, made)
    return made


def _drawn_split(volume_id: str, scan: Scan | None) -> str:
    whose = (scan.patient if scan else None) or volume_id
    return (
        "test" if int(hashlib.sha256(whose.encode()).hexdigest(), 16) % 100 < 100 * _TEST_SHARE else "train"
    )


def _read_splits(path: Path) -> dict[str, str]:
    try:
        splits = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            "Z013", f"{path.name}: {error}", "a JSON object of volume -> split is wanted"
        ) from None
    if not isinstance(splits, dict) or not set(splits.values()) <= {"train", "test"}:
        raise DataError("Z013", f"{path.name}: not a map of volumes to splits", "splits are train and test")
    return splits


def _write(records: Iterator[Record], out: Path, counts: Counter[str], notes: list[str]) -> Made:
    if out.exists():
        raise UsageError("Z012", f"{out} exists", "choose a new folder, or remove it")
    by_task: Counter[str] = Counter()
    splits: dict[str, str] = {}

    def counted() -> Iterator[Record]:
        for record in records:
            by_task[f"{record.anatomy} {record.split} {record.level} {record.task}"] += 1
            other = splits.setdefault(record.cluster, record.split)
            if other != record.split:
                hint = "split by patient; a `--splits` file decides"
                raise DataError("Z014", f"{record.cluster} is in {other} and in {record.split}", hint)
            yield record

    text = "".join(record_lines(counted()))
    write_text(out / FILE_NAME, text)
    odd = {code: number for code, number in sorted(counts.items()) if number}
    made = Made(sum(by_task.values()), dict(sorted(by_task.items())), odd, list(notes))
    _write_report(out, made)
    return made


def _write_report(out: Path, made: Made) -> None:
    odd = {code: {"count": number, "what": ODDITIES[code]} for code, number in made.odd.items()}
    report = {"records": made.records, "by_task": made.by_task, "odd": odd, "notes": made.notes}
    write_text(out / REPORT, json.dumps(report, indent=1) + "\n")


def told(made: Made) -> Iterator[str]:
    """The same in words, for the console."""
    yield f"{made.records:,} questions"
    for code, number in made.odd.items():
        yield f"{code}: {ODDITIES[code]}: {number:,}"
    yield from made.notes
