"""What an embedding was made of travels with it, from the attributes of HDF5 to the row; none is required."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from reasonknee.errors import DataError
from reasonknee.volumes.embeddings import EmbeddingFile, Making

NUMBERS = np.ones((4, 2), np.float16)


def made(path: Path, of_file: dict[str, Any], of_dataset: dict[str, Any]) -> Making:
    with h5py.File(path, "w") as file:
        file.attrs.update(of_file)
        file.create_dataset("a", data=NUMBERS).attrs.update(of_dataset)
    with EmbeddingFile(path) as opened:
        return opened.read("a").made


def test_none_is_required(tmp_path: Path) -> None:
    assert made(tmp_path / "e.h5", {}, {}) == Making()


def test_the_dataset_says_it_before_the_file(tmp_path: Path) -> None:
    common = {
        "model": "Qwen/Qwen2.5-VL-3B-Instruct",
        "revision": "1f2",
        "versions": "x 1",
        "window": [0, 400],
    }
    own = {"grid": (80, 28, 28), "slices": np.arange(0, 160, 2), "fps": 1.0, "window": (0.0, 350.5)}
    told = made(tmp_path / "e.h5", common, own)
    assert told == Making(
        {"t": 80, "h": 28, "w": 28},
        list(range(0, 160, 2)),
        1.0,
        {"low": 0.0, "high": 350.5},
        "Qwen/Qwen2.5-VL-3B-Instruct",
        "1f2",
        "x 1",
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grid", (1, 2)),
        ("grid", (0, 1, 1)),
        ("grid", "1,2,3"),
        ("slices", (-1,)),
        ("slices", ((1, 2), (3, 4))),
        ("slices", np.zeros(5000, int)),
        ("slices", (0.5,)),
        ("fps", float("nan")),
        ("window", (0.0,)),
        ("window", (0.0, float("inf"))),
        ("model", "a\nb"),
        ("model", "x" * 501),
        ("revision", ""),
        ("versions", 3),
    ],
)
def test_what_is_not_of_its_form_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(DataError, match="E009"):
        made(tmp_path / "e.h5", {}, {name: value})
