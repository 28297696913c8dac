"""`reasonknee validate` on releases of SGMRI-VQA: a sound one, and a folder of `sgmri_faults` for each way to be wrong."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import command
from jsonschema import Draft202012Validator

from reasonknee import schema
from reasonknee.layout.manifest import FILE_NAME
from reasonknee.layout.parquet import writer_settings
from reasonknee.layout.sgmri import CONFIGS, SGMRI, read_qa_manifest
from reasonknee.validation import validate
from reasonknee.validation.report import as_text

FOLDER = Path(__file__).parent / "sgmri_faults"
FAULTS = sorted(p.parent.name for p in FOLDER.glob("*/fault.json"))
Row = dict[str, Any]


@pytest.fixture(scope="module")
def clean(sgmri: Path) -> Path:
    """Four volumes of each anatomy, in all configs."""
    return sgmri / "release"


def spoil(clean: Path, folder: Path, fault: Row) -> None:
    """A copy that is wrong as the fault says, sealed again so that nothing else is."""
    shutil.copytree(clean, folder)
    manifest = read_qa_manifest(folder)
    kept = fault.get("only", list(CONFIGS))
    shards = []
    copied = _copied(folder, fault["copy_of"]) if "copy_of" in fault else ("", {})
    patients = {s: _rows(folder / manifest.of("qa", s)[0].path)[0]["patient"] for s in ("train", "test")}
    for shard in manifest.shards:
        path = folder / shard.path
        if shard.config not in kept:
            shutil.rmtree(path.parent, ignore_errors=True)
            continue
        if (
            shard.split == "train"
            and {"patient", "image", "rows", "twice", "together", "copy_of"} & fault.keys()
        ):
            rows = _rows(path)
            for row in (r for r in rows if r["volume_id"] == copied[0]):
                if shard.config == "volumes":
                    row["image"] = copied[1]
                for q in row.get("questions", [row]):
                    q["shape"] = {name: copied[1][name] for name in q["shape"]}
            _change(rows, shard.config, fault, patients)
            rows += rows[:1] if fault.get("twice") == shard.config else []
            _write(path, rows, shard.config, fault.get("together") == shard.config)
        size, claimed = path.stat().st_size, shard.rows + fault.get("claimed", {}).get(shard.path, 0)
        rows_there = pq.read_metadata(path).num_rows if "twice" in fault else claimed
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shards.append(replace(shard, bytes=size, sha256=digest, rows=rows_there))
    readme = folder / "README.md"
    text = readme.read_text()
    if kept != list(CONFIGS):
        from reasonknee.sgmri.release import card

        text = card(replace(manifest, shards=tuple(shards)))
    if "card" in fault:
        text = text.replace(*fault["card"])
    readme.write_text(text)
    files = {"README.md": hashlib.sha256(text.encode()).hexdigest()}
    said = json.loads(replace(manifest, shards=tuple(shards), files=files).to_json())
    for name, value in fault.get("manifest", {}).items():
        _set(said, name, value)
    (folder / FILE_NAME).write_text(json.dumps(said, indent=1) + "\n")
    if "byte" in fault:
        path = folder / manifest.of(fault["byte"])[0].path
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)


def _copied(folder: Path, split: str) -> tuple[str, Row]:
    """A training volume, and the image of another one, of that split, that holds its boxes, too."""
    manifest = read_qa_manifest(folder)
    own, others = (_rows(folder / manifest.of("volumes", s)[0].path) for s in ("train", split))
    return next(
        (a["volume_id"], b["image"])
        for a, b in product(own, others)
        if a["volume_id"] != b["volume_id"]
        and all(b["image"][n] >= a["image"][n] for n in ("frames", "height", "width"))
    )


def _rows(path: Path) -> list[Row]:
    return list(pq.ParquetFile(path).read().to_pylist())


def _write(path: Path, rows: list[Row], config: str, together: bool = False) -> None:
    """A row group for each volume, as a build writes them; `qa` has one for all, as a fault may."""
    arrow = SGMRI.arrow_schema(config)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault("" if config == "qa" or together else row["volume_id"], []).append(row)
    with pq.ParquetWriter(path, arrow, **writer_settings(config, SGMRI)) as writer:
        for group in groups.values():
            writer.write_table(pa.Table.from_pylist(group, arrow), row_group_size=len(group))


def _change(rows: list[Row], config: str, fault: Row, patients: dict[str, str]) -> None:
    if "patient" in fault:
        volume = rows[0]["volume_id"]
        for row in (r for r in rows if r["volume_id"] == volume):
            for each in (row, *row.get("questions", [])):
                each["patient"] = patients["test"]
    image = fault.get("image", {})
    if image.get("config") == config:
        shown = rows[0]["image"]
        shown |= image.get("set", {})
        if "flip" in image:
            data = bytearray(shown["bytes"])
            data[image["flip"]] ^= 1
            shown["bytes"] = bytes(data)
        if "zeros" in image:
            shown["bytes"] = bytes(len(shown["bytes"]))
    change = fault.get("rows", {})
    if change and config in change.get("configs", CONFIGS):
        questions = [q for row in rows for q in row.get("questions", [row])]
        chosen = [q for q in questions if all(_get(q, k) == v for k, v in change["where"].items())]
        first = min(chosen, key=lambda q: q["id"], default=None)
        for q in (q for q in chosen if first is not None and q["id"] == first["id"]):
            for name, value in change["set"].items():
                _set(q, name, value)


def _get(row: Any, name: str) -> Any:
    for part in name.split("."):
        row = row[int(part) if part.isdecimal() else part]
    return row


def _set(row: Any, name: str, value: Any) -> None:
    *way, last = name.split(".")
    place = _get(row, ".".join(way)) if way else row
    place[int(last) if last.isdecimal() else last] = value


def test_a_built_release_is_sound(clean: Path) -> None:
    found = validate(clean, canonical=True)
    assert found.as_dict()["findings"] == []
    assert validate(clean, quick=True).as_dict()["findings"] == []
    assert command("validate", clean) == 0


def test_a_copy_that_is_only_sealed_again_is_sound(clean: Path, tmp_path: Path) -> None:
    spoil(
        clean,
        tmp_path / "r",
        {"rows": {"where": {"level": "slice"}, "set": {"first_frame": 0}}, "only": ["qa", "volumes"]},
    )
    assert validate(tmp_path / "r").as_dict()["findings"] == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fires_exactly_its_check(name: str, clean: Path, tmp_path: Path) -> None:
    fault = json.loads((FOLDER / name / "fault.json").read_text())
    spoil(clean, tmp_path / "r", fault)
    found = validate(tmp_path / "r")
    text = as_text(found, "r")
    assert set(found.groups) == {name.split("-")[0], *fault.get("also", [])}, text
    for words in fault["says"]:
        assert words in text


def test_rows_follow_the_committed_schemas(clean: Path) -> None:
    derived = {name: schema.text(s) for name, s in schema.derive_sgmri().items()}
    there = {f"sgmri/{p.name}": p.read_text() for p in (schema.FOLDER / "sgmri").glob("*.json")}
    assert there == derived, "run `make gen`"
    assert schema.validator("sgmri/manifest").is_valid(json.loads((clean / FILE_NAME).read_text()))
    row = _rows(clean / read_qa_manifest(clean).of("qa")[0].path)[0]
    valid = Draft202012Validator(schema.load("sgmri/qa")).is_valid
    assert valid(row)
    assert not valid(row | {"task": "guessing"})
    assert not valid(row | {"answer": row["answer"] | {"text": None}})
