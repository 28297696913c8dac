"""The one reader of a release: columns, rows and volumes as `datasets` would give them, and what is damaged is one clear error."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import command, run
from hub import Hub

from reasonknee.errors import DataError
from reasonknee.layout import Manifest
from reasonknee.layout.parquet import Unusual, thrift_struct
from reasonknee.release.reader import Release
from reasonknee.scoring.truth import read_truth


@pytest.fixture
def annotations(release: Path, tmp_path: Path) -> Path:
    """A release with the config `annotations` alone, to be spoiled."""
    folder = tmp_path / "spoiled"
    shutil.copytree(release / "annotations", folder / "annotations")
    manifest = json.loads((release / "manifest.json").read_text())
    kept = [s for s in manifest["shards"] if s["config"] == "annotations"]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "shards": kept}))
    return folder


def rewritten(release: Path, split: str, change: Callable[[pa.Table], pa.Table]) -> None:
    for shard in Release(release).manifest.of("annotations", split):
        pq.write_table(change(pq.read_table(release / shard.path)), release / shard.path)


def test_columns_are_flat_and_equal_in_every_config(release: Path, manifest: Manifest) -> None:
    opened = Release(str(release))
    names = ["id", "patient", "box", "grades", "shape"]
    first = opened.columns("train", names, "annotations").sort_by("id")
    assert first.num_rows == manifest.quintuples["train"]
    for config in ("cropped", "full", "embeddings"):
        assert opened.columns("train", names, config).sort_by("id").equals(first)
    assert opened.columns("train", ["id", "no_such_column"]).column_names == ["id"]
    assert opened.lightest("train") == "annotations"
    assert opened.lightest("nowhere") is None
    assert opened.columns("nowhere", names).num_rows == 0


def test_a_row_and_a_volume_by_id(release: Path) -> None:
    opened = Release(release)
    ids = opened.columns("test", ["id"])["id"].to_pylist()
    for id_ in (ids[0], ids[-1]):
        crop, whole = opened.row(id_, "cropped"), opened.row(id_, "full", without=["volume"])
        assert crop is not None
        assert whole is not None
        assert crop["id"] == id_
        assert "volume" not in whole
        assert next(q for q in whole["quintuples"] if q["id"] == id_)["grades"] == crop["grades"]
        volume = opened.volume(crop["volume_id"])
        assert volume is not None
        if crop["crop"]:
            c = crop["crop"]
            part = volume.array[c["z0"] : c["z1"], c["y0"] : c["y1"], c["x0"] : c["x1"]]
            np.testing.assert_array_equal(
                np.frombuffer(crop["volume"]["bytes"][352:], part.dtype).reshape(part.shape), part
            )
    assert opened.row("1000001-00m-nowhere-acl", "cropped") is None
    assert opened.volume("1000001-00m-nowhere") is None


def test_many_rows_come_once_each(release: Path) -> None:
    opened = Release(release)
    ids = [id_ for split in opened.splits for id_ in opened.columns(split, ["id"])["id"].to_pylist()]
    rows = [row["id"] for row in opened.rows([*ids, "nothing"], "annotations", columns=["id"])]
    assert sorted(rows) == sorted(ids)


def test_a_damaged_shard_is_one_error(annotations: Path) -> None:
    for shard in Release(annotations).manifest.shards:
        (annotations / shard.path).write_bytes(b"PAR1" * 4)
    for call in (
        lambda r: r.columns("test", ["id"]),
        lambda r: r.row("1000001-00m-right-acl", "annotations"),
    ):
        with pytest.raises(DataError, match="R020"):
            call(Release(annotations))


def with_long_id(table: pa.Table) -> pa.Table:
    """One id of 2 MB that all rows refer to: hundreds of megabytes once each row has its own."""
    ids = pa.DictionaryArray.from_arrays(np.zeros(len(table), np.int32), ["a" * 2_000_000])
    return table.set_column(table.column_names.index("id"), "id", ids)


def with_a_huge_page(table: pa.Table) -> pa.Table:
    return table.slice(0, 1).set_column(table.column_names.index("id"), "id", pa.array(["a" * 120_000_000]))


@pytest.mark.parametrize("change", [with_long_id, with_a_huge_page])
def test_a_shard_that_was_made_to_fill_the_memory_is_refused(
    change: Callable[[pa.Table], pa.Table], annotations: Path
) -> None:
    """It used to be read: a shard of 60 kB took 4 GB."""
    (shard,) = Release(annotations).manifest.of("annotations", "test")
    path = annotations / shard.path
    table = pq.read_table(path)
    known = table["id"][0].as_py()
    pq.write_table(change(table), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 200_000
    usual = pa.default_memory_pool()
    taken = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(taken)
    try:
        for call in (
            lambda r: r.columns("test", ["id"]),
            lambda r: list(r.rows([known], "annotations", "test")),
            lambda r: read_truth(annotations, "test"),
        ):
            with pytest.raises(DataError, match=r"R020.*unpacks to"):
                call(Release(annotations))
    finally:
        pa.set_memory_pool(usual)
    assert taken.max_memory() < 50_000_000


def rebuilt(path: Path, between: bytes = b"", change: Callable[[bytes], bytes] = bytes) -> None:
    """A shard with bytes before its footer, and with another footer."""
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = change(data[start:-8])
    path.write_bytes(data[:start] + between + footer + len(footer).to_bytes(4, "little") + data[-4:])


def in_another_place(path: Path, table: pa.Table) -> None:
    """The chunk of `id` goes by another name, but pyarrow reads it by its place."""
    pq.write_table(with_long_id(table), path, compression="zstd", store_schema=False)
    rebuilt(path, change=lambda footer: footer.replace(b"\x19\x18\x02id", b"\x19\x18\x02iz"))


def by_differences(path: Path, table: pa.Table) -> None:
    """Each id is told as what it differs by from the one before: by nothing."""
    ids, others = pa.array(["a" * 600_000] * len(table)), [n for n in table.column_names if n != "id"]
    made = table.set_column(table.column_names.index("id"), "id", ids)
    how = {"column_encoding": {"id": "DELTA_BYTE_ARRAY"}, "use_dictionary": others, "data_page_size": 1 << 30}
    pq.write_table(made, path, compression="zstd", store_schema=False, **how)


def of_one_length(path: Path, table: pa.Table) -> None:
    ids = pa.array([b"a" * 600_000] * len(table), pa.binary(600_000))
    made = table.set_column(table.column_names.index("id"), "id", ids)
    pq.write_table(made, path, compression="zstd", store_schema=False)


def padded(path: Path, table: pa.Table) -> None:
    """A file that is large for no reason, so that its row group might be."""
    pq.write_table(with_a_huge_page(table), path, compression="zstd", store_schema=False)
    rebuilt(path, between=bytes(6 << 20))


def without_a_footer(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path)
    rebuilt(path, change=lambda footer: b"\xff" * len(footer))


@pytest.mark.parametrize("spoil", [in_another_place, by_differences, of_one_length, padded, without_a_footer])
def test_there_is_no_way_around_the_bound(spoil: Callable[[Path, pa.Table], None], annotations: Path) -> None:
    (shard,) = Release(annotations).manifest.of("annotations", "test")
    path = annotations / shard.path
    spoil(path, pq.read_table(path))
    with pytest.raises(DataError, match="R020"):
        Release(annotations).columns("test", ["id"])


def test_a_field_of_a_page_header_stands_once() -> None:
    with pytest.raises(Unusual, match="twice"):
        thrift_struct(bytes([0x15, 0, 0x15, 4, 0x06, 4, 8, 0]))  # 1: 0, 2: 2, and again 2: 4


def repeated(footer: bytes) -> bytes:
    """Says that a column is a list, which the lengths of its histograms do not agree with."""
    changed = footer.replace(b"\x25\x02\x18\x0borientation", b"\x25\x06\x18\x0borientation")
    assert changed != footer
    return changed


def long(footer: bytes) -> bytes:
    return bytes(5 << 20) + footer


@pytest.mark.parametrize("change", [repeated, long])
def test_a_footer_that_would_end_the_process_is_an_error(
    change: Callable[[bytes], bytes], annotations: Path
) -> None:
    (shard,) = Release(annotations).manifest.of("annotations", "test")
    data = (annotations / shard.path).read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = change(data[start:-8])
    (annotations / shard.path).write_bytes(
        data[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    )
    with pytest.raises(DataError, match="R020"):
        Release(annotations).columns("test", ["id"])


def twice(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table])


def silly_grade(table: pa.Table) -> pa.Table:
    rows = table["grades"].to_pylist()
    for row in rows:
        row.update({name: 99 for name, grade in row.items() if grade is not None})
    return table.set_column(
        table.column_names.index("grades"), "grades", pa.array(rows, table.schema.field("grades").type)
    )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda t: t.drop_columns(["spacing"]), "S002"),
        (lambda t: t.slice(0, 0), "S004"),
        (twice, "S005"),
        (silly_grade, "S006"),
        (lambda t: t.set_column(t.column_names.index("question_id"), "question_id", pa.array(["x"] * len(t))), "S007"),
    ],
    ids=["no column", "empty", "twice", "grade", "question"],
)  # fmt: skip
def test_truth_that_cannot_be_is_told(
    change: Callable[[pa.Table], pa.Table], code: str, annotations: Path
) -> None:
    rewritten(annotations, "test", change)
    with pytest.raises(DataError, match=code):
        read_truth(annotations, "test")


def test_a_split_that_is_not_there_is_told(annotations: Path) -> None:
    manifest = json.loads((annotations / "manifest.json").read_text())
    manifest["shards"] = [s for s in manifest["shards"] if s["split"] != "test"]
    (annotations / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="S003"):
        read_truth(annotations, "test")


def test_look_needs_a_box_to_look_at(annotations: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def without(table: pa.Table) -> pa.Table:
        boxes = pa.nulls(len(table), table.schema.field("box").type)
        return table.set_column(table.column_names.index("box"), "box", boxes)

    for split in Release(annotations).splits:
        rewritten(annotations, split, without)
    assert command("look", annotations) == 3
    assert "L004" in capfd.readouterr().err


def test_a_repo_on_the_hub_is_read_config_by_config(release: Path, tmp_path: Path) -> None:
    script = """
import json, sys
from reasonknee.release.reader import Release
opened = Release("rajpurkarlab/3DReasonKnee")
ids = opened.columns("test", ["id"])["id"].to_pylist()
print(json.dumps([len(ids), opened.row(ids[0], "annotations")["id"] == ids[0]]))
"""
    with Hub({"rajpurkarlab/3DReasonKnee": release}) as hub:
        done = run("-c", script, env=hub.env(tmp_path / "home"))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [len(read_truth(release, "test")), True]
        asked = {r.path for r in hub.log if ".parquet" in r.path}
    assert asked
    assert all("/annotations/" in path for path in asked), "no voxels are fetched for the answers"


def test_a_picture_needs_matplotlib(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert command("look", release, "--out", tmp_path / "slice.png") == 2
    assert "L003" in capfd.readouterr().err
