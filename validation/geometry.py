"""Where things lie: boxes in volumes, crops around boxes, medial and lateral on their sides."""

from __future__ import annotations

import numpy as np

from reasonknee.errors import shown
from reasonknee.questions import REGIONS
from reasonknee.validation.findings import Findings
from reasonknee.validation.reading import NONE, Batch
from reasonknee.validation.rows import TABLE, volume_rows

REGION_NUMBER = {name: n for n, name in enumerate(REGIONS)}
REGION_OF_QUESTION = np.array([REGION_NUMBER[q.region.id] for q in TABLE])
_UNBOXED = np.array([not r.labels for r in REGIONS.values()])
_EVIDENCE_MM = np.array([q.lesion.evidence_mm for q in TABLE], float)
SPACING_MM = (0.1, 10.0)
FIELD_MM = (40.0, 400.0)
Boxes = np.ndarray  # regions x 6, NONE where there is no box


def check_geometry(batch: Batch, margin_mm: float | str, known: np.ndarray, findings: Findings) -> np.ndarray:
    """All checks of this module on one batch; returns which quintuples have a sound box."""
    has: np.ndarray = np.not_equal(batch.box[:, 0], NONE)
    fits = _fits(batch.box, batch.shape[batch.row])
    for i in np.flatnonzero(has & ~fits):
        findings.add(
            "X301",
            batch.place(int(i)),
            f"box {batch.box[i].tolist()} in a volume of {batch.shape[batch.row[i]].tolist()} voxels "
            "(z, y, x)",
        )
    nowhere = known & has & _UNBOXED[REGION_OF_QUESTION[batch.question]]
    for i in np.flatnonzero(nowhere):
        findings.add(
            "X301",
            batch.place(int(i)),
            f"a box of {list(REGIONS)[REGION_OF_QUESTION[batch.question[i]]]}, which has none",
        )
    sound: np.ndarray = np.logical_and.reduce([has, fits, known, ~nowhere])
    if batch.config == "cropped":
        sound[~_crops(batch, margin_mm, has, fits, findings)] = False
    _plausible(batch, findings)
    return sound


def _fits(box: np.ndarray, shape: np.ndarray) -> np.ndarray:
    start, stop = box[:, 0::2], box[:, 1::2]
    fine: np.ndarray = np.logical_and.reduce((start >= 0) & (start < stop) & (stop <= shape), axis=1)
    return fine


def margin_voxels(margin_mm: float | str, spacing: np.ndarray, question: np.ndarray) -> np.ndarray:
    """Along z, y and x for each question: the same for all, or what the table says that its lesion needs."""
    around = _EVIDENCE_MM[question] if isinstance(margin_mm, str) else margin_mm
    voxels: np.ndarray = np.ceil(around / spacing).astype(np.int64)
    return voxels


def sites(margin_mm: float | str, question: np.ndarray) -> np.ndarray:
    """What has a crop of its own: a region, or, where lesions decide on the margin, a question. Numbers of
    questions follow those of regions."""
    own: np.ndarray = len(REGIONS) + question if isinstance(margin_mm, str) else REGION_OF_QUESTION[question]
    return own


def site_name(number: int) -> str:
    return [*REGIONS, *(q.id for q in TABLE)][number]


def _crops(
    batch: Batch, margin_mm: float | str, has: np.ndarray, fits: np.ndarray, findings: Findings
) -> np.ndarray:
    """Which crops are right: a crop is the box plus the margin in whole voxels, as far as the volume
    goes; no box, no crop, no voxels."""
    crop, shape = batch.crop, batch.shape[batch.row]
    margin = margin_voxels(margin_mm, batch.spacing[batch.row], batch.question)
    named = margin_mm if isinstance(margin_mm, str) else f"{margin_mm:g} mm"
    wanted = np.empty_like(crop)
    wanted[:, 0::2] = np.maximum(batch.box[:, 0::2] - margin, 0)
    wanted[:, 1::2] = np.minimum(batch.box[:, 1::2] + margin, shape)
    wanted[~has] = NONE
    right: np.ndarray = (crop == wanted).all(axis=1)
    for i in np.flatnonzero(~right & (fits | ~has)):
        told = "none" if not has[i] else wanted[i].tolist()
        got = "none" if crop[i, 0] == NONE else crop[i].tolist()
        findings.add(
            "X302",
            batch.place(int(i)),
            f"crop is {got}, the box and a margin of {named} make it {told}",
        )
    voxels = batch.table["volume"].is_valid().to_numpy()
    for i in np.flatnonzero(voxels != (crop[:, 0] != NONE)):
        findings.add(
            "X302",
            batch.place(int(i)),
            "there are voxels without a crop" if voxels[i] else "there are no voxels for the crop",
        )
    return right


