"""Where a row's parts come from: provenance, published reasoning, second readings, contradictions between
grades, and the sums of all of them that the manifest tells."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from reasonknee.cohort.annotations import LONGEST
from reasonknee.errors import shown
from reasonknee.layout import Manifest
from reasonknee.layout.records import BOX_SOURCES
from reasonknee.questions import ATTRIBUTES
from reasonknee.questions.contradictions import RULES, of_knee
from reasonknee.validation import statements
from reasonknee.validation.findings import Findings
from reasonknee.validation.reading import NONE, Batch
from reasonknee.validation.rows import ASKED, TABLE, facts_of, points_elsewhere

Sums = Counter[tuple[str, str]]  # as the manifest has them: what, of which kind
_NAME = re.compile(r"[\w.,+() -]{1,64}", re.ASCII)
_FORMS = {
    "grades": _NAME,
    "project": _NAME,
    "package": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"),
    "image_sha256": re.compile(r"[0-9a-f]{64}"),
}
_UNKNOWN = "unknown"


def check_sources(batch: Batch, legal: np.ndarray, findings: Findings) -> None:
    """In every config: what is told of a row's sources has its form."""
    for row, told in enumerate(batch.table["provenance"].to_pylist()):
        for name, form in _FORMS.items():
            if told[name] is not None and not form.fullmatch(told[name]):
                said = f"provenance.{name} is {shown(told[name], 40)!r}"
                findings.add("X118", batch.place_of_row(row), f"{said}, its form is {form.pattern}")
    boxed = batch.box[:, 0] != NONE
    for i, source in enumerate(batch.flat["box_source"].to_pylist()):
        if source is not None and (source not in BOX_SOURCES or not boxed[i]):
            what = "is set without a box" if not boxed[i] else f"is {shown(source, 40)!r}"
            findings.add("X118", batch.place(i), f"box_source {what}")
    for i, text in enumerate(batch.flat["published_reasoning"].to_pylist()):
        if text is not None and points_elsewhere(text):
            findings.add("X119", batch.place(i), "published_reasoning holds a path or a URL")
        if text is not None and not 0 < len(text) <= LONGEST:
            findings.add("X118", batch.place(i), f"published_reasoning has {len(text)} characters")
    for i, readings in enumerate(batch.flat["second_readings"].to_pylist()):
        for reading in readings if legal[i] else ():
            wrong = _wrong_reading(int(batch.question[i]), reading)
            if wrong:
                findings.add("X118", batch.place(i), wrong)


def _wrong_reading(number: int, reading: Mapping[str, Any]) -> str:
    asked = {a.id: a for a in TABLE[number].attributes}
    if not _NAME.fullmatch(reading["project"]):
        return f"second_readings: project is {shown(reading['project'], 40)!r}"
    if reading["attribute"] not in asked:
        return f"second_readings: {shown(reading['attribute'], 40)!r} is not asked for"
    if reading["grade"] not in asked[reading["attribute"]].space.grades:
        return f"second_readings: grade {reading['grade']} of {reading['attribute']}"
    return ""


def check_told(batch: Batch, legal: np.ndarray, findings: Findings) -> Sums:
    """In one config, as the others say the same: published texts against grades and box, and grades against
    each other, as warnings; and the sums."""
    sums: Sums = Counter()
    for i, text in enumerate(batch.flat["published_reasoning"].to_pylist()):
        facts = facts_of(batch, i) if text is not None and legal[i] else None
        if facts and (wrong := statements.disagreement(facts, text)):
            findings.add("X116", batch.place(i), wrong)
        sums["reasoning", "published"] += text is not None
    sums["reasoning", "derived"] = len(batch.row)
    asked = ASKED[batch.question] & (batch.question >= 0)[:, None]
    sums["unknown_grades", ""] = int(np.count_nonzero(asked & (batch.grades == NONE)))
    _sum_sources(batch, sums)
    knees: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    visits: dict[str, str] = {}
    ids, months = batch.table["volume_id"].to_pylist(), batch.table["visit"].to_pylist()
    for i in np.flatnonzero(legal).tolist():
        row = int(batch.row[i])
        given = {a: g for a, g in zip(ATTRIBUTES, batch.grades[i].tolist(), strict=True) if g != NONE}
        knees[ids[row]][TABLE[batch.question[i]].id] = given
        visits[ids[row]] = months[row]
    for volume, knee in knees.items():
        for rule, question in of_knee(knee, visits[volume]):
            findings.add("X117", f"{shown(volume)}, {question}", RULES[rule])
            sums["contradictions", rule] += 1
    return sums


def _sum_sources(batch: Batch, sums: Sums) -> None:
    volumes = dict(
        zip(batch.table["volume_id"].to_pylist(), batch.table["provenance"].to_pylist(), strict=True)
    )
    for told in volumes.values():
        for name, key in (("grades", "grades"), ("projects", "project"), ("images", "package")):
            sums[name, told[key] or _UNKNOWN] += 1
    boxed = (batch.box[:, 0] != NONE).tolist()
    for has, source in zip(boxed, batch.flat["box_source"].to_pylist(), strict=True):
        sums["boxes", (source or _UNKNOWN) if has else "none"] += 1
    lengths = batch.flat["second_readings"].combine_chunks().value_lengths()
    sums["second_readings", ""] += int(np.count_nonzero(lengths.fill_null(0)))


def check_sums(manifest: Manifest, sums: Sums, findings: Findings) -> None:
    """Counted anew from the rows."""
    told = manifest.provenance
    counted: dict[str, Any] = {name: {} for name, value in told.items() if isinstance(value, dict)}
    for (name, kind), count in sorted((+sums).items()):
        if kind:
            counted.setdefault(name, {})[kind] = count
        else:
            counted[name] = count
    for name in told:
        if told[name] != counted.get(name, 0):
            said = f"{shown(counted.get(name, 0), 160)} where the manifest says {shown(told[name], 160)}"
            findings.add("X207", f"provenance, {name}", said)
