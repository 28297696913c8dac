"""From a segmentation to boxes: labels of any labeling, the largest component of each region
(26-connected), the grid of its image."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reasonknee.boxes import Box
from reasonknee.errors import DataError, UsageError
from reasonknee.layout.strict_text import parse_json
from reasonknee.questions.regions import LABELS
from reasonknee.volumes import Grid, read_volume
from reasonknee.volumes.region_boxes import region_boxes

CONNECTIVITY = 26
_MAX_LABEL = 65_535
LabelMap = Mapping[int, int]  # value in the mask -> value of the default labeling, 0 for what is no region
DEFAULT_LABELS: LabelMap = {value: value for value in LABELS.values()}


def read_label_map(path: Path) -> LabelMap:
    """A labeling from JSON: `{"1": "femur_medial_central", "2": null, ...}`.

    Null is a label of no interest; several may share a name.
    """
    try:
        raw = parse_json(path.read_bytes(), path.name)
    except OSError as error:
        raise UsageError("J010", f"{path}: {error.strerror}", "--label-map takes a JSON file") from None
    labels: dict[int, int] = {}
    for key, name in raw.items():
        if not (key.isascii() and key.isdigit() and 0 < int(key[:6]) <= _MAX_LABEL and len(key) < 6):
            raise UsageError(
                "J010",
                f"{path.name}: {key[:40]!r} is not a label",
                f"whole numbers from 1 to {_MAX_LABEL} are wanted; 0 is background",
            )
        if name is not None and not (isinstance(name, str) and name in LABELS):
            raise UsageError(
                "J010",
                f"{path.name}: label {key} is {str(name)[:40]!r}",
                f"null or one of {', '.join(LABELS)}",
            )
        labels[int(key)] = LABELS[name] if name else 0
    return labels


def mask_boxes(path: Path, image: Grid, labels: LabelMap = DEFAULT_LABELS) -> dict[str, Box | None]:
    """The box of every region in voxels of the image, None where it is absent."""
    mask = read_volume(path)
    flips = mask.grid.flips_to(image)
    if flips is None:
        told = f"the mask is on another grid than its image: {mask.grid}; the image: {image}"
        raise DataError("J011", told, "export both on the same voxels").at(path.name)
    known = relabelled(mask.array, labels, path.name)
    return region_boxes(np.ascontiguousarray(np.flip(known, flips)), image.orientation, largest_components)


def largest_components(labels: np.ndarray) -> np.ndarray:
    """The mask with only the largest component of each label; of two equally large ones the first in the
    order of voxels."""
    try:
        import cc3d
    except ImportError:
        raise UsageError(
            "J012", "boxes from masks need connected-components-3d", "pip install 'reasonknee[construct]'"
        ) from None
    mask: np.ndarray = np.ascontiguousarray(labels)
    numbered, count = cc3d.connected_components(mask, connectivity=CONNECTIVITY, return_N=True)
    where = np.flatnonzero(mask)  # the regions are a small part of a volume
    component = numbered.ravel()[where]
    sizes = np.bincount(component, minlength=count + 1)
    first, label_of = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    first[component[::-1]] = where[::-1]  # of equal indices the last one written stays
    label_of[component] = mask.ravel()[where]
    keep = np.zeros(count + 1, bool)
    order = np.lexsort((first, -sizes, label_of))[
        1:
    ]  # by label, the largest first; background, component 0, leads
    keep[order[np.flatnonzero(np.diff(label_of[order], prepend=0))]] = True
    if keep[1:].all():
        return mask
    kept: np.ndarray = mask.copy()
    kept.ravel()[where[~keep[component]]] = 0
    return kept


def relabelled(mask: np.ndarray, labels: LabelMap, name: str) -> np.ndarray:
    """The mask in the default labeling.

    A label that the labeling does not know is refused: it might be a region by another number.
    """
    if mask.dtype.kind == "f":
        whole = mask.astype(np.int64)
        if not (whole == mask).all():
            raise DataError(
                "J013", f"{name}: the mask holds fractions", "a label mask is wanted, not probabilities"
            )
        mask = whole
    low, high = int(mask.min(initial=0)), int(mask.max(initial=0))
    if low < 0 or high > _MAX_LABEL:
        raise DataError("J013", f"{name}: labels from {low} to {high}", f"0 to {_MAX_LABEL} are accepted")
    present = np.flatnonzero(
        np.bincount(mask[mask != 0])
    ).tolist()  # counting the background would take longer than all the rest
    unknown = sorted(set(present) - set(labels))
    if unknown:
        raise DataError(
            "J013", f"{name}: unknown labels {unknown[:8]}", "name them with --label-map, or map them to null"
        )
    if mask.dtype == np.uint8 and all(labels[v] == v for v in present):
        return mask
    table = np.zeros(high + 1, np.uint8)
    for value in present:
        table[value] = labels[value]
    known: np.ndarray = table[mask]
    return known
