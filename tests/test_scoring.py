"""Scores at the level of users: a file of predictions and a release in, numbers out."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import command, run
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee import answers, schema
from reasonknee.answers import EXAMPLES
from reasonknee.boxes import Box
from reasonknee.errors import DataError, UsageError
from reasonknee.layout.scores import BASELINES
from reasonknee.questions import QUESTIONS, Question, reasoning
from reasonknee.release.reader import Release
from reasonknee.report import markdown
from reasonknee.scoring import compare, compute_score, reward, score, score_arrays
from reasonknee.scoring.baselines import QUICK, image_features, predict, text_features
from reasonknee.scoring.comparison import Draws, Sums, comparisons, evidence, how_many_tests
from reasonknee.scoring.consistency import check
from reasonknee.scoring.lines import CONVENTIONS, BoxReading, answer_of, line_at
from reasonknee.scoring.measures import headline
from reasonknee.scoring.predictions import Predictions, read_predictions
from reasonknee.scoring.rewards import WEIGHTS, completion_text, reward_with
from reasonknee.scoring.rows import write_rows
from reasonknee.scoring.tally import judge, tally
from reasonknee.scoring.truth import NONE, SLOTS, TABLE, Truth, read_truth

AVERAGES = ("attribute_micro", "question_macro", "category_macro")
Line = dict[str, Any]


@pytest.fixture(scope="session")
def truth_of_test(release: Path) -> Truth:
    return read_truth(release, "test")


def true_answer(truth: Truth, row: int) -> tuple[Question, dict[str, int], Box | None]:
    question = TABLE[truth.question[row]]
    grades = {a.id: int(truth.grades[row, s]) for s, a in enumerate(question.attributes)}
    return question, grades, Box(*map(int, truth.boxes[row])) if truth.has_box[row] else None


def perfect(truth: Truth) -> list[Line]:
    lines = []
    for row, id_ in enumerate(truth.ids):
        question, grades, box = true_answer(truth, row)
        lines.append(
            {
                "id": id_,
                "response": "\n".join(reasoning.steps(question, grades, box))
                + "\n"
                + answers.write(question, grades, box),
            }
        )
    return lines


def written(folder: Path, lines: list[Line], name: str = "predictions") -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def tiny(
    grades: list[list[int]], given_: list[list[int]], patients: list[int], question: str = "acl"
) -> tuple[Truth, Predictions]:
    """Truth and predictions of one question on patients, without boxes."""
    n = len(grades)

    def table(rows: list[list[int]]) -> np.ndarray:
        return np.array([[*row, *[NONE] * (SLOTS - len(row))] for row in rows], np.int8)

    truth = Truth(
        ids=[str(i) for i in range(n)],
        question=np.full(n, list(QUESTIONS).index(question), np.int32),
        patient=np.array(patients, np.int32),
        patients=tuple(map(str, range(max(patients) + 1))),
        visit=np.zeros(n, np.int32),
        visits=("00m",),
        side=np.zeros(n, np.int32),
        grades=table(grades),
        boxes=np.zeros((n, 6), np.int32),
        has_box=np.zeros(n, bool),
        shape=np.ones((n, 3), np.int32),
        spacing=np.ones((n, 3)),
    )
    predicted = Predictions.empty(n)
    predicted.grades[:] = table(given_)
    predicted.status[:] = 0
    return truth, predicted


# --- by hand ----------------------------------------------------------------------------------------------------------------------


def test_a_tiny_case_by_hand() -> None:
    """Three answers of three attributes each; of the second one attribute is wrong, of the third one has no legal grade."""
    truth, predicted = tiny(
        [[0, 0, 0], [1, 0, 0], [1, 1, 0]], [[0, 0, 0], [1, 1, 0], [1, NONE, 0]], [0, 0, 1]
    )
    scores = score_arrays(truth, predicted, samples=50).scores
    micro = scores["averages"]["attribute_micro"]
    assert micro["strict"]["value"] == 7 / 9
    assert micro["strict"]["n"] == 9
    assert micro["answered"]["value"] == 7 / 8
    assert micro["coverage"]["value"] == 8 / 9
    assert scores["diagnosis"]["exact_match"]["strict"]["value"] == 1 / 3
    assert scores["diagnosis"]["exact_match"]["answered"]["value"] == 1 / 2
    tear = scores["diagnosis"]["attributes"]["acl.complete_tear"]
    assert tear["confusion"] == [[1, 0, 0], [0, 2, 0]]
    assert tear["sensitivity"]["strict"] == {**tear["sensitivity"]["strict"], "value": 1.0, "n": 2}
    repair = scores["diagnosis"]["attributes"]["acl.repair"]
    assert repair["sensitivity"]["strict"]["value"] is None
    assert repair["sensitivity"]["strict"]["reason"]
    assert (micro["strict"]["low"], micro["strict"]["high"]) == (None, None)
    assert "2 patients" in micro["strict"]["no_interval"]
    tears = scores["detection"]["questions"]["acl"]
    assert (tears["sensitivity"]["strict"]["value"], tears["specificity"]["strict"]["value"]) == (1.0, 1.0)
    assert scores["strata"]["severity"]["present"]["accuracy"]["strict"]["value"] == 4 / 6
    assert scores["baselines"] is None
    assert json.dumps(scores, allow_nan=False)


def test_boxes_by_hand(release: Path, tmp_path: Path) -> None:
    """A box moved by one slice, one missing, one that cannot be read, one where there is none."""
    truth = read_truth(release, "test")
    with_box, without = np.flatnonzero(truth.has_box), np.flatnonzero(~truth.has_box)
    lines = [
        {"id": truth.ids[row], "grades": true_answer(truth, row)[1], "box": None} for row in range(len(truth))
    ]
    first, second = int(with_box[0]), int(with_box[1])
    box = true_answer(truth, first)[2]
    assert box is not None
    moved = (
        Box(box.z0, box.z1, box.y0, box.y1, box.x0 + 1, box.x1 + 1)
        if box.x1 < 48
        else Box(box.z0, box.z1, box.y0, box.y1, box.x0 - 1, box.x1 - 1)
    )
    lines[first]["box"] = moved.as_dict()
    lines[second]["box"] = [5, 4, 3, 2, 1, 0]
    lines[int(without[0])]["box"] = Box(0, 1, 0, 1, 0, 1).as_dict()
    local = score(written(tmp_path, lines), release, samples=20).scores["localisation"]["box_micro"]
    n = len(with_box)
    width = box.shape[2]
    assert local["counts"] == {
        "wanted": n,
        "given": 1,
        "missing": n - 2,
        "unreadable": 1,
        "spurious": 1,
        "rightly_none": len(without) - 1,
    }
    assert (
        local["iou"]["answered"]["value"]
        == pytest.approx((width - 1) / (width + 1))
        == pytest.approx(moved.iou(box))
    )
    assert local["iou"]["strict"]["value"] == pytest.approx(moved.iou(box) / n)
    assert local["slice_iou"]["answered"]["value"] == 1
    assert local["centre_mm"]["answered"]["value"] == pytest.approx(truth.spacing[first, 2])
    assert local["size_mm"]["answered"]["value"] == 0
    assert sum(local["histogram"]) == n


def test_judged_iou_is_the_iou_of_boxes() -> None:
    rnd = random.Random(0)
    truth, predicted = tiny([[0, 0, 0]] * 50, [[0, 0, 0]] * 50, [0] * 50)

    def corners() -> list[int]:
        return [c for _ in range(3) for c in sorted(rnd.sample(range(12), 2))]

    truth.has_box[:] = True
    predicted.box_state[:] = 1
    for i in range(50):
        truth.boxes[i], predicted.boxes[i] = corners(), corners()
    expected = [
        Box(*map(int, a)).iou(Box(*map(int, b))) for a, b in zip(truth.boxes, predicted.boxes, strict=True)
    ]
    np.testing.assert_array_equal(judge(truth, predicted).iou, expected)


# --- properties -------------------------------------------------------------------------------------------------------------------


def test_perfect_predictions_score_one(release: Path, truth_of_test: Truth, tmp_path: Path) -> None:
    scores = score(written(tmp_path, perfect(truth_of_test)), release, samples=20).scores
    for name in AVERAGES:
        for mode in ("strict", "answered", "coverage"):
            assert scores["averages"][name][mode]["value"] == 1.0
    assert scores["localisation"]["box_micro"]["iou"]["strict"]["value"] == 1
    assert scores["counts"]["parsed"] == len(truth_of_test)
    for value in scores["consistency"]["all"].values():
        assert value["value"] == 1, "our own reasoning is consistent"
    assert not [e.message for e in schema.validator("scores").iter_errors(scores)]


@settings(max_examples=60)
@given(st.data())
def test_strict_is_answered_times_coverage(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12))
    rows = st.lists(st.tuples(*[st.integers(0, 1)] * 3).map(list), min_size=n, max_size=n)
    given_ = data.draw(st.lists(st.tuples(*[st.integers(-1, 1)] * 3).map(list), min_size=n, max_size=n))
    patients = sorted([*data.draw(st.lists(st.integers(0, 2), min_size=n - 1, max_size=n - 1)), 2])
    scores = score_arrays(*tiny(data.draw(rows), given_, patients), samples=0).scores
    for name in AVERAGES:
        leaves = scores["averages"][name]
        if leaves["answered"]["value"] is None:
            assert leaves["strict"]["value"] == 0
            assert leaves["coverage"]["value"] == 0
        else:  # one question, so all three averages are one ratio
            assert leaves["strict"]["value"] == pytest.approx(
                leaves["answered"]["value"] * leaves["coverage"]["value"]
            )
            assert leaves["strict"]["value"] <= leaves["answered"]["value"]
    exact = scores["diagnosis"]["exact_match"]["strict"]["value"]
    assert exact <= scores["averages"]["attribute_micro"]["strict"]["value"]


def spoiled(truth: Truth, seed: int) -> list[Line]:
    """Every way to be wrong, among answers that are right."""
    rnd = random.Random(seed)
    lines = perfect(truth)
    for line in lines:
        row = truth.rows[line["id"]]
        question, grades, box = true_answer(truth, row)
        kind = rnd.randrange(8)
        if kind == 0:
            line["response"] = "No idea <img src=x onerror=alert(1)>"
        elif kind == 1:
            line["response"] = json.dumps({"grades": {question.attributes[0].id: 99}})
        elif kind == 2:
            grades = {a.id: rnd.choice(list(a.space.grades)) for a in question.attributes}
            line["response"] = answers.write(question, grades, box)
        elif kind == 3:
            line["response"] = answers.write(question, grades, Box(0, 8, 0, 24, 0, 24))
        elif kind == 4:
            line["response"] = answers.write(question, grades, None)
    return lines


def test_order_and_workers_do_not_matter(release: Path, truth_of_test: Truth, tmp_path: Path) -> None:
    lines = spoiled(truth_of_test, 1)
    first = score(written(tmp_path, lines), release, samples=30).scores
    random.Random(0).shuffle(lines)
    assert score(written(tmp_path, lines), release, samples=30).scores == first
    # long enough that processes share it
    long = [{**line, "note": "x" * (1_200_000 // len(lines))} for line in lines]
    assert score(written(tmp_path, long), release, samples=30, workers=2).scores == first


def test_per_attribute_numbers_are_those_of_scikit_learn(
    release: Path, truth_of_test: Truth, tmp_path: Path
) -> None:
    sk = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    scored = score(written(tmp_path, spoiled(truth_of_test, 2)), release, samples=0)
    compared = 0
    for name, entry in scored.scores["diagnosis"]["attributes"].items():
        question_id, attribute_id = name.split(".")
        mine = scored.truth.question == list(QUESTIONS).index(question_id)
        slot = [a.id for a in QUESTIONS[question_id].attributes].index(attribute_id)
        true, given_ = scored.truth.grades[mine, slot], scored.predicted.grades[mine, slot]
        assert entry["accuracy"]["strict"]["value"] == sk.accuracy_score(true, given_)
        true, given_ = true[given_ != NONE], given_[given_ != NONE]
        if entry["scale"] == "ordinal" and entry["quadratic_kappa"]["answered"]["value"] is not None:
            labels = QUESTIONS[question_id].attribute(attribute_id).space.grades
            assert entry["quadratic_kappa"]["answered"]["value"] == sk.cohen_kappa_score(
                true, given_, labels=labels, weights="quadratic"
            )
            compared += 1
    assert compared > 10


# --- what files do wrong ----------------------------------------------------------------------------------------------------------


def test_missing_unknown_and_repeated_ids_are_counted(
    release: Path, truth_of_test: Truth, tmp_path: Path
) -> None:
    lines = perfect(truth_of_test)
    kept = lines[3:]
    kept += [
        kept[0],
        {**kept[1], "response": "something else"},
        {"id": "1999999-00m-left-acl", "response": ""},
        {"id": "\ud800x", "response": ""},
    ]
    scores = score(written(tmp_path, kept), release, samples=10).scores
    counts = scores["counts"]
    assert {k: counts[k] for k in ("missing", "unknown", "repeated", "contradictory", "unparsed")} == {
        "missing": 3, "unknown": 2, "repeated": 2, "contradictory": 1, "unparsed": 1,
    }  # fmt: skip
    assert counts["unknown_ids"][0] == "1999999-00m-left-acl"
    assert len(scores["warnings"]) >= 3
    judgments = scores["averages"]["attribute_micro"]["strict"]["n"]
    lost = sum(
        len(TABLE[truth_of_test.question[truth_of_test.rows[line["id"]]]].attributes)
        for line in (*lines[:3], kept[1])
    )
    assert scores["averages"]["attribute_micro"]["strict"]["value"] == pytest.approx(1 - lost / judgments)
    assert scores["averages"]["attribute_micro"]["answered"]["value"] == 1
    assert not [e.message for e in schema.validator("scores").iter_errors(scores)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": 5, "response": "x"}', "no `id`"),
        ('{"id": "x"}', "neither"),
        ('{"id": "x", "response": "a", "grades": {}}', "both"),
        ('{"id": "x", "response": 5}', "not text"),
        ('{"id": "x", "grades": [1]}', "not an object of integers"),
        ('{"id": "x", "grades": {"a": true}}', "not an object of integers"),
        ('{"id": "x", "grades": {"a": 1.5}}', "not an object of integers"),
        ('{"id": "x", "grades": {}, "box": "none"}', "neither an object nor"),
        ("[1]", "where an object is wanted"),
        ('{"id": "x", "response": "a"', "not JSON"),
    ],
)
def test_a_bad_line_is_told_by_number(line: str, says: str, truth_of_test: Truth, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"id": truth_of_test.ids[0], "response": "x"}) + "\n\n" + line + "\n")
    with pytest.raises(DataError, match=says) as error:
        read_predictions(path, truth_of_test)
    assert "p.jsonl:3" in error.value.told
    if says not in ("where an object is wanted", "not JSON"):
        assert not schema.validator("predictions").is_valid(json.loads(line))


def test_what_the_reader_takes_the_schema_takes(truth_of_test: Truth, tmp_path: Path) -> None:
    question = TABLE[truth_of_test.question[0]]
    grades = {a.id: None if i else 0 for i, a in enumerate(question.attributes)}
    for fields in (
        {"response": None},
        {"response": "x", "model": "m"},
        {"grades": grades},
        {"grades": grades, "box": [0] * 6, "reasoning": None},
    ):
        line = {"id": truth_of_test.ids[0], **fields}
        assert schema.validator("predictions").is_valid(line)
        read_predictions(written(tmp_path, [line]), truth_of_test)
    with pytest.raises(DataError, match="has no attribute 'nonsense'"):
        read_predictions(
            written(tmp_path, [{"id": truth_of_test.ids[0], "grades": {"nonsense": 1}}]), truth_of_test
        )


def test_a_character_cut_in_half_is_no_reason_to_refuse_the_file(
    truth_of_test: Truth, tmp_path: Path
) -> None:
    question, grades, box = true_answer(truth_of_test, 0)
    lines = [
        {
            "id": truth_of_test.ids[0],
            "response": "\ud83d \\ud83d 😀 " + answers.write(question, grades, box) + " \udc00",
        }
    ]
    found = read_predictions(written(tmp_path, lines), truth_of_test)
    assert found.status[0] == 0
    assert line_at(tmp_path / "predictions.jsonl", 0)["response"].startswith("\ufffd \\ud83d 😀 ")


def test_ready_grades_score_like_texts(release: Path, truth_of_test: Truth, tmp_path: Path) -> None:
    texts = spoiled(truth_of_test, 3)
    ready = []
    for line in texts:
        row = truth_of_test.rows[line["id"]]
        question = TABLE[truth_of_test.question[row]]
        answer = answers.read(question, line["response"], shape=tuple(truth_of_test.shape[row]))
        grades: dict[str, int] = dict(answer.grades)
        if answer.status == "invalid":
            grades[question.attributes[0].id] = 99
        ready.append(
            {
                "id": line["id"],
                "grades": grades,
                "box": answer.box and answer.box.as_dict(),
                "reasoning": answer.reasoning,
            }
        )
    first, second = (
        score(written(tmp_path, lines, name), release, samples=10).scores
        for name, lines in (("t", texts), ("r", ready))
    )
    for part in ("averages", "diagnosis", "together", "consistency"):
        assert first[part] == second[part]
    assert {k: first["counts"][k] for k in ("parsed", "invalid", "unparsed")} == {
        k: second["counts"][k] for k in ("parsed", "invalid", "unparsed")
    }


def test_boxes_that_cannot_be_are_told_at_the_top(release: Path, tmp_path: Path) -> None:
    truth = read_truth(release, "test")
    box = {"z0": 500, "z1": 510, "y0": 1, "y1": 2, "x0": 1, "x1": 2}
    lines = [json.dumps({"id": i, "response": json.dumps({"box": box, "grades": {}})}) for i in truth.ids]
    (tmp_path / "p.jsonl").write_text("\n".join(lines) + "\n")
    done = run("score", tmp_path / "p.jsonl", release, "--out", tmp_path / "out", "--bootstrap", 10)
    assert done.returncode == 0, done.stderr
    assert (
        f"> boxes: {int(truth.has_box.sum())} of {int(truth.has_box.sum())} are outside"
        in (tmp_path / "out" / "scores.md").read_text()
    )
    done = run("compare", tmp_path / "p.jsonl", tmp_path / "p.jsonl", release, "--bootstrap", 10)
    assert re.search(r"^> .*patient", done.stdout, flags=re.M)


def test_truth_is_the_same_from_every_config(release: Path, tmp_path: Path) -> None:
    first = read_truth(release, "test")
    manifest = json.loads((release / "manifest.json").read_text())
    for config in ("cropped", "full", "embeddings"):
        folder = tmp_path / config
        folder.mkdir()
        (folder / config).symlink_to(release / config)
        kept = [s for s in manifest["shards"] if s["config"] == config]
        (folder / "manifest.json").write_text(json.dumps({**manifest, "shards": kept}))
        other = read_truth(folder, "test")
        assert other.ids == first.ids
        for name in ("question", "patient", "side", "grades", "boxes", "has_box", "shape", "spacing"):
            np.testing.assert_array_equal(getattr(other, name), getattr(first, name))


# --- baselines and comparison -----------------------------------------------------------------------------------------------------


def test_baselines_by_hand() -> None:
    train, _ = tiny([[0, 0, 1], [0, 1, 1], [1, 1, 1], [0, 0, 1]], [[0, 0, 0]] * 4, [0, 1, 2, 3])
    truth, predicted = tiny([[0, 0, 1], [1, 1, 0]], [[0, 0, 1], [1, 1, 0]], [0, 1])
    guesses = {name: predict(name, train, truth) for name in QUICK}
    # majority: 0, 0 (a tie goes to the lower grade), 1
    assert guesses["majority"].grades.tolist() == [[0, 0, 1]] * 2
    trees = score_arrays(truth, predicted, guesses, samples=10).scores["baselines"]
    assert trees["majority"]["averages"]["attribute_micro"]["strict"]["value"] == 3 / 6
    assert trees["constant_box"]["localisation"]["box_micro"]["iou"]["strict"]["value"] is None


def test_stratified_grades_have_the_frequencies_of_training() -> None:
    train, _ = tiny([[0, 0, 1], [0, 1, 1], [1, 1, 1], [0, 0, 1]], [[0, 0, 0]] * 4, [0, 1, 2, 3])
    truth, _ = tiny([[0, 0, 0]] * 4000, [[0, 0, 0]] * 4000, [0] * 4000)
    drawn = predict("stratified", train, truth).grades
    np.testing.assert_allclose(drawn.mean(0), [1 / 4, 1 / 2, 1], atol=0.03)
    assert (drawn[::-1] != drawn).any()
    np.testing.assert_array_equal(predict("stratified", train, truth).grades, drawn)


def leaky(n: int, seed: int) -> Truth:
    """One patient each, a binary grade that follows the size of the box, and another that follows the side."""
    rng = np.random.default_rng(seed)
    size, side = rng.integers(4, 20, n), rng.integers(0, 2, n)
    truth, _ = tiny(
        [[int(s > 11), int(d), 0] for s, d in zip(size, side, strict=True)], [[0] * 3] * n, [*range(n)]
    )
    truth.has_box[:] = True
    truth.shape[:] = 64
    truth.side[:] = side
    truth.boxes[:, 1::2] = size[:, None]
    return truth


def test_box_only_sees_the_box_and_text_only_the_side() -> None:
    train, truth = leaky(300, 0), leaky(100, 1)
    right = {
        name: (predict(name, train, truth).grades == truth.grades).mean(0)
        for name in ("majority", "text_only", "box_only")
    }
    assert right["box_only"][0] > 0.95
    assert right["box_only"][1] == 1
    assert right["text_only"][1] == 1
    assert right["text_only"][0] < 0.65 > right["majority"][0]


def test_evidence_takes_every_baseline() -> None:
    """A model that knows the box's size alone beats all but `box_only`; one that is right beats that, too."""
    train, truth = leaky(300, 0), leaky(200, 1)
    truth.has_box[:150] = False  # those say nothing to box_only
    guesses = {name: predict(name, train, truth) for name in QUICK}
    perfect_one = Predictions.empty(len(truth))
    perfect_one.grades[:], perfect_one.status[:] = truth.grades, 0
    verdict = score_arrays(truth, perfect_one, guesses, samples=400).scores["evidence"]
    assert verdict["uses_image"]
    assert verdict["sentence"].startswith("It beats every baseline")
    assert "constant_box" not in verdict["against"], "the model gives no boxes"
    same = score_arrays(truth, guesses["box_only"], guesses, samples=400).scores["evidence"]
    assert not same["uses_image"]
    assert same["sentence"].startswith("No evidence that it uses the image: it does not beat box only")
    assert same["against"]["majority"]["beaten"]


