"""From sources to annotations: what `construct` makes of tables, masks, images and split files is exactly what the phantom knows to be true."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from conftest import command, needs, run
from hypothesis import given
from hypothesis import strategies as st
from sas_table import write_sas7bdat

from reasonknee.boxes import Box
from reasonknee.cohort.annotations import FILE_NAME, scan_annotations
from reasonknee.cohort.scans import VISITS, find_scans, visit_in
from reasonknee.construct import moaks_cells as mc
from reasonknee.construct import moaks_tables as mt
from reasonknee.construct.assemble import Options, construct
from reasonknee.construct.columns import KEYS, read_names
from reasonknee.construct.masks import largest_components, mask_boxes, read_label_map
from reasonknee.construct.split_files import read_split_files
from reasonknee.errors import DataError, ReasonKneeError, UsageError
from reasonknee.layout import SPLITS
from reasonknee.layout.splits import FRACTIONS, SPLIT_COLUMNS, assign, features, imbalance
from reasonknee.phantom.cohort import patient_scans, phantom_grid
from reasonknee.phantom.tables import write_moaks_tables
from reasonknee.questions import QUESTIONS, REGIONS
from reasonknee.questions.regions import LABELS
from reasonknee.volumes import Grid, Volume, read_volume, write_nifti
from reasonknee.volumes.region_boxes import region_boxes


@pytest.fixture
def sources(cohort: Path, tmp_path: Path) -> Path:
    """The cohort without its annotations."""
    copy = tmp_path / "sources"
    shutil.copytree(cohort, copy, ignore=shutil.ignore_patterns(FILE_NAME, "*.h5"))
    return copy


def truth(cohort: Path) -> str:
    """What tables, masks and images tell; nobody's words are among them."""
    return "".join(replace(a, reasoning={}).to_json() + "\n" for _, a in scan_annotations(cohort / FILE_NAME))


def made(sources: Path, options: Options | None = None) -> str:
    return "".join(
        a.to_json() + "\n" for a in sorted(construct(sources, options).annotations, key=lambda a: a.volume_id)
    )


# --- the whole way ----------------------------------------------------------------------------------------------------------------


def test_sources_give_the_truth(cohort: Path, sources: Path) -> None:
    """Every line, byte for byte: every question, box, side and visit."""
    assert run("construct", sources).returncode == 0
    assert (sources / FILE_NAME).read_text() == truth(cohort)
    known = [a for _, a in scan_annotations(cohort / FILE_NAME)]
    assert {a.side for a in known} == {"left", "right"}
    assert len({a.visit for a in known}) >= 4
    assert {q for a in known for q in a.grades} == set(QUESTIONS)
    report = json.loads((sources / "construct.report.json").read_text())
    assert report["cells"]["used"] + sum(report["cells"]["unused"].values()) == report["cells"]["total"]
    assert report["volumes"] == {"found": len(known), "used": len(known), "left_out": {}}
    assert report["quarantine"] == []


def test_every_question_side_and_visit_of_many_tables(tmp_path: Path) -> None:
    """Grades of 400 patients, without images: every legal grade of every question on both sides at all five visits."""
    scans = [s for n in range(1, 401) for s in patient_scans(n, 1)]
    write_moaks_tables(tmp_path, [row for s in scans for row in s.rows], np.random.default_rng(0))
    readings = mt.read_tables(tmp_path)
    found = {knee: reading.grades for knee, reading in readings.chosen.items() if reading.grades}
    assert found == {(s.patient, s.visit, s.side): s.read for s in scans}
    again = {knee: [r.grades for r in others] for knee, others in readings.others.items()}
    assert again == {(s.patient, s.visit, s.side): [s.again] for s in scans if s.again}
    places = {(q, side, visit) for (_, visit, side), grades in found.items() for q in grades}
    assert len(places) == len(QUESTIONS) * 2 * len(VISITS)
    seen = {(q, a, g) for grades in found.values() for q, given in grades.items() for a, g in given.items()}
    assert seen == {(q.id, a.id, g) for q in QUESTIONS.values() for a in q.attributes for g in a.space.grades}
    assert readings.unused[mc.WITHIN_GRADE] > 10
    assert readings.unused[mt.OTHER_READING] > 100
    used = sum(r.used for r in readings.chosen.values())
    assert used + sum(readings.unused.values()) == readings.cells


@pytest.mark.parametrize("order", [(2, 1, 0), (0, 2, 1), (1, 2, 0)])
def test_the_order_of_a_files_axes_does_not_matter(
    cohort: Path, sources: Path, order: tuple[int, int, int]
) -> None:
    for path in [*sources.glob("images/*/*/*"), *sources.glob("masks/*/*/*")]:
        image = nib.load(path)
        affine = image.affine[:, [*order, 3]]
        nib.save(nib.Nifti1Image(np.asarray(image.dataobj).transpose(order), affine), path)
    other_files = re.compile('"image_sha256":"[0-9a-f]{64}"')
    told, known = made(sources), truth(cohort)
    assert other_files.findall(told) != other_files.findall(known)  # other bytes, the same voxels
    assert other_files.sub("", told) == other_files.sub("", known)


