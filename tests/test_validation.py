"""No bad release gets through: a clean one fires nothing, and each fault fires exactly the check that is made for it."""

from __future__ import annotations

import json
import shutil
import socket
import struct
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import pytest
from conftest import ROOT, command, run
from hub import Handler, Hub, Refusal, Repo
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from spoil import spoil

from reasonknee import schema
from reasonknee.boxes import Box
from reasonknee.cohort import Cohort
from reasonknee.layout import read_manifest, volume_id
from reasonknee.questions import ATTRIBUTES, QUESTIONS, REGIONS
from reasonknee.release import Options, build
from reasonknee.validation import cohorts, statements
from reasonknee.validation.findings import CHECKS, Findings, checks_table
from reasonknee.validation.geometry import check_outliers
from reasonknee.validation.reading import NONE
from reasonknee.validation.report import as_github, as_text
from reasonknee.validation.rows import legal_grades
from reasonknee.validation.run import validate, validate_release
from reasonknee.validation.voxels import prints
from reasonknee.volumes import read_volume, write_nifti

FOLDER = Path(__file__).parent / "release_faults"
LEGAL = Draft202012Validator(schema.load("annotations")["$defs"]["legal"])
FAULTS = sorted(p.parent.name for p in FOLDER.glob("*/fault.json"))


@pytest.fixture(scope="session")
def many(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Annotations of sixty patients: the cohort's, again and again under other ids, for checks that look at a population."""
    folder = tmp_path_factory.mktemp("data")
    known = [json.loads(line) for line in (cohort / "annotations.jsonl").read_text().splitlines()]
    lines = []
    for n in range(60):
        a, patient = known[n % len(known)], str(1_000_101 + n)
        split = {3: "test", 5: "validation"}.get(n % 7, "train")
        lines.append(
            {
                **a,
                "reasoning": {},
                "patient": patient,
                "split": split,
                "series": str(10_900_000 + n),
                "volume_id": volume_id(patient, a["visit"], a["side"]),
            }
        )
    (folder / "cohort").mkdir()
    (folder / "cohort" / "annotations.jsonl").write_text("".join(json.dumps(a) + "\n" for a in lines))
    build(Cohort(folder / "cohort"), folder / "release", options=Options(questions="all69"))
    return folder / "release"


@pytest.fixture
def bases(release: Path, few: Path, many: Path) -> dict[str, Path]:
    return {"release": release, "few": few, "many": many}


def spoiled(name: str, bases: dict[str, Path], folder: Path) -> dict[str, Any]:
    fault = json.loads((FOLDER / name / "fault.json").read_text())
    spoil(bases[fault.get("base", "few")], folder, fault)
    return fault


@pytest.mark.parametrize("base", ["release", "few", "many"])
def test_a_clean_release_fires_nothing(base: str, bases: dict[str, Path]) -> None:
    assert validate_release(bases[base], canonical=True).as_dict()["findings"] == []


def test_a_copy_that_is_only_written_again_fires_nothing(few: Path, tmp_path: Path) -> None:
    """So what a fault fires is the fault's, not the spoiler's."""
    spoil(
        few, tmp_path / "r", {"rows": [{"volume": "all", "derive": True}, {"volume": "all", "split": "test"}]}
    )
    assert validate_release(tmp_path / "r").as_dict()["findings"] == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fires_exactly_its_check(name: str, bases: dict[str, Path], tmp_path: Path) -> None:
    fault, code = spoiled(name, bases, tmp_path / "r"), name.split("-")[0]
    found = validate_release(tmp_path / "r", canonical=fault.get("canonical", False))
    text = as_text(found, "r")
    assert set(found.groups) == {code, *fault.get("also", [])}, text
    for words in fault["says"]:
        assert words in text
    group = found.groups[code]
    assert group.level == CHECKS[code].level
    assert group.hint
    assert all(e.place and e.detail for e in group.examples)


@pytest.mark.parametrize("name", [name for name in FAULTS if name.startswith("X417")])
def test_a_bomb_takes_no_memory(name: str, bases: dict[str, Path], tmp_path: Path) -> None:
    """Kilobytes that would become hundreds of megabytes, or gigabytes: a check of them takes what a check takes."""
    spoiled(name, bases, tmp_path / "r")
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from reasonknee.validation.run import validate_release\n"
        "validate_release(Path(sys.argv[1]), quick=True)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert validate_release(Path(sys.argv[1])).count('error') == 1\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1000)\n"
    )
    done = run("-c", code, tmp_path / "r")
    assert int(done.stdout) < 100, done.stderr


