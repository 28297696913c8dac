"""A run: asks what a plan has left, writes every answer down, and makes predictions of what the journal
holds.

A folder holds one run: `journal.jsonl` (all answers, whole), `run.json` (its stamp), `predictions.jsonl`
(what `reasonknee score` reads), `predictions.stamp.json` (the stamp again, beside them) and `ledger.json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from shlex import quote
from typing import Any

from reasonknee.errors import ReasonKneeError, UsageError, shown
from reasonknee.layout.strict_text import parse_json
from reasonknee.models.engines import Engine, Failure, Outcome
from reasonknee.models.journal import FILE_NAME as JOURNAL
from reasonknee.models.journal import Entry, Journal
from reasonknee.models.ledger import Ledger, Prices, Progress, duration, prompt_tokens
from reasonknee.models.plan import Plan, Request
from reasonknee.models.requests import digest
from reasonknee.questions import QUESTIONS
from reasonknee.questions.prompts import SYSTEM, ask
from reasonknee.scoring.predictions import PREDICTIONS, PREDICTIONS_STAMP
from reasonknee.system.files import sha256_of, write_text
from reasonknee.system.folders import not_ours
from reasonknee.version import VERSION

STAMP, LEDGER = "run.json", "ledger.json"
_PACKAGES = ("transformers", "torch", "openai", "peft", "xgrammar")
Lines = Callable[[Journal], Iterable[dict[str, Any]]]
_GIVE_UP = 20  # failures in a row, after which a server is taken for gone


def run(
    plan: Plan,
    engine: Engine,
    out: Path,
    *,
    split: str,
    prices: Prices | None = None,
    max_cost: float | None = None,
    chosen: dict[str, Any] | None = None,
    stamp: dict[str, Any] | None = None,
    lines: Lines | None = None,
) -> Ledger:
    """Asks until nothing is left, the money is spent, or the model is gone. What was answered is kept.

    Another dataset brings its own `stamp`, and the `lines` of its predictions.
    """
    stamp = stamp or stamp_of(plan, split)
    lines = lines or partial(predictions, plan)
    _check_free(out)
    with Journal(out) as journal:
        _same_run(out, stamp)
        write_text(out / STAMP, json.dumps({**stamp, "chosen": chosen}, indent=1) + "\n")
        ledger = _ledger(plan, journal, prices or Prices(), max_cost)
        progress = Progress(ledger)
        try:
            for step in plan.choice.steps:
                _step(plan, engine, journal, ledger, step, progress)
                if ledger.stopped:
                    break
        except ReasonKneeError as error:
            ledger.stopped = f"{error.code}: {error.message}"
            raise
        except KeyboardInterrupt:
            ledger.stopped = "interrupted"
            raise
        finally:
            progress(last=True)
            write_predictions(plan, lines(journal), out, {**stamp, "chosen": chosen})
            write_text(out / LEDGER, json.dumps(ledger.as_dict(), indent=1) + "\n")
    return ledger


def _ledger(plan: Plan, journal: Journal, prices: Prices, max_cost: float | None) -> Ledger:
    ledger = Ledger(
        prices, max_cost, plan.choice.parameters.max_tokens, len(plan.rows) * len(plan.choice.steps)
    )
    ledger.before = journal.spent
    for step in plan.choice.steps:
        for row in plan.rows:
            request = plan.request(step, row, journal)
            ledger.kept += request is not None and request.key in journal.answers
            ledger.total -= request is None and step == "locate"  # a question about the whole knee
    return ledger


def _step(
    plan: Plan, engine: Engine, journal: Journal, ledger: Ledger, step: str, progress: Callable[[], None]
) -> None:
    outcomes = engine.run(plan.jobs(step, journal), plan.choice.parameters, ledger.may_ask)
    failed = 0
    for outcome in outcomes:
        _write(plan, journal, ledger, outcome)
        progress()
        failed = failed + 1 if isinstance(outcome.result, Failure) else 0
        if failed >= _GIVE_UP and len({e.error and e.error["code"] for e in journal.errors.values()}) == 1:
            assert isinstance(outcome.result, Failure)
            ledger.stopped = f"{outcome.result.code}: {_GIVE_UP} failures in a row: {outcome.result.message}"
            break


def _write(plan: Plan, journal: Journal, ledger: Ledger, outcome: Outcome) -> None:
    request, result, server = outcome
    parsed = None
    if not isinstance(result, Failure) and request.step != "locate":
        parsed = plan.read(request, result.text).status == "parsed"
    cost = ledger.count(outcome, parsed)
    crop = request.outline.crop.as_dict() if request.outline and request.outline.crop else None
    failed = isinstance(result, Failure)
    journal.write(
        Entry(
            request.key,
            request.row.id,
            request.step,
            request.shown,
            crop,
            None if isinstance(result, Failure) else result,
            {"code": result.code, "message": shown(result.message, 300)}
            if isinstance(result, Failure)
            else None,
            0.0 if failed else cost,
            server,
            request.notes,
        )
    )


# --- the stamp ----------------------------------------------------------------------------------------------


def stamp_of(plan: Plan, split: str) -> dict[str, Any]:
    """All that a score needs to be made again: the model, what it was shown and asked, which release."""
    manifest = plan.release.manifest
    cut_out = ("region", "instruction")
    wordings = {"locate_grade": ("locate", *cut_out), "region": cut_out, "both": cut_out}
    used = wordings.get(plan.choice.setting, (plan.choice.setting,))
    return {
        "kind": "reasonknee.run",
        "version": 1,
        "model": plan.about,
        **plan.choice.as_dict(),
        "prompts": digest(
            {"system": SYSTEM} | {f"{w} {q.id}": ask(q, w) for w in used for q in QUESTIONS.values()}
        ),
        "release": {
            "version": manifest.release_version,
            "questions": manifest.questions,
            "manifest": sha256_of(plan.release.folder / "manifest.json"),
        },
        "split": split,
        "boxes": plan.boxes,
        "versions": versions_of(),
    }


def versions_of() -> dict[str, str]:
    return {"reasonknee": VERSION, **{p: v for p in _PACKAGES if (v := _version(p))}}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _check_free(out: Path) -> None:
    """A folder without our stamp may hold anything, but no file that a run would write over or go on with."""
    if (out / STAMP).exists():
        return
    for name in (JOURNAL, PREDICTIONS, PREDICTIONS_STAMP, LEDGER):
        path = out / name
        # an empty journal may be ours: of a dry run, or of one that was killed at once
        if os.path.lexists(path) and not (name == JOURNAL and path.is_file() and not path.stat().st_size):
            raise not_ours(path)


def _same_run(out: Path, stamp: dict[str, Any]) -> None:
    """A folder holds one run: answers to other prompts or of another model would be left out in silence."""
    path = out / STAMP
    if not path.exists():
        return
    before = parse_json(path.read_bytes(), STAMP)
    compared = (
        "model",
        "setting",
        "control",
        "view",
        "parameters",
        "margin_mm",
        "arm",
        "boxes",
        "prompts",
        "release",
        "split",
    )
    other = [name for name in compared if (before.get(name) or None) != (stamp[name] or None)]
    if other:
        raise UsageError(
            "N037", f"{out} holds a run with another {', '.join(other)}", "choose another folder for --out"
        )


# --- predictions --------------------------------------------------------------------------------------------


def write_predictions(plan: Plan, said: Iterable[dict[str, Any]], out: Path, stamp: dict[str, Any]) -> int:
    lines = [json.dumps(line, ensure_ascii=False) for line in said]
    write_text(out / PREDICTIONS, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace").decode())
    told = {
        **stamp,
        "rows": len(plan.rows),
        "answers": len(lines),
        "predictions": sha256_of(out / PREDICTIONS),
    }
    write_text(out / PREDICTIONS_STAMP, json.dumps(told, indent=1) + "\n")
    return len(lines)


def predictions(plan: Plan, journal: Journal) -> Iterator[dict[str, Any]]:
    """A line for each quintuple whose last step was answered. The words themselves where a scorer can read
    them as they are; grades and the box in voxels where they were told in other coordinates or in two steps.
    """
    view, choice = plan.choice.view, plan.choice
    told = choice.setting != "locate_grade" and not plan.boxes
    plain = view.form == "voxels" and view.orientation == "stored" and told
    for row in plan.rows:
        request = plan.request(choice.steps[-1], row, journal)
        entry = journal.answers.get(request.key) if request else None
        if request is None or entry is None or entry.reply is None:
            continue
        words = entry.reply.text
        if plain:
            yield {"id": row.id, "response": words}
            continue
        answer = plan.read(request, words)
        box = answer.box
        if plan.boxes:
            box = row.box
        elif choice.setting == "locate_grade":
            located = plan.answer("locate", row, journal)
            box = located.box if located else None
        yield {
            "id": row.id,
            "grades": answer.grades,
            "box": box.as_dict() if box else None,
            "reasoning": answer.reasoning,
        }


# --- before and after ---------------------------------------------------------------------------------------


def estimate(plan: Plan, out: Path, prices: Prices, lanes: int) -> list[str]:
    """What is left to ask, and what it will take; nothing is sent. Hours come from the answers that the
    folder holds already, of a small run with --limit."""
    with Journal(out) as journal:
        left = [r for step in plan.choice.steps for r in _left(plan, step, journal)]
        later = 0
        if plan.choice.setting == "locate_grade" or plan.choice.control == "occluded":
            later = sum(
                plan.request(s, row, journal) is None for s in plan.choice.steps[1:] for row in plan.rows
            )
        timed = [e.reply for e in journal.answers.values() if e.reply is not None]
    prompt = sum(map(prompt_tokens, left))
    shared = len({(r.row.knee.id, r.step, r.outline and (r.outline.crop, r.outline.inset)) for r in left})
    said = [r.completion_tokens for r in timed]
    longest = plan.choice.parameters.max_tokens
    completion = len(left) * (sum(said) / len(said) if said else longest)
    lines = [
        f"requests: {len(left):,} to ask, {len(timed):,} answered already"
        + (f", and {later:,} that depend on their answers" if later else ""),
        f"tokens: about {prompt:,} of prompts, in {shared:,} showings, read once where prefixes are kept; "
        + (
            f"{completion:,.0f} of answers, as those so far"
            if said
            else f"at most {completion:,.0f} of answers"
        ),
    ]
    if prices != Prices():
        dollars = (prompt * prices.prompt + completion * prices.completion) / 1e6
        lines.append(
            f"cost: about ${dollars:,.2f} at {prices.prompt:g} and {prices.completion:g} a million tokens"
        )
    if timed:
        each = sum(r.seconds for r in timed) / len(timed) / lanes
        lines.append(f"time: about {duration(each * len(left))}, at {each:.3g} s a request in {lanes} lanes")
    else:
        lines.append("time: unknown; ask some with --limit 20 first, their answers are kept and timed")
    return lines


def _left(plan: Plan, step: str, journal: Journal) -> Iterator[Request]:
    for row in plan.rows:
        request = plan.request(step, row, journal)
        if request is not None and request.key not in journal.answers:
            yield request


def told(ledger: Ledger, plan: Plan, out: Path, scoring: str = "reasonknee score") -> list[str]:
    """The ledger in words, and the command that scores the answers."""
    lines = [
        f"{ledger.answers:,} answers, {ledger.kept:,} from before, {sum(ledger.failures.values()):,} failed"
        + (
            f" ({', '.join(f'{n} {code}' for code, n in ledger.failures.most_common())})"
            if ledger.failures
            else ""
        ),
        f"{ledger.prompt:,} tokens of prompts, {ledger.cached:,} of them kept from an earlier question; "
        f"{ledger.completion:,} of answers; {duration(ledger.seconds)}"
        + (
            f"; ${ledger.cost:.2f}, ${ledger.before + ledger.cost:.2f} in all"
            if ledger.prices != Prices()
            else ""
        ),
    ]
    if ledger.graded:
        lines.append(f"{ledger.parsed:,} of {ledger.graded:,} graded as asked")
    for finish, word in (
        ("length", "cut off at --max-tokens"),
        ("content_filter", "stopped by a content filter"),
    ):
        if ledger.finishes[finish]:
            lines.append(f"{ledger.finishes[finish]:,} answers {word}")
    lines += [f"{count:,} times {note}" for note, count in ledger.notes.items()]
    if ledger.stopped:
        lines.append(f"stopped: {ledger.stopped}; the same command goes on")
    return [*lines, f"next: {scoring} {quote(str(out / PREDICTIONS))} <release>"]
