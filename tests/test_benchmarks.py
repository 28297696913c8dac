"""The benchmarks run on small knees: loaders lose and change nothing, the build is measured, and the pages are those of the results."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from reasonknee.regions import LABELS

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "loaders.json"
    command = [sys.executable, str(FOLDER / "loaders.py"), "--quick", "--data", str(out.parent / "data"), "--out", str(out)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return out, json.loads(out.read_text())


def test_every_sample_is_counted_and_the_same_in_both_loaders(results):
    _, found = results
    assert len(found["checked"]) == 6
    assert set(found["checked"].values()) == {"same"}
    counts = {(row["protocol"], row["loader"]): row["samples"] for row in found["rows"]}
    ours, part = {"cropped": 2 * 62, "full": 2 * 62, "once": 2}, {"cropped": 32, "full": 32, "once": 2}  # upstream's way is timed on a part
    assert counts == {(protocol, name): n for name, of in (("Ours", ours), ("Upstream", part)) for protocol, n in of.items()}


def test_a_chart_and_a_table_come_out(results, monkeypatch):
    out, found = results
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.syspath_prepend(str(FOLDER))
    from loaders_report import write_report
    from pages import END, begin

    page = out.with_suffix(".md")
    page.write_text(f"# Title\n{begin('loaders.py')}\nold\n{END}\nafter\n")
    write_report(found, out, page)
    text = page.read_text()
    assert text.startswith("# Title\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "upstream's way" in text


def test_a_lost_or_changed_sample_is_told(results, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from loaders import _compared

    truth = {"a": [1.0, 2.0], "b": [3.0, 4.0]}
    assert _compared(dict(truth), truth, {"a", "b"}, False) == "same"
    assert _compared({"a": [1.0, 2.0]}, truth, {"a", "b"}, False) == "1 of 2 samples"
    assert _compared({**truth, "b": [3.0, 4.1]}, truth, {"a", "b"}, False) == "values differ"


def test_the_build_is_measured_against_its_limit_and_over_sizes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from build_report import page_text
    from pages import END, begin

    out, page = tmp_path / "build.json", tmp_path / "scale.md"
    page.write_text(f"{begin('build.py')}\n{END}\n")
    command = [
        sys.executable,
        str(FOLDER / "build.py"),
        "--shape",
        "16,40,40",
        "--volumes",
        "2,4",
        "--rounds",
        "1",
        "--out",
        str(out),
        "--page",
        str(page),
    ]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(out.read_text())
    assert found["mask"]["labels"] == len(LABELS)
    voxels_mb = 16 * 40 * 40 * 2 / 1e6
    for size, volumes in zip(found["sizes"], (2, 4), strict=True):
        assert size["volumes"] == volumes
        assert size["limit"]["read_mb"] == pytest.approx(volumes * voxels_mb)
        assert size["limit"]["zstd_mb"] > volumes * voxels_mb, "each volume once, and its crops"
        assert size["limit"]["zstd_mb"] < 3 * volumes * voxels_mb, "a crop that questions share counts once"
        assert all(taken["cpu_seconds"] > 0 < taken["rss_mb"] for taken in size["workers"].values())
    assert page_text(found) in page.read_text()
    assert "4 over 2" in page.read_text()


@pytest.mark.parametrize(("name", "text", "page"), [("loaders", "table", "benchmarks.md"), ("build", "page_text", "scale.md")])
def test_the_page_is_that_of_the_results(monkeypatch, name, text, page):
    monkeypatch.syspath_prepend(str(FOLDER))
    docs, report = FOLDER.parent / "docs", importlib.import_module(f"{name}_report")
    results = json.loads((docs / "bench" / f"{name}.json").read_text())
    assert getattr(report, text)(results) in (docs / page).read_text()