def test_every_check_has_a_fault() -> None:
    others = {p.parent.name.split("-")[0] for p in (FOLDER.parent / "sgmri_faults").glob("*/fault.json")}
    assert {name.split("-")[0] for name in FAULTS} | others == set(CHECKS)


@given(st.data())
def test_prints_do_not_change_when_a_volume_is_turned(data: st.DataObject) -> None:
    """Any order and direction of the axes within a slice, mirrored slices, another type of voxels; and another knee shares none."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    y, x = (data.draw(st.integers(16, 90)) for _ in range(2))
    array = rng.integers(0, 4096, (4, y, x)).astype(np.uint16)
    turned = np.flip(array, data.draw(st.lists(st.sampled_from([0, 1, 2]), unique=True)))
    if data.draw(st.booleans()):
        turned = turned.transpose(0, 2, 1)
    kind = data.draw(st.sampled_from(["uint16", "int16", "int32", "float32", "float64"]))
    assert prints(array) == prints(turned.astype(kind))
    assert len(prints(array)) == 4
    assert not prints(array) & prints(rng.integers(0, 4096, array.shape).astype(np.uint16))
    assert not prints(np.full_like(array, 7))
    changed = array.copy()
    changed[0, y // 2, x // 2] ^= 1
    assert len(prints(array) & prints(changed)) == 3


@pytest.mark.parametrize(
    ("first", "second", "axis"),
    [
        ("patella_medial", "patella_lateral", 0),
        ("femur_medial_central", "tibia_medial_central", 1),
        ("acl", "pcl", 2),
    ],
)
def test_regions_that_are_exchanged_in_every_volume(first: str, second: str, axis: int, cohort: Path) -> None:
    """Nothing in the release differs from the rest of it; but no knee is made so."""
    volumes = []
    for a in (json.loads(line) for line in (cohort / "annotations.jsonl").read_text().splitlines()):
        boxes = np.full((len(REGIONS), 6), NONE, np.int64)
        for name, box in a["boxes"].items():
            if box:
                boxes[list(REGIONS).index(name)] = [box[k] for k in ("z0", "z1", "y0", "y1", "x0", "x1")]
        volumes.append(
            ("here", a["side"], a["orientation"], np.array([16, 48, 48]), np.array([7.0, 3.0, 3.0]), boxes)
        )
    found = Findings()
    check_outliers(volumes, found)
    assert not found
    for volume in volumes:
        rows = [list(REGIONS).index(name) for name in (first, second)]
        volume[5][rows] = volume[5][rows[::-1]]
    check_outliers(volumes, found)
    assert set(found.groups) == {"X306"}
    assert ("medial and lateral", "above and below", "front and back")[axis] in found.groups["X306"].examples[
        0
    ].detail


# --- the checks themselves --------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(number=st.integers(0, len(QUESTIONS) - 1), data=st.data())
def test_the_fast_check_of_grades_says_what_the_json_schema_says(number: int, data: st.DataObject) -> None:
    q = list(QUESTIONS.values())[number]
    legal = {a.id: data.draw(st.sampled_from(list(a.space.grades))) for a in q.attributes}
    grades: dict[str, int | None] = {a: legal.get(a) for a in ATTRIBUTES}
    for name in data.draw(st.lists(st.sampled_from(ATTRIBUTES), max_size=2)):
        grades[name] = data.draw(st.none() | st.integers(-128, 127) | st.integers(-1, 9))
    row = {name: NONE if grade is None else grade for name, grade in grades.items()}
    fast = legal_grades(np.array([number]), np.array([[row[a] for a in ATTRIBUTES]]))[0]
    row_of = {"question_id": q.id, "category": q.category.id, "region": q.region.id, "grades": grades}
    assert fast == LEGAL.is_valid(row_of)


def test_patients_are_compared_in_one_form(many: Path, tmp_path: Path) -> None:
    """A leading zero hides nobody: the id is refused, and the overlap is found."""
    change = {"split": "test", "patient_of": ["train", 0], "spelled": "0{}", "visit": "96m"}
    spoil(many, tmp_path / "r", {"rows": [change]})
    assert set(validate_release(tmp_path / "r").groups) == {"X105", "X201"}


def test_all_findings_come_in_one_run(few: Path, tmp_path: Path) -> None:
    fault = {
        "rows": [
            {"question": "acl", "set": {"grades.repair": 5}},
            {"split": "test", "question": "pcl", "set": {"reasoning.0": "Look around."}},
            {"configs": ["full"], "bytes": [{"at": 148, "text": "DOE^JANE"}]},
        ],
        "after": [
            {"do": "write", "path": "notes.txt", "text": "x"},
            {"do": "remove", "path": "croissant.json"},
        ],
    }
    spoil(few, tmp_path / "r", fault)
    found = validate_release(tmp_path / "r")
    assert set(found.groups) == {"X104", "X109", "X402", "X403", "X501", "X605"}
    assert found.groups["X104"].count == 4, "once in each config"
    assert "DOE" not in as_text(found, "r"), "a report does not repeat what is private"
    again = validate_release(tmp_path / "r", workers=2)
    assert again.as_dict() == found.as_dict()


@pytest.mark.parametrize("kind", ["clone", "worktree"])
def test_what_git_keeps_for_itself_is_left_alone(kind: str, few: Path, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    for path in few.iterdir():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / "r" / path.name)
    git = tmp_path / "r" / ".git"
    if kind == "clone":
        for name in ("HEAD", "objects", "refs"):
            (git / name).mkdir(parents=True)
        (git / "objects" / "pack").write_bytes(b"PACK")
    else:
        git.write_text("gitdir: /repos/knees/.git/worktrees/r\n")
    assert not validate_release(tmp_path / "r", quick=True).count("error")
    if kind == "clone":
        (git / "refs").rmdir()
    else:
        git.write_text("gitdir: /repos/knees\nand somebody's notes\n")
    assert "X403" in validate_release(tmp_path / "r", quick=True).groups, "only its name is git's"


@pytest.mark.slow
def test_a_dask_cluster_finds_the_same(
    few: Path, cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real scheduler and two workers over TCP, for a release and for a cohort."""
    distributed = pytest.importorskip("distributed")
    spoil(few, tmp_path / "r", {"rows": [{"question": "acl", "set": {"grades.repair": 5}}]})
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, protocol="tcp://", host="127.0.0.1", dashboard_address=None
    )
    with cluster:
        for target in (tmp_path / "r", cohort):
            expected = validate(target).as_dict()
            command("validate", target, "--dask", cluster.scheduler_address, "--json")
            said = json.loads(capsys.readouterr().out)
            assert {key: said[key] for key in expected} == expected