def test_workers_change_nothing(cohort: Path, sources: Path) -> None:
    assert run("construct", sources, "--workers", "2").returncode == 0
    assert (sources / FILE_NAME).read_text() == truth(cohort)


def test_a_cluster_changes_nothing(cohort: Path, sources: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, protocol="tcp://", host="127.0.0.1", dashboard_address=None
    ) as cluster:
        assert run("construct", sources, "--dask", cluster.scheduler_address).returncode == 0
    assert (sources / FILE_NAME).read_text() == truth(cohort)


def test_masks_that_run_the_other_way_are_turned(cohort: Path, sources: Path) -> None:
    """The same voxels counted from the other end: no other grid, and the same boxes."""
    for path in sources.glob("masks/*/*/*"):
        mask = read_volume(path)
        affine = mask.grid.affine.copy()
        affine[:3, 3] += affine[:3, 2] * (mask.grid.shape[0] - 1)
        affine[:3, 2] *= -1
        write_nifti(path, Volume(mask.array[::-1].copy(), Grid(mask.grid.shape, affine)))
    assert made(sources) == truth(cohort)


def test_own_splits_follow_the_same_rule_as_the_phantoms(cohort: Path, sources: Path) -> None:
    assert made(sources, Options(splits="own", seed=3)) == truth(cohort)
    shutil.rmtree(sources / "splits")
    assert made(sources, Options(seed=3)) == truth(cohort)


