"""From the published dataset's own files to annotations: rows of `image, prompt, answer, final_diagnosis`,
and split files.

Which question a row asks is told by the finding that its answer names, or else its final diagnosis, or else
its prompt, through the question table. Grades and box stand in the answer, in the final diagnosis, or in
both, which then must agree. Boxes are read in upstream's order with inclusive ends. A row that is not
understood is counted by reason and named; one that contradicts another takes both out.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from reasonknee import answers
from reasonknee.answers.text import Pairs, Span, json_values, normal
from reasonknee.boxes import Box
from reasonknee.cohort import Annotation, Provenance
from reasonknee.cohort.annotations import is_plain_text
from reasonknee.cohort.scans import Key, Scan, image_sha256, scan_of, scans_by_key
from reasonknee.construct.assemble import OWN, Outcome, annotation, with_splits
from reasonknee.construct.moaks_tables import Knee
from reasonknee.construct.split_files import Listed, read_split_files
from reasonknee.errors import ReasonKneeError, UsageError
from reasonknee.layout import volume_id
from reasonknee.layout.strict_text import json_items
from reasonknee.questions import QUESTIONS, REGIONS, Question
from reasonknee.system.progress import Progress, silent
from reasonknee.version import VERSION
from reasonknee.volumes import Grid, read_grid

# What a published row does not say: the protocol's grid, assumed where no image tells it. `attach` compares
# it with the scans.
PROTOCOL_GRID = Grid(
    (160, 384, 384),
    np.array([[0, 0, -0.7, 56], [-0.365, 0, 0, 70], [0, -0.365, 0, 70], [0, 0, 0, 1]], dtype=np.float64),
)
PUBLISHED = "published"
_ILLEGAL, _UNSETTLED, _NO_BOX = "W003", {"W002", "W003", "W004"}, "W010"  # problems with an answer
_WRAPPERS = {"MOAKS_scores", "MOAKS_grade"}
_WORD = re.compile(r"[^\W\d_]{2}")
# of a structured part
_LABEL = re.compile(r"```\w*|</?\w+>|\bbounding[ _]box\b|\bfinal[ _]\w+", re.IGNORECASE)
_QUOTED = re.compile(r'"([^"\n]{1,80})"')
_NAMED = 100  # rows that the report names for each reason
_FINDINGS = {
    normal(next(part for part in q.attributes[0].upstream_path if part not in _WRAPPERS)): q
    for q in QUESTIONS.values()
}
for _one, _other in (
    ("trochlea", "anterior"),
    ("anterior", "trochlea"),
):  # upstream calls the same site of the femur by either name
    _FINDINGS |= {k.replace(_one, _other): q for k, q in _FINDINGS.items() if q.region.structure == "femur"}


class _NotUnderstoodError(Exception):
    """Why a row cannot be used."""


@dataclass(frozen=True)
class _Row:
    question: Question
    grades: dict[str, int]
    box: Box | None
    box_stated: bool
    reasoning: str  # word for word as published; empty if the row has none


@dataclass
class _Volume:
    key: Key
    knee: Knee
    split: str
    grid: Grid
    package: str | None
    digest: str | None = None  # of the image, where there is one
    rows: dict[str, _Row] = field(default_factory=dict)
    spoilt: set[str] = field(default_factory=set)  # questions with two different answers


@dataclass
class _Account:
    """What became of the rows."""

    total: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    names: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    unkept: list[str] = field(default_factory=list)  # rows whose reasoning is no text that a row can hold

    def refuse(self, reason: str, where: str) -> None:
        self.reasons[reason] += 1
        if len(self.names[reason]) < _NAMED:
            self.names[reason].append(where)


def construct_upstream(
    folder: Path,
    cohort: Path | None,
    splits: str = "",
    seed: int = 0,
    progress: Progress = silent,
) -> Outcome:
    """Annotations from the published files in `folder`; with a cohort, grids come from its images and
    volumes without an image are left out."""
    files = _files(folder, ".json", ".jsonl")
    if not files:
        raise UsageError(
            "J030", f"no .json or .jsonl file under {folder}", "download the dataset's repository first"
        )
    tables = _files(Path(splits) if splits and splits != OWN else folder, ".csv") if splits != OWN else []
    listed = read_split_files(tables) if tables else None
    volumes = _Volumes(listed, cohort)
    account = _Account()
    for done, path in enumerate(files, start=1):
        for number, raw in json_items(path):
            account.total += 1
            where = f"{path.name}:{number}"
            try:
                volume = volumes.of(raw)
                _add(volume, _read_row(raw, volume.grid), account, where)
            except _NotUnderstoodError as why:
                account.refuse(str(why), where)
        progress("reading answers", done, len(files))
    made = [a for v in _one_per_knee(volumes.known, account) if (a := _annotation(v, account))]
    made, balance = with_splits(sorted(made, key=lambda a: a.volume_id), listed is not None, seed)
    used = sum(len(a.grades) for a in made)
    report = {
        "software": f"reasonknee {VERSION}",
        "rules": {
            "boxes": "[start_slice, end_slice, x_min, x_max, y_min, y_max], ends inclusive",
            "grid": "from the images"
            if cohort
            else f"ASSUMED: {PROTOCOL_GRID.shape} {PROTOCOL_GRID.orientation}, as the protocol says",
        },
        "rows": {
            "total": account.total,
            "used": used,
            "unused": dict(sorted(account.reasons.items())),
            "unused_named": dict(sorted(account.names.items())),
        },
        "volumes": {"found": len(volumes.known), "used": len(made), "left_out": {}},
        "quarantine": volumes.quarantine,
        "questions": used,
        "published_reasoning": {
            "kept": sum(len(a.reasoning) for a in made),
            "not_kept": len(account.unkept),
            "too_long_or_no_plain_text": account.unkept[:_NAMED],
        },
        "splits": balance,
    }
    return Outcome(made, report)


def _files(folder: Path, *suffixes: str) -> list[Path]:
    """All of these kinds, but for hidden ones, such as what macOS leaves beside each file."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix in suffixes
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


