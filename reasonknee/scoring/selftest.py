"""The conformance kit: a small golden release, golden predictions, and the scores that they must give.

    reasonknee selftest                      # does this installation score as it should
    reasonknee selftest --out kit            # the release and the predictions, for a scorer of your own
    reasonknee selftest --scores mine.json   # and whether it gives the same numbers

Counts must be equal, and numbers to twelve digits: the order in which a machine sums may change the last.
"""

from __future__ import annotations

import gzip
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from reasonknee.errors import DataError, UsageError
from reasonknee.layout.strict_text import parse_json
from reasonknee.scoring.bench import score
from reasonknee.scoring.protocol import KIT

RELEASE, PREDICTIONS, GOLDEN = KIT / "release", KIT / "predictions.jsonl", KIT / "scores.json.gz"
SAMPLES = 200
_LEFT_OUT = ("code_version", "protocol", "provenance")  # which say who scored and on what, not what came out
_DIGITS = 1e-12


class Outcome(NamedTuple):
    compared: int
    differences: list[str]  # in words, the first few
    different: int


def golden_scores() -> dict[str, Any]:
    return score(PREDICTIONS, RELEASE, "test", samples=SAMPLES, model="golden").scores


def check(scores: dict[str, Any] | None = None) -> Outcome:
    """This installation's scores against the golden ones, or given ones: numbers that they lack are not
    compared, as long as there are some."""
    golden = json.loads(gzip.decompress(GOLDEN.read_bytes()))
    mine = dict(_numbers(golden_scores() if scores is None else scores))
    wanted = dict(_numbers(golden))
    shared = [path for path in wanted if path in mine] if scores is not None else list(wanted)
    different = [path for path in shared if not _same(mine.get(path), wanted[path])]
    told = [f"{path}: {mine.get(path)}, not {wanted[path]}" for path in different[:10]]
    return Outcome(len(shared), told, len(different))


def check_file(path: Path) -> Outcome:
    try:
        outcome = check(parse_json(path.read_bytes(), path.name))
    except OSError as error:
        raise DataError("S040", f"{path}: {error.strerror}", "name a scores.json") from None
    if not outcome.compared:
        raise DataError(
            "S040", f"{path.name} has none of the golden numbers", "is it laid out as scores.json?"
        )
    return outcome


def copy_kit(out: Path) -> None:
    if out.exists():
        raise UsageError("S041", f"{out} exists", "name a folder that does not")
    shutil.copytree(RELEASE, out / "release")
    shutil.copy(PREDICTIONS, out / PREDICTIONS.name)
    (out / "scores.json").write_bytes(gzip.decompress(GOLDEN.read_bytes()))


def _numbers(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and null of a tree, by its path; words do not count."""
    if isinstance(tree, dict):
        for name, branch in tree.items():
            if path or name not in _LEFT_OUT:
                yield from _numbers(branch, f"{path}.{name}" if path else name)
    elif isinstance(tree, list):
        for i, branch in enumerate(tree):
            yield from _numbers(branch, f"{path}[{i}]")
    elif tree is None or isinstance(tree, (int, float)):
        yield path, tree


def _same(mine: Any, wanted: Any) -> bool:
    if isinstance(mine, (int, float)) and isinstance(wanted, float):
        return math.isclose(mine, wanted, rel_tol=_DIGITS, abs_tol=_DIGITS)
    return bool(mine == wanted)
