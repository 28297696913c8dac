"""`reasonknee ask` with a model of this process: settings, controls, the journal, what a run takes."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, command
from eyes import Eyes
from hypothesis import given
from hypothesis import strategies as st

from reasonknee.boxes import Box
from reasonknee.errors import DataError, LockedError, StorageError, UsageError
from reasonknee.models import FORMS, Parameters, Reply, View
from reasonknee.models.command import Asking, ask_release
from reasonknee.models.controls import sentence
from reasonknee.models.engines import InProcess, load_model
from reasonknee.models.journal import Entry, Journal
from reasonknee.models.ledger import Prices, vision_tokens
from reasonknee.models.plan import Choice, Plan, Row, read_rows, sampled, widened
from reasonknee.models.run import run
from reasonknee.release.reader import Release
from reasonknee.scoring.predictions import stamp_line

VIEW = View("every:2", None, "percentile")


def asked(release: Path, out: Path, *options: object, model: str = "eyes") -> int:
    words = ["--model", model, "--interface", "eyes:load", "--slices", "every:2", "--out", out]
    return command("ask", release, *words, *options)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="session")
def rows(release: Path) -> list[Row]:
    return read_rows(Release(release), "test")


def plan_of(
    release: Path, rows: list[Row], model: Eyes | None = None, **choice: Any
) -> tuple[Plan, InProcess]:
    engine = InProcess(model or Eyes("eyes"))
    chosen = Choice(view=choice.pop("view", VIEW), **choice)
    return Plan(Release(release), rows, chosen, engine.about, engine.sized, engine.fitted), engine


# --- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["zero_shot", "instruction", "region", "locate_grade"])
def test_a_setting_from_a_release_to_a_score(
    release: Path, rows: list[Row], tmp_path: Path, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(release, tmp_path / "run", "--setting", setting) == 0
    predictions = tmp_path / "run" / "predictions.jsonl"
    assert [line["id"] for line in lines(predictions)] == [row.id for row in rows]
    assert command("score", predictions, release, "--bootstrap", 10) == 0
    told = capsys.readouterr().out
    assert "follows steps" in told
    made = f"asked: eyes (revision unknown), setting {setting}, view every:2"
    assert made in told.replace("\\", "")
    if setting == "zero_shot":  # and in the report, also where it is written again
        words = (predictions, release, "--bootstrap", 10, "--out", tmp_path / "scores")
        assert command("score", *words) == 0
        assert made in (tmp_path / "scores" / "report.html").read_text()
        again = tmp_path / "again.html"
        assert command("report", release, tmp_path / "scores", "--out", again) == 0
        assert made in again.read_text()
    with predictions.open("a") as file:
        file.write("\n")
    assert "changed after the run" in stamp_line(predictions)
    stamp = json.loads((tmp_path / "run" / "predictions.stamp.json").read_text())
    assert (stamp["setting"], stamp["view"]["slices"], stamp["answers"]) == (setting, "every:2", len(rows))


def test_locating_first_grades_what_lies_in_the_models_own_box(
    release: Path, rows: list[Row], tmp_path: Path
) -> None:
    assert asked(release, tmp_path / "run", "--setting", "locate_grade", "--margin", 2) == 0
    entries = {(e["id"], e["step"]): e for e in lines(tmp_path / "run" / "journal.jsonl")}
    predictions = {line["id"]: line for line in lines(tmp_path / "run" / "predictions.jsonl")}
    boxed = [row for row in rows if row.question.region.labels]
    assert len(entries) == len(rows) + len(boxed)
    for row in boxed:
        box, crop = (Box.from_dict(b) for b in (predictions[row.id]["box"], entries[row.id, "grade"]["crop"]))
        assert box.fits(row.knee.shape)
        margin = [math.ceil(2 / mm) for mm in row.knee.spacing]
        assert crop == box.grown((margin[0], margin[1], margin[2]), row.knee.shape)
        assert entries[row.id, "locate"]["crop"] is None
        assert "grades" not in entries[row.id, "locate"]["reply"]["text"]


def test_an_answer_without_a_box_falls_back_to_the_whole_volume_and_is_counted(
    release: Path, rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(release, tmp_path / "run", "--setting", "locate_grade", model="shy") == 0
    boxed = sum(bool(row.question.region.labels) for row in rows)
    assert f"{boxed:,} times no box: the whole volume is shown" in capsys.readouterr().out
    steps = Counter(e["step"] for e in lines(tmp_path / "run" / "journal.jsonl"))
    assert steps == {"locate": boxed, "grade": len(rows)}


def test_the_true_region_is_what_is_shown(release: Path, rows: list[Row], tmp_path: Path) -> None:
    plan, _ = plan_of(release, rows, setting="region", margin_mm=0.0)
    with Journal(tmp_path) as journal:
        jobs = list(plan.jobs("answer", journal))
    assert sum(len(job.requests) for job in jobs) == len(rows)
    assert len(jobs) < len(rows)  # questions on one region share its crop
    for job in jobs:
        for request in job.requests:
            assert request.outline is not None
            assert request.outline.crop == request.row.box
            assert ("nothing to locate" in request.text) == (request.row.box is not None)


def test_both_shows_the_volume_and_then_the_true_region(
    release: Path, rows: list[Row], tmp_path: Path
) -> None:
    """What `train --setting both` teaches can be asked."""
    plan, _ = plan_of(release, rows, setting="both", margin_mm=0.0)
    with Journal(tmp_path) as journal:
        jobs = list(plan.jobs("answer", journal))
    assert sum(len(job.requests) for job in jobs) == len(rows)
    for job in jobs:
        (box,) = {request.row.box for request in job.requests}
        assert job.showing is not None
        assert job.showing.crop is None
        assert (job.showing.region is None) == (box is None)
        for request in job.requests:
            assert request.outline is not None
            assert ("a part of it is shown by itself" in request.text) == (box is not None)
            if job.showing.region is not None:
                assert job.showing.region.crop == box == request.outline.inset
                assert vision_tokens(request.outline) > vision_tokens(replace(request.outline, inset=None))
    assert asked(release, tmp_path / "run", "--setting", "both", "--limit", 5) == 0
    assert command("score", tmp_path / "run" / "predictions.jsonl", release, "--bootstrap", 5) == 0


def test_a_model_that_was_given_the_box_is_asked_with_it(
    release: Path, rows: list[Row], tmp_path: Path
) -> None:
    plan, _ = plan_of(release, rows, arm="box_given", setting="instruction")
    with Journal(tmp_path) as journal:
        for row in rows:
            request = plan.request("answer", row, journal)
            assert request is not None
            said = f"The region is at {json.dumps(row.box.as_dict())}." if row.box else "The region is at"
            assert (said in request.text) == (row.box is not None)


def test_a_region_outside_another_patients_smaller_volume_is_not_shown(
    release: Path, rows: list[Row], tmp_path: Path
) -> None:
    others = [replace(rows[0].knee, id="9-other", patient="9", shape=(3, 8, 8))]
    engine = InProcess(Eyes("eyes"))
    choice = Choice("region", "swapped", VIEW)
    plan = Plan(Release(release), rows[:40], choice, engine.about, engine.sized, engine.fitted, others)
    with Journal(tmp_path) as journal:
        for row in rows[:40]:
            request = plan.request("answer", row, journal)
            assert request is not None
            assert request.outline is not None
            assert request.outline.crop is None
            assert ("nothing to locate" in request.text) is False
            assert bool(request.notes) == bool(row.question.region.labels)


def test_all_questions_of_a_volume_share_one_showing(release: Path, rows: list[Row], tmp_path: Path) -> None:
    plan, _ = plan_of(release, rows)
    with Journal(tmp_path) as journal:
        jobs = list(plan.jobs("answer", journal))
    assert [job.volume for job in jobs] == list(dict.fromkeys(row.knee.id for row in rows))


def test_zero_shot_asks_for_a_box_and_tells_nothing_of_looks(
    release: Path, rows: list[Row], tmp_path: Path
) -> None:
    """Upstream's zero-shot scripts load the guided questions, and none asks for a box."""
    plan, _ = plan_of(release, rows)
    with Journal(tmp_path) as journal:
        texts = {row: plan.request("answer", row, journal).text for row in rows}  # type: ignore[union-attr]
    for row, text in texts.items():
        assert row.question.lesion.appearance not in text
        assert ('"z0"' in text) == bool(row.question.region.labels)
        assert f"{row.knee.side} knee" in text