class _Volumes:
    """The volumes that rows speak of, each looked up once."""

    def __init__(self, listed: dict[Key, Listed] | None, cohort: Path | None) -> None:
        self.listed, self.known = listed, dict[Key, _Volume]()
        self.images = scans_by_key(cohort / "images") if cohort else None
        self.quarantine: list[dict[str, str]] = []
        self.refused: dict[Key, str] = {}

    def of(self, raw: dict[str, Any]) -> _Volume:
        if any(key not in raw for key in ("image", "answer")):
            raise _NotUnderstoodError("no image or answer in the row")
        scan = _image(raw["image"])
        if scan.key in self.refused:
            raise _NotUnderstoodError(self.refused[scan.key])
        if scan.key not in self.known:
            try:
                self.known[scan.key] = self._new(scan)
            except _NotUnderstoodError as why:
                self.refused[scan.key] = str(why)
                raise
        volume = self.known[scan.key]
        _, visit, side = volume.knee
        if scan.visit not in (visit, None) or scan.side not in (side, None):
            raise _NotUnderstoodError("visit or side of the image are not those of its series")
        return volume

    def _new(self, scan: Scan) -> _Volume:
        row = self.listed.get(scan.key) if self.listed is not None else None
        if self.listed is not None and row is None:
            raise _NotUnderstoodError("the volume is in no split file")
        visit, side = (row.visit, row.side) if row else (scan.visit, scan.side)
        if visit is None or side is None:
            raise _NotUnderstoodError("visit or side of the image unknown")
        knee = (scan.patient, visit, side)
        split = row.split if row else ""
        if self.images is None:
            return _Volume(scan.key, knee, split, PROTOCOL_GRID, scan.package)
        image, grid, digest = self._own_image(self.images.get(scan.key, []), knee)
        return _Volume(scan.key, knee, split, grid, image.package or scan.package, digest)

    def _own_image(self, scans: list[Scan], knee: Knee) -> tuple[Scan, Grid, str]:
        if len(scans) != 1:
            raise _NotUnderstoodError(
                "the volume has more than one image" if scans else "the volume has no image"
            )
        try:
            return scans[0], read_grid(scans[0].path), image_sha256(scans[0].path)
        except UsageError:
            raise
        except ReasonKneeError as error:
            self.quarantine.append({"volume": volume_id(*knee), "code": error.code, "reason": error.told})
            raise _NotUnderstoodError("the image cannot be read") from None


def _image(text: Any) -> Scan:
    if not isinstance(text, str) or not 0 < len(text) < 1000:
        raise _NotUnderstoodError("the image is not a path")
    path = PurePosixPath(text)
    scan = scan_of(Path(path), path.parts[:-1])
    if scan is None:
        raise _NotUnderstoodError("the image path names no patient, study and series")
    return scan


# --- one row ------------------------------------------------------------------------------------------------


def _read_row(raw: dict[str, Any], grid: Grid) -> _Row:
    answer, final = _text(raw["answer"]), _text(raw.get("final_diagnosis"))
    question = asked(answer, _text(raw.get("prompt")), final)
    read = answers.read(question, answer, shape=grid.shape, box_convention="upstream")
    closing = answers.read(
        question, f"Final diagnosis: {final}" if final else "", shape=grid.shape, box_convention="upstream"
    )
    codes, closing_codes = ({problem.code for problem in each.problems} for each in (read, closing))
    unsettled = codes & ({_ILLEGAL} if closing.status == "parsed" else _UNSETTLED)
    grades = {**read.grades, **closing.grades}  # what the row does not state is unknown
    if unsettled or not grades:
        raise _NotUnderstoodError(f"grades: {min(unsettled, default='W001')}")
    wrong = sorted((codes | closing_codes) & {"W011", "W012", "W013", "W014", "B001"})
    if wrong:
        raise _NotUnderstoodError(f"box: {wrong[0]}")
    boxes = {each.box for each, of in ((read, codes), (closing, closing_codes)) if _NO_BOX not in of}
    if len(boxes) > 1 or any(grades[name] != grade for name, grade in read.grades.items()):
        raise _NotUnderstoodError("answer and final_diagnosis disagree")
    box = next(iter(boxes), None)
    return _Row(question, grades, box, bool(boxes), _reasoning(raw["answer"], read.reasoning))


