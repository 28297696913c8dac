"""From tissue masks that people can get to the subregions that questions ask about, by geometric rules in
millimetres that follow MOAKS.

- Medial and lateral part at the middle between the inner edges of the tibial cartilages; the patella at its
  ridge, where its cartilage reaches furthest back.
- The trochlea ends where the cartilage of the notch does; central and posterior femur meet at 60 % of the way
  from there to the back of the condyle.
- Subspinous tibia lies between the tibial cartilages; on either side the plateau is cut into thirds from
  front to back.
- Bone counts as far as FEMUR_MM and TIBIA_MM from the joint. This matters most and is nobody's standard:
  compare with published boxes (`reasonknee compare-boxes`) before you trust it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.errors import DataError, UsageError
from reasonknee.layout.strict_text import parse_json
from reasonknee.questions.regions import LABELS
from reasonknee.volumes import Grid

Array = np.ndarray[Any, Any]
FEMUR_MM, TIBIA_MM = 40.0, 15.0
POSTERIOR_SHARE, NOTCH_MM = 0.6, 5.0
TISSUES = (
    "patellar_cartilage",
    "femoral_cartilage",
    "medial_tibial_cartilage",
    "lateral_tibial_cartilage",
    "medial_meniscus",
    "lateral_meniscus",
    "femur",
    "tibia",
    "patella",
    "tibial_cartilage",
)
LABELINGS: dict[str, dict[int, str]] = {
    # the open knee nnU-Net (aagatti/nnunet_knee), kneeseg, OAIZIB-CM
    "nnunet_knee": dict(enumerate(TISSUES[:9], start=1)),
    "kneeseg": {
        1: "femur",
        2: "femoral_cartilage",
        3: "tibia",
        4: "tibial_cartilage",
        5: "patella",
        6: "patellar_cartilage",
    },
    "oaizib": {
        1: "femur",
        2: "femoral_cartilage",
        3: "tibia",
        4: "medial_tibial_cartilage",
        5: "lateral_tibial_cartilage",
    },
}


def labeling(name: str) -> dict[int, str]:
    """A labeling by its name, or a JSON file of labels: number -> tissue."""
    if name in LABELINGS:
        return LABELINGS[name]
    path = Path(name)
    if not path.is_file():
        raise UsageError(
            "J018",
            f"no labeling {name!r}",
            f"one of {', '.join(LABELINGS)}, or a JSON file: number -> tissue",
        )
    found = {}
    for key, tissue in parse_json(path.read_bytes(), path.name).items():
        if not (key.isascii() and key.isdigit() and 0 < int(key[:4]) < 256) or tissue not in TISSUES:
            raise UsageError(
                "J018", f"{path.name}: {key[:20]!r} is {str(tissue)[:40]!r}", f"tissues: {', '.join(TISSUES)}"
            )
        found[int(key)] = str(tissue)
    return found


def subregions(mask: Array, grid: Grid, side: str, labels: Mapping[int, str]) -> Array:
    """The mask of subregions (`LABELS`) on the same voxels."""
    flips = turns(grid.orientation, side)
    turned = np.flip(mask, flips)
    strange = sorted(values_in(mask) - {0, *labels})
    if strange:
        raise DataError("J019", f"label {strange[0]:g} is no tissue of the labeling", "is --labels right?")
    knee = _Knee(turned, grid.spacing, labels)
    return np.ascontiguousarray(np.flip(knee.labelled(), flips))


def values_in(mask: Array) -> set[float]:
    """The different values of a mask: small whole numbers are counted, which is quicker than sorting."""
    if mask.dtype == np.uint8:
        return set(np.flatnonzero(np.bincount(mask.ravel())).tolist())
    return set(np.unique(mask).tolist())


def turns(orientation: str, side: str) -> tuple[int, ...]:
    """The axes to turn so that z grows medially, y down and x back."""
    medial = "L" if side == "right" else "R"
    return tuple(axis for axis, letter in enumerate((medial, "I", "P")) if orientation[axis] != letter)


class _Knee:
    """A tissue mask whose axes grow medially, down and back."""

    def __init__(self, mask: Array, spacing: tuple[float, float, float], labels: Mapping[int, str]) -> None:
        self.mask, self.spacing, self.labels = mask, spacing, labels
        self.out = np.zeros(mask.shape, np.uint8)
        self.z, self.y, self.x = (
            (np.arange(n) * mm).reshape([-1 if axis == k else 1 for k in range(3)])
            for axis, (n, mm) in enumerate(zip(mask.shape, spacing, strict=True))
        )

    def of(self, *tissues: str) -> Array:
        return np.isin(self.mask, [n for n, name in self.labels.items() if name in tissues])

    def labelled(self) -> Array:
        plateaus = self._plateaus()
        if plateaus:
            medial, lateral = plateaus
            if sum(self._extent(medial, 0)) <= sum(self._extent(lateral, 0)):
                raise DataError(
                    "J063",
                    "medial tibial cartilage lies where lateral should",
                    "is the side in its name right, and are --labels?",
                )
            inner = (self._extent(lateral, 0)[1], self._extent(medial, 0)[0])
            self._tibia(medial, lateral, inner)
            self._femur((inner[0] + inner[1]) / 2)
        self._patella()
        for name in ("medial_meniscus", "lateral_meniscus"):
            self.out[self.of(name)] = LABELS[name]
        return self.out

    def _extent(self, where: Array, axis: int) -> tuple[float, float]:
        """Between which millimetres a tissue lies; a hundredth at either end may be stray."""
        counts = where.sum(axis=tuple(k for k in range(3) if k != axis))
        share = np.cumsum(counts) / counts.sum()
        first, last = np.searchsorted(share, (0.01, 0.99))
        return float(first * self.spacing[axis]), float(last * self.spacing[axis])

    def _plateaus(self) -> tuple[Array, Array] | None:
        medial, lateral = self.of("medial_tibial_cartilage"), self.of("lateral_tibial_cartilage")
        whole = self.of("tibial_cartilage")
        if whole.any():
            low, high = self._extent(whole, 0)
            middle = (low + high) / 2
            medial, lateral = medial | (whole & (self.z >= middle)), lateral | (whole & (self.z < middle))
        return (medial, lateral) if medial.any() and lateral.any() else None

    def _tibia(self, medial: Array, lateral: Array, inner: tuple[float, float]) -> None:
        cartilage = medial | lateral
        _, rows, columns = cartilage.nonzero()
        slope, top = _line(columns * self.spacing[2], rows * self.spacing[1])
        near = (self.of("tibia") | cartilage) & (self.y < top + slope * self.x + TIBIA_MM)
        between = (self.z > inner[0]) & (self.z < inner[1])
        self.out[near & between] = LABELS["tibia_subspinous"]
        for name, plateau, mine in (
            ("medial", medial, self.z >= inner[1]),
            ("lateral", lateral, self.z <= inner[0]),
        ):
            front, back = self._extent(plateau, 2)
            third = (back - front) / 3
            part = (self.x >= front + third).astype(np.uint8) + (self.x >= front + 2 * third)
            label = LABELS[f"tibia_{name}_anterior"] + part  # anterior, central, posterior
            np.copyto(self.out, np.broadcast_to(label, self.out.shape).astype(np.uint8), where=near & mine)

    def _femur(self, middle: float) -> None:
        cartilage = self.of("femoral_cartilage")
        bone = self.of("femur") | cartilage
        if not cartilage.any():
            return
        bottom = self._extent(bone, 1)[1]
        near = bone & (self.y > bottom - FEMUR_MM)
        notch = cartilage & (np.abs(self.z - middle) < NOTCH_MM)
        for name, mine in (("medial", self.z >= middle), ("lateral", self.z < middle)):
            condyle = cartilage & mine
            if not condyle.any():
                continue
            front, back = self._extent(condyle, 2)
            trochlea = self._extent(notch, 2)[1] if notch.any() else front + (back - front) / 3
            posterior = trochlea + POSTERIOR_SHARE * (back - trochlea)
            part = (self.x >= trochlea).astype(np.uint8) + (self.x >= posterior)
            label = LABELS[f"femur_{name}_trochlea"] + part  # trochlea, central, posterior
            np.copyto(self.out, np.broadcast_to(label, self.out.shape).astype(np.uint8), where=near & mine)

    def _patella(self) -> None:
        cartilage = self.of("patellar_cartilage")
        bone = self.of("patella") | cartilage
        if not bone.any():
            return
        low, high = self._extent(bone, 0)
        ridge = (low + high) / 2
        if cartilage.any():
            reach = np.where(cartilage, self.x, -1.0).max(axis=(1, 2))  # how far back, slice by slice
            inside = np.abs(self.z[:, 0, 0] - ridge) < (high - low) / 4
            reach = np.convolve(reach, np.ones(3) / 3, "same")[: len(inside)] * inside
            if reach.max() > 0:
                peak = reach >= reach.max() - 0.5 * self.spacing[2]
                ridge = float(self.z[:, 0, 0][peak].mean())
        self.out[bone & (self.z >= ridge)] = LABELS["patella_medial"]
        self.out[bone & (self.z < ridge)] = LABELS["patella_lateral"]


def _line(x: Array, y: Array) -> tuple[float, float]:
    """Slope and height at 0 of the line through points, level where they lie above each other."""
    spread = float(((x - x.mean()) ** 2).sum())
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread else 0.0
    return slope, float(y.mean() - slope * x.mean())
