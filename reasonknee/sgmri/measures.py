"""What one answer is worth, by the paper's definitions. Each measure is a number, or NaN where it does not
apply.

- A: yes or no, a count and a single choice are right or wrong; several choices give the F1 of the two sets.
- V: true and predicted boxes are matched one to one for the largest overlap, on a volume within a frame; the
  mean IoU over the true boxes. Boxes too many cost nothing (a grid of boxes gets 1), so precision, recall and
  F1 at IoU 0.1, 0.25 and 0.5 always stand beside it.
- BLEU (nltk, smoothing method 1, lower case, split at blanks) and ROUGE-L (rouge_score, stemmed, F) of a text
  against the right answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import numpy as np

from reasonknee.errors import UsageError
from reasonknee.sgmri.answers import Said
from reasonknee.sgmri.frames import FrameBox, iou
from reasonknee.sgmri.records import Record

THRESHOLDS = (0.1, 0.25, 0.5)
TEXT_TASKS = ("localization", "captioning")
_KEPT = 1 << 15  # texts and pairs of texts whose scores and tokens are remembered
_EXTRA = "pip install 'reasonknee[sgmri]'"


@dataclass
class Measured:
    """One answer, measured. `hits[t]` is (matched, predicted, true) boxes at THRESHOLDS[t]."""

    status: str  # answered, unread or missing
    a: float = math.nan
    v: float = math.nan
    hits: list[tuple[int, int, int]] = field(default_factory=lambda: [(0, 0, 0)] * len(THRESHOLDS))
    bleu: float = math.nan
    rouge: float = math.nan

    def f1(self, threshold: int) -> float:
        matched, predicted, true = self.hits[threshold]
        return 2 * matched / (predicted + true) if true else math.nan


def measure(record: Record, said: Said | None, texts: bool = True) -> Measured:
    """`said` is None where there is no prediction; what cannot be read counts as wrong and says so."""
    measured = Measured("missing" if said is None else "answered")
    said = said or Said()
    if record.task not in TEXT_TASKS:
        measured.a, read = _a_score(record, said)
        if not read and measured.status == "answered":
            measured.status = "unread"
    if record.task == "localization" and record.boxes:
        measured.v, measured.hits = box_scores(record.boxes, said.boxes)
        if not said.boxes and measured.status == "answered":
            measured.status = "unread"
    elif record.task == "captioning" and not said.text.strip() and measured.status == "answered":
        measured.status = "unread"
    if texts and record.task in TEXT_TASKS:
        measured.bleu, measured.rouge = text_scores(record.answer.text, said.text)
    return measured


def _a_score(record: Record, said: Said) -> tuple[float, bool]:
    answer = record.answer
    match answer.kind:
        case "yes_no":
            return float(said.yes is answer.yes), said.yes is not None
        case "count":
            return float(said.count == answer.count), said.count is not None
        case "single_choice":
            return float(said.letters == answer.letters), bool(said.letters)
        case "multiple_choice":
            both = len(set(said.letters) & set(answer.letters))
            total = len(said.letters) + len(answer.letters)
            return 2 * both / total if total else 0.0, bool(said.letters)
        case _:  # a published answer that is not of its type: compared as words
            return float(said.text.strip().lower() == answer.text.strip().lower()), bool(said.text)


def box_scores(true: list[FrameBox], predicted: list[FrameBox]) -> tuple[float, list[tuple[int, int, int]]]:
    """V, and matched, predicted and true boxes at each threshold."""
    overlaps = _matched_overlaps(true, predicted)
    hits = [(int((overlaps >= t).sum()), len(predicted), len(true)) for t in THRESHOLDS]
    return float(overlaps.sum() / len(true)), hits


def _matched_overlaps(true: list[FrameBox], predicted: list[FrameBox]) -> np.ndarray:
    """The IoU of each matched pair; matching is within a frame, where alone boxes can overlap."""
    from scipy.optimize import linear_sum_assignment

    pairs: list[float] = []
    by_frame: dict[int, list[FrameBox]] = {}
    for box in predicted:
        by_frame.setdefault(box.frame, []).append(box)
    for frame in {box.frame for box in true} & set(by_frame):
        own = [box for box in true if box.frame == frame]
        table = np.array([[iou(a, b) for b in by_frame[frame]] for a in own])
        rows, columns = linear_sum_assignment(table, maximize=True)
        pairs += table[rows, columns].tolist()
    return np.array(pairs)


@lru_cache(_KEPT)
def text_scores(reference: str, text: str) -> tuple[float, float]:
    """BLEU and ROUGE-L. The baselines say few texts, and many references are the same, so pairs are kept."""
    sentence_bleu, smoothing, scorer = _text_tools()
    if not text.strip():
        return 0.0, 0.0
    bleu = sentence_bleu([reference.lower().split()], text.lower().split(), smoothing_function=smoothing)
    return float(bleu), float(scorer.score(reference, text)["rougeL"].fmeasure)


@cache
def _text_tools() -> tuple[Any, Any, Any]:
    try:
        from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
        from rouge_score.rouge_scorer import RougeScorer
        from rouge_score.tokenizers import DefaultTokenizer
    except ImportError:
        raise UsageError("Z020", "BLEU and ROUGE-L need nltk and rouge-score", _EXTRA) from None
    scorer = RougeScorer(["rougeL"], tokenizer=_Kept(DefaultTokenizer(use_stemmer=True)))
    return sentence_bleu, SmoothingFunction().method1, scorer


class _Kept:
    """A tokenizer that stems a text once: each reference is compared with the model and every baseline."""

    def __init__(self, inner: Any) -> None:
        self.tokenize = lru_cache(_KEPT)(inner.tokenize)
