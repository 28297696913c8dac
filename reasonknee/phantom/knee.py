"""A synthetic knee as a sagittal DESS sees it: bright fluid, grey cartilage, dark marrow, and lesions that follow MOAKS grades.

Anatomy is a set of signed distances in mm (negative inside) in the knee's own frame: z medial, y inferior, x posterior, the joint line at the
origin. A volume is painted in slabs of slices, so that temporaries stay in the processor's cache; where lesions lie is planned once on a coarse
grid, so that a knee carries the same lesions at every resolution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from reasonknee.questions import QUESTIONS
from reasonknee.regions import LABELS

Array = np.ndarray[Any, Any]
Grades = Mapping[str, Mapping[str, int]]
Point = tuple[float, float, float]  # z, y, x in mm
Range = tuple[float, float]
Index = tuple[slice, slice, slice]

FIELD_OF_VIEW_MM = (112.0, 140.16, 140.16)  # z, y, x: 160 slices of 0.7 mm, 384 x 384 pixels of 0.365 mm
ORIGIN_MM = (56.0, 76.0, 68.0)  # where the centre of the tibial plateau lies in the field of view
SLAB_VOXELS = 600_000
NOISE = 13.0  # standard deviation

# Signal of each tissue, 12-bit. Water excitation leaves fat and marrow dark.
AIR, SKIN, FAT, FASCIA, MUSCLE, MARROW, CORTEX = 2.0, 170.0, 96.0, 60.0, 175.0, 88.0, 22.0
TENDON, LIGAMENT, MENISCUS, CARTILAGE, FLUID, FILM, OEDEMA = 34.0, 62.0, 30.0, 305.0, 690.0, 470.0, 290.0

# What a grade means in mm or as a share; the middle of each MOAKS band
BML_SHARE_OF_REGION = (0.0, 0.17, 0.5, 0.88)
BML_SHARE_OF_LESION = (0.0, 0.2, 0.5, 1.0)
CARTILAGE_SHARE = (0.0, 0.07, 0.42, 0.9)
SPUR_MM = (0.0, 2.5, 4.5, 7.5)
EXTRUSION_MM = (0.0, 2.5, 4.0, 6.0)
HOFFA_SIGNAL_MM = (0.0, 9.0, 15.0, 24.0)  # reach of the bright signal from the intercondylar part of the pad
BURSA_MM = (1.6, 5.5, 9.5, 15.0)  # depth of the suprapatellar bursa
RETROPATELLAR_MM = (0.9, 1.6, 2.2, 3.0)
REMNANT = {6: 0.6, 7: 0.42, 8: 0.22}  # height left of a macerated meniscus

# Bones
CONDYLE_Z, CONDYLE_HALF_WIDTH = 21.5, 14.5
PATELLA_Y, PATELLA_X, PATELLA_HALF = -33.0, -41.5, (22.0, 20.5, 9.6)
TIBIA_HALF = (37.0, 25.0)  # z, x at the plateau
GROWTH_PLATES_Y = (-38.0, 17.0)
BONE_BLOCKS: dict[str, tuple[Range, Range, Range]] = {  # room for cartilage and spurs included
    "femur": ((-44, 44), (-80, 0), (-38, 42)),
    "tibia": ((-44, 44), (-12, 70), (-34, 30)),
    "patella": ((-30, 30), (-62, -3), (-54, -28)),
}
EPIPHYSIS_Y, TIBIA_DEPTH = -45.0, 15.0  # how far from the joint a bone's subregions reach
TROCHLEA_X, POSTERIOR_X, TIBIA_THIRDS_X, SPINE_Z = -13.0, 13.0, (-7.5, 9.0), 7.5
# Soft tissue
ACL_FEMUR, ACL_TIBIA, ACL_RADIUS = (-7.0, -31.0, 14.0), (0.0, 0.0, -7.0), 4.6
PCL_CENTRE, PCL_ARC_RADIUS, PCL_RADIUS = (3.0, 4.5), 20.5, 4.6  # y, x of the arc's centre
TENDON_TOP, TENDON_END = (-16.0, -46.5), (33.0, -31.5)  # y, x of the patellar tendon
HOFFA_CORE: Point = (0.0, -5.0, -17.0)
MENISCI = {"medial": (21.0, 15.0, 2.0, 22.5, 2.3), "lateral": (-20.5, 15.0, 1.0, 19.5, 2.6)}  # centre z, radius z, centre x, radius x, half arc
MENISCUS_INNER = 0.44  # inner edge as a share of the outer radius
SEGMENTS = ("anterior", "body", "posterior")
SEGMENT_ANGLE = (-1.25, 0.0, 1.25)  # along the C from the body, in rad
SEGMENT_X = (-14.0, 1.0, 15.0)


@dataclass(frozen=True)
class Knee:
    image: Array  # uint16 (z, y, x), 12-bit
    mask: Array  # uint8 (z, y, x), values of regions.LABELS


class _Blob(NamedTuple):
    """An ellipsoid of even signal."""

    centre: Point
    radii: Point
    value: float
    edge: float = 0.8


class _Anatomy(NamedTuple):
    """One person's knee: what stays the same from visit to visit."""

    scale: float
    shift: Point
    flexion: float
    varus: float
    groove: float
    patella_drop: float
    fat: float
    texture: int
    places: int


def _generator(*seeds: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds)))


def _anatomy(seed: int) -> _Anatomy:
    rng = _generator(1, seed)
    u = rng.uniform(-1, 1, 9).tolist()  # plain floats, which leave arrays at single precision
    return _Anatomy(
        scale=1 + 0.05 * u[0],
        shift=(2 * u[1], 3 * u[2], 2 * u[3]),
        flexion=0.05 * u[4],
        varus=0.03 * u[5],
        groove=4.5 + u[6],
        patella_drop=2 * u[7],
        fat=7 + 3 * u[8],
        texture=int(rng.integers(2**31)),
        places=seed,
    )


class _Frame:
    """Voxel centres in the knee's own mm, as arrays that broadcast to (z, y, x): z depends on (z, y), y and x on (y, x)."""

    def __init__(self, centres: Sequence[Array], anatomy: _Anatomy, spacing: Sequence[float]) -> None:
        z, y, x = (((c - o - s) / anatomy.scale).astype(np.float32) for c, o, s in zip(centres, ORIGIN_MM, anatomy.shift, strict=True))
        self.rough = (z, y, x)
        self.spacing = tuple(s / anatomy.scale for s in spacing)
        self.edge = max(0.7, 0.9 * max(self.spacing[1:]))
        cos, sin = math.cos(anatomy.flexion), math.sin(anatomy.flexion)
        self.z = (z[:, None] + anatomy.varus * y)[:, :, None]
        self.y = (cos * y[:, None] + sin * x)[None]
        self.x = (cos * x - sin * y[:, None])[None]

    def cut(self, *block: Range, margin: float = 5.0) -> tuple[Index, Array, Array, Array]:
        """The index of a block in mm, and its coordinates; the margin allows for the frame's tilt."""
        zs, ys, xs = (
            slice(int(np.searchsorted(c, lo - margin)), int(np.searchsorted(c, hi + margin))) for c, (lo, hi) in zip(self.rough, block, strict=True)
        )
        return (zs, ys, xs), self.z[zs, ys], self.y[:, ys, xs], self.x[:, ys, xs]


