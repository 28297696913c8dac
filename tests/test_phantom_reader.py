"""The benchmark of the synthetic knees runs on small ones, and says so where they are too easy or too hard."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import reader
from pages import END, begin, put

from reasonknee.questions import CATEGORIES


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return reader.run(patients=10, shape=(24, 48, 48), workers=1)


def test_every_category_is_read(results: dict[str, Any], tmp_path: Path) -> None:
    assert list(results["categories"]) == [c.id for c in CATEGORIES]
    for found in (*results["categories"].values(), *results["lesions"].values()):
        gain, low, high = found["image"]
        assert low <= gain <= high
        assert 0 <= found["majority"] + gain <= 1
    assert 0 < results["constant_box"]["mean"] < 0.55
    page = tmp_path / "page.md"
    page.write_text(f"before\n{begin('reader.py')}\n{END}\nafter\n")
    put(page, "reader.py", reader.page_text(results))
    assert "| **cartilage** |" in page.read_text()


def test_limits_are_judged(results: dict[str, Any]) -> None:
    good = copy.deepcopy(results)
    for found in (*good["categories"].values(), *good["lesions"].values()):
        found |= {"image": [0.1, 0.05, 0.15], "box": [0.0, 0.0, 0.0], "kappa": 0.5}
    assert list(reader.misses(good)) == []
    good["lesions"]["acl.complete_tear"]["kappa"] = 1.0
    good["lesions"]["bml.size"]["box"] = [0.2, 0.1, 0.3]
    good["categories"]["cartilage"]["image"] = [0.01, -0.01, 0.03]
    good["constant_box"]["mean"] = 0.7
    assert len(list(reader.misses(good))) == 4


def test_ridge_finds_what_is_linear_and_nothing_in_noise() -> None:
    rng = np.random.default_rng(0)
    rows, noise = rng.normal(size=(200, 6)), rng.normal(size=(200, 6))
    targets = rows @ rng.normal(size=(6, 2))
    held_out = np.arange(150) % 5 == 0
    for features, low, high in ((rows, 0.98, 1.0), (noise, -1.0, 0.3)):
        found = reader.ridge(features[:150], targets[:150], features[150:], held_out)
        assert low <= np.corrcoef(found[:, 0], targets[150:, 0])[0, 1] <= high
