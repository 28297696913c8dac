"""Words: two wordings per question that stay apart, and reasoning that says exactly what the grades say."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest

from reasonknee.boxes import Box
from reasonknee.errors import UsageError
from reasonknee.questions import QUESTIONS, Question, prompts, reasoning
from reasonknee.questions.contradictions import contradictions
from reasonknee.questions.lesions import MACERATED, MACERATION_MIMICS
from reasonknee.questions.reasons import reason
from reasonknee.validation.statements import Facts, wrong_grades, wrong_places

ALL = list(QUESTIONS.values())
BOX = Box(3, 9, 11, 20, 7, 30)


def combinations(q: Question) -> list[dict[str, int]]:
    return [
        dict(zip([a.id for a in q.attributes], g, strict=True))
        for g in itertools.product(*(a.space.grades for a in q.attributes))
    ]


SHOWN = prompts.Shown((160, 384, 384), (0.7, 0.365, 0.365), "right", "LIP", range(0, 160, 5), (256, 256))


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_wordings(q: Question) -> None:
    """Every wording states the codes of all grades; looks and guidance are the instruction's alone."""
    zero, full = prompts.zero_shot(q), prompts.instruction(q)
    assert q.lesion.appearance not in zero  # a zero-shot run gets no guidance
    assert q.lesion.rule not in zero
    assert q.lesion.appearance in full
    for text in (zero, full, prompts.ask(q, "region")):
        assert q.place in text
        for a in q.attributes:
            assert f'"{a.id}"' in text
            assert "; ".join(f"{g} = {m}" for g, m in enumerate(a.space.meanings)) in text
    assert prompts.answer_form(q) in zero
    assert prompts.answer_form(q) in full
    assert prompts.wordings(q) == {name: prompts.ask(q, name) for name in prompts.WORDINGS}


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_a_box_is_asked_for_where_there_is_one_to_find(q: Question) -> None:
    for setting in ("zero_shot", "instruction"):
        assert (
            ("3D box" in prompts.ask(q, setting))
            == ('"z0"' in prompts.ask(q, setting))
            == bool(q.region.labels)
        )
    region = prompts.ask(q, "region", dataclasses.replace(SHOWN, crop=Box(10, 60, 5, 90, 6, 80)))
    assert "box" not in region
    assert '"z0"' in prompts.ask(q, "locate")
    assert '"grades"' not in prompts.ask(q, "locate")


@pytest.mark.parametrize(
    ("side", "orientation", "told"),
    [
        ("right", "LIP", "Slice 0 is the most lateral one and the numbers grow towards medial"),
        ("left", "LIP", "Slice 0 is the most medial one and the numbers grow towards lateral"),
        ("right", "RSA", "Slice 0 is the most medial one and the numbers grow towards lateral"),
        ("left", "RSA", "Slice 0 is the most lateral one and the numbers grow towards medial"),
    ],
)
def test_what_is_shown_is_told(side: str, orientation: str, told: str) -> None:
    text = prompts.ask(ALL[0], "zero_shot", dataclasses.replace(SHOWN, side=side, orientation=orientation))
    assert text.startswith(
        f"This is a sagittal DESS MRI of a {side} knee: 160 slices (z) of 384 rows (y) and 384 col"
    )
    assert told in text
    down = orientation[1] == "I"
    assert ("rows grow from superior to inferior" if down else "rows grow from inferior to superior") in text
    assert ("columns from anterior to posterior" if down else "columns from posterior to anterior") in text
    assert "0.7 x 0.365 x 0.365 mm" in text
    assert "The 32 frames are slices 0 to 155 in steps of 5." in text
    assert "256 x 256 pixels, for 384 x 384 voxels" in text
    assert text.endswith(prompts.zero_shot(ALL[0]))  # the row's wording, word for word, after the description


def test_frames_and_crops_are_told() -> None:
    def told(**changed: object) -> str:
        return prompts.describe(dataclasses.replace(SHOWN, **changed))

    assert "The one frame is slice 7." in told(slices=(7,))
    assert "slices 159 to 0, one after another" in told(slices=range(159, -1, -1))
    assert "The 3 frames are slices 1, 2, 9." in told(slices=(1, 2, 9))
    crop = Box(40, 60, 10, 31, 20, 52)
    part = told(crop=crop, slices=range(40, 60), frame=(21, 32))
    assert "a part of it: slices 40 to 59, rows 10 to 30, columns 20 to 51." in part
    assert part.endswith("Each frame has 21 x 32 pixels.")
    assert told(slices=(), note="No image is shown.").endswith("No image is shown.")
    form = prompts.BoxForm("[z0, z1]", "Two numbers.")
    assert '{"box": [z0, z1], "grades"' in prompts.ask(
        ALL[0], "zero_shot", dataclasses.replace(SHOWN, box_form=form)
    )


def test_nothing_is_called_cut_out_where_no_region_is() -> None:
    """Periarticular features have no box, so that nothing is cut out for them."""
    for q in ALL:
        assert ("cut out of the knee" in prompts.ask(q, "region")) == bool(q.region.labels)