# --- signed distances -------------------------------------------------------------------------------------------------------------


def _join(a: Array, b: Array, k: float) -> Array:
    """The union of two bodies, with the crease between them filled over k mm."""
    gap = a - b
    h = gap * (-0.5 / k)
    h += 0.5
    np.clip(h, 0, 1, out=h)
    gap -= k
    gap += k * h
    gap *= h
    gap += b
    return gap  # type: ignore[no-any-return]


def _inside(distance: Array, edge: float) -> Array:
    """How much of a voxel lies inside, from a signed distance."""
    share = distance * (-1 / edge)
    share += 0.5
    return np.clip(share, 0, 1, out=share)  # type: ignore[no-any-return]


def _ellipsoid(z: Array, y: Array, x: Array, centre: Point, radii: Point) -> Array:
    (cz, cy, cx), (rz, ry, rx) = centre, radii
    a, b, c = ((z - cz) / rz) ** 2, ((y - cy) / ry) ** 2, ((x - cx) / rx) ** 2
    k0 = np.sqrt(a + b + c) + 1e-3
    return k0 * (k0 - 1) / np.sqrt(a / rz**2 + b / ry**2 + c / rx**2 + 1e-6)  # type: ignore[no-any-return]


def _rod(z: Array, y: Array, x: Array, p: Point, q: Point) -> tuple[Array, Array]:
    """Distance to the line from p to q, and how far along it."""
    d = np.subtract(q, p)
    n = float(d @ d)
    vz, vy, vx = z - p[0], y - p[1], x - p[2]
    t = np.clip(vz * float(d[0] / n) + (vy * float(d[1] / n) + vx * float(d[2] / n)), 0, 1)
    return np.sqrt((vz - t * float(d[0])) ** 2 + (vy - t * float(d[1])) ** 2 + (vx - t * float(d[2])) ** 2), t


def _femur(z: Array, y: Array, x: Array, a: _Anatomy) -> Array:
    behind = np.hypot(x - 13, y + 26.5) - 20.5  # a condyle's profile: a round back, a flatter front
    below = (np.hypot((x + 4) / 27, (y + 28) / 20) - 1) * 22.5
    condyle = _join(behind, below, 8)

    def inset(centre: float, half_width: float) -> Array:  # flat in the middle, rounded towards the side walls
        return 18 * ((z - centre) / half_width) ** 6 + 1.2 * ((z - centre) / half_width) ** 2

    condyles = np.minimum(condyle + inset(CONDYLE_Z, CONDYLE_HALF_WIDTH + 0.5), condyle + (inset(-CONDYLE_Z, CONDYLE_HALF_WIDTH) + 0.4))
    front = (np.hypot((x + 4) / 25.5, (y + 30) / 21) - 1) * 23
    groove = a.groove * np.exp(-((z / 9) ** 2)) + 9 * (z / 22) ** 6 + 0.04 * z  # the lateral lip stands higher
    flare = np.clip((y + 78) / 38, 0, 1)
    flare = flare * flare * (3 - 2 * flare)
    q = np.sqrt(((x + 7 - 3 * flare) / (14.5 + 8 * flare)) ** 2 + (z / (18 + 18 * flare)) ** 2)
    shaft = np.maximum((q - 1) * (14.5 + 8 * flare), y + 30)
    roof = (0.63 * (x + 19) + 0.776 * (y + 13)) - 0.05 * z**2  # the notch lies behind and below its arched roof
    middle = np.maximum(_join(front + groove, shaft, 5), roof)
    return _join(condyles, middle, 6)


def _dish(z: Array, x: Array) -> Array:
    """y of the bony tibial plateau without its spines: sloping back, hollow medially, domed laterally."""
    bowl = np.clip(1 - ((np.abs(z) - 21) / 15) ** 2, 0, None) * np.clip(1 - (x / 24) ** 2, 0, None)
    return 0.1 * x + np.where(z > 0, 1.2, -0.5).astype(np.float32) * bowl  # type: ignore[no-any-return]


def _plateau(z: Array, x: Array) -> Array:
    spines = 9 * np.exp(-(((z - 4) / 3) ** 2)) + 7.5 * np.exp(-(((z + 4.5) / 3) ** 2))
    return _dish(z, x) - spines * np.exp(-(((x - 3) / 9) ** 2))


def _tibia(z: Array, y: Array, x: Array) -> Array:
    taper = np.cos(np.pi / 2 * np.clip((y - 4) / 54, 0, 1)) ** 2
    half_z, half_x = 14 + (TIBIA_HALF[0] - 14) * taper, 14.5 + (TIBIA_HALF[1] - 14.5) * taper
    q = ((x + 6 - 7 * taper) / half_x) ** 2, (z / half_z) ** 2
    side = (np.sqrt(np.sqrt(q[0] ** 2 + q[1] ** 2 + 0.2 * q[0] * q[1])) - 1) * (0.5 * (half_x + half_z))  # between an ellipse and a rectangle
    body = -_join(y - _plateau(z, x), -side, 2.5)
    return _join(body, _ellipsoid(z, y, x, (-2.0, 31.0, -21.0), (10.0, 15.0, 9.5)), 6)


def _patella(z: Array, y: Array, x: Array, a: _Anatomy) -> Array:
    dy = y - PATELLA_Y - a.patella_drop
    apex = np.clip(dy / 20, 0, 1)
    centre = PATELLA_X - 0.2 * np.abs(z) - 2.5 * apex**2  # a ridge behind, and the apex tipped to the front
    u, v, w = np.abs(z) / (PATELLA_HALF[0] - 6 * apex), np.abs(dy) / PATELLA_HALF[1], np.abs(x - centre) / (PATELLA_HALF[2] - 1.5 * apex)
    k0 = np.cbrt(u**3 + v**3 + w**3) + 1e-3
    slope = np.sqrt((u**2 / 22) ** 2 + (v**2 / 20.5) ** 2 + (w**2 / 9.6) ** 2) / k0**2
    return (k0 - 1) / (slope + 1e-2)  # type: ignore[no-any-return]


def _fibula(z: Array, y: Array, x: Array) -> Array:
    shaft = np.maximum(np.hypot(z + 32, x - 21) - 5.5, 22 - y)
    return _join(_ellipsoid(z, y, x, (-31.0, 22.0, 22.0), (8.0, 11.0, 8.5)), shaft, 4)


def _slope(v: Array, zero: float | Array, one: float | Array) -> Array:
    return np.clip((v - zero) / (one - zero), 0, 1)


def _femur_cartilage(z: Array, y: Array, x: Array) -> Array:
    """Thickness in mm of the healthy cartilage over the nearest femur; none on the side walls and in the notch."""
    notch = np.maximum(_slope(np.abs(z), 8, 11), _slope(x, -14, -18))
    return (2.4 + 0.5 * _slope(x, -10, -25)) * _slope(y, -47 + 0.16 * x, -42 + 0.16 * x) * _slope(np.abs(z), 35, 31) * notch  # type: ignore[no-any-return]


def _tibia_cartilage(z: Array, y: Array, x: Array) -> Array:
    rim = ((x - 1) / 24) ** 4 + (z / 36.5) ** 4
    return 2.6 * _slope(np.abs(z), 8, 11) * _slope(rim, 1, 0.7) * _slope(y - _plateau(z, x), 2.5, 1)


