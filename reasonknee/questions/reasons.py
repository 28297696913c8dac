"""Why this grade and not the one beside it: a clause for each grade of each grade space, true at its edges.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping

from reasonknee.questions.contradictions import contradictions
from reasonknee.questions.table import Attribute, Question

# by grade space
_OF_SPACE = {
    "bml_size": (
        "no part of the subregion is affected, not even by a small focus",
        "there is a lesion, but it takes up less than a third of the subregion",
        "what is affected is at least a third of the subregion, but no more than two thirds",
        "less than a third of the subregion is left unaffected",
    ),
    "bml_number": (
        "no focus can be counted",
        "all of it belongs to a single focus",
        "normal marrow lies between two foci, and there is no third",
        "normal marrow lies between at least three foci",
    ),
    "bml_share": (
        "all of the lesion is cyst",
        "cyst takes up more than two thirds of the lesion, but not all of it",
        "neither cyst nor ill-defined signal takes up more than two thirds of the lesion",
        "cyst takes up a third of the lesion at most, if there is any",
    ),
    "cartilage_size": (
        "the cartilage keeps its thickness throughout",
        "there is loss, but over less than a tenth of the surface",
        "loss covers a tenth of the surface or more, and three quarters at most",
        "less than a quarter of the surface is spared",
    ),
    "cartilage_full_thickness": (
        "nowhere does a loss reach the bone plate",
        "bone is bare, but over less than a tenth of the surface",
        "bone is bare over a tenth of the surface or more, and three quarters at most",
        "less than a quarter of the surface is still covered",
    ),
    "osteophyte_size": (
        "nothing projects beyond the expected outline",
        "the spur projects only slightly beyond the margin",
        "the spur projects clearly, but does not reshape the margin",
        "the spur is so large that it reshapes the margin",
    ),
    "hoffa_synovitis": (
        "vessels and septa explain what signal there is",
        "the signal is more than vessels and septa explain, but is confined to a small part of the pad",
        "the signal goes beyond a small part of the pad, but spares much of it",
        "the signal takes up most of the pad",
    ),
    "effusion_synovitis": (
        "what fluid there is forms no continuous layer",
        "the layer of fluid is continuous, but the bursa does not bulge",
        "the bursa bulges, but the capsule is not evidently distended",
        "the whole capsule bulges, and not the bursa alone",
    ),
    "extrusion": (
        "the border reaches 1.9 mm beyond the plateau's edge at most",
        "the border reaches 2 mm beyond the plateau's edge, but not 3 mm",
        "the border reaches 3 mm beyond the plateau's edge, but not 5 mm",
        "the border lies at least 5 mm beyond the plateau's edge",
    ),
    "meniscal_morphology": (
        "the wedge is dark and keeps its shape",
        "the signal stays inside the wedge, so that it is no tear, and no substance is lost",
        "the line cuts into the free edge, at right angles to the circumference",
        "the line runs parallel to the plateau and reaches a surface",
        "the line stands upright along the circumference and reaches a surface",
        "lines run in more than one direction, which no simple tear does",
        "substance is lost, which is more than a tear, and some is left",
        "substance was lost before and more of it is lost now, and some is left",
        "hardly any substance is left, which is more than a partial loss",
    ),
    "tear_location": (
        "the tear lies in front of the body",
        "the tear lies between the horns",
        "the tear lies behind the body",
        "no tear communicates with a cyst",
    ),
}
# of what is absent or present: by attribute, or else by lesion
_OF_PRESENCE = {
    "complete_tear": (
        "some fibres at least can be followed from end to end",
        "no fibre can be followed from end to end",
    ),
    "insertion_bml_cyst": (
        "the marrow stays dark at both attachments",
        "the marrow is bright or holds a cyst at an attachment",
    ),
    "repair": ("neither a graft nor its tunnels are seen", "a graft or its tunnels are seen"),
    "signal_abnormality": (
        "no part of it is brighter than tendon should be",
        "a part of it is brighter than tendon should be",
    ),
    "cyst": ("no such collection touches the meniscus", "the collection touches the meniscus"),
    "hypertrophy": (
        "height and width stay within normal variation",
        "height and width go beyond normal variation",
    ),
    "root_tear": (
        "the root can be followed to the bone",
        "the root cannot be followed to the bone",
    ),
    "pes_anserine_bursitis": (
        "a trace of fluid at most lies beneath the tendons",
        "more than a trace of fluid lies beneath the tendons",
    ),
    "popliteal_cyst": (
        "the bursa beside the medial gastrocnemius holds a trace of fluid at most",
        "the bursa beside the medial gastrocnemius is distended, which a trace of fluid does not do",
    ),
    "infrapatellar_bursitis": (
        "no bursa at the tendon holds more than a trace of fluid",
        "a bursa at the tendon holds more than a trace of fluid",
    ),
    "prepatellar_bursitis": (
        "no collection lies in front of the patella",
        "the fluid in front of the patella is a collection, which diffuse swelling is not",
    ),
    "iliotibial_band_signal": (
        "the tissue beneath the band is dark",
        "the signal lies beneath the band, outside the joint",
    ),
    "ganglion_cyst": (
        "no such collection is found",
        "the collection belongs to a ligament, a tendon or the capsule",
    ),
    "loose_bodies": (
        "no fragment lies free in the fluid",
        "the fragment lies free, with fluid around it",
    ),
}
_NO_LESION = "there is no lesion to divide into cyst and the rest"
_NO_SHARE = "nothing is ill-defined signal rather than cyst"  # whether there is a lesion, nobody knows
_CONTRADICTED = "it was read so, although the grades given here contradict each other"


def reason(question: Question, attribute: Attribute, grades: Mapping[str, int]) -> str:
    if contradictions(question, grades):
        return _CONTRADICTED
    grade = grades[attribute.id]
    if attribute.space.id == "bml_share" and grade == 0 and not grades.get("size"):
        return _NO_LESION if "size" in grades or grades.get("number") == 0 else _NO_SHARE
    if attribute.space.id == "presence":
        told = _OF_PRESENCE.get(attribute.id) or _OF_PRESENCE[question.lesion.id]
        return told[grade]
    return _OF_SPACE[attribute.space.id][grade]
