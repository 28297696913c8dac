"""The question table: what is asked of a knee, where, and which grades are legal.

Everything else is derived from here: JSON Schemas, features, prompts, reasoning, the answer parser, scores,
and the tables of the data card. Grades follow MOAKS (MRI Osteoarthritis Knee Score). Standard library only.

    >>> question("tibia_medial_anterior_bml").attribute("size").space.meanings[2]
    '33 to 66 % of the subregion'
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from reasonknee.errors import UsageError, near
from reasonknee.questions import lesions as le
from reasonknee.questions.lesions import Category, GradeSpace, Lesion
from reasonknee.questions.regions import REGIONS, SECTIONS, SUBREGIONS, Region

Evidence = Literal["attested", "pattern", "assumed"]  # how sure we are of an OAI variable's name


@dataclass(frozen=True)
class OaiVariable:
    """A column of OAI's MOAKS tables, without the visit prefix; `part` picks the digit of the combined
    cartilage field."""

    name: str
    evidence: Evidence
    part: Literal["whole", "integer", "tenths"] = "whole"


@dataclass(frozen=True)
class Attribute:
    """One graded property. `upstream_path` is where the published questions want it in their JSON answer."""

    id: str
    title: str
    space: GradeSpace
    upstream_path: tuple[str, ...]
    oai: OaiVariable


@dataclass(frozen=True)
class Question:
    """One row of the table: what is looked for, where, and the attributes that are graded."""

    id: str
    upstream_id: int
    lesion: Lesion
    region: Region
    attributes: tuple[Attribute, ...]

    @property
    def category(self) -> Category:
        """The category of its lesion."""
        return self.lesion.category

    @property
    def place(self) -> str:
        """Where to look, in words: the region, unless the lesion has a place of its own."""
        return self.lesion.place or self.region.title

    @cached_property
    def _by_id(self) -> dict[str, Attribute]:
        return {a.id: a for a in self.attributes}

    def attribute(self, attribute_id: str) -> Attribute:
        """Its attribute with this id."""
        return self._by_id[attribute_id]


# --- the questions ------------------------------------------------------------------------------------------


def _attribute(
    id_: str,
    title: str,
    space: GradeSpace,
    path: tuple[str, ...],
    oai: str,
    evidence: Evidence,
    part: Literal["whole", "integer", "tenths"] = "whole",
) -> Attribute:
    return Attribute(id_, title, space, path, OaiVariable(oai, evidence, part))


def _bml() -> Iterable[Question]:
    by_pattern = {"FLA", "FLC", "FLP", "TLA", "TLC", "TLP", "SS"}  # only the size column of these is attested
    for n, (region, _, _, _, suffix, name) in enumerate(SUBREGIONS, start=1):
        evidence: Evidence = "pattern" if suffix in by_pattern else "attested"
        top = ("MOAKS_scores", f"{name} BML")
        yield Question(
            f"{region}_bml",
            n,
            le.BML_LESION,
            REGIONS[region],
            (
                _attribute(
                    "size",
                    "size, cyst included",
                    le.BML_SIZE,
                    (*top, "Size of BML (including cyst)"),
                    f"MBMS{suffix}",
                    "attested",
                ),
                _attribute(
                    "number",
                    "number of lesions",
                    le.BML_NUMBER,
                    (*top, "Number of BML within subregion"),
                    f"MBMN{suffix}",
                    evidence,
                ),
                _attribute(
                    "percent_bml",
                    "share of the lesion that is BML rather than cyst",
                    le.BML_SHARE,
                    (*top, "% of lesion that is BML (excluding cyst)"),
                    f"MBMP{suffix}",
                    evidence,
                ),
            ),
        )


def _cartilage() -> Iterable[Question]:
    for n, (region, _, _, _, suffix, name) in enumerate(
        SUBREGIONS[:-1], start=16
    ):  # subspinous has no cartilage
        top = ("MOAKS_scores", f"{name} cartilage lesion")
        oai = f"MCM{suffix}"
        yield Question(
            f"{region}_cartilage",
            n,
            le.CARTILAGE_LESION,
            REGIONS[region],
            (
                _attribute(
                    "size",
                    "area with any loss",
                    le.CARTILAGE_SIZE,
                    (*top, "Size of lesion"),
                    oai,
                    "attested",
                    "integer",
                ),
                # upstream's key says depth, its text the share "of cartilage defect"; summaries of MOAKS say
                # "of the surface", and so do we
                _attribute(
                    "full_thickness_pct",
                    "full-thickness loss",
                    le.CARTILAGE_DEPTH,
                    (*top, "Depth of lesion"),
                    oai,
                    "attested",
                    "tenths",
                ),
            ),
        )


def _osteophytes() -> Iterable[Question]:
    # region, OAI suffix, upstream's name ("anterior" is the trochlea); three questions lack the wrapper of
    # their siblings
    sites = (
        ("patella_superior", "PS", "patella superior"),
        ("patella_inferior", "PI", "patella inferior"),
        ("patella_medial", "PM", "patella medial"),
        ("patella_lateral", "PL", "patella lateral"),
        ("femur_medial_trochlea", "FMA", "femur medial anterior"),
        ("femur_medial_central", "FMC", "femur medial central"),
        ("femur_medial_posterior", "FMP", "femur medial posterior"),
        ("femur_lateral_trochlea", "FLA", "femur lateral anterior"),
        ("femur_lateral_central", "FLC", "femur lateral central"),
        ("femur_lateral_posterior", "FLP", "femur lateral posterior"),
        ("tibia_medial", "TM", "tibia medial"),
        ("tibia_lateral", "TL", "tibia lateral"),
    )
    for n, (region, suffix, name) in enumerate(sites, start=30):
        top = (f"{name} osteophyte", "grade")
        path = top if n in (33, 35, 37) else ("MOAKS_scores", *top)
        evidence: Evidence = "attested" if suffix == "FLP" else "pattern"
        attribute = _attribute(
            "grade", "protrusion of the largest osteophyte", le.OSTEOPHYTE, path, f"MOS{suffix}", evidence
        )
        yield Question(f"{region}_osteophyte", n, le.OSTEOPHYTE_LESION, REGIONS[region], (attribute,))


def _synovitis() -> Iterable[Question]:
    hoffa = _attribute(
        "grade", "severity", le.SYNOVITIS, ("MOAKS_scores", "Hoffa-Synovitis", "grade"), "MSYIC", "attested"
    )
    effusion = _attribute(
        "grade", "amount", le.EFFUSION, ("MOAKS_scores", "effusion-synovitis", "grade"), "MEFFWK", "attested"
    )
    yield Question("hoffa_synovitis", 42, le.HOFFA_LESION, REGIONS["hoffa_fat_pad"], (hoffa,))
    yield Question("effusion_synovitis", 43, le.EFFUSION_LESION, REGIONS["joint_cavity"], (effusion,))


def _meniscus() -> Iterable[Question]:
    extrusion = (
        # region, OAI variable, upstream path: the first two hold a bare integer
        ("medial_meniscus_anterior", "MMXMA", ("MOAKS_scores", "medial meniscus anterior extrusion")),
        ("medial_meniscus_medial", "MMXMM", ("MOAKS_grade", "medial meniscus medial extrusion")),
        (
            "lateral_meniscus_anterior",
            "MMXLA",
            ("MOAKS_scores", "lateral meniscus anterior extrusion", "grade"),
        ),
        (
            "lateral_meniscus_lateral",
            "MMXLL",
            ("MOAKS_scores", "lateral meniscus lateral extrusion", "grade"),
        ),
    )
    for n, (region, oai, path) in enumerate(extrusion, start=44):
        attribute = _attribute(
            "grade", "extrusion beyond the tibial plateau", le.EXTRUSION, path, oai, "attested"
        )
        yield Question(f"{region}_extrusion", n, le.EXTRUSION_LESION, REGIONS[region], (attribute,))
    n = 48
    for side in ("medial", "lateral"):
        for segment in ("anterior", "body", "posterior"):
            region = f"{side}_meniscus_{segment}"
            wrapper = "MOAKS_grade" if n in (51, 52) else "MOAKS_scores"
            path = (wrapper, f"{side} meniscus {segment} morphology", "morphology")
            oai = f"MMT{side[0]}{segment[0]}".upper()
            attribute = _attribute("morphology", "morphology", le.MORPHOLOGY, path, oai, "attested")
            yield Question(f"{region}_morphology", n, le.MORPHOLOGY_LESION, REGIONS[region], (attribute,))
            n += 1
    whole_meniscus = (
        ("cyst", le.CYST_LESION, "MMCY"),
        ("hypertrophy", le.HYPERTROPHY_LESION, "MMHY"),
        ("root_tear", le.ROOT_TEAR_LESION, "MMRT"),
    )
    for kind, lesion, oai in whole_meniscus:
        for side in ("medial", "lateral"):
            key, column = f"{side}_meniscal_{kind}", f"{oai}{side[0].upper()}"
            evidence: Evidence = "attested" if kind == "root_tear" else "assumed"
            attributes = [
                _attribute(
                    "presence",
                    f"presence of {lesion.indefinite}",
                    le.PRESENCE,
                    (key, "presence"),
                    column,
                    evidence,
                )
            ]
            if kind == "cyst":
                attributes.append(
                    _attribute(
                        "tear_location",
                        "segment of the tear",
                        le.TEAR_LOCATION,
                        (key, "tear_location"),
                        f"MMCL{side[0].upper()}",
                        "assumed",
                    )
                )
            region = f"{side}_meniscus_root" if kind == "root_tear" else f"{side}_meniscus"
            yield Question(f"{side}_meniscus_{kind}", n, lesion, REGIONS[region], tuple(attributes))
            n += 1


def _ligaments() -> Iterable[Question]:
    insertion = "Associated with BML/cyst at site of insertion or origin"
    # OAI's MACLTR is not purely 0/1; what its codes mean is settled where the tables are read
    ligaments: tuple[tuple[int, str, Evidence], ...] = ((60, "ACL", "attested"), (61, "PCL", "assumed"))
    for n, key, evidence in ligaments:
        attributes = [
            _attribute(
                "complete_tear", "complete tear", le.PRESENCE, (key, "Complete Tear"), f"M{key}TR", evidence
            ),
            _attribute(
                "insertion_bml_cyst",
                "BML or cyst at an attachment",
                le.PRESENCE,
                (key, insertion),
                f"M{key}BL",
                "assumed",
            ),
        ]
        if key == "ACL":
            attributes.append(
                _attribute("repair", "signs of repair", le.PRESENCE, (key, "ACL Repair"), "MACLRP", "assumed")
            )
        lesion = le.ACL_LESION if key == "ACL" else le.PCL_LESION
        yield Question(key.lower(), n, lesion, REGIONS[key.lower()], tuple(attributes))
    path = ("Patellar_Tendon", "Signal Abnormality")
    signal = _attribute("signal_abnormality", "abnormal signal", le.PRESENCE, path, "MPTSG", "assumed")
    yield Question("patellar_tendon", 62, le.TENDON_LESION, REGIONS["patellar_tendon"], (signal,))


def _periarticular() -> Iterable[Question]:
    columns = ("MPESA", "MITBS", "MPOPC", "MINFB", "MPREB", "MGANC", "MLOOS")
    for n, ((id_, title, appearance, mimics, place), column) in enumerate(
        zip(le.PERIARTICULAR_FEATURES, columns, strict=True), start=63
    ):
        lesion = Lesion(
            id_,
            title,
            le.PERIARTICULAR,
            appearance,
            "only its presence is graded, whatever its size",
            "the full extent",
            mimics,
            (0, 0, 0),  # without a box there is no crop
            f"there is {appearance}",
            place,
        )
        presence = _attribute(
            "presence",
            f"presence of {lesion.indefinite}",
            le.PRESENCE,
            (f"{id_}_presence", "presence"),
            column,
            "assumed",
        )
        yield Question(id_, n, lesion, REGIONS["periarticular"], (presence,))


QUESTIONS: dict[str, Question] = {
    q.id: q
    for q in (
        *_bml(),
        *_cartilage(),
        *_osteophytes(),
        *_synovitis(),
        *_meniscus(),
        *_ligaments(),
        *_periarticular(),
    )
}
"""All questions by id, in upstream's order, which is their order in a volume of a release; `cropped` has
them `in_sections`."""

# Every attribute id there is, in order of first use: the fields of the `grades` struct.
ATTRIBUTES: tuple[str, ...] = tuple(dict.fromkeys(a.id for q in QUESTIONS.values() for a in q.attributes))
"""Every attribute that is graded, in the order of the columns of grades."""

DEFAULT_SET = "paper62"
"""The question set of a release, unless another is chosen."""
# 62 x 7,970 scans = 494,140, the paper's count: the best reading of its "62 questions" leaves the
# periarticular ones out.
QUESTION_SETS: dict[str, tuple[Question, ...]] = {
    "paper62": tuple(q for q in QUESTIONS.values() if q.category is not le.PERIARTICULAR),
    "all69": tuple(QUESTIONS.values()),
}
"""Question set -> its questions."""

_BY_UPSTREAM_ID = {q.upstream_id: q for q in QUESTIONS.values()}


def question(key: str | int) -> Question:
    """The question with this id, or with upstream's integer id (as an int or its digits)."""
    if isinstance(key, str) and key in QUESTIONS:
        return QUESTIONS[key]
    text = str(key)
    if text.isascii() and text.isdigit() and len(text) <= 4 and int(text) in _BY_UPSTREAM_ID:
        return _BY_UPSTREAM_ID[int(text)]
    hint = near(text, QUESTIONS) + "`reasonknee questions` lists them all"
    raise UsageError("Q001", f"unknown question {text[:80]!r}", hint)


def question_set(name: str) -> tuple[Question, ...]:
    """The questions of a set; Q002 where there is none of that name."""
    if name not in QUESTION_SETS:
        raise UsageError(
            "Q002", f"unknown question set {name!r}", f"choose one of {', '.join(QUESTION_SETS)}"
        )
    return QUESTION_SETS[name]


def in_sections(asked: Iterable[Question]) -> list[Question]:
    """Section by section of the knee, as the rows of `cropped` stand, so that a reader of some regions
    need not fetch the others."""
    return sorted(asked, key=lambda q: SECTIONS.index(q.region.section))
