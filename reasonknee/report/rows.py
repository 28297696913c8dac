"""The rows that scores.md and report.html both show: ours, the baselines', and the published ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from reasonknee.layout.scores import AVERAGES
from reasonknee.report import published
from reasonknee.scoring.measures import TABLE2, TABLE3

Leaf = dict[str, Any]
BASELINE_TITLES = {
    "majority": "majority grade",
    "stratified": "stratified random",
    "text_only": "question's text alone",
    "box_only": "true box alone",
    "image_mean": "mean of the voxels",
}
PAPERS = "Overall of the paper"
NO_LEAF: Leaf = {"value": None, "low": None, "high": None, "n": 0, "reason": "not computed"}


class Row(NamedTuple):
    """A name, where it is from (`ours`, `baseline` or `published`), and a cell for each column."""

    name: str
    source: str
    cells: list[Leaf]


def number(leaf: Leaf, digits: int = 3) -> str:
    """A value as it is shown; what is undefined is a dash, never 0."""
    return "–" if leaf["value"] is None else f"{leaf['value']:.{digits}f}"


def interval(leaf: Leaf, digits: int = 3) -> str:
    """Its ends; empty where there is none, or where it has no width, as with one patient."""
    if leaf["low"] is None or leaf["high"] - leaf["low"] < 1e-9:
        return ""
    return f"{leaf['low']:.{digits}f} to {leaf['high']:.{digits}f}"


def at(tree: dict[str, Any] | None, *path: str) -> Leaf:
    here: Any = tree
    for name in path:
        here = here.get(name) if isinstance(here, dict) else None
    return here if isinstance(here, dict) else NO_LEAF


def table2_columns() -> list[str]:
    return [*TABLE2, *AVERAGES, PAPERS]


def table2(scores: dict[str, Any]) -> Iterator[Row]:
    """Accuracy by the columns of the paper's Table 2; ours have three averages, none of which is the
    paper's Overall."""

    def cells(tree: dict[str, Any], mode: str) -> list[Leaf]:
        parts = [at(tree, "diagnosis", "table2", column, "accuracy", mode) for column in TABLE2]
        return [*parts, *(at(tree, "averages", average, mode) for average in AVERAGES), NO_LEAF]

    yield Row(f"{scores['model']}, strict", "ours", cells(scores, "strict"))
    yield Row(f"{scores['model']}, answered only", "ours", cells(scores, "answered"))
    for name, tree in (scores["baselines"] or {}).items():
        if name != "constant_box":
            yield Row(BASELINE_TITLES.get(name, name), "baseline", cells(tree, "strict"))
    for name, values in published.TABLE2:
        *parts, overall = (_published(v) for v in values)
        yield Row(name, "published", [*parts, *[NO_LEAF] * len(AVERAGES), overall])


def table3(scores: dict[str, Any]) -> Iterator[Row]:
    """IoU by the columns of the paper's Table 3."""

    def cells(tree: dict[str, Any], mode: str) -> list[Leaf]:
        return [
            at(tree, "localisation", "structures", structure, "iou", mode) for structure in TABLE3.values()
        ]

    yield Row(f"{scores['model']}, strict", "ours", cells(scores, "strict"))
    yield Row(f"{scores['model']}, boxes given", "ours", cells(scores, "answered"))
    if "constant_box" in (scores["baselines"] or {}):
        yield Row("constant box", "baseline", cells(scores["baselines"]["constant_box"], "strict"))
    for name, values in published.TABLE3:
        yield Row(name, "published", [_published(v) for v in values])


def _published(value: float) -> Leaf:
    return {"value": value, "low": None, "high": None, "n": 0}
