"""ReasonKnee-Bench: predictions in, numbers out, with what is needed to trust them: coverage, baselines and
intervals over patients.

    scored = score("predictions.jsonl", "release")
    scored.scores["averages"]["attribute_micro"]["strict"]  # {"value": ..., "low": ..., "high": ..., ...}

What each number means is in docs/scores.md; the layout of `scores` in schema/scores.schema.json. Installs and
starts without pyarrow, torch or datasets; pyarrow is needed once a release is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.boxes import Box
from reasonknee.errors import DataError, UsageError, counted
from reasonknee.layout.scores import BASELINES, SCORES_VERSION, STATUSES
from reasonknee.questions import CATEGORIES, REGIONS
from reasonknee.release.reader import Release
from reasonknee.scoring import baselines, bootstrap
from reasonknee.scoring import metrics as me
from reasonknee.scoring.comparison import (
    Draws,
    Leaf,
    Sums,
    evidence,
    grade_sums,
    leaf,
    patient_sums,
    tested,
    values,
)
from reasonknee.scoring.confidence import confidences
from reasonknee.scoring.intervals import FEWEST, intervals, supports
from reasonknee.scoring.lines import BOXED, UNREADABLE, BoxReading
from reasonknee.scoring.measures import (
    Measure,
    headline,
    localisation,
    measures,
    without_agreement,
)
from reasonknee.scoring.predictions import Predictions, read_predictions, stamp_line
from reasonknee.scoring.protocol import stamp
from reasonknee.scoring.readers import ceiling
from reasonknee.scoring.rows import ROWS_FILE, read_rows
from reasonknee.scoring.suggestion import suggested
from reasonknee.scoring.tally import BOX_SUMS, CATEGORY_OF, REGION_IDS, Judged, Tally, judge, tally
from reasonknee.scoring.truth import Truth, read_truth
from reasonknee.version import VERSION

Place = str | Path


@dataclass(frozen=True)
class Options:
    """How to score: what the numbers of a box mean, which part of the questions, how uncertainty is drawn."""

    convention: str = "canonical"
    view: tuple[int, int, int] | None = None  # what volumes were resized to, for the convention `resized`
    samples: int = 1000
    seed: int = 0
    workers: int = 1
    model: str = ""
    questions: tuple[str, ...] = ()  # only these, and those of the categories; the rest is not missing
    categories: tuple[str, ...] = ()
    baselines: str | Path = ""  # a folder of files that `reasonknee baselines` wrote
    runs: tuple[str | Path, ...] = ()  # other runs of the same model


@dataclass(frozen=True)
class Scored:
    """The scores, and what they were made of."""

    scores: dict[str, Any]
    truth: Truth
    predicted: Predictions
    judged: Judged


def score(
    predictions: Place, release: Place, split: str = "test", options: Options | None = None, **changed: Any
) -> Scored:
    """Scores a file of predictions against a split of a release; `changed` are fields of the options."""
    chosen = replace(options or Options(), **changed)
    path, opened = Path(predictions), Release(release)
    truth = read_truth(opened, split).part(chosen.questions, chosen.categories)
    reading = reading_of(opened, split, chosen)
    predicted = predictions_at(path, truth, reading, chosen.workers)
    train, lacking = _training(opened, truth)
    guesses = _guesses(train, truth, chosen)
    header = {
        "model": chosen.model or name_of(path),
        "release_version": opened.manifest.release_version,
        "questions": opened.manifest.questions,
        "split": split,
        "box_convention": chosen.convention,
    }
    hint = suggested(path, truth, predicted, reading) if path.suffix != ".parquet" and path.is_file() else ""
    told = [hint] * bool(hint) + lacking
    scored = score_arrays(truth, predicted, guesses, chosen, header=header, warnings=told)
    scored.scores["provenance"] = opened.manifest.provenance
    if asked := stamp_line(path):
        scored.scores["asked"] = asked
    if chosen.runs:
        others = {str(run): predictions_at(Path(run), truth, reading, chosen.workers) for run in chosen.runs}
        scored.scores["runs"] = _runs(truth, {str(path): predicted, **others})
    return scored


def name_of(path: Path) -> str:
    """What a model is called after a file: its stem; its folder for rows.parquet and what a run wrote."""
    ran = path.with_name(f"{path.stem}.stamp.json").is_file()
    return path.resolve().parent.name if ran or path.name == ROWS_FILE else path.stem


def reading_of(release: Release, split: str, options: Options) -> BoxReading:
    """How the numbers of boxes are meant, with the crops of the release where they are needed."""
    crops = None
    if options.convention == "crop" and release.manifest.of("cropped", split):
        table = release.columns(split, ["id", "crop"], "cropped")
        pairs = zip(table["id"].to_pylist(), table["crop"].to_pylist(), strict=True)
        crops = {id_: Box.from_dict(crop) for id_, crop in pairs if crop}
    return BoxReading(options.convention, options.view, crops)


def predictions_at(path: Path, truth: Truth, reading: BoxReading, workers: int = 1) -> Predictions:
    """Those of a file of predictions, of a rows.parquet, or of the folder that `score --out` wrote."""
    if path.is_dir():
        path = path / ROWS_FILE
    if path.suffix == ".parquet":
        return read_rows(path, truth)
    return read_predictions(path, truth, reading, workers)


def _training(release: Release, truth: Truth) -> tuple[Truth | None, list[str]]:
    """The training split, from which baselines are; where there is none, or it cannot be read, why."""
    if "train" not in release.splits:
        return None, ["the release has no training split: there are no baselines"]
    try:
        return read_truth(release, "train").part([q.id for q in truth.questions]), []
    except (DataError, UsageError) as error:
        return None, [f"the training split cannot be read, so there are no baselines: {error}"]


def _guesses(train: Truth | None, truth: Truth, options: Options) -> dict[str, Predictions]:
    """The baselines: files where there are, else made here; the one that needs voxels only from its file."""
    guesses = {}
    for name in BASELINES:
        file = Path(options.baselines, f"{name}.jsonl")
        if options.baselines and file.is_file():
            guesses[name] = read_predictions(file, truth, workers=options.workers)
        elif train is not None and name in baselines.QUICK:
            guesses[name] = baselines.predict(name, train, truth)
    if options.baselines and not any(
        Path(options.baselines, f"{name}.jsonl").is_file() for name in BASELINES
    ):
        hint = "`reasonknee baselines RELEASE OUT` writes them"
        raise UsageError("S031", f"no baselines in {options.baselines}", hint)
    return guesses


def score_arrays(
    truth: Truth,
    predicted: Predictions,
    guesses: Mapping[str, Predictions] | None = None,
    options: Options | None = None,
    *,
    header: dict[str, Any] | None = None,
    warnings: Sequence[str] = (),
    **changed: Any,
) -> Scored:
    """Scores answers that are in memory already; `guesses` are baselines, `changed` fields of the options."""
    chosen = replace(options or Options(), **changed)
    judged = judge(truth, predicted)
    counted = tally(truth, predicted, judged)
    draws = Draws(len(truth.patients), chosen.samples, chosen.seed, len(guesses or ()))
    scores: dict[str, Any] = {
        "scores_version": SCORES_VERSION,
        "code_version": VERSION,
        **(header or {}),
        "protocol": stamp(truth),
        "part": {"questions": list(chosen.questions), "categories": list(chosen.categories)},
        "bootstrap": chosen.samples,
        "seed": chosen.seed,
    }
    scores["counts"] = _counts(truth, predicted)
    scores["warnings"] = [*_warnings(truth, predicted), *warnings, *_strays(scores["protocol"])]
    _nest(scores, estimated(counted, draws.weights, measures))
    _add_matrices(scores, counted.total)
    _add_boxes(scores, counted.total)
    scores["together"]["correlation_by_patient"] = _correlation(truth, judged, draws.weights)
    scores["confidence"] = confidences(truth, predicted, judged, draws.weights)
    scores["baselines"], scores["evidence"] = _beside_baselines(
        truth, predicted, judged, guesses or {}, draws
    )
    scores["readers"] = ceiling(truth, predicted, lambda t, of: _tree(estimated(t, draws.weights, of)))
    scores["runs"] = None
    return Scored(scores, truth, predicted, judged)


# --- estimates ----------------------------------------------------------------------------------------------


def estimated(
    t: Tally, weights: np.ndarray, of: Callable[[Tally], Iterable[Measure]]
) -> list[tuple[tuple[str, ...], Leaf]]:
    """Each measure with its interval; `t` has one row a patient."""
    points = list(of(t.total))
    ends = intervals(points, values(t, weights, of), len(t), supports(t, of))
    return [
        (m.path, leaf(float(m.value[0]), end.low, end.high, float(m.n[0]), m.reason, end.none))
        for m, end in zip(points, ends, strict=True)
    ]


def _nest(into: dict[str, Any], leaves: Iterable[tuple[tuple[str, ...], Any]]) -> None:
    for path, value in leaves:
        here = into
        for name in path[:-1]:
            here = here.setdefault(name, {})
        here[path[-1]] = value


def _tree(leaves: Iterable[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    _nest(tree, leaves)
    return tree


# --- the parts around them ----------------------------------------------------------------------------------


def _counts(truth: Truth, predicted: Predictions) -> dict[str, Any]:
    by_status = np.bincount(predicted.status, minlength=len(STATUSES))
    return {
        "asked": len(truth),
        "patients": len(truth.patients),
        "lines": predicted.lines,
        **{name: int(by_status[i]) for i, name in enumerate(STATUSES)},
        "aside": predicted.aside,
        "unknown": predicted.unknown,
        "repeated": predicted.repeated,
        "contradictory": predicted.contradictory,
        "unknown_ids": predicted.unknown_ids,
        "repeated_ids": predicted.repeated_ids,
    }


def _warnings(truth: Truth, predicted: Predictions) -> list[str]:
    said = []
    missing = int((predicted.status == STATUSES.index("missing")).sum())
    if missing:
        said.append(
            f"{missing:,} of {len(truth):,} questions have no prediction: they are wrong under strict, and "
            "left out of answered"
        )
    if predicted.unknown:
        said.append(f"predictions with an id that is not in this split: {predicted.unknown:,}, left out")
    if predicted.repeated:
        told = f"ids with different answers ({predicted.contradictory:,}) count as unparsed"
        said.append(f"predictions that repeat an id: {predicted.repeated:,}; equal ones count once, {told}")
    unreadable = int(((predicted.box_state == UNREADABLE) & truth.has_box).sum())
    if unreadable:
        told = "outside their volume or in no known form: IoU 0 (another grid, or another --convention?)"
        said.append(f"boxes: {unreadable:,} of {int(truth.has_box.sum()):,} are {told}")
    return [*said, *few(truth)]


def _strays(protocol: dict[str, Any]) -> list[str]:
    if not protocol["differs"]:
        return []
    named = f"{protocol['name']} {protocol['version']}"
    return [
        f"this installation differs from {named} in its {', '.join(protocol['differs'])}: compare with care"
    ]


def few(truth: Truth) -> list[str]:
    n = len(truth.patients)
    if n < FEWEST:
        return [f"{n} patient{'s' * (n > 1)}: too few for intervals"]
    return [f"{counted(n, 'patient')}: intervals over so few are wide"] if n < 20 else []


def _add_matrices(scores: dict[str, Any], total: Tally) -> None:
    for cell in total.frame.cells:
        entry = scores["diagnosis"]["attributes"][cell.name]
        entry["scale"] = cell.attribute.space.scale
        entry["confusion"] = (
            total.matrix(cell)[0].astype(int).tolist()
        )  # rows: true grade; columns: given grade, last: none


def _add_boxes(scores: dict[str, Any], total: Tally) -> None:
    local = scores["localisation"]

    def add(entry: dict[str, Any], members: Sequence[int]) -> None:
        sums = dict(zip(BOX_SUMS, total.boxes[0, list(members)].sum(0).astype(int).tolist(), strict=True))
        missing = sums["wanted"] - sums["given"] - sums["unreadable"]
        kept = ("wanted", "given", "unreadable", "spurious", "rightly_none")
        entry["counts"] = {**{name: sums[name] for name in kept}, "missing": missing}
        entry["histogram"] = total.histogram[0, list(members)].sum(0).astype(int).tolist()

    add(local["box_micro"], range(len(REGION_IDS)))
    for name, entry in local["regions"].items():
        add(entry, [REGION_IDS.index(name)])
    for name, entry in local["structures"].items():
        add(entry, [i for i, r in enumerate(REGION_IDS) if REGIONS[r].structure == name])


def _correlation(truth: Truth, judged: Judged, weights: np.ndarray) -> dict[str, Leaf]:
    """Between a patient's mean IoU and the patient's accuracy, both strict: each patient is one point."""
    boxes, grades = patient_sums(truth, judged.iou, judged.wanted), grade_sums(truth, judged)
    iou, accuracy = me.ratio(*boxes), me.ratio(*grades)
    known = ~np.isnan(iou) & ~np.isnan(accuracy)
    x, y, once, drawn = iou[known], accuracy[known], np.ones((1, int(known.sum()))), weights[:, known]
    leaves = {}
    reason = "fewer than two patients differ"
    kinds: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "pearson": lambda w: me.correlation(x, y, w),
        "spearman": lambda w: me.correlation(me.ranks(x, w), me.ranks(y, w), w),
    }
    for name, of in kinds.items():
        samples = [of(block) for block in bootstrap.blocks(drawn)]
        few = known.sum() < FEWEST or not samples
        low, high = (np.array([np.nan]),) * 2 if few else bootstrap.intervals(np.concatenate(samples)[None])
        leaves[name] = leaf(float(of(once)[0]), float(low[0]), float(high[0]), float(known.sum()), reason)
    return leaves


def _beside_baselines(
    truth: Truth, predicted: Predictions, judged: Judged, guesses: Mapping[str, Predictions], draws: Draws
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Each baseline with the model's numbers where it has any, whether the model beats them all, and in which
    categories it beats the most frequent grade."""
    trees: dict[str, Any] = {name: {} for name in guesses}
    grades, boxes = {"": grade_sums(truth, judged)}, {"": patient_sums(truth, judged.iou, judged.wanted)}
    parts: dict[str, Any] = {}
    for name, guess in guesses.items():
        guessed = judge(truth, guess)
        counted = tally(truth, guess, guessed)
        of = localisation if name == "constant_box" else without_agreement
        _nest(trees[name], estimated(counted, draws.weights, of))
        if name == "constant_box":
            boxes[name] = patient_sums(truth, guessed.iou, guessed.wanted)
        else:
            grades[name] = grade_sums(truth, guessed)
        if name == "majority":
            parts = _by_category(truth, judged, guessed)
    gives_boxes = bool(((predicted.box_state == BOXED) & truth.has_box).any())
    said = evidence(grades, boxes, "", draws, gives_boxes)
    return trees or None, {**said, "categories": tested(parts, draws)}