def test_baselines_know_nothing_of_the_test_splits_grades() -> None:
    """Other grades and boxes in the test split change no answer, but box_only's, which is shown the boxes."""
    rng = np.random.default_rng(2)
    train, truth = leaky(300, 0), leaky(80, 1)
    before = {name: predict(name, train, truth) for name in QUICK}
    truth.grades[:, :3] = rng.integers(0, 2, (len(truth), 3))
    for name in QUICK:
        after = predict(name, train, truth)
        np.testing.assert_array_equal(before[name].grades, after.grades, err_msg=name)
        np.testing.assert_array_equal(before[name].boxes, after.boxes, err_msg=name)
    truth.boxes[:, 1::2] = rng.integers(4, 20, (len(truth), 3))
    for name in QUICK:
        after = predict(name, train, truth)
        assert (before[name].grades == after.grades).all() == (name != "box_only"), name
        np.testing.assert_array_equal(before[name].boxes, after.boxes, err_msg=name)


def test_a_first_visit_is_month_0_in_every_split() -> None:
    truth = leaky(40, 1)
    assert (text_features(truth)[:, 2] == 1).all()
    later = replace(truth, visits=("12m",))  # whose earliest visit is none of a first visit
    assert (text_features(later)[:, 2] == 0).all()


def test_without_baselines_or_resamples_there_is_no_evidence() -> None:
    train, truth = leaky(300, 0), leaky(200, 1)
    truth.has_box[:150] = False  # those say nothing to box_only
    right = Predictions.empty(len(truth))
    right.grades[:], right.status[:] = truth.grades, 0
    alone = score_arrays(truth, right, None, samples=50).scores
    assert alone["evidence"]["sentence"].startswith(
        "No evidence that it uses the image: there is no baseline"
    )
    guesses = {name: predict(name, train, truth) for name in QUICK}
    untested = score_arrays(truth, right, guesses, samples=0).scores["evidence"]
    assert not untested["uses_image"]
    assert "With 0 swaps" in untested["sentence"]
    assert untested["against"]["majority"]["p"] is None
    few = score_arrays(truth, right, guesses, samples=20).scores["evidence"]
    assert few["uses_image"], "there are as many swaps as the correction needs"


