"""Which scan is the volume of which knee and visit, and what becomes of every other scan.

`plan` asks the same questions as `construct`, so that what it announces is what will be done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reasonknee.cohort.scans import Key, Scan
from reasonknee.construct.moaks_tables import Knee, Reading
from reasonknee.construct.split_files import Listed
from reasonknee.errors import ReasonKneeError, UsageError
from reasonknee.layout import volume_id
from reasonknee.system.progress import Progress, silent

SERIES_RULE = (
    "DESS as a split file, contents.csv, the path or SeriesDescription say; a NIfTI file is named as the "
    "published DESS are; of two such series of one knee and visit the later one, by date and number: a scan "
    "is repeated where the first was not good; of an archive and the folder unpacked beside it the archive"
)
NO_MASK, NO_READING, NOT_GRADED = "no mask", "no reading in the tables", "no question is graded"
NOT_TOLD = "nothing says that the series is DESS"
Scans = Mapping[Key, list[Scan]]


@dataclass(frozen=True)
class Job:
    """A volume to annotate."""

    knee: Knee
    image: Scan
    mask: Path | None


class Volumes:
    """The volumes of a cohort and what became of each: used, left out for a reason, or quarantined with a
    code."""

    def __init__(self, found: int) -> None:
        self.found = found
        self.left_out: dict[str, list[str]] = defaultdict(list)
        self.quarantine: list[dict[str, str]] = []
        self.knees: set[Knee] = set()  # of volumes that were left out, where it is known
        self.other_series = 0  # of other sequences
        self.chosen: dict[str, Any] = {}  # where a knee has several DESS series at one visit

    def drop(self, reason: str, name: str, knee: Knee | None = None) -> None:
        self.left_out[reason].append(name)
        self.knees |= {knee} if knee else set()

    def fail(self, name: str, error: ReasonKneeError, knee: Knee | None = None) -> None:
        self.quarantine.append({"volume": name, "code": error.code, "reason": error.told})
        self.knees |= {knee} if knee else set()

    def report(self, used: int) -> dict[str, Any]:
        return {
            "found": self.found - self.other_series,
            "used": used,
            "left_out": {reason: sorted(names) for reason, names in sorted(self.left_out.items())},
        }


def scan_of_knee(
    images: Scans, listed: Mapping[Key, Listed] | None, volumes: Volumes, progress: Progress = silent
) -> dict[Knee, Scan]:
    """The DESS volume of each knee and visit."""
    by_knee: dict[Knee, list[Scan]] = defaultdict(list)
    for done, (key, scans) in enumerate(sorted(images.items()), start=1):
        if _is_dess(key, scans[0], listed, volumes):
            knee = _knee(key, scans, listed, volumes)
            if knee:
                by_knee[knee].append(scans[0])
        progress("looking at series", done, len(images))
    for key in sorted(set(listed or ()) - set(images)):
        volumes.drop("listed in a split file, but there is no image", "/".join(key))
    taken = {}
    for knee, mine in sorted(by_knee.items()):
        scan = taken[knee] = max(mine, key=lambda s: (s.study, len(s.series), s.series))
        besides = [f"{s.study}/{s.series}" for s in mine if s is not scan]
        if besides:
            volumes.chosen[volume_id(*knee)] = {"chosen": f"{scan.study}/{scan.series}", "besides": besides}
    return taken


def annotatable(
    scans: Mapping[Knee, Scan], readings: Mapping[Knee, Reading], masks: Scans | None, volumes: Volumes
) -> Iterator[Job]:
    """The volumes that have grades and, unless boxes are done without, one mask."""
    for knee, scan in scans.items():
        name, reading = volume_id(*knee), readings.get(knee)
        mine = masks.get(scan.key, []) if masks is not None else []
        if reading is None:
            volumes.drop(NO_READING, name)
        elif not reading.grades:
            volumes.drop(NOT_GRADED, name, knee)
        elif masks is not None and len(mine) != 1:
            volumes.drop("more than one mask" if mine else NO_MASK, name, knee)
        else:
            yield Job(knee, scan, mine[0].path if mine else None)


def without_scan(readings: Mapping[Knee, Reading], scans: Mapping[Knee, Scan]) -> dict[str, list[Knee]]:
    """By visit, the knees that were read and of which there is no volume."""
    missing: dict[str, list[Knee]] = defaultdict(list)
    for knee, reading in sorted(readings.items()):
        if reading.grades and knee not in scans:
            missing[knee[1]].append(knee)
    return dict(sorted(missing.items()))


def _is_dess(key: Key, scan: Scan, listed: Mapping[Key, Listed] | None, volumes: Volumes) -> bool:
    """A split file, contents.csv, the path or the files say that a series is DESS; that it is alone does
    not."""
    if listed is not None and key in listed:
        return True
    try:
        told = scan.is_dess()
    except UsageError:
        raise
    except ReasonKneeError as error:
        volumes.fail("/".join(key), error)
        return False
    if told is None:
        volumes.drop(NOT_TOLD, "/".join(key))
    volumes.other_series += told is False
    return bool(told)


def _knee(key: Key, scans: list[Scan], listed: Mapping[Key, Listed] | None, volumes: Volumes) -> Knee | None:
    """Visit and side of a volume: what its split file, its path and its DICOM header say must agree."""
    name, scan = "/".join(key), scans[0]
    row = listed.get(key) if listed is not None else None
    if len(scans) > 1:
        volumes.drop("more than one image", name)
        return None
    if listed is not None and row is None:
        volumes.drop("in no split file", name)
        return None
    try:
        said = {scan.side, row and row.side, scan.side_in_file()} - {None}
    except UsageError:
        raise
    except ReasonKneeError as error:
        volumes.fail(name, error)
        return None
    visits = {scan.visit, row and row.visit} - {None}
    for what, values in (("side", said), ("visit", visits)):
        if len(values) != 1:
            volumes.drop(f"{what} contradictory" if values else f"{what} unknown", name)
            return None
    return (key[0], str(visits.pop()), str(said.pop()))
