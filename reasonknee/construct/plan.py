"""What a download holds, before any work is done: knees, visits, what is missing and where it would come
from, how many questions can be answered, what a release will need, and what to type next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from reasonknee.cohort.scans import VISITS, Scan, find_scans
from reasonknee.construct import columns, moaks_tables
from reasonknee.construct.moaks_tables import Knee, Readings
from reasonknee.errors import ReasonKneeError, UsageError, counted
from reasonknee.questions import question_set
from reasonknee.volumes import dicom

# Megabytes and processor seconds of a volume of 160 x 384 x 384 voxels, as docs/scale.md has them
NEEDS = {
    "cropped": (8.4, 0.38),
    "full": (28.3, 0.72),
    "annotations": (0.01, 0.04),
    "embeddings": (33.6, None),
}
_SOME = 5


@dataclass
class Download:
    """What was found below a folder."""

    knees: dict[Knee, Scan] = field(default_factory=dict)
    other_series: int = 0
    unknown: Counter[str] = field(default_factory=Counter)  # why a series is not taken
    several: int = 0
    masks: int = 0
    readings: Readings | None = None
    no_tables: str = ""


def look(folder: Path, names: Mapping[str, str] | None = None) -> Download:
    """Scans by their paths and, where those do not tell, by the first header of each series."""
    if not folder.is_dir():
        raise UsageError("J017", f"no folder at {folder}", "name the folder that holds your OAI download")
    found = Download()
    inside = folder / "images"
    for scan in find_scans(inside if inside.is_dir() else folder):
        if "masks" in scan.path.relative_to(folder).parts:
            continue
        _place(scan, found)
    found.masks = sum(1 for _ in find_scans(folder / "masks"))
    try:
        found.readings = moaks_tables.read_tables(folder / "tables", names)
    except ReasonKneeError as error:
        found.no_tables = error.message
    return found


def _place(scan: Scan, found: Download) -> None:
    try:
        dess = scan.is_dess()
        side = (scan.side or dicom.side(scan.path)) if dess else None
    except UsageError:
        raise
    except ReasonKneeError as error:
        found.unknown[f"{error.code}: a series that cannot be read"] += 1
        return
    if dess is False:
        found.other_series += 1
    elif dess is None:
        found.unknown["nothing says that the series is DESS"] += 1
    elif scan.visit is None or side is None:
        what = "visit" if scan.visit is None else "side"
        found.unknown[f"{what} unknown: a split file or contents.csv would tell"] += 1
    else:
        knee = (scan.patient, scan.visit, side)
        found.several += knee in found.knees
        found.knees[knee] = scan


def told(found: Download, folder: Path) -> Iterator[str]:
    """What `reasonknee plan` says."""
    knees = found.knees
    patients, sides = {k[0] for k in knees}, {(k[0], k[2]) for k in knees}
    yield (
        f"scans: {counted(len(knees), 'DESS volume')} of {counted(len(sides), 'knee')} of "
        f"{counted(len(patients), 'patient')}"
    )
    visits = Counter(k[1] for k in knees)
    yield "visits: " + (", ".join(f"{v} {visits[v]:,}" for v in VISITS.values() if visits[v]) or "none")
    if found.other_series:
        yield f"passed over: {found.other_series:,} series of other sequences"
    if found.several:
        yield f"several DESS series of one knee and visit: {found.several:,}; `construct` takes the later one"
    for why, n in found.unknown.items():
        yield f"not used: {n:,} x {why}"
    if found.readings is None:
        yield f"tables: {found.no_tables}"
        yield "  OAI's MOAKS readings are in its package of MR image assessments; put them into tables/"
        yield from _needs(len(knees))
        yield "next, with the published annotations in place of tables and masks: " + " && ".join(
            [
                "hf download rajpurkarlab/3DReasonKnee --repo-type dataset --local-dir hub",
                "reasonknee construct --upstream hub --out annotations.jsonl",
                f"reasonknee attach annotations.jsonl --images {quote(str(folder))} --out cohort",
            ]
        )
        return
    yield from _answers(found, found.readings)
    yield f"masks: {found.masks:,}" + (
        ""
        if found.masks
        else "; without, no box is known: `construct --upstream` has the published ones, `reasonknee "
        "regions` makes them from tissue masks"
    )
    yield from _needs(len(set(knees) & set(found.readings.chosen)))
    yield "next: " + " && ".join(
        [
            f"reasonknee construct {quote(str(folder))}" + ("" if found.masks else " --no-masks"),
            f"reasonknee build {quote(str(folder))} <release folder>",
        ]
    )
    yield f"a first try: reasonknee construct {quote(str(folder))} --patients 20" + (
        "" if found.masks else " --no-masks"
    )


def _answers(found: Download, readings: Readings) -> Iterator[str]:
    there = {str(table["visit"]) for table in readings.tables}
    yield "tables: " + ", ".join(str(table["file"]) for table in readings.tables)
    absent = [f"kMRI_SQ_MOAKS_BICL{n}.txt ({v})" for n, v in VISITS.items() if v not in there]
    if absent:
        yield f"tables that are missing: {', '.join(absent)}"
    if readings.absent:
        yield f"columns that are missing: {columns.costs(readings.absent)}"
    read = {knee: r for knee, r in readings.chosen.items() if r.grades}
    both = set(found.knees) & set(read)
    paper = {q.id for q in question_set("paper62")}
    graded = sum(len(paper & set(read[k].grades)) for k in both)
    yield (
        f"questions that can be answered: {graded:,} of paper62 on {len(both):,} volumes, "
        f"{graded / max(len(both), 1):.1f} each"
    )
    scans_only = len(set(found.knees) - set(read))
    if scans_only:
        yield f"scans without a reading: {scans_only:,}"
    missing = sorted(set(read) - set(found.knees))
    if missing:
        number = {v: n for n, v in VISITS.items()}
        by_visit = Counter(k[1] for k in missing)
        for visit, n in sorted(by_visit.items()):
            package = f"{int(number[visit])}.C.*"
            first = [f"{p} {side}" for p, v, side in missing if v == visit][:_SOME]
            yield (
                f"readings without a scan, {visit}: {n:,} ({', '.join(first)}{', ...' * (n > _SOME)}); "
                f"OAI's image package {package}, path {package}/<patient>/<yyyymmdd>/<series>"
            )


def _needs(volumes: int) -> Iterator[str]:
    parts = []
    for config, (megabytes, seconds) in NEEDS.items():
        time = f", {_rounded(volumes * seconds / 3600)} core-hours" if seconds else ""
        parts.append(f"{config} {_rounded(volumes * megabytes / 1000)} GB{time}")
    yield f"a release of {volumes:,} full-size volumes needs about: {'; '.join(parts)}"


def _rounded(number: float) -> str:
    return f"{number:,.1f}" if number >= 0.05 else "less than 0.1"
