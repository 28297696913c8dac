"""The conformance kit and the stamp: an installation, or another scorer, is checked against golden scores."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, command, run

from reasonknee.errors import DataError, UsageError
from reasonknee.layout.scores import MODES
from reasonknee.questions import CATEGORIES
from reasonknee.scoring import protocol, score, selftest
from reasonknee.scoring.measures import BIN_NAMES
from reasonknee.scoring.truth import read_truth


def test_this_installation_gives_the_golden_scores() -> None:
    done = run("selftest")
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = selftest.check()
    assert outcome.compared > 10_000
    assert f"{outcome.compared:,} of {outcome.compared:,} numbers" in done.stdout


def test_every_number_is_explained_to_a_clinician() -> None:
    """One screen each: every name of a number stands in a title or sentence of docs/numbers.md."""
    page = (ROOT / "docs" / "numbers.md").read_text()
    plain = {*MODES, *BIN_NAMES, *(c.id for c in CATEGORIES), "all", "difference"}

    def names(tree: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
        if isinstance(tree, dict) and "value" in tree:
            yield [name for name in path if name not in plain][-1]
        elif isinstance(tree, dict):
            for name, branch in tree.items():
                yield from names(branch, (*path, name))

    golden = selftest.golden_scores()
    golden["evidence"] = None
    assert {name for name in names(golden) if f"`{name}`" not in page} == set()
    screens = page.split("\n## ")[1:]
    assert max(len(screen.split()) for screen in screens) < 260, "one screen each"


def test_the_kit_is_small() -> None:
    assert sum(p.stat().st_size for p in protocol.KIT.rglob("*") if p.is_file()) < 300_000


def test_another_scorer_is_told_where_it_differs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command("selftest", "--out", tmp_path / "kit") == 0
    scores = score(
        tmp_path / "kit" / "predictions.jsonl", tmp_path / "kit" / "release", samples=selftest.SAMPLES
    )
    golden = json.loads((tmp_path / "kit" / "scores.json").read_text())
    assert golden["averages"] == scores.scores["averages"]
    part = {"averages": json.loads(json.dumps(golden["averages"]))}  # a scorer need not know everything
    (tmp_path / "mine.json").write_text(json.dumps(part))
    assert command("selftest", "--scores", tmp_path / "mine.json") == 0
    part["averages"]["attribute_micro"]["strict"]["value"] += 1e-9
    (tmp_path / "mine.json").write_text(json.dumps(part))
    capfd.readouterr()
    assert command("selftest", "--scores", tmp_path / "mine.json") == 3
    assert "averages.attribute_micro.strict.value" in capfd.readouterr().out
    (tmp_path / "none.json").write_text('{"accuracy": 1}')
    for file in ("none.json", "nothing.json"):
        with pytest.raises(DataError, match="S040"):
            selftest.check_file(tmp_path / file)
    with pytest.raises(UsageError, match="S041"):
        selftest.copy_kit(tmp_path / "kit")


def test_the_protocol_is_the_recorded_one() -> None:
    """If this fails, what is asked, worded, averaged or read has changed. That is another version: raise `VERSION`, then `make gen` (before the first publication, `make gen` alone), and the kit anew."""
    record = json.loads(protocol.RECORD.read_text())
    assert record["versions"][protocol.VERSION] == protocol.parts()


def test_a_score_carries_the_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    stamp = score(selftest.PREDICTIONS, selftest.RELEASE, samples=0).scores["protocol"]
    assert stamp == protocol.stamp(read_truth(selftest.RELEASE, "test"))
    assert (stamp["name"], stamp["version"]) == ("ReasonKnee-Bench", protocol.VERSION)
    assert "averages" not in stamp["differs"]
    part = score(selftest.PREDICTIONS, selftest.RELEASE, samples=0, questions=("acl",)).scores["protocol"]
    assert part["truth"] != stamp["truth"]
    assert part["digest"] == stamp["digest"]
    truth = read_truth(selftest.RELEASE, "test")
    truth.grades[3, 0] = 1 - truth.grades[3, 0]  # a corrected grade
    assert protocol.stamp(truth)["truth"] != stamp["truth"]
    monkeypatch.setattr(protocol, "AVERAGES", ("overall",))
    other = score(selftest.PREDICTIONS, selftest.RELEASE, samples=0).scores
    assert other["protocol"]["differs"] == sorted({*stamp["differs"], "averages"})
    assert other["protocol"]["digest"] != stamp["digest"]
    assert any("differs from ReasonKnee-Bench 1.0 in its averages" in w for w in other["warnings"])


def test_a_published_version_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for published, changes in ((["1.0"], False), ([], True)):
        (tmp_path / "p.json").write_text(
            json.dumps({"published": published, "versions": {"1.0": {"parser": "x"}}})
        )
        monkeypatch.setattr(protocol, "RECORD", tmp_path / "p.json")
        protocol.write_record()
        recorded = json.loads((tmp_path / "p.json").read_text())["versions"]["1.0"]
        assert (recorded == protocol.parts()) is changes
