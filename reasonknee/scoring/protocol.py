"""ReasonKnee-Bench as a named version: what is asked, how it is worded, how it is averaged, and how answers
are read. Every score carries its stamp.

A change of any of these is another version. `kit/protocol.json` has the digest of each part for the versions
so far; `make gen` writes those of the current one until it is listed as published.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reasonknee import answers
from reasonknee.errors import DataError
from reasonknee.layout.scores import AVERAGES, BASELINES, MODES, SCORES_VERSION
from reasonknee.questions import QUESTION_SETS, QUESTIONS
from reasonknee.questions.prompts import wordings
from reasonknee.scoring.intervals import FEWEST, FEWEST_OF_A_GRADE
from reasonknee.scoring.measures import TABLE2, TABLE3
from reasonknee.scoring.tally import IOU_BINS
from reasonknee.scoring.truth import Truth

NAME, VERSION = "ReasonKnee-Bench", "1.0"
KIT = Path(__file__).parent / "kit"
RECORD = KIT / "protocol.json"
TEXTS = KIT / "texts.jsonl"  # a question, a text and a convention a line: what the parser is known by


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parts() -> dict[str, str]:
    """The digest of each part, of this installation."""
    questions = {
        q.id: [
            q.category.id,
            q.region.id,
            [[a.id, a.space.scale, list(a.space.grades)] for a in q.attributes],
        ]
        for q in QUESTIONS.values()
    }
    sets = {name: [q.id for q in asked] for name, asked in QUESTION_SETS.items()}
    averages = [
        SCORES_VERSION,
        AVERAGES,
        MODES,
        BASELINES,
        IOU_BINS,
        TABLE2,
        TABLE3,
        FEWEST,
        FEWEST_OF_A_GRADE,
    ]
    return {
        "questions": digest([questions, sets]),
        "settings": digest({q.id: wordings(q) for q in QUESTIONS.values()}),
        "averages": digest(averages),
        "parser": digest(list(_read_texts())),
    }


def _read_texts() -> Iterable[dict[str, Any]]:
    for line in TEXTS.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        read = answers.read(
            QUESTIONS[case["question"]],
            case["text"],
            shape=(160, 384, 384),
            box_convention=case["convention"],
        )
        yield {"status": read.status, "grades": read.grades, "box": read.box and read.box.as_dict()}


def stamp(truth: Truth) -> dict[str, Any]:
    """What a score was made by: the version, the digest of all its parts, and that of the truth it is on."""
    mine = parts()
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))["versions"].get(VERSION, {})
    return {
        "name": NAME,
        "version": VERSION,
        "digest": digest(mine),
        "truth": truth_digest(truth),
        "differs": sorted(part for part in mine if mine[part] != recorded.get(part)),
    }


def truth_digest(truth: Truth) -> str:
    """Of the ids, true grades and true boxes, in the order of the ids: a corrected grade makes another."""
    order = sorted(range(len(truth)), key=truth.ids.__getitem__)
    told = hashlib.sha256("\n".join(truth.ids[i] for i in order).encode())
    for array, kind in ((truth.grades, "<i1"), (truth.boxes, "<i4"), (truth.has_box, "<i1")):
        told.update(array[order].astype(kind).tobytes())
    return told.hexdigest()[:16]


def check_truth(scores: dict[str, Any], truth: Truth, where: Path) -> None:
    """Refuses scores beside a truth that they are not of."""
    if truth_digest(truth) != scores["protocol"]["truth"]:
        told = f"{where}: scored against other grades, boxes or rows than this release has"
        raise DataError("S053", told, "score again, or name the release that it was scored against")


def write_record() -> None:
    """The digests of this version, unless it is published: then they are what they are."""
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    published = record.get("published", [])
    if VERSION not in published:
        versions = {**record.get("versions", {}), VERSION: parts()}
        RECORD.write_text(json.dumps({"published": published, "versions": versions}, indent=1) + "\n")
