"""The synthetic knee: every region in one piece, lesions as large as their grades say, grades that agree with each other."""

from __future__ import annotations

import functools
import itertools
import json

import numpy as np
import pytest

from reasonknee.boxes import Box
from reasonknee.cohort.annotations import FILE_NAME, scan_annotations
from reasonknee.phantom.anatomy import EXTRUSION_MM
from reasonknee.phantom.cohort import patient_scans
from reasonknee.phantom.grades import another_reading, torn_segments
from reasonknee.phantom.knee import FIELD_OF_VIEW_MM, Knee, draw_knee, progress_grades, sample_grades
from reasonknee.questions import QUESTIONS
from reasonknee.questions.regions import LABELS, SUBREGIONS

cc3d = pytest.importorskip("cc3d")

SMALL = (16, 40, 40)
LOW = (24, 48, 48)
MEDIUM = (40, 96, 96)
COUNTABLE = (56, 96, 96)
EVERYTHING = {q.id: {a.id: a.space.grades[-1] for a in q.attributes} for q in QUESTIONS.values()}
SUBREGION_NAMES = [s[0] for s in SUBREGIONS]
SHAPING = ("osteophyte", "extrusion", "effusion", "hypertrophy")  # what the mask follows


@functools.lru_cache(maxsize=40)
def _drawn(shape: tuple[int, int, int], side: str, grades: str) -> Knee:
    return draw_knee(shape, side, json.loads(grades), 5, anatomy_seed=8)


def drawn(shape, grades, side="right") -> Knee:
    """One person's knee at one visit; knees that several tests look at are drawn once."""
    return _drawn(shape, side, json.dumps({q: g for q, g in grades.items() if any(g.values())}))


def pieces(of: np.ndarray) -> int:
    return int(cc3d.connected_components(of, connectivity=26).max())


def volume_cm3(knee_mask: np.ndarray, name: str) -> float:
    voxel = np.prod(np.divide(FIELD_OF_VIEW_MM, knee_mask.shape))
    return float((knee_mask == LABELS[name]).sum() * voxel / 1000)


def brighter(shape, grades, base=None):
    """How much brighter a knee is than the same knee with the grades of `base` alone, and its mask."""
    with_, without = drawn(shape, {**(base or {}), **grades}), drawn(shape, base or {})
    return with_.image.astype(int) - without.image, with_.mask


def shaping(grades):
    return {q: g for q, g in grades.items() if any(k in q for k in SHAPING)}


@pytest.mark.parametrize(
    "shape", [SMALL, (17, 41, 43), (24, 64, 48), (16, 96, 96), (64, 40, 40), (32, 64, 64)]
)
def test_every_region_is_one_piece(shape):
    rng = np.random.default_rng(shape[1])
    for case in range(7):
        grades = (EVERYTHING, {}, *(shaping(sample_grades(rng, s)) for s in (0.0, 0.4, 0.7, 1.0, 1.0)))[case]
        knee = draw_knee(
            shape, ("left", "right")[case % 2], grades, case, anatomy_seed=int(rng.integers(10_000))
        )
        assert knee.image.shape == knee.mask.shape == shape
        assert set(np.unique(knee.mask)) == {0, *LABELS.values()}
        assert pieces(knee.mask) == len(LABELS), (
            case,
            [name for name, label in LABELS.items() if pieces(knee.mask == label) != 1],
        )


@pytest.mark.parametrize(("shape", "person"), [((64, 40, 40), 20), ((32, 64, 64), 22), ((32, 64, 64), 25)])
def test_slivers_are_cut_off(shape, person):
    """Persons in whom structures cross so that a piece comes loose."""
    assert pieces(draw_knee(shape, "right", shaping(EVERYTHING), 0, anatomy_seed=person).mask) == len(LABELS)


def test_sizes_are_plausible():
    mask = drawn(MEDIUM, {}).mask
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
    knee = drawn(MEDIUM, {})
    assert knee.image.dtype == np.uint16
    assert knee.mask.dtype == np.uint8
    assert knee.image.max() < 4096
    marrow = np.median(knee.image[knee.mask == LABELS["femur_medial_central"]])
    assert 60 < marrow < 120
    assert np.median(knee.image[:, :10, :5]) < 40  # air
    assert np.percentile(knee.image[knee.mask == LABELS["joint_cavity"]], 75) > 250
    assert np.median(knee.image[knee.mask == LABELS["medial_meniscus"]]) < marrow