def _patella_cartilage(z: Array, y: Array, x: Array, a: _Anatomy) -> Array:
    dy = y - PATELLA_Y - a.patella_drop
    return 3.4 * _slope(x - PATELLA_X + 0.2 * np.abs(z), 2, 5) * _slope(dy, 15, 10) * _slope(dy, -19, -15) * _slope(np.abs(z), 21, 17)  # type: ignore[no-any-return]


def _patellar_tendon(z: Array, y: Array, x: Array, half: float | Array) -> Array:
    (y0, x0), (y1, x1) = TENDON_TOP, TENDON_END
    centre = x0 + (y - y0) * ((x1 - x0) / (y1 - y0))
    return np.maximum(np.maximum(np.abs(x - centre) - half, np.abs(z) - 13), np.abs(y - (y0 + y1) / 2) - (y1 - y0) / 2)  # type: ignore[no-any-return]


def _pcl(z: Array, y: Array, x: Array) -> tuple[Array, Array]:
    """Distance to the ligament, and how far along it from the femur to the tibia."""
    dy, dx = y - PCL_CENTRE[0], x - PCL_CENTRE[1]
    t = (np.arctan2(dx, -dy) + 0.15) / 1.85
    ring = np.hypot(dx, dy) - PCL_ARC_RADIUS
    beyond = np.clip(np.abs(t - 0.5) - 0.5, 0, None) * (1.85 * PCL_ARC_RADIUS)
    return np.sqrt(ring**2 + (z - 6.5 + 6 * t) ** 2 + beyond**2) - PCL_RADIUS, t


def _meniscus(z: Array, y: Array, x: Array, side: str, grade: _Reader) -> tuple[Array, Array, Array, Array, Array]:
    """Footprint distance, height over the tibial cartilage, height of the wedge there, angle along the C, share of the radius."""
    centre_z, radius_z, centre_x, radius_x, half_arc = MENISCI[side]
    u, v = (z - centre_z) * (1 if centre_z > 0 else -1) / radius_z, (x - centre_x) / radius_x
    angle, rho = np.arctan2(v, u), np.hypot(u, v)
    sideways = EXTRUSION_MM[grade(f"{side}_meniscus_{side}_extrusion")] / radius_z * np.clip(np.cos(angle), 0, None) ** 1.5
    forward = EXTRUSION_MM[grade(f"{side}_meniscus_anterior_extrusion")] / radius_x * np.clip(-np.sin(angle), 0, None) ** 1.5
    rho = rho - sideways - forward
    large = grade(f"{side}_meniscus_hypertrophy")
    inner = MENISCUS_INNER - 0.1 * large
    wedge = (1.0 + 5.5 * _slope(rho, inner, 1.0)) * (1 + 0.6 * large)
    radius = 0.5 * (radius_z + radius_x)
    footprint = np.maximum(np.maximum(inner - rho, rho - 1) * radius, (np.abs(angle) - half_arc) * radius * rho)
    return footprint, _dish(z, x) - 2.5 - y, wedge, angle, rho


class _Reader:
    """Grades by question and attribute; what is not given is normal."""

    def __init__(self, grades: Grades) -> None:
        self.grades = grades

    def __call__(self, question: str, attribute: str = "") -> int:
        given = self.grades.get(question, {})
        return int(given.get(attribute or QUESTIONS[question].attributes[0].id, 3 if attribute == "tear_location" else 0))


class _Bone(NamedTuple):
    name: str
    block: Index
    at: tuple[Array, Array, Array]  # z, y, x
    distance: Array
    cartilage: Array  # healthy thickness
    label: Array  # subregion that a voxel belongs to if it is bone or cartilage; 0 away from the joint


def _medial_or_lateral(z: Array, name: str) -> Array:
    return np.where(z >= 0, np.uint8(LABELS[name.format("medial")]), np.uint8(LABELS[name.format("lateral")]))  # type: ignore[no-any-return]


def _bones(frame: _Frame, a: _Anatomy, spurs: Mapping[str, Sequence[tuple[Point, Point]]]) -> list[_Bone]:
    bones = []
    for name, block in BONE_BLOCKS.items():
        index, z, y, x = frame.cut(*block)
        if 0 in (len(z), y.size):
            continue
        if name == "femur":
            distance, cartilage = _femur(z, y, x, a), _femur_cartilage(z, y, x)
            third = (x >= TROCHLEA_X).astype(np.uint8) + ((x >= POSTERIOR_X) & (np.abs(z) >= 6))  # labels run trochlea, central, posterior
            label = (_medial_or_lateral(z, "femur_{}_trochlea") + third) * (y > EPIPHYSIS_Y)
        elif name == "tibia":
            distance, cartilage = _tibia(z, y, x), _tibia_cartilage(z, y, x)
            third = (x >= TIBIA_THIRDS_X[0]).astype(np.uint8) + (x >= TIBIA_THIRDS_X[1])  # labels run anterior, central, posterior
            label = np.where(np.abs(z) < SPINE_Z, np.uint8(LABELS["tibia_subspinous"]), _medial_or_lateral(z, "tibia_{}_anterior") + third)
            label = label * (y < TIBIA_DEPTH + 0.1 * x)
        else:
            distance, cartilage = _patella(z, y, x, a), _patella_cartilage(z, y, x, a)
            label = _medial_or_lateral(z, "patella_{}") * np.ones(y.shape, np.uint8)
        for centre, radii in spurs.get(name, ()):
            distance = _join(distance, _ellipsoid(z, y, x, centre, radii), 1.5)
        bones.append(_Bone(name, index, (z, y, x), distance, cartilage, label))
    return bones


# --- where lesions lie ------------------------------------------------------------------------------------------------------------

# Osteophyte sites: a point inside the bone, the direction in which the spur protrudes (axis, sign), the axis of the margin it sits on
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


def _spurs(grade: _Reader, a: _Anatomy) -> dict[str, list[tuple[Point, Point]]]:
    spurs: dict[str, list[tuple[Point, Point]]] = {"femur": [], "tibia": [], "patella": []}
    ray = np.arange(0, 60, 0.25, dtype=np.float32)
    for site, (bone, start, axis, sign, margin) in SPUR_SITES.items():
        protrusion = SPUR_MM[grade(f"{site}_osteophyte")]
        if not protrusion:
            continue
        at = [np.full_like(ray, c) for c in start]
        at[axis] += sign * ray
        z, y, x = at
        inside = (_femur(z, y, x, a) if bone == "femur" else _tibia(z, y, x) if bone == "tibia" else _patella(z, y, x, a)) < 0
        centre, radii = list(start), [2.2 + 0.3 * protrusion] * 3
        centre[axis] += sign * (float(ray[inside].max(initial=0)) - 1)
        radii[axis], radii[margin] = protrusion + 1, 7.0 + 0.4 * protrusion
        spurs[bone].append(((centre[0], centre[1], centre[2]), (radii[0], radii[1], radii[2])))
    return spurs


