"""The index of a release, read off its finished shards."""

from __future__ import annotations

import hashlib
from itertools import groupby
from pathlib import Path

from reasonknee.layout import PER_VOLUME, Manifest
from reasonknee.layout.index import IndexedRun, IndexedShard, index_name, index_text

_LENGTH = 8  # bytes at the end of a shard: the length of its footer, and the closing mark


def index_texts(folder: Path, manifest: Manifest) -> dict[str, str]:
    """An index for each config and split, by its name."""
    texts = {}
    for config, split in dict.fromkeys((s.config, s.split) for s in manifest.shards):
        try:
            shards = [_indexed(folder, s.path, config) for s in manifest.of(config, split)]
        except (OSError, ValueError):  # a shard that is missing or damaged, which a check tells with all else
            continue
        texts[index_name(config, split)] = index_text(shards)
    return texts


def _indexed(folder: Path, path: str, config: str) -> IndexedShard:
    import pyarrow.parquet as pq

    with (folder / path).open("rb") as file:
        size = file.seek(0, 2)
        file.seek(size - _LENGTH)
        footer = int.from_bytes(file.read(4), "little") + _LENGTH
        file.seek(size - footer)
        digest = hashlib.sha256(file.read()).hexdigest()
    parquet, runs = pq.ParquetFile(folder / path), list[IndexedRun]()
    prefix = "quintuples.list.element." if config in PER_VOLUME else ""
    columns = ["volume_id", f"{prefix}question_id", f"{prefix}box.z0"]
    for group in range(parquet.num_row_groups):
        rows = parquet.read_row_group(group, columns=columns).to_pylist()
        numbered = enumerate(rows)
        for volume_id, members in groupby(numbered, key=lambda pair: str(pair[1]["volume_id"])):
            of_one = list(members)
            asked = [q for _, row in of_one for q in ((row["quintuples"] or ()) if prefix else [row]) if q]
            runs.append(
                IndexedRun(
                    group,
                    of_one[0][0],
                    len(of_one),
                    volume_id,
                    tuple(q["question_id"] for q in asked),
                    tuple(q["box"] is not None for q in asked),
                )
            )
    return IndexedShard(path, footer, digest, tuple(runs))
