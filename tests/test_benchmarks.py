"""The comparison of loaders runs, counts what each gives, and says so when a loader loses or changes something."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    from loaders_report import BEGIN, END, write_report

    page = out.with_suffix(".md")
    page.write_text(f"# Title\n{BEGIN}\nold\n{END}\nafter\n")
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


def test_the_page_is_that_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from loaders_report import table

    docs = FOLDER.parent / "docs"
    assert table(json.loads((docs / "bench" / "loaders.json").read_text())) in (docs / "benchmarks.md").read_text()
