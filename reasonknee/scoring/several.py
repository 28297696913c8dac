"""Several models and baselines on the same patients: files in, differences out. See `comparison`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reasonknee.errors import UsageError
from reasonknee.layout.scores import BASELINES
from reasonknee.release.reader import Release
from reasonknee.scoring import baselines
from reasonknee.scoring.bench import Options, Place, few, name_of, predictions_at, reading_of
from reasonknee.scoring.comparison import Draws, comparisons, how_many_tests
from reasonknee.scoring.measures import compared
from reasonknee.scoring.tally import Tally, judge, tally
from reasonknee.scoring.truth import read_truth


def compare(
    models: Sequence[Place],
    release: Place,
    split: str = "test",
    options: Options | None = None,
    **changed: Any,
) -> dict[str, Any]:
    """Models and baselines on the same patients: every pair, by headline numbers, category, region and
    structure. A model is a file of predictions, a rows.parquet, or the name of a baseline."""
    chosen = replace(options or Options(), **changed)
    if len(models) < 2:
        raise UsageError(
            "S032", "one model alone has nothing to be compared with", "name another, or a baseline"
        )
    opened = Release(release)
    truth = read_truth(opened, split).part(chosen.questions, chosen.categories)
    tallies: dict[str, Tally] = {}
    reading = reading_of(opened, split, chosen)
    named = [str(m) for m in models if str(m) in BASELINES and not Path(m).exists()]
    train = read_truth(opened, "train").part([q.id for q in truth.questions]) if named else None
    for model in models:
        if str(model) in named and train is not None:
            predicted = baselines.predict(str(model), train, truth, opened)
        else:
            predicted = predictions_at(Path(model), truth, reading, chosen.workers)
        tallies[_name_of(model, tallies)] = tally(truth, predicted, judge(truth, predicted))
    tests = how_many_tests(tallies, named, compared)
    draws = Draws(len(truth.patients), chosen.samples, chosen.seed, tests)
    short = f"{draws.too_few(tests)[:-1]}: the largest table corrects for {tests}"
    return {
        "models": list(tallies),
        "baselines": named,
        "split": split,
        "patients": len(truth.patients),
        "bootstrap": chosen.samples,
        "permutations": len(draws.swaps),
        "seed": chosen.seed,
        "warnings": few(truth) + [short] * bool(len(draws.swaps) and draws.too_few(tests)),
        "pairs": comparisons(tallies, named, draws, compared),
    }


def _name_of(model: Place, taken: Mapping[str, Any]) -> str:
    """What a file is called in a comparison; a number if taken."""
    name = name_of(Path(model))
    return name if name not in taken else f"{name} ({len(taken) + 1})"