def test_same_arguments_give_the_same_bytes_and_seeds_matter():
    first, again, visit, person = (
        draw_knee(SMALL, "left", EVERYTHING, s, anatomy_seed=a) for s, a in ((1, 2), (1, 2), (3, 2), (1, 4))
    )
    assert first.image.tobytes() == again.image.tobytes()
    assert first.mask.tobytes() == again.mask.tobytes()
    assert (first.image != visit.image).any()
    assert (first.mask == visit.mask).all()  # the person's shape stays from visit to visit
    assert (first.mask != person.mask).any()


def test_a_left_knee_mirrors_the_right_one():
    left, right = (drawn(SMALL, EVERYTHING, side) for side in ("left", "right"))
    assert (left.image == right.image[::-1]).all()
    assert (left.mask == right.mask[::-1]).all()


def test_axes_run_right_to_left_down_and_back():
    mask = drawn(MEDIUM, {}).mask
    z, y, x = (
        {name: np.argwhere(mask == label).mean(0)[axis] for name, label in LABELS.items()}
        for axis in range(3)
    )
    assert z["femur_lateral_central"] < z["tibia_subspinous"] < z["femur_medial_central"]
    assert z["lateral_meniscus"] < z["medial_meniscus"]
    assert y["femur_medial_central"] < y["medial_meniscus"] < y["tibia_medial_central"]
    assert (
        x["patella_medial"]
        < x["femur_medial_trochlea"]
        < x["femur_medial_central"]
        < x["femur_medial_posterior"]
    )
    assert x["patellar_tendon"] < x["hoffa_fat_pad"] < x["acl"] < x["pcl"]


def test_signal_lesions_leave_the_mask_alone():
    assert (drawn(SMALL, shaping(EVERYTHING)).mask == drawn(SMALL, EVERYTHING).mask).all()
    assert (
        drawn(SMALL, {q: g for q, g in EVERYTHING.items() if q not in shaping(EVERYTHING)}).mask
        == drawn(SMALL, {}).mask
    ).all()


def test_every_attribute_shows_in_its_region():
    for question in QUESTIONS.values():
        for attribute in question.attributes:
            if question.lesion.id in ("bml", "cartilage") or attribute.id == "tear_location":
                continue  # the grades of subregions are told apart below; the place of a tear shows only with a cyst
            change, mask = brighter(LOW, {question.id: {attribute.id: attribute.space.grades[-1]}})
            seen = np.abs(change) > 40
            if question.region.labels:
                box = Box.from_mask(np.isin(mask, [LABELS[name] for name in question.region.labels]))
                seen = seen[box.grown((2, 3, 3), mask.shape).slices]
            assert seen.sum() >= 3, (question.id, attribute.id)