def _reasoning(answer: Any, read: str) -> str:
    """The published reasoning, exactly as it stands: what the answer says before its structured part, or
    inside of it under that name. Where its words are no single run, because tags lie within or words follow
    the structured part, it is the whole answer."""
    if not isinstance(answer, str) or not _says_more(answer, json_values(answer)):
        return read
    _, found, after = answer.partition(read) if read else ("", "", answer)
    values = json_values(after)
    behind = after[values[0].end :] if values else ""
    if _says_more(behind, json_values(behind)) or (read and not found):
        return answer.strip()
    return read


def _says_more(text: str, values: list[Span]) -> bool:
    """Whether there are words beside the JSON in a text."""
    for span in reversed(values):
        text = f"{text[: span.start]} {text[span.end :]}"
    return bool(_WORD.search(_LABEL.sub(" ", text)))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def asked(answer: str, prompt: str, final: str = "") -> Question:
    """The question whose finding the answer names, or else the final diagnosis, or else the prompt's form of
    the answer."""
    for found in (_names(answer), _names(final), {normal(key) for key in _QUOTED.findall(prompt)}):
        questions = {_FINDINGS[name].id for name in found if name in _FINDINGS}
        if len(questions) == 1:
            return QUESTIONS[questions.pop()]
        if questions:
            raise _NotUnderstoodError("the row names the findings of several questions")
    raise _NotUnderstoodError("the row names no finding of the question table")


def _names(text: str) -> set[str]:
    def keys(value: Any) -> Iterator[str]:
        if isinstance(value, Pairs):
            for key, item in value:
                yield normal(key)
                yield from keys(item)
        elif isinstance(value, list):
            for item in value:
                yield from keys(item)

    return {name for found in json_values(text) for name in keys(found.value)}


# --- volumes ------------------------------------------------------------------------------------------------


def _add(volume: _Volume, row: _Row, account: _Account, where: str) -> None:
    before = volume.rows.get(row.question.id)
    if before is None:
        volume.rows[row.question.id] = row
    elif replace(before, reasoning=row.reasoning) == row:
        same = row.reasoning == before.reasoning
        account.refuse("the same row again" if same else "the same answer in other words", where)
        if not before.reasoning:
            volume.rows[row.question.id] = row
    else:
        volume.spoilt.add(row.question.id)
        account.refuse("another answer to the same question", where)


def _one_per_knee(known: dict[Key, _Volume], account: _Account) -> Iterator[_Volume]:
    series = Counter(volume.knee for volume in known.values())
    for volume in known.values():
        if series[volume.knee] == 1:
            yield volume
        else:
            for question in volume.rows:
                account.refuse("several series of one knee and visit", f"{'/'.join(volume.key)}-{question}")


def _annotation(volume: _Volume, account: _Account) -> Annotation | None:
    """One box for each region: the rows on it must agree."""
    name = volume_id(*volume.knee)
    boxes: dict[str, Box | None] = dict.fromkeys(REGIONS)
    stated: dict[str, set[Box | None]] = defaultdict(set)
    for row in volume.rows.values():
        if row.box_stated:
            stated[row.question.region.id].add(row.box)
    grades, reasoning = {}, {}
    for question in QUESTIONS.values():
        mine = volume.rows.get(question.id)
        if mine is None:
            continue
        if question.id in volume.spoilt:
            account.refuse("another answer to the same question", f"{name}-{question.id}")
        elif len(stated[question.region.id]) > 1:
            account.refuse("rows on one region give different boxes", f"{name}-{question.id}")
        else:
            grades[question.id] = mine.grades
            if is_plain_text(mine.reasoning):
                reasoning[question.id] = mine.reasoning
            elif mine.reasoning:
                account.unkept.append(f"{name}-{question.id}")
            boxes[question.region.id] = next(iter(stated[question.region.id]), None)
    if not grades:
        return None
    known = annotation(volume.key, volume.knee, volume.split, volume.grid, boxes, grades)
    told = Provenance(grades=PUBLISHED, boxes=PUBLISHED, package=volume.package, image_sha256=volume.digest)
    return replace(known, reasoning=reasoning, provenance=told)
