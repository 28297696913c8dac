"""The rows that scores.md and report.html both show: ours, the baselines', and the published ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from reasonknee.report import published
from reasonknee.score_layout import AVERAGES, BASELINES
from reasonknee.scoring.measures import TABLE2, TABLE3

Leaf = dict[str, Any]
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
    return "" if leaf["low"] is None else f"{leaf['low']:.{digits}f} to {leaf['high']:.{digits}f}"


def at(tree: dict[str, Any] | None, *path: str) -> Leaf:
    here: Any = tree
    for name in path:
        here = here.get(name) if isinstance(here, dict) else None
    return here if isinstance(here, dict) else NO_LEAF


def table2_columns() -> list[str]:
    return [*TABLE2, *AVERAGES, PAPERS]


def table2(scores: dict[str, Any]) -> Iterator[Row]:
    """Accuracy by the columns of the paper's Table 2; ours have three averages, none of which is the paper's Overall."""

    def cells(tree: dict[str, Any], mode: str) -> list[Leaf]:
        parts = [at(tree, "diagnosis", "table2", column, "accuracy", mode) for column in TABLE2]
        return [*parts, *(at(tree, "averages", average, mode) for average in AVERAGES), NO_LEAF]

    yield Row(f"{scores['model']}, strict", "ours", cells(scores, "strict"))
    yield Row(f"{scores['model']}, answered only", "ours", cells(scores, "answered"))
    for name in BASELINES[:2]:
        if scores["baselines"]:
            yield Row(f"{name} grade" if name == "majority" else f"{name} random", "baseline", cells(scores["baselines"][name], "strict"))
    for name, values in published.TABLE2:
        *parts, overall = (_published(v) for v in values)
        yield Row(name, "published", [*parts, *[NO_LEAF] * len(AVERAGES), overall])


def table3(scores: dict[str, Any]) -> Iterator[Row]:
    """IoU by the columns of the paper's Table 3."""

    def cells(tree: dict[str, Any], mode: str) -> list[Leaf]:
        return [at(tree, "localisation", "structures", structure, "iou", mode) for structure in TABLE3.values()]

    yield Row(f"{scores['model']}, strict", "ours", cells(scores, "strict"))
    yield Row(f"{scores['model']}, boxes given", "ours", cells(scores, "answered"))
    if scores["baselines"]:
        yield Row("constant box", "baseline", cells(scores["baselines"]["constant_box"], "strict"))
    for name, values in published.TABLE3:
        yield Row(name, "published", [_published(v) for v in values])


def _published(value: float) -> Leaf:
    return {"value": value, "low": None, "high": None, "n": 0}