def test_counts_go_on_when_examples_stop(few: Path, tmp_path: Path) -> None:
    spoil(
        few,
        tmp_path / "r",
        {"only": ["annotations"], "rows": [{"volume": "all", "set": {"question.zero_shot": "?"}}]},
    )
    group = validate_release(tmp_path / "r").groups["X108"]
    assert len(group.examples) == 20
    train = (s.rows for s in read_manifest(few).of("annotations") if s.split == "train")
    assert group.count == sum(train)


# --- the command ------------------------------------------------------------------------------------------------------------------


def test_command(few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("validate", few, "--quick") == 0
    assert capsys.readouterr().out.strip().endswith("sound as far as --quick looks, 0 errors, 0 warnings")
    spoil(few, tmp_path / "r", {"rows": [{"question": "acl", "set": {"grades.repair": 5}}]})
    assert command("validate", tmp_path / "r", "--json") == 3
    said = json.loads(capsys.readouterr().out)
    assert (said["sound"], said["errors"], [g["code"] for g in said["findings"]]) == (False, 4, ["X104"])
    assert said["findings"][0]["examples"][0]["place"].startswith("cropped/train-00000-of-00001.parquet row ")
    assert command("validate", tmp_path / "r", "--github") == 3
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert lines[0].startswith("::error file=cropped/train-00000-of-00001.parquet,title=X104%2C 4 in all::")
    spoil(
        few,
        tmp_path / "w",
        json.loads((FOLDER / "X607-schema-of-another-version" / "fault.json").read_text()),
    )
    assert command("validate", tmp_path / "w", "--quick") == 0, "a warning does not fail a release"
    assert "warning X607" in capsys.readouterr().out
    assert command("validate", tmp_path / "none") == 2
    assert command("validate", few, "--revision", "main") == 2
    assert "M004" in capsys.readouterr().err
    assert command("validate", few, "--quick", "--canonical") == 2
    assert "X005" in capsys.readouterr().err
    assert command("validate") == 2
    assert "X001" in capsys.readouterr().err


def test_canonical_wants_the_pyarrow_that_wrote_it(
    few: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(few, tmp_path / "r", {"manifest": {"versions.pyarrow": "1.0.0"}})
    assert command("validate", tmp_path / "r") == 0
    assert command("validate", tmp_path / "r", "--canonical") == 2
    assert "X004: the shards were written by pyarrow 1.0.0, here is" in capsys.readouterr().err


def test_quick_reads_no_row(few: Path, tmp_path: Path) -> None:
    fault = {
        "rows": [{"question": "acl", "set": {"grades.repair": 5}}],
        "after": [{"do": "remove", "path": "schema/full.schema.json"}],
    }
    spoil(few, tmp_path / "r", fault)
    assert set(validate_release(tmp_path / "r", quick=True).groups) == {"X402"}


def test_list_and_docs(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("validate", "--list") == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(CHECKS)
    assert all(
        line.endswith(c.title) and c.level in line for line, c in zip(listed, CHECKS.values(), strict=True)
    )
    assert command("validate", "--list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [asdict(c) for c in CHECKS.values()]
    assert checks_table() in (ROOT / "docs" / "validation.md").read_text(), "run `make gen`"


def test_one_is_not_many() -> None:
    found = Findings()
    found.add("X403", "notes.txt", "1 bytes")
    assert as_text(found, "r").endswith("r: NOT sound, 1 error, 0 warnings")


def test_github_annotations_cannot_be_forged() -> None:
    found = Findings()
    found.add("X403", "a\n::error::forged", "100 %\r\n::warning::x")
    assert len(as_github(found, "r").splitlines()) == 1


def test_github_annotations_name_files_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    found = Findings()
    found.add("X403", "notes.txt", "1 bytes")
    for target, name in (
        ("data", "data/notes.txt"),
        (".", "notes.txt"),
        (str(tmp_path / "data"), "data/notes.txt"),
        ("owner/name", "notes.txt"),
    ):
        assert f"file={name}," in as_github(found, target)


def test_a_half_made_release_is_refused(
    cohort: Path,
    few: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a killed build leaves, and what an interrupted `hf download --local-dir` leaves."""
    assert run("build", cohort, tmp_path / "r", "--configs", "full", "--shard", "2/2").returncode == 0
    assert command("validate", tmp_path / "r") == 2
    assert "r.partial (the build was cut short" in capsys.readouterr().err
    assert command("validate", tmp_path / "r.partial", "--quick") == 3
    assert "r.partial has no manifest.json: a build or a download was cut short" in capsys.readouterr().out
    monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")  # a missing one would be told first
    assert command("publish", tmp_path / "r.partial", "someone/knees") == 3
    half = tmp_path / "half"
    shutil.copytree(few, half)
    (half / "full" / "train-00000-of-00001.parquet").unlink()
    (half / ".cache" / "huggingface" / "download" / "full").mkdir(parents=True)
    (half / ".cache" / "huggingface" / "download" / "full" / "x.incomplete").write_bytes(b"PAR1")
    assert set(validate(str(half), quick=True).groups) == {"X402"}
    (half / "manifest.json").unlink()
    capsys.readouterr()
    assert command("validate", half) == 3
    assert "half has no manifest.json: a build or a download was cut short" in capsys.readouterr().out


# --- cohorts and the Hub ----------------------------------------------------------------------------------------------------------


def test_a_cohort_is_checked_by_the_gate(cohort: Path, tmp_path: Path) -> None:
    assert not validate(str(cohort))
    bad = tmp_path / "cohort"
    shutil.copytree(cohort, bad)
    lines = [json.loads(line) for line in (bad / "annotations.jsonl").read_text().splitlines()]
    lines[0]["grades"]["acl"]["repair"] = 7
    lines[1]["visit"] = "soon"
    texts = [*map(json.dumps, lines), '{"volume_id": NaN}', json.dumps(lines[3])]
    (bad / "annotations.jsonl").write_text("\n".join(texts) + "\n")
    images = sorted((bad / "images").rglob("*.nii.gz"))
    images[-1].write_bytes(images[-1].read_bytes()[:-9])
    images[-2].unlink()
    found = validate(str(bad))
    assert set(found.groups) == {"A001", "A003", "A004", "K004", "T001", "V006"}
    assert found.groups["A003"].examples[0].place == f"annotations.jsonl:1, {lines[0]['volume_id']}"
    assert (
        found.groups["K004"].examples[0].detail.startswith(f"1 of {len(lines) - 2} volumes have no image")
    ), "as a build counts them"
    assert validate(str(bad), workers=2).as_dict() == found.as_dict()
    assert set(validate(str(bad), quick=True).groups) == {"A001", "A003", "A004", "K004", "T001"}


def altered(cohort: Path, folder: Path, *changes: dict[str, Any]) -> list[dict[str, Any]]:
    """A copy of the cohort, with changes to its first annotations, which are returned."""
    shutil.copytree(cohort, folder)
    lines = [json.loads(line) for line in (folder / "annotations.jsonl").read_text().splitlines()]
    lines = [line | change for line, change in zip_longest(lines, changes, fillvalue={})]
    (folder / "annotations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines


def image_of(cohort: Path, annotation: dict[str, Any]) -> Path:
    return next(
        (cohort / "images").glob(
            f"{annotation['patient']}/*/{annotation['study']}_{annotation['series']}_*.nii.gz"
        )
    )


def test_a_cohort_hears_what_its_release_would_be_refused_for(cohort: Path, tmp_path: Path) -> None:
    """Boxes on the wrong sides, and embeddings that are not numbers; one that is missing hides no other."""
    lines = [json.loads(line) for line in (cohort / "annotations.jsonl").read_text().splitlines()]
    z = lines[0]["shape"]["z"]
    mirrored = {
        region: box and box | {"z0": z - box["z1"], "z1": z - box["z0"]}
        for region, box in lines[0]["boxes"].items()
    }
    altered(cohort, tmp_path / "c", {"boxes": mirrored})
    with h5py.File(tmp_path / "c" / "embeddings.h5", "r+") as file:
        item = file[lines[1]["volume_id"]]
        item[0, 0] = 0x7FC0 if item.dtype == np.uint16 else np.nan
        del file[lines[2]["volume_id"]]
    found = validate(str(tmp_path / "c"))
    assert {code: g.examples[0].place for code, g in found.groups.items()} == {
        "E008": f"embeddings.h5, {lines[1]['volume_id']}",
        "K009": "embeddings.h5",
        "X306": f"annotations.jsonl:1, {lines[0]['volume_id']}",
    }
    assert set(validate(str(tmp_path / "c"), quick=True).groups) == {"K009", "X306"}
    build(Cohort(tmp_path / "c"), tmp_path / "r", ["annotations"])
    assert set(validate_release(tmp_path / "r").groups) == {"X306"}


def test_a_cohort_warns_of_volumes_that_a_build_leaves_out(cohort: Path, tmp_path: Path) -> None:
    periarticular = {
        q.id: {a.id: a.space.grades[0] for a in q.attributes}
        for q in QUESTIONS.values()
        if q.category.id == "periarticular"
    }
    nobody = {"grades": {}, "reasoning": {}}
    lines = altered(cohort, tmp_path / "c", nobody, {"grades": periarticular, "reasoning": {}})
    image_of(tmp_path / "c", lines[0]).unlink()  # nobody asks for it
    found = validate(str(tmp_path / "c"))
    assert [(g.code, g.level, [(f.place, f.detail) for f in g.examples]) for g in found.ordered()] == [
        (
            "K010",
            "warning",
            [
                (f"annotations.jsonl:1, {lines[0]['volume_id']}", "no grades"),
                (f"annotations.jsonl:2, {lines[1]['volume_id']}", "no grades for a question of paper62"),
            ],
        )
    ]
    altered(cohort, tmp_path / "none", *[nobody] * len(lines))
    found = validate(str(tmp_path / "none"))
    assert found.groups["K002"].examples[0].detail == "no volume in it has grades"


def test_an_image_that_cannot_be_read_is_one_finding(
    cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = altered(cohort, tmp_path / "c")
    first, second = (image_of(tmp_path / "c", line) for line in lines[:2])
    first.unlink()
    first.symlink_to("/proc/self/mem")  # an error at its first byte, for root, too
    real = cohorts.read_volume

    def fails_midway(path: Path) -> object:
        if path == second:
            raise OSError(5, "Input/output error")
        return real(path)

    monkeypatch.setattr(cohorts, "read_volume", fails_midway)
    found = validate(str(tmp_path / "c"))
    assert set(found.groups) == {"V000"}
    assert [f.place for f in found.groups["V000"].examples] == [
        f"annotations.jsonl:{n}, {lines[n - 1]['volume_id']}" for n in (1, 2)
    ]


def test_findings_of_a_cohort_as_they_are_printed(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each with the hint of its own cause, each volume named once, and GitHub pointed at the line of a file that is there."""
    lines = altered(cohort, tmp_path / "c", {"side": "up"}, {"visit": "soon"})
    images = [image_of(tmp_path / "c", line) for line in lines[2:4]]
    volume = read_volume(images[0])
    z, y, x = volume.grid.shape
    write_nifti(images[0], volume.crop(Box(1, z, 0, y, 0, x)))
    images[1].unlink()
    assert command("validate", tmp_path / "c", "--github") == 3
    said = capsys.readouterr().out.splitlines()
    assert "    annotations.jsonl:1: side is 'up' (to do: one of left, right)" in said
    assert "    annotations.jsonl:2: visit is 'soon' (to do: the form is (?:[0-9]{2}|[1-9][0-9]{2})m)" in said
    assert any(
        line.startswith(f"    annotations.jsonl:3, {lines[2]['volume_id']}: the image is (15,")
        for line in said
    )
    github = [line for line in said if line.startswith("::")]
    assert [line.split(",title=")[0] for line in github] == [
        "::error file=annotations.jsonl,line=1",
        "::error file=annotations.jsonl,line=2",
        "::error file=annotations.jsonl",
        "::error file=annotations.jsonl,line=3",
    ]
    assert github[1].endswith("; the form is (?:[0-9]{2}|[1-9][0-9]{2})m)")


def test_a_repo_on_the_hub_at_a_revision(few: Path, tmp_path: Path) -> None:
    """What a user would download is what is checked: main is sound, the pull request is not."""
    spoil(few, tmp_path / "bad", {"rows": [{"question": "acl", "set": {"grades.repair": 5}}]})
    with Hub({"someone/knees": few}) as hub:
        files = {
            p.relative_to(tmp_path / "bad").as_posix(): p
            for p in (tmp_path / "bad").rglob("*")
            if p.is_file()
        }
        hub.repos["someone/knees"].heads["refs/pr/1"] = files
        env = hub.env(tmp_path / "home")
        done = run("validate", "someone/knees", "--revision", "refs/pr/1", env=env)
        assert done.returncode == 3, done.stdout + done.stderr
        assert "X104" in done.stdout
        done = run("validate", "someone/none", env=env)
        assert done.returncode == 4
        assert len(done.stderr.strip().splitlines()) == 1
        assert done.stderr.startswith("error M003: someone/none cannot be downloaded")


class Stumbling(Handler):
    """Its first answers about a repo fail, each as `failures` says."""

    failures: ClassVar[list[str]] = []

    def info(self, name: str, repo: Repo, revision: str) -> None:
        match self.failures.pop(0) if self.failures else "":
            case "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                raise ConnectionResetError
            case "500":
                raise Refusal(500, "as the test wants it")
        super().info(name, repo, revision)


@pytest.mark.parametrize("quick", [[], ["--quick"]], ids=["all", "quick"])
def test_a_hub_that_stumbles_is_asked_again(quick: list[str], few: Path, tmp_path: Path) -> None:
    spoil(few, tmp_path / "r", {"only": ["annotations"]})
    with Hub({"someone/knees": tmp_path / "r"}, Stumbling) as hub:
        Stumbling.failures[:] = ["500", "reset"]
        done = run("validate", "someone/knees", *quick, env=hub.env(tmp_path / "home"))
        assert done.returncode == 0, done.stdout + done.stderr
        assert not Stumbling.failures
        Stumbling.failures[:] = ["500"] * 9
        done = run("validate", "someone/knees", *quick, env=hub.env(tmp_path / "home"))
        assert (done.returncode, done.stderr[:10], len(Stumbling.failures)) == (4, "error M003", 6), (
            "three tries"
        )


def test_a_copy_in_the_cache_is_not_the_repo(few: Path, tmp_path: Path) -> None:
    """A sound copy of yesterday says nothing of today, so a Hub that does not answer is an error, and a new commit is fetched."""
    clean, bad = tmp_path / "clean", tmp_path / "bad"
    spoil(few, clean, {"only": ["annotations"]})
    spoil(clean, bad, {"rows": [{"question": "acl", "set": {"grades.repair": 5}}]})
    with Hub({"someone/knees": clean}) as hub:
        env = hub.env(tmp_path / "home")
        assert run("validate", "someone/knees", env=env).returncode == 0
        hub.log.clear()
        assert run("validate", "someone/knees", env=env).returncode == 0
        assert hub.sent(".parquet") == 0, "what is in the cache is not fetched again"
        done = run("validate", "someone/knees", env=env | {"HF_HUB_OFFLINE": "1"})
        assert (done.returncode, done.stderr[:10]) == (4, "error M003"), done.stdout + done.stderr
        hub.repos["someone/knees"].folder = bad
        assert run("validate", "someone/knees", env=env).returncode == 3
        hub.repos["someone/knees"].folder = clean
    done = run("validate", "someone/knees", env=env)
    assert (done.returncode, done.stderr[:10]) == (4, "error M003"), done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_quick_check_of_a_repo_fetches_texts_and_footers(few: Path, tmp_path: Path) -> None:
    """It says what a quick check of the folder says, and leaves rows and voxels where they are."""
    faults = {
        "after": [
            {"do": "write", "path": "notes.txt", "text": "x"},
            {"do": "write", "path": "cropped/test-00000-of-00001.parquet", "text": "PAR"},
        ]
    }
    spoil(few, tmp_path / "bad", faults)
    shards = sorted(few.rglob("*.parquet"))
    footers = sum(int.from_bytes(p.read_bytes()[-8:-4], "little") + 8 for p in shards)
    with Hub({"someone/knees": few, "someone/bad": tmp_path / "bad"}) as hub:
        env = hub.env(tmp_path / "home")
        done = run("validate", "someone/knees", "--quick", env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        assert hub.sent(".parquet") <= footers + 8 * len(shards) < sum(p.stat().st_size for p in shards) / 4
        done = run("validate", "someone/bad", "--quick", "--json", env=env)
        assert done.returncode == 3, done.stdout + done.stderr
        assert (
            json.loads(done.stdout)["findings"]
            == validate_release(tmp_path / "bad", quick=True).as_dict()["findings"]
        )
        done = run("validate", "someone/none", "--quick", env=env)
        assert (done.returncode, done.stderr[:10]) == (4, "error M003")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("The medial meniscus body shows a horizontal tear, grade 3.", ""),
        ("The body of the medial meniscus is torn: not grade 2, but grade 3.", ""),
        ("In a knee of Kellgren-Lawrence grade 2 the wedge is torn.", ""),
        ("Seen on slices 3–8 and rows 11 to 19.", ""),
        ("No word of a place or a grade.", ""),
        ("The lateral meniscus is torn.", "it names lateral meniscus"),
        ("Torn, grade 2.", "it says grade 2 where the row holds 3"),
        ("Seen on slices 3–9.", "it says slices 3 to 9, the box has 3 to 8"),
    ],
)
def test_published_words_are_held_against_their_row(text: str, wrong: str) -> None:
    """What they leave out, name by its larger part, or say of another scale is no disagreement."""
    asked = QUESTIONS["medial_meniscus_body_morphology"]
    facts = statements.Facts(asked, {"morphology": 3}, Box(3, 9, 11, 20, 7, 30), (160, 384, 384))
    told = statements.disagreement(facts, text)
    assert told.startswith(wrong) if wrong else not told