def test_a_number_on_few_patients_has_no_interval() -> None:
    """Sixty patients, but only three of them with a box, or with an answer."""
    truth, predicted = tiny([[i % 2, 0, 1] for i in range(60)], [[0, 0, 1]] * 60, [*range(60)])
    truth.has_box[:3] = True
    truth.boxes[:3, 1::2] = 4
    predicted.boxes[:3, 1::2], predicted.box_state[:3] = [[2, 4, 4], [3, 4, 4], [4, 4, 4]], 1
    predicted.grades[4:] = NONE
    scores = score_arrays(truth, predicted, None, samples=300).scores
    iou = scores["localisation"]["box_micro"]["iou"]["strict"]
    answered = scores["averages"]["attribute_micro"]["answered"]
    for leaf, patients in ((iou, 3), (answered, 4)):
        assert (leaf["low"], leaf["high"]) == (None, None)
        assert f"rests on {patients} patients" in leaf["no_interval"]
    assert scores["averages"]["attribute_micro"]["strict"]["low"] is not None
    tallies = {"a": tally(truth, predicted, judge(truth, predicted))}
    tallies["b"] = tallies["a"]
    draws = Draws(60, 50, 0)
    (pair,) = comparisons(tallies, [], draws, headline)
    entry = pair["measures"]["headline"]["localisation.box_micro.iou.strict"]
    assert "rests on 3 patients" in entry["difference"]["no_interval"]
    assert entry["smallest_difference"] is None


