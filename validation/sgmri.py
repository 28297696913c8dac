"""A release of SGMRI-VQA, checked as one of knees is: its files by the same code, its questions and images by
checks of their own. It shares nothing with what makes rows."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.errors import DataError, shown
from reasonknee.layout import Shard
from reasonknee.layout.manifest import FILE_NAME
from reasonknee.layout.records import yaml_fields
from reasonknee.layout.sgmri import CONFIGS, PIXELS, QA, SGMRI, QaManifest, read_qa_manifest
from reasonknee.system.progress import Progress, silent
from reasonknee.system.workers import executor, in_order
from reasonknee.validation.canonical import check_canonical, same_writer
from reasonknee.validation.card import CARD, front_matter
from reasonknee.validation.files import check_files, check_metadata, check_shard_file, check_texts
from reasonknee.validation.findings import Findings
from reasonknee.validation.reading import ShardFile, opened, row_groups
from reasonknee.validation.rows import points_elsewhere
from reasonknee.validation.sgmri_rows import Row, misformed, wrongs

_ABOUT = ("patient", "anatomy", "sequence", "shape", "split")  # what all questions on a volume share


@dataclass(frozen=True)
class _Job:
    root: str
    shard: Shard
    quick: bool
    canonical: bool


@dataclass
class _Told:
    """What the rows of a shard tell, for what is compared over the whole release."""

    findings: Findings = field(default_factory=Findings)
    whole: bool = True
    rows: dict[str, str] = field(default_factory=dict)  # id of a question -> digest of its fields
    volumes: dict[str, Row] = field(default_factory=dict)  # volume -> what its questions share
    splits: set[tuple[str, str]] = field(default_factory=set)  # patient or volume, and its split
    frames: dict[tuple[str, int], str] = field(
        default_factory=dict
    )  # volume and frame -> digest of its pixels
    images: dict[str, str] = field(default_factory=dict)  # volume -> digest of all its pixels


def validate_qa_release(
    root: Path,
    *,
    quick: bool = False,
    canonical: bool = False,
    workers: int = 1,
    dask: str = "",
    progress: Progress = silent,
) -> Findings:
    """All findings in one run, a row group at a time."""
    findings = Findings()
    try:
        manifest = read_qa_manifest(root)
    except DataError as error:
        findings.add("X401", FILE_NAME, shown(error.told, 160))
        return findings
    if canonical:
        same_writer(manifest)
    there = check_files(root, manifest, findings, frozenset({CARD}))
    if not manifest.restricted:
        for config in [c for c in manifest.configs if c != SGMRI.public]:
            findings.add("X503", f"{config}/", "the manifest says restricted: false")
    shards = [s for s in manifest.shards if s.path in there]
    told: dict[str, list[tuple[str, _Told]]] = defaultdict(list)  # by config
    total, done = sum(s.bytes for s in shards) // 1_000_000 + 1, 0
    with executor(workers, dask) as pool:
        jobs = [_Job(str(root), shard, quick, canonical) for shard in shards]
        for job, result in in_order(_check_shard, jobs, pool):
            findings.merge(result.findings)
            told[job.shard.config].append((job.shard.split, result))
            done += job.shard.bytes
            progress("checking shards, MB", done // 1_000_000, total)
    check_texts(root, manifest, there, quick, findings)
    _check_card(root, manifest, findings)
    if not quick and len(shards) == len(manifest.shards):
        _check_release(manifest, told, findings)
    return findings


def _check_shard(job: _Job) -> _Told:
    told, root, shard = _Told(), Path(job.root), job.shard
    findings = told.findings
    check_shard_file(root, shard, job.quick, findings)
    file = opened(root, shard, findings, quick=job.quick, dataset=SGMRI)
    if file is None:
        told.whole = False
        return told
    check_metadata(shard.path, file.parquet, findings)
    claimed = file.parquet.metadata.num_rows
    if claimed != shard.rows:
        findings.add("X405", shard.path, f"{claimed} rows where the manifest says {shard.rows}")
    if job.quick:
        return told
    read = 0
    for row, place in _rows(file, told):
        read += 1
        try:
            _check_row(row, shard, place, told)
        except Exception as error:  # one row must not hide what is wrong with all others
            told.whole = False
            findings.add("X102", place, f"values that nothing can be checked with: {shown(error, 160)}")
    told.whole = told.whole and read == claimed
    if job.canonical and "X404" not in findings.groups:
        check_canonical(root, shard, file, findings, SGMRI)
    return told


def _rows(file: ShardFile, told: _Told) -> Iterator[tuple[Row, str]]:
    for group in row_groups(file, told.findings):
        volumes = group.table["volume_id"].unique()
        if file.config != "qa" and (len(volumes) > 1 or (file.config == "volumes" and len(group.table) > 1)):
            told.findings.add("X114", group.place, f"{len(group.table)} rows of {len(volumes)} volumes")
        for number, row in enumerate(group.table.to_pylist()):
            yield row, f"{file.path} row {group.start + number}, {shown(row.get('id') or row['volume_id'])}"


def _check_row(row: Row, shard: Shard, place: str, told: _Told) -> None:
    image = row.pop("image", None)
    questions = [row]
    if shard.config == "volumes":
        questions = row["questions"] or []
        for wrong in misformed({**row, "image": image}, CONFIGS["volumes"][:4]):
            told.findings.add("X102", place, wrong)
        for name in ("volume_id", "anatomy", "patient"):
            if any(q[name] != row[name] for q in questions):
                told.findings.add("X107", place, f"{name} of a question is not the volume's")
    for q in questions:
        _check_question(q, shard, place, told)
    if shard.config != SGMRI.public:
        _check_image(image, questions[0] if questions else {}, shard.config, place, told)


def _check_question(q: Row, shard: Shard, place: str, told: _Told) -> None:
    findings = told.findings
    wrong = list(wrongs(q, QA))
    for code, detail in wrong:
        findings.add(code, place, f"{shown(q['id'], 60)}: {detail}" if shard.config == "volumes" else detail)
    if any(code == "X102" for code, _ in wrong):
        told.whole = False
        return
    if q["split"] != shard.split:
        findings.add("X107", place, f"it says {q['split']}, its shard is of {shard.split}")
    texts = [q["question"], q["answer"]["text"], *q["reasoning"], *(c["text"] for c in q["choices"])]
    if any(map(points_elsewhere, texts)):
        findings.add("X502", place, "a text holds a path or a URL")
    if q["id"] in told.rows:
        findings.add("X106", place, "it stands twice")
    told.rows[q["id"]] = hashlib.sha256(json.dumps(q, sort_keys=True).encode()).hexdigest()[:16]
    about = {name: q[name] for name in _ABOUT}
    other = told.volumes.setdefault(q["volume_id"], about)
    for name in (n for n in _ABOUT if other[n] != about[n]):
        findings.add("X107", place, f"{name} is not that of the volume's other questions")
    told.splits.add((q["patient"] or q["volume_id"], q["split"]))


def _check_image(image: Any, q: Row, config: str, place: str, told: _Told) -> None:
    if not image or any(image[f.name] is None for f in PIXELS.fields):
        told.findings.add("X102", place, "no image")
        return
    size = tuple(image[name] for name in ("frames", "height", "width"))
    wanted = tuple((q.get("shape") or {}).values())
    right = (1, *wanted[1:]) if config == "slices" else wanted
    if min(size) < 1 or len(image["bytes"]) != np.prod(size) or size != right:
        told.findings.add("X303", place, f"{len(image['bytes'])} bytes as {size}, the row says {wanted}")
        return
    pixels = np.frombuffer(image["bytes"], np.uint8).reshape(size)
    if config == "volumes" and pixels.min() == pixels.max():
        told.findings.add("X310", place, f"all pixels are {pixels.min()}")
    first = q["frame"] if config == "slices" else 0
    for number, frame in enumerate(pixels, first or 0):
        digest = hashlib.sha256(frame.tobytes()).hexdigest()
        if told.frames.setdefault((q["volume_id"], number), digest) != digest:
            told.findings.add("X309", place, f"frame {number} has other pixels elsewhere")
    if config == "volumes":
        told.images[q["volume_id"]] = hashlib.sha256(image["bytes"]).hexdigest()


def _check_release(
    manifest: QaManifest, told: dict[str, list[tuple[str, _Told]]], findings: Findings
) -> None:
    """What configs and splits say together."""
    if not all(each.whole for parts in told.values() for _, each in parts):
        return
    rows: dict[str, dict[str, str]] = {}
    for config, parts in told.items():
        rows[config] = {}
        for _, each in parts:
            for id_ in sorted(rows[config].keys() & each.rows.keys()):
                findings.add("X106", f"{config}/", f"{shown(id_)} stands twice")
            rows[config] |= each.rows
    first = next(iter(rows))
    for config in list(rows)[1:]:
        pairs = {i: (rows[first].get(i), rows[config].get(i)) for i in {**rows[first], **rows[config]}}
        for id_, (a, b) in pairs.items():
            left_out = b is None and config == "slices" and "-slice-" not in id_
            if a != b and not left_out:
                what = "differs" if a and b else f"is in {first if a else config} alone"
                findings.add("X107", f"{first}/ and {config}/", f"{shown(id_)} {what}")
    splits = defaultdict(set)
    for each in (each for parts in told.values() for _, each in parts):
        for name, split in each.splits:
            splits[name].add(split)
    for name, found in splits.items():
        if len(found) > 1:
            findings.add("X201", shown(name, 60), f"in {' and '.join(sorted(found))}")
    _check_counts(manifest, told[first], findings)
    _check_pixels(told, findings)


def _check_counts(manifest: QaManifest, parts: list[tuple[str, _Told]], findings: Findings) -> None:
    for split in sorted({*manifest.questions, *(s for s, _ in parts)}):
        own = [each for s, each in parts if s == split]
        volumes = {v: about for each in own for v, about in each.volumes.items()}
        known = [about["patient"] for about in volumes.values()]
        counted = {
            "questions": (manifest.questions, sum(len(each.rows) for each in own)),
            "volumes": (manifest.volumes, len(volumes)),
            "patients": (manifest.patients or {}, len(set(known)) if all(known) else None),
        }
        for what, (said, found) in counted.items():
            if said.get(split) != found:
                findings.add("X204", FILE_NAME, f"{split}: {said.get(split)} {what}, the rows have {found}")


def _check_pixels(told: dict[str, list[tuple[str, _Told]]], findings: Findings) -> None:
    """A slice is a frame of its volume, and no volume stands twice under two names."""
    frames: dict[tuple[str, int], str] = {}
    for config in ("volumes", "slices"):
        for place, digest in ((p, d) for _, each in told.get(config, ()) for p, d in each.frames.items()):
            if frames.setdefault(place, digest) != digest:
                findings.add(
                    "X309", f"{config}/, {shown(place[0], 60)}", f"frame {place[1]} has other pixels"
                )
    seen: dict[str, tuple[str, str]] = {}
    for split, each in told.get("volumes", ()):
        for volume, digest in each.images.items():
            other, its_split = seen.setdefault(digest, (volume, split))
            if other != volume:
                code = "X203" if its_split == split else "X202"
                findings.add(code, shown(volume, 60), f"the same pixels as {shown(other, 60)} in {its_split}")


def _check_card(root: Path, manifest: QaManifest, findings: Findings) -> None:
    front = front_matter(root, findings)
    if front is None:
        return
    files = {
        c: [{"split": s, "path": f"{c}/{s}-*.parquet"} for s in SGMRI.splits if manifest.of(c, s)]
        for c in manifest.configs
    }
    wanted = [{"config_name": c, "data_files": of} for c, of in files.items()]
    if front["configs"] != wanted:
        findings.add("X602", CARD, f"the release has {', '.join(files)}")
    infos = {info.get("config_name"): info.get("features") for info in front["dataset_info"]}
    for config in manifest.configs:
        if infos.get(config) != yaml_fields(CONFIGS[config]):
            findings.add("X603", f"{CARD}, {config}", "dataset_info.features differ from the config's fields")
