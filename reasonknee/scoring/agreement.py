"""How far two sources agree on where things are: boxes by IoU, masks by Dice, region by region, with
intervals over patients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from reasonknee.cohort.annotations import scan_annotations
from reasonknee.cohort.scans import Scan, scans_by_key
from reasonknee.construct.masks import DEFAULT_LABELS, relabelled
from reasonknee.errors import DataError
from reasonknee.questions.regions import LABELS
from reasonknee.scoring.bootstrap import intervals, weights
from reasonknee.volumes import Volume, read_volume

Values = Mapping[str, Mapping[str, list[float]]]  # region -> patient -> a number for each volume
_RESAMPLES = 1000


def box_agreement(made: Path, other: Path) -> Iterator[str]:
    """IoU of two files of annotations on the volumes that both have; a box that only one has counts 0."""
    mine = {a.volume_id: a for _, a in scan_annotations(made)}
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    shared = 0
    for _, theirs in scan_annotations(other):
        a = mine.get(theirs.volume_id)
        if a is None:
            continue
        if (a.shape, a.orientation) != (theirs.shape, theirs.orientation):
            raise DataError(
                "S050", f"{a.volume_id}: the two are on different grids", "attach both to one image"
            )
        shared += 1
        for region, box in theirs.boxes.items():
            ours = a.boxes.get(region)
            if box or ours:
                values[region][a.patient].append(box.iou(ours) if box and ours else 0.0)
    if not shared:
        raise DataError(
            "S051", f"{made.name} and {other.name} share no volume", "are they of the same knees?"
        )
    yield f"{shared:,} volumes"
    yield from table(values, "IoU")


def mask_agreement(predicted: Path, manual: Path) -> Iterator[str]:
    """Dice of two folders of masks, matched by patient, study and series."""
    ours, theirs = scans_by_key(predicted), scans_by_key(manual)
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    shared = sorted(set(ours) & set(theirs))
    if not shared:
        raise DataError("S051", f"{predicted} and {manual} share no mask", "are they named alike?")
    for key in shared:
        a, b = (_only_mask(scans[key], "/".join(key)) for scans in (ours, theirs))
        flips = a.grid.flips_to(b.grid)
        if flips is None:
            raise DataError("S050", "the two are on different grids", "export both on the same voxels").at(
                "/".join(key)
            )
        for region, dice in dice_by_region(np.flip(a.array, flips), b.array).items():
            values[region][key[0]].append(dice)
    missing = len(set(theirs) - set(ours))
    yield f"{len(shared):,} masks" + (f"; {missing:,} have no prediction" if missing else "")
    yield from table(values, "Dice")


def _only_mask(scans: Sequence[Scan], name: str) -> Volume:
    """The mask of one scan, in our labels."""
    if len(scans) > 1:
        raise DataError("S054", f"{len(scans)} masks of one scan", "keep one").at(name)
    volume = read_volume(scans[0].path)
    try:
        return Volume(relabelled(volume.array, DEFAULT_LABELS, name), volume.grid)
    except DataError as error:
        hint = "masks of regions are wanted, as `regions` and `import-nnunet` write them"
        raise DataError("S055", error.message, hint) from None


def dice_by_region(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """Of the regions that either mask has."""
    x, y = a.ravel(), b.ravel()
    both, *sums_of = (np.bincount(each, minlength=max(LABELS.values()) + 1) for each in (x[x == y], x, y))
    sums = np.add(*sums_of)
    return {name: float(2 * both[n] / sums[n]) for name, n in LABELS.items() if sums[n]}


def table(values: Values, what: str) -> Iterator[str]:
    """A line for each region, and their mean."""
    patients = sorted({p for by in values.values() for p in by})
    drawn = weights(len(patients), _RESAMPLES, 0)
    yield f"{'region':32} {'volumes':>7} {what:>6}  95 %"
    means = []
    for region, by in values.items():
        total = np.array([sum(by.get(p, ())) for p in patients])
        count = np.array([len(by.get(p, ())) for p in patients], float)
        with np.errstate(invalid="ignore"):
            spread = (drawn @ total) / (drawn @ count)
        means.append(spread)
        yield _line(region, int(count.sum()), total.sum() / count.sum(), spread)
    if means:
        yield _line(
            "mean of the regions",
            len(means),
            float(np.mean([_mean(by) for by in values.values()])),
            np.mean(means, 0),
        )


def _mean(by: Mapping[str, Iterable[float]]) -> float:
    return float(np.mean([v for mine in by.values() for v in mine]))


def _line(name: str, count: int, value: float, spread: np.ndarray) -> str:
    low, high = (float(end[0]) for end in intervals(spread[None]))
    return f"{name:32} {count:>7,} {value:>6.3f}  [{low:.3f}, {high:.3f}]"
