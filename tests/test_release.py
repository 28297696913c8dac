"""A release: its layout, its bytes, and what happens when a build is cut short."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import ROOT, run

from reasonknee.cohort import Cohort
from reasonknee.layout import Manifest, read_manifest
from reasonknee.questions import QUESTIONS, REGIONS
from reasonknee.questions.regions import SECTIONS
from reasonknee.release import Options, build
from reasonknee.release import make as rel
from reasonknee.release.rows import Member, read_sources, rows
from reasonknee.release.shards import VOLUMES_PER_SHARD, shard_count
from reasonknee.system.files import sha256_of
from reasonknee.validation.run import validate

SPLIT_WORDS = {
    "train",
    "training",
    "validation",
    "valid",
    "val",
    "dev",
    "test",
    "testing",
    "eval",
    "evaluation",
}


def digests(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): sha256_of(p) for p in sorted(folder.rglob("*")) if p.is_file()}


def test_layout(release: Path, manifest: Manifest) -> None:
    assert manifest.configs == ["cropped", "full", "embeddings", "annotations"]
    assert not list(release.glob("*.py"))
    assert not {p.name.lower() for p in release.iterdir() if p.is_dir()} & SPLIT_WORDS
    known = {s.path for s in manifest.shards} | set(manifest.files) | {"manifest.json"}
    assert set(digests(release)) == known
    for shard in manifest.shards:
        assert sha256_of(release / shard.path) == shard.sha256
        assert (release / shard.path).stat().st_size == shard.bytes
    assert all(sha256_of(release / name) == digest for name, digest in manifest.files.items())


SELECTED = {"id", "volume_id", "patient", "visit", "side", "question_id", "category", "region", "box.z0"}


@pytest.mark.parametrize("config", ["cropped", "full", "embeddings", "annotations"])
def test_shards(config: str, release: Path, manifest: Manifest) -> None:
    """Row groups of one volume (16 for annotations, sections of one for crops), page checksums, and statistics only of what rows are selected by."""
    for shard in manifest.of(config):
        file = pq.ParquetFile(release / shard.path, page_checksum_verification=True)
        assert file.metadata.num_rows == shard.rows
        table = file.read()
        ids = table["volume_id"].to_pylist()
        assert ids == sorted(ids)
        if config == "cropped":
            groups = [
                file.read_row_group(i, columns=["volume_id", "region"]).to_pylist()
                for i in range(file.num_row_groups)
            ]
            kinds = [{(row["volume_id"], REGIONS[row["region"]].section) for row in rows} for rows in groups]
            assert all(len(kind) == 1 for kind in kinds)
            assert len(kinds) == len(set.union(*kinds)) == len(set(ids)) * len(SECTIONS)
        if config == "full":
            assert file.num_row_groups == len(ids)
        group = file.metadata.row_group(0)
        columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
        packed = {name for name, column in columns.items() if column.compression == "ZSTD"}
        assert {
            name
            for name in columns
            if name != "region"
            and name.endswith(
                (
                    "bytes",
                    "zero_shot",
                    "instruction",
                    "question.region",
                    "reasoning.list.element",
                    "published_reasoning",
                )
            )
        } == packed
        for name, column in columns.items():
            assert column.is_stats_set == (name.split(".element.")[-1] in SELECTED), name


def test_questions_on_one_region_share_its_bytes(release: Path, manifest: Manifest) -> None:
    shard = manifest.of("cropped", "train")[0]
    group = pq.ParquetFile(release / shard.path).metadata.row_group(0)
    column = next(
        group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema == "volume.bytes"
    )
    rows = pq.ParquetFile(release / shard.path).read_row_group(0)["volume"].to_pylist()
    once = sum(len(b) for b in {r["bytes"] for r in rows if r})
    assert once < column.total_uncompressed_size < once * 1.02 + 4096
    assert column.total_uncompressed_size < 0.7 * sum(len(r["bytes"]) for r in rows if r)


def test_a_flipped_byte_is_noticed(release: Path, manifest: Manifest, tmp_path: Path) -> None:
    source = release / manifest.of("full", "train")[0].path
    data = bytearray(source.read_bytes())
    voxels = next(
        column
        for column in map(pq.ParquetFile(source).metadata.row_group(0).column, range(100))
        if column.path_in_schema == "volume.bytes"
    )
    data[voxels.data_page_offset + voxels.total_compressed_size // 2] ^= 1  # within a page, not in its header
    (tmp_path / "bad.parquet").write_bytes(data)
    with pytest.raises(OSError, match=r"(?i)checksum|crc"):
        pq.ParquetFile(tmp_path / "bad.parquet", page_checksum_verification=True).read()


def test_same_cohort_same_bytes(cohort: Path, release: Path, tmp_path: Path) -> None:
    """Other process count, hash seed, time zone, locale, place, and order of lines and files."""
    env = {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo", "LC_ALL": "C"}
    moved = tmp_path / "elsewhere"
    for path in sorted((p for p in cohort.rglob("*") if p.is_file()), reverse=True):
        target = moved / path.relative_to(cohort)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    lines = (moved / "annotations.jsonl").read_text().splitlines(keepends=True)
    (moved / "annotations.jsonl").write_text("".join(reversed(lines)))
    done = run(
        "build", moved, tmp_path / "again", "--questions", "all69", "--margin", "3", "--workers", "2", env=env
    )
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path / "again") == digests(release)
    assert re.search(r"cropped +[0-9,]+ rows +3 shards", done.stdout)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "elsewhere"], (
        "a build leaves nothing else behind"
    )


def test_no_trace_of_the_machine(cohort: Path, release: Path) -> None:
    for path in release.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert str(cohort).encode() not in data
            assert socket.gethostname().encode() not in data or len(socket.gethostname()) < 5
            assert str(Path.home()).encode() + b"/" not in data


def test_options(cohort: Path, tmp_path: Path) -> None:
    done = run("build", cohort, tmp_path / "r", "--configs", "annotations", "--wording", "zero_shot")
    assert done.returncode == 0, done.stderr
    made = read_manifest(tmp_path / "r")
    assert (made.questions, made.wording, made.margin_mm, made.restricted) == (
        "paper62",
        "zero_shot",
        0.0,
        False,
    )
    rows = pq.read_table(tmp_path / "r" / made.shards[0].path).to_pylist()
    assert {r["category"] for r in rows}.isdisjoint({"periarticular"})
    assert all(r["question"]["instruction"] is None and r["question"]["zero_shot"] for r in rows)
    assert (
        yaml.safe_load((tmp_path / "r" / "README.md").read_text().split("---")[1])["license"] == "cc-by-4.0"
    )


def test_annotations_need_no_image(cohort: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(cohort / "annotations.jsonl", bare)
    done = run("build", bare, tmp_path / "r")
    assert done.returncode == 0, done.stderr
    assert read_manifest(tmp_path / "r").configs == ["annotations"]


def test_card(release: Path, manifest: Manifest) -> None:
    _, front, body = (release / "README.md").read_text().split("---\n", 2)
    card = yaml.safe_load(front)
    assert [c["config_name"] for c in card["configs"]] == manifest.configs
    assert card["configs"][0]["default"] is True
    assert card["license"] == "other"
    assert "extra_gated_prompt" in card
    for info in card["dataset_info"]:
        rows = {s["name"]: s["num_examples"] for s in info["splits"]}
        assert rows == {split: sum(x.rows for x in manifest.of(info["config_name"], split)) for split in rows}
    for words in ("Limits", "pseudo-labels", "states the answer", "cc-by-4.0", "bml_size"):
        assert words in body


def test_croissant(release: Path) -> None:
    import mlcroissant as mlc

    dataset = mlc.Dataset(jsonld=release / "croissant.json")
    assert not dataset.metadata.issues.errors
    assert not dataset.metadata.issues.warnings
    assert {r.id for r in dataset.metadata.record_sets} == {"cropped", "full", "embeddings", "annotations"}


def test_shard_counts() -> None:
    assert [shard_count(n, 32) for n in (1, 32, 33, 65, 128, 129, 257, 2048)] == [1, 1, 2, 4, 4, 8, 16, 64]
    assert shard_count(5977, VOLUMES_PER_SHARD["cropped"]) == 384
    assert shard_count(3, 1) == 3
    assert all(shard_count(n, 32) % 64 == 0 for n in range(2049, 9000, 37))


def test_what_other_options_left_is_not_reused(
    cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r"
    with monkeypatch.context() as patch:
        patch.setattr(rel.Build, "_finish", lambda *_: (_ for _ in ()).throw(RuntimeError))
        with pytest.raises(RuntimeError):
            build(Cohort(cohort), out, ["annotations"], Options("paper62"))
    build(Cohort(cohort), out, ["annotations"], Options("all69"))
    assert sum(s.rows for s in read_manifest(out).shards) == sum(read_manifest(out).quintuples.values())


def test_embeddings_of_any_kind(cohort: Path, tmp_path: Path) -> None:
    """float16 or bfloat16, each volume with its own number of tokens, bit for bit."""
    mine = tmp_path / "cohort"
    mine.mkdir()
    shutil.copy(cohort / "annotations.jsonl", mine)
    entries = Cohort(mine).entries()
    finite = 0xBFFF  # without the highest bit of the exponent no number of either kind is NaN or infinite
    bits = {
        e.volume_id: np.random.default_rng(i).integers(0, 2**16, (3 + i, 5), dtype=np.uint16) & finite
        for i, e in enumerate(entries)
    }
    with h5py.File(mine / "embeddings.h5", "w") as file:
        for i, (name, array) in enumerate(bits.items()):
            if i % 2:
                file[name] = array.view(np.float16)
            else:
                file[name] = array
                file[name].attrs["dtype"] = "bfloat16"
    made = build(Cohort(mine), tmp_path / "r", ["embeddings"])
    rows = [row for s in made.shards for row in pq.read_table(tmp_path / "r" / s.path).to_pylist()]
    assert {r["embedding"]["dtype"] for r in rows} == {"float16", "bfloat16"}
    for row in rows:
        e = row["embedding"]
        assert np.array_equal(
            np.frombuffer(e["bytes"], np.uint16).reshape(e["tokens"], e["width"]), bits[row["volume_id"]]
        )


def test_a_volume_that_no_question_is_about_is_in_no_config(cohort: Path, tmp_path: Path) -> None:
    """Ungraded, or graded for another set: in no config and no count, but named, and not one of the bad volumes."""
    mine = tmp_path / "cohort"
    shutil.copytree(cohort, mine)
    known = [json.loads(line) for line in (mine / "annotations.jsonl").read_text().splitlines()]
    known[0]["grades"] = {}
    known[1]["grades"] = {
        q: g for q, g in known[1]["grades"].items() if QUESTIONS[q].category.id == "periarticular"
    }
    (mine / "annotations.jsonl").write_text("".join(json.dumps(a) + "\n" for a in known))
    next(
        p
        for p in (mine / "images").rglob("*.nii.gz")
        if f"{known[0]['study']}_{known[0]['series']}" in p.name
    ).unlink()
    for questions, count in (("paper62", 2), ("all69", 1)):
        done = run("build", mine, tmp_path / questions, "--questions", questions)
        assert done.returncode == 0, done.stderr
        left_out = {a["volume_id"] for a in known[:count]}
        made = read_manifest(tmp_path / questions)
        assert made.quarantined == dict.fromkeys(sorted(left_out), "K010")
        assert sum(made.volumes.values()) == len(known) - count
        assert all(name in done.stdout for name in left_out)
        assert not validate(str(tmp_path / questions))
        for config in made.configs:
            held = {
                v
                for s in made.of(config)
                for v in pq.read_table(tmp_path / questions / s.path, columns=["volume_id"])[
                    "volume_id"
                ].to_pylist()
            }
            assert held == {a["volume_id"] for a in known} - left_out
    entry = next(e for e in Cohort(mine).entries() if not e.questions)
    assert not list(
        rows(read_sources(Cohort(mine), Member(entry), ["embeddings"]), "embeddings", Options())
    ), "nor in the builder's rows"


def test_json_schemas_travel_with_the_release(release: Path) -> None:
    for path in (ROOT / "schema").glob("*.json"):
        assert json.loads((release / "schema" / path.name).read_text()) == json.loads(path.read_text())
