"""Published rows become annotations, and annotations are joined with scans, with every row and scan accounted for."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, command, run
from dicom_series import oai_folder, write_series

from reasonknee.boxes import Box
from reasonknee.cohort import Annotation, Provenance
from reasonknee.cohort.annotations import FILE_NAME, scan_annotations, write_annotations
from reasonknee.cohort.scans import find_scans, image_sha256
from reasonknee.construct.attach import turn
from reasonknee.construct.upstream import PROTOCOL_GRID, asked, construct_upstream
from reasonknee.errors import DataError
from reasonknee.layout import read_manifest
from reasonknee.layout.strict_text import json_items
from reasonknee.phantom.cohort import phantom_grid
from reasonknee.questions import QUESTIONS, Question
from reasonknee.volumes import Grid, Volume, read_grid, read_volume, write_nifti


def published(question: Question, grades: dict[str, int], box: Box | None) -> dict[str, Any]:
    """An answer in the published shape: wrappers, key casing and bare integers as the table says they are."""
    answer: dict[str, Any] = {"bounding_box": box and box.to_upstream()}
    for attribute in question.attributes:
        inner = answer
        for part in attribute.upstream_path[:-1]:
            inner = inner.setdefault(part, {})
        inner[attribute.upstream_path[-1]] = grades[attribute.id]
    return answer


def reasoning_on(question_id: str) -> str:
    """What the published dataset says before its answer: words that are not ours, with odd characters."""
    return f"Step 1:  I look at “{question_id}” — twice.\r\n\tStep 2: it is what it is (≥ 1 mm, see https://example.org)."


def rows(annotations: list[Annotation], apart: bool = False) -> Iterator[dict[str, Any]]:
    """A row for each question; the diagnosis stands `apart` from the words, or in the answer with them."""
    for a in annotations:
        for question_id, grades in a.grades.items():
            q = QUESTIONS[question_id]
            raw = a.visit == "24m"  # some rows name the raw folder, whose side only the split file knows
            nifti = f"../data/images/{a.patient}/{a.visit.upper()}/{a.study}_{a.series}_{a.side}.nii.gz"
            words, form = reasoning_on(question_id), published(q, grades, a.boxes[q.region.id])
            yield {
                "image": f"{a.visit}DESS/0.C.2/{a.patient}/{a.study}/{a.series}" if raw else nifti,
                "prompt": "Grade the knee.",
                "answer": words if apart else f"{words}\n```json\n{json.dumps(form, indent=1)}\n```",
                "final_diagnosis": json.dumps(form) if apart else "",
            }


def known(path: Path) -> list[Annotation]:
    return [a for _, a in scan_annotations(path)]


@pytest.fixture
def hub(cohort: Path, tmp_path: Path) -> Path:
    """The published repository's files, made from the phantom's truth: a JSON list, JSON Lines, split files."""
    folder = tmp_path / "hub"
    shutil.copytree(cohort / "splits", folder / "splits")
    truth = known(cohort / FILE_NAME)
    (folder / "train.json").write_text(json.dumps([*rows(truth[:9])]))
    (folder / "test.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows(truth[9:], apart=True)))
    return folder


# --- published rows ---------------------------------------------------------------------------------------------------------------


def asked_only(a: Annotation) -> Annotation:
    """Rows tell only the boxes of regions that are asked about, and have words of their own."""
    regions = {QUESTIONS[q].region.id for q in a.grades}
    return replace(
        a,
        boxes={region: box if region in regions else None for region, box in a.boxes.items()},
        readings=(),
        reasoning={q: reasoning_on(q) for q in a.grades},
        provenance=Provenance(
            "published",
            None,
            "published",
            "0.C.2" if a.visit == "24m" else None,
            a.provenance.image_sha256,
        ),
    )


def test_published_rows_give_the_truth(cohort: Path, hub: Path, tmp_path: Path) -> None:
    """All 69 questions with their wrappers; grids from the cohort's images. What macOS and the Hub's client leave is no row."""
    for name in ("._train.json", ".cache/huggingface/x.json", "splits/._train.csv"):
        (hub / name).parent.mkdir(parents=True, exist_ok=True)
        (hub / name).write_bytes(b"\0\5\x16\7" * 9)
    assert command("construct", cohort, "--upstream", hub, "--out", tmp_path / "made.jsonl") == 0
    truth = [asked_only(a) for a in known(cohort / FILE_NAME)]
    assert known(tmp_path / "made.jsonl") == truth
    assert {q for a in truth for q in a.grades} == set(QUESTIONS)
    report = json.loads((tmp_path / "construct.report.json").read_text())
    assert report["rows"]["used"] == report["rows"]["total"] == sum(len(a.grades) for a in truth)


def test_published_reasoning_arrives_word_for_word(
    cohort: Path, hub: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """From the published files and a user's own scans to what `load_dataset` returns."""
    import datasets

    made, mine, release = tmp_path / "made.jsonl", tmp_path / "mine", tmp_path / "release"
    assert command("construct", cohort, "--upstream", hub, "--out", made) == 0
    assert command("attach", made, "--images", cohort / "images", "--out", mine) == 0
    assert command("build", mine, release, "--configs", "cropped,annotations", "--questions", "all69") == 0
    capfd.readouterr()
    assert command("validate", release) == 0
    assert "X119" in capfd.readouterr().out  # its address is told, and is no reason to refuse it
    told = 0
    for config in ("cropped", "annotations"):
        rows = datasets.load_dataset(str(release), config, split="train", cache_dir=str(tmp_path / "cache"))
        for row in rows.remove_columns("volume") if config == "cropped" else rows:
            assert row["published_reasoning"] == reasoning_on(row["question_id"])
            assert row["reasoning"][0].startswith("Locate the ")
            assert row["box_source"] == ("published" if row["box"] else None)
            assert row["provenance"]["grades"] == "published"
            told += 1
    assert told > 200
    told = read_manifest(release).provenance["reasoning"]
    assert told["published"] == told["derived"] == sum(len(a.grades) for a in known(made))
    assert f"published {told['published']:,}" in (release / "README.md").read_text()