class _Plan:
    """What is decided once per knee: on a 2 mm grid around the joint, and as lists of spurs and blobs."""

    STEP = 2.0
    BLOCK = ((-44, 44), (-68, 36), (-58, 42))

    def __init__(self, grade: _Reader, a: _Anatomy, seed: int) -> None:
        self.anatomy, self.grade = a, grade
        self.spurs = _spurs(grade, a)
        self.findings = self._findings()
        centres = [o + s + a.scale * np.arange(lo, hi, self.STEP) for o, s, (lo, hi) in zip(ORIGIN_MM, a.shift, self.BLOCK, strict=True)]
        self.frame = _Frame(centres, a, [a.scale * self.STEP] * 3)
        self.shape = tuple(len(c) for c in centres)
        self.maps: dict[str, Array] = {}  # bml and cyst: how much of a voxel is lesion; loss_<bone>: how much of the thickness is lost
        bones = _bones(self.frame, a, self.spurs)
        self.front = self._front(bones)
        for bone in bones:
            for name, label in LABELS.items():
                if name.startswith(bone.name):
                    rng = _generator(2, a.places, label)
                    shake = _generator(3, seed, label).normal(0, 0.7, (4, 3))
                    self._marrow(bone, name, label, rng, shake)
                    if name != "tibia_subspinous":
                        self._cartilage(bone, name, label, rng, shake[3])
        for axis in range(3 * ("bml" in self.maps)):  # oedema has no sharp border
            field = self.maps["bml"]
            self.maps["bml"] = (np.roll(field, 1, axis) + 2 * field + np.roll(field, -1, axis)) / 4

    def _front(self, bones: Sequence[_Bone]) -> Array:
        """x of the foremost cartilage or bone of femur and tibia for each (z, y): the back wall of the cavity and of Hoffa's fat pad."""
        surface = np.full(self.shape, 9.0, np.float32)
        for bone in bones[:2]:
            surface[bone.block] = np.minimum(surface[bone.block], bone.distance - bone.cartilage)
        first = np.maximum((surface < 0).argmax(axis=2), 1)[..., None]
        here, before = (np.take_along_axis(surface, i, 2)[..., 0] for i in (first, first - 1))
        x = np.take_along_axis(np.broadcast_to(self.frame.x, self.shape), first, 2)[..., 0]
        front = np.where(here < 0, np.minimum(x + self.STEP * here / (before - here + 1e-3), -14), -14.0)
        padded = np.pad(front, 1, mode="edge")
        blurred = sum(padded[i : i + front.shape[0], j : j + front.shape[1]] for i in range(3) for j in range(3)) / 9
        return np.asarray(blurred, np.float32)

    def _map(self, name: str) -> Array:
        return self.maps.setdefault(name, np.zeros(self.shape, np.float32))

    def _points(self, bone: _Bone, chosen: Array) -> Array:
        return np.stack([np.broadcast_to(c, chosen.shape)[chosen] for c in bone.at], axis=1)

    def _marrow(self, bone: _Bone, name: str, label: int, rng: np.random.Generator, shake: Array) -> None:
        size, number, share = (self.grade(f"{name}_bml", k) for k in ("size", "number", "percent_bml"))
        if not size:
            return
        region = (bone.label == label) & (bone.distance < bone.cartilage)
        marrow = region & (bone.distance < -1)
        z, y, x = bone.at
        joint = (y < _plateau(z, x) + 8) if bone.name == "tibia" else bone.cartilage > 0.5
        near = self._points(bone, marrow & (bone.distance > -7) & joint)
        around = (bone.label == label) & (bone.distance < 4)  # beyond the surface too, where softening would otherwise eat into the lesion
        points, counted = self._points(bone, around), marrow[around]
        chosen = [near[rng.integers(len(near))]]
        for _ in range(max(number, 1) - 1):  # the next lesion lies away from those before it
            candidates = near[rng.integers(len(near), size=24)]
            chosen.append(candidates[np.min([((candidates - c) ** 2).sum(1) for c in chosen], axis=0).argmax()])
        away = np.sort([np.sqrt(((points - c - s) ** 2).sum(1)) for c, s in zip(chosen, shake, strict=False)], axis=0)
        if len(away) > 1:  # healthy marrow between them keeps lesions countable
            away[0][away[1] - away[0] < (1.0 if size == 3 else 2.2)] = np.inf
        ranked = np.sort(away[0][counted & np.isfinite(away[0])])
        count = min(BML_SHARE_OF_REGION[size] * region.sum(), 0.96 * len(ranked))
        cysts = count * (1 - BML_SHARE_OF_LESION[share])
        for kind, reach, soft in (("bml", count, 4.0), ("cyst", cysts, 3.0)):
            if reach >= 1 and not (kind == "bml" and share == 0):
                field = self._map(kind)[bone.block]
                field[around] = _inside(away[0] - ranked[int(reach) - 1], soft)

    def _cartilage(self, bone: _Bone, name: str, label: int, rng: np.random.Generator, shake: Array) -> None:
        size, full = (self.grade(f"{name}_cartilage", k) for k in ("size", "full_thickness_pct"))
        if not size:
            return
        near = (bone.label == label) & (np.abs(bone.distance - 1) < 4)
        shell = near & (bone.cartilage > 1) & (np.abs(bone.distance) < 1.5)
        surface = self._points(bone, shell)
        centre = surface[((surface - surface.mean(0) - rng.normal(0, 5, 3)) ** 2).sum(1).argmin()] + shake
        area = CARTILAGE_SHARE[size]
        denuded = min(CARTILAGE_SHARE[full], 0.9 * area)
        away = np.sqrt(((surface - centre) ** 2).sum(1))
        reach = np.sqrt(((self._points(bone, near) - centre) ** 2).sum(1))
        loss = 0.55 * _inside(reach - np.quantile(away, area), 1.5)
        if denuded:
            loss = np.maximum(loss, _inside(reach - np.quantile(away, denuded), 1.5))
        self._map(f"loss_{bone.name}")[bone.block][near] = loss

    def weights(self, frame: _Frame) -> list[Array]:
        """Linear interpolation from this grid to a frame's, one matrix per axis; nothing outside this grid."""
        result = []
        for own, other in zip(self.frame.rough, frame.rough, strict=True):
            where = (other - own[0])[:, None] / self.STEP - np.arange(len(own))
            result.append(np.clip(1 - np.abs(where), 0, None).astype(np.float32))
        return result

    def _findings(self) -> list[_Blob]:
        """Collections, cysts and loose bodies outside the bones, painted last."""
        g, blobs = self.grade, []
        places = {
            "pes_anserine_bursitis": [((33.0, 30.0, 2.0), (4.5, 13.0, 9.0))],
            "iliotibial_band_signal": [((-39.5, -26.0, -3.0), (2.6, 10.0, 8.0))],
            "popliteal_cyst": [((20.0, -14.0, 45.0), (8.0, 15.0, 7.0)), ((17.0, -24.0, 39.0), (3.0, 5.0, 5.0))],
            "infrapatellar_bursitis": [((0.0, 21.0, -31.0), (11.0, 7.0, 2.8))],
            "prepatellar_bursitis": [((0.0, -28.0, -54.0), (15.0, 14.0, 2.8))],
            "ganglion_cyst": [((9.0, -8.0, 33.0), (4.5, 5.0, 4.0)), ((5.0, -14.0, 35.0), (4.0, 4.5, 4.0)), ((10.0, -15.0, 38.0), (3.5, 3.5, 3.5))],
        }
        shake = _generator(4, self.anatomy.places).normal(0, 1.2, (8, 3)).tolist()
        for (name, parts), by in zip(places.items(), shake, strict=False):
            if g(name):
                moved = [((c[0] + by[0], c[1] + by[1], c[2] + 0.4 * by[2]), r) for c, r in parts]
                blobs += [_Blob(c, r, FLUID) for c, r in moved]
        if g("loose_bodies"):
            for centre, radius in (((10.0, -56.0, -32.0), 3.6), ((-8.0, -60.0, -31.0), 2.8), ((-20.0, -22.0, 40.0), 3.4)):
                for grow, value in ((2.4, FLUID), (0.0, CARTILAGE), (-1.2, CORTEX)):
                    blobs.append(_Blob(centre, (radius + grow,) * 3, value))
        for side, (centre_z, radius_z, centre_x, radius_x, _) in MENISCI.items():
            if g(f"{side}_meniscus_cyst"):
                angle = (*SEGMENT_ANGLE, 0.0)[g(f"{side}_meniscus_cyst", "tear_location")]  # without a tear it sits at the body
                out = math.copysign(radius_z + 3.5, centre_z) * math.cos(angle), (radius_x + 3.5) * math.sin(angle)
                blobs.append(_Blob((centre_z + out[0], -4.0, centre_x + out[1]), (4.5, 4.5, 5.5), FLUID))
        for name, ends in (("acl", (ACL_FEMUR, ACL_TIBIA)), ("pcl", ((7.0, -18.0, 0.0), (1.0, 8.0, 21.0)))):
            if g(name, "insertion_bml_cyst"):
                upper, lower = ends
                blobs.append(_Blob((lower[0], lower[1] + 6, lower[2]), (6.0, 5.0, 7.0), OEDEMA, 4.0))
                blobs.append(_Blob((lower[0], lower[1] + 5, lower[2]), (2.4, 2.4, 2.4), FLUID))
                blobs.append(_Blob((upper[0] * 1.6, upper[1] - 5, upper[2]), (4.0, 5.0, 5.0), OEDEMA, 4.0))
        return blobs


