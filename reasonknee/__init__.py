"""3DReasonKnee: build, check, load, stream and score 3D grounded reasoning on knee MRI.

    import reasonknee as rk

    rows = rk.quintuples("release", "cropped", "train", seed=0)
    batches = rk.loader(rows, rk.Collator(fit="resize", grid=(32, 64, 64)), 4)

This is the front door: what users call, and little else. Each name is imported when it is first used, so that
`import reasonknee` loads none of torch, datasets and numpy. The rooms behind it (`reasonknee.questions`,
`reasonknee.stream`, ...) have the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from reasonknee.version import VERSION

if TYPE_CHECKING:
    from reasonknee.answers import read as read_answer
    from reasonknee.answers import write as write_answer
    from reasonknee.boxes import Box
    from reasonknee.builder import ReasonKnee
    from reasonknee.cohort import Cohort
    from reasonknee.collate import Batch, Collator, loader
    from reasonknee.errors import ReasonKneeError
    from reasonknee.questions import ATTRIBUTES, CATEGORIES, QUESTIONS, REGIONS
    from reasonknee.release import Options, build
    from reasonknee.scoring import compare, reward, score
    from reasonknee.stream import explode, pairs, quintuples
    from reasonknee.validation import validate
    from reasonknee.volumes import read_volume, volume_from_bytes

__version__ = VERSION

# The room of each name; a colon stands before what it is called there, where that differs.
_HOMES = {
    "ATTRIBUTES": "questions",
    "CATEGORIES": "questions",
    "QUESTIONS": "questions",
    "REGIONS": "questions",
    "Batch": "collate",
    "Box": "boxes",
    "Cohort": "cohort",
    "Collator": "collate",
    "Options": "release",
    "ReasonKnee": "builder",
    "ReasonKneeError": "errors",
    "build": "release",
    "compare": "scoring",
    "explode": "stream",
    "loader": "collate",
    "pairs": "stream",
    "quintuples": "stream",
    "read_answer": "answers:read",
    "read_volume": "volumes",
    "reward": "scoring",
    "score": "scoring",
    "validate": "validation",
    "volume_from_bytes": "volumes",
    "write_answer": "answers:write",
}

__all__ = [
    "ATTRIBUTES",
    "CATEGORIES",
    "QUESTIONS",
    "REGIONS",
    "Batch",
    "Box",
    "Cohort",
    "Collator",
    "Options",
    "ReasonKnee",
    "ReasonKneeError",
    "build",
    "compare",
    "explode",
    "loader",
    "pairs",
    "quintuples",
    "read_answer",
    "read_volume",
    "reward",
    "score",
    "validate",
    "volume_from_bytes",
    "write_answer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'reasonknee' has no attribute {name!r}")
    room, _, called = _HOMES[name].partition(":")
    value = getattr(import_module(f"reasonknee.{room}"), called or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
