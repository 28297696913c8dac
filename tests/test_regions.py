"""Masks that people can get: tissues become subregions by rule, nnU-Net's dataset goes out and comes back, and agreement is counted."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import nibabel
import numpy as np
import pytest
from conftest import command, needs

from reasonknee.boxes import Box
from reasonknee.cohort.annotations import FILE_NAME, scan_annotations, write_annotations
from reasonknee.construct.nnunet import FOLDER
from reasonknee.construct.regions import make_regions
from reasonknee.construct.tissues import LABELINGS, subregions
from reasonknee.errors import DataError, UsageError
from reasonknee.phantom.cohort import patient_scans, phantom_grid
from reasonknee.phantom.knee import draw_knee
from reasonknee.phantom.tissues import draw_tissues
from reasonknee.questions import QUESTION_SETS
from reasonknee.questions.regions import LABELS
from reasonknee.scoring.agreement import dice_by_region
from reasonknee.system.progress import silent
from reasonknee.volumes import Volume, read_volume, write_nifti
from reasonknee.volumes.region_boxes import region_boxes

needs("cc3d")
SHAPE = (40, 96, 96)
NINE = LABELINGS["nnunet_knee"]


@pytest.fixture
def tissue_masks(cohort: Path, tmp_path: Path) -> Path:
    """The tissues of the cohort's knees, under the names of its masks."""
    scans = {(s.patient, s.visit, s.side): s for n in range(1, 7) for s in patient_scans(n, 3)}
    for path in (cohort / "masks").rglob("*.nii.gz"):
        volume = read_volume(path)
        *_, patient, visit, name = path.parts
        side = re.search("left|right", name)[0]
        s = scans[patient, visit.lower(), side]
        drawn = draw_tissues(volume.array.shape, side, s.grades, s.seed, anatomy_seed=s.anatomy_seed)
        target = tmp_path / "tissues" / path.relative_to(cohort / "masks")
        target.parent.mkdir(parents=True, exist_ok=True)
        write_nifti(target, Volume(drawn, volume.grid))
    return tmp_path / "tissues"


@pytest.mark.parametrize("side", ["left", "right"])
def test_rules_find_the_subregions(side: str) -> None:
    grid = phantom_grid(SHAPE)
    mask = draw_tissues(SHAPE, side, {}, 0, anatomy_seed=7)
    truth = region_boxes(draw_knee(SHAPE, side, {}, 0, anatomy_seed=7).mask, grid.orientation)
    made = subregions(mask, grid, side, NINE)
    boxes = region_boxes(made, grid.orientation)
    asked = [q for q in QUESTION_SETS["paper62"] if boxes[q.region.id]]
    assert len(asked) >= 57
    ious = {r: truth[r].iou(b) for r, b in boxes.items() if b}
    assert min(ious.values()) > 0.45
    assert np.mean(list(ious.values())) > 0.7


@pytest.mark.parametrize("side", ["left", "right"])
def test_all_orders_and_directions_of_the_axes_give_the_same_regions(side: str, tmp_path: Path) -> None:
    """A mask as 48 files, one for each way in which three axes can lie: voxels of the same place get the same region."""
    small = (20, 48, 48)
    mask, grid = draw_tissues(small, side, {}, 0, anatomy_seed=7), phantom_grid(small)
    wanted = subregions(mask, grid, side, NINE)
    assert len(np.unique(wanted)) > 15
    ways = [*product(permutations(range(3)), product((False, True), repeat=3))]
    for n, (order, flipped) in enumerate(ways):
        array, affine = mask.transpose(2, 1, 0), grid.affine.copy()  # of a file: x, y, z
        for axis in (axis for axis in range(3) if flipped[axis]):
            array = np.flip(array, axis)
            affine[:3, 3] += affine[:3, axis] * (array.shape[axis] - 1)
            affine[:3, axis] *= -1
        path = tmp_path / "masks" / str(9_000_000 + n) / "00m" / f"1_2_{side}.nii.gz"
        path.parent.mkdir(parents=True)
        nibabel.save(nibabel.Nifti1Image(array.transpose(order), affine[:, [*order, 3]]), path)
    told = list(make_regions(tmp_path / "masks", tmp_path / "regions", "nnunet_knee", silent))
    assert told[0].startswith("48 masks of ")
    orientations = set()
    for path in (tmp_path / "regions").rglob("*.nii.gz"):
        made = read_volume(path)
        flips = made.grid.flips_to(grid)
        assert flips is not None
        assert (np.flip(made.array, flips) == wanted).all()
        orientations.add(
            "".join(
                nibabel.aff2axcodes(
                    nibabel.load(tmp_path / "masks" / path.relative_to(tmp_path / "regions")).affine
                )
            )
        )
    assert len(orientations) == 48


