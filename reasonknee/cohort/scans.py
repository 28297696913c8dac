"""Finding scans below a folder: NIfTI files and DICOM series, and what their paths say about them.

    .../<patient>/<visit>/<study>_<series>_<side>.nii.gz        as the published split files name them
    .../<patient>_<yyyymmdd>_SAG_3D_DESS_<SIDE>_<series>_image.nii.gz
    .../<visit>/0.C.2/<patient>/<yyyymmdd>/<series>/            as OAI ships them: a folder of DICOM files
    .../<patient>/data/<yyyymmdd>/<series>/
    .../<patient>/<yyyymmdd>/<series>.tar.gz                    an archive of them, read as it stands
    results%2F<visit>%2F...                                     a path that became a name

Scans are matched by (patient, study, series), never by a path prefix, so they may lie anywhere.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

from reasonknee.errors import DataError, StorageError, reason
from reasonknee.layout import patient_id
from reasonknee.system.files import sha256_of
from reasonknee.volumes import dicom
from reasonknee.volumes.series_files import is_archive, series_name

Key = tuple[str, str, str]  # patient, study, series
VISITS = {
    "00": "00m",
    "01": "12m",
    "03": "24m",
    "05": "36m",
    "06": "48m",
}  # OAI's number of a visit -> months
_IMAGE = re.compile(r"(?P<study>[^_]+)_(?P<series>[^_]+)_(?P<side>left|right)\.nii(\.gz)?", re.IGNORECASE)
_FLAT = re.compile(
    r"(?P<patient>[0-9]{7})_(?P<study>[0-9]{8})_(?P<description>[a-z0-9_]*dess_(?P<side>left|right))"
    r"_(?P<series>[a-z0-9]+)(_image)?\.nii(\.gz)?",
    re.IGNORECASE,
)
_MONTHS = re.compile(r"([0-9]{2,3})m(dess)?", re.IGNORECASE)
_RELEASE = re.compile(r"([0-9])\.[a-z]\.[0-9]", re.IGNORECASE)  # OAI's image releases: visit, group, edition
_DATE = re.compile(r"[0-9]{8}")
_SERIES = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")
_CONTENTS = re.compile(r"contents.*\.csv", re.IGNORECASE)  # what OAI's packages tell of their series
_SIDE = re.compile(r"(?<![a-z])(left|right)(?![a-z])", re.IGNORECASE)
_DESS = re.compile(r"(?<![a-z])dess(?![a-z])", re.IGNORECASE)
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
    description: str | None = None  # of the series, as contents.csv or the path has it

    @property
    def is_dicom(self) -> bool:
        """A series of DICOM files, in a folder or an archive, as opposed to a NIfTI file."""
        return is_archive(self.path) or self.path.is_dir()

    def is_dess(self) -> bool | None:
        """What contents.csv, the path or else the files say of the series; None where nothing does. That it
        is alone says nothing."""
        told = self.description or (self._said[0] if self.is_dicom else "dess")
        return bool(_DESS.search(told.replace("_", " "))) if told.strip() else None

    def side_in_file(self) -> str | None:
        """What a series itself says; a NIfTI file says nothing."""
        return dicom.one_side(self._said[1], self.path) if self.is_dicom else None

    @cached_property
    def _said(self) -> tuple[str, tuple[str, ...]]:
        return dicom.said(self.path)

    @property
    def key(self) -> Key:
        return (self.patient, self.study, self.series)

    @property
    def package(self) -> str | None:
        """OAI's image package that the path names, such as 0.C.2."""
        return next((part for part in _unquoted(self.path.parts) if _RELEASE.fullmatch(part)), None)


def image_sha256(path: Path) -> str:
    """Of a file; of a series, of the list of its files by name, each with its own."""
    try:
        if not path.is_dir():
            return sha256_of(path)
        files = sorted(p for p in path.iterdir() if p.is_file())
        listed = "".join(f"{sha256_of(file)}  {file.name}\n" for file in files)
    except OSError as error:
        raise StorageError(
            "V000", f"cannot be read: {reason(error)}", "check the path and its permissions"
        ).at(path.name) from None
    return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()


def scans_by_key(root: Path, closed: list[str] | None = None) -> dict[Key, list[Scan]]:
    scans: dict[Key, list[Scan]] = defaultdict(list)
    for scan in find_scans(root, closed):
        scans[scan.key].append(scan)
    return scans


def find_scans(root: Path, closed: list[str] | None = None) -> Iterator[Scan]:
    """All scans below a folder, in the order of their paths. Files of other kinds are passed over; folders
    that cannot be listed, too, and are added to `closed`."""
    if root.is_dir():
        yield from _walk(root, (), frozenset(), {}, [] if closed is None else closed)