def test_annotations_are_not_overwritten(sources: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (sources / FILE_NAME).write_text("mine")
    assert command("construct", sources) == 2
    assert "J009" in capfd.readouterr().err
    assert (sources / FILE_NAME).read_text() == "mine"
    assert command("construct", sources, "--force") == 0
    assert (sources / FILE_NAME).read_text() != "mine"
    assert not list(sources.glob("*.partial"))


# --- what is left out -------------------------------------------------------------------------------------------------------------


def test_a_bad_volume_is_quarantined_and_the_rest_goes_on(
    cohort: Path, sources: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    images, masks = sorted(sources.glob("images/*/*/*")), sorted(sources.glob("masks/*/*/*"))
    images[0].write_bytes(images[0].read_bytes()[:40])
    other = read_volume(masks[1])
    write_nifti(masks[1], Volume(other.array, Grid(other.grid.shape, other.grid.affine + np.eye(4, k=3))))
    stray = read_volume(masks[2])
    array = stray.array.copy()
    array[0, 0, 0] = 99
    write_nifti(masks[2], Volume(array, stray.grid))
    assert command("construct", sources) == 3
    assert "J100: 3 volumes failed" in capfd.readouterr().err
    report = json.loads((sources / "construct.report.json").read_text())
    assert sorted(q["code"] for q in report["quarantine"]) == ["J011", "J013", "V006"]
    kept, whole = (sources / FILE_NAME).read_text().splitlines(), truth(cohort).splitlines()
    assert len(kept) == len(whole) - 3
    assert set(kept) < set(whole)
    assert report["cells"]["unused"]["the volume was left out"] > 150
    assert report["cells"]["used"] + sum(report["cells"]["unused"].values()) == report["cells"]["total"]
    assert command("construct", sources, "--force", "--max-bad", "3") == 0


def test_volumes_without_a_source_are_named(cohort: Path, sources: Path) -> None:
    first, second, third, fourth = sorted(sources.glob("images/*/*/*"))[:4]
    table = sources / "tables" / "kMRI_SQ_MOAKS_BICL00.txt"
    patient, side = first.parts[-3], first.name.split("_")[-1].split(".")[0]
    rows = [
        line
        for line in table.read_text().splitlines()
        if not (line.startswith(patient) and side in line.lower().split("|")[1])
    ]
    table.write_text("\n".join(rows) + "\n")
    (sources / "masks" / second.relative_to(sources / "images")).unlink()
    third.rename(third.with_name(third.name.replace("_1", "_9", 1)))  # a series that no split file lists
    shutil.copy(fourth, fourth.with_name(fourth.name.removesuffix(".gz")))
    outcome = construct(sources)
    left = outcome.report["volumes"]["left_out"]
    assert {reason: len(names) for reason, names in left.items()} == {
        "no reading in the tables": 1,
        "no mask": 1,
        "in no split file": 1,
        "listed in a split file, but there is no image": 1,
        "more than one image": 1,
    }
    assert left["no reading in the tables"][0].startswith(patient)
    assert not outcome.bad
    assert len(outcome.annotations) == outcome.report["volumes"]["found"] - 4


def test_the_account_is_made_for_reading(sources: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The page counts what the JSON does: volumes that are missing or failed, cells by reason and question, absent variables, readings and boxes."""
    images, masks = sorted(sources.glob("images/*/*/*")), sorted(sources.glob("masks/*/*/*"))
    images[0].write_bytes(images[0].read_bytes()[:40])
    masks[1].unlink()
    for table in (sources / "tables").iterdir():
        table.write_text(re.sub(r"(V0\d)MPTSG", r"\1OTHER", table.read_text()))
    assert command("construct", sources, "--max-bad", "1") == 0
    assert f"what every decision did: {sources / 'construct.report.md'}" in capfd.readouterr().out
    page = (sources / "construct.report.md").read_text()
    report = json.loads((sources / "construct.report.json").read_text())
    found, used = report["volumes"]["found"], report["volumes"]["used"]
    patients = len({a.patient for _, a in scan_annotations(sources / FILE_NAME)})
    assert (
        f"{used} of {found} volumes, of {patients} patients, have annotations. Of {69 * used:,} questions"
        in page
    )
    assert f"{used} volumes: boxes of label masks." in page
    assert f"| no mask | 1 | {report['volumes']['left_out']['no mask'][0]} |" in page
    assert f"| {report['quarantine'][0]['volume']} | V006 |" in page
    assert "MPTSG (patellar_tendon: signal_abnormality)" in page
    assert "Asked of no volume: patellar_tendon" in page
    assert f"| not used: {mc.WITHIN_GRADE} | {report['cells']['unused'][mc.WITHIN_GRADE]:,} |" in page
    assert report["within_grade"]
    for question, codes in report["within_grade"].items():
        assert f"| {question} | " + ", ".join(f"{n:,} of {code}" for code, n in codes.items()) in page
    told = report["readings"]
    assert (
        f"Of {told['knees']} knees and visits that the tables name, {told['with_a_choice']} have several"
        in page
    )
    assert "Every region has its box in every volume" in page
    assert "## Splits" in page


def test_nothing_to_annotate_leaves_a_report_and_no_annotations(
    sources: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for path in (sources / "tables").iterdir():
        path.write_text(
            "\n".join(line.replace("100", "155", 1) for line in path.read_text().splitlines()) + "\n"
        )
    assert command("construct", sources) == 3
    assert "J006" in capfd.readouterr().err
    report = json.loads((sources / "construct.report.json").read_text())
    assert len(report["volumes"]["left_out"]["no reading in the tables"]) == report["volumes"]["found"]
    assert report["cells"]["used"] == 0
    assert sum(report["cells"]["unused"].values()) == report["cells"]["total"]
    assert not (sources / FILE_NAME).exists()


def test_without_masks_no_box_is_known(cohort: Path, sources: Path) -> None:
    shutil.rmtree(sources / "masks")
    with pytest.raises(DataError, match="J008"):
        construct(sources)
    outcome = construct(sources, Options(masks=False))
    assert {box for a in outcome.annotations for box in a.boxes.values()} == {None}
    assert [a.grades for a in outcome.annotations] == [
        a.grades for _, a in scan_annotations(cohort / FILE_NAME)
    ]


# --- tables -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "cell", "read"),
    [
        ("MBMSPM", "2: 33 to 66 %", {"size": 2}),
        ("MBMSPM", "2", {"size": 2}),
        ("MBMSPM", "2.0: x", {"size": 2}),
        ("MBMSPM", ".: Missing Form/Incomplete Workbook", mc.MISSING),
        ("MBMSPM", ".A: Not Expected", mc.MISSING),
        ("MBMSPM", "", mc.MISSING),
        ("MBMSPM", "0.5: within", mc.WITHIN_GRADE),
        ("MBMSPM", "-0.5", mc.WITHIN_GRADE),
        ("MBMSPM", "-1.0: less", mc.WITHIN_GRADE),
        ("MBMSPM", ".5", mc.WITHIN_GRADE),
        ("MBMSPM", "-.5: SAS", mc.WITHIN_GRADE),
        ("MBMSPM", "._", mc.MISSING),
        ("MBMSPM", ".7", mc.OUTSIDE),
        ("MBMSPM", "1.5: ?", mc.OUTSIDE),
        ("MBMSPM", "4: ?", mc.OUTSIDE),
        ("MBMSPM", "-2: ?", mc.OUTSIDE),
        ("MBMSPM", "yes", mc.UNREADABLE),
        ("MBMSPM", "٢: two", mc.UNREADABLE),
        ("MCMPM", "2.1: 10-75 %, < 10 %", {"size": 2, "full_thickness_pct": 1}),
        ("MCMPM", "3.0", {"size": 3, "full_thickness_pct": 0}),
        ("MCMPM", "3", {"size": 3, "full_thickness_pct": 0}),
        ("MCMPM", "0.5: within", mc.WITHIN_GRADE),
        ("MCMPM", "2.4", mc.OUTSIDE),
        ("MCMPM", "2.11", mc.OUTSIDE),
        ("MACLTR", "0: no", {"complete_tear": 0}),
        ("MACLTR", "1: torn", {"complete_tear": 1}),
        ("MACLTR", "2: torn", {"complete_tear": 1}),
        ("MACLTR", "2: Partial tear", {"complete_tear": 0}),
        ("MACLTR", "2: Torn, repaired", {"repair": 1}),
        ("MACLTR", "1", {"complete_tear": 1}),
        ("MACLTR", "2", mc.UNSETTLED),
        ("MACLTR", "0: torn", mc.UNSETTLED),
        ("MACLTR", "1: no tear", mc.UNSETTLED),
        ("MACLTR", "0: Reconstructed", mc.UNSETTLED),
        ("MACLTR", "3: ?", mc.UNSETTLED),
        ("MPCLTR", "2: ?", mc.OUTSIDE),
    ],
)
def test_cells(variable: str, cell: str, read: object) -> None:
    assert mc.read_cell(variable, cell) == read


@given(
    st.sampled_from(sorted({a.oai.name for q in QUESTIONS.values() for a in q.attributes})),
    st.text(max_size=12) | st.text(".-+0123456789: AT", max_size=8),
)
def test_no_cell_becomes_an_illegal_grade(variable: str, cell: str) -> None:
    read = mc.read_cell(variable, cell)
    asked = QUESTIONS[mc.VARIABLES[variable][0][0]]
    assert isinstance(read, str) or all(g in asked.attribute(a).space.grades for a, g in read.items())
    assert isinstance(read, str) or read


def table(folder: Path, rows: list[dict[str, str]], number: str = "00") -> Path:
    columns = [*KEYS, *(f"V{number}{name}" for name in ("MBMSPM", "MBMNPM", "MBMPPM", "MSYIC")), "OTHER"]
    columns += sorted({name for row in rows for name in row} - {*columns})
    lines = ["|".join(columns), *("|".join(row.get(c, ".: Missing Form") for c in columns) for row in rows)]
    path = folder / f"kMRI_SQ_MOAKS_BICL{number}.txt"
    path.write_text("\r\n".join(lines) + "\r\n")
    return path


def reading(project: str, *codes: str, patient: str = "1000001", side: str = "1: Right") -> dict[str, str]:
    cells = dict(zip(("V00MBMSPM", "V00MBMNPM", "V00MBMPPM", "V00MSYIC"), codes, strict=False))
    return {"ID": patient, "SIDE": side, "READPRJ": project, "OTHER": "7", **cells}


def test_the_reading_with_most_questions_is_chosen_then_the_first_project(tmp_path: Path) -> None:
    table(
        tmp_path,
        [
            reading("65", "1", "1", "1", "1"),
            reading("15", "2", "2", "2"),
            reading("63B: x", "3", "3", "3", "2"),
            reading("63B", "0", "0", "0", "0"),
        ],
    )
    readings = mt.read_tables(tmp_path)
    ((knee, chosen),) = readings.chosen.items()
    assert knee == ("1000001", "00m", "right")
    assert (chosen.project, chosen.grades["hoffa_synovitis"]) == ("63B", {"grade": 2})
    assert [r.project for r in readings.others[knee]] == ["65", "15", "63B"]
    assert readings.unused == {mt.NOT_ASKED: 4, mc.MISSING: 1, mt.OTHER_READING: 4 + 3 + 4}


def test_projects_have_a_stated_order() -> None:
    names = ["65", "7", "63F", "30", "63A", "22", "1000", "zz"]
    assert sorted(names, key=mt.order_of) == ["22", "30", "63A", "63F", "65", "1000", "7", "zz"]


def test_one_project_reads_a_knee_at_all_its_visits(tmp_path: Path) -> None:
    """30 grades more of the knee than 22 over both visits, so it is taken at both, though 22 stands first."""
    for number in ("00", "01"):
        first = [reading("22", "1", "1", "1", "1"), reading("30", "2", "2", "2", "2")]
        if number == "01":
            first = [
                reading("22", "1", "1", "1"),
                reading("30", "2", "2", "2", "2"),
                reading("22", patient="1000002"),
            ]
        for row in first:
            for name in [n for n in row if n.startswith("V00")]:
                row[name.replace("V00", f"V{number}")] = row.pop(name)
        table(tmp_path, [*first, {**reading("22"), "ID": "1000003", f"V{number}MSYIC": "1"}], number)
    chosen = {knee: r.project for knee, r in mt.read_tables(tmp_path).chosen.items()}
    assert chosen["1000001", "00m", "right"] == chosen["1000001", "12m", "right"] == "30"
    assert chosen["1000003", "12m", "right"] == "22"


def test_a_question_keeps_the_attributes_that_are_known(tmp_path: Path) -> None:
    table(tmp_path, [reading("15", "1", "0.5: within", "1", "3")])
    readings = mt.read_tables(tmp_path)
    assert next(iter(readings.chosen.values())).grades == {
        "patella_medial_bml": {"size": 1, "percent_bml": 1},
        "hoffa_synovitis": {"grade": 3},
    }
    assert readings.unused == {mt.NOT_ASKED: 1, mc.WITHIN_GRADE: 1}
    assert readings.within_grade == {"patella_medial_bml": {"0.5": 1}}


@pytest.mark.parametrize(
    "cells", [("2: Repaired", "0: no"), ("0: no", "1: yes", "0: no"), ("2: Repaired", "1: yes")]
)
def test_two_columns_that_tell_of_a_repair(tmp_path: Path, cells: tuple[str, ...]) -> None:
    """Where they contradict each other, nobody knows: the one that comes last does not decide."""
    told = dict(zip(("V00MACLTR", "V00MACLRP", "V00MACLBL"), cells, strict=False))
    table(tmp_path, [{**reading("22"), **told, "V00MSYIC": "1"}])
    readings = mt.read_tables(tmp_path)
    (chosen,) = readings.chosen.values()
    clash = cells == ("2: Repaired", "0: no")
    assert readings.unused[mc.CONTRADICTED] == (2 if clash else 0)
    assert chosen.used == 1 + (0 if clash else len(cells))
    assert readings.recoded == (
        {"MACLTR '2: Repaired' read as repair 1": 1} if cells[1:] == ("1: yes",) else {}
    )
    assert chosen.grades.get("acl", {}).get("repair") == (None if clash else 1)
    assert ("acl" in chosen.grades) == (not clash)


def test_an_untidy_table_says_the_same(cohort: Path, sources: Path) -> None:
    """BOM, CRLF, columns in lower case, ids with a leading zero or blanks, projects in lower case, blank lines, and what macOS and browsers leave."""
    for path in list((sources / "tables").iterdir()):
        header, *lines = path.read_text().splitlines()
        untidy = [header.lower(), *(f" 0{line} " if n % 2 else line for n, line in enumerate(lines)), ""]
        path.unlink()
        path.with_name(path.name.upper()).write_bytes(b"\xef\xbb\xbf" + "\r\n".join(untidy).encode())
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7" * 9)
        path.with_name(path.name.replace(".txt", " (1).txt")).write_text(header)
    (sources / "splits" / "._train.csv").write_bytes(b"\0\5\x16\7" * 9)
    outcome = construct(sources)
    assert {re.sub("KMRI.*?TXT", "", a.to_json()) for a in outcome.annotations} == {
        re.sub("kMRI.*?txt", "", line) for line in truth(cohort).splitlines()
    }
    assert len(outcome.report["tables_not_read"]) == len(VISITS)


def test_a_table_of_a_visit_that_is_there_twice_is_named(tmp_path: Path) -> None:
    first = table(tmp_path, [reading("22", "1")])
    (tmp_path / "kmri_sq_moaks_bicl00.sas7bdat").write_bytes(b"")
    (tmp_path / "KMRI_SQ_MOAKS_BICL00.TXT").write_text(first.read_text().replace("22|", "30|"))
    readings = mt.read_tables(tmp_path)
    assert {t["file"] for t in readings.tables} == {"KMRI_SQ_MOAKS_BICL00.TXT"}
    assert readings.not_read == [
        "kMRI_SQ_MOAKS_BICL00.txt (KMRI_SQ_MOAKS_BICL00.TXT is)",
        "kmri_sq_moaks_bicl00.sas7bdat (KMRI_SQ_MOAKS_BICL00.TXT is)",
    ]


def test_a_column_that_one_table_lacks_is_named_with_its_cost(
    sources: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = sources / "tables" / "kMRI_SQ_MOAKS_BICL01.txt"
    path.write_text(path.read_text().replace("V01MACLBL", "V01NEW"))
    told = f"{path.name} lacks variables that other tables have: MACLBL (acl: insertion_bml_cyst)"
    for asked in ("plan", "construct"):
        assert command(asked, sources) == 0
        assert told in capfd.readouterr().out


def test_columns_under_other_names(
    cohort: Path, sources: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Absent columns are named with what they cost; with the user's names nothing is lost."""
    for path in (sources / "tables").iterdir():
        path.write_text(path.read_text().replace("MACLBL", "MACLBML"))
    assert command("construct", sources, "--out", tmp_path / "without.jsonl") == 0
    assert "MACLBL (acl: insertion_bml_cyst)" in capfd.readouterr().out
    without = [a for _, a in scan_annotations(tmp_path / "without.jsonl")]
    assert {tuple(a.grades["acl"]) for a in without if "acl" in a.grades} == {("complete_tear", "repair")}
    table_00 = sources / "tables" / "kMRI_SQ_MOAKS_BICL00.txt"
    assert command("columns", table_00) == 0
    told = capfd.readouterr().out
    assert "is it V00MACLBML?" in told
    assert "1 absent" in told
    names = tmp_path / "names.json"
    names.write_text('{"MACLBL": "V00MACLBML"}')
    assert command("columns", table_00, "--columns", names) == 0
    assert "0 absent" in capfd.readouterr().out
    assert command("construct", sources, "--columns", names) == 0
    assert (sources / FILE_NAME).read_text() == truth(cohort)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"MACLBX": "A"}', "J015.*MACLBX.*did you mean MACLBL"),
        ('{"MACLBL": 3}', "J015.*MACLBL is '3'"),
        ('{"MACLBL": "A", "MPCLBL": "A"}', "J015.*two variables"),
        ("[]", "T007"),
    ],
)
def test_names_of_columns_are_checked(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "names.json").write_text(text)
    with pytest.raises(ReasonKneeError, match=error):
        read_names(tmp_path / "names.json")