# --- painting ---------------------------------------------------------------------------------------------------------------------

# Muscles and vessels as long ellipsoids
SOFT_TISSUE = (
    _Blob((17.0, -70.0, 46.0), (13.0, 62.0, 11.0), MUSCLE),  # semimembranosus
    _Blob((33.0, -60.0, 40.0), (8.0, 80.0, 11.0), MUSCLE),  # sartorius and gracilis
    _Blob((-24.0, -66.0, 43.0), (15.0, 58.0, 12.0), MUSCLE),  # biceps femoris
    _Blob((19.0, 34.0, 43.0), (16.0, 66.0, 13.0), MUSCLE),  # medial gastrocnemius
    _Blob((-16.0, 36.0, 43.0), (15.0, 66.0, 13.0), MUSCLE),  # lateral gastrocnemius
    _Blob((-4.0, 52.0, 23.0), (26.0, 42.0, 13.0), MUSCLE),  # popliteus and soleus
    _Blob((-27.0, 66.0, -8.0), (10.0, 44.0, 15.0), MUSCLE),  # tibialis anterior
    _Blob((27.0, -86.0, -16.0), (16.0, 36.0, 24.0), MUSCLE),  # vastus medialis
    _Blob((-29.0, -90.0, -10.0), (15.0, 36.0, 26.0), MUSCLE),  # vastus lateralis
    _Blob((1.0, -24.0, 41.0), (10.0, 44.0, 13.0), FAT),  # popliteal fossa
    _Blob((-1.0, -12.0, 37.0), (3.0, 80.0, 3.0), 260.0),  # popliteal artery
    _Blob((4.0, -16.0, 43.5), (3.8, 80.0, 3.4), 205.0),  # popliteal vein
)


class _Cavity(NamedTuple):
    """The joint cavity in front of the femur as a sheet over (z, y): its middle in x, half its depth, and the least half depth of its label."""

    middle: Array
    half: Array
    core: Array


def _cavity(frame: _Frame, plan: _Plan, weights: Sequence[Array]) -> _Cavity:
    z, y = frame.z[:, :, 0], frame.rough[1]
    grade = plan.grade("effusion_synovitis")
    behind = weights[0] @ plan.front @ weights[1].T
    top = -60 - 2.5 * grade  # the bursa reaches higher as it fills
    bursa = np.clip(1 - ((y - (top - 44) / 2) / (top + 44) * 2) ** 2, 0, 1)
    wide = 17 + (4 + 2 * grade) * bursa
    depth = RETROPATELLAR_MM[grade] + (BURSA_MM[grade] - RETROPATELLAR_MM[grade]) * bursa * np.sqrt(np.clip(1 - (z / wide) ** 2, 0, 1))
    middle = behind - 0.2 - 2.5 * _slope(y, -45, -52) - depth / 2
    # a label one voxel thick stays in one piece only if each step of the sheet from row to row is bridged
    down, across = np.abs(np.diff(middle, axis=0)), np.abs(np.diff(middle, axis=1))
    step = np.full_like(middle, frame.spacing[2])
    for view, rise in ((step[1:], down), (step[:-1], down), (step[:, 1:], across), (step[:, :-1], across)):
        np.maximum(view, rise, out=view)
    domain = (np.abs(z) < wide) & (y > top) & (y < -9)
    return _Cavity(middle, np.where(domain, depth / 2, -9), np.where(domain, 0.55 * step, -9))


