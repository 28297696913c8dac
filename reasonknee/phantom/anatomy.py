"""The bones with their cartilage and subregions, the ligaments, the patellar tendon and the menisci, as
signed distances in mm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from reasonknee.phantom.geometry import Anatomy, Array, Frame, Index, Point, Range, ellipsoid, join, ramp
from reasonknee.phantom.grades import GradeOf
from reasonknee.questions.regions import LABELS

# Bones
CONDYLE_Z, CONDYLE_HALF_WIDTH = 21.5, 14.5
PATELLA_Y, PATELLA_X, PATELLA_HALF = -33.0, -41.5, (22.0, 20.5, 9.6)
TIBIA_HALF = (37.0, 25.0)  # z, x at the plateau
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
TENDON_TOP, TENDON_END, TENDON_HALF = (
    (-16.0, -46.5),
    (33.0, -31.5),
    2.6,
)  # y, x of the patellar tendon's ends; half its depth
MENISCI = {
    "medial": (21.0, 15.0, 2.0, 22.5, 2.3),
    "lateral": (-20.5, 15.0, 1.0, 19.5, 2.6),
}  # centre z, radius z, centre x, radius x, half arc
MENISCUS_INNER = 0.44  # inner edge as a share of the outer radius
SEGMENT_ANGLE = (
    -1.25,
    0.0,
    1.25,
)  # of the anterior horn, the body and the posterior horn along the C, in rad
SEGMENT_X = (-14.0, 1.0, 15.0)
EXTRUSION_MM = ((0.0, 1.6), (2.0, 2.9), (3.1, 4.8), (5.1, 7.0))  # by grade
HYPERTROPHY = ((0.0, 0.2), (0.55, 1.0))  # how much of its height a large meniscus has more


def _femur(z: Array, y: Array, x: Array, a: Anatomy) -> Array:
    behind = np.hypot(x - 13, y + 26.5) - 20.5  # a condyle's profile: a round back, a flatter front
    below = (np.hypot((x + 4) / 27, (y + 28) / 20) - 1) * 22.5
    condyle = join(behind, below, 8)

    def inset(
        centre: float, half_width: float
    ) -> Array:  # flat in the middle, rounded towards the side walls
        square = ((z - centre) / half_width) ** 2
        return (18 * square * square + 1.2) * square  # type: ignore[no-any-return]

    condyles = np.minimum(
        condyle + inset(CONDYLE_Z, CONDYLE_HALF_WIDTH + 0.5),
        condyle + (inset(-CONDYLE_Z, CONDYLE_HALF_WIDTH) + 0.4),
    )
    front = (np.hypot((x + 4) / 25.5, (y + 30) / 21) - 1) * 23
    groove = (
        a.groove * np.exp(-((z / 9) ** 2)) + 9 * np.square(z / 22) ** 3 + 0.04 * z
    )  # the lateral lip stands higher
    flare = np.clip((y + 78) / 38, 0, 1)
    flare = flare * flare * (3 - 2 * flare)
    q = np.sqrt(((x + 7 - 3 * flare) / (14.5 + 8 * flare)) ** 2 + (z / (18 + 18 * flare)) ** 2)
    shaft = np.maximum((q - 1) * (14.5 + 8 * flare), y + 30)
    roof = (
        0.63 * (x + 19) + 0.776 * (y + 13)
    ) - 0.05 * z**2  # the notch lies behind and below its arched roof
    middle = np.maximum(join(front + groove, shaft, 5), roof)
    return join(condyles, middle, 6)


def _dish(z: Array, x: Array) -> Array:
    """y of the bony tibial plateau without its spines: sloping back, hollow medially, domed laterally."""
    bowl = np.clip(1 - ((np.abs(z) - 21) / 15) ** 2, 0, None) * np.clip(1 - (x / 24) ** 2, 0, None)
    return 0.1 * x + np.where(z > 0, 1.2, -0.5).astype(np.float32) * bowl  # type: ignore[no-any-return]


def plateau(z: Array, x: Array) -> Array:
    spines = 9 * np.exp(-(((z - 4) / 3) ** 2)) + 7.5 * np.exp(-(((z + 4.5) / 3) ** 2))
    return _dish(z, x) - spines * np.exp(-(((x - 3) / 9) ** 2))


def _tibia(z: Array, y: Array, x: Array) -> Array:
    taper = np.cos(np.pi / 2 * np.clip((y - 4) / 54, 0, 1)) ** 2
    half_z, half_x = 14 + (TIBIA_HALF[0] - 14) * taper, 14.5 + (TIBIA_HALF[1] - 14.5) * taper
    q = ((x + 6 - 7 * taper) / half_x) ** 2, (z / half_z) ** 2
    side = (np.sqrt(np.sqrt(q[0] ** 2 + q[1] ** 2 + 0.2 * q[0] * q[1])) - 1) * (
        0.5 * (half_x + half_z)
    )  # between an ellipse and a rectangle
    body = -join(y - plateau(z, x), -side, 2.5)
    return join(body, ellipsoid(z, y, x, (-2.0, 31.0, -21.0), (10.0, 15.0, 9.5)), 6)


def _patella(z: Array, y: Array, x: Array, a: Anatomy) -> Array:
    z, dy = (z - a.patella[0]) / a.patella[2], (y - PATELLA_Y - a.patella[1]) / a.patella[2]
    apex = np.clip(dy / 20, 0, 1)
    centre = PATELLA_X - 0.2 * np.abs(z) - 2.5 * apex**2  # a ridge behind, and the apex tipped to the front
    u, v, w = (
        np.abs(z) / (PATELLA_HALF[0] - 6 * apex),
        np.abs(dy) / PATELLA_HALF[1],
        np.abs(x - centre) / (PATELLA_HALF[2] - 1.5 * apex),
    )
    k0 = np.cbrt(u**3 + v**3 + w**3) + 1e-3
    slope = np.sqrt((u**2 / 22) ** 2 + (v**2 / 20.5) ** 2 + (w**2 / 9.6) ** 2) / k0**2
    return (k0 - 1) / (slope + 1e-2)  # type: ignore[no-any-return]


def fibula(z: Array, y: Array, x: Array) -> Array:
    shaft = np.maximum(np.hypot(z + 32, x - 21) - 5.5, 22 - y)
    return join(ellipsoid(z, y, x, (-31.0, 22.0, 22.0), (8.0, 11.0, 8.5)), shaft, 4)


def _femur_cartilage(z: Array, y: Array, x: Array) -> Array:
    """Thickness in mm of the healthy cartilage over the nearest femur; none on the side walls and in the
    notch."""
    notch = np.maximum(ramp(np.abs(z), 8, 11), ramp(x, -14, -18))
    return (
        (2.8 + 0.5 * ramp(x, -10, -25))
        * ramp(y, -47 + 0.16 * x, -42 + 0.16 * x)
        * ramp(np.abs(z), 35, 31)
        * notch
    )  # type: ignore[no-any-return]


def _tibia_cartilage(z: Array, y: Array, x: Array) -> Array:
    rim = np.square(((x - 1) / 24) ** 2) + np.square((z / 36.5) ** 2)
    return 2.9 * ramp(np.abs(z), 8, 11) * ramp(rim, 1, 0.7) * ramp(y - plateau(z, x), 2.5, 1)


def _patella_cartilage(z: Array, y: Array, x: Array, a: Anatomy) -> Array:
    z, dy = (z - a.patella[0]) / a.patella[2], (y - PATELLA_Y - a.patella[1]) / a.patella[2]
    return (
        3.4
        * ramp(x - PATELLA_X + 0.2 * np.abs(z), 2, 5)
        * ramp(dy, 15, 10)
        * ramp(dy, -19, -15)
        * ramp(np.abs(z), 21, 17)
    )  # type: ignore[no-any-return]


def patellar_tendon_x(y: Array, a: Anatomy) -> Array:
    """The middle of the tendon."""
    (y0, x0), (y1, x1) = TENDON_TOP, TENDON_END
    y0 += a.patella[1]
    return x0 + (y - y0) * ((x1 - x0) / (y1 - y0))


def patellar_tendon(z: Array, y: Array, x: Array, half: float | Array, a: Anatomy) -> Array:
    y0, y1 = TENDON_TOP[0] + a.patella[1], TENDON_END[0]
    return np.maximum(  # type: ignore[no-any-return]
        np.maximum(np.abs(x - patellar_tendon_x(y, a)) - half, np.abs(z - a.patella[0] / 2) - 13),
        np.abs(y - (y0 + y1) / 2) - (y1 - y0) / 2,
    )  # type: ignore[no-any-return]


def pcl(z: Array, y: Array, x: Array) -> tuple[Array, Array]:
    """Distance to the ligament, and how far along it from the femur to the tibia."""
    dy, dx = y - PCL_CENTRE[0], x - PCL_CENTRE[1]
    t = (np.arctan2(dx, -dy) + 0.15) / 1.85
    ring = np.hypot(dx, dy) - PCL_ARC_RADIUS
    beyond = np.clip(np.abs(t - 0.5) - 0.5, 0, None) * (1.85 * PCL_ARC_RADIUS)
    return np.sqrt(ring**2 + (z - 6.5 + 6 * t) ** 2 + beyond**2) - PCL_RADIUS, t


def meniscus_shape(
    z: Array, y: Array, x: Array, side: str, grade: GradeOf, a: Anatomy
) -> tuple[Array, Array, Array, Array, Array]:
    """Footprint distance, height over the tibial cartilage, height of the wedge there, angle along the C,
    share of the radius."""
    centre_z, radius_z, centre_x, radius_x, half_arc = MENISCI[side]
    wide, high = a.menisci[:2] if side == "medial" else a.menisci[2:]
    radius_z, radius_x = radius_z * wide, radius_x * wide
    u, v = (z - centre_z) * (1 if centre_z > 0 else -1) / radius_z, (x - centre_x) / radius_x
    angle, rho = np.arctan2(v, u), np.hypot(u, v)
    sideways = (
        grade.extent(f"{side}_meniscus_{side}_extrusion", EXTRUSION_MM)
        / (radius_z * a.stretch[0])
        * np.clip(np.cos(angle), 0, None) ** 1.5
    )
    forward = (
        grade.extent(f"{side}_meniscus_anterior_extrusion", EXTRUSION_MM)
        / (radius_x * a.stretch[2])
        * np.clip(-np.sin(angle), 0, None) ** 1.5
    )
    rho = rho - sideways - forward
    large = grade.extent(f"{side}_meniscus_hypertrophy", HYPERTROPHY)
    inner = MENISCUS_INNER - 0.15 * large
    wedge = (1.0 + 5.5 * ramp(rho, inner, 1.0)) * (high + large)
    radius = 0.5 * (radius_z + radius_x)
    footprint = np.maximum(
        np.maximum(inner - rho, rho - 1) * radius, (np.abs(angle) - half_arc) * radius * rho
    )
    return footprint, _dish(z, x) - 2.5 - y, wedge, angle, rho


class Bone(NamedTuple):
    name: str
    block: Index
    at: tuple[Array, Array, Array]  # z, y, x
    distance: Array
    cartilage: Array  # healthy thickness
    label: Array  # subregion that a voxel belongs to if it is bone or cartilage; 0 away from the joint


def _medial_or_lateral(z: Array, name: str) -> Array:
    return np.where(z >= 0, np.uint8(LABELS[name.format("medial")]), np.uint8(LABELS[name.format("lateral")]))  # type: ignore[no-any-return]


def bone_distance(bone: str, z: Array, y: Array, x: Array, a: Anatomy) -> Array:
    return (
        _femur(z, y, x, a)
        if bone == "femur"
        else _tibia(z, y, x)
        if bone == "tibia"
        else _patella(z, y, x, a)
    )


def bones_in(frame: Frame, a: Anatomy, spurs: Mapping[str, Sequence[tuple[Point, Point]]]) -> list[Bone]:
    """Femur, tibia and patella with their spurs, in that order."""
    bones = []
    for name, block in BONE_BLOCKS.items():
        index, z, y, x = frame.cut(*block)
        if name == "femur":
            cartilage = _femur_cartilage(z, y, x)
            third = (x >= TROCHLEA_X + 2 * a.borders[0]).astype(np.uint8) + (
                (x >= POSTERIOR_X + 2 * a.borders[1]) & (np.abs(z) >= 6)
            )  # labels run trochlea, central, posterior
            label = (_medial_or_lateral(z, "femur_{}_trochlea") + third) * (
                y > EPIPHYSIS_Y + 4 * a.borders[2]
            )
        elif name == "tibia":
            cartilage = _tibia_cartilage(z, y, x)
            front, back = (at + 1.5 * a.borders[3] for at in TIBIA_THIRDS_X)
            third = (x >= front).astype(np.uint8) + (x >= back)  # labels run anterior, central, posterior
            label = np.where(
                np.abs(z) < SPINE_Z,
                np.uint8(LABELS["tibia_subspinous"]),
                _medial_or_lateral(z, "tibia_{}_anterior") + third,
            )
            label = label * (y < TIBIA_DEPTH + 3 * a.borders[4] + 0.1 * x)
        else:
            cartilage = _patella_cartilage(z, y, x, a)
            label = _medial_or_lateral(z - a.patella[0], "patella_{}") * np.ones(y.shape, np.uint8)
        distance = bone_distance(name, z, y, x, a)
        for centre, radii in spurs[name]:
            distance = join(distance, ellipsoid(z, y, x, centre, radii), 1.5)
        bones.append(Bone(name, index, (z, y, x), distance, cartilage, label))
    return bones
