"""Reading and writing answers: a set written by hand, upstream's own form for every question, and what must hold for any text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee import answers
from reasonknee.answers import grades as answer_grades
from reasonknee.answers import text as answer_text
from reasonknee.boxes import Box
from reasonknee.errors import DataError, UsageError
from reasonknee.questions import QUESTIONS, Question, question
from reasonknee.system.limits import limited

CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "answers" / "cases.jsonl").read_text(encoding="utf-8").splitlines()
]
EVERY = list(QUESTIONS.values())
SHAPE = (160, 384, 384)
BOX = Box(10, 42, 80, 131, 64, 120)
OSTEOPHYTE = question("patella_superior_osteophyte")
BML = question("tibia_medial_anterior_bml")


def codes(answer: answers.Answer) -> list[str]:
    return sorted(problem.code for problem in answer.problems)


@st.composite
def graded(draw: st.DrawFn) -> tuple[Question, dict[str, int]]:
    asked = draw(st.sampled_from(EVERY))
    return asked, {a.id: draw(st.sampled_from(a.space.grades)) for a in asked.attributes}


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    bounds: list[int] = []
    for size in SHAPE:
        start = draw(st.integers(0, size - 1))
        bounds += [start, draw(st.integers(start + 1, size))]
    return Box(*bounds)


# --- by hand ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_reads_as_written_beside_it(case: dict[str, Any]) -> None:
    shape = tuple(case["shape"]) if "shape" in case else None
    answer = answers.read(
        question(case["question"]),
        case["text"],
        shape=shape,
        box_convention=case.get("convention", "canonical"),
    )
    assert answer.status == case["status"]
    assert answer.grades == case["grades"]
    assert answer.as_dict()["box"] == case["box"]
    assert codes(answer) == sorted(case["problems"])


def test_the_cases_cover_every_category_status_and_problem() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES) >= 90
    assert {question(case["question"]).category for case in CASES} == {q.category for q in EVERY}
    assert {case["status"] for case in CASES} == {"parsed", "invalid", "unparsed"}
    seen = {code for case in CASES for code in case["problems"]}
    assert seen == {f"W{n:03}" for n in (1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14)} | {
        "B001"
    }  # W008 needs a long text: below


# --- every question ---------------------------------------------------------------------------------------------------------------


def upstream_answer(asked: Question, grades: dict[str, int]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    for attribute in asked.attributes:
        *parents, leaf = attribute.upstream_path
        place = answer
        for key in parents:
            place = place.setdefault(key, {})
        place[leaf] = grades[attribute.id]
    return answer


def respelled(value: Any, spell: Callable[[str], str]) -> Any:
    return (
        {spell(key): respelled(item, spell) for key, item in value.items()}
        if isinstance(value, dict)
        else value
    )


@pytest.mark.parametrize("asked", EVERY, ids=[q.id for q in EVERY])
def test_upstream_form_of_every_question_and_grade(asked: Question) -> None:
    for shift in range(9):
        grades = {a.id: (shift + n) % len(a.space.grades) for n, a in enumerate(asked.attributes)}
        form = {**upstream_answer(asked, grades), "bbox": BOX.to_upstream()}
        for spell in (
            str,
            str.upper,
            lambda key: key.replace(" ", "_"),
            lambda key: key.replace("_", "-").title(),
        ):
            answer = answers.read(
                asked,
                f"Step 1: look.\nFinal diagnosis: {json.dumps(respelled(form, spell))}",
                box_convention="upstream",
                shape=SHAPE,
            )
            assert (answer.status, answer.grades, answer.box, answer.problems) == ("parsed", grades, BOX, ())
            assert answer.reasoning == "Step 1: look."


@pytest.mark.parametrize("asked", EVERY, ids=[q.id for q in EVERY])
def test_ids_titles_and_meanings_name_attributes_and_grades(asked: Question) -> None:
    for attribute in asked.attributes:
        for grade, meaning in enumerate(attribute.space.meanings):
            for text in (
                f"{attribute.id}: {grade}",
                f"{attribute.title} = grade {grade}",
                json.dumps({attribute.title: meaning}),
                f"{attribute.id}: {meaning}",
            ):
                assert answers.read(asked, text).grades == {attribute.id: grade}, text


def test_grades_of_another_question_are_never_ours() -> None:
    for asked in EVERY:
        for other in EVERY:
            form = upstream_answer(other, {a.id: 0 for a in other.attributes})
            answer = answers.read(asked, json.dumps(form))
            assert (answer.status == "parsed") == (asked is other), (asked.id, other.id)


# --- writing ----------------------------------------------------------------------------------------------------------------------


@given(
    graded(),
    st.none() | boxes(),
    st.sampled_from(
        ["", "The marrow is bright.\n", "<think>size: 3? grade 3?</think>\n", "Size 1 or 2.\n\n"]
    ),
)
def test_written_answers_read_back(
    item: tuple[Question, dict[str, int]], box: Box | None, before: str
) -> None:
    asked, grades = item
    answer = answers.read(asked, before + answers.write(asked, grades, box), shape=SHAPE)
    assert answer == answers.Answer(
        "parsed", grades, box, before.replace("<think>", "").replace("</think>", "").strip(), ()
    )
    assert list(answer.as_dict()) == ["status", "grades", "box", "reasoning", "problems"]
    json.dumps(answer.as_dict(), allow_nan=False)


def test_written_form_is_fixed() -> None:
    text = answers.write(BML, {"percent_bml": 3, "size": 2, "number": 1}, BOX)
    assert (
        text
        == '{"box": {"z0": 10, "z1": 42, "y0": 80, "y1": 131, "x0": 64, "x1": 120}, "grades": {"size": 2, "number": 1, "percent_bml": 3}}'
    )
    assert answers.write(OSTEOPHYTE, {"grade": 0}, None) == '{"box": null, "grades": {"grade": 0}}'


@pytest.mark.parametrize(
    ("grades", "code"),
    [
        ({}, "W021"),
        ({"grade": 1, "size": 1}, "W021"),
        ({"grade": 4}, "W022"),
        ({"grade": -1}, "W022"),
        ({"grade": True}, "W022"),
        ({"grade": 1.0}, "W022"),
        ({"grade": None}, "W022"),
    ],
)
def test_illegal_grades_are_not_written(grades: dict[str, Any], code: str) -> None:
    with pytest.raises(DataError) as error:
        answers.write(OSTEOPHYTE, grades, None)
    assert error.value.code == code


@pytest.mark.parametrize("convention", answers.CONVENTIONS)
@given(box=boxes())
def test_boxes_survive_each_convention(convention: str, box: Box) -> None:
    value = answers.write_box(box, convention, SHAPE)
    text = json.dumps({"grade": 2, "bbox": value})
    answer = answers.read(OSTEOPHYTE, text, box_convention=convention, shape=SHAPE)
    assert (answer.box, answer.problems) == (box, ())
    assert answers.read_box(value, convention, SHAPE) == box


@given(st.lists(st.tuples(st.integers(1, 1000), st.data()), min_size=3, max_size=3))
def test_normalised_boxes_are_exact_up_to_a_thousand_voxels(axes: list[tuple[int, st.DataObject]]) -> None:
    bounds: list[int] = []
    for size, data in axes:
        start = data.draw(st.integers(0, size - 1))
        bounds += [start, data.draw(st.integers(start + 1, size))]
    shape = (axes[0][0], axes[1][0], axes[2][0])
    assert answers.read_box(answers.write_box(Box(*bounds), "normalised", shape), "normalised", shape) == Box(
        *bounds
    )


def test_conventions_are_named_and_null_is_no_box() -> None:
    for convention in answers.CONVENTIONS:
        assert answers.read_box(answers.write_box(None, convention), convention) is None
    with pytest.raises(UsageError, match="W031"):
        answers.read(OSTEOPHYTE, "", box_convention="xyxy")
    with pytest.raises(DataError, match="W014"):
        answers.write_box(BOX, "normalised", (2000, 384, 384))


# --- what must hold for any text --------------------------------------------------------------------------------------------------

SIGNS = """{ } [ ] " ' : , \\ // ( ) <answer> </answer> <think> </think> \\boxed{ ```json ２ İ ß"""
WORDS = "grade size number box bbox frame z0 x_min is or not 2 -1 1e999 NaN null true 0x1"
WHOLE = [
    '{"grade": 2}',
    '{"box": [1, 2, 3, 4, 5, 6]}',
    '{"size": 1, "number": 2}',
    '"frames": [{"frame": 1, "bbox": [1, 2, 3, 4]}]',
    "Final diagnosis:",
]
PIECES = st.sampled_from([*SIGNS.split(), *WORDS.split(), *WHOLE, " ", "\n", "\x00", "\ud800", "9" * 5000])