class _Canvas:
    """A slab of slices while it is painted."""

    def __init__(self, frame: _Frame, plan: _Plan, weights: Sequence[Array], cavity: _Cavity) -> None:
        self.frame, self.plan, self.weights, self.cavity, self.grade = frame, plan, weights, cavity, plan.grade
        shape = (len(frame.rough[0]), len(frame.rough[1]), len(frame.rough[2]))
        self.image, self.mask = np.empty(shape, np.float32), np.zeros(shape, np.uint8)
        self.bones = _bones(frame, plan.anatomy, plan.spurs)
        self.thin: list[tuple[str, Index, Array, Array]] = []  # label, block, where it lies for certain, where it lies unless bone does
        self._limb()
        self._front()
        self._joint()
        self._bone()
        for blob in plan.findings:
            self.blob(blob)
        self._labels()

    def put(self, index: Any, alpha: Array, value: Array | float) -> None:
        part = self.image[index]
        step = value - part
        step *= alpha
        part += step

    def blob(self, blob: _Blob, within: Array | None = None, sheath: float = 0.0) -> None:
        spans = [(c - r, c + r) for c, r in zip(blob.centre, blob.radii, strict=True)]
        index, z, y, x = self.frame.cut(*spans, margin=4.0)
        if not (len(z) and y.size):
            return
        distance, edge = _ellipsoid(z, y, x, blob.centre, blob.radii), max(blob.edge, self.frame.edge)
        inside = _inside(distance, edge)
        if within is not None:
            inside *= within[index]
        if sheath:
            self.put(index, _inside(distance - sheath, edge), FAT - 12)
        self.put(index, inside, blob.value)

    def planned(self, name: str, index: Index) -> Array | None:
        """A map of the plan on a block of this slab; None where it is empty."""
        if name not in self.plan.maps:
            return None
        wz, wy, wx = (w[s] for w, s in zip(self.weights, index, strict=True))
        coarse = np.tensordot(wz, self.plan.maps[name], 1)
        return wy @ (coarse @ wx.T) if coarse.any() else None  # type: ignore[no-any-return]

    def _limb(self) -> None:
        f, edge = self.frame, self.frame.edge
        y = f.rough[1]
        front = (-51 + 8.5 * np.tanh((y - 12) / 24))[:, None]  # the shin lies behind the kneecap
        back, half = (61 - 3 * np.exp(-((y / 25) ** 2)))[:, None], (50 - 3 * np.tanh(y / 30))[:, None]
        u = ((f.x - (front + back) / 2) / ((back - front) / 2)) ** 2
        depth = (1 - np.sqrt(np.sqrt(u**2 + (f.z / half[None]) ** 4 + 1.2 * u * (f.z / half[None]) ** 2))) * 52  # mm below the skin
        deep = _inside(self.plan.anatomy.fat - depth, edge)
        self.image[:] = AIR
        self.image += (SKIN - AIR) * _inside(-depth, edge)
        self.image += (FAT - SKIN) * _inside(1.3 - depth, edge)
        self.image += (2.4 * (FASCIA - FAT)) * (deep - deep * deep)  # the fascia, where the deep part begins
        for tissue in SOFT_TISSUE:  # each in its sheath of fat
            self.blob(tissue, within=deep, sheath=1.6)

    def _front(self) -> None:
        """Quadriceps tendon, Hoffa's fat pad, and the fluid of the joint cavity."""
        f, edge = self.frame, self.frame.edge
        index, z, y, x = f.cut((-16, 16), (-85, -48), (-56, -34))
        tendon = np.maximum(np.abs(x + 47.0 - 0.12 * (y + 52)) - 3.2, np.maximum(np.abs(z) - 15, y + 49))
        self.put(index, _inside(tendon, edge), TENDON + 25 * _slope(np.abs(np.sin(2.2 * (x - 0.12 * y))), 0.6, 1))
        index, z, y, x = f.cut((-28, 28), (-24, 26), (-50, -10))
        self.pad_index = index
        self.pad = np.maximum(_ellipsoid(z, y, x, (0.0, 0.0, -29.0), (22.0, 24.0, 24.0)), x - self.cavity.middle[index[0], index[1], None])
        tendon_back = TENDON_TOP[1] + (y - TENDON_TOP[0]) * ((TENDON_END[1] - TENDON_TOP[1]) / (TENDON_END[0] - TENDON_TOP[0])) + 2.6
        self.pad = np.maximum(self.pad, tendon_back - x)
        septa = _slope(np.abs(np.sin(0.4 * x + 1.7 * np.sin(0.23 * y + 0.2 * z)) + 0.6 * np.sin(0.5 * y - 0.2 * x + 0.3 * z)), 0.25, 0.0)
        self.put(index, _inside(self.pad, edge), FAT + 4 + 45 * septa)
        reach = HOFFA_SIGNAL_MM[self.grade("hoffa_synovitis")]
        if reach:
            ragged = 2.5 * np.sin(0.5 * x + 0.3 * z) * np.sin(0.45 * y)
            signal = _ellipsoid(z, y, x, HOFFA_CORE, (reach, 0.8 * reach, reach)) + ragged
            self.put(index, _inside(self.pad, edge) * _inside(signal, 5.0) * 0.85, 360.0)
        index, z, y, x = f.cut((-30, 30), (-72, -6), (-56, -10))
        cavity = [part[index[0], index[1], None] for part in self.cavity[:2]]
        self.put(index, _inside(np.abs(x - cavity[0]) - cavity[1], edge), FLUID)

    def _joint(self) -> None:
        """What lies between the bones: films of fluid, menisci, ligaments, and the patellar tendon in front."""
        f, edge, g = self.frame, self.frame.edge, self.grade
        effusion = g("effusion_synovitis")
        for bone in self.bones:
            film = np.where(bone.cartilage > 0.4, bone.distance - bone.cartilage - 0.35, 9)
            if bone.name == "femur":  # the recess behind the condyles fills as the capsule distends
                _, y, x = bone.at
                film = film - 0.9 * effusion * _slope(x, 18, 26) * _slope(y, -6, -14)
            self.put(bone.block, _inside(film, edge), FILM + 60 * effusion)
        for side in MENISCI:
            self._meniscus(side)
        index, z, y, x = f.cut((-15, 15), (-20, 38), (-54, -24))
        spindle = np.exp(-(((y + 6) / 9) ** 2)) * g("patellar_tendon")
        tendon = _patellar_tendon(z, y, x, 2.6 + 1.6 * spindle)
        self.put(index, _inside(tendon, edge), TENDON + 260 * spindle * _inside(tendon + 1.6, 2.0) * _slope(np.abs(z), 11, 6))
        label = _patellar_tendon(z, y, x, max(2.6, 0.6 * f.spacing[2])) < 0
        self.thin.append(("patellar_tendon", index, label, label & False))
        index, z, y, x = f.cut((-8, 14), (-26, 18), (-8, 34))
        distance, t = _pcl(z, y, x)
        self._ligament("pcl", index, distance, t, np.full_like(distance, LIGAMENT - 12))
        index, z, y, x = f.cut((-16, 8), (-38, 6), (-14, 22))
        distance, t = _rod(z, y, x, ACL_FEMUR, ACL_TIBIA)
        fibres = LIGAMENT + 60 * _slope(np.sin(1.5 * x + y + 0.8 * z), 0.2, 1)
        self._ligament("acl", index, distance - ACL_RADIUS, t, np.full_like(fibres, CORTEX + 8) if g("acl", "repair") else fibres)

    def _ligament(self, name: str, index: Index, distance: Array, t: Array, value: Array) -> None:
        self.put(index, 0.5 * _inside(distance - 1.2, self.frame.edge), 260.0)  # its synovial sheath
        if self.grade(name, "complete_tear"):  # frayed stumps, and fluid where the middle was
            value = value + _inside(np.abs(t - 0.5) - 0.2, 0.1) * (FLUID - 60 - value) + 60 * _inside(np.abs(t - 0.5) - 0.36, 0.1)
        self.put(index, _inside(distance, self.frame.edge), value)
        self.thin.append((name, index, distance < 0, distance > 99))

    def _meniscus(self, side: str) -> None:
        f, edge = self.frame, self.frame.edge
        centre_z, radius_z, centre_x, radius_x, _ = MENISCI[side]
        index, z, y, x = f.cut((centre_z - radius_z - 4, centre_z + radius_z + 4), (-14, 4), (centre_x - radius_x - 4, centre_x + radius_x + 2))
        if not (len(z) and y.size):
            return
        footprint, height, wedge, angle, rho = _meniscus(z, y, x, side, self.grade)
        layer, covered = 1.1 * f.spacing[1], (footprint < 0) & (height >= 0)
        self.thin.append((f"{side}_meniscus", index, covered & (height < layer), covered & (height < wedge)))
        value = np.full(height.shape, MENISCUS, np.float32)
        lines: list[Array] = []  # distance to a tear, in mm
        radius = 0.5 * (radius_z + radius_x)
        for segment, middle, middle_x in zip(SEGMENTS, SEGMENT_ANGLE, SEGMENT_X, strict=True):
            kind = self.grade(f"{side}_meniscus_{segment}_morphology")
            here = _inside(np.abs(x - middle_x) - 7.5, 3.0)
            if kind == 1:
                value += here * 230 * np.exp(-(((height / wedge - 0.5) / 0.22) ** 2) - ((rho - 0.78) / 0.13) ** 2)
            off = 60 * (1 - here)
            if kind in (2, 5):
                lines.append(np.maximum(np.abs(angle - middle) * radius * rho, off))
            if kind in (3, 5):
                lines.append(np.maximum(np.abs(height - 0.45 * wedge), off))
            if kind in (4, 5):
                lines.append(np.maximum(np.abs(rho - 0.76) * radius, off))
            if kind in REMNANT:
                left = REMNANT[kind]
                wedge = wedge * (1 - here * (1 - left))
                footprint = np.maximum(footprint, (MENISCUS_INNER + 0.45 * (1 - left) - rho) * radius - 60 * (1 - here))
                value += here * (1 - left) * 140 * _slope(np.sin(1.1 * x + 1.3 * z) * np.sin(1.5 * y), -0.2, 0.8)
        if self.grade(f"{side}_meniscus_root_tear"):
            lines.append(np.where(angle > 0, np.abs(angle - (MENISCI[side][4] - 0.35)) * radius * rho - 0.6, 60))
        for line in lines:
            value += _inside(line - 0.7, edge) * (FLUID - 120 - value)
        body = np.maximum(np.maximum(footprint, -height), height - wedge)
        self.put(index, _inside(body, edge), value)

    def _bone(self) -> None:
        edge, g = self.frame.edge, self.grade
        for bone in self.bones:
            loss = self.planned(f"loss_{bone.name}", bone.block)
            thickness = bone.cartilage if loss is None else bone.cartilage * (1 - loss)
            layer = np.where(thickness > 0.25, bone.distance - thickness, 9)
            self.put(bone.block, _inside(layer, edge), CARTILAGE - 45 * _slope(bone.distance, 1.2, 0.2))
        fibula = self.frame.cut((-40, -22), (8, 70), (12, 34))
        if len(fibula[1]):
            self._marrow(fibula[0], fibula[1:], _fibula(*fibula[1:]))
        for bone in self.bones:
            for centre, radii in self.plan.spurs[bone.name]:  # a spur wears a cap of cartilage, under which its cortex shows
                cap = (radii[0] + 1.2, radii[1] + 1.2, radii[2] + 1.2)
                self.blob(_Blob(centre, cap, CARTILAGE - 40))
            self._marrow(bone.block, bone.at, bone.distance)
            for name, value in (("bml", OEDEMA), ("cyst", FLUID - 60)):
                share = self.planned(name, bone.block)
                if share is not None:
                    if name == "cyst":
                        share = _inside(0.5 - share, max(0.3, edge / 3))  # the map's slope is a third per mm
                    self.put(bone.block, share * _inside(bone.distance + 0.8, edge), value)
        if g("acl", "repair"):
            for start, end in ((ACL_TIBIA, (6.0, 34.0, -22.0)), (ACL_FEMUR, (-22.0, -48.0, 4.0))):
                spans = [(min(p, q) - 6, max(p, q) + 6) for p, q in zip(start, end, strict=True)]
                index, z, y, x = self.frame.cut(*spans)
                distance, _ = _rod(z, y, x, start, end)
                self.put(index, _inside(distance - 5, edge), CORTEX)
                self.put(index, _inside(distance - 3, edge), 190.0)

    def _marrow(self, index: Any, at: tuple[Array, Array, Array], distance: Array) -> None:
        _, y, x = at
        shell = 0.8 + 1.8 * _slope(y, -45, -70) + 1.6 * _slope(y, 25, 50)  # the shaft's cortex is thick, the subchondral plate thin
        red = 40 * _slope(y, -42, -60) + 18 * _slope(y, 24, 45)
        scar = sum(np.exp(-(((y - p - 2.2 * np.sin(0.13 * x)) / 0.9) ** 2)) for p in GROWTH_PLATES_Y)
        self.put(index, _inside(distance, self.frame.edge), CORTEX)
        self.put(index, _inside(distance + shell, self.frame.edge), MARROW + red - 16 * scar)

    def _labels(self) -> None:
        """Thin structures are labelled last and at least a voxel thick, so that each stays in one piece at any resolution."""
        f, mask = self.frame, self.mask
        for bone in self.bones:
            inside = bone.distance < bone.cartilage
            if bone.name == "patella":
                inside &= bone.at[2] < self.cavity.middle[bone.block[0], bone.block[1], None]
            np.copyto(mask[bone.block], bone.label, where=inside)
        index, _, _, x = f.cut((-30, 30), (-72, -6), (-60, -8))
        middle, half, core = (p[index[0], index[1], None] for p in self.cavity)
        part, away = mask[index], np.abs(x - middle)
        part[(away < core) | ((away < half) & (part == 0))] = LABELS["joint_cavity"]
        for name, index, certain, free in self.thin:
            part = mask[index]
            kneecap = (part == LABELS["patella_medial"]) | (part == LABELS["patella_lateral"])
            part[(certain & ~kneecap) | (free & (part == 0))] = LABELS[name]
        part = mask[self.pad_index]
        part[(self.pad < 0) & (part == 0)] = LABELS["hoffa_fat_pad"]


