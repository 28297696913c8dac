"""The tissues of a synthetic knee, as an open segmentation network names them: bones, cartilages, menisci."""

from __future__ import annotations

from typing import Literal

import numpy as np

from reasonknee.phantom.anatomy import bones_in, meniscus_shape
from reasonknee.phantom.geometry import FIELD_OF_VIEW_MM, Array, Frame, anatomy_of
from reasonknee.phantom.grades import GradeOf, Grades
from reasonknee.phantom.plan import Plan

_BONES = {"femur": (7, 2), "tibia": (8, 0), "patella": (9, 1)}  # bone, cartilage; the tibia has two


def draw_tissues(
    shape: tuple[int, int, int],
    side: Literal["left", "right"],
    grades: Grades,
    seed: int,
    *,
    anatomy_seed: int,
) -> Array:
    """1 patellar, 2 femoral, 3 and 4 medial and lateral tibial cartilage, 5 and 6 menisci, 7 femur, 8 tibia,
    9 patella."""
    anatomy = anatomy_of(anatomy_seed)
    plan = Plan(GradeOf(grades, anatomy.places), anatomy, seed)
    spacing = [fov / n for fov, n in zip(FIELD_OF_VIEW_MM, shape, strict=True)]
    frame = Frame([(np.arange(n) + 0.5) * s for n, s in zip(shape, spacing, strict=True)], anatomy, spacing)
    mask = np.zeros(shape, np.uint8)
    for number, name in ((5, "medial"), (6, "lateral")):
        index, z, y, x = frame.cut((-45, 45), (-17, 4), (-34, 36))
        footprint, height, wedge, _, _ = meniscus_shape(z, y, x, name, plan.grade, anatomy)
        mask[index][(footprint < 0) & (height >= 0) & (height < wedge)] = number
    for bone in bones_in(frame, anatomy, plan.spurs):
        part, (hard, soft) = mask[bone.block], _BONES[bone.name]
        layer = (bone.distance >= 0) & (bone.distance < bone.cartilage)
        if soft:
            part[layer] = soft
        else:
            part[layer & (bone.at[0] >= 0)] = 3
            part[layer & (bone.at[0] < 0)] = 4
        part[bone.distance < 0] = hard
    return mask[::-1].copy() if side == "left" else mask
