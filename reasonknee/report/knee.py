"""A knee as a diagram: every region that questions ask about has a place, and its colour is a number. A scheme, not an anatomy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from reasonknee.regions import REGIONS
from reasonknee.report.svg import GREY, chart, text, words

WIDTH, HEIGHT = 560, 610
# x, y, width, height, label. Seen from the front, lateral on the left, medial on the right; front, middle and back lie above each other.
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
            places[f"tibia_{side}_{part}"] = (x + (46 if side == "lateral" else 0), 424 + 44 * i, 142, 40, part)
        places[f"tibia_{side}"] = (x + (0 if side == "lateral" else 146), 424, 42, 128, "whole")
        whole = f"{side}_meniscus"
        for i, part in enumerate(("anterior", "body", "posterior")):
            places[f"{whole}_{part}"] = (x + 64 * i, 318, 60, 38, ("ant. horn", "body", "post. horn")[i])
        for i, (region, label) in enumerate(((whole, "whole"), (f"{whole}_{side}", "edge"), (f"{whole}_root", "root"))):
            places[region] = (x + 64 * i, 360, 60, 38, label)
    return places


PLACES = _places()
_BONES = (
    '<path d="M40 164 h188 q10 60 -4 138 h-176 q-20 -70 -8 -138 z M332 164 h188 q12 68 -8 138 h-176 q-14 -78 -4 -138 z" fill="#efe9dd"/>'
    '<path d="M34 418 h492 v138 q-60 44 -246 44 q-186 0 -246 -44 z" fill="#efe9dd"/><ellipse cx="280" cy="77" rx="88" ry="70" fill="#efe9dd"/>'
)


def diagram(values: Mapping[str, float | None], colour: Callable[[float | None], tuple[str, str]], label: str, sign: bool = False) -> str:
    """Each region with its number; regions that are not in `values` were not asked about and stay blank."""
    body = _BONES + "".join(
        words(x, y, name, size=12, fill=GREY)
        for x, y, name in ((120, 159, "lateral femur"), (440, 159, "medial femur"), (120, 313, "lateral meniscus"), (440, 313, "medial meniscus"))
    )
    body += words(280, 576, "tibia", size=12, fill=GREY)
    for region, (x, y, width, height, name) in PLACES.items():
        if region not in values:
            body += f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="none" stroke="#d1d5db" stroke-dasharray="3 3"/>'
            body += words(x + width / 2, y + height / 2 + 4, name, size=10, fill=GREY)
            continue
        value = values[region]
        fill, ink = colour(value)
        shown = "–" if value is None else f"{value:+.2f}" if sign else f"{value:.2f}"
        middle = x + width / 2
        body += f'<g><title>{text(REGIONS[region].title)}: {shown}</title><rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" '
        body += f'fill="{fill}" stroke="#9ca3af"/>'
        body += words(middle, y + height / 2 - 2, name, size=10, fill=ink)
        body += words(middle, y + height / 2 + 12, shown, size=12 if width > 50 else 10, fill=ink)
        body += "</g>"
    return chart(WIDTH, HEIGHT, body, label)