@settings(max_examples=200)
@given(
    st.sampled_from(EVERY),
    st.text()
    | st.lists(PIECES, max_size=40).map("".join)
    | st.binary().map(lambda b: b.decode("utf-8", "surrogateescape")),
    st.sampled_from(answers.CONVENTIONS),
)
def test_any_text_gives_an_answer(asked: Question, text: str, convention: str) -> None:
    answer = answers.read(asked, text, box_convention=convention, shape=SHAPE)
    json.dumps(answer.as_dict(), allow_nan=False).encode("utf-8")
    answer.reasoning.encode("utf-8")
    assert all(
        grade in asked.attribute(id_).space.grades and type(grade) is int
        for id_, grade in answer.grades.items()
    )
    assert (answer.status == "parsed") == (len(answer.grades) == len(asked.attributes))
    assert (answer.status == "invalid") == ("W003" in codes(answer))
    assert answer.box is None or answer.box.fits(SHAPE)


LEAVES = st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats(allow_nan=False) | st.text()


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
        ),
        min_size=1,
    )
)
def test_both_readers_of_json_agree(value: dict[str, Any]) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        fast, own = answer_text._plain_value_at(text, 0), answer_text._value_at(text, 0)
        assert own.whole
        assert fast in (own, None)


@given(graded(), st.data())
def test_a_second_different_grade_is_never_passed_over(
    item: tuple[Question, dict[str, int]], data: st.DataObject
) -> None:
    asked, grades = item
    attribute = data.draw(st.sampled_from(asked.attributes))
    other = data.draw(st.sampled_from([g for g in attribute.space.grades if g != grades[attribute.id]]))
    text = answers.write(asked, grades, BOX)
    again = json.dumps({attribute.id: other})
    contradictions = [
        text.replace('"grades": {', f'"grades": {{"{attribute.id}": {other}, '),
        text[:-2] + f', "{attribute.id}": "{other}"}}}}',
        text[:-1] + f', "{attribute.upstream_path[-1]}": {other}}}',
        f"{text[:-1]}, {again[1:]}",
        f"{text}\n{attribute.id}: {other}",
        f"Final diagnosis: {attribute.title}: grade {other}\n{text}",
        f"{text} {again[:-1]}",
    ]
    if (
        len(asked.attributes) > 1
    ):  # where it is the only attribute, a second object is a whole answer, and the last counts
        contradictions.append(f"{text}\n{again}")
    for contradiction in contradictions:
        answer = answers.read(asked, contradiction)
        assert answer.status == "unparsed", contradiction
        assert attribute.id not in answer.grades
        assert "W002" in codes(answer)


