"""Opens a release and shows a quintuple of each config.

Run it where a folder rajpurkarlab/3DReasonKnee lies, or with the Hub in reach.
"""

import os
import sys
from pathlib import Path

from datasets import load_dataset

from reasonknee.release.inspect import describe, draw

for config in ("cropped", "full", "embeddings", "annotations"):
    rows = load_dataset("rajpurkarlab/3DReasonKnee", config, split="train", streaming=True)
    if "volume" in rows.features:
        rows = rows.decode(False)  # keep the NIfTI bytes: they are the array as it stands
    row = next(iter(rows))
    print(f'\n--- load_dataset("rajpurkarlab/3DReasonKnee", "{config}")')
    print(*describe(row), sep="\n")
    if config == "full":
        worst = max(
            (q for q in row["quintuples"] if q["category"] == "bml" and q["box"]),
            key=lambda q: q["grades"]["size"],
        )
        drawn = worst["id"]  # more to see than in the first row
        draw(row, drawn, Path("planes.png"))

here = Path.cwd()
print(f"\npicture   {here / 'planes.png'}, of {drawn}")
print(f"release   {here / 'rajpurkarlab/3DReasonKnee'}\ncohort    {here / 'cohort'}")
print("next      the code of README.md runs here: . ../.venv/bin/activate, then python")
sys.stdout.flush()
os._exit(0)  # datasets' streaming threads sometimes abort at exit
