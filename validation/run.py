"""A whole check: of a release, of a cohort folder, or of a repo on the Hub.

All findings in one run, a volume at a time.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from reasonknee.cohort.annotations import FILE_NAME as ANNOTATIONS
from reasonknee.errors import shown
from reasonknee.layout import Shard
from reasonknee.layout.manifest import FILE_NAME as MANIFEST
from reasonknee.layout.places import outline, release_folder, repo_named
from reasonknee.layout.sgmri import is_release
from reasonknee.system.progress import Progress, silent
from reasonknee.system.workers import executor, in_order
from reasonknee.validation.canonical import check_canonical, same_writer
from reasonknee.validation.card import check_card
from reasonknee.validation.cohorts import validate_cohort
from reasonknee.validation.croissant import check_croissant
from reasonknee.validation.files import (
    check_files,
    check_metadata,
    check_shard_file,
    check_texts,
    checked_manifest,
)
from reasonknee.validation.findings import Findings
from reasonknee.validation.geometry import check_geometry
from reasonknee.validation.index import check_index
from reasonknee.validation.reading import Batch, batches, opened
from reasonknee.validation.rows import Terms, Wording, check_rows, check_wordings, sample, wordings_of
from reasonknee.validation.sgmri import validate_qa_release
from reasonknee.validation.sources import Sums, check_sources, check_sums, check_told
from reasonknee.validation.volume_facts import VolumeFacts, check_release, gather, histogram
from reasonknee.validation.voxels import check_voxels


@dataclass(frozen=True)
class _Job:
    root: str
    shard: Shard
    terms: Terms
    quick: bool
    canonical: bool


@dataclass
class _Result:
    findings: Findings
    facts: list[VolumeFacts]
    histogram: np.ndarray | int
    whole: bool  # every row was read
    wordings: set[Wording] = field(default_factory=set)
    sums: Sums = field(default_factory=Counter)


def validate(
    target: str | Path,
    *,
    revision: str | None = None,
    quick: bool = False,
    canonical: bool = False,
    accept: Iterable[str] = (),
    workers: int = 1,
    dask: str = "",
    progress: Progress = silent,
) -> Findings:
    """Check a release folder, a cohort folder, or a dataset repo on the Hub, which is downloaded first:
    to be quick, texts and footers only."""
    if quick and not Path(target).is_dir():
        with tempfile.TemporaryDirectory() as folder:
            outline(repo_named(target), revision, Path(folder))
            check = validate_qa_release if is_release(Path(folder)) else validate_release
            return check(Path(folder), quick=True, progress=progress)
    root = release_folder(target, revision=revision)
    if (root / ANNOTATIONS).is_file() and not (root / MANIFEST).is_file():
        return validate_cohort(
            root, quick=quick, accept=accept, workers=workers, dask=dask, progress=progress
        )
    if is_release(root):
        return validate_qa_release(
            root, quick=quick, canonical=canonical, workers=workers, dask=dask, progress=progress
        )
    return validate_release(
        root,
        quick=quick,
        canonical=canonical,
        accept=accept,
        workers=workers,
        dask=dask,
        progress=progress,
    )


def validate_release(
    root: Path,
    *,
    quick: bool = False,
    canonical: bool = False,
    accept: Iterable[str] = (),
    workers: int = 1,
    dask: str = "",
    progress: Progress = silent,
) -> Findings:
    """`canonical` writes every shard again and compares the bytes: nothing can be hidden in it then.

    Volumes in `accept` may look like no scan.
    """
    findings = Findings()
    manifest = checked_manifest(root, findings)
    if manifest is None:
        return findings
    if canonical:
        same_writer(manifest)
    there = check_files(root, manifest, findings)
    if not manifest.restricted:
        for config in [c for c in manifest.configs if c != "annotations"]:
            findings.add("X503", f"{config}/", "the manifest says restricted: false")
    terms = Terms(
        manifest.questions,
        manifest.wording,
        manifest.margin_mm,
        compared="full" if manifest.of("full") else "cropped",
        described=manifest.configs[-1],
        accepted=frozenset(accept),
    )
    jobs = [
        _Job(str(root), shard, terms, quick, canonical) for shard in manifest.shards if shard.path in there
    ]
    whole = _Whole(broken={s.config for s in manifest.shards if s.path not in there})
    total, done = sum(j.shard.bytes for j in jobs) // 1_000_000 + 1, 0
    with executor(workers, dask) as pool:
        for job, result in in_order(check_shard, jobs, pool):
            findings.merge(result.findings)
            whole.add(job.shard, result)
            done += job.shard.bytes
            progress("checking shards, MB", done // 1_000_000, total)
    check_texts(root, manifest, there, quick, findings)
    check_card(root, manifest, findings)
    check_croissant(root, manifest, quick, findings)
    if not quick:
        check_release(manifest, whole.facts, whole.histograms, whole.broken, findings)
        check_wordings(whole.wordings, findings)
        if terms.described not in whole.broken:
            check_sums(manifest, whole.sums, findings)
        if not findings.count("error"):
            check_index(root, manifest, findings)
    return findings


@dataclass
class _Whole:
    """What the shards of a release tell together."""

    broken: set[str]  # configs of which something could not be read
    facts: list[VolumeFacts] = field(default_factory=list)
    histograms: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)  # config, split -> counts
    wordings: set[Wording] = field(default_factory=set)
    sums: Sums = field(default_factory=Counter)

    def add(self, shard: Shard, result: _Result) -> None:
        self.facts += result.facts
        self.wordings |= result.wordings
        self.sums += result.sums
        if isinstance(result.histogram, np.ndarray):
            key = (shard.config, shard.split)
            self.histograms[key] = self.histograms.get(key, 0) + result.histogram
        if not result.whole:
            self.broken.add(shard.config)


def check_shard(job: _Job) -> _Result:
    """One shard from its bytes to its rows."""
    findings, root, shard = Findings(), Path(job.root), job.shard
    check_shard_file(root, shard, job.quick, findings)
    file = opened(root, shard, findings, quick=job.quick)
    result = _Result(findings, [], 0, file is not None)
    if file is None:
        return result
    check_metadata(shard.path, file.parquet, findings)
    claimed = file.parquet.metadata.num_rows
    if claimed != shard.rows:
        findings.add("X405", shard.path, f"{claimed} rows where the manifest says {shard.rows}")
    if job.quick:
        return result
    last, rows = "", 0
    for batch in batches(file, findings):
        rows += len(batch.table)
        try:
            last = _check_batch(batch, job.terms, last, result)
        except Exception as error:  # one row must not hide what is wrong with all others
            result.whole = False
            findings.add(
                "X102",
                f"{batch.path} from row {batch.number[0]}",
                f"values that nothing can be checked with: {shown(error, 160)}",
            )
        del batch  # before the next is read: its memory serves again
    result.whole = result.whole and rows == claimed
    if job.canonical and "X404" not in findings.groups:
        check_canonical(root, shard, file, findings)
    return result


def _check_batch(batch: Batch, terms: Terms, last: str, result: _Result) -> str:
    """All checks of a volume; `last` is the volume before it, and this one is returned."""
    findings = result.findings
    known, legal = check_rows(batch, terms, findings)
    if "X102" in findings.groups and not known.any():
        result.whole = False  # nulls: what builds on these rows cannot be checked
        return last
    boxed = check_geometry(batch, terms.margin_mm, known, findings)
    seen = check_voxels(batch, terms, boxed, findings) if "volume" in batch.table.column_names else {}
    facts = gather(batch, known, boxed, seen, findings)
    if facts and facts[0].volume_id < last:
        findings.add("X113", facts[0].place, f"it comes after {last}")
    result.facts += facts
    result.histogram = result.histogram + histogram(batch, known)
    result.wordings |= wordings_of(batch, known)
    check_sources(batch, legal, findings)
    if batch.config == terms.described:
        result.sums += check_told(batch, legal, findings)
    if batch.number[0] == 0 and "-00000-of-" in batch.path and not findings:
        sample(batch, findings)  # slow, so once per config and split
    return facts[-1].volume_id if facts else last
