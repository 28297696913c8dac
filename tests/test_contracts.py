"""What `load_dataset` and the builder return, on three versions of `datasets`, is what the cohort holds: every question, every config."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import nibabel as nib
import numpy as np
import pytest
from conftest import ROOT
from hub import Hub

from reasonknee.questions import ATTRIBUTES, QUESTIONS

SCRIPT = Path(__file__).parent / "contracts" / "rows.py"
PINNED = Path(sys.executable)
OLDER = {v: ROOT / f".venv-datasets-{v}" / "bin" / "python" for v in ("3.6.0", "4.8.5")}
MARGIN = 3.0


@lru_cache(maxsize=1)
def expected(cohort: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The rows of each config and split, worked out here from the files of the cohort with nibabel, h5py and json alone."""
    configs: dict[str, dict[str, list[dict[str, Any]]]] = {
        c: {} for c in ("cropped", "full", "embeddings", "annotations")
    }
    split_names = {"train": "train", "val": "validation", "test": "test"}
    wanted = {}
    for name, split in split_names.items():
        for row in csv.DictReader((cohort / "splits" / f"{name}.csv").open()):
            wanted[f"{row['patient_id']}-{row['time'].lower()}-{row['knee_side']}"] = (split, row)
    embeddings = h5py.File(cohort / "embeddings.h5")
    for line in (cohort / "annotations.jsonl").read_text().splitlines():
        known = json.loads(line)
        split, row = wanted.pop(known["volume_id"])
        assert known["split"] == split
        image = nib.load(cohort / row["image_filepath"].removeprefix("../data/"))
        array = np.asanyarray(image.dataobj).transpose(2, 1, 0)
        about = {
            k: known[k]
            for k in (
                "volume_id",
                "patient",
                "visit",
                "side",
                "study",
                "series",
                "shape",
                "spacing",
                "orientation",
            )
        }
        told = known.get("provenance", {})
        about["provenance"] = {k: told.get(k) for k in ("grades", "project", "package", "image_sha256")}
        quintuples: list[dict[str, Any]] = []
        crops: list[dict[str, Any]] = []
        for q in QUESTIONS.values():
            if q.id not in known["grades"]:
                continue
            box = known["boxes"].get(q.region.id)
            quintuple = {
                "id": f"{known['volume_id']}-{q.id}",
                "question_id": q.id,
                "category": q.category.id,
                "region": q.region.id,
                "box": box,
                "box_source": "rule"
                if box and q.region.portion and told.get("boxes") == "mask"
                else told.get("boxes")
                if box
                else None,
                "published_reasoning": known.get("reasoning", {}).get(q.id),
                "second_readings": [
                    {"project": reading["project"], "attribute": a, "grade": grade}
                    for reading in known.get("readings", [])
                    for a, grade in reading["grades"].get(q.id, {}).items()
                    if grade is not None
                ],
                "grades": {a: known["grades"][q.id].get(a) for a in ATTRIBUTES},
            }
            quintuples.append(quintuple)
            crop = volume = None
            if box:
                crop = {}
                for axis in "zyx":
                    margin = math.ceil(MARGIN / known["spacing"][axis])
                    crop |= {
                        f"{axis}0": max(0, box[f"{axis}0"] - margin),
                        f"{axis}1": min(known["shape"][axis], box[f"{axis}1"] + margin),
                    }
                part = array[crop["z0"] : crop["z1"], crop["y0"] : crop["y1"], crop["x0"] : crop["x1"]]
                corner = image.affine @ (crop["x0"], crop["y0"], crop["z0"], 1)
                volume = described(part, np.column_stack([image.affine[:, :3], corner]))
            configs["annotations"].setdefault(split, []).append({**about, **quintuple})
            crops.append({**about, **quintuple, "crop": crop, "volume": volume})
        configs["cropped"].setdefault(split, []).extend(sorted(crops, key=section))
        tokens, made = embeddings[known["volume_id"]][:], embeddings[known["volume_id"]].attrs
        vector = {
            "dtype": "float16",
            "tokens": tokens.shape[0],
            "width": tokens.shape[1],
            "bytes": hashlib.sha256(tokens.tobytes()).hexdigest(),
            "grid": dict(zip("thw", made["grid"].tolist(), strict=True)),
            "slices": made["slices"].tolist(),
            "fps": None,
            "window": dict(zip(("low", "high"), made["window"].tolist(), strict=True)),
            "model": embeddings.attrs["model"],
            "revision": None,
            "versions": embeddings.attrs["versions"],
        }
        configs["full"].setdefault(split, []).append(
            {**about, "volume": described(array, image.affine), "quintuples": quintuples}
        )
        configs["embeddings"].setdefault(split, []).append(
            {**about, "embedding": vector, "quintuples": quintuples}
        )
    assert not wanted, "the split tables name volumes without annotations"
    return configs


