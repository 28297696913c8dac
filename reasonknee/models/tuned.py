"""What a run leaves: weights, a card, and on demand a model in which the adapter is merged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reasonknee.errors import UsageError
from reasonknee.models.evaluating import Evaluation
from reasonknee.models.local import Local, check_name, copy_processor
from reasonknee.models.training_rows import Recipe
from reasonknee.system.files import write_text
from reasonknee.system.folders import whole_folder

LOOKS = "validation.jsonl"  # of a run: each look at the validation split
SCORES = ("model-index.yaml", ".eval_results/reasonknee-bench.yaml", "scores.md")  # of `score --out`
_HEAD = "---\n"


def save(local: Local, recipe: Recipe, name: str, folder: Path) -> None:
    """Weights and tokenizer; for a whole model also how it sees, without which frames get other sizes."""
    local.model.save_pretrained(str(folder))
    local.tokenizer.save_pretrained(str(folder))
    if recipe.full:
        copy_processor(name, folder)


def card(
    model: str, recipe: Recipe, stamp: Mapping[str, Any], steps: str, look: Mapping[str, Any] | None
) -> str:
    """The model card: what it was made of, and how it did on the validation split where it was looked at."""
    taught = recipe.teaching
    kind = "transformers" if recipe.full else "peft"
    return f"""{_HEAD}base_model: {model}
library_name: {kind}
tags: [{stamp["data"]}]
{_HEAD}# Fine-tuned on {stamp["data"]}

| | |
|---|---|
| base model | {model} |
| data | {stamp["data"]} {stamp["release_version"]}, split train |
| code | reasonknee {stamp["code_version"]} |
| view | {recipe.view.name} |
| arm, setting, reasoning | {taught.arm}, {taught.setting}, {taught.reasoning} |
| packed, weighting, sampling | {recipe.packed}, {recipe.weighting}, {recipe.sampling} |
| rate, rank, alpha, dropout | {recipe.rate:g}, {recipe.rank}, {recipe.alpha}, {recipe.dropout:g} |
| forwards a step, seed | {recipe.accumulate}, {recipe.seed} |
| steps, loss | {steps} |
| validation | {_told(look)} |

It is no medical device. Score it with `reasonknee ask` and `reasonknee score` before you trust a word of it.
"""


def _told(look: Mapping[str, Any] | None) -> str:
    if look is None:
        return "not looked at"
    iou = "no boxes" if look["iou"] != look["iou"] else f"IoU {look['iou']:.3f}"
    return (
        f"step {look['step']}: {look['asked']} questions, {look['parsed']:.1%} can be read, accuracy "
        f"{look['accuracy']:.3f}, {iou}"
    )


def looks(path: Path) -> list[dict[str, Any]]:
    """The looks at the validation split of a run so far."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def score_of(look: Mapping[str, Any]) -> float:
    return Evaluation(**{k: v for k, v in look.items() if k != "step"}).score


def look_at(seen: Sequence[Mapping[str, Any]], step: int) -> Mapping[str, Any] | None:
    """The look at weights of this step, if there was one."""
    return next((look for look in seen if look["step"] == step), None)


def merge(adapter: Path, out: Path, model: str | None = None, scores: Path | None = None) -> Path:
    """The adapter's model with the adapter in its weights, which needs no peft any more. `scores` is what
    `score --out` wrote of its answers."""
    try:
        known = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UsageError("N092", f"{adapter} is no adapter", "give RUN/adapter or RUN/best") from None
    missing = [str(scores / name) for name in SCORES if scores and not (scores / name).is_file()]
    if missing:
        raise UsageError("N092", f"{missing[0]} is not there", "give the folder that `score --out` wrote")
    if out.exists():
        raise UsageError("N092", f"{out} exists", "choose a new folder")
    base = model or known.get("base_model_name_or_path") or ""
    check_name(base)
    local = Local.load(base, adapter=str(adapter))
    merged = local.model.merge_and_unload(safe_merge=True)
    with whole_folder(out) as folder:
        merged.save_pretrained(str(folder))
        local.tokenizer.save_pretrained(str(folder))
        copy_processor(base, folder)
        write_text(folder / "README.md", _merged_card(adapter, base, scores))
        if scores:
            target = folder / SCORES[1]
            target.parent.mkdir()
            shutil.copyfile(scores / SCORES[1], target)
    return out


def _merged_card(adapter: Path, base: str, scores: Path | None) -> str:
    """The adapter's card, as that of a whole model, with its scores."""
    path = adapter / "README.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else f"{_HEAD}base_model: {base}\n{_HEAD}"
    _, head, body = text.split(_HEAD, 2)
    head = head.replace("library_name: peft", "library_name: transformers")
    if scores is None:
        return f"{_HEAD}{head}{_HEAD}{body}"
    index, table = ((scores / name).read_text(encoding="utf-8") for name in (SCORES[0], SCORES[2]))
    return f"{_HEAD}{head}{index}{_HEAD}{body}\n{table}"