def test_words_that_fit_the_place_and_every_count() -> None:
    """A spur is at a margin, not in it; one focus is not "all foci together"; a ganglion has no typical place."""
    spur, ganglion = QUESTIONS["patella_inferior_osteophyte"], QUESTIONS["ganglion_cyst"]
    assert "an osteophyte at the inferior pole of the patella" in prompts.zero_shot(spur)
    assert "extrusion at the medial edge" in prompts.instruction(
        QUESTIONS["medial_meniscus_medial_extrusion"]
    )
    assert "typical" not in reason(ganglion, ganglion.attributes[0], {"presence": 1})
    for q in ALL:
        for grades in combinations(q):
            assert "all foci" not in "".join(reasoning.steps(q, grades, BOX))
    assert "subchondral" not in reasoning.assess(QUESTIONS["tibia_subspinous_bml"], {"size": 0})


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(UsageError, match="Q003"):
        prompts.ask(ALL[0], "few_shot")


def test_wordings_differ_between_questions() -> None:
    assert len({prompts.zero_shot(q) for q in ALL}) == len({prompts.instruction(q) for q in ALL}) == 69


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_steps_follow_the_grades(q: Question) -> None:
    """Region first, then the lesion, then one step per attribute that ends in its grade; different grades never read the same."""
    told = set()
    for grades in combinations(q):
        steps = reasoning.steps(q, grades, BOX, (160, 384, 384))
        assert len(steps) == 2 + len(q.attributes)
        assert steps[0].startswith("Locate the " + q.place)
        assert "slices 3 to 8 of 160" in steps[0]
        for a, step in zip(q.attributes, steps[2:], strict=True):
            assert step.endswith(f"grade {grades[a.id]}.")
            assert a.space.meanings[grades[a.id]] in step
        told.add(tuple(steps))
    assert len(told) == len(combinations(q))


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_no_finding_is_called_so(q: Question) -> None:
    for grades in combinations(q):
        normal = not any(
            grade for name, grade in grades.items() if name != "tear_location"
        )  # a tear is not the cyst that is asked for
        said = reasoning.assess(q, grades)
        # grade 0 of these two is not nothing: up to 1.9 mm, and fluid as in any knee
        none = normal and q.lesion.id not in ("extrusion", "effusion_synovitis")
        assert ("no sign of" in said) == none
        if normal or q.lesion.id not in ("acl", "pcl"):
            lost = grades.get("morphology") in MACERATED
            assert (MACERATION_MIMICS if lost else q.lesion.mimics) in said
        assert ("in keeping with" in said or "rather than" in said) == (not normal)


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_sentences_are_sentences(q: Question) -> None:
    said = [prompts.zero_shot(q), prompts.instruction(q), *(reasoning.assess(q, g) for g in combinations(q))]
    wrong = re.compile(
        r"there is (two|three|radial|horizontal|vertical|complex)|follow-up only, in|Is there loose|\b[Aa] [aeio]|\ban [^aeiouh]|\.\.|,,"
    )
    for text in said:
        assert not wrong.search(text), text
        assert "follow-up only" not in text or text in said[:2]


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_the_row_chooses_among_sentences_that_mean_the_same(q: Question) -> None:
    """Deterministic, varied, and whatever the sentence, the same facts."""
    grades = {a.id: a.space.grades[-1] for a in q.attributes}
    told = {tuple(reasoning.steps(q, grades, BOX, (160, 384, 384), f"row-{n}")) for n in range(40)}
    assert len(told) > 8
    assert reasoning.steps(q, grades, BOX, None, "a") == reasoning.steps(q, grades, BOX, None, "a")
    for steps in told:
        facts = Facts(q, grades, BOX, (160, 384, 384))
        assert not wrong_grades(facts, steps)
        assert not wrong_places(facts, steps)


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_what_is_unknown_is_not_spoken_of(q: Question) -> None:
    for grades in combinations(q):
        for missing in grades:
            known = {a: g for a, g in grades.items() if a != missing}
            if known:
                steps = reasoning.steps(q, known, BOX, (160, 384, 384), missing)
                assert len(steps) == 2 + len(known)
                assert not wrong_grades(Facts(q, known, BOX, (160, 384, 384)), steps)