@pytest.mark.parametrize("form", sorted(FORMS))
def test_boxes_of_every_form_are_voxels_in_the_predictions(
    release: Path, rows: list[Row], tmp_path: Path, form: str
) -> None:
    some = rows[:5]
    plan, engine = plan_of(release, some, view=View("all", 96, form=form))
    run(plan, engine, tmp_path, split="test")
    plain, engine = plan_of(release, some, view=View("all", 96))
    run(plain, engine, tmp_path / "plain", split="test")
    with Journal(tmp_path) as journal, Journal(tmp_path / "plain") as other:
        for row in some:
            mine, theirs = plan.answer("answer", row, journal), plain.answer("answer", row, other)
            assert mine is not None
            assert theirs is not None
            assert mine.box == theirs.box  # finer than voxels, so nothing is lost
            assert mine.status == "parsed"


# --- controls -----------------------------------------------------------------------------------------------


def test_controls_change_what_is_shown_and_nothing_else(
    release: Path, rows: list[Row], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: dict[str, dict[str, dict[str, Any]]] = {}
    for control in ("", "blank", "swapped", "text", "occluded"):
        out = tmp_path / (control or "plain")
        assert asked(release, out, *(["--control", control] if control else []), "--limit", 80) == 0
        entries = [
            e
            for e in lines(out / "journal.jsonl")
            if e["step"] == ("occluded" if control == "occluded" else "answer")
        ]
        runs[control] = {e["id"]: e for e in entries}
    some = rows[:80]
    for row in some:
        own = runs[""][row.id]
        assert own["shown"] == runs["blank"][row.id]["shown"] == row.knee.id
        assert runs["swapped"][row.id]["shown"].split("-")[0] != row.knee.patient
        assert runs["text"][row.id]["shown"] == ""
        assert len({runs[c][row.id]["key"] for c in runs}) == 5
    for control in ("blank", "swapped", "text", "occluded"):
        said = [runs[control][row.id]["reply"]["text"] != runs[""][row.id]["reply"]["text"] for row in some]
        assert any(said), control
    capsys.readouterr()
    files = [tmp_path / name / "predictions.jsonl" for name in ("plain", "blank", "swapped", "occluded")]
    assert command("compare", *files, release, "--bootstrap", 10) == 0
    told = capsys.readouterr().out.splitlines()
    for line, name, what in zip(
        told,
        ("blank", "swapped", "occluded"),
        ("the image", "whose image it is", "the place that the model pointed to"),
        strict=False,
    ):
        assert line.startswith(f"{name}, a control of plain: with ")
        assert f"The answers depend on {what}, but there is no evidence" in line


def test_a_model_that_sees_nothing_is_found_out_by_its_control(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, more in (("plain", ()), ("blank", ("--control", "blank"))):
        assert asked(release, tmp_path / name, "--limit", 30, *more, model="blind") == 0
    capsys.readouterr()
    files = [tmp_path / name / "predictions.jsonl" for name in ("plain", "blank")]
    assert command("compare", *files, release, "--bootstrap", 10) == 0
    assert "0 of 30 answers have other grades" in (line := capsys.readouterr().out.splitlines()[0])
    assert line.endswith("The answers do not depend on the image.")
    files[0].write_text(files[0].read_text() + "\n")  # a stamp of other predictions says nothing
    assert command("compare", *files, release, "--bootstrap", 10) == 0
    assert "a control of" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "without", "p", "ends"),
    [
        (9, 0.3, 0.01, "depend on the image, and are better for it."),
        (9, 0.3, 0.2, "but there is no evidence that they are better for it."),
        (9, 0.6, 0.01, "but there is no evidence that they are better for it."),
        (0, 0.5, 1.0, "do not depend on the image."),
        (9, math.nan, math.nan, "but there is no evidence that they are better for it."),
    ],
)
def test_what_a_control_says(changed: int, without: float, p: float, ends: str) -> None:
    assert sentence("blank", changed, 10, 0.5, without, p).endswith(ends)


