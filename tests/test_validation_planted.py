"""A builder's bug cannot approve itself: bugs are planted in the builder, one at a time, and `validate` finds each in what it built."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reasonknee.boxes import Box
from reasonknee.cohort import Cohort
from reasonknee.questions import QUESTIONS, prompts, reasoning
from reasonknee.release import Options, build, rows, shards
from reasonknee.validation.report import as_text
from reasonknee.validation.run import validate_release
from reasonknee.volumes import Volume

Patch = pytest.MonkeyPatch
OPTIONS = Options(questions="all69", margin_mm=3.0)


@pytest.fixture(scope="module")
def knees(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two volumes of train and one of test, so that a build takes a moment."""
    folder = tmp_path_factory.mktemp("planted") / "cohort"
    folder.mkdir()
    known = [json.loads(line) for line in (cohort / "annotations.jsonl").read_text().splitlines()]
    kept = [
        a for split, n in (("train", 2), ("test", 1)) for a in [a for a in known if a["split"] == split][:n]
    ]
    for name in ("images", "masks", "embeddings.h5"):
        (folder / name).symlink_to(cohort / name)
    (folder / "annotations.jsonl").write_text("".join(json.dumps(a) + "\n" for a in kept))
    return folder


# --- the bugs ---------------------------------------------------------------------------------------------------------------------

BUGS: dict[str, tuple[str, Callable[[Patch], None]]] = {}