def orders(count: int, names: list[str]) -> dict[str, tuple[int, ...]]:
    """Each name's own order of `count` steps: what shows in a region then follows from its own grades only."""
    every = list(itertools.permutations(range(count)))
    return dict(zip(names, every[:: len(every) // len(names)], strict=False))


@pytest.mark.parametrize("number", [1, 3])
def test_bone_marrow_lesions_fill_their_share(number):
    order = orders(4, SUBREGION_NAMES)
    for knee in range(4):
        change, mask = brighter(
            MEDIUM,
            {
                f"{name}_bml": {"size": o[knee], "number": number, "percent_bml": 3}
                for name, o in order.items()
                if o[knee]
            },
        )
        for name, o in order.items():
            region = mask == LABELS[name]
            # a healthy region takes up to 0.11 from the soft borders of its neighbours, a lesion of size 1 starts at 0.17
            # and a label holds cartilage besides the marrow that a lesion fills
            low, high = ((0, 0.14), (0.14, 0.33), (0.33, 0.66), (0.6, 1.0))[o[knee]]
            assert low <= (change[region] > 70).sum() / region.sum() <= high, (name, o[knee])


def test_lesions_can_be_counted():
    for number in (1, 2, 3):
        change, mask = brighter(
            COUNTABLE,
            {f"{name}_bml": {"size": 1, "number": number, "percent_bml": 0} for name in SUBREGION_NAMES},
        )
        found = [
            cc3d.dust((change > 250) & (mask == LABELS[name]), threshold=12, connectivity=6)
            for name in SUBREGION_NAMES
        ]
        hits = sum(int(cc3d.connected_components(f, connectivity=6).max()) == number for f in found)
        assert hits >= 0.8 * len(SUBREGION_NAMES)


def test_cysts_grow_as_the_share_of_oedema_falls():
    bright = [
        (
            brighter(MEDIUM, {"femur_medial_central_bml": {"size": 2, "number": 1, "percent_bml": p}})[0]
            > 400
        ).sum()
        for p in (0, 1, 2, 3)
    ]
    assert bright[0] > bright[1] > bright[2] > bright[3] == 0


def test_cartilage_loss_grows_with_both_grades():
    steps = ((0, 0), (1, 0), (2, 0), (3, 0), (3, 2), (3, 3))
    order = orders(len(steps), SUBREGION_NAMES[:-1])
    lost = {name: [0] * len(steps) for name in order}
    for knee in range(len(steps)):
        given = {name: steps[o[knee]] for name, o in order.items()}
        change, mask = brighter(
            MEDIUM,
            {
                f"{name}_cartilage": {"size": size, "full_thickness_pct": full}
                for name, (size, full) in given.items()
            },
        )
        for name, o in order.items():
            lost[name][o[knee]] = int((np.abs(change[mask == LABELS[name]]) > 40).sum())
    for name, counts in lost.items():  # a healthy region changes a little at the border of a worn one
        assert all(a < b for a, b in itertools.pairwise(counts[1:])), (name, counts)
        assert counts[0] < counts[2], (name, counts)


@pytest.mark.parametrize("side", ["medial", "lateral"])
def test_extrusion_moves_the_outer_border(side):
    reach = []
    for grade in range(4):
        mask = drawn((160, 40, 40), {f"{side}_meniscus_{side}_extrusion": {"grade": grade}}, "left").mask
        slices = np.argwhere(mask == LABELS[f"{side}_meniscus"])[:, 0] * FIELD_OF_VIEW_MM[0] / 160
        reach.append(
            -slices.min() if side == "medial" else slices.max()
        )  # medial slices come first on the left
    assert reach == sorted(reach)
    slice_mm, (_, least) = FIELD_OF_VIEW_MM[0] / 160, EXTRUSION_MM[0]
    for (low, high), moved in zip(EXTRUSION_MM, np.subtract(reach, reach[0]), strict=True):
        assert low - least - slice_mm <= moved <= high + slice_mm


def test_effusion_fills_the_cavity():
    volumes = [
        volume_cm3(drawn(MEDIUM, {"effusion_synovitis": {"grade": g}}).mask, "joint_cavity") for g in range(4)
    ]
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
            torn = torn_segments(name, grades)
            assert given["tear_location"] in (torn or [3])


def test_sampled_grades_are_consistent_and_every_grade_occurs():
    rng = np.random.default_rng(0)
    knees = [sample_grades(rng, severity) for severity in np.linspace(0, 1, 150)]
    counts = {}
    for knee in knees:
        assert_consistent(knee)
        for name, given in knee.items():
            for attribute, grade in given.items():
                space = QUESTIONS[name].attribute(attribute).space
                counts.setdefault((QUESTIONS[name].lesion.id, attribute), np.zeros(len(space.meanings), int))[
                    grade
                ] += 1
    for (_, attribute), count in counts.items():
        if attribute == "morphology":
            assert count[7] == 0  # a change since the last visit, so never at the first
            count = np.delete(count, 7)
        assert (count > 0).all()
        assert count.argmax() == (3 if attribute == "tear_location" else 0)


def test_severity_raises_grades():
    mild, severe = (
        np.mean(
            [
                g
                for k in (sample_grades(np.random.default_rng(i), s) for i in range(20))
                for q in k.values()
                for g in q.values()
            ]
        )
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
                if "synovitis" not in name and not name.endswith("_bml"):  # which come and go
                    assert all(after[name][a] >= g for a, g in given.items() if a != "tear_location"), name
            progressed |= {given["morphology"] for given in after.values() if "morphology" in given}
            before = after
    assert 7 in progressed


def test_a_lesion_that_fills_its_region_is_never_all_cyst():
    rng = np.random.default_rng(2)
    grades = sample_grades(rng, 0.5)
    grades |= {q: {"size": 2, "number": 1, "percent_bml": 0} for q in grades if q.endswith("_bml")}
    seen = set()
    for _ in range(10):
        grades = progress_grades(rng, grades)
        seen |= {(g["size"], g["percent_bml"]) for g in grades.values() if "percent_bml" in g}
    assert {(2, 0), (3, 1)} <= seen
    assert (3, 0) not in seen


def test_knees_differ_as_people_do():
    """A box that is right for one person is not for the next: in size, in place, and turned."""
    boxes = [
        Box.from_mask(
            draw_knee(LOW, "right", {}, 0, anatomy_seed=person).mask == LABELS["tibia_medial_central"]
        )
        for person in range(12)
    ]
    ious = [a.iou(b) for a, b in itertools.combinations(boxes, 2)]
    assert np.mean(ious) < 0.5
    assert len({b.shape for b in boxes}) > 4


def test_a_lesion_lies_in_its_band_and_stays_there():
    """Two persons with the same grade differ; one person at two visits does not."""
    spread = []
    for person in range(12):
        first, second = (
            draw_knee(LOW, "right", {"effusion_synovitis": {"grade": 2}}, visit, anatomy_seed=person).mask
            for visit in (0, 1)
        )
        assert (first == second).all()
        spread.append(volume_cm3(first, "joint_cavity"))
    assert max(spread) > 1.2 * min(spread)


def test_the_place_of_a_tear_is_drawn():
    """A cyst lies where its tear is, and a neck leads to it; without a tear it has none."""
    side = "medial"
    drawn_at = {}
    for place in range(4):
        cyst = {f"{side}_meniscus_cyst": {"presence": 1, "tear_location": place}}
        change, _ = brighter(MEDIUM, cyst)
        drawn_at[place] = np.argwhere(change > 150)[:, 2].mean()
    assert drawn_at[0] < drawn_at[1] < drawn_at[2]
    torn, _ = brighter(MEDIUM, {f"{side}_meniscus_cyst": {"presence": 1, "tear_location": 1}})
    whole, _ = brighter(MEDIUM, {f"{side}_meniscus_cyst": {"presence": 1, "tear_location": 3}})
    assert (torn != whole).any()


def test_no_knee_of_a_cohort_contradicts_itself():
    for scan in (s for n in range(1, 41) for s in patient_scans(n, 5)):
        assert_consistent(scan.grades)
        assert_consistent(another_reading(scan.grades, scan.anatomy_seed))
        assert scan.visit != "00m" or all(g.get("morphology") != 7 for g in scan.grades.values())


def test_more_happens_in_more_years():
    def changed(years: float) -> int:
        rng = np.random.default_rng(4)
        before = [sample_grades(rng, 0.5) for _ in range(20)]
        return sum(progress_grades(rng, knee, years)[q] != knee[q] for knee in before for q in knee)

    assert changed(3.0) > 1.5 * changed(1.0)


def test_another_reader_mostly_agrees_and_keeps_the_habits():
    rng = np.random.default_rng(6)
    first = sample_grades(rng, 0.6)
    later = progress_grades(rng, first, 2.0)
    again, again_later = (another_reading(g, 9) for g in (first, later))
    pairs = [(first[q][a], again[q][a]) for q in first for a in first[q]]
    assert 0.75 < np.mean([a == b for a, b in pairs]) < 1
    for q, given in again.items():  # a grade that did not change is read as before
        if first[q] == later[q] and "tear_location" not in given:
            assert again_later[q] == given


def test_some_knees_are_read_twice_and_some_are_talked_through(cohort):
    known = [a for _, a in scan_annotations(cohort / FILE_NAME)]
    twice, told = [a for a in known if a.readings], [a for a in known if a.reasoning]
    assert 0 < len(twice) < len(known)
    assert 0 < len(told) < len(known)
    for a in twice:
        (reading,) = a.readings
        shared = [
            (g, a.grades[q].get(k))
            for q, given in reading.grades.items()
            if q in a.grades
            for k, g in given.items()
        ]
        assert np.mean([mine == theirs for mine, theirs in shared]) > 0.7
    for a in told:
        assert set(a.reasoning) == set(a.grades)
        for q, text in a.reasoning.items():
            assert "{" not in text
            for name, grade in a.grades[q].items():
                assert QUESTIONS[q].attribute(name).space.meanings[grade] in text