@given(graded(), st.data())
def test_cut_or_damaged_answers_give_no_wrong_grade(
    item: tuple[Question, dict[str, int]], data: st.DataObject
) -> None:
    asked, grades = item
    text = answers.write(asked, grades, BOX)
    place = data.draw(st.integers(0, len(text) - 1))
    assert answers.read(asked, text[:place]).status == "unparsed"
    damaged = answers.read(asked, text[:place] + text[place + 1 :])
    assert damaged.grades.items() <= grades.items()


@given(
    graded(), st.integers(4, 10**30) | st.integers(max_value=-1) | st.floats(0.01, 0.99) | st.just(10**5000)
)
def test_numbers_outside_the_space_are_invalid(item: tuple[Question, dict[str, int]], number: float) -> None:
    asked, grades = item
    attribute = asked.attributes[0]
    written = "9" * 5001 if number == 10**5000 else repr(number + 5 if number > 1 else number)
    text = answers.write(asked, grades, None).replace(
        f'"{attribute.id}": {grades[attribute.id]}', f'"{attribute.id}": {written}'
    )
    answer = answers.read(asked, text)
    assert answer.status == "invalid"
    assert attribute.id not in answer.grades


def test_long_texts_are_read_from_their_end() -> None:
    answer = answers.read(OSTEOPHYTE, "word " * 200_000 + '{"grade": 2, "box": null}' + "\n" * 100_000)
    assert (answer.status, answer.grades, codes(answer)) == ("parsed", {"grade": 2}, ["W008"])
    assert len(answer.reasoning) <= answer_text.LONGEST
    thinking = answers.read(OSTEOPHYTE, "<think>" + "the grade is 2. " * 20_000)
    assert thinking.status == "unparsed"
    frames = ",\n".join(
        json.dumps(frame) for frame in answers.write_box(Box(0, 2000, 1, 300, 1, 300), "frames")
    )
    cut = answers.read(OSTEOPHYTE, f'{{"frames": [{frames}], "grade": 2}}', box_convention="frames")
    assert cut.box is None