def _plausible(batch: Batch, findings: Findings) -> None:
    for row, about in volume_rows(batch):
        spacing = [about[f"spacing.{a}"] for a in "zyx"]
        extent = [about[f"shape.{a}"] * s for a, s in zip("zyx", spacing, strict=True)]
        if not all(SPACING_MM[0] <= s <= SPACING_MM[1] for s in spacing) or not all(
            FIELD_MM[0] <= e <= FIELD_MM[1] for e in extent
        ):
            told = ", ".join(f"{s:.3g} mm ({e:.4g} mm in all)" for s, e in zip(spacing, extent, strict=True))
            findings.add("X305", batch.place_of_row(row), f"spacing along z, y, x: {told}")


def region_boxes(batch: Batch, quintuples: np.ndarray, sound: np.ndarray, findings: Findings) -> Boxes:
    """The boxes of one volume by region, from those of its quintuples that are sound; two boxes of one
    region, or a box and none, are a finding."""
    boxes = np.full((len(REGIONS), 6), NONE, np.int64)
    boxless = np.array([i for i in quintuples.tolist() if batch.box[i, 0] == NONE], np.int64)
    for i in quintuples[sound[quintuples]].tolist():
        region = REGION_OF_QUESTION[batch.question[i]]
        if boxes[region, 0] == NONE:
            boxes[region] = batch.box[i]
        elif (boxes[region] != batch.box[i]).any():
            name = list(REGIONS)[region]
            findings.add(
                "X308",
                batch.place(i),
                f"{name} is {batch.box[i].tolist()} here and {boxes[region].tolist()} in another row",
            )
    for i in boxless[boxes[REGION_OF_QUESTION[batch.question[boxless]], 0] != NONE].tolist():
        findings.add("X308", batch.place(i), "the region has no box here, and one in another row")
    return boxes


def _pairs() -> list[tuple[int, str, str]]:
    """Axis (0 lateral, 1 up, 2 front) and two regions, of which the first lies further along it in any
    knee."""
    pairs = []
    for name in REGIONS:
        for axis, far, near in (
            (0, "lateral", "medial"),
            (1, "superior", "inferior"),
            (2, "anterior", "posterior"),
            (2, "trochlea", "posterior"),
        ):
            other = name.replace(far, near)
            if other != name and other in REGIONS:
                pairs.append((axis, name, other))
    for side in ("medial", "lateral"):
        pairs += [
            (1, f"femur_{side}_central", f"tibia_{side}_central"),
            (2, f"patella_{side}", f"femur_{side}_posterior"),
        ]
    return [*pairs, (2, "acl", "pcl")]


_PAIRS = _pairs()
_AXES = ("medial and lateral", "above and below", "front and back")
_PAIR_AXIS = np.array([axis for axis, _, _ in _PAIRS])
_FAR_REGION = np.array([REGION_NUMBER[far] for _, far, _ in _PAIRS])
_NEAR_REGION = np.array([REGION_NUMBER[near] for _, _, near in _PAIRS])


def _directions(side: str, orientation: str, boxes: Boxes) -> np.ndarray:
    """For each pair 1 if it lies as it should in this knee, -1 if the other way round, 0 if that cannot
    be told."""
    middle = boxes[:, 0::2] + boxes[:, 1::2]
    gap = (middle[_FAR_REGION] - middle[_NEAR_REGION])[np.arange(len(_PAIRS)), _PAIR_AXIS] * np.array(
        _signs(side, orientation)
    )[_PAIR_AXIS]
    there = (boxes[_FAR_REGION, 0] != NONE) & (boxes[_NEAR_REGION, 0] != NONE)
    signs: np.ndarray = np.where(there, np.sign(gap), 0).astype(np.int64)
    return signs