FORM = json.dumps({"MOAKS_scores": {"Hoffa-Synovitis": {"grade": 2}}})


@pytest.mark.parametrize(
    ("answer", "final", "kept"),
    [
        ("Bright in the middle.", FORM, "Bright in the middle."),
        ("Bright in the middle, which is grade 2.", FORM, "Bright in the middle, which is grade 2."),
        (f"Bright.\r\n{FORM}", "", "Bright."),
        (f"Bright.\nFinal diagnosis: {FORM}", "", "Bright."),
        (f"{FORM}\nThe pad is bright.", "", f"{FORM}\nThe pad is bright."),
        (f"Bright.\n{FORM}\nNote: it moved.", "", f"Bright.\n{FORM}\nNote: it moved."),
        (json.dumps({"reasoning": "It’s “bright”.\n2.", **json.loads(FORM)}), "", "It’s “bright”.\n2."),
        (f"<think>Bright.</think>\n<answer>{FORM}</answer>", "", "Bright."),
        (f"<think>Well.</think> Bright.\n{FORM}", "", f"<think>Well.</think> Bright.\n{FORM}"),
        (FORM, "", ""),
        (FORM, "moderate", ""),
        ("Bright. Grade: 1", FORM, None),  # the two disagree
        ("Bright. Grade: 9", FORM, None),
        ("Bright.", "", None),
    ],
)
def test_wherever_a_row_has_its_words_and_its_diagnosis(
    answer: str, final: str, kept: str | None, tmp_path: Path
) -> None:
    """Words that stand around the structured part are not lost, and what contradicts itself is not taken."""
    image, prompt = "../data/images/1000001/00M/20040101_10000101_right.nii.gz", '{"Hoffa-Synovitis": 0}'
    row = {"image": image, "prompt": prompt, "answer": answer, "final_diagnosis": final}
    (tmp_path / "train.json").write_text(json.dumps([row]))
    made = construct_upstream(tmp_path, None).annotations
    if kept is None:
        assert made == []
    else:
        assert made[0].grades == {"hoffa_synovitis": {"grade": 2}}
        assert made[0].reasoning.get("hoffa_synovitis", "") == kept


