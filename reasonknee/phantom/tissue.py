"""The signal of each tissue, and what is drawn as ellipsoids of even signal: muscles, vessels, and
findings outside the bones."""

from __future__ import annotations

import math
from typing import NamedTuple

from reasonknee.phantom.anatomy import ACL_FEMUR, ACL_TIBIA, MENISCI, SEGMENT_ANGLE
from reasonknee.phantom.geometry import Anatomy, Point, generator
from reasonknee.phantom.grades import NO_TEAR, GradeOf

# 12-bit. Water excitation leaves fat and marrow dark.
AIR, SKIN, FAT, FASCIA, MUSCLE, MARROW, CORTEX = 2.0, 170.0, 96.0, 60.0, 175.0, 88.0, 22.0
TENDON, LIGAMENT, MENISCUS, CARTILAGE, FLUID, FILM, OEDEMA = 34.0, 62.0, 30.0, 305.0, 710.0, 420.0, 290.0


class Blob(NamedTuple):
    """An ellipsoid of even signal."""

    centre: Point
    radii: Point
    value: float
    edge: float = 0.8


# Muscles and vessels
SOFT_TISSUE = (
    Blob((17.0, -70.0, 46.0), (13.0, 62.0, 11.0), MUSCLE),  # semimembranosus
    Blob((33.0, -60.0, 40.0), (8.0, 80.0, 11.0), MUSCLE),  # sartorius and gracilis
    Blob((-24.0, -66.0, 43.0), (15.0, 58.0, 12.0), MUSCLE),  # biceps femoris
    Blob((19.0, 34.0, 43.0), (16.0, 66.0, 13.0), MUSCLE),  # medial gastrocnemius
    Blob((-16.0, 36.0, 43.0), (15.0, 66.0, 13.0), MUSCLE),  # lateral gastrocnemius
    Blob((-4.0, 52.0, 23.0), (26.0, 42.0, 13.0), MUSCLE),  # popliteus and soleus
    Blob((-27.0, 66.0, -8.0), (10.0, 44.0, 15.0), MUSCLE),  # tibialis anterior
    Blob((27.0, -86.0, -16.0), (16.0, 36.0, 24.0), MUSCLE),  # vastus medialis
    Blob((-29.0, -90.0, -10.0), (15.0, 36.0, 26.0), MUSCLE),  # vastus lateralis
    Blob((1.0, -24.0, 41.0), (10.0, 44.0, 13.0), FAT),  # popliteal fossa
    Blob((-1.0, -12.0, 37.0), (3.0, 80.0, 3.0), 260.0),  # popliteal artery
    Blob((4.0, -16.0, 43.5), (3.8, 80.0, 3.4), 205.0),  # popliteal vein
)
# Collections of fluid around the joint: centre and radii of each part
COLLECTIONS: dict[str, tuple[tuple[Point, Point], ...]] = {
    "pes_anserine_bursitis": (((33.0, 30.0, 2.0), (4.5, 13.0, 9.0)),),
    "iliotibial_band_signal": (((-39.5, -26.0, -3.0), (2.6, 10.0, 8.0)),),
    "popliteal_cyst": (((20.0, -14.0, 45.0), (8.0, 15.0, 7.0)), ((17.0, -24.0, 39.0), (3.0, 5.0, 5.0))),
    "infrapatellar_bursitis": (((0.0, 21.0, -31.0), (11.0, 7.0, 2.8)),),
    "prepatellar_bursitis": (((0.0, -28.0, -54.0), (15.0, 14.0, 2.8)),),
    "ganglion_cyst": (
        ((9.0, -8.0, 33.0), (4.5, 5.0, 4.0)),
        ((5.0, -14.0, 35.0), (4.0, 4.5, 4.0)),
        ((10.0, -15.0, 38.0), (3.5, 3.5, 3.5)),
    ),
}
LOOSE_BODIES = (
    ((10.0, -56.0, -32.0), 3.6),
    ((-8.0, -60.0, -31.0), 2.8),
    ((-20.0, -22.0, 40.0), 3.4),
)  # centre, radius
# What a grade means: the size of a collection, as a share of the above, and the radius of a meniscal cyst
COLLECTION_SIZE = ((0.0, 0.45), (0.7, 1.25))
CYST_MM = ((0.0, 2.0), (2.4, 5.5))
INSERTIONS = {"acl": (ACL_FEMUR, ACL_TIBIA), "pcl": ((7.0, -18.0, 0.0), (1.0, 8.0, 21.0))}


def findings(grade: GradeOf, a: Anatomy) -> list[Blob]:
    """Collections, cysts and loose bodies outside the bones, painted last."""
    blobs = []
    shake = generator(4, a.places).normal(0, 1.8, (len(COLLECTIONS), 3)).tolist()
    for (name, parts), by in zip(COLLECTIONS.items(), shake, strict=True):
        size = grade.extent(name, COLLECTION_SIZE)
        if size > 0.3:  # a little fluid is normal
            blobs += [
                Blob(
                    (z + by[0], y + by[1], x + 0.4 * by[2]),
                    (size * radii[0], size * radii[1], size * radii[2]),
                    FLUID - 120 * grade.chance(name, 1),
                )
                for (z, y, x), radii in parts
            ]
    if grade("loose_bodies"):
        for centre, radius in LOOSE_BODIES:
            for grow, value in ((2.4, FLUID), (0.0, CARTILAGE), (-1.2, CORTEX)):
                blobs.append(Blob(centre, (radius + grow,) * 3, value))
    for side in MENISCI:
        blobs += _meniscal_cyst(side, grade)
    for name, (upper, lower) in INSERTIONS.items():
        if grade(name, "insertion_bml_cyst"):
            size = 0.7 + 0.5 * grade.chance(name, 0)
            blobs.append(
                Blob((lower[0], lower[1] + 6, lower[2]), (6 * size, 5 * size, 7 * size), OEDEMA, 4.0)
            )
            blobs.append(Blob((lower[0], lower[1] + 5, lower[2]), (2.4, 2.4, 2.4), FLUID))
            blobs.append(
                Blob((upper[0] * 1.6, upper[1] - 5, upper[2]), (4 * size, 5 * size, 5 * size), OEDEMA, 4.0)
            )
    return blobs


def _meniscal_cyst(side: str, grade: GradeOf) -> list[Blob]:
    """Beside the tear that it comes from, with a neck that leads there; without a tear, anywhere along the
    rim."""
    name, (centre_z, radius_z, centre_x, radius_x, _) = f"{side}_meniscus_cyst", MENISCI[side]
    size = grade.extent(name, CYST_MM)
    if size < 1:
        return []
    place, turn = grade(name, "tear_location"), 2.4 * grade.chance(name, 1) - 1.2
    angle = turn if place == NO_TEAR else SEGMENT_ANGLE[place] + 0.15 * turn

    def beside(away: float) -> Point:
        z = centre_z + math.copysign(radius_z + away, centre_z) * math.cos(angle)
        return (z, -4.0, centre_x + (radius_x + away) * math.sin(angle))

    bright = FLUID - 100 * grade.chance(name, 2)
    cyst = Blob(beside(size - 0.5), (size, size, 1.2 * size), bright)
    neck = Blob(beside(-3.0), (2.6, 1.0, 2.6), FLUID)
    return [cyst, neck] if grade(name) and place != NO_TEAR else [cyst]