def test_what_is_blacked_out_is_the_models_own_box(release: Path, rows: list[Row], tmp_path: Path) -> None:
    row = next(r for r in rows if r.question.region.labels)
    plan, engine = plan_of(release, [row], control="occluded", view=View())
    run(plan, engine, tmp_path, split="test")
    with Journal(tmp_path) as journal:
        answer = plan.answer("answer", row, journal)
        request = plan.request("occluded", row, journal)
        assert answer is not None
        assert request is not None
        assert request.dark == answer.box
        journal.answers.pop(request.key)
        (job,) = plan.jobs("occluded", journal)
    assert answer.box is not None
    assert job.showing is not None
    assert not job.showing.frames[answer.box.slices].any()


@pytest.mark.parametrize(
    ("setting", "control"),
    [("region", "occluded"), ("locate_grade", "text"), ("best", None), ("region", "dark")],
)
def test_settings_and_controls_that_do_not_go_together(setting: str, control: str | None) -> None:
    with pytest.raises(UsageError, match=r"^N032: "):
        Choice(setting, control)


# --- the journal --------------------------------------------------------------------------------------------

ENTRY = Entry("k", "1-acl", "answer", "1", None, Reply("words\u2028é", "stop", 3, 1, 2, 0.5), cost=0.25)


@given(st.integers(1, 6), st.data())
def test_a_journal_that_was_torn_at_any_byte_heals(count: int, data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Journal(folder) as journal:
            for i in range(count):
                journal.write(Entry(**{**vars(ENTRY), "key": f"k{i}"}))
        whole = (folder / "journal.jsonl").read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        (folder / "journal.jsonl").write_bytes(whole[:cut])
        left = whole[:cut].count(b"\n")
        with Journal(folder) as journal:
            assert sorted(journal.answers) == [f"k{i}" for i in range(left)]
            assert journal.spent == pytest.approx(0.25 * left)
            journal.write(Entry(**{**vars(ENTRY), "key": "new"}))
        with Journal(folder) as journal:
            assert len(journal.answers) == left + 1
            assert not journal.torn
            assert journal.answers["new"].reply == ENTRY.reply


def test_an_error_is_no_answer_and_a_damaged_line_is_passed_over(tmp_path: Path) -> None:
    failed = Entry("k", "1-acl", "answer", "1", None, None, {"code": "N040", "message": "gone"})
    with Journal(tmp_path) as journal:
        journal.write(failed)
        assert (journal.answers, list(journal.errors)) == ({}, ["k"])
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{}\n{"key": 1}\n[1]\n\xff\n\n')
    with Journal(tmp_path) as journal:
        assert journal.damaged == 4
        journal.write(ENTRY)
    with Journal(tmp_path) as journal:
        assert (list(journal.answers), journal.errors) == (["k"], {})


def test_two_runs_on_one_journal_are_refused(release: Path, rows: list[Row], tmp_path: Path) -> None:
    plan, engine = plan_of(release, rows[:1])
    with Journal(tmp_path), pytest.raises(LockedError, match=r"^N030: .* is asking into the same folder"):
        run(plan, engine, tmp_path, split="test")
    run(plan, engine, tmp_path, split="test")


def test_a_folder_holds_one_run(release: Path, rows: list[Row], tmp_path: Path) -> None:
    plan, engine = plan_of(release, rows[:1])
    run(plan, engine, tmp_path, split="test")
    other, engine = plan_of(release, rows[:1], setting="instruction")
    with pytest.raises(UsageError, match=r"^N037: .* another setting, prompts"):
        run(other, engine, tmp_path, split="test")


@pytest.mark.parametrize("name", ["predictions.jsonl", "journal.jsonl", "ledger.json"])
def test_a_run_writes_over_nothing_of_the_users(
    name: str, release: Path, rows: list[Row], tmp_path: Path
) -> None:
    """It used to replace their predictions, and to cut the last line off their journal."""
    (tmp_path / name).write_text("mine, without an end")
    plan, engine = plan_of(release, rows[:1])
    with pytest.raises(UsageError, match=f"^R011: .*{name}"):
        run(plan, engine, tmp_path, split="test")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {name: "mine, without an end"}


def test_a_journal_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(StorageError, match=r"^N031: .*Is a directory.*\(check the path"), Journal(tmp_path):
        pass


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.ENOSPC, "make room"), (errno.EACCES, "check the permissions")]
)
def test_the_hint_of_a_journal_says_what_helps(number: int, hint: str, tmp_path: Path) -> None:
    """It used to say `make room` whatever the system had said."""

    def refuse(line: bytes) -> None:
        raise OSError(number, os.strerror(number))

    with Journal(tmp_path) as journal:
        whole = journal._file
        journal._file = SimpleNamespace(write=refuse, close=whole.close)  # type: ignore[assignment]
        with pytest.raises(StorageError, match=f"{hint}; the same command goes on"):
            journal.write(Entry("key", "id", "asked", "", None, Reply("yes", "stop")))


