"""Finding scans below a folder: NIfTI files and DICOM series folders, and what their paths say about them.

    .../<patient>/<visit>/<study>_<series>_<side>.nii.gz        as the published split files name them
    .../<visit>mDESS/0.C.2/<patient>/<yyyymmdd>/<series>/       as OAI ships them: a folder of DICOM files

Scans are matched by (patient, study, series), never by a path prefix, so they may lie anywhere.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from reasonknee import dicom
from reasonknee.errors import DataError
from reasonknee.splits import patient_id

Key = tuple[str, str, str]  # patient, study, series
VISITS = {"00": "00m", "01": "12m", "03": "24m", "05": "36m", "06": "48m"}  # OAI's number of a visit -> months
_IMAGE = re.compile(r"(?P<study>[^_]+)_(?P<series>[^_]+)_(?P<side>left|right)\.nii(\.gz)?", re.IGNORECASE)
_MONTHS = re.compile(r"([0-9]{2,3})m(dess)?", re.IGNORECASE)
_RELEASE = re.compile(r"([0-9])\.[a-z]\.[0-9]", re.IGNORECASE)  # OAI's image releases: visit, group, edition
_DATE = re.compile(r"[0-9]{8}")
_SERIES = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")
_DEEPEST = 12


@dataclass(frozen=True)
class Scan:
    """A file or folder that holds a volume. What its path does not say is None."""

    path: Path
    patient: str
    study: str
    series: str
    visit: str | None
    side: str | None

    @property
    def key(self) -> Key:
        return (self.patient, self.study, self.series)


def scans_by_key(root: Path) -> dict[Key, list[Scan]]:
    found: dict[Key, list[Scan]] = defaultdict(list)
    for scan in find_scans(root):
        found[scan.key].append(scan)
    return found


def find_scans(root: Path) -> Iterator[Scan]:
    """All scans below a folder, in the order of their paths. Files of other kinds are passed over."""
    if root.is_dir():
        yield from _walk(root, (), frozenset())


def scan_of(path: Path, parts: tuple[str, ...]) -> Scan | None:
    """The scan that a path is by its name: `parts` are the folders above it, as far as they count."""
    match = _IMAGE.fullmatch(path.name)
    if match:
        patient = next((p for p in map(_patient, reversed(parts)) if p), None)
        return Scan(path, patient, match["study"], match["series"], visit_in(parts), match["side"].lower()) if patient else None
    if len(parts) >= 2 and _DATE.fullmatch(parts[-1]) and _SERIES.fullmatch(path.name):
        patient = _patient(parts[-2])
        return Scan(path, patient, parts[-1], path.name, visit_in(parts[:-2]), None) if patient else None
    return None


def visit_in(parts: tuple[str, ...]) -> str | None:
    """The visit that a path names in months, or else by OAI's number; None without one or with two."""
    months = {f"{int(m[1]):02d}m" for part in parts if (m := _MONTHS.fullmatch(part))}
    if not months:
        months = {VISITS.get(f"{int(m[1]):02d}", "") for part in parts if (m := _RELEASE.fullmatch(part))} - {""}
    return months.pop() if len(months) == 1 else None


def _patient(text: str) -> str | None:
    try:
        return patient_id(text)
    except DataError:
        return None


def _walk(folder: Path, parts: tuple[str, ...], above: frozenset[tuple[int, int]]) -> Iterator[Scan]:
    """`above` are the folders on the way here, so that a link back to one of them ends."""
    try:
        stat = folder.stat()
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda e: e.name)
    except OSError:
        return  # a volume that needs what lies here is named as missing
    here = (stat.st_dev, stat.st_ino)
    if here in above or len(parts) > _DEEPEST:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = folder / entry.name
        scan = scan_of(path, parts)
        if entry.is_dir():
            if scan and dicom.is_series(path):
                yield scan
            else:
                yield from _walk(path, (*parts, entry.name), above | {here})
        elif scan and scan.side and entry.is_file():  # a file needs its side in its name; only folders may lack it
            yield scan