def test_the_same_answer_in_other_words_takes_nothing_out(tmp_path: Path) -> None:
    """The first words stay, unless there were none."""
    image, other = (f"../data/images/100000{n}/00M/20040101_1000010{n}_right.nii.gz" for n in (1, 2))
    answers = [
        (image, f"Bright.\n{FORM}"),
        (image, f"It is bright.\n{FORM}"),
        (other, FORM),
        (other, f"So.\n{FORM}"),
    ]
    (tmp_path / "train.json").write_text(json.dumps([{"image": i, "answer": a} for i, a in answers]))
    outcome = construct_upstream(tmp_path, None)
    assert [a.reasoning for a in outcome.annotations] == [
        {"hoffa_synovitis": "Bright."},
        {"hoffa_synovitis": "So."},
    ]
    assert outcome.report["rows"]["unused"] == {"the same answer in other words": 2}


def test_scans_on_another_grid_are_told_where_none_fits(
    cohort: Path, hub: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The protocol's grid is assumed; that no scan has it is not a wrong folder."""
    made, out = tmp_path / "made.jsonl", tmp_path / "out"
    assert command("construct", "--upstream", hub, "--out", made) == 0
    assert command("attach", made, "--images", cohort / "images", "--out", out) == 3
    told = capfd.readouterr().err
    assert f"{len(known(made))} refused; the first: " in told
    assert "the annotation (160, 384, 384) LIP" in told
    assert "takes grids from COHORT/images" in told


def test_the_path_of_the_readme_needs_no_mask(
    cohort: Path, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five commands from an OAI account to a release, exactly as the README shows them, and then a first batch."""
    (block,) = re.findall(
        r"```sh\n(pip install [^`]*?hf download.*?)```", (ROOT / "README.md").read_text(), flags=re.S
    )
    install, download, *lines = block.strip().splitlines()
    assert install.startswith("pip install")
    assert download.startswith("hf download")
    assert (len(lines), hub) == (3, tmp_path / "hub")
    small = read_grid(next((cohort / "images").rglob("*.nii.gz")))
    monkeypatch.setattr("reasonknee.construct.upstream.PROTOCOL_GRID", small)
    monkeypatch.chdir(tmp_path)
    for line in lines:
        program, *words = shlex.split(line.replace("/data/oai", str(cohort / "images")), comments=True)
        assert program == "reasonknee"
        assert command(*words) == 0, line
    page = (tmp_path / "construct.report.md").read_text()
    assert "The published reasoning of" in page
    first = run(str(ROOT / "examples/first_batch.py"), "release", cwd=tmp_path)
    assert first.stdout.startswith("volumes (4, 1, 32, 64, 64) torch.float32"), first.stderr


def test_what_a_published_row_does_not_state_is_unknown(cohort: Path, hub: Path, tmp_path: Path) -> None:
    """One grade of the ligament is missing, the words are too long to keep: the question stays."""
    path = hub / "train.json"
    written = json.loads(path.read_text())
    row = next(r for r in written if '"Complete Tear"' in r["answer"] and '"ACL Repair"' in r["answer"])
    lines = [line for line in row["answer"].splitlines() if '"ACL Repair"' not in line]
    row["answer"] = (
        ("Long. " * 4000 + "\n".join(lines))
        .replace('insertion or origin": 0,', 'insertion or origin": 0')
        .replace('insertion or origin": 1,', 'insertion or origin": 1')
    )
    path.write_text(json.dumps(written))
    outcome = construct_upstream(hub, cohort)
    partial = [
        a
        for a in outcome.annotations
        if set(a.grades.get("acl", {})) == {"complete_tear", "insertion_bml_cyst"}
    ]
    assert len(partial) == 1
    assert "acl" not in partial[0].reasoning
    assert outcome.report["published_reasoning"]["too_long_or_no_plain_text"] == [
        f"{partial[0].volume_id}-acl"
    ]


def test_without_images_the_grid_is_assumed_and_said_so(
    hub: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command("construct", "--upstream", hub, "--out", tmp_path / "made.jsonl") == 0
    assert "ASSUMED" in capfd.readouterr().out
    assert {(a.shape, a.orientation) for a in known(tmp_path / "made.jsonl")} == {
        (PROTOCOL_GRID.shape, "LIP")
    }
    assert PROTOCOL_GRID.spacing == pytest.approx((0.7, 0.365, 0.365))


@pytest.mark.parametrize("q", QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_is_recognised_by_its_finding(q: Question) -> None:
    form = published(q, {a.id: 0 for a in q.attributes}, None)
    assert asked(json.dumps(form), "") is q
    assert asked("nothing here", f"Answer in this form: {json.dumps(form)}") is q


def test_rows_that_are_not_understood_are_counted_and_named(cohort: Path, hub: Path) -> None:
    a = next(a for a in known(cohort / FILE_NAME) if len(a.grades) == len(QUESTIONS))
    good = {
        json.loads(r["answer"].split("```json")[1].strip("`"))["bounding_box"] is None: r for r in rows([a])
    }[False]
    body = json.loads(good["answer"].split("```json")[1].strip("`"))

    def changed(**cells: Any) -> dict[str, Any]:
        return {**good, **cells}

    bml = published(QUESTIONS["patella_medial_bml"], {"size": 1, "number": 1, "percent_bml": 1}, None)
    bad = {
        "no image or answer in the row": {"prompt": "x"},
        "the image is not a path": changed(image=7),
        "the image path names no patient, study and series": changed(image="knee.nii.gz"),
        "the volume is in no split file": changed(image="images/1999999/00M/20000115_1_left.nii.gz"),
        "visit or side of the image are not those of its series": changed(
            image=f"images/{a.patient}/36M/{a.study}_{a.series}_{a.side}.nii.gz"
        ),
        "the row names no finding of the question table": changed(answer="all is well"),
        "the row names the findings of several questions": changed(
            answer=json.dumps(
                {
                    **body,
                    **published(
                        QUESTIONS["acl"], {"complete_tear": 0, "insertion_bml_cyst": 0, "repair": 0}, None
                    ),
                }
            )
        ),
        "grades: W003": changed(answer=json.dumps(bml).replace('": 1', '": 9', 1)),
        "grades: W001": changed(answer=json.dumps({"MOAKS_scores": {"patella medial BML": {}}})),
        "box: W012": changed(answer=json.dumps({**body, "bounding_box": [0, 999, 0, 1, 0, 1]})),
        "box: W011": changed(answer=json.dumps({**body, "bounding_box": [0, 1]})),
        "the same row again": good,
    }
    (hub / "zz.json").write_text(json.dumps(list(bad.values())))
    outcome = construct_upstream(hub, cohort)
    found = outcome.report["rows"]
    assert found["unused_named"] == {reason: [f"zz.json:{n}"] for n, reason in enumerate(bad, start=1)}
    assert found["used"] + sum(found["unused"].values()) == found["total"]


def test_contradictions_take_both_out(cohort: Path, hub: Path) -> None:
    a = next(a for a in known(cohort / FILE_NAME) if len(a.grades) == len(QUESTIONS))
    grade = a.grades["hoffa_synovitis"]["grade"]
    other = replace(a, grades={"hoffa_synovitis": {"grade": (grade + 1) % 4}})
    box = a.boxes["patella_medial"]
    assert box is not None
    moved = replace(
        a,
        grades={"patella_medial_osteophyte": a.grades["patella_medial_osteophyte"]},
        boxes={**a.boxes, "patella_medial": box.moved((0, 1, 0))},
    )
    plain = next(rows([replace(a, grades={"effusion_synovitis": {"grade": 1}})]))
    rest = replace(
        a,
        grades={
            k: v for k, v in a.grades.items() if k not in ("patella_medial_osteophyte", "effusion_synovitis")
        },
    )
    (hub / "train.json").write_text(
        json.dumps([*rows([rest, other, moved]), {**plain, "final_diagnosis": "grade: 3"}])
    )
    (hub / "test.jsonl").write_text("")
    outcome = construct_upstream(hub, cohort)
    assert outcome.report["rows"]["unused"] == {
        "another answer to the same question": 2,
        "rows on one region give different boxes": 3,
        "answer and final_diagnosis disagree": 1,
    }
    (made,) = outcome.annotations
    lost = {
        "hoffa_synovitis",
        "effusion_synovitis",
        "patella_medial_bml",
        "patella_medial_cartilage",
        "patella_medial_osteophyte",
    }
    assert set(made.grades) == set(a.grades) - lost


def test_a_row_that_states_no_box_leaves_it_to_the_others(cohort: Path, hub: Path) -> None:
    a = next(a for a in known(cohort / FILE_NAME) if len(a.grades) == len(QUESTIONS))
    bml, cartilage = QUESTIONS["patella_medial_bml"], QUESTIONS["patella_medial_cartilage"]
    first, second = rows([replace(a, grades={q.id: a.grades[q.id] for q in (bml, cartilage)})])
    form = published(cartilage, a.grades[cartilage.id], None)
    del form["bounding_box"]
    for answer, kept in (
        (json.dumps(form), {bml.id, cartilage.id}),
        (json.dumps({**form, "bounding_box": None}), set()),
    ):
        (hub / "train.json").write_text(json.dumps([first, {**second, "answer": answer}]))
        (hub / "test.jsonl").write_text("")
        made = construct_upstream(hub, cohort).annotations
        assert {q for m in made for q in m.grades} == kept
        assert all(m.boxes["patella_medial"] == a.boxes["patella_medial"] for m in made)


@pytest.mark.parametrize(
    "text",
    ["[1]", '[{"a": 1}', '[{"a": 1, "a": 2}]', '[{"a": NaN}]', "[" * 10_000, '{"a": 1}\n[]', "[{]", "\xff"],
)
def test_damaged_json_is_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match="T00"):
        list(json_items(tmp_path / "x.json"))


def test_a_long_list_is_read_in_pieces(tmp_path: Path) -> None:
    items = [{"n": n, "text": "ä" * 997 * (n % 5)} for n in range(2000)]
    (tmp_path / "x.json").write_text("\n" + json.dumps(items, indent=1, ensure_ascii=False))
    assert [item for _, item in json_items(tmp_path / "x.json")] == items


# --- joining with scans -----------------------------------------------------------------------------------------------------------


def test_attached_annotations_make_a_cohort_that_builds(cohort: Path, tmp_path: Path) -> None:
    assert (
        command("attach", cohort / FILE_NAME, "--images", cohort / "images", "--out", tmp_path / "mine") == 0
    )
    assert (tmp_path / "mine" / FILE_NAME).read_bytes() == (cohort / FILE_NAME).read_bytes()
    assert command("build", tmp_path / "mine", tmp_path / "release", "--configs", "cropped") == 0


def test_attached_images_are_named_by_package_and_hash(cohort: Path, tmp_path: Path) -> None:
    """What the annotations say of another copy of the image does not pass for this one."""
    truth = known(cohort / FILE_NAME)
    published_ = Provenance("published", boxes="published", image_sha256="0" * 64)
    write_annotations(tmp_path / FILE_NAME, [replace(a, provenance=published_) for a in truth])
    images, root = tmp_path / "results" / "0.C.2", ("attach", tmp_path / FILE_NAME, "--images")
    shutil.copytree(cohort / "images", images)
    assert command(*root, tmp_path / "results", "--out", tmp_path / "mine") == 0
    for a, scan in zip(known(tmp_path / "mine" / FILE_NAME), truth, strict=True):
        digest = scan.provenance.image_sha256
        assert digest
        assert a.provenance == replace(published_, package="0.C.2", image_sha256=digest)
    assert command(*root, tmp_path / "results", "--out", tmp_path / "quick", "--quick") == 0
    assert {a.provenance.image_sha256 for a in known(tmp_path / "quick" / FILE_NAME)} == {None}


def test_missing_ambiguous_and_unfit_scans_are_named(
    cohort: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """NIfTI and DICOM anywhere below the root."""
    root = tmp_path / "scans" / "somewhere"
    shutil.copytree(cohort / "images", root)
    scans = list(find_scans(root))
    names = [f"{s.patient}-{s.visit}-{s.side}" for s in scans]
    scans[0].path.unlink()
    shutil.copy(
        scans[1].path, tmp_path / "scans" / scans[1].path.name
    )  # outside a patient's folder: not a scan by its path
    (root / "again" / scans[1].patient / "00M").mkdir(parents=True)
    shutil.copy(scans[1].path, root / "again" / scans[1].patient / "00M")
    image = read_volume(scans[2].path)
    write_nifti(
        scans[2].path,
        Volume(
            image.array[:-1].copy(), Grid((image.grid.shape[0] - 1, *image.grid.shape[1:]), image.grid.affine)
        ),
    )
    image = read_volume(scans[3].path)
    write_series(
        oai_folder(
            tmp_path / "scans" / "raw", scans[3].patient, str(scans[3].visit), scans[3].study, scans[3].series
        ),
        image,
    )
    scans[3].path.unlink()
    assert (
        command("attach", cohort / FILE_NAME, "--images", tmp_path / "scans", "--out", tmp_path / "mine") == 3
    )
    report = json.loads((tmp_path / "mine" / "attach.report.json").read_text())
    assert report["missing"] == [names[0]]
    assert list(report["ambiguous"]) == ([names[1]] if scans[1].visit == "00m" else [])
    assert list(report["refused"]) == [names[2]]
    assert "K006" in report["refused"][names[2]]
    assert set(report["matched"]) == set(names[3:])
    out, error = capfd.readouterr()
    assert all(name in out for name in names[:3])
    assert "attach.report.json names them all" in error
    assert command("build", tmp_path / "mine", tmp_path / "release", "--configs", "full") == 0
    assert command("attach", cohort / FILE_NAME, "--images", tmp_path / "scans", "--max-bad", "3") == 0


def test_an_image_that_runs_the_other_way_takes_its_boxes_along(cohort: Path, tmp_path: Path) -> None:
    """The same voxels in other directions: every box still holds the same part of the knee."""
    scan = next(find_scans(cohort / "images"))
    image = read_volume(scan.path)
    (a,) = (
        a
        for a in known(cohort / FILE_NAME)
        if a.series == scan.series and a.study == scan.study and a.patient == scan.patient
    )
    affine = image.grid.affine.copy()
    for axis in (0, 2):
        affine[:3, 3] += affine[:3, 2 - axis] * (image.grid.shape[axis] - 1)
        affine[:3, 2 - axis] *= -1
    turned = Grid(image.grid.shape, affine)
    array = np.flip(image.array, (0, 2))
    moved = turn(a, turned)
    assert moved.orientation == turned.orientation != a.orientation
    for region, box in a.boxes.items():
        other = moved.boxes[region]
        assert (box is None) == (other is None)
        if box and other:
            assert np.array_equal(np.flip(array[other.slices], (0, 2)), image.array[box.slices])
    path = tmp_path / "scans" / a.patient / "00M" / scan.path.name
    path.parent.mkdir(parents=True)
    write_nifti(path, Volume(np.ascontiguousarray(array), turned))
    write_annotations(tmp_path / "one.jsonl", [a])
    assert (
        command("attach", tmp_path / "one.jsonl", "--images", tmp_path / "scans", "--out", tmp_path / "mine")
        == 0
    )
    own = replace(moved, provenance=replace(moved.provenance, image_sha256=image_sha256(path)))
    assert known(tmp_path / "mine" / FILE_NAME) == [own]


def test_nothing_matches(cohort: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert (
        command("attach", cohort / FILE_NAME, "--images", tmp_path / "empty", "--out", tmp_path / "mine") == 3
    )
    assert not (tmp_path / "mine").exists()
    assert command("attach", cohort / FILE_NAME, "--images", tmp_path / "nowhere") == 2
    assert phantom_grid((2, 3, 4)).flips_to(phantom_grid((2, 3, 5))) is None
