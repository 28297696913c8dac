"""The knees that loaders are compared on: a release, and the same voxels, boxes and grades as plain files for
the peers.

<folder>/cohort     a few drawn knees, each under several patients with noise of its own, so that no two
volumes compress or cache as one <folder>/release    `reasonknee build` of it <folder>/items.json one entry
per quintuple: what a peer needs to make the same sample <folder>/crops      each region of each volume once,
as an uncompressed NIfTI file
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.boxes import Shape
from reasonknee.cohort import Cohort
from reasonknee.cohort.annotations import read_annotation, write_annotations
from reasonknee.layout import records
from reasonknee.phantom.cohort import write_cohort
from reasonknee.questions import ATTRIBUTES
from reasonknee.release import build, shards
from reasonknee.release import rows as materialise
from reasonknee.stream import quintuples
from reasonknee.volumes import Grid, Volume, nifti_bytes, read_volume, write_nifti

CONFIGS = ["cropped", "full"]
_DRAWN = 3  # patients, of one to six volumes each; one for a small cohort


def make(folder: Path, volumes: int, shape: Shape, *, noise: bool = True, peers: bool = True) -> None:
    """Writes what is not there yet.

    Without `noise` the volumes are links to the drawn ones; without `peers` there is only the release.
    """
    done = folder / "done.json"
    wanted = {"volumes": volumes, "shape": list(shape), "noise": noise, "peers": peers, "writer": _writer()}
    if done.exists() and json.loads(done.read_text()) == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_cohort(folder / "drawn", _DRAWN if volumes > 2 else 1, seed=0, shape=shape)
    enlarged(folder / "drawn", folder / "cohort", volumes, noise=noise)
    shutil.rmtree(folder / "drawn")
    build(Cohort(folder / "cohort"), folder / "release", CONFIGS, workers=2 if volumes > 2 else 1)
    if peers:
        _write_items(folder)
    done.write_text(json.dumps(wanted))


def _writer() -> str:
    """Changes with the code that lays a release out: knees of another layout are made anew."""
    modules = (shards, materialise, records)
    return hashlib.sha256(b"".join(Path(module.__file__).read_bytes() for module in modules)).hexdigest()[:16]


def enlarged(
    drawn: Path, out: Path, volumes: int, *, noise: bool = False, splits: Sequence[str] = ("train",)
) -> None:
    """A cohort of as many volumes as wanted, all with 62 graded questions, in these splits by turns: drawn
    knees under other patients, as links to the drawn images or, after the first of each, with `noise` of
    their own."""
    cohort = Cohort(drawn)
    entries = [
        e for e in cohort.entries() if len(e.questions) == max(len(e.questions) for e in cohort.entries())
    ]
    images = cohort.images(entries)
    made, noisy = [], []
    for n in range(volumes):
        entry = entries[n % len(entries)]
        known = replace(
            read_annotation(cohort.annotations, entry.offset),
            patient=f"{1_200_000 + n}",
            split=splits[n % len(splits)],
            series=str(20_000_000 + n),  # a scan of its own: no two volumes may name one
        )
        made.append(known)
        target = (
            out
            / "images"
            / known.patient
            / known.visit.upper()
            / f"{known.study}_{known.series}_{known.side}.nii.gz"
        )
        target.parent.mkdir(parents=True)
        if noise and n >= len(entries):
            noisy.append((images[entry.volume_id], target, n))
        else:
            os.link(images[entry.volume_id], target)
    with ThreadPoolExecutor(2) as pool:  # gzip and numpy let other threads run
        list(pool.map(lambda job: _with_noise(*job), noisy))
    write_annotations(out / "annotations.jsonl", made)


def _with_noise(image: Path, target: Path, seed: int) -> None:
    volume = read_volume(image)
    grain = np.random.default_rng(seed).integers(-3, 4, volume.array.shape, np.int16)
    write_nifti(
        target, Volume(np.clip(volume.array.astype(np.int16) + grain, 0, 4095).astype(np.uint16), volume.grid)
    )


def _write_items(folder: Path) -> None:
    cohort = Cohort(folder / "cohort")
    images = cohort.images(cohort.entries())
    (folder / "crops").mkdir()
    items: list[dict[str, Any]] = []
    for row in quintuples(folder / "release", "cropped", boxed=True):
        name = f"{row['volume_id']}-{row['region']}.nii"
        if not (folder / "crops" / name).exists():
            crop = Volume(row["volume"], Grid(row["volume"].shape, row["affine"]))
            (folder / "crops" / name).write_bytes(nifti_bytes(crop))
        c, b = row["crop"], row["box"]
        items.append(
            {
                "id": row["id"],
                "volume_id": row["volume_id"],
                "image": str(images[row["volume_id"]].relative_to(folder)),
                "crop_file": f"crops/{name}",
                "crop": [c[k] for k in ("z0", "z1", "y0", "y1", "x0", "x1")],
                "box": [b[k] for k in ("z0", "z1", "y0", "y1", "x0", "x1")],
                "grades": [-100 if row["grades"][a] is None else row["grades"][a] for a in ATTRIBUTES],
            }
        )
    (folder / "items.json").write_text(json.dumps(items))