def test_killed_at_any_point_nothing_is_asked_twice_that_was_answered(
    release: Path, rows: list[Row], tmp_path: Path, record_property: Any
) -> None:
    """SIGKILL right before each of many answers; every start goes on, and every question is answered once."""
    program = f"""
import os, sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from pathlib import Path
from types import SimpleNamespace
import pyarrow.parquet
from reasonknee.models import View
from reasonknee.models.command import Asking, ask_release
from reasonknee.models.plan import Choice
choice = Choice("locate_grade", view=View("every:4"))
warm = Asking("eyes", interface="eyes:load", limit=100)  # imports and patterns, once for all children
list(ask_release({str(release)!r}, Path({str(tmp_path / "warm")!r}), choice, warm))
for kill in [1, 2, 3, 5, 8, 13, 1, 1, 21, 2, 34, 55, 7, 0]:
    child = os.fork()
    if not child:
        os.environ["EYES_KILLED_AT"] = str(kill)
        asking = Asking("eyes@{tmp_path}/asked", interface="eyes:load", limit=100)
        list(ask_release({str(release)!r}, Path({str(tmp_path / "run")!r}), choice, asking))
        os._exit(0)
    print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    ends = done.stdout.split()
    assert ends.count("9") == 13, done.stderr
    assert ends[-1] == "0"
    record_property("kills", 13)
    entries = lines(tmp_path / "run" / "journal.jsonl")
    assert len({e["key"] for e in entries}) == len(entries)
    boxed = sum(bool(row.question.region.labels) for row in rows[:100])
    assert len(entries) == 100 + boxed
    log = (tmp_path / "asked").read_text().split()
    assert len(log) == len(entries) + 13  # only what was under way when it was killed was asked again
    assert len(lines(tmp_path / "run" / "predictions.jsonl")) == 100


def test_what_fails_is_written_down_and_asked_again(release: Path, rows: list[Row], tmp_path: Path) -> None:
    """Upstream's script stores the previous answer after an exception, and takes an empty one for done."""
    some = rows[:6]
    failing = Eyes("eyes fails")
    plan, engine = plan_of(release, some, failing)
    ledger = run(plan, engine, tmp_path, split="test")
    assert (ledger.answers, dict(ledger.failures)) == (2, {"N022": 4})
    assert [p["id"] for p in lines(tmp_path / "predictions.jsonl")] == [row.id for row in some[:2]]
    failing.fails = False
    again = run(plan, engine, tmp_path, split="test")
    assert (again.answers, again.kept) == (4, 2)
    plain, engine = plan_of(release, some, Eyes("eyes fails"))
    engine.model.fails = False  # type: ignore[attr-defined]
    run(plain, engine, tmp_path / "plain", split="test")
    assert (tmp_path / "predictions.jsonl").read_text() == (
        tmp_path / "plain" / "predictions.jsonl"
    ).read_text()