def scan_of(path: Path, parts: tuple[str, ...]) -> Scan | None:
    """The scan that a path is by its name: `parts` are the folders above it, as far as they count."""
    *above, name = _unquoted((*parts, path.name))
    parts = tuple(above)
    match = _FLAT.fullmatch(name)
    if match and (patient := _patient(match["patient"])):
        told = (match["series"], visit_in(parts), match["side"].lower(), match["description"])
        return Scan(path, patient, match["study"], *told)
    match = _IMAGE.fullmatch(name)
    if match:
        patient = next((p for p in map(_patient, reversed(parts)) if p), None)
        return (
            Scan(path, patient, match["study"], match["series"], visit_in(parts), match["side"].lower())
            if patient
            else None
        )
    series = series_name(name)
    if len(parts) >= 2 and _DATE.fullmatch(parts[-1]) and _SERIES.fullmatch(series):
        # <patient>/<date>/<series>, with a folder `data` between patient and date in some downloads
        patient = next((p for p in map(_patient, reversed(parts[-3:-1])) if p), None)
        dess = "DESS" if any((m := _MONTHS.fullmatch(part)) and m[2] for part in parts) else None
        return Scan(path, patient, parts[-1], series, visit_in(parts), None, dess) if patient else None
    return None


def _unquoted(parts: tuple[str, ...]) -> list[str]:
    """Names that hold a whole path, as `results%2F00m%2F...`, as the parts of that path."""
    return [p for part in parts for p in (unquote(part).split("/") if "%2f" in part.lower() else [part]) if p]


def visit_in(parts: tuple[str, ...]) -> str | None:
    """The visit that a path names in months, or else by OAI's number; None without one or with two."""
    months = {f"{int(m[1]):02d}m" for part in parts if (m := _MONTHS.fullmatch(part))}
    if not months:
        months = {VISITS.get(f"{int(m[1]):02d}", "") for part in parts if (m := _RELEASE.fullmatch(part))} - {
            ""
        }
    return months.pop() if len(months) == 1 else None


def _patient(text: str) -> str | None:
    try:
        return patient_id(text)
    except DataError:
        return None


_Told = dict[tuple[str, str], tuple[str, str | None]]  # patient and series -> their description and visit


def _contents(path: Path) -> _Told:
    """What a package's contents.csv tells; one that cannot be read tells nothing."""
    told: _Told = {}
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            for row in csv.DictReader(file):
                names = {str(k).strip().lower(): str(v).strip() for k, v in row.items() if isinstance(v, str)}
                folder, description = names.get("folder", ""), names.get("seriesdescription", "")
                patient = _patient(names.get("participantid", ""))
                if patient and folder and description:
                    *above, name = folder.replace("\\", "/").rstrip("/").split("/")
                    told[patient, series_name(name)] = (description[:64], visit_in(tuple(above)))
    except (OSError, csv.Error):
        return {}
    return told


def _walk(
    folder: Path,
    parts: tuple[str, ...],
    above: frozenset[tuple[int, int]],
    told: _Told,
    closed: list[str],
) -> Iterator[Scan]:
    """`above` are the folders on the way here, so that a link back to one of them ends."""
    try:
        stat = folder.stat()
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda e: e.name)
    except OSError as error:
        closed.append(f"{folder}: {error.strerror or error}")
        return  # a volume that needs what lies here is named as missing
    here = (stat.st_dev, stat.st_ino)
    if here in above or len(parts) > _DEEPEST:
        return
    for entry in entries:
        if _CONTENTS.fullmatch(entry.name) and entry.is_file():
            told = {**told, **_contents(folder / entry.name)}
    packed = {
        series_name(entry.name)
        for entry in entries
        if is_archive(entry.name) and scan_of(folder / entry.name, parts)
    }
    for entry in entries:
        if entry.name.startswith(".") or entry.name in packed:  # unpacked beside its archive, which is whole
            continue
        path = folder / entry.name
        scan = scan_of(path, parts)
        if scan and (known := told.get((scan.patient, scan.series))):
            description, visit = known
            side = _SIDE.search(description.replace("_", " "))
            scan = replace(
                scan,
                description=description,
                side=scan.side or (side[1].lower() if side else None),
                visit=scan.visit or visit,
            )
        if _is(entry.is_dir):
            if scan and dicom.is_series(path):
                yield scan
            else:
                yield from _walk(path, (*parts, entry.name), above | {here}, told, closed)
        elif (
            # a NIfTI file needs its side in its name, a series tells it;
            # a link that leads back to itself is told when it is read
            scan and (scan.side or is_archive(path)) and (_is(entry.is_file) or entry.is_symlink())
        ):
            yield scan


def _is(kind: Callable[[], bool]) -> bool:
    """Of what a folder lists; a link that leads back to itself is of no kind."""
    try:
        return kind()
    except OSError:
        return False
