"""A knee as a diagram: every region that questions ask about has a place, and its colour is a number.

A scheme, not an anatomy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from reasonknee.questions import REGIONS
from reasonknee.report import links
from reasonknee.report.svg import strength

WIDTH, HEIGHT = 560, 610
# x, y, width, height, label. Seen from the front, lateral on the left, medial on the right; front, middle and
# back lie above each other.
_Place = tuple[int, int, int, int, str]


def _places() -> dict[str, _Place]:
    places: dict[str, _Place] = {
        "patella_superior": (225, 12, 110, 34, "superior"),
        "patella_lateral": (205, 49, 73, 56, "lateral"),
        "patella_medial": (282, 49, 73, 56, "medial"),
        "patella_inferior": (225, 108, 110, 34, "inferior"),
        "joint_cavity": (30, 30, 130, 46, "joint cavity"),
        "hoffa_fat_pad": (400, 30, 130, 46, "Hoffa fat pad"),
        "patellar_tendon": (400, 92, 130, 46, "patellar tendon"),
        "acl": (238, 206, 38, 96, "ACL"),
        "pcl": (284, 206, 38, 96, "PCL"),
        "tibia_subspinous": (238, 452, 84, 92, "subspinous"),
        "periarticular": (30, 92, 130, 46, "periarticular"),
    }
    for side, x in (("lateral", 40), ("medial", 332)):
        for i, part in enumerate(("trochlea", "central", "posterior")):
            places[f"femur_{side}_{part}"] = (x, 168 + 44 * i, 188, 40, part)
        for i, part in enumerate(("anterior", "central", "posterior")):
            places[f"tibia_{side}_{part}"] = (
                x + (46 if side == "lateral" else 0),
                424 + 44 * i,
                142,
                40,
                part,
            )
        places[f"tibia_{side}"] = (x + (0 if side == "lateral" else 146), 424, 42, 128, "whole")
        whole = f"{side}_meniscus"
        for i, part in enumerate(("anterior", "body", "posterior")):
            places[f"{whole}_{part}"] = (x + 64 * i, 318, 60, 38, ("ant. horn", "body", "post. horn")[i])
        for i, (region, label) in enumerate(
            ((whole, "whole"), (f"{whole}_{side}", "edge"), (f"{whole}_root", "root"))
        ):
            places[region] = (x + 64 * i, 360, 60, 38, label)
    return places


PLACES = _places()
BONES = (
    "M40 164 h188 q10 60 -4 138 h-176 q-20 -70 -8 -138 z",
    "M332 164 h188 q12 68 -8 138 h-176 q-14 -78 -4 -138 z",
    "M34 418 h492 v138 q-60 44 -246 44 q-186 0 -246 -44 z",
    "M192 77 a88 70 0 1 0 176 0 a88 70 0 1 0 -176 0 z",
)
CAPTIONS = (
    (120, 159, "lateral femur"),
    (440, 159, "medial femur"),
    (120, 313, "lateral meniscus"),
    (440, 313, "medial meniscus"),
    (280, 576, "tibia"),
)


class Drawn(NamedTuple):
    """A region in the diagram; `value` is empty where it was not asked about."""

    x: int
    y: int
    width: int
    height: int
    label: str
    title: str
    value: str
    strength: int
    below: bool
    link: str


def diagram(values: Mapping[str, float | None], most: float, sign: bool, **filters: str) -> list[Drawn]:
    """Every region with its number, how strongly it is coloured, and the rows that it counts."""
    drawn = []
    for region, (x, y, width, height, label) in PLACES.items():
        title = REGIONS[region].title
        if region not in values:
            drawn.append(Drawn(x, y, width, height, label, title, "", 0, False, ""))
            continue
        value = values[region]
        shown = "–" if value is None else f"{value:+.2f}" if sign and round(value, 2) else f"{value:.2f}"
        below = sign and value is not None and value < 0
        link = links.rows(region=region, **filters)
        strong = strength(abs(value) if value is not None else None, most)
        drawn.append(Drawn(x, y, width, height, label, title, shown, strong, below, link))
    return drawn