def _by_category(truth: Truth, judged: Judged, guessed: Judged) -> dict[str, tuple[str, Sums, Sums]]:
    pairs = {}
    for i, category in enumerate(CATEGORIES):
        mine = CATEGORY_OF[truth.question] == i
        if mine.any():
            path = f"diagnosis.categories.{category.id}.accuracy.strict"
            pairs[category.id] = (path, grade_sums(truth, judged, mine), grade_sums(truth, guessed, mine))
    return pairs


def _runs(truth: Truth, runs: Mapping[str, Predictions]) -> dict[str, Any]:
    """Mean and spread of the headline numbers over runs of one model that differ by their seed."""
    totals = [tally(truth, run, judge(truth, run)).total for run in runs.values()]
    spread: dict[str, Any] = {}
    for points in zip(*(headline(total) for total in totals), strict=True):
        drawn = np.array([float(m.value[0]) for m in points])
        known = drawn[~np.isnan(drawn)]
        spread[".".join(points[0].path)] = {
            "values": [None if np.isnan(v) else float(v) for v in drawn],
            "mean": float(known.mean()) if len(known) else None,
            "standard_deviation": float(known.std(ddof=1)) if len(known) > 1 else None,
        }
    return {"names": [Path(name).name for name in runs], "measures": spread}