def check_sides(place: str, side: str, orientation: str, boxes: Boxes, findings: Findings) -> None:
    """In a right knee lateral is towards the patient's right, in any knee the femur above the tibia;
    orientation says where axes grow."""
    if side not in ("left", "right") or len(orientation) != 3:
        return
    signs = _directions(side, orientation, boxes)
    for axis, what in enumerate(_AXES):
        mine = signs[axis == _PAIR_AXIS]
        if mine.sum() < 0:
            told = f"{(mine < 0).sum()} of {np.count_nonzero(mine)} pairs of regions"
            findings.add(
                "X306",
                place,
                f"a {side} knee of orientation {shown(orientation)}: {what} are exchanged in {told}",
            )


def _check_pairs(
    volumes: list[tuple[str, str, str, np.ndarray, np.ndarray, Boxes]], findings: Findings
) -> None:
    """A pair that is exchanged in most volumes was exchanged by whoever made the boxes."""
    known = [v for v in volumes if v[1] in ("left", "right") and len(v[2]) == 3]
    signs = np.array(
        [_directions(side, orientation, boxes) for _, side, orientation, _, _, boxes in known]
    ).reshape(-1, len(_PAIRS))
    for n in np.flatnonzero(
        (signs.sum(axis=0) < 0) & ((signs < 0).sum(axis=0) >= _FEWEST_EXCHANGED)
    ).tolist():
        axis, far, near = _PAIRS[n]
        findings.add(
            "X306",
            f"{far} and {near}",
            f"{_AXES[axis]} are exchanged in {(signs[:, n] < 0).sum()} of {np.count_nonzero(signs[:, n])} "
            "volumes",
        )


# --- against the rest of the release ------------------------------------------------------------------------

_FEWEST_EXCHANGED = 3  # volumes in which a pair of regions is the wrong way round, if they are the most
_FEWEST = 20  # volumes that have the region; fewer say nothing about what is usual
_FAR = 8.0  # robust standard deviations
_LEAST_MM = 2.0  # or a voxel: the least that counts as one deviation, for boxes that hardly differ otherwise


def check_outliers(
    volumes: list[tuple[str, str, str, np.ndarray, np.ndarray, Boxes]], findings: Findings
) -> None:
    """Place, side, orientation, shape, spacing and boxes of each volume.

    Centres in mm from the volume's middle, left knees mirrored.
    """
    _check_pairs(volumes, findings)
    if len(volumes) < _FEWEST:
        return
    boxes = np.stack([v[5] for v in volumes]).astype(float)
    boxes[boxes == NONE] = np.nan
    shape, spacing = (np.stack([v[n] for v in volumes])[:, None, :].astype(float) for n in (3, 4))
    signs = np.array([_signs(side, orientation) for _, side, orientation, *_ in volumes])[:, None, :]
    start, stop = boxes[:, :, 0::2], boxes[:, :, 1::2]
    centre = ((start + stop) / 2 - shape / 2) * spacing * signs
    least = np.maximum(np.median(spacing, axis=0), _LEAST_MM)
    score = np.concatenate([_robust(centre, least), _robust((stop - start) * spacing, least)], axis=2)
    enough = (~np.isnan(boxes[:, :, 0])).sum(axis=0) >= _FEWEST
    far = np.nan_to_num(np.abs(score)).max(axis=2)
    for v, r in np.argwhere((far > _FAR) & enough).tolist():
        axis = int(np.nan_to_num(np.abs(score[v, r])).argmax())
        what = f"{'size' if axis > 2 else 'place'} along {'zyx'[axis % 3]}"
        findings.add(
            "X307",
            f"{volumes[v][0]}, region {list(REGIONS)[r]}",
            f"{what} is {far[v, r]:.0f} robust standard deviations from the median",
        )


def _signs(side: str, orientation: str) -> tuple[int, int, int]:
    lateral = 1 if (orientation[:1] == "R") == (side == "right") else -1
    return (lateral, 1 if orientation[1:2] == "S" else -1, 1 if orientation[2:3] == "A" else -1)


def _robust(values: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Distance from the median in units of the median absolute deviation, scaled to a standard deviation."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a region that no volume has is all NaN
        middle = np.nanmedian(values, axis=0)
        deviation = 1.4826 * np.nanmedian(np.abs(values - middle), axis=0)
    score: np.ndarray = (values - middle) / np.maximum(deviation, least)
    return score
