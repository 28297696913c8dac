"""The paper's tables from any release: every form says the same, and text from elsewhere stays text."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from conftest import command
from test_scoring import spoiled, written

from reasonknee.errors import UsageError
from reasonknee.layout import Manifest
from reasonknee.report import published
from reasonknee.report.tables import write_tables
from reasonknee.scoring import score
from reasonknee.scoring.measures import TABLE2
from reasonknee.scoring.truth import NONE, TABLE, read_truth

PLANTED = "=cmd|' /C calc'!A0 <script>alert(1)</script> 50%_of & $x$ [2em] *"


@pytest.fixture(scope="module")
def written_tables(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    truth = read_truth(release, "train")
    scores = score(written(folder, spoiled(truth, 3)), release, "train", samples=10, model=PLANTED).scores
    (folder / "scores.json").write_text(json.dumps(scores))
    assert command("tables", release, folder, "--out", folder / "out") == 0
    return folder / "out"


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_files(written_tables: Path) -> None:
    assert {p.name for p in written_tables.iterdir()} == {
        "table1.csv", "table2.csv", "table3.csv", "figure4a.csv", "tables.md", "tables.tex", "tables.html",
        ".reasonknee",
    }  # fmt: skip


def test_table_1_counts_the_release(written_tables: Path, manifest: Manifest) -> None:
    (row,) = rows(written_tables, "table1")
    assert row["volumes"] == f"{sum(manifest.volumes.values()):,}"
    assert row["quintuples"] == f"{sum(manifest.quintuples.values()):,}"
    assert row["questions"] == "69"
    assert "synthetic" in row["dataset"]


def test_tables_2_and_3_mark_what_is_published(written_tables: Path) -> None:
    scores = json.loads((written_tables.parent / "scores.json").read_text())
    two = rows(written_tables, "table2")
    ours = [row for row in two if row["source"] == "ours"]
    assert ours[0][""].lstrip("'").startswith(PLANTED)
    for column in TABLE2:
        value = scores["diagnosis"]["table2"][column]["accuracy"]["strict"]["value"]
        assert ours[0][column] == f"{value:.3f}"
    assert [row[""] for row in two if row["source"] == "published"] == [name for name, _ in published.TABLE2]
    assert [row["source"] for row in rows(written_tables, "table3")].count("published") == len(
        published.TABLE3
    )


def test_figure_4a_is_the_distribution_of_grades(written_tables: Path, release: Path) -> None:
    truths = [read_truth(release, split) for split in ("train", "validation", "test")]
    for row in rows(written_tables, "figure4a")[::9]:
        grades = [
            int(g)
            for truth in truths
            for q, g in zip(truth.question, truth.grades[:, 0], strict=True)
            if TABLE[q].id == row["question"] and g != NONE
        ]
        assert int(row["n"]) == len(grades)
        assert row["grade 0"] == f"{grades.count(0) / len(grades):.3f}"


def test_bars_have_names_of_their_own_and_baselines_stand_once(written_tables: Path, release: Path) -> None:
    page = (written_tables / "tables.html").read_text()
    for picture in page.split("<svg")[1:]:
        labels = re.findall(r'text-anchor="end"[^>]*>([^<]*)</text>', picture.split("</svg>")[0])
        assert len(labels) == len(set(labels))
    folder = written_tables.parent
    assert command("tables", release, folder, folder, "--out", folder / "twice") == 0
    sources = [row["source"] for row in rows(folder / "twice", "table2")]
    assert (sources.count("ours"), sources.count("baseline")) == (4, 4)


def test_text_stays_text(written_tables: Path) -> None:
    page, latex = ((written_tables / f"tables.{form}").read_text() for form in ("html", "tex"))
    assert "<script" not in page
    assert page.count("<svg") >= 6
    assert r"\textless{}script\textgreater{}" in latex, "< is another sign in plain LaTeX"
    assert r"50\%\_of \& \$x\$ {[}2em{]} {*}" in latex, "a bracket after a line's end would be its argument"
    assert latex.count(r"\begin{longtable}") == 1, "figure 4a goes over pages"
    assert not any(line.startswith("=") for line in (written_tables / "table2.csv").read_text().splitlines())


def test_scores_of_other_grades_are_told(
    release: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scores = score(written(tmp_path, spoiled(read_truth(release, "test"), 3)), release, samples=0).scores
    for change, code in (({"split": "validation"}, "S053"), ({"split": "nowhere"}, "S052")):
        (tmp_path / "x.json").write_text(json.dumps({**scores, **change}))
        assert command("tables", release, tmp_path / "x.json", "--out", tmp_path / "out") == 3
        assert code in capfd.readouterr().err


def test_what_is_no_scores_file_is_told(
    release: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text('{"a": 1}')
    for path in (tmp_path / "x.json", tmp_path / "none.json"):
        assert command("tables", release, path, "--out", tmp_path / "out") == 3
        assert "S052" in capfd.readouterr().err


def test_a_file_of_the_users_is_not_written_over(release: Path, tmp_path: Path) -> None:
    """It used to be, without a word; what an earlier run wrote is replaced."""
    (tmp_path / "tables.md").write_text("mine")
    with pytest.raises(UsageError, match=r"R011.*tables\.md"):
        write_tables(release, [], tmp_path)
    assert (tmp_path / "tables.md").read_text() == "mine"
    (tmp_path / "tables.md").unlink()
    (tmp_path / "mine.md").write_text("mine")
    for _ in range(2):
        write_tables(release, [], tmp_path)
    assert (tmp_path / "mine.md").read_text() == "mine"