def _drop_scraps(mask: Array) -> None:
    """Leave each label its largest 26-connected piece: where structures cross, slivers are cut off. Works on runs along x."""
    _, rows, columns = mask.shape
    flat = mask.reshape(-1, columns)
    first = np.ones(flat.shape, bool)
    np.not_equal(flat[:, 1:], flat[:, :-1], out=first[:, 1:])
    begin = np.flatnonzero(first)
    value, length = flat.ravel()[begin], np.diff(begin, append=flat.size)
    begin, value, length = (v[value > 0] for v in (begin, value, length))
    row, stride = begin // columns, columns + 2  # two columns of nothing keep the ends of rows apart
    start = row * stride + begin % columns
    end = start + length - 1
    links = []
    for dz, dy in ((0, 1), (1, -1), (1, 0), (1, 1)):
        here = np.flatnonzero((row % rows + dy >= 0) & (row % rows + dy < rows))
        shift = (dz * rows + dy) * stride
        low = np.searchsorted(end, start[here] + shift - 1)
        count = np.searchsorted(start, end[here] + shift + 1, "right") - low
        there = np.arange(count.sum()) + np.repeat(low - np.cumsum(count) + count, count)
        links.append(np.stack([np.repeat(here, count), there]))
    a, b = np.concatenate(links, axis=1)
    root = np.arange(len(start))
    a, b = a[value[a] == value[b]], b[value[a] == value[b]]
    while len(a):  # hang the later of two linked roots under the earlier, then shorten all paths
        np.minimum.at(root, np.maximum(root[a], root[b]), np.minimum(root[a], root[b]))
        while (root != root[root]).any():
            root = root[root]
        open_ = root[a] != root[b]
        a, b = a[open_], b[open_]
    size = np.bincount(root, weights=length, minlength=len(root))
    largest = {int(v): int(np.where(value == v, size, 0).argmax()) for v in np.unique(value)}
    kept = np.isin(root, list(largest.values()))
    for i in np.flatnonzero(~kept):
        flat.reshape(-1)[begin[i] : begin[i] + length[i]] = 0


