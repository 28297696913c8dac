"""Grades that cannot all be true are named by their rule; sound ones are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import command
from hypothesis import given
from hypothesis import strategies as st

from reasonknee.cohort.annotations import FILE_NAME, scan_annotations
from reasonknee.layout import read_manifest
from reasonknee.questions import QUESTIONS, question
from reasonknee.questions.contradictions import RULES, contradictions, of_knee
from reasonknee.release.reader import Release

TORN = {"medial_meniscus_body_morphology": {"morphology": 3}}
WHOLE = {"medial_meniscus_body_morphology": {"morphology": 0}}


@pytest.mark.parametrize(
    ("asked", "grades", "visit", "knee", "broken"),
    [
        ("patella_medial_cartilage", {"size": 1, "full_thickness_pct": 3}, "", {}, ["cartilage_depth"]),
        ("patella_medial_cartilage", {"size": 1, "full_thickness_pct": 1}, "", {}, []),
        ("patella_medial_cartilage", {"full_thickness_pct": 3}, "", {}, []),
        ("patella_medial_bml", {"size": 3, "number": 0}, "", {}, ["bml_size_without_number"]),
        ("patella_medial_bml", {"size": 0, "number": 2}, "", {}, ["bml_number_without_size"]),
        (
            "patella_medial_bml",
            {"size": 0, "number": 0, "percent_bml": 2},
            "",
            {},
            ["bml_share_without_lesion"],
        ),
        ("patella_medial_bml", {"size": 2, "number": 1, "percent_bml": 0}, "", {}, []),  # all of it cyst
        ("medial_meniscus_cyst", {"presence": 1, "tear_location": 1}, "", WHOLE, ["tear_without_morphology"]),
        ("medial_meniscus_cyst", {"presence": 1, "tear_location": 1}, "", TORN, []),
        ("medial_meniscus_cyst", {"presence": 1, "tear_location": 1}, "", {}, []),
        ("medial_meniscus_cyst", {"presence": 1, "tear_location": 3}, "", WHOLE, []),
        ("medial_meniscus_body_morphology", {"morphology": 7}, "00m", {}, ["progression_at_baseline"]),
        ("medial_meniscus_body_morphology", {"morphology": 7}, "12m", {}, []),
    ],
)
def test_rules(
    asked: str, grades: dict[str, int], visit: str, knee: dict[str, dict[str, int]], broken: list[str]
) -> None:
    assert contradictions(question(asked), grades, visit, knee) == broken
    assert of_knee({**knee, asked: grades}, visit) == [(rule, asked) for rule in broken]


@given(st.data())
def test_less_knowledge_never_contradicts_more(data: st.DataObject) -> None:
    q = data.draw(st.sampled_from(list(QUESTIONS.values())))
    grades = {a.id: data.draw(st.sampled_from(a.space.grades)) for a in q.attributes}
    some = {a: g for a, g in grades.items() if data.draw(st.booleans())}
    broken = contradictions(q, grades, "00m", TORN)
    assert set(contradictions(q, some, "00m", TORN)) <= set(broken) <= set(RULES)
    assert not contradictions(q, {}, "00m")


def test_they_are_counted_told_and_kept(
    cohort: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """From OAI's cells to the warnings of `validate`."""
    mine, release = tmp_path / "cohort", tmp_path / "release"
    mine.mkdir()
    for name in ("images", "masks", "splits"):
        (mine / name).symlink_to(cohort / name)
    shutil.copytree(cohort / "tables", mine / "tables")
    table = mine / "tables" / "kMRI_SQ_MOAKS_BICL00.txt"
    header, *rows = [line.split("|") for line in table.read_text().splitlines()]
    knee = next(a for _, a in scan_annotations(cohort / FILE_NAME) if a.visit == "00m")
    for row in rows:
        if row[0] == knee.patient and knee.side in row[1].lower():  # all readings of the knee
            row[header.index("V00MCMPM")] = "1.3: full thickness beyond any loss"
            row[header.index("V00MMTMB")] = "7: progressive"
    table.write_text("\n".join("|".join(line) for line in (header, *rows)) + "\n")
    assert command("construct", mine) == 0
    told = capfd.readouterr().out
    first, second = "patella_medial_cartilage", "medial_meniscus_body_morphology"
    assert f"contradiction: 1 x {RULES['cartilage_depth']}: {knee.volume_id}-{first}\n" in told
    assert f"contradiction: 1 x {RULES['progression_at_baseline']}: {knee.volume_id}-{second}\n" in told
    assert command("build", mine, release, "--configs", "annotations") == 0
    kept = Release(release).row(f"{knee.volume_id}-{first}", "annotations")
    assert kept is not None
    assert (kept["grades"]["size"], kept["grades"]["full_thickness_pct"]) == (1, 3)
    assert "although the grades given here contradict each other" in kept["reasoning"][2]
    assert command("validate", release) == 0
    assert "0 errors, 2 warnings" in capfd.readouterr().out
    counted = read_manifest(release).provenance["contradictions"]
    assert counted == {"cartilage_depth": 1, "progression_at_baseline": 1}
