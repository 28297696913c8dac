"""A release of layout 2 written anew in layout 3: the same volumes, questions, boxes and grades.

What layout 2 did not hold is unknown, not made up: no provenance, no second readings, no published reasoning.
Wordings and derived reasoning are those of this version. The old release stays as it is; the new one gets its
name when it is whole.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import Executor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasonknee import schema
from reasonknee.boxes import Box
from reasonknee.errors import DataError, UsageError
from reasonknee.layout import PER_VOLUME, Manifest, Shard
from reasonknee.layout.bounds import check_groups
from reasonknee.layout.manifest import FILE_NAME
from reasonknee.layout.parquet import Unusual
from reasonknee.layout.records import arrow_schema
from reasonknee.layout.strict_text import parse_json
from reasonknee.questions import ATTRIBUTES, QUESTIONS
from reasonknee.release.make import write_texts
from reasonknee.release.provenance import summed
from reasonknee.release.rows import derived
from reasonknee.release.shards import writing
from reasonknee.system.files import sha256_of
from reasonknee.system.folders import claim, is_ours
from reasonknee.system.locks import Lock
from reasonknee.system.progress import Progress, silent
from reasonknee.system.workers import as_finished
from reasonknee.version import LAYOUT_VERSION, VERSION, versions

if TYPE_CHECKING:
    import pyarrow as pa

OLD = 2
_PAYLOAD = ("volume", "embedding")
_NOTHING: dict[str, Any] = {
    **{name: {} for name in ("grades", "projects", "images", "boxes", "reasoning", "contradictions")},
    "unknown_grades": 0,
    "second_readings": 0,
}


@dataclass(frozen=True)
class _Job:
    old: str
    new: str
    shard: Shard
    wording: str


def migrate(old: Path, new: Path, pool: Executor | None = None, progress: Progress = silent) -> Manifest:
    """Writes the release `old` to `new`, which must not exist, in the layout of this version."""
    if os.path.lexists(new):
        raise UsageError("R001", f"{new} exists", "choose a new folder, or remove it")
    manifest = _old_manifest(old)
    folder, lock = (new.absolute().with_name(new.name + suffix) for suffix in (".partial", ".lock"))
    with Lock(lock):
        purpose = f"migration to {new.name}"
        if is_ours(folder, purpose):  # what a killed run left
            shutil.rmtree(folder)
        claim(folder, purpose)
        made_in = folder / new.name  # below the mark, which so outlives a kill at any moment
        jobs = [_Job(str(old), str(made_in), shard, manifest["wording"]) for shard in manifest["shards"]]
        written: dict[str, Shard] = {}
        for job, shard in as_finished(_rewrite, jobs, pool):
            written[job.shard.path] = shard
            progress("rewriting shards", len(written), len(jobs))
        shards = tuple(written[s.path] for s in manifest["shards"])
        described = {**manifest, "shards": shards, "provenance": summed(made_in, shards), "files": {}}
        made = write_texts(made_in, Manifest(**described))
        made_in.rename(new)
        shutil.rmtree(folder)
    return made


def _old_manifest(old: Path) -> dict[str, Any]:
    """The manifest of the old release as one of ours would be, checked: its paths are followed."""
    path = old / FILE_NAME
    if not path.is_file():
        raise DataError("M001", f"{old} has no {FILE_NAME}", "is it a release folder?")
    raw = parse_json(path.read_bytes(), FILE_NAME)
    layout = raw.get("layout_version")
    if layout == LAYOUT_VERSION:
        raise UsageError("M012", f"{old} has layout {LAYOUT_VERSION} already", "there is nothing to migrate")
    if layout != OLD:
        raise DataError("M010", f"{old} has layout {str(layout)[:20]}", f"only layout {OLD} can be migrated")
    mended: dict[str, Any] = {
        **{f.name: raw.get(f.name) for f in fields(Manifest)},
        "layout_version": LAYOUT_VERSION,
        "code_version": VERSION,
        "versions": versions(),
        "sources": sha256_of(path),  # it was made of the old release
        "wording": "all" if raw.get("wording") == "both" else raw.get("wording"),
        "provenance": _NOTHING,
    }
    wrong = next(schema.validator("manifest").iter_errors(mended), None)
    if wrong:
        where = ".".join(map(str, wrong.path))
        raise DataError(
            "M010", f"{path}: {where or FILE_NAME}: {wrong.message[:80]}", "is the release whole and sound?"
        )
    return {**mended, "shards": tuple(Shard(**s) for s in mended["shards"])}


def _rewrite(job: _Job) -> Shard:
    """One shard, row group by row group."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    source, shard = Path(job.old, job.shard.path), job.shard
    if not source.is_file() or sha256_of(source) != shard.sha256:
        raise DataError(
            "M009", f"{shard.path} is not there, or not as the manifest says", "copy the old release again"
        )
    try:
        with writing(Path(job.new, shard.path), shard.config) as writer:
            file = pq.ParquetFile(source, page_checksum_verification=True)
            for group in range(file.num_row_groups):
                check_groups(file, source, [group])
                table = file.read_row_group(group)
                rows = _mended(table.drop_columns([n for n in _PAYLOAD if n in table.column_names]), job)
                writer.write(_with_payload(rows, table, shard.config))
    except (KeyError, TypeError, ValueError, Unusual, pa.ArrowException) as error:
        raise DataError(
            "M009", f"{shard.path}: {str(error)[:100]}", f"is it a sound release of layout {OLD}?"
        ) from None
    return writer.shard(shard.path, shard.split)


def _mended(table: pa.Table, job: _Job) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    for row in rows:
        row["provenance"] = dict.fromkeys(("grades", "project", "package", "image_sha256"))
        for quintuple in row["quintuples"] if job.shard.config in PER_VOLUME else [row]:
            asked, box = QUESTIONS[quintuple["question_id"]], quintuple["box"]
            grades = {a: quintuple["grades"][a] for a in ATTRIBUTES if quintuple["grades"][a] is not None}
            shape = (row["shape"]["z"], row["shape"]["y"], row["shape"]["x"])
            quintuple |= derived(
                asked, grades, Box.from_dict(box) if box else None, shape, quintuple["id"], job.wording
            )
            quintuple |= {"box_source": None, "published_reasoning": None, "second_readings": []}
    return rows


def _with_payload(rows: list[dict[str, Any]], table: pa.Table, config: str) -> pa.Table:
    """The rows in the new schema; voxels and numbers are taken over as they are."""
    import pyarrow as pa

    wanted = arrow_schema(config)
    small = pa.schema([f for f in wanted if f.name not in _PAYLOAD])
    made = pa.Table.from_pylist(rows, schema=small)
    columns = []
    for field in wanted:
        if field.name == "embedding":
            columns.append(_longer(table["embedding"].combine_chunks(), field.type))
        else:
            columns.append((table if field.name in _PAYLOAD else made)[field.name])
    return pa.Table.from_arrays(columns, schema=wanted)


def _longer(structs: pa.StructArray, kind: pa.StructType) -> pa.StructArray:
    """A struct column with null in the fields that it did not have."""
    import pyarrow as pa

    had = {f.name for f in structs.type}
    return pa.StructArray.from_arrays(
        [structs.field(f.name) if f.name in had else pa.nulls(len(structs), f.type) for f in kind],
        fields=list(kind),
    )
