"""What is looked for: categories, lesions with their look on DESS, and the grade spaces of MOAKS.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scale = Literal["ordinal", "nominal", "binary"]


@dataclass(frozen=True)
class GradeSpace:
    """The legal grades 0..n-1 of an attribute; `meanings[g]` says what grade g means."""

    id: str
    scale: Scale
    meanings: tuple[str, ...]

    @property
    def grades(self) -> range:
        return range(len(self.meanings))


@dataclass(frozen=True)
class Category:
    """A kind of finding: the id that filters take, and its title."""

    id: str
    title: str


@dataclass(frozen=True)
class Lesion:
    """What is looked for: how it is called, how it looks on DESS, what its grades rest on."""

    id: str
    title: str
    category: Category
    appearance: str
    rule: str
    search: str  # where in the region the eye goes first
    mimics: str  # what looks alike and does not count, as a choice: a, b or c
    # millimetres around the region's box, along slices, rows and columns, within which all that a grade rests
    # on is seen: a cyst lies beside its meniscus, the tunnels of a graft lead far from the ligament
    evidence_mm: tuple[float, float, float]
    finding: str = ""  # what is seen when it is there, where the grades do not say it better
    place: str = ""  # where it lies, where the region's name would mislead
    at: str = "in"  # the preposition before the place

    @property
    def indefinite(self) -> str:
        """The title as a sentence names it: "an osteophyte", but "Hoffa-synovitis"."""
        if self.title.endswith(("synovitis", "signal", "hypertrophy", "bursitis", "extrusion", "morphology")):
            return self.title
        return ("an " if self.title[0] in "aeiou" else "a ") + self.title


# --- grade spaces -------------------------------------------------------------------------------------------

SUBREGION_SHARE = (
    "none",
    "less than 33 % of the subregion",
    "33 to 66 % of the subregion",
    "more than 66 % of the subregion",
)
BML_SIZE = GradeSpace("bml_size", "ordinal", SUBREGION_SHARE)
BML_NUMBER = GradeSpace(
    "bml_number", "ordinal", ("no lesion", "one lesion", "two lesions", "three or more lesions")
)
BML_SHARE = GradeSpace(
    "bml_share",
    "ordinal",
    ("none", "less than 33 % of the lesion", "33 to 66 % of the lesion", "more than 66 % of the lesion"),
)
CARTILAGE_SIZE = GradeSpace(
    "cartilage_size",
    "ordinal",
    ("none", "less than 10 % of the surface", "10 to 75 % of the surface", "more than 75 % of the surface"),
)
CARTILAGE_DEPTH = GradeSpace("cartilage_full_thickness", "ordinal", CARTILAGE_SIZE.meanings)
OSTEOPHYTE = GradeSpace("osteophyte_size", "ordinal", ("none", "small", "medium", "large"))
SYNOVITIS = GradeSpace("hoffa_synovitis", "ordinal", ("normal", "mild", "moderate", "severe"))
EFFUSION = GradeSpace(
    "effusion_synovitis",
    "ordinal",
    (
        "physiologic amount of fluid",
        "small (fluid continuous in the retropatellar space)",
        "medium (slight convexity of the suprapatellar bursa)",
        "large (evident distension of the capsule)",
    ),
)
EXTRUSION = GradeSpace(
    "extrusion", "ordinal", ("less than 2 mm", "2 to 2.9 mm", "3 to 4.9 mm", "5 mm or more")
)
MORPHOLOGY = GradeSpace(
    "meniscal_morphology",
    "nominal",
    (
        "normal",
        "signal abnormality that reaches no surface",
        "radial tear",
        "horizontal tear",
        "vertical tear",
        "complex tear",
        "partial maceration",
        "progressive partial maceration (follow-up only)",
        "complete maceration",
    ),
)
# The same classes as a reader would tell them of a segment.
MORPHOLOGY_SEEN = (
    "is a normal wedge",
    "shows bright signal that reaches no surface",
    "shows a radial tear",
    "shows a horizontal tear",
    "shows a vertical tear",
    "shows a complex tear",
    "has lost part of its substance",
    "has lost more of its substance since the last visit",
    "has hardly any substance left",
)
MACERATED = range(6, 9)  # grades of lost substance, which other things look like than signal and tears
MACERATION_MIMICS = "a displaced fragment or an oblique cut through the wedge"
EFFUSION_SEEN = (
    "fluid does not exceed a physiologic amount",
    "fluid forms a continuous layer behind the patella, without distension",
    "fluid makes the suprapatellar bursa slightly convex",
    "fluid clearly distends the capsule",
)
TEAR_LOCATION = GradeSpace("tear_location", "nominal", ("anterior horn", "body", "posterior horn", "no tear"))
PRESENCE = GradeSpace("presence", "binary", ("absent", "present"))

# --- categories ---------------------------------------------------------------------------------------------

BML = Category("bml", "BML")
CARTILAGE = Category("cartilage", "Cartilage")
OSTEOPHYTES = Category("osteophyte", "Osteophyte")
MENISCUS = Category("meniscus", "Meniscus")
LIGAMENTS = Category("ligaments_tendons", "Ligaments & Tendons")
FLUID = Category("synovitis_effusion", "Synovitis & Effusion")
PERIARTICULAR = Category("periarticular", "Periarticular")
CATEGORIES = (BML, CARTILAGE, OSTEOPHYTES, MENISCUS, LIGAMENTS, FLUID, PERIARTICULAR)
"""The categories of findings, in the order of the questions."""

# --- lesions ------------------------------------------------------------------------------------------------

BML_LESION = Lesion(
    "bml",
    "bone marrow lesion",
    BML,
    "an ill-defined patch of marrow, mostly next to the joint surface or the attachment of a ligament, that "
    "is brighter than the dark, fat-suppressed marrow around it; a cyst within it is rounded, sharply "
    "outlined and as bright as fluid",
    "cysts count towards the size; when several lesions lie in the subregion their sizes are added",
    "the marrow",
    "vessels, islands of red marrow or partial volume at the edge of the bone",
    (3, 3, 3),
)
CARTILAGE_LESION = Lesion(
    "cartilage",
    "cartilage lesion",
    CARTILAGE,
    "thinning, a rough surface or a gap in the bright band that covers the subchondral bone plate; the loss "
    "is full-thickness where fluid or "
    "the opposing surface touches bone",
    "the share of the subregion's surface with any loss, and the share of that surface with full-thickness "
    "loss, are graded apart",
    "the cartilage surface",
    "partial volume along the curve of the surface or the normal thinning towards its margin",
    (3, 3, 3),
)
OSTEOPHYTE_LESION = Lesion(
    "osteophyte",
    "osteophyte",
    OSTEOPHYTES,
    "a bony spur at the joint margin, with marrow signal inside and a dark cortical rim, that protrudes from "
    "the expected outline of the bone",
    "the protrusion decides, not the length along the margin; the largest spur at the site counts",
    "the joint margin",
    "a normal bony prominence, an enthesophyte or partial volume at the margin",
    (4, 11, 4),
    "a bony spur protrudes from the expected outline of the bone",
    at="at",
)
HOFFA_LESION = Lesion(
    "hoffa_synovitis",
    "Hoffa-synovitis",
    FLUID,
    "diffuse bright signal inside the fat pad, which is otherwise dark with thin septa",
    "the extent of the bright signal in the fat pad decides",
    "the intercondylar part",
    "vascular streaks or normal septa",
    (2, 2, 2),
    "ill-defined bright signal lies within the dark fat",
)
EFFUSION_LESION = Lesion(
    "effusion_synovitis",
    "effusion-synovitis",
    FLUID,
    "bright fluid, with or without thickened synovium, that fills and widens the joint cavity and the "
    "suprapatellar bursa",
    "the distension of the capsule decides; fluid and synovium are not told apart",
    "the retropatellar space and the suprapatellar bursa",
    "fluid in normal recesses or the bright signal of adjacent cartilage",
    (3, 3, 3),
)
EXTRUSION_LESION = Lesion(
    "extrusion",
    "meniscal extrusion",
    MENISCUS,
    "the outer border of the dark meniscal wedge lying beyond the edge of the tibial plateau",
    "the distance from the plateau's edge to the outer border of the meniscus is measured, "
    "osteophytes left out: to the side across the slices, to the front within a slice",
    "the outer border",
    "an osteophyte that moves the edge outwards or an oblique cut through the wedge",
    (9, 4, 18),
    "the wedge reaches 2 mm or more beyond the edge of the tibial plateau",
    at="at",
)
MORPHOLOGY_LESION = Lesion(
    "morphology",
    "abnormal meniscal morphology",
    MENISCUS,
    "bright signal inside the dark meniscal wedge, a line of it that reaches a surface (a tear), or loss of "
    "the wedge's substance (maceration)",
    "the classes are kinds, not steps: name the one that describes the segment best",
    "each slice",
    "the vascular zone at the capsule, the attachments of ligaments or partial volume",
    (8, 3, 4),
)
CYST_LESION = Lesion(
    "cyst",
    "meniscal cyst",
    MENISCUS,
    "a sharply outlined collection as bright as fluid that touches the meniscus, often where a tear reaches "
    "its edge",
    "only its presence is graded; the segment of the meniscus that is torn is named with or without a cyst, "
    "of several the one whose tear reaches the cyst",
    "the outer margin",
    "a bursa or a normal recess of the joint",
    (9, 7, 13),
    "a sharply outlined collection of fluid signal touches the meniscus",
)
HYPERTROPHY_LESION = Lesion(
    "hypertrophy",
    "meniscal hypertrophy",
    MENISCUS,
    "a meniscus clearly taller and wider than expected for the knee, without a displaced fragment that would "
    "explain it",
    "presence is graded for the meniscus as a whole",
    "the height and width of the wedge",
    "a displaced fragment or a discoid variant",
    (2, 3, 2),
    "the wedge is clearly taller and wider than expected",
)
ROOT_TEAR_LESION = Lesion(
    "root_tear",
    "posterior meniscal root tear",
    MENISCUS,
    "a bright cleft through the posterior root, or a missing root next to the posterior intercondylar tibia",
    "presence is graded for the posterior root only",
    "the attachment",
    "partial volume at the slope of the bone or fat between normal fibres",
    (2, 2, 2),
    "the root is interrupted by a bright cleft, or missing",
)
ACL_LESION = Lesion(
    "acl",
    "tear or other abnormality",
    LIGAMENTS,
    "discontinuous or missing fibres along its oblique course, bright marrow or a cyst where it attaches, or "
    "a graft with tunnels after repair",
    "only a complete tear counts as torn",
    "the fibres and both attachments",
    "mucoid change between intact fibres, vessels at the attachments or partial volume",
    (14, 34, 15),
)
PCL_LESION = Lesion(
    "pcl",
    "tear or other abnormality",
    LIGAMENTS,
    "discontinuous or missing fibres of the dark, arched band, or bright marrow or a cyst where it attaches",
    "only a complete tear counts as torn",
    "the fibres and both attachments",
    "the magic-angle effect, vessels at the attachments or partial volume",
    (9, 11, 6),
)
TENDON_LESION = Lesion(
    "patellar_tendon",
    "abnormal signal",
    LIGAMENTS,
    "bright signal within the dark band between the patella and the tibial tubercle, with or without "
    "thickening",
    "any abnormal signal counts",
    "the whole length",
    "the magic-angle effect or the normal signal at its upper end",
    (2, 2, 2),
    "part of the dark band is bright",
)
# The seven periarticular features: id, title, appearance, what looks alike, and the place where it is not
# around the joint.
PERIARTICULAR_FEATURES = (
    (
        "pes_anserine_bursitis",
        "pes anserine bursitis",
        "a bright collection beneath the pes anserinus tendons at the medial tibia",
        "a trace of fluid between the tendons or a vessel",
        "",
    ),
    (
        "iliotibial_band_signal",
        "abnormal iliotibial band signal",
        "bright signal between the iliotibial band and the lateral femoral epicondyle",
        "fluid in the lateral recess of the joint",
        "",
    ),
    (
        "popliteal_cyst",
        "popliteal cyst",
        "a bright collection between the medial gastrocnemius and the semimembranosus tendon",
        "vessels or a trace of fluid in the bursa",
        "",
    ),
    (
        "infrapatellar_bursitis",
        "infrapatellar bursitis",
        "a bright collection behind or in front of the distal patellar tendon",
        "a trace of fluid in the deep bursa",
        "",
    ),
    (
        "prepatellar_bursitis",
        "prepatellar bursitis",
        "a bright collection in the soft tissue in front of the patella",
        "diffuse swelling under the skin",
        "",
    ),
    (
        "ganglion_cyst",
        "ganglion cyst",
        "a lobulated, sharply outlined bright collection at a ligament, tendon or the joint capsule",
        "a vessel, a bursa or a cyst of the meniscus",
        "",
    ),
    # MOAKS lists them with the periarticular features, but they lie inside the joint
    (
        "loose_bodies",
        "loose body",
        "a free fragment with bone or cartilage signal, outlined by joint fluid",
        "a fold of synovium or a fragment that is still attached",
        "joint cavity",
    ),
)
