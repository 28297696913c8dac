"""The readers' ceiling: how far two readers of the same knee agree, on the scale of the model's numbers.

Where a release has second readings, they are scored like a model's answers, on the judgments that were read
twice; the model's numbers on the same judgments stand beside them. A human reader's predictions are a file
like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from reasonknee.scoring.lines import PARSED
from reasonknee.scoring.measures import diagnosis
from reasonknee.scoring.predictions import Predictions
from reasonknee.scoring.tally import Tally, judge, tally
from reasonknee.scoring.truth import NONE, Truth


def read_twice(truth: Truth) -> Truth | None:
    """The truth with only those grades that have a second reading; None if there is none."""
    if truth.second is None:
        return None
    grades = np.where(truth.second != NONE, truth.grades, NONE).astype(np.int8)
    return replace(truth, grades=grades) if (grades != NONE).any() else None


def ceiling(
    truth: Truth, predicted: Predictions, nested: Callable[[Tally, Any], dict[str, Any]]
) -> dict[str, Any] | None:
    """Agreement of the readers, and of the model with the first of them, on what was read twice; `nested`
    makes the tree of some measures of a tally."""
    twice = read_twice(truth)
    if twice is None or truth.second is None:
        return None
    second = Predictions.empty(len(truth))
    second.grades[:], second.status[:] = truth.second, PARSED
    trees = {
        name: nested(tally(twice, given, judge(twice, given)), diagnosis)
        for name, given in (("readers", second), ("model", predicted))
    }
    asked = twice.grades != NONE
    patients = len(np.unique(truth.patient[asked.any(1)]))
    return {"judgments": int(asked.sum()), "patients": patients, **trees}
