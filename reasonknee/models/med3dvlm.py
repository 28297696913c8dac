"""Med3DVLM beside ours: images and question files as its own training code reads them, and its answers back.

    OUT/images/<volume>.nii.gz    (128, 256, 256) from 0 to 1, of the whole volume
    OUT/<split>.csv               a question a row, in the columns of its VQA files, and our `id`

A box is told in thousandths of the volume: the network sees no voxel of the volume's own, and thousandths
stay true when a volume is resampled. What in its code breaks boxes or drops rows stands in OUT/README.md.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.errors import DataError, UsageError, shown
from reasonknee.layout.strict_text import csv_rows
from reasonknee.models.coordinates import form_named
from reasonknee.models.targets import Teaching, target
from reasonknee.models.views import Showing, View
from reasonknee.models.volumetric import MED3DVLM, resampled
from reasonknee.questions import QUESTIONS
from reasonknee.release.reader import Release
from reasonknee.system.files import whole, write_text
from reasonknee.volumes import Grid, Volume, write_nifti

VIEW = View("all", form="thousand")
_CHOICES = ("Choice A", "Choice B", "Choice C", "Choice D", "Answer Choice")
COLUMNS = ("Image Path", "Question", *_CHOICES, "Answer", "Question Type", "id")
ANSWERS = ("Question Type", "Question", "Answer", "Pred", "bleu", "rouge1", "meteor", "bert_f1")
_TYPE = 4  # its number for abnormalities; it knows 1 to 5
ARMS = ("no_reasoning", "reasoning", "answer_first")

README = """# 3DReasonKnee for Med3DVLM

`train.csv`, `validation.csv` and `test.csv` have the columns of its VQA files and our `id`.
Images are (128, 256, 256) from 0 to 1, as its reader wants them; boxes are thousandths of the volume.

    python src/train/train_vlm.py --data_root OUT --vqa_data_train_path OUT/train.csv ...
    python src/eval/eval_vqa.py --data_root OUT --vqa_data_test_path OUT/test.csv --max_new_tokens 512 ...
    reasonknee import-med3dvlm OUTPUT/..._eval_open_vqa.csv OUT RELEASE predictions.jsonl
    reasonknee score predictions.jsonl RELEASE

What its code does with these rows, and what to change there first:

- Its training transforms flip the image along each axis and turn it by quarters, at random, and leave the
  text as it is: *boxes, left and right become wrong*. Take `RandFlipd` and `RandRotate90d` out.
- Where a row fails, it takes *another row at random*, without a word. Its evaluation does the same: an answer
  then stands beside another question. `import-med3dvlm` compares the questions and leaves such rows out.
- Text is cut at `--max_length` 512, of which 256 are the image's: *a question in our words with its answer is
  longer*. Set it to 1024 (2048 with reasoning), or answers lose their end, the JSON.
- `eval_vqa.py` makes at most 256 new tokens: too few for reasoning.
- Its preparation crops the foreground before it scales to 0 and 1. These images are not cropped: do not
  prepare them again.
"""


def export(place: str, out: Path, setting: str, arm: str, limit: int = 0) -> dict[str, int]:
    """Writes the folder; how many questions of each split."""
    if setting not in ("zero_shot", "instruction"):
        raise UsageError("N056", f"a row for {setting!r}", "zero_shot or instruction")
    if arm not in ARMS:
        raise UsageError("N071", f"unknown arm {arm!r}", f"choose one of {', '.join(ARMS)}")
    if out.exists() and any(out.iterdir()):
        raise UsageError("N056", f"{out} is not empty", "choose another folder")
    release = Release(place)
    (out / "images").mkdir(parents=True, exist_ok=True)
    counts = {}
    for split in release.splits:
        with (
            whole(out / f"{split}.csv") as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, COLUMNS, restval="")
            writer.writeheader()
            counts[split] = 0
            for row in _rows(release, split, out, Teaching(arm, setting), limit):
                writer.writerow(row)
                counts[split] += 1
    write_text(out / "README.md", README)
    return counts


def _rows(
    release: Release, split: str, out: Path, teaching: Teaching, limit: int
) -> Iterator[dict[str, Any]]:
    made = 0
    volumes = release.columns(split, ["volume_id"], "full")["volume_id"].unique().to_pylist()
    for volume_id in volumes:
        if limit and made >= limit:
            return
        volume = release.volume(volume_id)
        if volume is None:
            raise DataError("N034", "the release holds no whole volumes", "build it with the config `full`")
        row = next(release.rows([volume_id], "full", split, ["side", "quintuples"]))
        showing = VIEW.show(volume, row["side"])
        path = Path("images") / f"{volume_id}.nii.gz"
        write_nifti(out / path, _as_it_reads(showing))
        for quintuple in row["quintuples"][: limit - made if limit else None]:
            made += 1
            said = target(quintuple, showing, teaching)
            yield {
                "Image Path": path.as_posix(),
                "Question": said.question,
                "Answer": said.answer,
                "Question Type": _TYPE,
                "id": quintuple["id"],
            }


def _as_it_reads(showing: Showing) -> Volume:
    """The frames in the network's size from 0 to 1, with voxels that are as much larger."""
    array = resampled(showing.frames, MED3DVLM).astype(np.float32) / 255
    mm = [s * n / m for s, n, m in zip(showing.outline.spacing, showing.outline.shape, MED3DVLM, strict=True)]
    affine = np.diag([mm[2], mm[1], mm[0], 1.0])
    return Volume(array, Grid(MED3DVLM, affine))


def bring_back(results: Path, exported: Path, place: str, out: Path, split: str = "test") -> tuple[int, int]:
    """Predictions of what its evaluation wrote, and how many of its rows are not of their question."""
    if out.exists():
        raise UsageError("N056", f"{out} exists", "choose a new file")
    asked = [row for _, row in csv_rows(exported / f"{split}.csv", [COLUMNS])]
    answered = [row for _, row in csv_rows(results, [ANSWERS])]
    if len(answered) > len(asked):
        told = f"{len(answered):,} answers to {len(asked):,} questions"
        raise DataError("N088", told, f"is {split}.csv the file that was asked?")
    release, form = Release(place), form_named(VIEW.form)
    lines, strange = [], 0
    for row, answer in zip(asked, answered, strict=False):
        if row["Question"] != answer["Question"]:
            strange += 1
            continue
        known = release.row(row["id"], "annotations")
        if known is None:
            hint = "name the release that was exported"
            raise DataError("N088", f"{shown(row['id'])} is not in the release", hint)
        shape, spacing = (tuple(known[key][axis] for axis in "zyx") for key in ("shape", "spacing"))
        grid = VIEW.outline(shape, spacing, known["orientation"], known["side"], None).grid
        read = form.read(QUESTIONS[known["question_id"]], answer["Pred"], grid)
        box = read.box.as_dict() if read.box else None
        lines.append({"id": row["id"], "grades": read.grades, "box": box, "reasoning": read.reasoning})
    write_text(out, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return len(lines), strange
