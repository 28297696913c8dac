"""docs/learn.md from the results of benchmarks/learn.py. Every number and every comparison in words is made
here from the results, so that another run gives another page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reasonknee.errors import counted
from reasonknee.system.files import write_text

PATIENTS, STEPS = 120, 1000  # of a run without words of its own
SIDE_BY_SIDE = (("direct", "grpo", "reasoning"), ("region",))  # a process of one thread each, about as long
_ACCURACY = "averages.attribute_micro.strict"
_IOU = "localisation.box_micro.iou.strict"
_WHAT = {
    "direct": "the whole volume, the JSON alone",
    "reasoning": "the whole volume, steps, then the JSON",
    "region": "the true region alone, the JSON alone",
    "region_reasoning": "the true region alone, steps, then the JSON",
    "locate_then_grade": "the box that `direct` drew, graded by `region`",
    "grpo": "`direct`, then GRPO",
    "grpo_reasoning": "`reasoning`, then GRPO",
}
# a, b: what the difference would say
_ASKED = (
    (
        "direct",
        "majority",
        "Does a model that sees the whole volume grade better than one that sees nothing?",
    ),
    ("direct", "constant_box", "Does it find regions better than the mean place?"),
    ("reasoning", "direct", "Does it help to be taught the reasoning?"),
    ("region", "majority", "Does the true region help to grade?"),
    ("locate_then_grade", "direct", "Is it better to locate first, and grade what was cut out?"),
    ("region", "locate_then_grade", "What does one's own box cost, against the true one?"),
    ("grpo", "direct", "What does reinforcement add?"),
)


def write_page(whole: dict[str, Any], page: Path) -> None:
    write_text(page, "\n".join([*_head(whole), *_table(whole), *_answers(whole), *_runs(whole)]) + "\n")


def needed(compared: dict[str, Any]) -> dict[str, Any]:
    """Of a comparison what the page tells: a hundredth of it."""
    asked = [{a, b} for a, b, _ in _ASKED]
    pairs = []
    for pair in compared["pairs"]:
        if {pair["a"], pair["b"]} in asked:
            headline = {m: v for m, v in pair["measures"]["headline"].items() if m in (_ACCURACY, _IOU)}
            measures = {"headline": headline, "categories": pair["measures"]["categories"]}
            pairs.append({"a": pair["a"], "b": pair["b"], "measures": measures})
    return {**compared, "pairs": pairs}


def _head(whole: dict[str, Any]) -> list[str]:
    depth, height, width = whole["shape"]
    volumes, patients = whole["volumes"], whole["comparison"]["patients"]
    took, chains = {name: run["minutes"] for name, run in whole["runs"].items()}, whole["side_by_side"]
    beside = [sum(took.pop(name, 0.0) for name in chain) for chain in chains]
    minutes = max(beside, default=0) + sum(took.values())
    how = "in two processes" if chains else "one run after another"
    cpu = sum(run["cpu"] for run in whole["runs"].values())
    load = max(run["load"] for run in whole["runs"].values())
    return [
        "# What a small model learns on synthetic knees",
        "",
        "This page is written by `make learn`. The paper's table, on a phantom cohort that anyone can make: "
        "a model is taught with and without reasoning, on whole volumes and on regions, and by "
        "reinforcement; each run is asked by `ask`, scored by `score` on the test split, and compared with "
        "the others by `compare`.",
        "",
        f"- *Cohort*: {counted(whole['patients'], 'phantom patient')}, volumes of {depth} x {height} x "
        f"{width} voxels: {volumes['train']} to learn from, {volumes['validation']} for choices, "
        f"{volumes['test']} of {counted(patients, 'patient')} to test.",
        f"- *Model*: Qwen2.5-VL's classes, {whole['parameters']:,} random weights, and "
        f"{whole['vocabulary']:,} tokens, among them the dataset's own phrases: a model of this size has "
        "no capacity to spell.",
        f"- *Cost*: {minutes:.0f} minutes on the clock, {how} with one thread each, and {cpu:.0f} of a "
        f"processor; up to {load:.0f} processes wanted the machine's cores.",
        "- One seed. Choices were made on the validation split: of each run the weights that did best there.",
        *_short(whole),
        "",
        "A phantom's lesions follow its grades, and nothing else is wrong with it. What helps here may not "
        "help with knees; what does not help here has had an easy chance. And a model of a million random "
        "weights is no Qwen2.5-VL-3B.",
        "",
    ]


def _short(whole: dict[str, Any]) -> list[str]:
    """Whether this is less than the defaults, which are meant for two cores and half an hour."""
    taught = {name: run["steps"] for name, run in whole["runs"].items() if "steps" in run}
    longest = max(taught.values())
    if (whole["patients"], longest) >= (PATIENTS, STEPS):
        return []
    return [
        f"- *A short run*: without words of its own `make learn` takes {PATIENTS} patients and {STEPS:,} "
        "steps. A "
        "run whose accuracy is the majority's, and whose IoU is below the constant box's, has learned "
        "the form of an answer and which grades are frequent. It has not learned to look, and says "
        "nothing about what helps to look.",
        *_unequal(taught),
    ]


def _unequal(taught: dict[str, int]) -> list[str]:
    """Arms that were taught for another number of steps differ in more than in what they were taught."""
    if len(set(taught.values())) < 2:
        return []
    steps = ", ".join(f"{name} {count:,}" for name, count in taught.items())
    return [
        f"- *Unequal steps* ({steps}): where two of them are compared below, the difference is also one of "
        "time, and answers that could not be read count as wrong. It is no evidence on what is taught."
    ]


def _table(whole: dict[str, Any]) -> list[str]:
    lines = ["| run | shown, taught | steps | readable | accuracy | IoU |", "|---|---|---|---|---|---|"]
    for name, run in whole["runs"].items():
        covered = run["averages"]["attribute_micro"]["coverage"]["value"]
        lines.append(
            f"| {name} | {_WHAT[name]} | {run.get('steps', '')} | {covered:.0%} "
            f"| {_told(_at(run, _ACCURACY))} | {_told(_at(run, _IOU)) if _draws(name) else ''} |"
        )
    for name, scores in whole["baselines"].items():
        lines.append(f"| *{name}* | | | | {_told(_at(scores, _ACCURACY))} | {_told(_at(scores, _IOU))} |")
    return [
        *lines,
        "",
        "Accuracy counts attributes (a question without an answer is wrong), IoU boxes; in brackets the 95 % "
        "interval over patients. Runs on the true region draw no box.",
        "",
    ]


def _draws(name: str) -> bool:
    return not name.startswith("region")


def _answers(whole: dict[str, Any]) -> list[str]:
    """Questions that were asked before the run, each with its paired difference."""
    lines = [
        "## What it says",
        "",
        "Paired differences on the same patients, a less b. An interval that holds 0 shows no difference: it "
        "says nothing about one that is smaller than the interval.",
        "",
        "| question | a | b | measure | difference | |",
        "|---|---|---|---|---|---|",
    ]
    for a, b, asked in _ASKED:
        measure = _IOU if b == "constant_box" else _ACCURACY
        found = _pair(whole, a, b, measure)
        if found is not None:
            name = "IoU" if measure == _IOU else "accuracy"
            lines.append(f"| {asked} | {a} | {b} | {name} | {_told(found, '+')} | {_verdict(found)} |")
    return [*lines, "", *_categories(whole)]


def _verdict(found: dict[str, Any]) -> str:
    if found.get("low") is None:
        return "too few patients for an interval"
    if found["low"] > 0:
        return "a is better"
    return "b is better" if found["high"] < 0 else "no difference shown"


def _categories(whole: dict[str, Any]) -> list[str]:
    """Where regions help, and where they do not."""
    pair = _of(whole, "region", "majority")
    if pair is None:
        return []
    lines = ["Grades on the true region less those of the majority, by category:", ""]
    lines += ["| category | region | majority | difference |", "|---|---|---|---|"]
    compared, sign = pair
    for measure, found in compared["measures"]["categories"].items():
        ends = (found["a"], found["b"]) if sign == 1 else (found["b"], found["a"])
        if None not in ends:
            told = _told(_turned(found["difference"], sign), "+")
            lines.append(f"| {measure.split('.')[2]} | {ends[0]:.3f} | {ends[1]:.3f} | {told} |")
    return [*lines, ""]


def _runs(whole: dict[str, Any]) -> list[str]:
    lines = ["## How the runs went", "", "Accuracy and IoU on validation volumes, look by look:", ""]
    for name, run in whole["runs"].items():
        if "validation" in run:
            looks = "; ".join(
                f"step {look['step']}: {look['accuracy']:.3f}"
                + (f", {look['iou']:.3f}" if _draws(name) and look["iou"] == look["iou"] else "")
                for look in run["validation"]
            )
            lines.append(f"- *{name}* (rate {run['rate']:g}): {looks}.")
    for name, run in whole["runs"].items():
        if "parts" in run:
            ends = ", ".join(f"{part} {a:.3f} to {b:.3f}" for part, (a, b) in run["parts"].items())
            lines += [
                "",
                f"*{name}*, mean of the sampled answers in the first and the last fifth of "
                f"{run['steps']} steps: {ends}. "
                "`flat` is the share of questions whose answers all earned the same: they teach nothing.",
            ]
    return lines


def _at(scores: dict[str, Any], path: str) -> dict[str, Any]:
    found: Any = scores
    for part in path.split("."):
        found = (found or {}).get(part)  # a baseline that draws no box has no scores of boxes
    return found or {}


def _of(whole: dict[str, Any], a: str, b: str) -> tuple[dict[str, Any], int] | None:
    """The comparison of two runs, and 1 or -1 for how it is turned."""
    for pair in whole["comparison"]["pairs"]:
        if (pair["a"], pair["b"]) in ((a, b), (b, a)):
            return pair, 1 if pair["a"] == a else -1
    return None


def _pair(whole: dict[str, Any], a: str, b: str, measure: str) -> dict[str, Any] | None:
    pair = _of(whole, a, b)
    if pair is None or measure not in pair[0]["measures"]["headline"]:
        return None
    return _turned(pair[0]["measures"]["headline"][measure]["difference"], pair[1])


def _turned(leaf: dict[str, Any], sign: int) -> dict[str, Any]:
    if sign == 1 or leaf.get("value") is None:
        return leaf
    ends = {} if leaf.get("low") is None else {"low": -leaf["high"], "high": -leaf["low"]}
    return {**leaf, "value": -leaf["value"], **ends}


def _told(leaf: dict[str, Any], sign: str = "") -> str:
    if leaf.get("value") is None:
        return ""
    ends = f" [{leaf['low']:{sign}.3f}, {leaf['high']:{sign}.3f}]" if leaf.get("low") is not None else ""
    return f"{leaf['value']:{sign}.3f}{ends}"
