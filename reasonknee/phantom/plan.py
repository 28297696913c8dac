"""Where lesions lie. Decided once per knee on a coarse grid, so that a knee carries the same lesions at
every resolution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from reasonknee.phantom.anatomy import BONE_BLOCKS, Bone, bone_distance, bones_in, plateau
from reasonknee.phantom.geometry import (
    ORIGIN_MM,
    Anatomy,
    Array,
    Frame,
    Point,
    coverage,
    generator,
    interpolation,
)
from reasonknee.phantom.grades import GradeOf
from reasonknee.phantom.tissue import findings
from reasonknee.questions.regions import LABELS

# What a grade means in mm or as a share: inside MOAKS's bands
BML_SHARE_OF_REGION = ((0.0, 0.0), (0.14, 0.2), (0.38, 0.52), (0.82, 0.95))
BML_SHARE_OF_LESION = ((0.0, 0.0), (0.12, 0.28), (0.4, 0.6), (1.0, 1.0))
CARTILAGE_SHARE = ((0.0, 0.0), (0.06, 0.095), (0.2, 0.65), (0.8, 0.97))
LEAST_SPUR_MM = 0.6  # the outline of a bone is not smooth, but less is not drawn
SPUR_MM = ((0.0, 1.1), (2.0, 3.3), (4.0, 5.8), (6.6, 9.0))
# Osteophyte sites: a point inside the bone, the direction in which the spur protrudes (axis, sign), the axis
# of the margin it sits on
SPUR_SITES: dict[str, tuple[str, Point, int, int, int]] = {
    "patella_superior": ("patella", (0.0, -34.0, -37.5), 1, -1, 0),
    "patella_inferior": ("patella", (0.0, -34.0, -38.5), 1, 1, 0),
    "patella_medial": ("patella", (1.0, -34.0, -40.0), 0, 1, 1),
    "patella_lateral": ("patella", (-1.0, -34.0, -40.0), 0, -1, 1),
    "femur_medial_trochlea": ("femur", (13.0, -41.5, -10.0), 2, -1, 0),
    "femur_medial_central": ("femur", (20.0, -15.0, 0.0), 0, 1, 2),
    "femur_medial_posterior": ("femur", (22.0, -40.0, 15.0), 2, 1, 0),
    "femur_lateral_trochlea": ("femur", (-13.0, -41.5, -10.0), 2, -1, 0),
    "femur_lateral_central": ("femur", (-20.0, -15.0, 0.0), 0, -1, 2),
    "femur_lateral_posterior": ("femur", (-22.0, -40.0, 15.0), 2, 1, 0),
    "tibia_medial": ("tibia", (20.0, 3.5, 0.0), 0, 1, 2),
    "tibia_lateral": ("tibia", (-20.0, 3.5, 0.0), 0, -1, 2),
}


def _spurs(grade: GradeOf, a: Anatomy) -> dict[str, list[tuple[Point, Point]]]:
    spurs: dict[str, list[tuple[Point, Point]]] = {bone: [] for bone in BONE_BLOCKS}
    ray = np.arange(0, 60, 0.25, dtype=np.float32)
    for site, (bone, start, axis, sign, margin) in SPUR_SITES.items():
        protrusion = grade.extent(f"{site}_osteophyte", SPUR_MM)
        if protrusion < LEAST_SPUR_MM:
            continue
        at = [np.full_like(ray, c) for c in start]
        at[axis] += sign * ray
        inside = bone_distance(bone, at[0], at[1], at[2], a) < 0
        centre, radii = list(start), [2.2 + 0.3 * protrusion] * 3
        centre[axis] += sign * (float(ray[inside].max(initial=0)) - 1)
        radii[axis], radii[margin] = protrusion + 1, 7.0 + 0.4 * protrusion
        spurs[bone].append(((centre[0], centre[1], centre[2]), (radii[0], radii[1], radii[2])))
    return spurs


def _softened(field: Array) -> Array:
    """Oedema has no sharp border."""
    for axis in range(3):
        field = (np.roll(field, 1, axis) + 2 * field + np.roll(field, -1, axis)) / 4
    return field


class Plan:
    """What is decided once per knee: on a 2 mm grid around the joint, and as lists of spurs and blobs."""

    STEP = 2.0
    BLOCK = ((-60, 60), (-82, 50), (-72, 54))  # along the volume's axes: what a turned knee needs

    def __init__(self, grade: GradeOf, a: Anatomy, seed: int) -> None:
        self.anatomy, self.grade = a, grade
        self.spurs = _spurs(grade, a)
        self.findings = findings(grade, a)
        centres = [
            o + s + by * np.arange(lo, hi, self.STEP)
            for o, s, by, (lo, hi) in zip(ORIGIN_MM, a.shift, a.stretch, self.BLOCK, strict=True)
        ]
        self.frame = Frame(centres, a, [by * self.STEP for by in a.stretch])
        self.shape = tuple(len(c) for c in centres)
        self.maps: dict[
            str, Array
        ] = {}  # bml and cyst: how much of a voxel is lesion; loss_<bone>: how much of the thickness is lost
        bones = bones_in(self.frame, a, self.spurs)
        self.front = self._front(bones)
        for bone in bones:
            for name, label in LABELS.items():
                if name.startswith(bone.name):
                    rng = generator(2, a.places, label)
                    shake = generator(3, seed, label).normal(0, 0.7, (4, 3))
                    self._marrow(bone, name, label, rng, shake)
                    if name != "tibia_subspinous":
                        self._cartilage(bone, name, label, rng, shake[3])
        if "bml" in self.maps:
            self.maps["bml"] = _softened(self.maps["bml"])

    def _front(self, bones: Sequence[Bone]) -> Array:
        """x of the foremost cartilage or bone of femur and tibia for each (z, y): the back wall of the
        cavity and of Hoffa's fat pad."""
        surface = np.full(self.shape, 9.0, np.float32)
        for bone in bones[:2]:
            surface[bone.block] = np.minimum(surface[bone.block], bone.distance - bone.cartilage)
        first = np.maximum((surface < 0).argmax(axis=2), 1)[..., None]
        here, before = (np.take_along_axis(surface, i, 2)[..., 0] for i in (first, first - 1))
        x = np.take_along_axis(np.broadcast_to(self.frame.x, self.shape), first, 2)[..., 0]
        front = np.where(here < 0, np.minimum(x + self.STEP * here / (before - here + 1e-3), -14), -14.0)
        padded = np.pad(front, 1, mode="edge")
        blurred = (
            sum(padded[i : i + front.shape[0], j : j + front.shape[1]] for i in range(3) for j in range(3))
            / 9
        )
        return np.asarray(blurred, np.float32)

    def _map(self, name: str) -> Array:
        return self.maps.setdefault(name, np.zeros(self.shape, np.float32))

    def _points(self, bone: Bone, chosen: Array) -> Array:
        return np.stack([np.broadcast_to(c, chosen.shape)[chosen] for c in bone.at], axis=1)

    def _marrow(self, bone: Bone, name: str, label: int, rng: np.random.Generator, shake: Array) -> None:
        size, number, share = (self.grade(f"{name}_bml", k) for k in ("size", "number", "percent_bml"))
        if not size:
            return
        region = (bone.label == label) & (bone.distance < bone.cartilage)
        marrow = region & (bone.distance < -1)
        z, y, x = bone.at
        joint = (y < plateau(z, x) + 8) if bone.name == "tibia" else bone.cartilage > 0.5
        near = self._points(bone, marrow & (bone.distance > -7) & joint)
        around = (bone.label == label) & (
            bone.distance < 4
        )  # beyond the surface too, where softening would otherwise eat into the lesion
        points, counted = self._points(bone, around), marrow[around]
        chosen = [near[rng.integers(len(near))]]
        for _ in range(max(number, 1) - 1):  # the next lesion lies away from those before it
            candidates = near[rng.integers(len(near), size=24)]
            chosen.append(
                candidates[np.min([((candidates - c) ** 2).sum(1) for c in chosen], axis=0).argmax()]
            )
        away = np.sort(
            [np.sqrt(((points - c - s) ** 2).sum(1)) for c, s in zip(chosen, shake, strict=False)], axis=0
        )
        if len(away) > 1:  # healthy marrow between them keeps lesions countable
            away[0][away[1] - away[0] < (1.0 if size == 3 else 2.2)] = np.inf
        ranked = np.sort(away[0][counted & np.isfinite(away[0])])
        reaches = self.grade.extent(f"{name}_bml", BML_SHARE_OF_REGION, "size")
        count = min(reaches * region.sum(), 0.96 * len(ranked))
        cysts = count * (1 - self.grade.extent(f"{name}_bml", BML_SHARE_OF_LESION, "percent_bml", 1))
        for kind, reach, soft in (("bml", count, 4.0), ("cyst", cysts, 3.0)):
            if reach >= 1 and not (kind == "bml" and share == 0):
                field = self._map(kind)[bone.block]
                field[around] = coverage(away[0] - ranked[int(reach) - 1], soft)

    def _cartilage(self, bone: Bone, name: str, label: int, rng: np.random.Generator, shake: Array) -> None:
        if not self.grade(f"{name}_cartilage", "size"):
            return
        near = (bone.label == label) & (np.abs(bone.distance - 1) < 4)
        shell = near & (bone.cartilage > 1) & (np.abs(bone.distance) < 1.5)
        surface = self._points(bone, shell)
        centre = surface[((surface - surface.mean(0) - rng.normal(0, 5, 3)) ** 2).sum(1).argmin()] + shake
        area = self.grade.extent(f"{name}_cartilage", CARTILAGE_SHARE, "size")
        denuded = min(
            self.grade.extent(f"{name}_cartilage", CARTILAGE_SHARE, "full_thickness_pct", 1), 0.9 * area
        )
        away = np.sqrt(((surface - centre) ** 2).sum(1))
        reach = np.sqrt(((self._points(bone, near) - centre) ** 2).sum(1))
        loss = 0.55 * coverage(reach - np.quantile(away, area), 1.5)
        if denuded:
            loss = np.maximum(loss, coverage(reach - np.quantile(away, denuded), 1.5))
        self._map(f"loss_{bone.name}")[bone.block][near] = loss

    def weights(self, frame: Frame) -> list[Array]:
        """Linear interpolation from this grid to a frame's, one matrix per axis; nothing outside this
        grid."""
        return [
            interpolation((other - own[0]) / self.STEP, len(own))
            for own, other in zip(self.frame.rough, frame.rough, strict=True)
        ]
