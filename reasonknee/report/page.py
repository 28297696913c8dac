"""report.html: one file that opens offline. What it says is gathered here, how it looks is in templates/.

No script, nothing fetched; a policy in the page forbids both, whatever a model wrote. The only addresses are
links to the viewer on the reader's own machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.errors import UsageError
from reasonknee.layout.scores import AVERAGES
from reasonknee.questions import CATEGORIES, QUESTIONS, REGIONS
from reasonknee.release.reader import Release
from reasonknee.report import links, words
from reasonknee.report.cases import cases
from reasonknee.report.knee import BONES, CAPTIONS, HEIGHT, WIDTH, diagram
from reasonknee.report.published import NOTE
from reasonknee.report.rows import BASELINE_TITLES, Leaf, at, interval, number, table2, table2_columns, table3
from reasonknee.report.svg import strength
from reasonknee.report.verdict import reading, verdict
from reasonknee.scoring import Scored
from reasonknee.scoring.comparison import Draws, grade_sums, patient_sums, tested
from reasonknee.scoring.measures import BIN_NAMES, STRUCTURES, TABLE3
from reasonknee.scoring.truth import TABLE

MOST_MODELS = 2
_EXTREMES = 5  # attributes that are shown of those that gain or lose most


def page(models: Sequence[Scored], release: Release, predictions: Sequence[Path | None]) -> str:
    """The report of one model, or of two on the same split."""
    if len(models) > MOST_MODELS:
        raise UsageError("O001", f"{len(models)} models in a report", f"at most {MOST_MODELS} fit in a page")
    split = models[0].scores["split"]
    if any(each.truth.ids != models[0].truth.ids for each in models[1:]):
        raise UsageError("O002", "the models were scored on different rows", "score both on the same split")
    trees = [each.scores for each in models]
    context = {
        "models": [
            {
                "name": s["model"],
                "key": f"model-{m}",
                "scores": s,
                "lines": verdict(s, m),
                "reading": reading(s, m),
            }
            for m, s in enumerate(trees)
        ],
        "scores": trees[0],
        "difference": _difference(models) if len(models) > 1 else None,
        "averages": _averages(trees),
        "knees": [_knee(s, m) for m, s in enumerate(trees)],
        "bones": BONES,
        "captions": CAPTIONS,
        "knee_size": (WIDTH, HEIGHT),
        "categories": _categories(trees),
        "extremes": [_extremes(s, m) for m, s in enumerate(trees)],
        "structures": _structures(models),
        "given_iou": [_given_iou(s, f"model-{m}") for m, s in enumerate(trees)],
        "matrices": [_matrices(s) for s in trees],
        "cases": cases(models, release, predictions),
        "kinds": {c.id: c.title for c in CATEGORIES} | {"right": "Right", "unread": "Unread"},
        "tables": _tables(trees),
        "consistency": [
            [(name.replace("_", " "), f"model-{m}", leaf) for name, leaf in s["consistency"]["all"].items()]
            for m, s in enumerate(trees)
        ],
        "synthetic": release.manifest.synthetic,
        "viewer": links.VIEWER,
        "wrong": links.rows(split=split, verdict="wrong", sort="worst"),
        "note": NOTE,
    }
    rendered: str = environment().get_template("report.html").render(context)
    return rendered


def has_jinja2() -> bool:
    try:
        import jinja2  # noqa: F401
    except ImportError:
        return False
    return True


def environment() -> Any:
    if not has_jinja2():
        raise UsageError("O003", "a report needs jinja2", "pip install 'reasonknee[report]'")
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=PackageLoader("reasonknee.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else words.plain_text(value),
    )
    made.globals.update(
        number=number,
        interval=interval,
        told=words.told,
        share=words.share,
        count=words.count,
        unbroken=words.unbroken,
        strength=strength,
    )
    made.globals.update(rows=links.rows)
    return made


# --- what each part shows -----------------------------------------------------------------------------------


def _difference(models: Sequence[Scored]) -> list[tuple[str, Leaf]]:
    """First minus second, on the same patients."""
    scores, truth = models[0].scores, models[0].truth
    draws = Draws(len(truth.patients), scores["bootstrap"], scores["seed"])
    one, other = (each.judged for each in models)
    pairs = {
        "grades right": ("grades", grade_sums(truth, one), grade_sums(truth, other)),
        "IoU": (
            "iou",
            patient_sums(truth, one.iou, one.wanted),
            patient_sums(truth, other.iou, other.wanted),
        ),
    }
    return [(name, entry["difference"]) for name, entry in tested(pairs, draws).items()]


def _averages(trees: list[dict[str, Any]]) -> list[tuple[str, list[tuple[str, str, Leaf]]]]:
    """For each average its series: each model, then what guessing gets."""
    groups = []
    for average in AVERAGES:
        series = [
            (s["model"], f"model-{m}", at(s, "averages", average, "strict")) for m, s in enumerate(trees)
        ]
        series += [
            (BASELINE_TITLES[name], "plain", at(tree, "averages", average, "strict"))
            for name, tree in (trees[0]["baselines"] or {}).items()
            if name in BASELINE_TITLES
        ]
        title = {
            "attribute_micro": "Over all grades",
            "question_macro": "Mean over questions",
            "category_macro": "Mean over categories",
        }.get(average, average)
        groups.append((title, series))
    exact = [
        (s["model"], f"model-{m}", at(s, "diagnosis", "exact_match", "strict")) for m, s in enumerate(trees)
    ]
    if "majority" in (trees[0]["baselines"] or {}):
        exact.append(
            (
                BASELINE_TITLES["majority"],
                "plain",
                at(trees[0]["baselines"], "majority", "diagnosis", "exact_match", "strict"),
            )
        )
    return [*groups, ("Whole answers", exact)]


def _knee(scores: dict[str, Any], model: int) -> list[tuple[str, str, list[Any]]]:
    gains: dict[str, float | None] = {}
    for region in scores["diagnosis"]["regions"]:
        ours = at(scores, "diagnosis", "regions", region, "accuracy", "strict")["value"]
        plain = at(scores["baselines"], "majority", "diagnosis", "regions", region, "accuracy", "strict")[
            "value"
        ]
        gains[region] = None if ours is None or plain is None else ours - plain
    overlap = {
        r: at(scores, "localisation", "regions", r, "iou", "strict")["value"]
        for r in scores["diagnosis"]["regions"]
    }
    about = {"split": scores["split"], "model": str(model)}
    return [
        (
            "Grades right, above the most frequent grade",
            "below it: hatched",
            diagram(gains, 0.4, True, **about, sort="worst"),
        ),
        (
            "IoU of the boxes",
            "what is not given counts as 0",
            diagram(overlap, 1.0, False, **about, sort="iou"),
        ),
    ]


def _categories(trees: list[dict[str, Any]]) -> list[tuple[str, str, list[tuple[str, str, Leaf]]]]:
    found = []
    for category in CATEGORIES:
        if category.id not in trees[0]["diagnosis"]["categories"]:
            continue
        path = ("diagnosis", "categories", category.id, "accuracy", "strict")
        series = [(s["model"], f"model-{m}", at(s, *path)) for m, s in enumerate(trees)]
        if "majority" in (trees[0]["baselines"] or {}):
            series.append(
                (BASELINE_TITLES["majority"], "plain", at(trees[0]["baselines"], "majority", *path))
            )
        found.append(
            (
                category.title,
                links.rows(category=category.id, split=trees[0]["split"], verdict="wrong"),
                series,
            )
        )
    return found


def _extremes(scores: dict[str, Any], model: int) -> dict[str, list[tuple[str, str, float, float, int, str]]]:
    """Attributes that gain most over the most frequent grade, and those that lose most."""
    rows = []
    for name in scores["diagnosis"]["attributes"]:
        ours = at(scores, "diagnosis", "attributes", name, "accuracy", "strict")
        plain = at(scores["baselines"], "majority", "diagnosis", "attributes", name, "accuracy", "strict")
        if ours["value"] is None or plain["value"] is None:
            continue
        question, attribute = QUESTIONS[name.split(".")[0]], name.split(".")[1]
        title = f"{question.lesion.title}, {question.region.title}"
        link = links.rows(text=question.id, split=scores["split"], model=str(model), sort="worst")
        rows.append(
            (title, question.attribute(attribute).title, ours["value"], plain["value"], ours["n"], link)
        )
    rows.sort(key=lambda r: r[3] - r[2])
    return {
        "gain": [r for r in rows[:_EXTREMES] if r[2] > r[3]],
        "lose": [r for r in rows[::-1][:_EXTREMES] if r[2] < r[3]],
    }


def structure_filter(structure: str) -> dict[str, str]:
    """What the viewer finds the questions on a structure by: its one region, or words of their ids."""
    regions = [r.id for r in REGIONS.values() if r.structure == structure]
    if len(regions) == 1:
        return {"region": regions[0]}
    return {"text": structure if structure == "synovitis" else f"{structure}_"}


def _structures(models: Sequence[Scored]) -> list[dict[str, Any]]:
    """IoU of every wanted box by structure: its spread and mean, the fixed box's mean, and how many."""
    truth, split = models[0].truth, models[0].scores["split"]
    structure = np.array([STRUCTURES.index(q.region.structure) for q in TABLE])[truth.question]
    found = []
    for i, name in enumerate(STRUCTURES):
        mine = (structure == i) & truth.has_box
        if not mine.any():
            continue
        series = []
        for m, each in enumerate(models):
            low, middle, high = np.percentile(each.judged.iou[mine], (25, 50, 75))
            mean = at(each.scores, "localisation", "structures", name, "iou", "strict")
            series.append((each.scores["model"], f"model-{m}", mean, float(low), float(middle), float(high)))
        plain = at(
            models[0].scores["baselines"], "constant_box", "localisation", "structures", name, "iou", "strict"
        )
        found.append(
            {
                "name": name.upper() if len(name) == 3 else name.replace("_", " "),
                "n": int(mine.sum()),
                "series": series,
                "plain": plain,
                "link": links.rows(**structure_filter(name), split=split, sort="iou"),
            }
        )
    return found