def test_columns_of_what_is_no_moaks_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "enrollees.txt").write_text("ID|SIDE\n")
    assert command("columns", tmp_path / "enrollees.txt") == 2
    assert "J016" in capfd.readouterr().err


def test_tables_of_another_kind_are_named_as_not_read(
    cohort: Path, sources: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (sources / "tables" / "kMRI_FNIH_SQ_MOAKS_BICL00.txt").write_text("ID|SIDE|READPRJ\n")
    assert command("construct", sources) == 0
    assert (
        "tables that are not read: kMRI_FNIH_SQ_MOAKS_BICL00.txt (of another kind)" in capfd.readouterr().out
    )
    assert (sources / FILE_NAME).read_text() == truth(cohort)


def test_rows_without_a_knee_are_counted_and_named(tmp_path: Path) -> None:
    table(
        tmp_path,
        [
            reading("15", "1", patient="12"),
            reading("15", "1", side="1: Left"),
            reading("15", "1", side="3"),
            reading("15", patient="01000001"),
        ],
    )
    readings = mt.read_tables(tmp_path)
    assert list(readings.chosen) == [("1000001", "00m", "right")]
    assert [row.split(":")[1] for row in readings.refused_rows] == ["2", "3", "4"]
    assert readings.unused[mt.NO_KNEE] == 3 * 5


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ID|SIDE|V00MSYIC\n", "J002.*READPRJ"),
        ("ID|SIDE|READPRJ|V00MSYIC|v00msyic\n", "J002.*twice"),
        ("ID|SIDE|READPRJ|V01MSYIC\n", "J002.*V00M"),
        ("ID|SIDE|READPRJ|V00MSYIC\n1000001|1: Right|15\n", "J003.*:2: 3 cells"),
        ("ID;SIDE;READPRJ;V00MSYIC\n", r"J002.*one column.*separates columns by \|"),
        ("", "J002.*empty"),
    ],
)
def test_tables_of_another_kind_are_refused(tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "kMRI_SQ_MOAKS_BICL00.txt").write_text(text)
    with pytest.raises(DataError, match=error):
        mt.read_tables(tmp_path)


