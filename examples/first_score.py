"""Scores answers that know nothing of the image, writes the report, and tells how to look at them.

Run it after `reasonknee baselines rajpurkarlab/3DReasonKnee guesses`, where these folders lie. An answer is a
line: the id of a row, grades, and a box. Here the grades come from one baseline and the boxes from another.
"""

import json
from pathlib import Path

from reasonknee.report import write_report
from reasonknee.scoring import score

release, answers, scores = Path("rajpurkarlab/3DReasonKnee"), Path("answers.jsonl"), Path("scores")


def lines(name):
    return [json.loads(line) for line in Path(f"guesses/{name}.jsonl").read_text().splitlines()]


boxes = {line["id"]: line["box"] for line in lines("constant_box")}
with answers.open("w") as file:
    for line in lines("image_mean"):
        text = "Graded by the mean brightness of the region; the box is where it mostly lies."
        file.write(json.dumps({**line, "box": boxes[line["id"]], "reasoning": text}) + "\n")

scored = score(answers, release, model="brightness and a fixed box")
write_report(scored, scores, release, answers)
print(f"\nscores    {scored.scores['evidence']['sentence'] if scored.scores['evidence'] else ''}")
print(f"report    {(scores / 'report.html').resolve()}")
print(
    "view      . .venv/bin/activate && cd demo && reasonknee view rajpurkarlab/3DReasonKnee --scores scores "
    "--predictions answers.jsonl"
)