def section(row: dict[str, Any]) -> int:
    """Rows of a volume come by these parts of the knee in `cropped`, in the table's order within each."""
    words = row["region"].split("_")
    bones = ["patella", "femur", "tibia"]
    return bones.index(words[0]) if words[0] in bones else 3 if "meniscus" in words else 4


def described(array: np.ndarray, affine: np.ndarray) -> dict[str, Any]:
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return {
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "sha256": digest,
        "affine": affine.tolist(),
    }


def check(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted, strict=True):
        check_row(got, want)


def check_row(got: dict[str, Any], want: dict[str, Any]) -> None:
    words = {"question", "reasoning"} if "question_id" in want else set()
    assert set(got) == set(want) | words
    for name, value in want.items():
        if name == "quintuples":
            check(got[name], value)
        elif name == "volume" and value:
            assert np.allclose(got[name].pop("affine"), affine := value["affine"], atol=1e-4)
            assert {**got[name], "affine": affine} == value
        else:
            assert got[name] == value, name
    if words:
        q = QUESTIONS[want["question_id"]]
        assert q.place in got["question"]["zero_shot"]
        assert q.lesion.appearance in got["question"]["instruction"]
        assert [s.rsplit("grade ", 1)[1] for s in got["reasoning"][2:]] == [
            f"{want['grades'][a.id]}." for a in q.attributes if want["grades"][a.id] is not None
        ]
        assert "box" not in got["question"]["region"]


def opened(python: Path, env: dict[str, str], folder: Path, *args: object) -> dict[str, Any]:
    if not python.is_file():
        pytest.fail(f"no environment at {python}: `make test` makes it")
    out = folder / "rows.json"
    done = subprocess.run(
        [python, SCRIPT, args[0], out, *map(str, args[1:])],
        cwd=folder,
        env={**env, "USE_TORCH": "0"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


@pytest.fixture
def cohort(eight: Path) -> Path:
    return eight / "cohort"


@pytest.fixture
def release(eight: Path) -> Path:
    return eight / "release"


@pytest.mark.parametrize("version", ["4.8.5", "pinned"])
def test_release_from_the_hub(version: str, cohort: Path, release: Path, tmp_path: Path) -> None:
    with Hub({"rajpurkarlab/3DReasonKnee": release}) as hub:
        found = opened(OLDER.get(version, PINNED), hub.env(tmp_path / "home"), tmp_path, "release")
        assert any(r.status == 206 for r in hub.log), "streaming asked for no ranges"
    for config, splits in expected(cohort).items():
        for mode in ("map", "stream"):
            assert set(found[f"{config} {mode}"]) == set(splits)
            for split, wanted in splits.items():
                check(found[f"{config} {mode}"][split], wanted)


# the oldest and the newest; what lies between is slow
@pytest.mark.parametrize("version", ["3.6.0", pytest.param("4.8.5", marks=pytest.mark.slow), "pinned"])
def test_builder(version: str, cohort: Path, tmp_path: Path) -> None:
    with Hub({}) as hub:  # nothing to serve: the builder must not ask
        found = opened(OLDER.get(version, PINNED), hub.env(tmp_path / "home"), tmp_path, "builder", cohort)
        assert not hub.log
    for config, splits in expected(cohort).items():
        for mode in ("map", "stream", "num_proc"):
            for split, wanted in splits.items():
                key = "id" if "id" in wanted[0] else "volume_id"
                check(
                    found[f"{config} {mode}"][split],
                    sorted(wanted, key=lambda r: r[key]) if mode == "num_proc" else wanted,
                )
        first, second = found["cache folders"]["train"]
        assert first != second, "corrected annotations would be answered with the old rows"
        assert found[f"{config} shards"]["train"] == len(expected(cohort)["full"]["train"]), (
            "a volume is the unit that workers share out"
        )


def test_loading_script(cohort: Path, tmp_path: Path) -> None:
    with Hub({}) as hub:
        found = opened(
            OLDER["3.6.0"], hub.env(tmp_path / "home"), tmp_path, "script", cohort, ROOT / "3DReasonKnee.py"
        )
    for config, splits in expected(cohort).items():
        for mode in ("map", "stream"):
            for split, wanted in splits.items():
                check(found[f"{config} {mode}"][split], wanted)
