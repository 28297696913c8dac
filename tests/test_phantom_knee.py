"""The synthetic knee: every region in one piece, lesions as large as their grades say, grades that agree with each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from reasonknee.boxes import Box
from reasonknee.phantom.knee import FIELD_OF_VIEW_MM, draw_knee, progress_grades, sample_grades
from reasonknee.questions import QUESTIONS
from reasonknee.regions import LABELS, SUBREGIONS

cc3d = pytest.importorskip("cc3d")

SMALL = (16, 40, 40)
LOW = (32, 64, 64)
MEDIUM = (40, 96, 96)
EVERYTHING = {q.id: {a.id: a.space.grades[-1] for a in q.attributes} for q in QUESTIONS.values()}
SUBREGION_NAMES = [s[0] for s in SUBREGIONS]


def pieces(of: np.ndarray) -> int:
    return int(cc3d.connected_components(of, connectivity=26).max())


def volume_cm3(knee_mask: np.ndarray, name: str) -> float:
    voxel = np.prod(np.divide(FIELD_OF_VIEW_MM, knee_mask.shape))
    return float((knee_mask == LABELS[name]).sum() * voxel / 1000)


def brighter(shape, grades, base=None, seed=5, person=8):
    """Where a knee is clearly brighter than the same knee without these grades, and its mask."""
    with_, without = (draw_knee(shape, "right", g, seed, anatomy_seed=person) for g in ({**(base or {}), **grades}, base or {}))
    return with_.image.astype(int) - without.image, with_.mask


@pytest.mark.parametrize("shape", [SMALL, (17, 41, 43), (24, 64, 48), (16, 96, 96), (64, 40, 40), (32, 64, 64)])
def test_every_region_is_one_piece(shape):
    rng = np.random.default_rng(shape[1])
    for case in range(7):
        grades = (dict(EVERYTHING), {}, *(sample_grades(rng, s) for s in (0.0, 0.4, 0.7, 1.0, 1.0)))[case]
        knee = draw_knee(shape, ("left", "right")[case % 2], grades, case, anatomy_seed=int(rng.integers(10_000)))
        assert knee.image.shape == knee.mask.shape == shape
        assert set(np.unique(knee.mask)) == {0, *LABELS.values()}
        for name, label in LABELS.items():
            assert pieces(knee.mask == label) == 1, (name, case)


def test_sizes_are_plausible():
    mask = draw_knee(MEDIUM, "right", {}, 0, anatomy_seed=0).mask
    bounds = {
        "patella": (5, 20),
        "femur": (8, 40),
        "tibia": (3, 15),
        "medial": (1, 6),
        "lateral": (1, 6),
        "hoffa": (8, 35),
        "joint": (0.5, 8),
        "acl": (1.5, 5),
    }
    for name in LABELS:
        low, high = bounds.get(name.split("_")[0], (1.5, 9))
        assert low < volume_cm3(mask, name) < high, (name, volume_cm3(mask, name))


def test_image_is_twelve_bit_with_the_contrast_of_dess():
    knee = draw_knee(MEDIUM, "right", {}, 0, anatomy_seed=0)
    assert knee.image.dtype == np.uint16
    assert knee.mask.dtype == np.uint8
    assert knee.image.max() < 4096
    marrow = np.median(knee.image[knee.mask == LABELS["femur_medial_central"]])
    assert 60 < marrow < 120
    assert np.median(knee.image[:, :10, :5]) < 40  # air
    assert np.percentile(knee.image[knee.mask == LABELS["joint_cavity"]], 75) > 250
    assert np.median(knee.image[knee.mask == LABELS["medial_meniscus"]]) < marrow


def test_same_arguments_give_the_same_bytes_and_seeds_matter():
    first, again, visit, person = (draw_knee(SMALL, "left", EVERYTHING, s, anatomy_seed=a) for s, a in ((1, 2), (1, 2), (3, 2), (1, 4)))
    assert first.image.tobytes() == again.image.tobytes()
    assert first.mask.tobytes() == again.mask.tobytes()
    assert (first.image != visit.image).any()
    assert (first.mask == visit.mask).all()  # the person's shape stays from visit to visit
    assert (first.mask != person.mask).any()


def test_a_left_knee_mirrors_the_right_one():
    left, right = (draw_knee(MEDIUM, side, EVERYTHING, 1, anatomy_seed=2) for side in ("left", "right"))
    assert (left.image == right.image[::-1]).all()
    assert (left.mask == right.mask[::-1]).all()


def test_axes_run_right_to_left_down_and_back():
    mask = draw_knee(MEDIUM, "right", {}, 1, anatomy_seed=2).mask
    z, y, x = ({name: np.argwhere(mask == label).mean(0)[axis] for name, label in LABELS.items()} for axis in range(3))
    assert z["femur_lateral_central"] < z["tibia_subspinous"] < z["femur_medial_central"]
    assert z["lateral_meniscus"] < z["medial_meniscus"]
    assert y["femur_medial_central"] < y["medial_meniscus"] < y["tibia_medial_central"]
    assert x["patella_medial"] < x["femur_medial_trochlea"] < x["femur_medial_central"] < x["femur_medial_posterior"]
    assert x["patellar_tendon"] < x["hoffa_fat_pad"] < x["acl"] < x["pcl"]


def test_signal_lesions_leave_the_mask_alone():
    healthy = draw_knee(SMALL, "right", {}, 1, anatomy_seed=2).mask
    grades = {q: g for q, g in EVERYTHING.items() if not any(k in q for k in ("osteophyte", "extrusion", "effusion", "hypertrophy"))}
    assert (draw_knee(SMALL, "right", grades, 1, anatomy_seed=2).mask == healthy).all()


def test_every_attribute_shows_in_its_region():
    for question in QUESTIONS.values():
        for attribute in question.attributes:
            if attribute.id in ("number", "percent_bml", "tear_location"):
                continue
            base = {"size": 3} if attribute.id == "full_thickness_pct" else {"number": 1, "percent_bml": 3} if question.lesion.id == "bml" else {}
            change, mask = brighter(LOW, {question.id: {**base, attribute.id: attribute.space.grades[-1]}}, {question.id: base})
            seen = np.abs(change) > 40
            if question.region.labels:
                box = Box.from_mask(np.isin(mask, [LABELS[name] for name in question.region.labels]))
                seen = seen[box.grown((2, 3, 3), mask.shape).slices]
            assert seen.sum() >= 3, (question.id, attribute.id)


@pytest.mark.parametrize(("size", "low", "high"), [(1, 0.05, 0.33), (2, 0.33, 0.66), (3, 0.66, 1.0)])
@pytest.mark.parametrize("number", [1, 3])
def test_bone_marrow_lesions_fill_their_share(size, number, low, high):
    change, mask = brighter(MEDIUM, {f"{name}_bml": {"size": size, "number": number, "percent_bml": 3} for name in SUBREGION_NAMES})
    for name in SUBREGION_NAMES:
        region = mask == LABELS[name]
        assert low <= (change[region] > 70).sum() / region.sum() <= high, name


def test_lesions_can_be_counted():
    for number in (1, 2, 3):
        change, mask = brighter((80, 128, 128), {f"{name}_bml": {"size": 1, "number": number, "percent_bml": 0} for name in SUBREGION_NAMES})
        found = [cc3d.dust((change > 250) & (mask == LABELS[name]), threshold=12, connectivity=6) for name in SUBREGION_NAMES]
        hits = sum(int(cc3d.connected_components(f, connectivity=6).max()) == number for f in found)
        assert hits >= 0.8 * len(SUBREGION_NAMES)


def test_cysts_grow_as_the_share_of_oedema_falls():
    bright = [(brighter(MEDIUM, {"femur_medial_central_bml": {"size": 2, "number": 1, "percent_bml": p}})[0] > 400).sum() for p in (0, 1, 2, 3)]
    assert bright[0] > bright[1] > bright[2] > bright[3] == 0


def test_cartilage_loss_grows_with_both_grades():
    steps = ((0, 0), (1, 0), (2, 0), (3, 0), (3, 2), (3, 3))
    names = SUBREGION_NAMES[:-1]
    drawn = [brighter(MEDIUM, {f"{name}_cartilage": {"size": s, "full_thickness_pct": f} for name in names}) for s, f in steps]
    for name in names:
        lost = [int((np.abs(change[mask == LABELS[name]]) > 40).sum()) for change, mask in drawn]
        assert all(a < b for a, b in itertools.pairwise(lost)), (name, lost)


@pytest.mark.parametrize("side", ["medial", "lateral"])
def test_extrusion_moves_the_outer_border(side):
    reach = []
    for grade in range(4):
        mask = draw_knee((160, 96, 96), "left", {f"{side}_meniscus_{side}_extrusion": {"grade": grade}}, 0, anatomy_seed=1).mask
        slices = np.argwhere(mask == LABELS[f"{side}_meniscus"])[:, 0] * FIELD_OF_VIEW_MM[0] / 160
        reach.append(-slices.min() if side == "medial" else slices.max())  # medial slices come first on the left
    assert np.subtract(reach, reach[0]) == pytest.approx([0, 2.5, 4, 6], abs=0.9)


def test_effusion_fills_the_cavity():
    volumes = [volume_cm3(draw_knee(MEDIUM, "right", {"effusion_synovitis": {"grade": g}}, 0, anatomy_seed=1).mask, "joint_cavity") for g in range(4)]
    assert volumes == sorted(volumes)
    assert volumes[3] > 3 * volumes[0]


# --- grades -----------------------------------------------------------------------------------------------------------------------


def assert_consistent(grades):
    assert list(grades) == list(QUESTIONS)
    for name, given in grades.items():
        question = QUESTIONS[name]
        assert list(given) == [a.id for a in question.attributes]
        assert all(type(given[a.id]) is int and given[a.id] in a.space.grades for a in question.attributes)
        if "number" in given:
            assert (given["size"] > 0) == (given["number"] > 0)
            assert given["size"] > 0 or given["percent_bml"] == 0
        if "full_thickness_pct" in given:
            assert given["full_thickness_pct"] <= given["size"]
        if "tear_location" in given:
            assert given["presence"] or given["tear_location"] == 3


def test_sampled_grades_are_consistent_and_every_grade_occurs():
    rng = np.random.default_rng(0)
    knees = [sample_grades(rng, severity) for severity in np.linspace(0, 1, 150)]
    counts = {}
    for knee in knees:
        assert_consistent(knee)
        for name, given in knee.items():
            for attribute, grade in given.items():
                space = QUESTIONS[name].attribute(attribute).space
                counts.setdefault((QUESTIONS[name].lesion.id, attribute), np.zeros(len(space.meanings), int))[grade] += 1
    for (_, attribute), count in counts.items():
        if attribute == "morphology":
            assert count[7] == 0  # a change since the last visit, so never at the first
            count = np.delete(count, 7)
        assert (count > 0).all()
        assert count.argmax() == (3 if attribute == "tear_location" else 0)


def test_severity_raises_grades():
    mild, severe = (
        np.mean([g for k in (sample_grades(np.random.default_rng(i), s) for i in range(20)) for q in k.values() for g in q.values()])
        for s in (0.1, 0.9)
    )
    assert severe > 1.5 * mild


def test_later_visits_stay_or_worsen():
    rng = np.random.default_rng(1)
    progressed = set()
    for i in range(60):
        before = sample_grades(rng, i / 60)
        for _ in range(3):
            after = progress_grades(rng, before)
            assert_consistent(after)
            for name, given in before.items():
                if "synovitis" not in name:
                    assert all(after[name][a] >= g for a, g in given.items() if a != "tear_location"), name
            progressed |= {given["morphology"] for given in after.values() if "morphology" in given}
            before = after
    assert 7 in progressed