def bug(code: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Names a bug after its function, with the code that must tell of it."""

    def keep(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        BUGS[plant.__name__] = (code, plant)
        return plant

    return keep


def after(patch: Patch, module: Any, name: str, change: Callable[..., Any]) -> None:
    """What a function of the builder returns goes through `change`, with the arguments that it had."""
    real = getattr(module, name)
    patch.setattr(module, name, lambda *args, **more: change(real(*args, **more), *args))


@bug("X110")
def wrong_grade_in_a_step(patch: Patch) -> None:
    real = reasoning.grade_step

    def next_one(q: Any, a: Any, grades: dict[str, int], *more: Any) -> str:
        return real(q, a, {**grades, a.id: (grades[a.id] + 1) % len(a.space.meanings)}, *more)

    patch.setattr(reasoning, "grade_step", next_one)


@bug("X110")
def meaning_of_the_neighbouring_grade(patch: Patch) -> None:
    def change(text: str, _: object, attribute: Any, grades: dict[str, int], *__: object) -> str:
        meanings, grade = attribute.space.meanings, grades[attribute.id]
        return text.replace(meanings[grade], meanings[grade - 1])

    after(patch, reasoning, "grade_step", change)


@bug("X110")
def finding_of_the_neighbouring_grade(patch: Patch) -> None:
    """One too many foci, the next kind of tear, fluid of the next grade."""
    real = reasoning._seen

    def next_one(q: Any, grades: dict[str, int]) -> str:
        spaces = {a.id: len(a.space.meanings) for a in q.attributes}
        return real(q, {name: (grade + 1) % spaces[name] for name, grade in grades.items()})

    patch.setattr(reasoning, "_seen", next_one)


@bug("X110")
def finding_where_there_is_none(patch: Patch) -> None:
    patch.setattr(reasoning, "_normal", lambda q, _: q.lesion.finding or "there is something")


@bug("X110")
def lesion_denied(patch: Patch) -> None:
    patch.setattr(
        reasoning, "assess", lambda q, *_: f"Assess the {q.place}: no sign of {q.lesion.indefinite}."
    )


@bug("X110")
def grades_of_two_attributes_exchanged(patch: Patch) -> None:
    def change(row: dict[str, Any], *_: object) -> dict[str, Any]:
        grades = row["grades"]
        if row["category"] == "cartilage":
            grades |= {"size": grades["full_thickness_pct"], "full_thickness_pct": grades["size"]}
        return row

    after(patch, rows, "_quintuple", change)


@bug("X109")
def last_slice_one_too_many_in_the_text(patch: Patch) -> None:
    real = reasoning.locate
    patch.setattr(
        reasoning,
        "locate",
        lambda q, box, *more: real(q, box and Box(box.z0, box.z1 + 1, box.y0, box.y1, box.x0, box.x1), *more),
    )


@bug("X109")
def rows_and_columns_exchanged_in_the_text(patch: Patch) -> None:
    real = reasoning.locate
    patch.setattr(
        reasoning,
        "locate",
        lambda q, box, *more: real(q, box and Box(box.z0, box.z1, box.x0, box.x1, box.y0, box.y1), *more),
    )


@bug("X109")
def another_region_in_the_text(patch: Patch) -> None:
    after(
        patch,
        reasoning,
        "locate",
        lambda text, *_: text.replace("medial", "#").replace("lateral", "medial").replace("#", "lateral"),
    )


@bug("X302")
def box_off_by_one(patch: Patch) -> None:
    def change(row: dict[str, Any], *_: object) -> dict[str, Any]:
        return {**row, "box": row["box"] and {**row["box"], "z1": row["box"]["z1"] - 1}}

    after(patch, rows, "_quintuple", change)


@bug("X302")
def crop_shifted(patch: Patch) -> None:
    after(patch, rows, "crop_box", lambda box, *_: replace(box, y0=box.y0 + 1))


@bug("X302")
def margin_forgotten(patch: Patch) -> None:
    patch.setattr(rows, "crop_box", lambda box, *_: box)


@bug("X309")
def voxels_of_a_crop_shifted(patch: Patch) -> None:
    after(patch, Volume, "crop", lambda crop, *_: Volume(np.roll(crop.array, 1, axis=1).copy(), crop.grid))


@bug("X309")
def intensity_of_a_crop_scaled(patch: Patch) -> None:
    after(patch, Volume, "crop", lambda crop, *_: Volume(crop.array // 2, crop.grid))


@bug("X304")
def affine_of_the_volume_for_its_crops(patch: Patch) -> None:
    def change(crop: Volume, whole: Volume, *_: object) -> Volume:
        return Volume(crop.array, replace(crop.grid, affine=whole.grid.affine))

    after(patch, Volume, "crop", change)


@bug("X304")
def affine_in_another_unit(patch: Patch) -> None:
    def change(packed: dict[str, Any], volume: Volume) -> dict[str, Any]:
        affine = volume.grid.affine * np.array([[10.0], [10.0], [10.0], [1.0]])
        return {
            **packed,
            "bytes": rows.nifti_bytes(Volume(volume.array, replace(volume.grid, affine=affine))),
        }

    after(patch, rows, "_packed", change)


@bug("X304")
def spacing_in_another_order(patch: Patch) -> None:
    def change(about: dict[str, Any], *_: object) -> dict[str, Any]:
        z, y, x = about["spacing"].values()
        return {**about, "spacing": {"z": x, "y": y, "x": z}}

    after(patch, rows, "_about_volume", change)


@bug("X304")
def orientation_the_same_for_all(patch: Patch) -> None:
    after(patch, rows, "_about_volume", lambda about, *_: {**about, "orientation": "RSA"})


@bug("X303")
def shape_in_another_order(patch: Patch) -> None:
    def change(about: dict[str, Any], *_: object) -> dict[str, Any]:
        z, y, x = about["shape"].values()
        return {**about, "shape": {"z": x, "y": y, "x": z}}

    after(patch, rows, "_about_volume", change)


@bug("X306")
def left_for_right(patch: Patch) -> None:
    other, made = {"left": "right", "right": "left"}, rows.rows

    def mirrored(sources: Any, *more: Any) -> Iterator[Any]:
        a = sources.annotation
        return made(replace(sources, annotation=replace(a, side=other[a.side])), *more)

    patch.setattr(shards, "rows", mirrored)


@bug("X105")
def side_without_its_id(patch: Patch) -> None:
    after(patch, rows, "_about_volume", lambda about, *_: {**about, "side": "left"})


@bug("X108")
def wordings_exchanged(patch: Patch) -> None:
    def change(text: dict[str, str], *_: object) -> dict[str, str]:
        return {"zero_shot": text["instruction"], "instruction": text["zero_shot"]}

    after(patch, prompts, "wordings", change)
    rows._wordings.cache_clear()


@bug("X108")
def wording_of_the_next_question(patch: Patch) -> None:
    names = list(QUESTIONS)
    following = dict(zip(names, [*names[1:], names[0]], strict=True))
    real = prompts.wordings
    patch.setattr(prompts, "wordings", lambda q: real(QUESTIONS[following[q.id]]))
    rows._wordings.cache_clear()


@bug("X108")
def codes_count_from_one(patch: Patch) -> None:
    def change(text: dict[str, str], *_: object) -> dict[str, str]:
        return {name: words.replace("1 = ", "2 = ").replace("0 = ", "1 = ") for name, words in text.items()}

    after(patch, prompts, "wordings", change)
    rows._wordings.cache_clear()


@bug("X103")
def question_under_another_id(patch: Patch) -> None:
    def change(row: dict[str, Any], _: object, annotation: Any, *__: object) -> dict[str, Any]:
        name = row["question_id"].replace("medial", "lateral")
        return {**row, "question_id": name, "id": f"{annotation.volume_id}-{name}"}

    after(patch, rows, "_quintuple", change)


@bug("X308")
def answers_of_the_other_compartment(patch: Patch) -> None:
    """Box and grades of the medial side under the lateral question, everything else as it should be."""

    def change(row: dict[str, Any], q: Any, annotation: Any, *more: Any) -> dict[str, Any]:
        other = QUESTIONS.get(q.id.replace("lateral", "medial"), q)
        if q.category.id != "bml" or other is q:
            return row
        theirs = real(other, annotation, *more)
        steps = [s.replace(other.place, q.place) for s in theirs["reasoning"]]
        return {**row, "box": theirs["box"], "grades": theirs["grades"], "reasoning": steps}

    real = rows._quintuple
    after(patch, rows, "_quintuple", change)


@bug("X106")
def row_twice(patch: Patch) -> None:
    def change(made: Iterator[Any], *_: object) -> list[Any]:
        listed = list(made)
        return [listed[0], *listed]

    after(patch, shards, "rows", change)


@bug("X107")
def row_lost_in_one_config(patch: Patch) -> None:
    def change(made: Iterator[Any], _: object, config: str, *__: object) -> list[Any]:
        return list(made)[: -1 if config == "annotations" else None]

    after(patch, shards, "rows", change)


@bug("X204")
def row_lost_in_every_config(patch: Patch) -> None:
    made = rows.rows

    def fewer(sources: Any, config: str, options: Options) -> Iterator[Any]:
        annotation = sources.annotation
        last = list(annotation.grades)[-1]
        kept = {q: g for q, g in annotation.grades.items() if q != last}
        return made(replace(sources, annotation=replace(annotation, grades=kept)), config, options)

    patch.setattr(shards, "rows", fewer)


@bug("X204")
def volume_lost(patch: Patch) -> None:
    real = shards.Writer.add
    kept: set[str] = set()

    def add(self: Any, of_one_volume: Iterator[Any]) -> None:
        first, *rest = list(of_one_volume)
        if first["volume_id"] in kept or not kept:
            kept.add(first["volume_id"])
            real(self, [first, *rest])

    patch.setattr(shards.Writer, "add", add)


@bug("X202")
def embedding_of_the_first_volume_for_all(patch: Patch) -> None:
    first: list[Any] = []

    def change(embedding: Any, *_: object) -> Any:
        first.append(embedding)
        return first[0]

    after(patch, rows, "_embedding", change)


@bug("X115")
def series_of_the_first_volume_for_all(patch: Patch) -> None:
    after(
        patch, rows, "_about_volume", lambda about, *_: {**about, "study": "20050101", "series": "10000001"}
    )


@bug("X301")
def box_in_another_order(patch: Patch) -> None:
    def change(row: dict[str, Any], *_: object) -> dict[str, Any]:
        return {
            **row,
            "box": row["box"] and dict(zip(row["box"], list(row["box"].values())[::-1], strict=True)),
        }

    after(patch, rows, "_quintuple", change)


@bug("X114")
def sections_of_a_knee_in_one_row_group(patch: Patch) -> None:
    patch.setattr(shards, "groupby", lambda made, key: [("all", list(made))])


# --- the test ---------------------------------------------------------------------------------------------------------------------


def built(cohort: Path, folder: Path) -> Path:
    build(Cohort(cohort), folder, options=OPTIONS)
    return folder


def test_the_builder_as_it_is_fires_nothing(knees: Path, tmp_path: Path) -> None:
    assert validate_release(built(knees, tmp_path / "r")).as_dict()["findings"] == []


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, knees: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    code, plant = BUGS[name]
    with monkeypatch.context() as patch:
        plant(patch)
        folder = built(knees, tmp_path / "r")
    rows._wordings.cache_clear()
    findings = validate_release(folder)
    assert code in findings.groups, as_text(findings, name)


def test_there_are_enough_of_them() -> None:
    assert len(BUGS) >= 15