def test_no_tables(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="J001"):
        mt.read_tables(tmp_path / "tables")


def test_sas_tables_give_the_truth(cohort: Path, sources: Path) -> None:
    """SAS holds numbers: 2.1, 0.5 and a missing value must come out as the text tables have them."""
    needs("pandas")
    for path in sorted((sources / "tables").iterdir()):
        header, *lines = (
            [mc.code(cell) for cell in line.split("|")] for line in path.read_text().splitlines()
        )
        kept = [i for i, name in enumerate(header) if name != "VERSION"]
        numbers = [[float("nan") if line[i] == "." else float(line[i]) for i in kept] for line in lines]
        write_sas7bdat(
            path.with_name(path.name.lower().replace("txt", "sas7bdat")), [header[i] for i in kept], numbers
        )
        path.unlink()
    assert made(sources) == re.sub(
        r"kMRI_SQ_MOAKS_BICL(\d\d).txt", r"kmri_sq_moaks_bicl\1.sas7bdat", truth(cohort)
    )


def test_a_damaged_sas_table_is_one_clear_error(tmp_path: Path) -> None:
    needs("pandas")
    path = tmp_path / "kmri_sq_moaks_bicl00.sas7bdat"
    write_sas7bdat(path, ["ID", "SIDE", "READPRJ", "V00MSYIC"], [[1000001, 1, 15, 2]])
    good = path.read_bytes()
    for bad in (b"no such table" * 100, good[:500], good[: len(good) // 2 + 99]):
        path.write_bytes(bad)
        with pytest.raises(DataError, match=r"J002.*sas7bdat"):
            mt.read_tables(tmp_path)


# --- masks ------------------------------------------------------------------------------------------------------------------------


def brute_force(mask: np.ndarray) -> dict[str, Box | None]:
    """Each region for itself, by flood fill; portions are region_boxes' own business."""
    found: dict[str, Box | None] = {}
    for region in REGIONS.values():
        if region.portion:
            continue
        voxels = {tuple(v) for v in np.argwhere(np.isin(mask, [LABELS[n] for n in region.labels])).tolist()}
        best: list[tuple[int, ...]] = []
        while voxels:
            piece, edge = [], [min(voxels)]
            voxels.discard(edge[0])
            while edge:
                z, y, x = edge.pop()
                piece.append((z, y, x))
                near = {
                    (z + a, y + b, x + c) for a in (-1, 0, 1) for b in (-1, 0, 1) for c in (-1, 0, 1)
                } & voxels
                voxels -= near
                edge += near
            if len(piece) > len(best):
                best = piece
        low, high = np.array(best).min(0) if best else None, np.array(best).max(0) + 1 if best else None
        found[region.id] = (
            Box(*(int(v) for pair in zip(low, high, strict=True) for v in pair)) if best else None
        )
    return found


@given(st.integers(0, 2**32 - 1), st.floats(0.02, 0.5), st.integers(1, 22))
def test_boxes_are_those_of_the_largest_components(seed: int, density: float, labels: int) -> None:
    rng = np.random.default_rng(seed)
    mask = (rng.integers(1, labels + 1, (5, 6, 7)) * (rng.random((5, 6, 7)) < density)).astype(np.uint8)
    found = region_boxes(mask, "LIP", largest_components)
    assert {name: box for name, box in found.items() if not REGIONS[name].portion} == brute_force(mask)


def test_another_labeling_gives_the_same_boxes(cohort: Path, sources: Path, tmp_path: Path) -> None:
    """Other numbers, signed, one region in two parts, and a label of no interest."""
    for path in sources.glob("masks/*/*/*"):
        mask = read_volume(path)
        array = mask.array.astype(np.int16) * 10
        array[0, 0, :3] = 7
        half = array == 10 * LABELS["acl"]
        half[: half.shape[0] // 2] = False
        array[half] = 1001
        write_nifti(path, Volume(array, mask.grid))
    labeling = {str(value * 10): name for name, value in LABELS.items()} | {"1001": "acl", "7": None}
    (tmp_path / "labels.json").write_text(json.dumps(labeling))
    assert made(sources, Options(read_label_map(tmp_path / "labels.json"))) == truth(cohort)
    assert {each["code"] for each in construct(sources).bad} == {"J013"}


@pytest.mark.parametrize(
    "text",
    [
        '{"1": "knee"}',
        '{"-1": "acl"}',
        '{"0": "acl"}',
        '{"99999": "acl"}',
        '{"٢": "acl"}',
        "[]",
        '{"1": ["acl"]}',
        '{"1": "acl", "1": "pcl"}',
    ],
)
def test_label_maps_are_checked(tmp_path: Path, text: str) -> None:
    (tmp_path / "labels.json").write_text(text)
    with pytest.raises((UsageError, DataError), match=r"J010|T00"):
        read_label_map(tmp_path / "labels.json")


def test_an_absent_region_has_no_box_and_probabilities_are_refused(tmp_path: Path) -> None:
    grid = phantom_grid((4, 5, 6))
    array = np.zeros((4, 5, 6), np.float32)
    array[1, 2, 3] = LABELS["acl"]
    write_nifti(tmp_path / "m.nii.gz", Volume(array, grid))
    boxes = mask_boxes(tmp_path / "m.nii.gz", grid)
    assert {r: b for r, b in boxes.items() if b} == {"acl": Box(1, 2, 2, 3, 3, 4)}
    array[0, 0, 0] = 0.5
    write_nifti(tmp_path / "m.nii.gz", Volume(array, grid))
    with pytest.raises(DataError, match="J013"):
        mask_boxes(tmp_path / "m.nii.gz", grid)


# --- splits -----------------------------------------------------------------------------------------------------------------------


def split_file(path: Path, *rows: tuple[str, ...], columns: tuple[str, ...] = SPLIT_COLUMNS) -> Path:
    path.write_text("\n".join(",".join(r) for r in (columns, *rows)) + "\n")
    return path


def row(
    patient: str = "1000001",
    time: str = "00M",
    study: str = "20000115",
    series: str = "10000100",
    side: str = "right",
) -> tuple[str, ...]:
    return (patient, time, study, series, side, "p", "i", "l")


def test_split_files_with_seven_or_eight_columns(tmp_path: Path) -> None:
    short = tuple(c for c in SPLIT_COLUMNS if c != "path")
    a = split_file(tmp_path / "train.csv", row("01000001"), row(time="12m", study="20010115", series="2"))
    b = split_file(tmp_path / "my_val_set.csv", row("1000002")[:5] + row()[6:], columns=short)
    found = read_split_files([b, a])
    assert {key: (r.split, r.visit, r.side) for key, r in found.items()} == {
        ("1000001", "20000115", "10000100"): ("train", "00m", "right"),
        ("1000001", "20010115", "2"): ("train", "12m", "right"),
        ("1000002", "20000115", "10000100"): ("validation", "00m", "right"),
    }


@pytest.mark.parametrize(
    ("name", "rows", "error"),
    [
        ("val.csv", [row("01000001", series="3")], "J022.*1000001 .train and validation"),
        ("val.csv", [row("1000002"), row("1000002")], "J021.*twice"),
        ("val.csv", [row("12")], "P001: val.csv:2"),
        ("val.csv", [row("1000002", time="soon")], "J023.*time"),
        ("val.csv", [row("1000002", side="both")], "J023.*knee_side"),
        ("val.csv", [(*row("1000002"), "more")], "T004"),
        ("what.csv", [row("1000002")], "J020.*name"),
    ],
)
def test_split_files_that_cannot_be_meant(
    tmp_path: Path, name: str, rows: list[tuple[str, ...]], error: str
) -> None:
    good = split_file(tmp_path / "train.csv", row())
    with pytest.raises(DataError, match=error):
        read_split_files([good, split_file(tmp_path / name, *rows)])


def knees(patients: int, seed: int = 0) -> list[tuple[str, str, str, dict[str, dict[str, int]]]]:
    return [
        (s.patient, s.visit, s.side, s.read) for n in range(1, patients + 1) for s in patient_scans(n, seed)
    ]


@given(st.integers(3, 60), st.integers(0, 9), st.randoms(use_true_random=False))
def test_own_splits_are_whole_patients_in_the_right_numbers(
    patients: int, seed: int, shuffle: object
) -> None:
    counts = {
        f"{1000000 + n}": {"volumes": 1 + n % 3, f"visit {n % 5}": 1, f"grade {n % 7}": 1}
        for n in range(patients)
    }
    split = assign(counts, seed)
    sizes = Counter(split.values())
    assert all(
        abs(sizes[s] - max(1, patients * f)) <= 1 for s, f in zip(SPLITS[1:], FRACTIONS[1:], strict=True)
    )
    assert sum(sizes.values()) == patients
    order = list(counts.items())
    shuffle.shuffle(order)  # type: ignore[attr-defined]
    assert assign(dict(order), seed) == split


def test_own_splits_are_balanced() -> None:
    """On 400 patients: in grades closer to the cohort than nine of ten splits drawn at random, in visits than most of them."""
    counts = features(knees(400))
    mine = imbalance(counts, assign(counts))
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(20):
        order = rng.permutation(sorted(counts))
        drawn.append(
            imbalance(
                counts,
                {p: "validation" if i < 40 else "test" if i < 100 else "train" for i, p in enumerate(order)},
            )
        )
    for split in SPLITS:
        for kind, share in (("visit_largest", 0.4), ("grade_mean", 0.1)):
            assert mine[split][kind] < np.quantile([d[split][kind] for d in drawn], share), (split, kind)
    assert (mine["train"]["patients"], mine["validation"]["patients"], mine["test"]["patients"]) == (
        300,
        40,
        60,
    )


# --- finding scans ----------------------------------------------------------------------------------------------------------------


def test_scans_are_found_by_what_their_paths_say(tmp_path: Path) -> None:
    good = tmp_path / "x" / "01000001" / "12M" / "20010115_77_LEFT.nii.gz"
    good.parent.mkdir(parents=True)
    for path in (
        good,
        good.with_name("notes.txt"),
        good.with_name("._20010115_77_LEFT.nii.gz"),
        tmp_path / "20010115_77_left.nii.gz",
    ):
        path.write_bytes(gzip.compress(b""))
    (tmp_path / "loop").symlink_to(tmp_path)
    (scan,) = find_scans(tmp_path)
    assert (scan.key, scan.visit, scan.side) == (("1000001", "20010115", "77"), "12m", "left")


@pytest.mark.parametrize(
    ("path", "visit"),
    [
        ("00mDESS/0.C.2", "00m"),
        ("24M", "24m"),
        ("24mDESS/0.C.2", "24m"),
        ("3.C.2", "24m"),
        ("6.E.1", "48m"),
        ("9.E.1", None),
        ("12m/24m", None),
        ("", None),
    ],
)
def test_visits_in_paths(path: str, visit: str | None) -> None:
    assert visit_in(tuple(path.split("/"))) == visit