def _given_iou(scores: dict[str, Any], key: str) -> list[tuple[str, str, Leaf]]:
    given = scores["together"]["accuracy_given_iou"]
    return [
        ("no box given" if n == "no_box" else f"IoU {n.replace('-', ' to ')}", key, given[n])
        for n in BIN_NAMES
        if given[n]["n"]
    ]


def _matrices(scores: dict[str, Any]) -> list[tuple[str, list[tuple[str, str, list[list[int]]]]]]:
    attributes = scores["diagnosis"]["attributes"]
    groups = []
    for category in CATEGORIES:
        names = [n for n in attributes if QUESTIONS[n.split(".")[0]].category is category]
        shown = []
        for name in names:
            question = QUESTIONS[name.split(".")[0]]
            title = f"{question.region.title}: {question.attribute(name.split('.')[1]).title}"
            shown.append(
                (title, links.rows(text=question.id, split=scores["split"]), attributes[name]["confusion"])
            )
        if shown:
            groups.append((category.title, shown))
    return groups


def _tables(trees: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The paper's two tables; published rows once, below those of all models."""

    def merged(make: Any) -> list[Any]:
        parts = [list(make(s)) for s in trees]
        ours = [(row, f"model-{m}") for m, rows in enumerate(parts) for row in rows if row.source == "ours"]
        return [*ours, *((row, "plain") for row in parts[0] if row.source != "ours")]

    return [
        {
            "title": "Accuracy, by the columns of Table 2",
            "columns": [c.replace("_", " ") for c in table2_columns()],
            "rows": merged(table2),
        },
        {"title": "IoU, by the columns of Table 3", "columns": list(TABLE3), "rows": merged(table3)},
    ]
