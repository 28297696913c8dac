"""Streaming from the Hub, over real HTTP on the loopback: the same rows, only the bytes that are wanted, and no fault that stays silent."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub import Hub
from test_stream import as_bytes, assert_same_rows, ids, stored

from reasonknee.errors import DataError, ReasonKneeError, StorageError, UsageError
from reasonknee.layout import read_manifest
from reasonknee.layout.parquet import writer_settings
from reasonknee.questions import QUESTIONS
from reasonknee.questions.regions import SECTIONS
from reasonknee.release.index import index_texts
from reasonknee.stream import Stream, quintuples
from reasonknee.stream.served import Row
from reasonknee.system.files import sha256_of
from reasonknee.volumes import Grid, Volume, nifti_bytes, volume_from_bytes

REPO = "rajpurkarlab/3DReasonKnee"


@pytest.fixture
def hub(release: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    monkeypatch.setattr(
        "huggingface_hub.utils._http.time.sleep", lambda _: None
    )  # the client waits seconds before it asks again
    with Hub({REPO: release}) as hub:
        yield hub


def streamed(hub: Hub, config: str = "cropped", split: str = "test", **options: Any) -> Stream:
    return quintuples(REPO, config, split, hub={"endpoint": hub.endpoint, "token": False}, **options)


def bytes_for(hub: Hub, **options: Any) -> int:
    before = hub.sent(".parquet")
    rows = list(streamed(hub, **options))
    assert rows
    return hub.sent(".parquet") - before


@pytest.mark.parametrize("config", ["cropped", "full", "embeddings", "annotations"])
def test_the_hub_gives_what_the_folder_gives(hub: Hub, release: Path, config: str) -> None:
    for options in ({}, {"seed": 2, "batch_size": 3, "sides": "left", "questions": "paper62"}):
        assert_same_rows(
            list(streamed(hub, config, "train", **options)),
            list(quintuples(release, config, "train", **options)),
        )
    data = [r for r in hub.log if ".parquet" in r.path and r.method == "GET"]
    assert {r.status for r in data} == {206}


def test_workers_stream_and_resume_from_the_hub(hub: Hub, release: Path) -> None:
    torch = pytest.importorskip("torch.utils.data")
    stream = streamed(hub, "full", "train", seed=1, batch_size=4, cut_regions=True)
    wanted = list(quintuples(release, "full", "train", seed=1, batch_size=4, cut_regions=True))
    rows = []
    for batch in torch.DataLoader(stream, 4, num_workers=2, collate_fn=list):
        rows += batch
        if len(rows) == 400:
            break
    stream.load_state_dict(stream.state_dict(consumed=400))
    rows += [row for batch in torch.DataLoader(stream, 4, num_workers=1, collate_fn=list) for row in batch]
    assert_same_rows(rows, wanted)


def test_resuming_downloads_nothing_of_what_is_done(hub: Hub) -> None:
    stream = streamed(hub, "full", "train", seed=1)
    whole = bytes_for(hub, config="full", split="train", seed=1)
    stream.load_state_dict(stream.state_dict(consumed=len(stream) - 5))
    before = hub.sent(".parquet")
    assert len(list(stream)) == 5
    assert hub.sent(".parquet") - before < 0.6 * whole


# --- what is not wanted is not downloaded -----------------------------------------------------------------------------------------

LARGE = (64, 128, 128)  # 2 MB a volume: much more than a footer, and than what `datasets` reads at a time


def rewritten(release: Path, folder: Path, config: str, shards: list[list[list[Row]]]) -> Path:
    """A copy of the release whose training rows of a config are these: rows in row groups in shards."""
    shutil.copytree(release, folder)
    manifest = read_manifest(release)
    (old,) = manifest.of(config, "train")
    (folder / old.path).unlink()
    schema, new = pq.read_schema(release / old.path), []
    for number, groups in enumerate(shards):
        path = f"{config}/train-{number:05d}-of-{len(shards):05d}.parquet"
        with pq.ParquetWriter(folder / path, schema, **writer_settings(config)) as writer:
            for rows in groups:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))
        new.append(
            replace(
                old,
                path=path,
                rows=sum(map(len, groups)),
                bytes=(folder / path).stat().st_size,
                sha256=sha256_of(folder / path),
            )
        )
    others = tuple(s for s in manifest.shards if s != old)
    (folder / "manifest.json").write_text(
        replace(manifest, shards=(*others, *new), files={}).to_json()
    )  # and no index
    return folder


@pytest.fixture(scope="module")
def large(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release with volumes of noise in place of its own, which nothing makes smaller."""
    rows = []
    for i, row in enumerate(stored(release, "full")):
        grid = Grid(LARGE, volume_from_bytes(row["volume"]["bytes"]).grid.affine)
        noise = np.random.default_rng(i).integers(0, 2**16, LARGE, np.uint16)
        volume = {"bytes": nifti_bytes(Volume(noise, grid)), "path": None}
        rows.append(row | {"shape": dict(zip("zyx", LARGE, strict=True)), "volume": volume})
    return rewritten(release, tmp_path_factory.mktemp("large") / "release", "full", [[[row] for row in rows]])


