"""What changed between two releases of SGMRI-VQA, and the version step that it asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import command

from reasonknee.sgmri.release import Build
from reasonknee.validation.sgmri_diff import compare

Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows(sgmri: Path) -> list[Row]:
    return [json.loads(line) for line in (sgmri / "qa/qa.jsonl").read_text().splitlines()]


def built(rows: list[Row], out: Path, version: str) -> Path:
    (out / "qa").mkdir(parents=True)
    (out / "qa/qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Build(out / "qa", out / "release", release_version=version).run()
    return out / "release"


def test_each_part_asks_for_its_step(
    rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = built(rows, tmp_path / "old", "1.0.0")
    counted = next(n for n, row in enumerate(rows) if row["task"] == "counting")
    answer = rows[counted]["answer"] | {"count": 77, "text": "77"}
    worded = [*rows[:-1], rows[-1] | {"question": "What is shown?"}]
    corrected = [row | {"answer": answer} if n == counted else row for n, row in enumerate(rows)]
    for version, new, part, needed in (
        ("1.0.1", worded, "text", "patch"),
        ("1.1.0", corrected, "answers", "minor"),
        ("2.0.0", rows[:-1], "removed", "major"),
        ("1.2.0", rows[:-1], "removed", "major"),
    ):
        release = built(new, tmp_path / version / str(len(new)), version)
        found = compare(old, release)
        assert (found.needed, found.enough) == (needed, version != "1.2.0")
        assert {name for name, count in found.rows.items() if count} == {part}
    capsys.readouterr()
    assert command("diff", old, release) == 3
    assert "1 removed" in capsys.readouterr().out
    assert compare(old, old).needed == "none"


def test_pixels_and_configs(sgmri: Path, tmp_path: Path) -> None:
    more = ("--images", sgmri / "scans/images", "--rendering", "volume", "--release-version", "1.1.0")
    assert command("sgmri", "build", sgmri / "qa", tmp_path / "bright", *more) == 0
    found = compare(sgmri / "release", tmp_path / "bright")
    assert (found.needed, found.declared) == ("minor", "minor")
    assert found.rows["voxels"] > 8
    assert "minor: rendering was slice, is volume" in found.reasons
    assert command("publish", tmp_path / "bright", tmp_path / "words") == 0
    assert command("diff", sgmri / "release", tmp_path / "words") == 3  # images are gone


def test_knees_are_not_compared_with_frames(
    sgmri: Path, few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("diff", few, sgmri / "release") == 3
    assert "M011" in capsys.readouterr().err