def draw_knee(shape: tuple[int, int, int], side: Literal["left", "right"], grades: Grades, seed: int, *, anatomy_seed: int) -> Knee:
    """A knee with these grades. `anatomy_seed` is the person, `seed` the visit: noise, and a little of where lesions lie.

    Slices run from the patient's right to the left on both sides, rows from superior to inferior, columns from anterior to posterior.
    """
    anatomy = _anatomy(anatomy_seed)
    plan = _Plan(_Reader(grades), anatomy, seed)
    spacing = [fov / n for fov, n in zip(FIELD_OF_VIEW_MM, shape, strict=True)]
    centres = [(np.arange(n) + 0.5) * s for n, s in zip(shape, spacing, strict=True)]
    whole = _Frame(centres, anatomy, spacing)
    weights = plan.weights(whole)
    cavity = _cavity(whole, plan, weights)
    grain = _generator(5, anatomy.texture).standard_normal((29, 36, 36), np.float32)
    grain_weights = [_upsampling(n, m) for n, m in zip(shape, grain.shape, strict=True)]
    rng = _generator(6, seed)
    image, mask = np.empty(shape, np.uint16), np.empty(shape, np.uint8)
    u, v, w = (np.linspace(-1, 1, n, dtype=np.float32) for n in shape)
    bend = rng.uniform(-0.06, 0.06, 3)
    coil = 1 + (float(bend[1]) * v - 0.08 * v**2)[:, None] + (float(bend[2]) * w + 0.1 * w**2)  # brighter near the coil's surface
    thickness = min(shape[0], max(1, SLAB_VOXELS // (shape[1] * shape[2])))
    # drawn once and read from a random place for every slab: a fresh draw for each voxel would take longer than the knee
    noise = NOISE * rng.standard_normal(4 * thickness * shape[1] * shape[2], np.float32)
    for start in range(0, shape[0], thickness):
        part = slice(start, min(start + thickness, shape[0]))
        frame = _Frame([centres[0][part], *centres[1:]], anatomy, spacing)
        canvas = _Canvas(frame, plan, [weights[0][part], *weights[1:]], _Cavity(*(m[part] for m in cavity)))
        signal = canvas.image
        texture = grain_weights[1] @ (np.tensordot(grain_weights[0][part], grain, 1) @ grain_weights[2].T)
        signal *= (coil + (float(bend[0]) * u[part])[:, None, None]) * (1 + 0.07 * texture)
        for channel in (0, 1):  # the magnitude of two noisy channels, of which one holds the signal
            offset = int(rng.integers(len(noise) - signal.size))
            part_noise = noise[offset : offset + signal.size].reshape(signal.shape)
            if channel:
                signal += part_noise * part_noise
            else:
                signal += part_noise
                signal *= signal
        image[part] = np.clip(np.sqrt(signal, out=signal), 0, 4095).astype(np.uint16)
        mask[part] = canvas.mask
    _drop_scraps(mask)
    if side == "left":
        image, mask = image[::-1].copy(), mask[::-1].copy()
    return Knee(image, mask)


def _upsampling(fine: int, coarse: int) -> Array:
    where = (np.arange(fine, dtype=np.float32)[:, None] + 0.5) * (coarse - 1) / fine - np.arange(coarse, dtype=np.float32)
    return np.clip(1 - np.abs(where), 0, None)  # type: ignore[no-any-return]


# --- grades -----------------------------------------------------------------------------------------------------------------------

TEARS = (2, 3, 4, 5)


def _compartment(question: str) -> str:
    if "patella" in question or "trochlea" in question:
        return "front"
    return "medial" if "medial" in question else "lateral" if "lateral" in question else "whole"


def sample_grades(rng: np.random.Generator, severity: float) -> dict[str, dict[str, int]]:
    """Plausible grades of all questions at a first visit; `severity` runs from 0, a healthy knee, to 1, a worn-out one."""
    level = {place: float(np.clip(severity * rng.uniform(0.5, 1.5), 0, 1)) for place in ("front", "medial", "lateral", "whole")}

    def ordinal(at: float) -> int:
        odds = (0.12 + 0.75 * at) ** np.arange(4)
        return int(rng.choice(4, p=odds / odds.sum()))

    grades: dict[str, dict[str, int]] = {}
    for name, question in QUESTIONS.items():
        at = level[_compartment(name)]
        given = {a.id: ordinal(at) if len(a.space.meanings) == 4 else int(rng.random() < 0.03 + 0.22 * at) for a in question.attributes}
        if "morphology" in given:
            kinds = rng.choice([1, 2, 3, 4, 5, 6, 8], p=[0.24, 0.14, 0.2, 0.12, 0.12, 0.12, 0.06])
            given["morphology"] = int(kinds) if rng.random() < 0.1 + 0.45 * at else 0
        grades[name] = _consistent(name, given, grades, rng)
    return grades


def _consistent(name: str, given: dict[str, int], others: Grades, rng: np.random.Generator) -> dict[str, int]:
    """The grades of one question after each has been made to agree with the rest."""
    if "number" in given:
        present = given["size"] > 0
        given["number"] = max(1, given["number"]) if present else 0
        # mostly oedema; only a small lesion may be all cyst
        given["percent_bml"] = (3 if rng.random() < 0.6 else int(rng.integers(given["size"] - 1, 3))) if present else 0
    if "full_thickness_pct" in given:
        given["full_thickness_pct"] = min(given["full_thickness_pct"], given["size"])
    if "tear_location" in given:
        torn = [i for i, s in enumerate(SEGMENTS) if others[name.replace("cyst", f"{s}_morphology")]["morphology"] in TEARS]
        given["tear_location"] = int(rng.choice(torn)) if given["presence"] and torn else 3
    return given


def progress_grades(rng: np.random.Generator, grades: Grades) -> dict[str, dict[str, int]]:
    """The same knee a visit later: grades stay or worsen; only fluid and synovitis may also improve."""
    later: dict[str, dict[str, int]] = {}
    for name, given in grades.items():
        new = dict(given)
        if name in ("hoffa_synovitis", "effusion_synovitis"):
            new["grade"] = int(np.clip(given["grade"] + rng.choice([-1, 0, 1], p=[0.15, 0.65, 0.2]), 0, 3))
        elif "morphology" in given:
            if rng.random() < 0.12:
                new["morphology"] = {0: 1, 1: int(rng.choice(TEARS)), 6: 7, 7: 8, 8: 8}.get(given["morphology"], 6)
        elif "number" in given:
            if rng.random() < 0.15:
                new["size"], new["number"] = min(3, given["size"] + 1), min(3, given["number"] + int(rng.integers(2)))
                if not given["size"]:
                    new = _consistent(name, new, grades, rng)
        else:
            for attribute, grade in given.items():
                if attribute != "tear_location":
                    top = len(QUESTIONS[name].attribute(attribute).space.meanings) - 1
                    new[attribute] = min(top, grade + int(rng.random() < (0.12 if top > 1 else 0.03)))
            if "tear_location" not in given or new["presence"] > given["presence"]:
                new = _consistent(name, new, later, rng)
        later[name] = new
    return later