def test_baselines_as_files_and_by_name(
    release: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "guesses"
    assert command("baselines", release, folder, "--split", "train") == 0
    assert {p.stem for p in folder.glob("*.jsonl")} == set(BASELINES)
    assert command("baselines", release, folder, "--split", "train", "--names", "majority") == 0, "again"
    truth = read_truth(release, "train")
    path = written(tmp_path, spoiled(truth, 4))
    made, read = (
        score(path, release, "train", samples=20, baselines=place).scores["baselines"]
        for place in ("", folder)
    )
    assert {**read, "image_mean": None} == {**made, "image_mean": None}
    assert set(read) == set(BASELINES)
    by_file = compare([path, folder / "majority.jsonl"], release, "train", samples=50)
    by_name = compare([path, "majority"], release, "train", samples=50)
    files, names = (
        {n: e for part in r["pairs"][0]["measures"].values() for n, e in part.items()}
        for r in (by_file, by_name)
    )
    assert names.keys() < files.keys(), (
        "a file is a model, whose boxes count; a name is compared by its grades"
    )
    assert all(
        (e["a"], e["b"], e["difference"]) == tuple(files[n][k] for k in ("a", "b", "difference"))
        for n, e in names.items()
    )
    assert by_name["baselines"] == ["majority"]
    capfd.readouterr()
    assert command("baselines", release, folder, "--names", "nonsense") == 2
    assert command("score", path, release, "--split", "train", "--baselines", tmp_path) == 2
    said = capfd.readouterr().err
    assert "S033" in said
    assert "S031" in said


def test_files_of_the_users_are_not_replaced(
    release: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A folder of results may hold other things; what we did not write stays, whatever its name is."""
    path = written(tmp_path, spoiled(read_truth(release, "train"), 4))
    for what, name in (
        (("baselines", release), "majority.jsonl"),
        (("score", path, release, "--bootstrap", "5", "--out"), "scores.md"),
    ):
        out = tmp_path / str(what[0])
        mine, beside = out / name, out / "thesis.txt"
        out.mkdir()
        for file in (mine, beside):
            file.write_text("mine")
        assert command(*what, out, "--split", "train") == 2
        assert f"R011: {mine}" in capfd.readouterr().err
        assert sorted(p.name for p in out.iterdir()) == sorted([name, "thesis.txt"])
        mine.rename(tmp_path / name)
        for _ in range(2):  # and again: its own files are replaced
            assert command(*what, out, "--split", "train") == 0
        assert mine.is_file()
        assert beside.read_text() == "mine"


def test_image_mean_needs_voxels(release: Path, tmp_path: Path) -> None:
    train = read_truth(release, "train")
    with pytest.raises(DataError, match="S030"):
        predict("image_mean", train, train)
    whole, crops = (
        image_features(one_config(release, tmp_path, config), train) for config in ("full", "cropped")
    )
    has = ~np.isnan(whole[:, 0])
    assert has.sum() == train.has_box.sum()
    assert not np.isnan(crops[has]).any()
    with pytest.raises(DataError, match="S030"):
        image_features(one_config(release, tmp_path, "annotations"), train)


def one_config(release: Path, folder: Path, config: str) -> Release:
    place = folder / f"only-{config}"
    place.mkdir()
    (place / config).symlink_to(release / config)
    manifest = json.loads((release / "manifest.json").read_text())
    kept = [s for s in manifest["shards"] if s["config"] == config]
    (place / "manifest.json").write_text(json.dumps({**manifest, "shards": kept}))
    return Release(place)


def test_the_constant_box_is_the_median_of_the_side(
    release: Path, truth_of_test: Truth, tmp_path: Path
) -> None:
    train = read_truth(release, "train")
    question = list(QUESTIONS).index("acl")
    expected = []
    for row in np.flatnonzero((truth_of_test.question == question) & truth_of_test.has_box):
        mine = (train.question == question) & train.has_box & (train.side == truth_of_test.side[row])
        box = Box(*(int(c) for c in np.round(np.median(train.boxes[mine], axis=0))))
        expected.append(box.iou(Box(*map(int, truth_of_test.boxes[row]))))
    scores = score(written(tmp_path, perfect(truth_of_test)), release, samples=10).scores
    found = scores["baselines"]["constant_box"]["localisation"]["regions"]["acl"]["iou"]["strict"]["value"]
    assert found == pytest.approx(np.mean(expected), abs=0.02)


def test_a_release_without_training_data_has_no_baselines(
    release: Path, truth_of_test: Truth, tmp_path: Path
) -> None:
    manifest = json.loads((release / "manifest.json").read_text())
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "annotations").symlink_to(release / "annotations")
    kept = [s for s in manifest["shards"] if s["config"] == "annotations" and s["split"] == "test"]
    (tmp_path / "r" / "manifest.json").write_text(json.dumps({**manifest, "shards": kept}))
    scores = score(written(tmp_path, perfect(truth_of_test)), tmp_path / "r", samples=10).scores
    assert scores["baselines"] is None
    assert any("no baselines" in w for w in scores["warnings"])
    assert "there is no baseline to compare with" in scores["evidence"]["sentence"]


def test_a_damaged_training_split_is_told(release: Path, truth_of_test: Truth, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    shutil.copytree(release / "annotations", folder / "annotations")
    manifest = json.loads((release / "manifest.json").read_text())
    kept = [s for s in manifest["shards"] if s["config"] == "annotations"]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "shards": kept}))
    for shard in kept:
        if shard["split"] == "train":
            (folder / shard["path"]).write_bytes(b"PAR1 damaged PAR1")
    # paths may be plain strings
    scores = score(str(written(tmp_path, perfect(truth_of_test))), str(folder), samples=10).scores
    assert scores["baselines"] is None
    (told,) = [w for w in scores["warnings"] if "baselines" in w]
    assert "cannot be read" in told
    assert "R020" in told


def test_the_seed_decides_the_intervals_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    truth, predicted = tiny(
        *(rng.integers(0, 2, (40, 3)).tolist() for _ in range(2)), [*range(20), *range(20)]
    )
    first, again, other = (
        score_arrays(truth, predicted, samples=30, seed=seed).scores["averages"]["attribute_micro"]["strict"]
        for seed in (0, 0, 1)
    )
    assert first == again
    assert first["value"] == other["value"]
    assert first["low"] < first["value"] < first["high"]
    assert (first["low"], first["high"]) != (other["low"], other["high"])


def test_comparison(release: Path, tmp_path: Path) -> None:
    truth = read_truth(release, "train")
    good, bad = written(tmp_path, perfect(truth), "good"), written(tmp_path, spoiled(truth, 4), "bad")
    name = "averages.attribute_micro.strict"

    def entry(*models: Any, samples: int = 4000) -> dict[str, Any]:
        (pair,) = compare(models, release, "train", samples=samples)["pairs"]
        return pair["measures"]["headline"][name]

    patients = len(truth.patients)
    first = entry(good, bad)
    alone = score(bad, release, "train", samples=0).scores["averages"]["attribute_micro"]["strict"]["value"]
    assert first["difference"]["value"] == pytest.approx(1 - alone)
    # every patient is better in the first: of 2^n labellings only two are as extreme
    assert first["p"] == pytest.approx(2 / 2**patients, abs=0.02)
    turned = entry(bad, good)
    assert turned["difference"]["value"] == -first["difference"]["value"]
    assert turned["p"] == first["p"]
    same = entry(good, good, samples=50)
    assert same["difference"]["value"] == 0
    assert same["p"] == 1


def test_several_models_are_compared_pair_by_pair(release: Path, tmp_path: Path) -> None:
    truth = read_truth(release, "train")
    paths = [written(tmp_path, spoiled(truth, seed), f"m{seed}") for seed in (4, 5)]
    some = ("acl", "pcl", "hoffa_synovitis")
    result = compare([*paths, "majority", "constant_box"], release, "train", samples=60, questions=some)
    assert not [e.message for e in schema.validator("comparison").iter_errors(result)]
    pairs = [(pair["a"], pair["b"]) for pair in result["pairs"]]
    assert pairs == [
        ("m4", "m5"), ("m4", "majority"), ("m4", "constant_box"), ("m5", "majority"), ("m5", "constant_box")
    ]  # fmt: skip
    assert set(result["pairs"][0]["measures"]) == {"headline", "categories", "regions", "structures"}
    # Holm over the five pairs: the smallest p of a part is multiplied by their number
    for part, mode in (("headline", "strict"), ("headline", "answered"), ("regions", "strict")):
        entries = [
            e
            for pair in result["pairs"]
            for name, e in pair["measures"].get(part, {}).items()
            if e["p"] is not None and name.endswith(mode)
        ]
        least = min(entries, key=lambda e: e["p"])
        assert least["p_holm"] == pytest.approx(min(1, least["p"] * len(entries)))
        assert all(e["p_holm"] >= e["p"] for e in entries)
    # a baseline is compared by what it answers
    for pair in result["pairs"][1:]:
        names = [name for part in pair["measures"].values() for name in part]
        assert {"localisation" in name for name in names} == {pair["b"] == "constant_box"}
    # of 2^n ways to swap n patients two are as extreme: the corrected p cannot be small, and that is told
    assert any("no difference could pass" in warning for warning in result["warnings"])
    with pytest.raises(UsageError, match="S032"):
        compare(paths[:1], release, "train")


def test_a_clear_difference_passes_the_correction_of_many_comparisons() -> None:
    """Three models on forty patients, one of which is right twice as often: p is one in the number of swaps
    at least, so that number must grow with what is corrected for."""
    rng = np.random.default_rng(5)
    patients, rows = 40, 200
    true = rng.integers(0, 2, (rows, 3))
    tallies = {}
    for name, share in (("clear", 0.9), *((f"m{i}", 0.45) for i in range(2))):
        said = np.where(rng.random(true.shape) < share, true, 1 - true)
        truth, predicted = tiny(true.tolist(), said.tolist(), [i % patients for i in range(rows)])
        tallies[name] = tally(truth, predicted, judge(truth, predicted))
    tests = how_many_tests(tallies, [], headline)
    draws = Draws(patients, 20, 0, tests)
    name = "averages.attribute_micro.strict"
    pairs = comparisons(tallies, [], draws, headline)
    found = {(p["a"], p["b"]): p["measures"]["headline"][name]["p_holm"] for p in pairs}
    assert all((p < 0.05) == ("clear" in pair) for pair, p in found.items()), found
    assert draws.too_few(tests) == ""
    assert "4 patients" in Draws(4, 20, 0, tests).too_few(tests)


def test_the_smallest_difference_is_what_such_a_sample_shows() -> None:
    """Of models that differ by it, four of five samples tell them apart at 5 %."""
    rng = np.random.default_rng(3)
    n, spread, trials = 40, 0.06, 300
    difference = 2.864 * spread / np.sqrt(n)  # t with 39 degrees of freedom, and 80 % power
    draws, shown, smallest = Draws(n, 300, 0), 0, []
    for _ in range(trials):
        ours, theirs = (
            Sums(0.5 + difference + rng.normal(0, spread, n), np.ones(n)),
            Sums(np.full(n, 0.5), np.ones(n)),
        )
        entry = evidence({"": ours, "majority": theirs}, {}, "", draws, False)["against"]["majority"]
        smallest.append(entry["smallest_difference"])
        shown += entry["p"] < 0.05
    assert np.mean(smallest) == pytest.approx(difference, rel=0.05)
    assert 0.72 < shown / trials < 0.88


def test_a_part_is_scored_on_purpose(release: Path, truth_of_test: Truth, tmp_path: Path) -> None:
    lines = perfect(truth_of_test)
    kept = [line for line in lines if line["id"].endswith(("-acl", "-pcl"))]
    for those in (kept, lines):  # the rest may be there or not
        path = written(tmp_path, those)
        scores = score(path, release, samples=10, questions=("acl", "pcl")).scores
        assert scores["counts"]["missing"] == 0
        assert scores["counts"]["asked"] == len(kept)
        assert scores["counts"]["aside"] == len(those) - len(kept)
        assert scores["averages"]["attribute_micro"]["strict"]["value"] == 1
        assert set(scores["diagnosis"]["questions"]) == {"acl", "pcl"}
    by_category = score(path, release, samples=10, categories=("bml",)).scores
    assert set(by_category["diagnosis"]["categories"]) == {"bml"}
    assert by_category["part"] == {"questions": [], "categories": ["bml"]}
    with pytest.raises(UsageError, match="S015"):
        score(path, release, categories=("nonsense",))
    with pytest.raises(UsageError, match="S016"):
        tiny([[0, 0, 0]], [[0, 0, 0]], [0])[0].part(["pcl"])
    with pytest.raises(DataError, match="S012"):
        score(written(tmp_path, kept), release, categories=("bml",))


def test_runs_of_one_model(release: Path, truth_of_test: Truth, tmp_path: Path) -> None:
    paths = [written(tmp_path, spoiled(truth_of_test, seed), f"s{seed}") for seed in (1, 2, 3)]
    scores = score(paths[0], release, samples=10, runs=tuple(paths[1:])).scores
    each = [
        score(path, release, samples=0).scores["averages"]["attribute_micro"]["strict"]["value"]
        for path in paths
    ]
    runs = scores["runs"]["measures"]["averages.attribute_micro.strict"]
    assert runs["values"] == each
    assert runs["standard_deviation"] == pytest.approx(np.std(each, ddof=1))
    assert not [e.message for e in schema.validator("scores").iter_errors(scores)]


def test_the_readers_ceiling(release: Path, tmp_path: Path) -> None:
    sk = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    folder = one_config(release, tmp_path, "annotations").folder
    (folder / "annotations").unlink()
    shutil.copytree(release / "annotations", folder / "annotations")
    rnd, pairs = random.Random(2), []
    for shard in Release(folder).manifest.of("annotations", "train"):
        table = pq.read_table(folder / shard.path)
        readings = []
        for row in table.select(["question_id", "grades"]).to_pylist():
            told = []
            for a in QUESTIONS[row["question_id"]].attributes if rnd.random() < 0.4 else ():
                grade = row["grades"][a.id] if rnd.random() < 0.6 else rnd.choice(list(a.space.grades))
                told += [
                    {"project": "65", "attribute": a.id, "grade": 0},
                    {"project": "15", "attribute": a.id, "grade": grade},
                ]
                if row["question_id"] == "hoffa_synovitis":
                    pairs.append((row["grades"][a.id], grade))
            readings.append(told)
        column = pa.array(readings, table.schema.field("second_readings").type)
        place = table.column_names.index("second_readings")
        pq.write_table(table.set_column(place, "second_readings", column), folder / shard.path)
    truth = read_truth(folder, "train")
    scores = score(written(tmp_path, perfect(truth)), folder, "train", samples=20).scores
    assert not [e.message for e in schema.validator("scores").iter_errors(scores)]
    entry = scores["readers"]["readers"]["diagnosis"]["attributes"]["hoffa_synovitis.grade"]
    assert entry["quadratic_kappa"]["answered"]["n"] == len(pairs)
    assert entry["quadratic_kappa"]["answered"]["value"] == pytest.approx(
        sk.cohen_kappa_score(*zip(*pairs, strict=True), weights="quadratic", labels=range(4))
    )
    assert scores["readers"]["model"]["averages"]["attribute_micro"]["strict"]["value"] == 1
    n = scores["readers"]["judgments"]
    assert scores["readers"]["model"]["averages"]["attribute_micro"]["strict"]["n"] == n
    assert "Readers' ceiling" in markdown(scores)
    assert score_arrays(*tiny([[0, 0, 0]], [[0, 0, 0]], [0]), samples=0).scores["readers"] is None


def test_an_unknown_grade_is_masked_everywhere(tmp_path: Path) -> None:
    """Null in an asked attribute is unknown: it is in no denominator, of the model's and of no baseline's."""
    train, _ = tiny([[0, NONE, 1], [0, 1, NONE]], [[0, 0, 0]] * 2, [0, 1])
    truth, predicted = tiny([[1, NONE, 0], [NONE, 0, 0]], [[1, 1, 0], [1, NONE, 1]], [0, 1])
    guesses = {name: predict(name, train, truth) for name in QUICK}
    scores = score_arrays(truth, predicted, guesses, samples=10).scores
    assert (
        scores["averages"]["attribute_micro"]["strict"]["value"],
        scores["averages"]["attribute_micro"]["strict"]["n"],
    ) == (2 / 4, 4)
    assert scores["baselines"]["majority"]["averages"]["attribute_micro"]["strict"]["n"] == 4
    assert scores["diagnosis"]["exact_match"]["strict"]["value"] == 1 / 2
    # of the second knee nothing is known to be there, but not everything is known: it detects nothing
    assert scores["detection"]["all"]["prevalence"]["n"] == 1
    write_rows(tmp_path / "rows.parquet", truth, predicted, judge(truth, predicted), {})
    rows = pq.read_table(tmp_path / "rows.parquet")["right"].to_pylist()
    asked = [a.id for a in QUESTIONS["acl"].attributes]
    assert [[row[a] for a in asked] for row in rows] == [[True, None, True], [None, False, False]]
    assert reward(completions=["x"], question_id=["acl"], grades=[dict.fromkeys(asked)]) == [None]


# --- confidence -------------------------------------------------------------------------------------------------------------------


def test_confidence_against_scikit_learn(release: Path, tmp_path: Path) -> None:
    sk = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    truth = read_truth(release, "train")
    lines = spoiled(truth, 4)
    rnd = random.Random(1)
    for line in lines:
        line["confidence"] = round(rnd.random(), 1)
    scored = score(written(tmp_path, lines), release, "train", samples=50)
    sure = scored.scores["confidence"]
    judged, predicted = scored.judged, scored.predicted
    known = (judged.answered == judged.asked).all(1)
    right, stated = (judged.right == judged.asked).all(1)[known], predicted.confidence[known].astype(float)
    assert sure["auc_right"]["value"] == pytest.approx(sk.roc_auc_score(right, stated), abs=1e-12)
    assert sure["brier"]["value"] == pytest.approx(sk.brier_score_loss(right, stated), abs=1e-12)
    lesion = (truth.grades >= 1).any(1)[known]
    told = (predicted.grades >= 1).any(1)[known]
    assert sure["auc_finding"]["all"]["value"] == pytest.approx(
        sk.roc_auc_score(lesion, np.where(told, stated, 1 - stated)), abs=1e-12
    )
    assert sum(b["n"] for b in sure["bins"]) == known.sum()
    detected = scored.scores["detection"]["all"]["sensitivity"]["answered"]["value"]
    assert detected == sk.recall_score(lesion, told)
    assert not [e.message for e in schema.validator("scores").iter_errors(scored.scores)]


# --- conventions of boxes ---------------------------------------------------------------------------------------------------------


def test_the_examples_of_the_conventions_are_one_box() -> None:
    """What documents and help show: each reads as the same box, or on a coarser grid as one around it."""
    box, shape = Box(10, 42, 80, 131, 64, 120), (160, 384, 384)
    readings = {
        "resized": BoxReading("resized", (32, 256, 256)),
        "crop": BoxReading("crop", crops={"x-acl": Box(8, 50, 76, 140, 60, 130)}),
    }
    assert tuple(EXAMPLES) == CONVENTIONS
    for name, (_, example) in EXAMPLES.items():
        value = example if name == "cuboid" else json.loads(example)
        if name == "frames":
            value = [{"frame": z, "bbox": value[0]["bbox"]} for z in range(10, 42)]
        text = f"bbox: {example}" if name == "cuboid" else json.dumps({"bbox": value})
        reading = readings.get(name, BoxReading(name))
        read = answer_of(QUESTIONS["acl"], {"id": "x-acl", "response": text}, shape, reading).box
        assert read is not None, name
        if name in ("normalised", "unit", "resized"):
            assert read.iou(box) > 0.6
        else:
            assert read == box


@settings(max_examples=80)
@given(st.data())
def test_a_box_on_a_finer_grid_or_in_a_crop_comes_back(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(*[st.integers(1, 60)] * 3))
    view = tuple(size * data.draw(st.integers(2, 4)) + data.draw(st.integers(0, 3)) for size in shape)
    bounds, finer = [], []
    for size, of in zip(shape, view, strict=True):
        low = data.draw(st.integers(0, size - 1))
        high = data.draw(st.integers(low + 1, size))
        bounds += [low, high]
        finer += [-(-low * of // size), high * of // size]
    box = Box(*bounds)
    resized = BoxReading("resized", view)  # type: ignore[arg-type]
    assert resized.back(Box(*finer), "x", shape) == box
    crop = box.grown((1, 2, 3), shape)
    assert BoxReading("crop", crops={"x": crop}).back(box.inside(crop), "x", shape) == box


def boxed(truth: Truth, written_as: Callable[[Box, tuple[int, int, int]], Any]) -> list[Line]:
    lines = []
    for row, id_ in enumerate(truth.ids):
        _, grades, box = true_answer(truth, row)
        z, y, x = truth.shape[row].tolist()
        lines.append({"id": id_, "grades": grades, "box": box and written_as(box, (z, y, x))})
    return lines


def test_boxes_on_another_grid_find_their_way_back(
    release: Path, truth_of_test: Truth, tmp_path: Path
) -> None:
    def iou(path: Path, **options: Any) -> float:
        scores = score(path, release, samples=0, **options).scores
        value: float = scores["localisation"]["box_micro"]["iou"]["strict"]["value"]
        return value

    def doubled(box: Box, _: tuple[int, int, int]) -> list[int]:
        return [2 * c for c in (box.z0, box.z1, box.y0, box.y1, box.x0, box.x1)]

    path = written(tmp_path, boxed(truth_of_test, doubled))
    assert iou(path, convention="resized", view=(32, 96, 96)) == 1
    crops = {
        r["id"]: r["crop"] for r in Release(release).rows(truth_of_test.ids, "cropped", columns=["crop"])
    }
    lines = []
    for row, id_ in enumerate(truth_of_test.ids):
        _, grades, box = true_answer(truth_of_test, row)
        inside = box.inside(Box.from_dict(crops[id_])).as_dict() if box else None
        lines.append({"id": id_, "grades": grades, "box": inside})
    assert iou(written(tmp_path, lines, "crops"), convention="crop") == 1
    for wrong in ({"convention": "resized"}, {"view": (1, 2, 3)}):
        with pytest.raises(UsageError, match="S017"):
            iou(path, **wrong)
    with pytest.raises(UsageError, match="S018"):
        score(path, one_config(release, tmp_path, "annotations").folder, convention="crop")


@pytest.mark.parametrize("convention", ["normalised", "unit", "cuboid"])
def test_the_fitting_convention_is_suggested(
    convention: str, release: Path, truth_of_test: Truth, tmp_path: Path
) -> None:
    def as_told(box: Box, shape: tuple[int, int, int]) -> Any:
        value = answers.write_box(box, convention, shape)
        return json.loads(value[13:-11]) if convention == "cuboid" else value

    path = written(tmp_path, boxed(truth_of_test, as_told))
    warnings = score(path, release, samples=0).scores["warnings"]
    assert any(f"--convention {convention}" in w for w in warnings), warnings
    fitting = score(path, release, samples=0, convention=convention).scores
    assert not any("--convention" in w for w in fitting["warnings"])
    assert fitting["localisation"]["box_micro"]["iou"]["strict"]["value"] == 1


def test_nothing_is_suggested_where_boxes_fit_but_are_wrong(
    release: Path, truth_of_test: Truth, tmp_path: Path
) -> None:
    """A box of the right range in the wrong place says nothing about its convention."""
    path = written(tmp_path, boxed(truth_of_test, lambda box, shape: [0, 1, 0, 1, 0, 1]))
    assert not any("--convention" in w for w in score(path, release, samples=0).scores["warnings"])


# --- reasoning --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=lambda q: q.id)
def test_our_reasoning_is_consistent_and_a_changed_grade_is_noticed(question: Question) -> None:
    for g in (0, 1):
        grades = {a.id: min(g, len(a.space.grades) - 1) for a in question.attributes}
        text = " ".join(reasoning.steps(question, grades, None))
        assert check(question, text, grades) == (True, True, True, True)
        other = {**grades, question.attributes[0].id: 1 - grades[question.attributes[0].id]}
        assert check(question, text, other).agrees is False


def test_inconsistent_reasoning() -> None:
    question = QUESTIONS["femur_medial_trochlea_bml"]
    grades = {"size": 1, "number": 1, "percent_bml": 3}
    assert not check(question, "The lateral femoral trochlea has a marrow lesion. Size: 1", grades).region
    assert check(question, "In the trochlea of the medial femur I look.", grades).region
    assert not check(
        question, "Grade 1. Then I see the medial femoral trochlea with a bone marrow lesion.", grades
    ).steps
    silent = check(question, "The medial femoral trochlea looks unusual.", grades)
    assert (silent.states, silent.agrees) == (False, True)


# --- rewards ----------------------------------------------------------------------------------------------------------------------


def columns(truth: Truth, rows: list[int]) -> dict[str, list[Any]]:
    found = [true_answer(truth, row) for row in rows]
    shapes = [dict(zip("zyx", map(int, truth.shape[row]), strict=True)) for row in rows]
    return {
        "question_id": [q.id for q, _, _ in found],
        "grades": [g for _, g, _ in found],
        "box": [b and b.as_dict() for _, _, b in found],
        "shape": shapes,
        "visit": ["00m"] * len(rows),
    }


def test_reward_is_the_score(truth_of_test: Truth) -> None:
    """The mean of the grade and box parts over answers is what the scorer's judge says of them."""
    rows = list(range(60))
    lines = spoiled(truth_of_test, 5)[:60]
    texts = [line["response"] for line in lines]
    given_ = reward(
        prompts=[""] * 60, completions=texts, completion_ids=[[0]] * 60, **columns(truth_of_test, rows)
    )
    for row, text, value in zip(rows, texts, given_, strict=True):
        question, grades, box = true_answer(truth_of_test, row)
        answer = answers.read(question, text, shape=tuple(truth_of_test.shape[row]))
        right = np.mean([answer.grades.get(a) == g for a, g in grades.items()])
        overlap = (
            (box.iou(answer.box) if answer.box else 0.0)
            if box
            else float(answer.box is None and not any(p.code == "W011" for p in answer.problems))
        )
        form = float(answer.status == "parsed" and not answer.problems)
        assert value == pytest.approx(
            WEIGHTS["grades"] * right + WEIGHTS["box"] * overlap + WEIGHTS["form"] * form
        )
    assert max(v for v in given_ if v is not None) == pytest.approx(1)


def test_reward_takes_conversations_and_says_none_without_truth(truth_of_test: Truth) -> None:
    question, grades, box = true_answer(truth_of_test, 0)
    text = answers.write(question, grades, box)
    conversation = [{"role": "assistant", "content": text}]
    in_parts = [{"role": "assistant", "content": [{"type": "text", "text": text}]}]
    truth = {k: v * 3 for k, v in columns(truth_of_test, [0]).items()}
    truth["grades"][2] = None
    assert reward(
        prompts=[""] * 3, completions=[conversation, in_parts, text], completion_ids=[[1]] * 3, **truth
    ) == [
        pytest.approx(1),
        pytest.approx(1),
        None,
    ]
    assert completion_text([{"role": "assistant", "content": None}]) == ""
    assert reward.__name__ == "reasonknee_reward"


def test_reward_weights_have_names(truth_of_test: Truth) -> None:
    question, grades, _ = true_answer(truth_of_test, 0)
    text = answers.write(question, grades, None)
    truth = columns(truth_of_test, [0])
    assert reward_with({"grades": 1})(completions=[text], **truth) == [1.0]
    assert reward_with({"box": 2})(completions=[text], **truth) == [0.0]
    assert reward_with({"grades": 3, "box": 1})(completions=[text], **truth) == [pytest.approx(0.75)]
    for wrong in ({"speed": 1}, {"grades": -1, "box": 2}, {"grades": 0}, {"grades": math.nan}):
        with pytest.raises(Exception, match="S020"):
            reward_with(wrong)
    with pytest.raises(Exception, match="S021"):
        reward(completions=["x"])


def test_a_dense_reward_grows_before_boxes_overlap(truth_of_test: Truth) -> None:
    row = int(np.flatnonzero(truth_of_test.has_box)[0])
    question, grades, _ = true_answer(truth_of_test, row)
    true = Box(0, 4, 0, 8, 0, 8)
    truth = columns(truth_of_test, [row]) | {"box": [true.as_dict()], "spacing": [[7.0, 2.9, 2.9]]}

    def of(measure: str, box: Box | None) -> float:
        text = answers.write(question, grades, box)
        (value,) = reward_with({"box": 1}, box_reward=measure)(completions=[text], **truth)
        assert value is not None
        return value

    far, near = Box(0, 4, 40, 48, 40, 48), Box(0, 4, 10, 18, 0, 8)
    assert of("iou", far) == of("iou", near) == 0
    for measure in ("giou", "centre"):
        assert 0 < of(measure, far) < of(measure, near) < of(measure, true) == 1
        assert of(measure, None) == 0
    # the empty part of the box around both: 4 x 18 x 8 with 2 x 256 of it filled
    assert of("giou", near) == pytest.approx((0 - (576 - 512) / 576 + 1) / 2)
    with pytest.raises(UsageError, match="S022"):
        reward_with(box_reward="dice")


def test_the_parts_of_a_reward_are_logged_and_verl_gets_them(truth_of_test: Truth) -> None:
    row = int(np.flatnonzero(truth_of_test.has_box)[0])
    question, grades, _ = true_answer(truth_of_test, row)
    text = answers.write(question, grades, None)
    truth = columns(truth_of_test, [row])
    logged: dict[str, float] = {}
    (value,) = reward(completions=[text], log_metric=logged.__setitem__, **truth)
    assert logged == {
        "reasonknee_reward/grades": 1,
        "reasonknee_reward/box": 0,
        "reasonknee_reward/form": 1,
    }
    told = {name: truth[name][0] for name in ("question_id", "grades", "box", "shape")}
    for ground_truth in (told, json.dumps(told)):
        given_ = compute_score("reasonknee", text, ground_truth, {"index": 3})
        assert given_ == {"score": pytest.approx(value), "grades": 1.0, "box": 0.0, "form": 1.0}
    assert (
        compute_score("x", text, {"grades": told["grades"]}, {"question_id": told["question_id"]})["grades"]
        == 1
    )
    with pytest.raises(UsageError, match="S021"):
        compute_score("reasonknee", text, {"grades": {}})
    with pytest.raises(UsageError, match="S022"):
        compute_score("reasonknee", text, told, box_reward="dice")


# --- the commands -----------------------------------------------------------------------------------------------------------------


def test_parse_command() -> None:
    import subprocess
    import sys

    def parse(*words: str, said: bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "reasonknee", "parse", *words],
            input=said,
            capture_output=True,
            timeout=60,
        )

    said = b'bright \xff\xfe signal. {"box": [1, 3, 2, 8, 4, 9], "grades": {"grade": 2}}'
    done = parse("hoffa_synovitis", "--convention", "upstream", "--shape", "10,20,20", said=said)
    found = json.loads(done.stdout)
    assert list(found) == ["status", "grades", "box", "reasoning", "problems"]
    assert found["status"] == "parsed"
    assert found["grades"] == {"grade": 2}
    assert found["box"] == {"z0": 1, "z1": 4, "y0": 4, "y1": 10, "x0": 2, "x1": 9}
    assert json.loads(parse("42", said=said).stdout)["grades"] == {"grade": 2}
    assert json.loads(parse("42", said=b"").stdout)["status"] == "unparsed"
    for words in (["nonsense"], ["42", "--convention", "nonsense"], ["42", "--shape", "1,2"]):
        done = parse(*words, said=said)
        assert done.returncode == 2
        assert b"Traceback" not in done.stderr


def test_score_and_compare_commands(
    release: Path, truth_of_test: Truth, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    a, b = written(tmp_path, perfect(truth_of_test), "a"), written(tmp_path, spoiled(truth_of_test, 6), "b")
    done = run("score", b, release, "--out", tmp_path / "out", "--bootstrap", 20)
    assert done.returncode == 0, done.stderr
    names = {
        str(p.relative_to(tmp_path / "out"))
        for p in (tmp_path / "out").rglob("*")
        if p.is_file() and p.name != ".reasonknee"
    }
    assert names == {
        "scores.json",
        "scores.md",
        "rows.parquet",
        "report.html",
        "eval.yaml",
        "model-index.yaml",
        ".eval_results/reasonknee-bench.yaml",
    }
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert not [e.message for e in schema.validator("scores").iter_errors(scores)]
    for name in AVERAGES:
        for mode in ("strict", "answered"):
            leaf = scores["averages"][name][mode]
            assert leaf["low"] is None or leaf["low"] <= leaf["value"] <= leaf["high"]
    assert command("compare", a, b, release, "--bootstrap", 20, "--out", tmp_path / "c.json") == 0
    assert json.loads((tmp_path / "c.json").read_text())["models"] == ["a", "b"]
    assert "| averages attribute micro strict | 1.000 |" in capfd.readouterr().out
    # what `score` wrote serves as well as the predictions
    assert command("compare", a, tmp_path / "out", "majority", release, "--bootstrap", 20) == 0
    assert "### a and out, headline" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["{p}", "{r}", "--split", "nonsense"], 2, "S001"),
        (["{p}", "{r}", "--convention", "nonsense"], 2, "W031"),
        (["{p}", "{p}"], 2, "M002"),
        (["{none}", "{r}"], 4, "T000"),
        (["{unknown}", "{r}"], 3, "S012"),
        (["{empty}", "{r}"], 3, "S011"),
    ],
)
def test_wrong_calls_are_one_line(
    words: list[str],
    code: int,
    says: str,
    release: Path,
    truth_of_test: Truth,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    places: dict[str, Callable[[], Path] | Path] = {
        "p": written(tmp_path, perfect(truth_of_test)[:3]),
        "r": release,
        "none": tmp_path / "none.jsonl",
        "unknown": written(tmp_path, [{"id": "x", "response": ""}], "unknown"),
        "empty": written(tmp_path, [], "empty"),
    }
    assert command("score", *(w.format(**places) for w in words)) == code
    said = capfd.readouterr().err
    assert says in said
    assert len(said.strip().splitlines()) == 1


def test_scoring_starts_without_what_is_heavy() -> None:
    code = "import sys, reasonknee.scoring; print(sorted({'torch', 'datasets', 'nibabel', 'pyarrow', 'scipy', 'sklearn', 'pandas'} & set(sys.modules)))"
    assert run("-c", code).stdout.strip() == "[]"