def test_fewer_tissues_give_fewer_regions() -> None:
    mask, grid = draw_tissues(SHAPE, "right", {}, 0, anatomy_seed=7), phantom_grid(SHAPE)
    whole = subregions(mask, grid, "right", NINE)
    six = np.array([0, 6, 2, 4, 4, 0, 0, 1, 3, 5], np.uint8)[mask]
    found = subregions(six, grid, "right", LABELINGS["kneeseg"])
    assert set(np.unique(found)) == {
        n for n in np.unique(whole) if n not in (LABELS["medial_meniscus"], LABELS["lateral_meniscus"])
    }
    five = np.array([0, 0, 2, 4, 5, 0, 0, 1, 3, 0], np.uint8)[mask]
    found = subregions(five, grid, "right", LABELINGS["oaizib"])
    assert LABELS["femur_medial_central"] in found
    assert LABELS["patella_medial"] not in found
    with pytest.raises(DataError, match="J019"):
        subregions(mask, grid, "right", LABELINGS["oaizib"])


def test_boxes_by_rule_are_marked_and_compared(
    cohort: Path, tissue_masks: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "regions"
    assert command("regions", tissue_masks, out) == 0
    assert "57 of 62 questions get a box" in capfd.readouterr().out
    assert command("regions", tissue_masks, out) == 2
    sources = tmp_path / "sources"
    shutil.copytree(cohort, sources, ignore=shutil.ignore_patterns(FILE_NAME, "*.h5", "masks"))
    (sources / "masks").mkdir()
    shutil.move(out, sources / "masks")  # into masks/regions, as `mv` does where masks/ is there already
    first = min((sources / "masks" / "regions").iterdir())
    shutil.copytree(cohort / "masks" / first.name, sources / "masks" / first.name)
    shutil.rmtree(first)
    assert command("plan", sources) == 0
    mine = [a for _, a in scan_annotations(cohort / FILE_NAME)]
    by_rule = sum(a.patient != first.name for a in mine)
    assert f"masks: {len(mine)}, {by_rule} made by rule" in capfd.readouterr().out
    assert command("construct", sources) == 0
    for _, a in scan_annotations(sources / FILE_NAME):
        assert a.provenance.boxes == ("mask" if a.patient == first.name else "rule")
    page = (sources / "construct.report.md").read_text()
    assert f"{by_rule} volumes: boxes made by rule from tissue masks, which no reader has seen" in page
    capfd.readouterr()
    assert command("compare-boxes", sources / FILE_NAME, cohort / FILE_NAME) == 0
    told = capfd.readouterr().out
    assert re.search(r"tibia_subspinous +\d+ +0\.\d+  \[0\.\d+, [01]\.\d+\]", told)
    assert re.search(rf"acl +\d+  {1 - by_rule / len(mine):.3f}", told)  # by rule there is none
    shutil.rmtree(tissue_masks)
    tissue_masks.mkdir()
    assert command("regions", tissue_masks, tmp_path / "more") == 3
    capfd.readouterr()
    assert command("regions", cohort / "masks", tmp_path / "more") == 3  # not of this labeling
    told = capfd.readouterr()
    assert "J052: all" in told.err
    assert "next:" not in told.out
    assert not (tmp_path / "more").exists()


def test_labelings_are_checked(tmp_path: Path) -> None:
    from reasonknee.construct.tissues import labeling

    with pytest.raises(UsageError, match="J018"):
        labeling("nothing")
    (tmp_path / "a.json").write_text('{"1": "bone"}')
    with pytest.raises(UsageError, match="J018"):
        labeling(str(tmp_path / "a.json"))
    (tmp_path / "a.json").write_text('{"1": "femur"}')
    assert labeling(str(tmp_path / "a.json")) == {1: "femur"}


def test_a_dataset_of_nnunet_goes_out_and_comes_back(
    cohort: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command("export", "nnunet", cohort, tmp_path / "raw") == 0
    base = tmp_path / "raw" / FOLDER
    about = json.loads((base / "dataset.json").read_text())
    labels = sorted(about["labels"].values())
    assert labels == list(range(len(labels)))
    names = {p.name.removesuffix(".nii.gz") for p in (base / "labelsTr").iterdir()}
    assert names == {p.name.removesuffix("_0000.nii.gz") for p in (base / "imagesTr").iterdir()}
    assert about["numTraining"] == len(names)
    for fold in json.loads((base / "splits_final.json").read_text()):
        train, val = ({name[:7] for name in fold[part]} for part in ("train", "val"))
        assert not train & val
        assert train | val == {name[:7] for name in names}
    medial, lateral = (
        np.argwhere(read_volume(p).array == LABELS[f"femur_{s}_central"])[:, 0].mean()
        for p in list((base / "labelsTr").iterdir())[:1]
        for s in ("medial", "lateral")
    )
    assert medial > lateral
    predictions = tmp_path / "predictions"
    shutil.copytree(base / "labelsTr", predictions)
    some = sorted(predictions.iterdir())
    wrong = read_volume(some[0])
    write_nifti(some[0], Volume(np.ascontiguousarray(wrong.array[::-1]), wrong.grid))
    some[1].unlink()
    other = read_volume(some[2])
    write_nifti(some[2], other.crop(Box(0, 8, 0, 40, 0, 40)))
    capfd.readouterr()
    assert command("import-nnunet", predictions, base, cohort, tmp_path / "masks") == 3
    told, error = capfd.readouterr()
    assert "J058" in told
    assert "J056" in told
    assert "J062: 2 predictions refused" in error
    unpredicted = {p.name.removesuffix("_0000.nii.gz") for p in (base / "imagesTs").iterdir()}
    assert f"without a prediction: {len(unpredicted) + 1} (" in told
    back = list((tmp_path / "masks").rglob("*.nii.gz"))
    assert len(back) == len(names) - 3
    for path in back:
        manual = read_volume(cohort / "masks" / path.relative_to(tmp_path / "masks"))
        assert (read_volume(path).array == manual.array).all()
    assert command("dice", tmp_path / "masks", cohort / "masks") == 0
    assert re.search(r"acl +\d+  1\.000  \[1\.000, 1\.000\]", capfd.readouterr().out)
    assert command("import-nnunet", tmp_path / "none", base, cohort, tmp_path / "again") == 3
    assert command("import-nnunet", predictions, tmp_path, cohort, tmp_path / "again") == 2
    assert command("dice", tmp_path / "predictions", cohort / "masks") == 3


def test_one_bad_volume_is_left_out_of_an_export_and_other_labels_are_mapped(
    cohort: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What nnU-Net gets are the labels that dataset.json lists, or nothing."""
    copy = tmp_path / "cohort"
    shutil.copytree(cohort, copy)
    train = [a for _, a in scan_annotations(copy / FILE_NAME) if a.split != "test"]
    paths = [next((copy / "masks").rglob(f"*_{a.series}_*")) for a in train]
    mask = read_volume(paths[0])
    write_nifti(paths[0], Volume((mask.array.astype(np.int16) * 10), mask.grid))
    image = next((copy / "images").rglob(f"*_{train[1].series}_*"))
    image.write_bytes(image.read_bytes()[:100])
    paths[2].unlink()
    assert command("export", "nnunet", copy, tmp_path / "raw") == 3
    told, error = capfd.readouterr()
    assert "J060: 2 volumes left out" in error
    assert f"without one image or one mask: {train[2].volume_id}" in told
    names = {p.name.removesuffix(".nii.gz") for p in (tmp_path / "raw" / FOLDER / "labelsTr").iterdir()}
    assert names == {a.volume_id for a in train[3:]}
    labels = {str(n): name for name, n in LABELS.items()} | {str(n * 10): name for name, n in LABELS.items()}
    labels |= {str(n): name for name, n in LABELS.items()}
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    map_ = ("--label-map", tmp_path / "labels.json")
    write_nifti(paths[0], Volume(np.where(mask.array == 22, 220, mask.array).astype(np.int16), mask.grid))
    assert command("export", "nnunet", copy, tmp_path / "mapped", *map_) == 3
    stored = read_volume(tmp_path / "mapped" / FOLDER / "labelsTr" / f"{train[0].volume_id}.nii.gz")
    assert np.bincount(stored.array.ravel()).tolist() == np.bincount(mask.array.ravel()).tolist()
    capfd.readouterr()
    assert command("export", "trl", copy, tmp_path / "rows", *map_) == 2
    assert "--label-map does nothing for trl" in capfd.readouterr().err


def test_dice_of_what_is_no_mask_of_regions(
    cohort: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = min((cohort / "masks").rglob("*.nii.gz"))
    target = tmp_path / "masks" / path.relative_to(cohort / "masks")
    target.parent.mkdir(parents=True)
    mask = read_volume(path)
    write_nifti(target, Volume(np.where(mask.array == 1, 99, mask.array).astype(np.uint8), mask.grid))
    assert command("dice", tmp_path / "masks", cohort / "masks") == 3
    assert "S055" in capfd.readouterr().err
    shutil.copy(path, target)
    shutil.copy(path, target.with_name(target.name.removesuffix(".gz")))
    assert command("dice", tmp_path / "masks", cohort / "masks") == 3
    assert "S054" in capfd.readouterr().err


def test_a_side_that_is_wrong_and_masks_of_few_voxels(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A name that says left of a right knee is refused, where it would make regions of nothing; a few stray voxels are no crash."""
    grid = phantom_grid(SHAPE)
    mask = draw_tissues(SHAPE, "right", {}, 0, anatomy_seed=7)
    with pytest.raises(DataError, match="J063"):
        subregions(mask, grid, "left", NINE)
    rng = np.random.default_rng(0)
    for n in range(200):
        shape = tuple(int(v) for v in rng.integers(1, 6, 3))
        some = (rng.integers(0, 10, shape) * (rng.random(shape) < rng.random())).astype(np.uint8)
        if n % 2:
            some[some == 4] = 0  # without a lateral plateau nothing says which side is which
        with contextlib.suppress(DataError):
            assert subregions(some, phantom_grid(shape), "right", NINE).shape == shape
    for patient, name in (("9000001", "1_2_RIGHT.NII"), ("9000002", "1_2_right.NII.GZ")):
        path = tmp_path / "masks" / patient / "00M" / name
        path.parent.mkdir(parents=True)
        write_nifti(
            path, Volume(mask if patient[-1] == "1" else np.where(mask == 3, 0, mask).astype(np.uint8), grid)
        )
    (tmp_path / "masks" / "9000001" / "00M" / "._1_2_right.nii.gz").write_bytes(b"\0\5\x16\7")
    assert command("regions", tmp_path / "masks", tmp_path / "out") == 0
    told = capfd.readouterr().out
    assert "57 of 62 questions get a box" in told
    assert re.search(
        "1 mask of fewer tissues, the worst 9000002/00M/1_2_right.nii.gz: [0-9]+ questions", told
    )
    assert sorted(p.name for p in (tmp_path / "out").rglob("*.nii.gz")) == [
        "1_2_RIGHT.nii.gz",
        "1_2_right.nii.gz",
    ]


def test_dice_by_hand() -> None:
    a, b = np.zeros((2, 2, 4), np.uint8), np.zeros((2, 2, 4), np.uint8)
    a[0, 0], b[0, 0, 1:], b[0, 1, 0] = 1, 1, 2
    assert dice_by_region(a, b) == {"patella_medial": pytest.approx(6 / 7), "patella_lateral": 0.0}


def test_what_cannot_be_exported_or_compared(
    cohort: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(cohort, bare, ignore=shutil.ignore_patterns("masks"))
    assert command("export", "nnunet", bare, tmp_path / "none") == 3
    assert "J053" in capfd.readouterr().err
    assert not (tmp_path / "none").exists()
    assert command("export", "nnunet", cohort, tmp_path / "raw") == 0
    base = tmp_path / "raw" / FOLDER
    path = min((base / "labelsTr").iterdir())
    mask = read_volume(path)
    write_nifti(path, Volume(np.where(mask.array == 1, 200, mask.array).astype(np.uint8), mask.grid))
    assert command("import-nnunet", base / "labelsTr", base, cohort, tmp_path / "back") == 3
    assert "J057" in capfd.readouterr().out
    for strange in (np.float32(0.5), np.int16(-1)):
        write_nifti(path, Volume(np.where(mask.array == 1, strange, mask.array), mask.grid))
        assert command("import-nnunet", base / "labelsTr", base, cohort, tmp_path / f"{strange}") == 3
        assert "J057" in capfd.readouterr().out
    write_nifti(path.with_name("1999999-00m-left.nii.gz"), mask)
    shutil.copy(next((base / "imagesTr").iterdir()), base / "imagesTr" / "1999999-00m-left_0000.nii.gz")
    assert command("import-nnunet", base / "labelsTr", base, cohort, tmp_path / "other") == 3
    assert "1999999-00m-left: J061" in capfd.readouterr().out
    mine, other = ([a for _, a in scan_annotations(cohort / FILE_NAME)] for _ in range(2))
    write_annotations(tmp_path / "mine.jsonl", [replace(a, shape=(99, 99, 99)) for a in mine])
    write_annotations(tmp_path / "other.jsonl", [replace(a, patient="1999999") for a in other[:1]])
    assert command("compare-boxes", tmp_path / "mine.jsonl", cohort / FILE_NAME) == 3
    assert "S050" in capfd.readouterr().err
    assert command("compare-boxes", tmp_path / "other.jsonl", cohort / FILE_NAME) == 3
    assert "S051" in capfd.readouterr().err