@pytest.mark.parametrize(
    ("asked", "grades", "said"),
    [
        ("medial_meniscus_medial_extrusion", {"grade": 0}, "1.9 mm beyond the plateau's edge at most"),
        ("patella_medial_bml", {"size": 1, "number": 1, "percent_bml": 3}, "a third of the lesion at most"),
        ("patella_medial_bml", {"size": 0, "number": 0, "percent_bml": 0}, "no lesion to divide"),
        ("patella_medial_bml", {"size": 2, "number": 1, "percent_bml": 0}, "all of the lesion is cyst"),
        (
            "patella_medial_bml",
            {"size": 2, "number": 1, "percent_bml": 2},
            "at least a third of the subregion, but no more than two thirds",
        ),
        ("acl", {"complete_tear": 0, "insertion_bml_cyst": 0, "repair": 0}, "some fibres at least"),
        ("hoffa_synovitis", {"grade": 1}, "vascular streaks"),
        ("loose_bodies", {"presence": 1}, "joint cavity"),
        ("iliotibial_band_signal", {"presence": 0}, "no sign of abnormal iliotibial band signal"),
        ("medial_meniscus_medial_extrusion", {"grade": 1}, "the wedge reaches 2 mm or more"),
        # its upper end is a little bright in anybody
        ("patellar_tendon", {"signal_abnormality": 0}, "no part of it is brighter than tendon should be"),
        ("medial_meniscus_body_morphology", {"morphology": 6}, "unlike a displaced fragment"),
        ("medial_meniscus_root_tear", {"presence": 1}, "interrupted by a bright cleft, or missing"),
        (
            "medial_meniscus_root_tear",
            {"presence": 1},
            "the root cannot be followed",
        ),  # not the tear's fibres
        (
            "patella_medial_bml",
            {"size": 2, "number": 3, "percent_bml": 3},
            "with cyst making up a third at most",
        ),
        ("popliteal_cyst", {"presence": 0}, "a trace of fluid at most"),
        # whether there is a lesion at all, nobody knows
        ("patella_medial_bml", {"percent_bml": 0}, "nothing is ill-defined signal rather than cyst"),
        ("patella_medial_bml", {"number": 0, "percent_bml": 0}, "no lesion to divide"),
    ],
)
def test_it_is_true_at_the_edges(asked: str, grades: dict[str, int], said: str) -> None:
    assert said in " ".join(reasoning.steps(QUESTIONS[asked], grades, None))


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_each_grade_has_a_reason_of_its_own(q: Question) -> None:
    for a in q.attributes:
        told = {reason(q, a, {a.id: g}) for g in a.space.grades}
        assert len(told) == len(a.space.grades)


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_no_reason_is_given_for_what_cannot_be(q: Question) -> None:
    """Grades that contradict each other are told as they were read."""
    for grades in combinations(q):
        told = {reason(q, a, grades) for a in q.attributes}
        assert (told == {"it was read so, although the grades given here contradict each other"}) == bool(
            contradictions(q, grades)
        )


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_what_looks_alike_is_named_as_such(q: Question) -> None:
    """A choice of what is taken for a finding that the sentence names; none says that somebody looked for it."""
    assert " and " not in q.lesion.mimics
    for grades in ({a.id: 0 for a in q.attributes}, {a.id: 1 for a in q.attributes}):
        for row in map(str, range(12)):
            said = reasoning.assess(q, grades, row)
            assert not re.search(r"mistake \w.* for it\b|was taken|ruled out", said), said


def test_of_the_region_alone_nothing_is_located() -> None:
    q, grades = QUESTIONS["acl"], {"complete_tear": 1, "insertion_bml_cyst": 0, "repair": 0}
    steps = reasoning.in_region(q, reasoning.steps(q, grades, BOX, (160, 384, 384)))
    assert steps[0] == "The images show the anterior cruciate ligament."
    assert not re.search(r"slice|column", " ".join(steps))
    assert len(steps) == 5


def test_without_a_box() -> None:
    step = reasoning.locate(ALL[0], None)
    assert "no box" in step
    assert not re.search(r"\d", step)


@pytest.mark.parametrize(
    ("grades", "said", "unsaid"),
    [
        ({"complete_tear": 1, "repair": 0}, ("a complete tear", "mucoid change"), ("or other abnormality",)),
        ({"complete_tear": 0, "repair": 1}, ("an earlier repair", "channel in the bone"), ("mucoid change",)),
        # a partial tear is no complete one: of an intact ligament nothing is said but what was graded
        ({"complete_tear": 0}, ("there is no sign of a complete tear",), ("repair", "other abnormality")),
        # what looks like a tear says nothing of a repair
        ({"repair": 0}, ("no sign of an earlier repair", "channel in the bone"), ("mucoid change",)),
        (
            {"complete_tear": 1, "insertion_bml_cyst": 1, "repair": 1},
            ("missing, the marrow at an attachment is bright or holds a cyst, and a graft or its tunnels",),
            (),
        ),
    ],
)
def test_a_ligament_is_told_by_its_own_findings(
    grades: dict[str, int], said: tuple[str, ...], unsaid: tuple[str, ...]
) -> None:
    told = reasoning.assess(QUESTIONS["acl"], grades)
    assert all(words in told for words in said), told
    assert not any(words in told for words in unsaid), told


def test_a_question_without_a_box_calls_nothing_undelineated() -> None:
    """Loose bodies lie in the joint cavity, which has a mask: it is the question that has no box."""
    told = {reasoning.locate(QUESTIONS["loose_bodies"], None, None, str(n)) for n in range(20)}
    assert len(told) == 2
    assert not any("delineated" in text for text in told)
    assert "delineated" in reasoning.locate(QUESTIONS["effusion_synovitis"], None)
