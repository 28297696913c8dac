"""What a cell of a MOAKS table says: grades by attribute, or the reason why there is none.

A cell is `code: label`. Codes are text until the very end: the cartilage field `2.1` is a size of 2 and a
full-thickness grade of 1, and 0.5, -0.5 and -1 say that something changed within a grade, which is no grade.
"""

from __future__ import annotations

import re
from decimal import Decimal

from reasonknee.questions import QUESTIONS, Attribute

MISSING, WITHIN_GRADE, OUTSIDE = "missing", "within-grade code", "outside the grade space"
UNREADABLE, UNSETTLED = "not a code", "a code whose meaning is not settled"
CONTRADICTED = "two columns contradict each other"
ACL_TEAR = "MACLTR"
_CODE = re.compile(r"-?([0-9]{1,3}(\.[0-9]{1,3})?|\.[0-9]{1,3})")  # SAS may write .5
_MISSING = re.compile(r"\.[A-Z_]?", re.IGNORECASE)  # SAS has 28 ways to say so
_CHANGE = {Decimal("0.5"), Decimal("-0.5"), Decimal("-1")}
# What the label of MACLTR tells, the first that fits. Only a complete tear counts as torn.
_PARTIAL, _REPAIRED, _INTACT, _TORN = (
    re.compile(words)
    for words in (
        r"\bpartial",
        r"\b(repair|reconstruct|graft)",
        r"\b(no|not|without|absent|intact|normal|none)\b",
        r"\b(torn|tear|rupture|complete|present|yes)",
    )
)

VARIABLES: dict[str, list[tuple[str, Attribute]]] = {}
"""OAI's variables without the visit prefix: the question that each belongs to, and its attributes."""
for _q in QUESTIONS.values():
    for _a in _q.attributes:
        VARIABLES.setdefault(_a.oai.name, []).append((_q.id, _a))


def code(cell: str) -> str:
    """The part of a cell before its label."""
    return cell.split(":", 1)[0].strip()


def read_cell(variable: str, cell: str) -> dict[str, int] | str:
    """The grades in a cell by attribute, or the reason why there is none."""
    text = code(cell)
    if not text or _MISSING.fullmatch(text):
        return MISSING
    if not _CODE.fullmatch(text):
        return UNREADABLE
    if Decimal(text) in _CHANGE:
        return WITHIN_GRADE
    whole, _, tenths = text.partition(".")
    if "-" in whole or len(tenths.rstrip("0")) > 1:
        return OUTSIDE
    digits = {"whole": int(whole or 0), "integer": int(whole or 0), "tenths": int(tenths[:1] or 0)}
    if variable == ACL_TEAR and not digits["tenths"]:
        return _acl(digits["whole"], cell.partition(":")[2].strip().lower())
    found = {}
    for _, attribute in VARIABLES[variable]:
        grade = digits[attribute.oai.part]
        if attribute.oai.part == "whole" and digits["tenths"]:
            return OUTSIDE
        if grade not in attribute.space.grades:
            return OUTSIDE
        found[attribute.id] = grade
    return found


def _acl(number: int, label: str) -> dict[str, int] | str:
    """MACLTR has more codes than absent and present: its label decides. Without a label that tells, 0 and 1
    are MOAKS's own codes, and no other is settled."""
    if _PARTIAL.search(label):
        return {"complete_tear": 0}
    if _REPAIRED.search(label):
        return {"repair": 1} if number else UNSETTLED
    if _INTACT.search(label) or _TORN.search(label):
        torn = not _INTACT.search(label)
        return {"complete_tear": int(torn)} if torn == (number > 0) else UNSETTLED
    return {"complete_tear": number} if number in (0, 1) else UNSETTLED
