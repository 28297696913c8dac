"""How the conformance kit is made (`python -m reasonknee.generate . kit`): a synthetic cohort, its release,
and predictions that err in every way that the scorer tells apart."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from reasonknee import answers
from reasonknee.boxes import Box
from reasonknee.cohort import Cohort
from reasonknee.cohort.annotations import FILE_NAME
from reasonknee.layout import Manifest, Shard, read_manifest
from reasonknee.phantom.cohort import write_cohort
from reasonknee.questions import Question, reasoning
from reasonknee.release import build
from reasonknee.scoring import selftest
from reasonknee.scoring.protocol import TEXTS, write_record
from reasonknee.scoring.truth import NONE, TABLE, Truth, read_truth
from reasonknee.system.files import sha256_of

_PATIENTS, _IN_TEST, _SHAPE = 11, 6, (16, 48, 48)


def write_kit() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        cohort, release = Path(scratch, "cohort"), Path(scratch, "release")
        write_cohort(cohort, _PATIENTS, seed=11, shape=_SHAPE)
        _one_scan_each(cohort / FILE_NAME)
        build(Cohort(cohort), release, ["annotations"])
        shutil.rmtree(selftest.RELEASE, ignore_errors=True)
        _packed(release, selftest.RELEASE)
    lines = _predictions(read_truth(selftest.RELEASE, "test"))
    selftest.PREDICTIONS.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    TEXTS.write_text("".join(json.dumps(case) + "\n" for case in _texts()), encoding="utf-8")
    write_record()
    scores = json.dumps(selftest.golden_scores(), allow_nan=False, separators=(",", ":")).encode()
    selftest.GOLDEN.write_bytes(gzip.compress(scores, 9, mtime=0))


def _one_scan_each(annotations: Path) -> None:
    """The first scan of each patient; some patients for the test split, the others for training."""
    first: dict[str, dict[str, Any]] = {}
    for line in annotations.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        first.setdefault(entry["patient"], entry)
    for i, entry in enumerate(first.values()):
        entry["split"] = "test" if i < _IN_TEST else "train"
    annotations.write_text("".join(json.dumps(entry) + "\n" for entry in first.values()), encoding="utf-8")


def _packed(release: Path, out: Path) -> None:
    """Each shard as one row group, well compressed: the kit is part of every installation."""
    import pyarrow.parquet as pq

    manifest = read_manifest(release)
    shards: list[Shard] = []
    for shard in manifest.shards:
        path = out / shard.path
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pq.read_table(release / shard.path)
        pq.write_table(table, path, compression="zstd", compression_level=19, row_group_size=len(table))
        shards.append(replace(shard, bytes=path.stat().st_size, sha256=sha256_of(path)))
    packed: Manifest = replace(manifest, shards=tuple(shards), files={})
    (out / "manifest.json").write_text(packed.to_json(), encoding="utf-8")


def _predictions(truth: Truth) -> list[dict[str, Any]]:
    rnd = random.Random(5)
    lines: list[dict[str, Any]] = []
    for row, id_ in enumerate(truth.ids):
        question = TABLE[truth.question[row]]
        known = {
            a.id: int(g) for a, g in zip(question.attributes, truth.grades[row], strict=False) if g != NONE
        }
        grades = {
            a.id: known[a.id] if a.id in known and rnd.random() < 0.7 else rnd.choice(list(a.space.grades))
            for a in question.attributes
        }
        box = Box(*truth.boxes[row].tolist()) if truth.has_box[row] else None
        lines.append({"id": id_, **_answer(question, grades, _moved(box, rnd), row % 16, rnd)})
    return [line for i, line in enumerate(lines) if i % 29] + [lines[1], {**lines[2], "response": "Unsure."}]


def _moved(box: Box | None, rnd: random.Random) -> Box | None:
    if box is None or rnd.random() < 0.1:
        return None
    shift = [min(rnd.randrange(3), size - stop) for stop, size in zip(box.stop, _SHAPE, strict=True)]
    return box.moved(shift)


def _answer(
    question: Question, grades: dict[str, int], box: Box | None, kind: int, rnd: random.Random
) -> dict[str, Any]:
    sure = {"confidence": round(rnd.random(), 2)}
    if kind == 0:
        return {"response": "I cannot tell."}
    if kind == 1:
        return {"response": json.dumps({"grades": dict.fromkeys(grades, 99), "box": [9, 3, 1, 2, 1, 2]})}
    if kind == 2:
        steps = "\n".join(reasoning.steps(question, grades, box))
        return {"response": f"{steps}\n{answers.write(question, grades, box)}", **sure}
    if kind in (3, 4, 9, 10, 11):
        return {"response": answers.write(question, grades, box), **sure}
    return {"grades": grades, "box": box and box.as_dict(), **sure}


def _texts() -> list[dict[str, str]]:
    """What the parser is known by: forms that it must read, and some that it must not."""
    bml, one = "tibia_medial_anterior_bml", "hoffa_synovitis"
    texts = [
        (bml, '{"grades": {"size": 2, "number": 1, "percent_bml": 3}, "box": [10, 42, 80, 131, 64, 120]}'),
        (bml, "Size: 2. Number: 1. Percent: 3."),
        (bml, '<think>{"size": 3}</think> {"size": 2, "number": 1, "percent_bml": 3}'),
        (bml, '{"size": 2, "number": 1, "percent_bml": 3} or {"size": 1, "number": 1, "percent_bml": 3}'),
        (bml, '{"size": 2, "number": 1'),
        (bml, '{"size": 9, "number": 1, "percent_bml": 3}'),
        (one, "Grade 2"),
        (one, "The grade is 1 or 2."),
        (one, "Final diagnosis: grade 3."),
        (one, '{"MOAKS_scores": {"Hoffa": {"grade": 1}}}'),
        (one, '{"grade": 2, "box": [10.5, 41.2, 80, 130.5, 64, 119.1]}'),
        (one, '{"grade": 2, "bbox": "<|box_start|>[64,80,10,120,131,42]<|box_end|>"}'),
        ("acl", '{"complete_tear": "yes", "insertion_bml_cyst": 0, "repair": false}'),
        ("acl", "not a word of it"),
    ]
    six = '{"grade": 2, "box": [10, 41, 64, 119, 80, 130]}'
    return [{"question": q, "text": t, "convention": "canonical"} for q, t in texts] + [
        {"question": one, "text": six, "convention": c} for c in answers.CONVENTIONS
    ]
