"""Findings as people, programs and GitHub read them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from reasonknee.errors import counted
from reasonknee.validation.findings import CHECKS, Findings

_SHOWN = 5  # examples of each code


def as_text(findings: Findings, target: str, quick: bool = False) -> str:
    """Grouped and counted, with the first examples and what to do."""
    lines = []
    for group in findings.ordered():
        lines.append(f"{group.level} {group.code}: {group.title} ({counted(group.count, 'time')})")
        shared = len(group.hints) == 1
        lines += [
            f"    {f.place}: {f.detail}" + ("" if shared else f" (to do: {f.hint})")
            for f in group.examples[:_SHOWN]
        ]
        if group.count > _SHOWN:
            lines.append(f"    and {group.count - min(_SHOWN, len(group.examples))} more")
        if shared:
            lines.append(f"  to do: {group.hint}")
    errors, warnings = findings.count("error"), findings.count("warning")
    verdict = ("sound as far as --quick looks" if quick else "sound") if not errors else "NOT sound"
    return "\n".join(
        [*lines, f"{target}: {verdict}, {counted(errors, 'error')}, {counted(warnings, 'warning')}"]
    )


def as_json(findings: Findings, target: str, quick: bool) -> str:
    return json.dumps(
        {"target": target, "quick": quick, "sound": not findings.count("error"), **findings.as_dict()},
        indent=1,
    )


def checks_as_json() -> str:
    return json.dumps([asdict(check) for check in CHECKS.values()], indent=1)


def as_github(findings: Findings, target: str) -> str:
    """Workflow commands: GitHub shows each as an annotation of the run, on the file where one is known,
    as seen from the checkout."""
    lines, here = [], Path.cwd()
    folder = Path(target).resolve()
    prefix = folder.relative_to(here) if folder.is_relative_to(here) and folder.is_dir() else Path()
    for group in findings.ordered():
        for finding in group.examples[:_SHOWN]:
            name = finding.place.split(" row ")[0].split(",")[0]
            before, _, number = name.rpartition(":")  # annotations.jsonl:3
            name, line = (before, f"line={number},") if before and number.isdecimal() else (name, "")
            where = f"file={_property((prefix / name).as_posix())},{line}" if name and " " not in name else ""
            text = f"{finding.place}: {finding.detail} ({group.title}; {finding.hint or group.hint})"
            title = _property(f"{group.code}, {group.count} in all")
            lines.append(f"::{group.level} {where}title={title}::{_escaped(text)}")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
