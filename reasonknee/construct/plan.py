"""What a download holds, before any work is done: knees, visits, what is missing and where it would come
from, how many questions can be answered, what a release will need, and what to type next.

It asks what `construct` will ask (`knees`), so that the two cannot say different things.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from reasonknee.cohort.annotations import FILE_NAME
from reasonknee.cohort.scans import VISITS, Scan, scans_by_key
from reasonknee.construct import columns, knees, moaks_tables
from reasonknee.construct.assemble import split_rows
from reasonknee.construct.knees import Job, Volumes
from reasonknee.construct.moaks_tables import Knee, Readings
from reasonknee.construct.regions import made_by_rule
from reasonknee.errors import DataError, ReasonKneeError, UsageError, counted
from reasonknee.layout import volume_id
from reasonknee.questions import question_set
from reasonknee.system.progress import Progress, silent
from reasonknee.volumes import read_grid

# Megabytes and processor seconds of a volume of 160 x 384 x 384 voxels, as docs/scale.md has them
NEEDS = {
    "cropped": (8.4, 0.38),
    "full": (28.3, 0.72),
    "annotations": (0.01, 0.04),
    "embeddings": (33.6, None),
}
_HELP = {  # what would tell what `construct` cannot know
    knees.NOT_TOLD: "contents.csv or a split file would",
    "visit unknown": "a folder called 00m or 0.C.2, contents.csv or a split file would tell",
    "side unknown": "contents.csv or a split file would tell",
    "more than one image": "keep one of them",
}
_SOME = 5


@dataclass
class Download:
    """What was found below a folder."""

    images: Path  # where scans were looked for
    volumes: Volumes
    scans: dict[Knee, Scan] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)  # what `construct` would take
    closed: list[str] = field(default_factory=list)  # folders that cannot be listed
    masks: int = 0
    other_masks: int = 0  # files in masks/ whose names say nothing
    readings: Readings | None = None
    no_tables: str = ""


def look(folder: Path, names: Mapping[str, str] | None = None, progress: Progress = silent) -> Download:
    """Scans by their paths and, where those do not tell, by the first header of each series."""
    if not folder.is_dir():
        raise UsageError("J017", f"no folder at {folder}", "name the folder that holds your OAI download")
    closed: list[str] = []
    images = folder / "images"
    scans = scans_by_key(images, closed)
    if not scans:
        images, closed = folder, []
        scans = scans_by_key(folder, closed)  # masks, which have the names of scans, apart
        apart = ((key, [s for s in mine if not s.path.is_relative_to(folder / "masks")])
                 for key, mine in scans.items())  # fmt: skip
        scans = {key: mine for key, mine in apart if mine}
    found = Download(images, Volumes(len(scans)), closed=closed)
    found.scans = knees.scan_of_knee(scans, split_rows(folder, ""), found.volumes, progress)
    masks = scans_by_key(folder / "masks")
    found.masks = sum(len(each) for each in masks.values())
    if not masks and (folder / "masks").is_dir():
        found.other_masks = sum(1 for p in (folder / "masks").rglob("*.nii*") if p.is_file())
    try:
        found.readings = moaks_tables.read_tables(folder / "tables", names)
    except DataError as error:
        if error.code != "J001":  # a table that is there and damaged is no missing one
            raise
        found.no_tables = error.message
        return found
    for job in knees.annotatable(found.scans, found.readings.chosen, masks or None, found.volumes):
        if _opens(job, found.volumes):
            found.jobs.append(job)
    return found


def _opens(job: Job, volumes: Volumes) -> bool:
    """Whether the header of a file can be read; of a series that has been asked already."""
    try:
        if not job.image.is_dicom:
            read_grid(job.image.path)
    except ReasonKneeError as error:
        volumes.fail(volume_id(*job.knee), error, job.knee)
        return False
    return True


def told(found: Download, folder: Path) -> Iterator[str]:
    """What `reasonknee plan` says."""
    yield from _scans(found)
    if found.readings is None:
        yield f"tables: {found.no_tables}"
        yield "  OAI's MOAKS readings are in its package of MR image assessments; put them into tables/"
    else:
        yield from _answers(found, found.readings)
        yield from _masks(found, folder)
    volumes = len(found.scans) if found.readings is None else len(found.jobs)
    if volumes:
        yield from _needs(volumes)
    yield from _next(found, folder)


def _scans(found: Download) -> Iterator[str]:
    taken, volumes = found.scans, found.volumes
    patients, sides = {k[0] for k in taken}, {(k[0], k[2]) for k in taken}
    yield (
        f"scans: {counted(len(taken), 'DESS volume')} of {counted(len(sides), 'knee')} of "
        f"{counted(len(patients), 'patient')} in {found.images}"
    )
    visits = Counter(k[1] for k in taken)
    yield "visits: " + (", ".join(f"{v} {n:,}" for v, n in sorted(visits.items())) or "none")
    if volumes.other_series:
        yield f"passed over: {volumes.other_series:,} series of other sequences"
    if volumes.chosen:
        yield (
            f"several DESS series of one knee and visit: {len(volumes.chosen):,} ({_some(volumes.chosen)}); "
            "`construct` takes the later one"
        )
    for why, which in volumes.left_out.items():
        if why == knees.NO_MASK:
            continue  # told with the masks
        help_ = f"; {_HELP[why]}" if why in _HELP else ""
        yield f"not used, {why}: {len(which):,} ({_some(which)}){help_}"
    for code, n in Counter(each["code"] for each in volumes.quarantine).items():
        first = next(each for each in volumes.quarantine if each["code"] == code)
        yield f"cannot be read: {n:,} x {code}, the first: {first['reason']}"
    if found.closed:
        yield f"folders that cannot be opened: {len(found.closed):,}, the first: {found.closed[0]}"


def _answers(found: Download, readings: Readings) -> Iterator[str]:
    there = {str(table["visit"]) for table in readings.tables}
    yield "tables: " + ", ".join(str(table["file"]) for table in readings.tables)
    absent = [f"kMRI_SQ_MOAKS_BICL{n}.txt ({v})" for n, v in VISITS.items() if v not in there]
    if absent:
        yield f"tables that are missing: {', '.join(absent)}"
    if readings.not_read:
        yield f"tables that are not read: {_some(readings.not_read)}"
    yield from columns.missing(readings.tables)
    paper = {q.id for q in question_set("paper62")}
    graded = sum(len(paper & set(readings.chosen[job.knee].grades)) for job in found.jobs)
    yield (
        f"questions that can be answered: {graded:,} of paper62 on {counted(len(found.jobs), 'volume')}, "
        f"{graded / max(len(found.jobs), 1):.1f} each"
    )
    number = {v: n for n, v in VISITS.items()}
    for visit, missing in knees.without_scan(readings.chosen, found.scans).items():
        package, which = f"{int(number[visit])}.C.*", _some(f"{p} {side}" for p, _, side in missing)
        yield (
            f"readings without a scan that can be used, {visit}: {len(missing):,} ({which}); OAI's "
            f"image package {package}, path {package}/<patient>/<yyyymmdd>/<series>"
        )


def _masks(found: Download, folder: Path) -> Iterator[str]:
    if found.masks:
        lacking = found.volumes.left_out.get(knees.NO_MASK, [])
        by_rule = sum(made_by_rule(job.mask, folder / "masks") for job in found.jobs if job.mask)
        yield (
            f"masks: {found.masks:,}"
            + (f", {by_rule:,} made by rule" if by_rule else "")
            + (
                f"; left out, since they have none: {counted(len(lacking), 'volume')} ({_some(lacking)}); "
                "`construct --no-masks` takes them all, without boxes"
                if lacking
                else ""
            )
        )
    elif found.other_masks:
        yield (
            f"masks: {found.other_masks:,} files, none named as masks are: "
            "<patient>/<VISIT>/<study>_<series>_<side>.nii.gz"
        )
    else:
        yield (
            "masks: 0; without, no box is known: `construct --upstream` has the published ones, "
            "`reasonknee regions` makes them from tissue masks"
        )


def _needs(volumes: int) -> Iterator[str]:
    parts = []
    for config, (megabytes, seconds) in NEEDS.items():
        time = f", {_rounded(volumes * seconds / 3600)} core-hours" if seconds else ""
        parts.append(f"{config} {_rounded(volumes * megabytes / 1000)} GB{time}")
    yield f"a release of {volumes:,} full-size volumes needs about: {'; '.join(parts)}"


def _rounded(number: float) -> str:
    return f"{number:,.1f}" if number >= 0.05 else "less than 0.1"


def _next(found: Download, folder: Path) -> Iterator[str]:
    """Commands that do what they say in the state in which the folder is."""
    here, build = quote(str(folder)), f"reasonknee build {quote(str(folder))} release"
    if not found.scans:
        yield (
            f"next: bring scans that can be used into {folder / 'images'} (OAI's packages as they come, or "
            "NIfTI files), and look again"
        )
        yield "without a download: reasonknee phantom oai --layout oai --patients 6 --shape 32,96,96"
    elif found.images == folder and (found.readings or (folder / "masks").is_dir()):
        yield f"next: {_gathered(folder)}"
    elif (folder / FILE_NAME).exists():
        yield f"annotations are there: {folder / FILE_NAME}; `construct --force` makes them anew"
        yield f"next: {build}"
    elif found.readings is None:
        yield "next, with the published annotations in place of tables and masks: " + " && ".join(
            [
                "hf download rajpurkarlab/3DReasonKnee --repo-type dataset --local-dir hub",
                "reasonknee construct --upstream hub --out annotations.jsonl",
                f"reasonknee attach annotations.jsonl --images {quote(str(found.images))} --out cohort",
            ]
        )
    elif not found.jobs and knees.NO_MASK not in found.volumes.left_out:
        yield "next: what is said above; no volume has both a scan that can be read and a reading"
    else:
        masks = "" if found.masks and found.jobs else " --no-masks"
        yield f"next: reasonknee construct {here}{masks} && {build}"
        small = build.removesuffix("release") + "small"
        yield f"a first try: reasonknee construct {here}{masks} --patients 20 && {small}"


def _gathered(folder: Path) -> str:
    """A cohort folder of links, for scans that lie beside the tables rather than in images/."""
    there = quote(os.path.abspath(folder))
    masks = (folder / "masks").is_dir()
    scans = f"ln -s {there} cohort/images"
    if masks:  # which must not lie among the images
        tops = sorted(p.name for p in folder.iterdir() if p.name not in ("tables", "masks", "splits"))
        scans = f"mkdir cohort/images && ln -s {' '.join(f'{there}/{quote(t)}' for t in tops)} cohort/images/"
    links = [
        f"ln -s {there}/{name} cohort/{name}"
        for name in ("tables", "masks", "splits")
        if (folder / name).is_dir()
    ]
    return " && ".join(["mkdir cohort", scans, *links, "reasonknee plan cohort"])


def _some(names: Iterator[str] | Mapping[str, object] | list[str]) -> str:
    known = list(names)
    return ", ".join(known[:_SOME]) + ", ..." * (len(known) > _SOME)