class Ill(Eyes):
    """Raises as torch does where memory ends, or gives fewer answers than it was asked for."""

    def replies(self, *given: Any) -> Iterator[Reply]:
        for number, reply in enumerate(super().replies(*given)):
            if number == 2 and "raises" in self.about["model"]:
                raise RuntimeError("CUDA out of memory")
            if number == 2:
                return
            yield reply if "mute" not in self.about["model"] else None  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "answers", "told"),
    [
        ("raises", 2, "the model raised RuntimeError: CUDA out of memory"),
        ("short", 2, "the model gave 2 answers to 5 questions"),
        ("mute", 0, "the model raised TypeError: NoneType in place of a Reply"),
    ],
)
def test_a_model_of_ones_own_that_breaks_is_a_failure_of_its_requests(
    release: Path, rows: list[Row], tmp_path: Path, name: str, answers: int, told: str
) -> None:
    plan, engine = plan_of(release, rows[:5], Ill(name))
    ledger = run(plan, engine, tmp_path, split="test")
    assert (ledger.answers, dict(ledger.failures)) == (answers, {"N057": 5 - answers})
    with Journal(tmp_path) as journal:
        assert {e.error["message"] for e in journal.errors.values() if e.error} == {told}


# --- cost, samples, looks -----------------------------------------------------------------------------------


