"""What the commands of SGMRI-VQA do: files in, files out."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from reasonknee.errors import DataError, UsageError
from reasonknee.layout.places import release_folder
from reasonknee.layout.sgmri import SGMRI, SPLITS, is_release, read_qa_manifest
from reasonknee.sgmri import baselines as bl
from reasonknee.sgmri.answers import Image, qwen_unit
from reasonknee.sgmri.images import find_scans, read_scan
from reasonknee.sgmri.published import read_published
from reasonknee.sgmri.records import FILE_NAME, Record, read_records, record_of
from reasonknee.sgmri.report import FILES, markdown, write_report
from reasonknee.sgmri.scores import Scoring, TextPart, read_part, read_predictions, score
from reasonknee.sgmri.stream import questions
from reasonknee.system.files import write_text
from reasonknee.system.folders import check_free, note_ours


def questions_of(place: str | Path) -> list[Record]:
    """The questions of a release in a folder or on the Hub, of a folder with qa.jsonl, or of a copy of the
    published repository."""
    if is_release(place):
        folder = release_folder(place, configs=[SGMRI.public])
        config = read_qa_manifest(folder).configs[0]
        splits = [s for s in SPLITS if read_qa_manifest(folder).of(config, s)]
        return [record_of(row, row["id"]) for s in splits for row in questions(folder, config, s)]
    folder = Path(place)
    if (folder / FILE_NAME).is_file():
        return list(read_records(folder / FILE_NAME))
    if not folder.is_dir():
        raise DataError("Z016", f"no folder at {folder}", f"a folder with {FILE_NAME} is wanted")
    return list(read_published(folder, Counter()))


def _split(records: list[Record]) -> tuple[list[Record], list[Record]]:
    train, test = ([r for r in records if r.split == split] for split in ("train", "test"))
    return train, test or records


def write_baselines(questions: str | Path, out: Path) -> list[Path]:
    train, test = _split(questions_of(questions))
    if not train:
        raise DataError("Z017", f"{questions} has no training split", "baselines learn from it alone")
    paths = []
    note_ours(out, [f"{name}.jsonl" for name in bl.NAMES])
    for name in bl.NAMES:
        words = bl.predictions(name, train, test)
        lines = (json.dumps({"id": id_, "response": text}) + "\n" for id_, text in words.items())
        write_text(out / f"{name}.jsonl", "".join(lines))
        paths.append(out / f"{name}.jsonl")
    return paths


@dataclass(frozen=True)
class ScoreFiles:
    """What a score is made of."""

    predictions: Path
    questions: str | Path
    images: Path | None = None
    judge: Path | None = None
    judge_name: str = ""
    bertscore: Path | None = None
    bertscore_name: str = ""


def score_files(
    files: ScoreFiles, out: Path, model: str, qwen: str = "pixels", samples: int = 1000, seed: int = 0
) -> tuple[str, list[Path]]:
    """Writes the report, and gives it as Markdown, too."""
    unit = qwen_unit(qwen)
    check_free(out, FILES)  # before minutes of work
    records = questions_of(files.questions)
    scans = find_scans(files.images) if files.images else {}

    def image_of(volume_id: str) -> Image | None:
        return Image(*read_scan(scans[volume_id]).shape[1:]) if volume_id in scans else None

    options = Scoring(
        samples,
        seed,
        unit,
        _part(files.judge, files.judge_name, "judge"),
        _part(files.bertscore, files.bertscore_name, "bertscore"),
    )
    words, drawn = read_predictions(files.predictions)
    scored = score(words, records, options, model, image_of, drawn)
    train, test = _split(records)
    runs = {
        name: score(bl.predictions(name, train, test), test, Scoring(samples, seed), name).scores
        for name in (bl.NAMES if train else ())
    }
    paths = write_report(scored, runs, out)
    return markdown({model: scored.scores, **runs}), paths


def _part(path: Path | None, made_by: str, option: str) -> TextPart | None:
    if path is None:
        return None
    if not made_by:
        hint = f"--{option}-name with model and version: a number without its maker cannot be repeated"
        raise UsageError("Z019", f"--{option} without a name", hint)
    return read_part(path, made_by)