def test_sides_visits_patients_and_columns_spare_their_bytes(hub: Hub, large: Path) -> None:
    hub.repos[REPO].folder = large
    volumes = {row["volume_id"]: row for row in quintuples(large, "full", "train")}
    size, footer = 2 * 64 * 128 * 128, 200_000
    for option, value in (
        ("sides", "right"),
        ("visits", "36m"),
        ("patients", ["1000002"]),
        ("sides", ["left", "right"]),
    ):
        count = sum(row[option[:-1]] in value for row in volumes.values())
        sent = bytes_for(hub, config="full", split="train", **{option: value})
        assert count * size < sent < count * (size + 30_000) + footer
    assert bytes_for(hub, config="full", split="train", columns=["grades", "box"]) < size / 4


@pytest.mark.parametrize(
    "options",
    [
        {"questions": ["acl"]},
        {"categories": QUESTIONS["acl"].category.id},
        {"regions": "patella_medial"},
        {"categories": QUESTIONS["medial_meniscus_cyst"].category.id, "sides": "left"},
    ],
)
def test_questions_spare_the_sections_of_the_knee_without_them(
    hub: Hub, release: Path, options: dict[str, Any]
) -> None:
    everything = bytes_for(hub, split="train")
    sent = bytes_for(hub, split="train", **options)
    assert sent < everything * 0.75
    assert_same_rows(
        list(streamed(hub, split="train", **options)),
        list(quintuples(release, "cropped", "train", **options)),
    )


# --- faults -----------------------------------------------------------------------------------------------------------------------


def test_a_fault_at_any_position_changes_nothing(hub: Hub) -> None:
    wanted = as_bytes(streamed(hub, ahead=0))
    hub.faults = None
    list(streamed(hub, ahead=0))
    requests = hub._data_requests
    assert requests >= 5
    for fault in ("500", "429", "reset", "short"):
        for position in range(requests):
            hub.faults = lambda n, position=position, fault=fault: fault if n == position else None
            assert as_bytes(streamed(hub, ahead=0)) == wanted, (fault, position)


@pytest.mark.parametrize("fault", ["500", "429", "reset", "short"])
def test_a_server_that_stays_broken_is_a_loud_error(hub: Hub, fault: str) -> None:
    good = list(streamed(hub, ahead=0))
    for first in (0, 2, 4):
        hub.faults = lambda n, first=first: fault if n >= first else None
        rows: list[Row] = []
        with pytest.raises(StorageError) as error:
            rows.extend(streamed(hub, ahead=0))  # keeps what came before the error
        assert error.value.code in {"D032", "D033"}
        assert ids(rows) == ids(good[: len(rows)])


def test_a_server_that_sends_more_than_was_asked_for_is_left(hub: Hub) -> None:
    list(streamed(hub, ahead=0))
    last = hub._data_requests - 1
    hub.faults = lambda n: "whole" if n == last else None
    with pytest.raises(DataError, match=r"^D038: .* more than the \d+ bytes asked for"):
        list(streamed(hub, ahead=0))


def test_many_faults_at_random(hub: Hub) -> None:
    wanted = as_bytes(streamed(hub, "full", seed=3))
    ended = 0
    for seed in range(8):
        faults = np.random.default_rng(seed).choice(
            np.array([None, "500", "429", "reset", "short"]), 60, p=[0.5, 0.125, 0.125, 0.125, 0.125]
        )
        hub.faults = faults.tolist()
        try:
            assert as_bytes(streamed(hub, "full", seed=3)) == wanted
            ended += 1
        except ReasonKneeError:
            pass
    assert ended


def test_flipped_bytes_on_the_server_are_noticed(hub: Hub, release: Path, tmp_path: Path) -> None:
    copy = tmp_path / "release"
    shutil.copytree(release, copy)
    (shard,) = (copy / "cropped").glob("test-*")
    whole = shard.read_bytes()
    wanted = as_bytes(streamed(hub))
    hub.repos[REPO].folder = copy
    noticed = 0
    for place in np.random.default_rng(1).integers(4, len(whole) - 8, 12).tolist():
        shard.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        try:
            assert as_bytes(streamed(hub, ahead=0)) == wanted
        except ReasonKneeError:
            noticed += 1
    assert noticed >= 5  # the rest hit what is not read, or not needed


