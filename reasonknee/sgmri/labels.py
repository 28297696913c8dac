"""The findings of fastMRI+, as its files write them, and how a sentence names them.

A label that is not listed is kept as it stands, in lower case: the public files may grow.
"""

from __future__ import annotations

from typing import NamedTuple


class Label(NamedTuple):
    """`words` follow "a", "an" or nothing in a sentence; `many` is the plural."""

    words: str
    many: str
    article: str = "a "


_ = Label
KNEE = {
    "Meniscus Tear": _("meniscal tear", "meniscal tears"),
    "Cartilage - Partial Thickness loss/defect": _(
        "partial-thickness cartilage defect", "partial-thickness cartilage defects"
    ),
    "Cartilage - Full Thickness loss/defect": _(
        "full-thickness cartilage defect", "full-thickness cartilage defects"
    ),
    "Joint Effusion": _("joint effusion", "joint effusions"),
    "Bone-Fracture/Contusion/dislocation": _(
        "fracture, contusion or dislocation of bone", "fractures, contusions or dislocations of bone"
    ),
    "Bone- Subchondral edema": _("area of subchondral bone edema", "areas of subchondral bone edema", "an "),
    "Periarticular cysts": _("periarticular cyst", "periarticular cysts"),
    "Ligament - ACL Low Grade sprain": _("low-grade ACL sprain", "low-grade ACL sprains"),
    "Ligament - ACL High Grade Sprain": _("high-grade ACL sprain", "high-grade ACL sprains"),
    "Ligament - MCL Low-Mod Grade Sprain": _(
        "low- to moderate-grade MCL sprain", "low- to moderate-grade MCL sprains"
    ),
    "Ligament - MCL High Grade sprain": _("high-grade MCL sprain", "high-grade MCL sprains"),
    "Ligament - PCL Low-Mod grade sprain": _(
        "low- to moderate-grade PCL sprain", "low- to moderate-grade PCL sprains"
    ),
    "Ligament - PCL High Grade": _("high-grade PCL sprain", "high-grade PCL sprains"),
    "LCL Complex - Low-Mod Grade Sprain": _(
        "low- to moderate-grade sprain of the LCL complex",
        "low- to moderate-grade sprains of the LCL complex",
    ),
    "LCL Complex- High Grade Sprain": _(
        "high-grade sprain of the LCL complex", "high-grade sprains of the LCL complex"
    ),
    "Patellar Retinaculum - High grade sprain": _(
        "high-grade sprain of the patellar retinaculum", "high-grade sprains of the patellar retinaculum"
    ),
    "Displaced Meniscal Tissue": _(
        "piece of displaced meniscal tissue", "pieces of displaced meniscal tissue"
    ),
    "Bone - Lesion": _("bone lesion", "bone lesions"),
    "Soft Tissue Lesion": _("soft-tissue lesion", "soft-tissue lesions"),
    "Muscle Strain": _("muscle strain", "muscle strains"),
    "Joint Bodies": _("loose body in the joint", "loose bodies in the joint"),
}
BRAIN = {
    "Nonspecific white matter lesion": _(
        "nonspecific white matter lesion", "nonspecific white matter lesions"
    ),
    "Posttreatment change": _("area of post-treatment change", "areas of post-treatment change", "an "),
    "Craniotomy": _("craniotomy", "craniotomies"),
    "Craniectomy": _("craniectomy", "craniectomies"),
    "Craniectomy with Cranioplasty": _("craniectomy with cranioplasty", "craniectomies with cranioplasty"),
    "Nonspecific lesion": _("nonspecific lesion", "nonspecific lesions"),
    "Possible artifact": _("possible artifact", "possible artifacts"),
    "Mass": _("mass", "masses"),
    "Extra-axial mass": _("extra-axial mass", "extra-axial masses", "an "),
    "Edema": _("area of edema", "areas of edema", "an "),
    "Dural thickening": _("area of dural thickening", "areas of dural thickening", "an "),
    "Enlarged ventricles": _("enlarged ventricles", "enlarged ventricles", ""),
    "Resection cavity": _("resection cavity", "resection cavities"),
    "Encephalomalacia": _("area of encephalomalacia", "areas of encephalomalacia", "an "),
    "Lacunar infarct": _("lacunar infarct", "lacunar infarcts"),
    "Normal variant": _("normal variant", "normal variants"),
    "Paranasal sinus opacification": _(
        "area of paranasal sinus opacification", "areas of paranasal sinus opacification", "an "
    ),
    "Likely cysts": _("likely cyst", "likely cysts"),
    "Intraventricular substance": _("intraventricular substance", "intraventricular substances", "an "),
    "Absent septum pellucidum": _("absent septum pellucidum", "absent septa pellucida", "an "),
    "Pineal cyst": _("pineal cyst", "pineal cysts"),
}
LABELS = {"knee": KNEE, "brain": BRAIN}
NORMAL = frozenset({"Normal for age"})  # a study-level row that says that nothing was found
NOT_DISEASE = frozenset({"artifact", "Motion artifact", "Possible artifact", "Normal variant"}) | NORMAL


def named(anatomy: str, label: str) -> Label:
    """How sentences name a label."""
    plain = label.removeprefix("Global label: ").lower()
    return LABELS[anatomy].get(label, Label(plain, plain, "an " if plain[:1] in "aeiou" else "a "))


def listed(names: list[str]) -> str:
    """Names as a sentence lists them: a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