def test_money_is_never_overspent(release: Path, rows: list[Row], tmp_path: Path) -> None:
    plan, engine = plan_of(release, rows[:40], parameters=Parameters(max_tokens=10))
    prices = Prices(1000.0, None, 1000.0)  # 0.11 dollars an answer
    ledger = run(plan, engine, tmp_path, split="test", prices=prices, max_cost=3.0)
    assert ledger.stopped.startswith("N036: ")
    assert 0 < ledger.cost <= 3.0
    again = run(plan, engine, tmp_path, split="test", prices=prices, max_cost=3.0)
    assert again.before == pytest.approx(ledger.cost)
    assert again.before + again.cost <= 3.0
    rest = run(plan, engine, tmp_path, split="test", prices=prices)
    assert rest.kept + rest.answers == 40


def test_a_stopped_run_ends_with_a_line_and_an_exit_code(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    money = ("--price-in", 100, "--price-out", 100, "--max-cost", 0.01)
    assert asked(release, tmp_path / "run", "--limit", 9, *money) == 3
    assert "stopped: N036" in capsys.readouterr().out


def test_an_estimate_sends_nothing_and_learns_from_what_was_answered(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "asked"
    options = ("--estimate", "--price-in", 2, "--price-out", 8)
    assert asked(release, tmp_path / "run", *options, model=f"eyes@{log}") == 0
    told = capsys.readouterr().out
    assert "time: unknown" in told
    assert "cost: about $" in told
    assert not log.exists()
    assert asked(release, tmp_path / "run", "--limit", 5, model=f"eyes@{log}") == 0
    assert asked(release, tmp_path / "run", *options, model=f"eyes@{log}") == 0
    assert "at 0.01 s a request" in capsys.readouterr().out
    assert len(log.read_text().split()) == 5


@given(st.integers(1, 300), st.integers(0, 5))
def test_a_sample_is_spread_evenly_over_patients(rows: list[Row], count: int, seed: int) -> None:
    some = sampled(rows, count, seed)
    assert len(some) == min(count, len(rows))
    assert some == sampled(rows, count, seed)
    most = Counter(row.knee.patient for row in some)
    there = Counter(row.knee.patient for row in rows)
    assert all(n == there[p] or n >= max(most.values()) - 1 for p, n in most.items())
    least, factor = widened(rows, some)
    assert 1 <= least <= factor


def test_a_dry_run_shows_a_request_and_its_pictures(release: Path, tmp_path: Path) -> None:
    from PIL import Image

    log = tmp_path / "asked"
    assert asked(release, tmp_path / "run", "--dry-run", model=f"eyes@{log}") == 0
    request = json.loads((tmp_path / "run" / "request.json").read_text())
    *shown, text = request["messages"][1]["content"]
    assert text["type"] == "text"  # the question comes last, so that a volume's questions share their prefix
    assert all(part["type"] != "text" for part in shown)
    assert Image.open(tmp_path / "run" / "frames.png").size[0] >= 48
    assert not log.exists()


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("N033", {"split": "trial"}),
        ("N035", {"interface": "nowhere:load"}),
        ("N038", {"interface": "json:loads"}),
        ("N051", {"max_cost": 1.0}),
        ("N051", {"servers": ("http://127.0.0.1:9/v1",)}),
    ],
)
def test_refusals(release: Path, tmp_path: Path, code: str, options: dict[str, Any]) -> None:
    asking = Asking(**{"model": "eyes", "interface": "eyes:load", "limit": 1, **options})
    with pytest.raises((UsageError, DataError), match=f"^{code}: "):
        list(ask_release(str(release), tmp_path / "run", Choice(), asking))


def test_a_model_without_the_methods_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^N035: .* has no about, sized, fitted, replies"):
        load_model("collections:namedtuple", "x", {})


def test_a_release_without_volumes_and_one_patient_to_swap(
    release: Path, rows: list[Row], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"^N053: no other patient"):
        plan_of(release, rows[:2], control="swapped")
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(release, bare)
    manifest = json.loads((bare / "manifest.json").read_text())
    manifest["shards"] = [s for s in manifest["shards"] if s["config"] == "annotations"]
    (bare / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"^N034: the release holds no whole volumes"):
        plan_of(bare, rows[:2])
    plan_of(bare, rows[:2], control="text")
    assert os.listdir(bare)
