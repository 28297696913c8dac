"""62 questions on one volume, locally: one prefix for all of them against one request a question, in
upstream's way.

The same model (a random Qwen2.5-VL of the real class), the same frames, the same positions, the same answers,
which are compared word for word. And what the journal takes of a run. All in seconds of processor, on one
thread: on a busy machine, what the clock says is not ours.

    python benchmarks/asking.py --slices 80 --size 224 --tokens 24 --out docs/bench/asking.json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slices", type=int, default=80)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--questions", type=int, default=62)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    import numpy as np
    import tiny_models
    import torch

    from reasonknee.models import Parameters, View
    from reasonknee.models.local import Local
    from reasonknee.questions import QUESTION_SETS
    from reasonknee.questions.prompts import ask
    from reasonknee.volumes import Grid, Volume

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = tiny_models.checkpoint("qwen2_5_vl", Path(name) / "model", layers=4, width=128)
        model = Local.load(str(folder), dtype="float32", batch=given.batch)
        shape = (given.slices, given.size, given.size)
        array = np.random.default_rng(0).integers(0, 400, shape).astype(np.uint16)
        volume = Volume(array, Grid(shape, np.diag([0.4, -0.4, 0.7, 1.0])))
        showing = model.fitted(View().show(volume, "right"))
        texts = [ask(q, "zero_shot", showing.told) for q in list(QUESTION_SETS["paper62"])[: given.questions]]
        parameters = Parameters(max_tokens=given.tokens)
        list(model.replies(showing, texts[:1], Parameters(max_tokens=2)))  # what is loaded at first use
        start = time.process_time()
        ours = list(model.replies(showing, texts, parameters))
        shared = time.process_time() - start
        start = time.process_time()
        single = [next(iter(model.replies(showing, [text], parameters))) for text in texts]
        alone = time.process_time() - start
        journal = _journal(Path(name), ours)
    result: dict[str, Any] = {
        "questions": len(texts),
        "shared_prefix_tokens": ours[1].cached_tokens,
        "prompt_tokens": sum(r.prompt_tokens for r in ours) // len(ours),
        "answer_tokens": given.tokens,
        "processor_seconds_shared": round(shared, 3),
        "processor_seconds_one_by_one": round(alone, 3),
        "times": round(alone / shared, 2),
        "same_answers": sum(a.text == b.text for a, b in zip(ours, single, strict=True)),
        "distinct_answers": len({r.text for r in ours}),
        "journal_share": round(journal / shared, 5),
    }
    print(json.dumps(result, indent=1))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _journal(folder: Path, replies: list[Any]) -> float:
    """Seconds to write these answers down."""
    from reasonknee.models.journal import Entry, Journal

    with Journal(folder / "run") as journal:
        start = time.process_time()
        for number, reply in enumerate(replies):
            journal.write(Entry(str(number), str(number), "answer", "v", None, reply))
        return time.process_time() - start


if __name__ == "__main__":
    main()
