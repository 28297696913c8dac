"""The first five lines: whether it uses the image, grades, places, categories, and readers.

Each line says what is better or worse only if a test that is paired by patient, or the interval, says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from reasonknee.questions import CATEGORIES
from reasonknee.report import links
from reasonknee.report.rows import Leaf, at
from reasonknee.report.words import count, listed, share, told
from reasonknee.scoring.bootstrap import ALPHA

BETTER, SAME, WORSE, PLAIN = "better", "same", "worse", "plain"


class Line(NamedTuple):
    mark: str  # better, same or worse than the baseline; plain where there is none
    text: str
    link: str = ""


def verdict(scores: dict[str, Any], model: int) -> list[Line]:
    return [
        *_evidence(scores),
        *_diagnosis(scores, model),
        *_boxes(scores, model),
        *_where(scores),
        *_readers(scores),
    ]


def against(leaf: Leaf, plain: Leaf) -> str:
    """How an estimate stands to a baseline's value: by its interval, or not at all."""
    if leaf["value"] is None or plain["value"] is None or leaf["low"] is None or leaf["high"] == leaf["low"]:
        return PLAIN
    if leaf["low"] > plain["value"]:
        return BETTER
    return WORSE if leaf["high"] < plain["value"] else SAME


def _compared(mark: str, plain: Leaf, baseline: str, value: str) -> str:
    if plain["value"] is None:
        return ""
    how = {BETTER: "more than ", WORSE: "less than ", SAME: "not to be told from ", PLAIN: ""}[mark]
    return f"; {how}{baseline}{', which' if how else ''} reaches {value}"


def _evidence(scores: dict[str, Any]) -> Iterator[Line]:
    """Whether it beats everything that can be had without the image, paired by patient: the scorer's word."""
    yield Line(BETTER if scores["evidence"]["uses_image"] else WORSE, scores["evidence"]["sentence"])


def _paired(entry: dict[str, Any] | None) -> str | None:
    """How the model stands to a baseline on the same patients, where the scorer has compared them."""
    if not entry or entry["p_holm"] is None:
        return None
    if entry["p_holm"] >= ALPHA:
        return SAME
    return BETTER if entry["a"] > entry["b"] else WORSE


def _diagnosis(scores: dict[str, Any], model: int) -> Iterator[Line]:
    ours = at(scores, "averages", "attribute_micro", "strict")
    plain = at(scores["baselines"], "majority", "averages", "attribute_micro", "strict")
    mark = _paired(scores["evidence"]["against"].get("majority")) or against(ours, plain)
    compared = _compared(
        mark, plain, "always giving the most frequent grade", f"{100 * (plain['value'] or 0):.0f} %"
    )
    exact = at(scores, "diagnosis", "exact_match", "strict")
    yield Line(
        mark,
        f"Grades: right in {share(ours)} of {ours['n']:,}{compared}. Whole answers: {share(exact)}. "
        f"{_seen(scores)}",
        links.rows(split=scores["split"], verdict="wrong", sort="worst", model=str(model)),
    )


def _seen(scores: dict[str, Any]) -> str:
    seen, denied = (at(scores, "detection", "all", name, "strict") for name in ("sensitivity", "specificity"))
    if seen["value"] is None or denied["value"] is None:
        return ""
    return f"It sees {share(seen)} of the findings, and calls {share(denied)} of the rest free of them."


def _boxes(scores: dict[str, Any], model: int) -> Iterator[Line]:
    ours = at(scores, "localisation", "box_micro", "iou", "strict")
    plain = at(scores["baselines"], "constant_box", "localisation", "box_micro", "iou", "strict")
    mark = _paired(scores["evidence"]["against"].get("constant_box")) or against(ours, plain)
    compared = _compared(mark, plain, "one fixed box for each region", f"{plain['value'] or 0:.2f}")
    centre = at(scores, "localisation", "box_micro", "centre_mm", "answered")
    off = "" if centre["value"] is None else f" Its centres are {centre['value']:.0f} mm off."
    yield Line(
        mark,
        f"Places: IoU {told(ours)} over {count(ours['n'], 'box', 'boxes')}{compared}.{off}",
        links.rows(split=scores["split"], sort="iou", model=str(model)),
    )


def _where(scores: dict[str, Any]) -> Iterator[Line]:
    """Categories in which it is better or worse than the majority grade."""
    told: dict[str, list[str]] = {BETTER: [], WORSE: []}
    entries = scores["evidence"]["categories"]
    for category in CATEGORIES:
        entry = entries.get(category.id)
        mark = _paired(entry)
        if entry and mark in told:
            told[mark].append(
                f"{category.title} ({100 * entry['a']:.0f} %, guessing {100 * entry['b']:.0f} %)"
            )
    words = {BETTER: "more", WORSE: "less"}
    parts = [
        f"knows {words[mark]} than frequencies in {listed(names)}" for mark, names in told.items() if names
    ]
    if parts:
        mark = PLAIN if len(parts) > 1 else BETTER if told[BETTER] else WORSE
        yield Line(mark, f"Categories: it {'; it '.join(parts)}.")
    elif entries:
        yield Line(SAME, "Categories: in none can it be told from guessing by frequency.")


def _readers(scores: dict[str, Any]) -> Iterator[Line]:
    """How far two readers agree, and the model with the first of them, on what was read twice."""
    path = ("diagnosis", "mean", "quadratic_kappa")
    ours, theirs = (at(scores["readers"], who, *path) for who in ("model", "readers"))
    if scores["readers"] and ours["value"] is not None and theirs["value"] is not None:
        twice = count(scores["readers"]["judgments"], "grade that was", "grades that were")
        both = f"mean weighted kappa {told(ours)}, that of two readers {told(theirs)}"
        yield Line(_apart(ours, theirs), f"Readers: on {twice} read twice, {both}.")


def _apart(ours: Leaf, theirs: Leaf) -> str:
    """Better or worse only if the two intervals do not meet."""
    if ours["low"] is None or theirs["low"] is None:
        return PLAIN
    return BETTER if ours["low"] > theirs["high"] else WORSE if ours["high"] < theirs["low"] else SAME


def reading(scores: dict[str, Any], model: int) -> Line:
    """How many answers could be read, which is said beside the verdict."""
    counts = scores["counts"]
    unread = counts["invalid"] + counts["unparsed"]
    parts = [f"{counts['parsed']:,} of {count(counts['asked'], 'answer')} could be read"]
    if unread:
        parts.append(f"{unread:,} could not")
    if counts["missing"]:
        parts.append(f"{counts['missing']:,} {'is' if counts['missing'] == 1 else 'are'} missing")
    rest = " What is unread or missing counts as wrong." if len(parts) > 1 else ""
    return Line(
        PLAIN,
        f"{'; '.join(parts)}.{rest}",
        links.rows(split=scores["split"], verdict="unread", model=str(model)) if unread else "",
    )