def test_reasoning_is_what_stands_before_the_answer() -> None:
    for text, reasoning in (
        ('<think>A spur.</think>\nIt is medium.\n```json\n{"grade": 2}\n```', "A spur.\nIt is medium."),
        ("A spur.\n<answer>2</answer>", "A spur."),
        ("A spur.\n\n**Final diagnosis:** grade 2", "A spur."),
        ('{"reasoning": "A spur.", "grade": 2}', "A spur."),
        ("A spur.", "A spur."),
        ("2", ""),
    ):
        assert answers.read(OSTEOPHYTE, text).reasoning == reasoning


HOSTILE = [
    "{",
    "<answer>",
    '"',
    "[[",
    '{"a":',
    "[{",
    '{"',
    "{'",
    "[1,",
    '{"":1,',
    "{a:",
    "{a://",
    "//",
    "\\",
    "grade ",
    "grade 1 (",
    "Final answer: ",
    "</think>",
    "<think>",
    "\n",
    " ",
    "((",
    "-1",
]


SAID = "size number grade percent of bml lesion share the is not than slice : = - ( ) . , 2 3 -1 2.5 10-75 % or none small less medial tibia _ ** 1. ２ ² é"
SENTENCES = st.lists(
    st.sampled_from([*SAID.split(), "\n", ". ", ".\n", " (0-3): ", "full-thickness"]), max_size=30
)


@settings(max_examples=300)
@given(
    SENTENCES,
    st.sampled_from(["", " "]),
    st.sampled_from([BML, OSTEOPHYTE, question("tibia_medial_central_cartilage")]),
)
def test_sentences_that_are_skipped_state_nothing(pieces: list[str], gap: str, asked: Question) -> None:
    text = gap.join(pieces)
    known = answer_grades.vocabulary_of(asked).grammar
    plain = answer_text._plain(text)
    whole: dict[str, set[float]] = {}
    answer_text._state(answer_text._WORD.findall(plain), known.names, known.meanings, whole)
    assert answer_text.stated(text, known) == whole
    assert answer_text._cut(plain) == answer_text._WORD.findall(plain)


@pytest.mark.parametrize("pattern", HOSTILE)
def test_no_text_makes_its_reader_go_over_it_again_and_again(pattern: str) -> None:
    """In a child with so many processor seconds, ten times what it takes: work that grew with the square of the text,
    even at the speed of a search for one byte, would take more."""
    known = answer_text.grammar([("grade", "grade")], {"grade": ()})
    text = (pattern * 400_000)[:400_000]

    def scan() -> str:  # without the cap on the length, which would hide what grows
        answer_text.json_values(text)
        answer_text.final_line(text)
        answer_text.tagged_answer(text)
        answer_text.stated(text, known)
        return answers.read(OSTEOPHYTE, text * 2).status

    assert limited(scan, 4)


def test_a_reader_that_goes_over_its_text_again_is_ended() -> None:
    text = "{" * 150_000
    with pytest.raises(DataError, match="V010"):
        limited(lambda: str(sum(len(text[n:]) for _ in text for n in range(len(text)))), 0.5)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 20_000 + "1" + "}" * 20_000,
        "9" * 100_000,
        '{"grade": ' + "9" * 5000 + "}",
    ],
)
def test_depth_and_digits_are_bounded(text: str) -> None:
    assert answers.read(OSTEOPHYTE, text).status in ("unparsed", "invalid")


@pytest.mark.parametrize("depth", [10, 63, 64, 65, 300, 600, 900, 980, 5000])
def test_nesting_never_exhausts_the_stack(depth: int) -> None:
    for opening, closing in (('{"a":', "}"), ('{"a":[', "]}")):
        answer = answers.read(OSTEOPHYTE, opening * depth + '{"grade": 2}' + closing * depth)
        assert answer.grades in ({"grade": 2}, {})
    # newer Pythons let the standard library go deeper than our own functions, which follow the value, could
    assert (answer_text._plain_value_at('{"a":' * depth + "1" + "}" * depth, 0) is None) == (depth > 64)
