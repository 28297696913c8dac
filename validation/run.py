"""A whole check: of a release, of a cohort folder, or of a repo on the Hub. All findings in one run, a volume at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reasonknee.annotations import FILE_NAME as ANNOTATIONS
from reasonknee.errors import UsageError, shown
from reasonknee.manifest import FILE_NAME as MANIFEST
from reasonknee.manifest import Manifest, Shard
from reasonknee.validation.card import check_card, check_croissant
from reasonknee.validation.cohorts import validate_cohort
from reasonknee.validation.files import check_checksums, check_files, check_metadata, check_shard_file, check_texts, checked_manifest
from reasonknee.validation.findings import Findings
from reasonknee.validation.geometry import check_geometry
from reasonknee.validation.hub import REPO, download, outline
from reasonknee.validation.reading import Batch, batches, opened
from reasonknee.validation.rows import Terms, check_rows, sample
from reasonknee.validation.volume_facts import VolumeFacts, check_release, gather, histogram
from reasonknee.validation.voxels import check_voxels
from reasonknee.workers import in_order

Progress = Callable[[str, int, int], object]  # what, done, of


@dataclass(frozen=True)
class _Job:
    root: str
    shard: Shard
    terms: Terms
    quick: bool


@dataclass
class _Result:
    found: Findings
    facts: list[VolumeFacts]
    histogram: np.ndarray | int
    whole: bool  # every row was read


def validate(target: str, *, revision: str | None = None, quick: bool = False, workers: int = 1, progress: Progress = lambda *_: None) -> Findings:
    """Check a release folder, a cohort folder, or a dataset repo on the Hub, which is downloaded first: to be quick, texts and footers only."""
    root = Path(target)
    if not root.is_dir():
        if Path(f"{target}.partial").is_dir():
            raise UsageError("X001", f"no folder at {target}, only {target}.partial", "the build was cut short: the same command goes on from there")
        if revision is None and not REPO.fullmatch(target):
            raise UsageError("X001", f"no folder at {target}", "name a release folder, a cohort folder or a Hub repo such as owner/name")
        if quick:
            with tempfile.TemporaryDirectory() as folder:
                outline(target, revision, Path(folder))
                return validate_release(Path(folder), quick=True, progress=progress)
        root = download(target, revision)
    elif revision is not None:
        raise UsageError("X001", f"{target} is a folder, --revision is for a repo on the Hub", "leave --revision out")
    if (root / ANNOTATIONS).is_file() and not (root / MANIFEST).is_file():
        return validate_cohort(root, quick=quick, workers=workers, progress=progress)
    return validate_release(root, quick=quick, workers=workers, progress=progress)


def validate_release(root: Path, *, quick: bool = False, workers: int = 1, progress: Progress = lambda what, done, of: None) -> Findings:
    found = Findings()
    manifest = checked_manifest(root, found)
    if manifest is None:
        return found
    there = check_files(root, manifest, found)
    if not manifest.restricted:
        for config in [c for c in manifest.configs if c != "annotations"]:
            found.add("X503", f"{config}/", "the manifest says restricted: false")
    terms = Terms(manifest.questions, manifest.wording, manifest.margin_mm, "full" if manifest.of("full") else "cropped")
    jobs = [_Job(str(root), shard, terms, quick) for shard in manifest.shards if shard.path in there]
    facts: list[VolumeFacts] = []
    histograms: dict[tuple[str, str], np.ndarray | int] = {}
    broken = {s.config for s in manifest.shards if s.path not in there}
    total, done = sum(j.shard.bytes for j in jobs) // 1_000_000 + 1, 0
    for job, result in zip(jobs, in_order(check_shard, jobs, workers), strict=True):
        found.merge(result.found)
        facts += result.facts
        key = (job.shard.config, job.shard.split)
        histograms[key] = histograms.get(key, 0) + result.histogram
        if not result.whole:
            broken.add(job.shard.config)
        done += job.shard.bytes
        progress("checking shards, MB", done // 1_000_000, total)
    check_texts(root, manifest, there, quick, found)
    check_card(root, manifest, found)
    check_croissant(root, manifest, quick, found)
    if not quick:
        _across(manifest, facts, histograms, broken, found)
    return found


def _across(
    manifest: Manifest, facts: list[VolumeFacts], histograms: dict[tuple[str, str], np.ndarray | int], broken: set[str], found: Findings
) -> None:
    counted = {key: h for key, h in histograms.items() if isinstance(h, np.ndarray)}
    check_release(manifest, facts, counted, broken, found)


def check_shard(job: _Job) -> _Result:
    """One shard from its bytes to its rows."""
    found, root, shard = Findings(), Path(job.root), job.shard
    check_shard_file(root, shard, job.quick, found)
    file = opened(root, shard.path, shard.config, found)
    result = _Result(found, [], 0, file is not None)
    if file is None:
        return result
    check_metadata(shard.path, file, shard.bytes, found)
    if file.metadata.num_rows != shard.rows:
        found.add("X405", shard.path, f"{file.metadata.num_rows} rows where the manifest says {shard.rows}")
    if job.quick:
        return result
    check_checksums(root, shard.path, file, found)
    last, rows = "", 0
    for batch in batches(file, shard.config, shard.split, shard.path, found):
        rows += len(batch.table)
        try:
            last = _check_batch(batch, job.terms, last, result)
        except Exception as error:  # one row must not hide what is wrong with all others
            result.whole = False
            found.add("X102", f"{batch.path} from row {batch.number[0]}", f"values that nothing can be checked with: {shown(error, 160)}")
    result.whole = result.whole and rows == file.metadata.num_rows
    return result


def _check_batch(batch: Batch, terms: Terms, last: str, result: _Result) -> str:
    """All checks of a volume; `last` is the volume before it, and this one is returned."""
    found = result.found
    known = check_rows(batch, terms, found)
    if "X102" in found.groups and not known.any():
        result.whole = False  # nulls: what builds on these rows cannot be checked
        return last
    boxed = check_geometry(batch, terms.margin_mm, known, found)
    seen = check_voxels(batch, terms, boxed, found) if "volume" in batch.table.column_names else {}
    facts = gather(batch, known, boxed, seen, found)
    if facts and facts[0].volume_id < last:
        found.add("X113", facts[0].place, f"it comes after {last}")
    result.facts += facts
    result.histogram = result.histogram + histogram(batch, known)
    if batch.number[0] == 0 and "-00000-of-" in batch.path and not found:
        sample(batch, found)  # slow, so once per config and split
    return facts[-1].volume_id if facts else last
