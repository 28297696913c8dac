"""A shard written again: the same rows, by the same writer, are the same bytes.

What differs was hidden where no reader looks: between pages, in entries of a dictionary that no row has, in
statistics, in names and metadata. The settings of the writer are shared with the builder, and may be: they
say how values are stored, never which.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

from reasonknee.errors import UsageError, shown
from reasonknee.layout import Manifest, Shard
from reasonknee.layout.dataset import KNEE, Dataset
from reasonknee.layout.parquet import writer_settings
from reasonknee.layout.sgmri import QaManifest
from reasonknee.validation.findings import Findings
from reasonknee.validation.reading import ShardFile


class _Digest(io.RawIOBase):
    """A file that keeps nothing of what is written to it but its sha256."""

    def __init__(self) -> None:
        self.sha256, self.length = hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        self.sha256.update(view)
        self.length += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.length


def check_canonical(
    root: Path, shard: Shard, file: ShardFile, findings: Findings, dataset: Dataset = KNEE
) -> None:
    """Compares the sha256 of the shard with that of its rows written again. Row groups stay what they are:
    other checks say what one holds."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if None in file.sizes:
        return  # it is not read, and was told
    digest = _Digest()
    plain = pq.ParquetFile(root / shard.path, metadata=file.parquet.metadata)  # nothing as a dictionary
    schema, settings = dataset.arrow_schema(shard.config), writer_settings(shard.config, dataset)
    with pq.ParquetWriter(pa.PythonFile(digest, mode="w"), schema, **settings) as writer:
        for number in range(plain.num_row_groups):
            table = plain.read_row_group(number, use_threads=False)
            writer.write_table(table, row_group_size=max(1, len(table)))
    if digest.sha256.hexdigest() != shard.sha256:
        size = (root / shard.path).stat().st_size
        told = f"{size} bytes, its rows written again make {digest.length}" if size != digest.length else ""
        findings.add("X418", shard.path, told or "the same rows written again have other bytes")


def same_writer(manifest: Manifest | QaManifest) -> None:
    """Refuses where another pyarrow is installed than the one that the manifest records."""
    import pyarrow as pa

    recorded = manifest.versions.get("pyarrow", "")
    if recorded != pa.__version__:
        raise UsageError(
            "X004",
            f"the shards were written by pyarrow {shown(recorded, 20)}, here is {pa.__version__}",
            "--canonical needs the same pyarrow: install it, or leave the option out",
        )
