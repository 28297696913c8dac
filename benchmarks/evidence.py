"""How much of a lesion a crop holds, without a margin and with `--margin evidence`: the voxels that each
lesion changes in synthetic knees, at its largest and in each of its kinds, at every site.

python benchmarks/evidence.py [--knees 12] [--out docs/bench/evidence.json] [--page docs/phantom.md]
    [--datasheet reasonknee/release/datasheet.md]
"""

from __future__ import annotations

import argparse
import json
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pages import put

from reasonknee.boxes import Box, Shape
from reasonknee.phantom.cohort import phantom_grid
from reasonknee.phantom.knee import Knee, draw_knee
from reasonknee.questions import QUESTIONS, Question
from reasonknee.questions.regions import LABELS
from reasonknee.volumes.region_boxes import region_boxes

SHAPE: Shape = (40, 96, 96)
GRID = phantom_grid(SHAPE)
BOXED = [q for q in QUESTIONS.values() if q.region.labels]
HEALTHY = {
    q.id: {a.id: 3 if a.space.id == "tear_location" else 0 for a in q.attributes} for q in QUESTIONS.values()
}
CHANGED = 25  # of 4095: more than rounding, less than any lesion
LEAST = 5  # voxels: less is no lesion at this resolution
WANTED = 0.95

# what the datasheet tells of, in its order: a finding's name there, and in the table
TOLD = {
    "of a meniscal cyst": "cyst.presence",
    "of marrow changes at the insertion of the PCL": "pcl.insertion_bml_cyst",
    "at that of the ACL": "acl.insertion_bml_cyst",
    "of the traces of a repair": "acl.repair",
    "of an extrusion": "extrusion.grade",
}


class Share(NamedTuple):
    """Of one finding in one knee."""

    bare: float
    evidence: float


def findings(q: Question) -> Iterator[tuple[str, dict[str, int]]]:
    """The lesion at its largest, in each of its kinds and places, by the attribute that it raises."""
    match q.lesion.id:
        case "bml":
            yield "size", {"size": 3, "number": 3, "percent_bml": 2}
        case "morphology":
            yield from (("morphology", {"morphology": m}) for m in range(1, 9))
        case "cyst":
            yield from (("presence", {"presence": 1, "tear_location": place}) for place in range(4))
        case "acl" | "pcl":
            yield from ((a.id, {**HEALTHY[q.id], a.id: 1}) for a in q.attributes)
        case _:
            yield q.attributes[0].id, {a.id: a.space.grades[-1] for a in q.attributes}


def drawn(seed: int, **grades: dict[str, int]) -> Knee:
    return draw_knee(SHAPE, "right" if seed % 2 else "left", {**HEALTHY, **grades}, seed, anatomy_seed=seed)


@lru_cache(maxsize=2)
def healthy(seed: int) -> Knee:
    return drawn(seed)


def shares(q: Question, seed: int) -> Iterator[tuple[str, Share]]:
    """For each kind of the lesion in one knee, how much of it a crop holds."""
    for attribute, grades in findings(q):
        knee = drawn(seed, **{q.id: grades})
        if q.lesion.id == "effusion_synovitis":  # what fluid does to the film between the bones is not graded
            lesion = knee.mask == LABELS["joint_cavity"]
        else:
            lesion = np.abs(knee.image.astype(int) - healthy(seed).image) > CHANGED
        box = region_boxes(knee.mask, GRID.orientation)[q.region.id]
        if box is None:
            raise ValueError(f"{q.id}: no box in the knee of seed {seed}")
        if lesion.sum() >= LEAST:
            yield attribute, Share(inside(lesion, box, (0, 0, 0)), inside(lesion, box, q.lesion.evidence_mm))


def inside(lesion: np.ndarray[Any, Any], box: Box, margin: tuple[float, float, float]) -> float:
    z, y, x = (math.ceil(mm / s) for mm, s in zip(margin, GRID.spacing, strict=True))
    return float(lesion[box.grown((z, y, x), SHAPE).slices].sum() / lesion.sum())


def measured(seed: int) -> list[tuple[str, str, Share]]:
    return [
        (f"{q.lesion.id}.{attribute}", q.id, share) for q in BOXED for attribute, share in shares(q, seed)
    ]


def run(knees: int, workers: int = 2) -> dict[str, Any]:
    by_site = defaultdict(lambda: defaultdict(list))
    with ProcessPoolExecutor(workers) as pool:
        for rows in pool.map(measured, range(1, knees + 1)):
            for finding, site, share in rows:
                by_site[finding][site].append(share)
    table = {}
    for finding, sites in by_site.items():
        bare = {site: float(np.mean([s.bare for s in them])) for site, them in sites.items()}
        worst = min(bare, key=bare.__getitem__)
        table[finding] = {
            "worst_site": worst,
            "bare": [bare[worst], max(bare.values())],  # means over knees, at the worst site and at the best
            "least_bare": min(s.bare for them in sites.values() for s in them),
            "least_with_evidence": min(s.evidence for them in sites.values() for s in them),
        }
    return {"knees": knees, "shape": list(SHAPE), "findings": table}


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def page_text(results: dict[str, Any]) -> str:
    size = " x ".join(map(str, results["shape"]))
    return "\n".join(
        [
            f"{results['knees']} knees of {size} voxels, each lesion at its largest, in each of its kinds.",
            "",
            "| finding | margin 0, worst site | best site | least of a knee | `evidence`, least of a knee |",
            "| --- | ---: | ---: | ---: | ---: |",
            *(
                f"| {name} | {percent(row['bare'][0])} (`{row['worst_site']}`) | {percent(row['bare'][1])} "
                f"| {percent(row['least_bare'])} | {percent(row['least_with_evidence'])} |"
                for name, row in results["findings"].items()
            ),
        ]
    )


def sentence(results: dict[str, Any]) -> str:
    """What the datasheet says of margin 0."""
    parts = [f"{percent(results['findings'][name]['bare'][0])} {words}" for words, name in TOLD.items()]
    *first, last = parts
    return f"On phantoms such a crop holds on average, at the worst site, {', '.join(first)} and {last}."


def tell(datasheet: Path, results: dict[str, Any]) -> None:
    text = datasheet.read_text(encoding="utf-8")
    told = textwrap.fill(sentence(results), 150).replace("\n", "\n  ")
    text, times = re.subn(r"On phantoms such a crop holds.*?\.(?=\s)", told, text, flags=re.DOTALL)
    if times != 1:
        raise SystemExit(f"{datasheet} says nothing of what a crop holds")
    datasheet.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--knees", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--datasheet", type=Path)
    given = parser.parse_args()
    results = run(given.knees, given.workers)
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")
    if given.page:
        put(given.page, "evidence.py", page_text(results))
    if given.datasheet:
        tell(given.datasheet, results)
    print(page_text(results), sentence(results), sep="\n\n")


if __name__ == "__main__":
    main()
