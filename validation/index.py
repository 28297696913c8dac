"""The index of a release against its shards: a reader plans by it, and would pass over what it leaves out."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from pathlib import Path

from reasonknee.errors import DataError
from reasonknee.layout import PER_VOLUME, Manifest, Shard
from reasonknee.layout.index import IndexedShard, index_names, read_index
from reasonknee.validation.findings import Findings

Asked = dict[tuple[int, str], tuple[int, int, frozenset[str], frozenset[str]]]


def check_index(root: Path, manifest: Manifest, findings: Findings) -> None:
    """For each row group and volume: how many rows, which questions, and which of them have a box. Only of
    shards that are as they should be."""
    for name in sorted(index_names(manifest.shards) & manifest.files.keys()):
        try:
            indexed = {s.path: s for s in read_index((root / name).read_bytes(), name)}
        except DataError as error:
            findings.add("X419", name, error.told)
            continue
        config, split = name.removeprefix("index/").removesuffix(".jsonl").split("-")
        shards = {s.path: s for s in manifest.of(config, split)}
        for path in sorted(shards.keys() ^ indexed.keys()):
            findings.add("X419", name, f"{path} is in one of index and manifest only")
        for path in sorted(shards.keys() & indexed.keys()):
            _compare(root, shards[path], indexed[path], findings)


def _compare(root: Path, shard: Shard, indexed: IndexedShard, findings: Findings) -> None:
    with (root / shard.path).open("rb") as file:
        file.seek(-indexed.footer_bytes, 2)
        tail = file.read()
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if (length, hashlib.sha256(tail).hexdigest()) != (indexed.footer_bytes, indexed.footer_sha256):
        findings.add("X419", shard.path, "its footer is another one")
    told: Asked = {}
    for run in indexed.runs:
        boxed = frozenset(q for q, has in zip(run.questions, run.boxed, strict=True) if has)
        told[run.group, run.volume_id] = (run.first, run.rows, frozenset(run.questions), boxed)
    stored = _stored(root, shard)
    for key in sorted(told.keys() ^ stored.keys()) + sorted(
        k for k in told.keys() & stored.keys() if told[k] != stored[k]
    ):
        findings.add("X419", shard.path, f"row group {key[0]}, {key[1]}: other rows or questions")


def _stored(root: Path, shard: Shard) -> Asked:
    import pyarrow.parquet as pq

    parquet, stored = pq.ParquetFile(root / shard.path), Asked()
    nested = shard.config in PER_VOLUME
    columns = ["volume_id", "quintuples" if nested else "question_id", *([] if nested else ["box"])]
    for group in range(parquet.num_row_groups):
        first: dict[str, int] = {}
        rows: dict[str, int] = defaultdict(int)
        questions: dict[str, set[str]] = defaultdict(set)
        boxed: dict[str, set[str]] = defaultdict(set)
        for number, row in enumerate(parquet.read_row_group(group, columns=columns).to_pylist()):
            first.setdefault(row["volume_id"], number)
            rows[row["volume_id"]] += 1
            for asked in row["quintuples"] if nested else [row]:
                questions[row["volume_id"]].add(asked["question_id"])
                if asked["box"] is not None:
                    boxed[row["volume_id"]].add(asked["question_id"])
        for name, count in rows.items():
            stored[group, name] = (first[name], count, frozenset(questions[name]), frozenset(boxed[name]))
    return stored