def test_what_is_not_there_is_an_error(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, options, code in (
        ("rajpurkarlab/other", {}, "D032"),
        (REPO, {"revision": "v9"}, "D032"),
        ("no_such_folder", {}, "D020"),
        ("./rajpurkarlab", {}, "D020"),
    ):
        with pytest.raises((StorageError, UsageError)) as error:
            quintuples(name, hub={"endpoint": hub.endpoint, "token": False}, **options)
        assert error.value.code == code
    (hub.repos[REPO]).gated = "manual"
    with pytest.raises(StorageError, match="D032"):
        streamed(hub)


# --- load_dataset(..., streaming=True) --------------------------------------------------------------------------------------------

STREAM = """
import hashlib, json, os, sys
import datasets, pyarrow.dataset
from reasonknee.stream import explode
checked = pyarrow.dataset.ParquetFragmentScanOptions(page_checksum_verification=True)
wanted = {"filters": [("side", "==", sys.argv[2])]} if sys.argv[2:] else {}
rows = datasets.load_dataset("rajpurkarlab/3DReasonKnee", sys.argv[1], split="train", streaming=True, fragment_scan_options=checked, **wanted)
rows = rows.cast_column("volume", datasets.Nifti(decode=False))
print(json.dumps([[row["id"], hashlib.sha256(row["volume"].tobytes()).hexdigest()] for row in explode(rows, cut_regions=True) if row["box"]]), flush=True)
os._exit(0)  # after streaming, an ordinary exit of `datasets` now and then aborts with every row right
"""


def test_load_dataset_streams_the_same_and_filters_before_it_downloads(
    hub: Hub, large: Path, tmp_path: Path
) -> None:
    hub.repos[REPO].folder = large
    env = hub.env(tmp_path) | {"USE_TORCH": "0"}
    done = subprocess.run(
        [sys.executable, "-c", STREAM, "full", "right"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    right = quintuples(large, "full", "train", sides="right", boxed=True, cut_regions=True)
    assert json.loads(done.stdout) == [
        [row["id"], hashlib.sha256(row["volume"].tobytes()).hexdigest()] for row in right
    ]
    whole = sum(file.stat().st_size for file in (large / "full").glob("train-*"))
    assert hub.sent(".parquet") < whole * 0.85


# --- the index --------------------------------------------------------------------------------------------------------------------


def test_a_plan_by_the_index_is_that_by_the_footers(hub: Hub, release: Path, tmp_path: Path) -> None:
    bare = tmp_path / "release"
    shutil.copytree(release, bare)
    (bare / "manifest.json").write_text(replace(read_manifest(release), files={}).to_json())
    for config in ("cropped", "full", "embeddings", "annotations"):
        for options in ({}, {"boxed": True, "sides": "left"}, {"questions": ["acl"], "seed": 1}):
            by_index, by_footers = (quintuples(each, config, **options) for each in (release, bare))
            assert by_index.source.entries == by_footers.source.entries


def test_only_the_footers_of_shards_that_are_read_are_fetched(
    hub: Hub, release: Path, tmp_path: Path
) -> None:
    rows = stored(release, "full")
    folder = rewritten(release, tmp_path / "many", "full", [[[row]] for row in rows])  # a shard a volume
    manifest = read_manifest(folder)
    texts = index_texts(folder, manifest)
    for name, text in texts.items():
        (folder / name).write_text(text)
    files = {name: sha256_of(folder / name) for name in texts}
    (folder / "manifest.json").write_text(replace(manifest, files=files).to_json())
    hub.repos[REPO].folder = folder
    stream = streamed(hub, "full", "train", seed=0, ahead=0)
    assert hub.sent(".parquet") == 0
    first = next(iter(stream))
    shards = {r.path.split("/")[-1] for r in hub.log if ".parquet" in r.path}
    assert len(shards) == 1
    assert first["id"] in ids(quintuples(release, "full"))


VOLUMES, SHARDS = 16, 576  # of a shard, and of all splits of a config, at full size


def of_full_shards(release: Path, folder: Path, count: int) -> Path:
    """A release whose training crops fill so many shards as those of full size: 16 volumes, in row groups for each section of the knee.
    The other configs with pixels are listed with as many, and are empty files."""
    shutil.copytree(release, folder)
    manifest = read_manifest(release)
    new, read = [], pq.ParquetFile(release / manifest.of("cropped", "train")[0].path)
    groups = [read.read_row_group(group) for group in range(len(SECTIONS))]
    assert len({row["volume_id"] for group in groups for row in group.select(["volume_id"]).to_pylist()}) == 1
    for number in range(count):
        for config in ("cropped", "full", "embeddings"):
            (old,) = manifest.of(config, "train")
            path = folder / config / f"train-{number:05d}-of-{count:05d}.parquet"
            path.touch()
            if config == "cropped":
                with pq.ParquetWriter(path, read.schema_arrow, **writer_settings(config)) as writer:
                    for table in (
                        renamed(group, number * VOLUMES + i) for i in range(VOLUMES) for group in groups
                    ):
                        writer.write_table(table)
            rows = VOLUMES * (sum(map(len, groups)) if config == "cropped" else 1)
            about = {"path": path.relative_to(folder).as_posix(), "rows": rows, "sha256": sha256_of(path)}
            new.append(replace(old, **about, bytes=path.stat().st_size))
    others = tuple(s for s in manifest.shards if s.split != "train" or s.config == "annotations")
    manifest = replace(manifest, shards=(*others, *new))
    texts = index_texts(folder, manifest)
    for name, text in texts.items():
        (folder / name).write_text(text)
    files = {name: sha256_of(folder / name) for name in texts}
    (folder / "manifest.json").write_text(replace(manifest, files=files).to_json())
    return folder


def renamed(table: pa.Table, number: int) -> pa.Table:
    """The rows of another patient."""
    for name in ("id", "volume_id", "patient"):
        words = [f"{9_000_000 + number}{word[7:]}" for word in table[name].to_pylist()]
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(words, table[name].type))
    return table


@pytest.fixture(scope="module")
def growing(release: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """By how many shards they have."""
    return {n: of_full_shards(release, tmp_path_factory.mktemp("growing") / "release", n) for n in (2, 4)}


@pytest.mark.parametrize(
    ("options", "volumes"),
    [
        ({}, 1 + 4),  # those that are read ahead included
        ({"seed": 0, "batch_size": 8}, 2 + 4),
        ({"seed": 0, "ahead": 0}, 8),  # each row of another volume
    ],
    ids=["in order", "batches", "rows"],
)
def test_a_first_batch_takes_at_most_five_megabytes_of_metadata(
    hub: Hub, growing: dict[int, Path], options: dict[str, Any], volumes: int
) -> None:
    """Counted at the server, and scaled to full size: all that is no shard by what each shard adds to it, and footers as if each of
    the volumes that can be open lay in a shard of its own."""
    listed, footers = {}, []
    for count, folder in growing.items():
        hub.repos[REPO].folder = folder
        hub.log.clear()
        stream = streamed(hub, "cropped", "train", **options)
        rows = iter(stream)
        assert len([next(rows) for _ in range(8)]) == 8
        rows.close()
        about = {s.path: (s.bytes, stream.source.shards.indexed[s.path]) for s in stream.source.shards.stored}
        listed[count] = 0
        for request in hub.log:
            path = request.path.rpartition("/resolve/")[2].partition("/")[2]
            if path not in about:
                assert not path.endswith(".parquet")
                listed[count] += request.sent
                continue
            size, indexed = about[path]
            if int(request.range.removeprefix("bytes=").partition("-")[0]) >= size - indexed.footer_bytes:
                footers.append(request.sent)
    assert 1 < len(footers) <= 2 + 4
    assert min(footers) > 250_000
    few, more = listed[2], listed[4]
    assert more > few > 10_000
    assert few + (SHARDS - 2) * (more - few) / 2 + volumes * max(footers) < 5_000_000


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (b'"questions":', b'"question":', "M008"),
        (b'",[0,', b'",["0",', "M008"),
        (b'",[0,', b'",[-1,', "M008"),
        (b'"runs":[["', b'"runs":[["-', "M008"),
        (b'"runs":[["', b'"runs":[[5,"', "M008"),
        (b',0,"', b',99,"', "M008"),
        (b',0,"0"', b',0,"-1"', "M008"),
        (b',0,"0"', b',0,"' + b"f" * 20 + b'"', "M008"),
        (b'"sets":["', b'"sets":["' + b"f" * 20, "M008"),
        (b"index", b"index", "D029"),
    ],
)
def test_an_index_that_is_damaged_is_refused(
    release: Path, tmp_path: Path, old: bytes, new: bytes, code: str
) -> None:
    shutil.copytree(release, tmp_path / "release")
    manifest, path = read_manifest(release), tmp_path / "release" / "index" / "cropped-train.jsonl"
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    files = dict(manifest.files)
    if code == "M008":
        files["index/cropped-train.jsonl"] = sha256_of(path)
    else:
        path.write_bytes(path.read_bytes() + b"\n")
    (tmp_path / "release" / "manifest.json").write_text(replace(manifest, files=files).to_json())
    with pytest.raises(ReasonKneeError, match=code):
        quintuples(tmp_path / "release", "cropped")
