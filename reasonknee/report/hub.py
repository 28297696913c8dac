"""What the Hub reads: `eval.yaml` for the benchmark's repository, and the entries that a model's
repository keeps in `.eval_results/`."""

from __future__ import annotations

from typing import Any

from reasonknee.layout.scores import AVERAGES
from reasonknee.report.rows import Leaf, at

DATASET = "rajpurkarlab/3DReasonKnee"
SYNTHETIC = "synthetic"  # a score on phantoms is no entry of the benchmark
_TASKS: dict[str, tuple[str, ...]] = {name: ("averages", name, "strict") for name in AVERAGES}
_TASKS["box_iou"] = ("localisation", "box_micro", "iou", "strict")


def eval_yaml(split: str = "test") -> str:
    """The benchmark as the Hub registers it: one task per headline number."""
    import yaml

    described = {
        "name": "ReasonKnee-Bench",
        "description": "Grounded diagnosis on 3D knee MRI: MOAKS grades and 3D boxes. Shares from 0 to 1; "
        "what is not answered counts as wrong.",
        "tasks": [{"id": task, "config": "annotations", "split": split} for task in _TASKS],
    }
    return yaml.safe_dump(described, sort_keys=False, allow_unicode=True, width=150)


def eval_results_yaml(scores: dict[str, Any], dataset: str = DATASET) -> str:
    """One entry per headline number that is defined; the notes carry the interval and the coverage."""
    import yaml

    entries = []
    for task, path in _TASKS.items():
        leaf = at(scores, *path)
        if leaf["value"] is not None:
            entries.append(
                {
                    "dataset": {"id": dataset, "task_id": task},
                    "value": round(leaf["value"], 6),
                    "notes": _notes(scores, path, leaf),
                }
            )
    return yaml.safe_dump(_checked(entries), sort_keys=False, allow_unicode=True, width=150)


def model_card_yaml(scores: dict[str, Any], dataset: str = DATASET) -> str:
    """The `model-index` of a model's card (README.md): the same numbers, where older tools look for them."""
    import yaml

    metrics = [
        {"type": task, "value": round(leaf["value"], 6), "name": f"{task.replace('_', ' ')}, strict"}
        for task, path in _TASKS.items()
        if (leaf := at(scores, *path))["value"] is not None
    ]
    result = {
        "task": {"type": "image-text-to-text"},
        "dataset": {"name": "ReasonKnee-Bench", "type": dataset, "split": scores["split"]},
        "metrics": metrics,
    }
    if "/" in dataset:  # a synthetic release lies nowhere
        url = f"https://huggingface.co/datasets/{dataset}"
        result["source"] = {"name": f"ReasonKnee-Bench {scores['protocol']['version']}", "url": url}
    return yaml.safe_dump(
        {"model-index": [{"name": scores["model"], "results": [result]}]},
        sort_keys=False,
        allow_unicode=True,
        width=150,
    )


def _notes(scores: dict[str, Any], path: tuple[str, ...], leaf: Leaf) -> str:
    if path[0] == "averages":
        covered = at(scores, *path[:-1], "coverage")["value"] or 0.0
    else:  # of the boxes that were wanted, those that were given
        covered = at(scores, *path[:-1], "answered")["n"] / leaf["n"] if leaf["n"] else 0.0
    ends = f"95 % over patients {leaf['low']:.4f} to {leaf['high']:.4f}, " if leaf["low"] is not None else ""
    return (
        f"strict, {ends}coverage {covered:.4f}, n {leaf['n']}, release {scores['release_version']}, split "
        f"{scores['split']}, {scores['protocol']['name']} {scores['protocol']['version']} "
        f"({scores['protocol']['digest']})"
    )


def _checked(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Through the Hub client's own type where it has one, so that its rules are the ones kept."""
    try:
        from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    except ImportError:
        return entries
    made = [
        EvalResultEntry(e["dataset"]["id"], e["dataset"]["task_id"], e["value"], notes=e["notes"])
        for e in entries
    ]
    converted: list[dict[str, Any]] = eval_result_entries_to_yaml(made)
    return converted
