"""What the controls of `ask` say of a run, paired by patient: do its answers depend on the image, or on the
place that the model pointed to, and are they better for it?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.release.reader import Release
from reasonknee.scoring.bench import Options, predictions_at, reading_of
from reasonknee.scoring.bootstrap import ALPHA
from reasonknee.scoring.predictions import stamp_at
from reasonknee.scoring.truth import read_truth

MEASURE = "averages.attribute_micro.strict"
_ASKED_OF = {
    "blank": ("a blank volume", "the image"),
    "swapped": ("another patient's volume", "whose image it is"),
    "text": ("no image", "the image"),
    "occluded": ("the model's own box blacked out", "the place that the model pointed to"),
}
_SAME = ("model", "setting", "view", "parameters", "margin_mm", "arm", "boxes", "release", "split")


def verdicts(
    models: Sequence[str], release: str, split: str, options: Options, result: Mapping[str, Any]
) -> list[str]:
    """A sentence for each run that is compared with a control of its own. `result` is the comparison."""
    stamps = {
        name: (Path(model), stamp)
        for model, name in zip(models, result["models"], strict=True)
        if (stamp := stamp_at(Path(model))) is not None
    }
    lines = []
    for name, (path, stamp) in stamps.items():
        for other, (controlled, its) in stamps.items():
            same = all(stamp.get(field) == its.get(field) for field in _SAME)
            if stamp["control"] or its["control"] not in _ASKED_OF or not same:
                continue
            changed, asked = _changed(path, controlled, release, split, options)
            plain, without, p = _measured(result, name, other)
            told = sentence(its["control"], changed, asked, plain, without, p)
            lines.append(f"{other}, a control of {name}: {told}")
    return lines


def sentence(control: str, changed: int, asked: int, plain: float, without: float, p: float) -> str:
    shown, what = _ASKED_OF[control]
    told = (
        f"with {shown}, {changed:,} of {asked:,} answers have other grades; accuracy {plain:.3f} becomes "
        f"{without:.3f} (p {p:.4f}, paired by patient). "
    )
    if not changed:
        return f"{told}The answers do not depend on {what}."
    if plain > without and p < ALPHA:
        return f"{told}The answers depend on {what}, and are better for it."
    return f"{told}The answers depend on {what}, but there is no evidence that they are better for it."


def _changed(path: Path, other: Path, release: str, split: str, options: Options) -> tuple[int, int]:
    """How many quintuples have other grades, of those that both runs answered."""
    opened = Release(release)
    truth = read_truth(opened, split).part(options.questions, options.categories)
    reading = reading_of(opened, split, options)
    a, b = (predictions_at(p, truth, reading, options.workers) for p in (path, other))
    both = (a.offset >= 0) & (b.offset >= 0)
    return int(np.any(a.grades != b.grades, axis=1)[both].sum()), int(both.sum())


def _measured(result: Mapping[str, Any], name: str, other: str) -> tuple[float, float, float]:
    """Accuracy of the run, accuracy under the control, and p."""
    for pair in result["pairs"]:
        if {pair["a"], pair["b"]} == {name, other}:
            entry = pair["measures"]["headline"][MEASURE]
            values = {pair["a"]: entry["a"], pair["b"]: entry["b"]}
            numbers = [values[name], values[other], entry["p"]]
            plain, without, p = (float("nan") if n is None else float(n) for n in numbers)
            return plain, without, p
    raise LookupError(f"{name} and {other}")  # every two models are compared
