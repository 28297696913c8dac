"""Where in the knee: the regions that questions ask about, and the mask labels they are made of.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Compartment = Literal["medial", "lateral"]
Portion = Literal["superior half", "inferior half", "anterior third", "middle third", "posterior third"]

SECTIONS = ("patella", "femur", "tibia", "meniscus", "soft_tissue")


@dataclass(frozen=True)
class Region:
    """A place in the knee. Its voxels are the union of mask `labels`, of which a `portion` is taken along
    an anatomical axis."""

    id: str
    title: str
    structure: str
    compartment: Compartment | None = None
    labels: tuple[str, ...] = ()
    portion: Portion | None = None

    @property
    def section(self) -> str:
        """The part of the knee whose crops are stored together in `cropped`: one of SECTIONS."""
        return self.structure if self.structure in SECTIONS else SECTIONS[-1]


# The 15 articular subregions of MOAKS, in its order: id, title, structure, compartment, OAI suffix,
# upstream's name.
_Subregion = tuple[str, str, str, Compartment | None, str, str]
SUBREGIONS: tuple[_Subregion, ...] = (
    ("patella_medial", "medial patella", "patella", "medial", "PM", "patella medial"),
    ("patella_lateral", "lateral patella", "patella", "lateral", "PL", "patella lateral"),
    ("femur_medial_trochlea", "medial femoral trochlea", "femur", "medial", "FMA", "femur medial trochlea"),
    ("femur_medial_central", "central medial femur", "femur", "medial", "FMC", "femur medial central"),
    ("femur_medial_posterior", "posterior medial femur", "femur", "medial", "FMP", "femur medial posterior"),
    (
        "femur_lateral_trochlea",
        "lateral femoral trochlea",
        "femur",
        "lateral",
        "FLA",
        "femur lateral trochlea",
    ),
    ("femur_lateral_central", "central lateral femur", "femur", "lateral", "FLC", "femur lateral central"),
    (
        "femur_lateral_posterior",
        "posterior lateral femur",
        "femur",
        "lateral",
        "FLP",
        "femur lateral posterior",
    ),
    ("tibia_medial_anterior", "anterior medial tibia", "tibia", "medial", "TMA", "tibia medial anterior"),
    ("tibia_medial_central", "central medial tibia", "tibia", "medial", "TMC", "tibia medial central"),
    ("tibia_medial_posterior", "posterior medial tibia", "tibia", "medial", "TMP", "tibia medial posterior"),
    ("tibia_lateral_anterior", "anterior lateral tibia", "tibia", "lateral", "TLA", "tibia lateral anterior"),
    ("tibia_lateral_central", "central lateral tibia", "tibia", "lateral", "TLC", "tibia lateral central"),
    (
        "tibia_lateral_posterior",
        "posterior lateral tibia",
        "tibia",
        "lateral",
        "TLP",
        "tibia lateral posterior",
    ),
    ("tibia_subspinous", "subspinous tibia", "tibia", None, "SS", "tibia subspinous"),
)
_PATELLA = ("patella_medial", "patella_lateral")
_TIBIA_MEDIAL = ("tibia_medial_anterior", "tibia_medial_central", "tibia_medial_posterior")
_TIBIA_LATERAL = ("tibia_lateral_anterior", "tibia_lateral_central", "tibia_lateral_posterior")


def _meniscus_regions() -> Iterable[Region]:
    sides: tuple[Compartment, ...] = ("medial", "lateral")
    for side in sides:
        whole = f"{side}_meniscus"
        yield Region(whole, f"{side} meniscus", "meniscus", side, (whole,))
        yield Region(
            f"{whole}_anterior",
            f"anterior horn of the {side} meniscus",
            "meniscus",
            side,
            (whole,),
            "anterior third",
        )
        yield Region(
            f"{whole}_body", f"body of the {side} meniscus", "meniscus", side, (whole,), "middle third"
        )
        yield Region(
            f"{whole}_posterior",
            f"posterior horn of the {side} meniscus",
            "meniscus",
            side,
            (whole,),
            "posterior third",
        )
        yield Region(
            f"{whole}_{side}",
            f"{side} edge of the {side} meniscus",
            "meniscus",
            side,
            (whole,),
            "middle third",
        )
        yield Region(
            f"{whole}_root",
            f"posterior root of the {side} meniscus",
            "meniscus",
            side,
            (whole,),
            "posterior third",
        )


REGIONS: dict[str, Region] = {
    r.id: r
    for r in (
        *(Region(id_, title, structure, side, (id_,)) for id_, title, structure, side, _, _ in SUBREGIONS),
        Region(
            "patella_superior", "superior pole of the patella", "patella", None, _PATELLA, "superior half"
        ),
        Region(
            "patella_inferior", "inferior pole of the patella", "patella", None, _PATELLA, "inferior half"
        ),
        Region("tibia_medial", "medial tibia", "tibia", "medial", _TIBIA_MEDIAL),
        Region("tibia_lateral", "lateral tibia", "tibia", "lateral", _TIBIA_LATERAL),
        *_meniscus_regions(),
        Region("hoffa_fat_pad", "Hoffa fat pad", "synovitis", None, ("hoffa_fat_pad",)),
        Region("joint_cavity", "joint cavity", "synovitis", None, ("joint_cavity",)),
        Region("acl", "anterior cruciate ligament", "acl", None, ("acl",)),
        Region("pcl", "posterior cruciate ligament", "pcl", None, ("pcl",)),
        Region("patellar_tendon", "patellar tendon", "patellar_tendon", None, ("patellar_tendon",)),
        Region(
            "periarticular", "soft tissue around the joint", "periarticular"
        ),  # no mask label: its box is always null
    )
}
"""Region id -> region, in the order of the table."""

# Mask labels of the default labeling, 1..n; 0 is background. Other labelings are mapped onto these names.
LABELS: dict[str, int] = {
    name: i for i, name in enumerate(dict.fromkeys(n for r in REGIONS.values() for n in r.labels), start=1)
}
