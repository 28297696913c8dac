"""Runs in an environment of its own, with one version of `datasets`: opens rows as a user would and writes what it got as JSON.

python rows.py release  OUT                   load_dataset("rajpurkarlab/3DReasonKnee", config) from the Hub, map and streaming
python rows.py builder  OUT COHORT            the builder class: prepared, streamed, prepared by two processes
python rows.py script   OUT COHORT SCRIPT     the loading script (datasets 3.6)
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import datasets
import nibabel as nib
import numpy as np
import pyarrow.parquet as pq

CONFIGS = ("cropped", "full", "embeddings", "annotations")


def plain(row):
    """A row as JSON: bytes become a digest, a volume its voxels' digest and geometry."""
    out = dict(row)
    if out.get("volume") is not None:
        image = (
            nib.Nifti1Image.from_bytes(out["volume"]["bytes"])
            if isinstance(out["volume"], dict)
            else out["volume"]
        )
        array = np.asanyarray(image.dataobj).transpose(2, 1, 0)
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        out["volume"] = {
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "sha256": digest,
            "affine": np.asarray(image.affine).tolist(),
        }
    if "embedding" in out:
        out["embedding"] = {
            **out["embedding"],
            "bytes": hashlib.sha256(out["embedding"]["bytes"]).hexdigest(),
        }
    return out


def rows(splits):
    return {split: [plain(row) for row in data] for split, data in splits.items()}


def from_release():
    for config in CONFIGS:
        loaded = datasets.load_dataset("rajpurkarlab/3DReasonKnee", config)
        yield f"{config} map", rows(loaded)
        assert set(loaded["train"].features) == set(loaded["train"].column_names)
        yield (
            f"{config} stream",
            rows(datasets.load_dataset("rajpurkarlab/3DReasonKnee", config, streaming=True)),
        )


def from_builder(cohort):
    from reasonknee.builder import ReasonKnee

    for config in CONFIGS:
        options = {"config_name": config, "data_dir": cohort, "questions": "all69", "margin_mm": 3.0}
        one = ReasonKnee(**options, cache_dir="one")
        one.download_and_prepare()
        yield f"{config} map", rows(one.as_dataset())
        yield f"{config} stream", rows(one.as_streaming_dataset())
        two = ReasonKnee(**options, cache_dir="two")
        two.download_and_prepare(f"prepared-{config}", file_format="parquet", num_proc=2)
        paths = {
            split: sorted(Path(f"prepared-{config}").glob(f"*-{split}-*.parquet"))
            for split in two.info.splits
        }
        found = {
            split: [row for path in each for row in pq.read_table(path).to_pylist()]
            for split, each in paths.items()
        }
        key = "id" if config in ("cropped", "annotations") else "volume_id"
        yield f"{config} num_proc", {s: sorted(r, key=lambda row: row[key]) for s, r in rows(found).items()}
        if config == "annotations":  # corrected annotations are not answered from the cache
            lines = Path(cohort, "annotations.jsonl").read_text()
            Path("corrected").mkdir()
            Path("corrected", "annotations.jsonl").write_text(lines)
            first = ReasonKnee(config_name="annotations", data_dir="corrected", cache_dir="one")
            Path("corrected", "annotations.jsonl").write_text("".join(lines.splitlines(keepends=True)[:1]))
            second = ReasonKnee(config_name="annotations", data_dir="corrected", cache_dir="one")
            yield "cache folders", {"train": [first.cache_dir, second.cache_dir]}
        stream = one.as_streaming_dataset("train")
        shards = getattr(stream, "num_shards", None) or stream.n_shards
        yield f"{config} shards", {"train": shards}


def from_script(cohort, script):
    for config in CONFIGS:
        options = {"data_dir": cohort, "questions": "all69", "margin_mm": 3.0, "trust_remote_code": True}
        yield f"{config} map", rows(datasets.load_dataset(script, config, **options))
        yield f"{config} stream", rows(datasets.load_dataset(script, config, streaming=True, **options))


if __name__ == "__main__":
    what, out, *rest = sys.argv[1:]
    found = {"release": from_release, "builder": from_builder, "script": from_script}[what](*rest)
    Path(out).write_text(json.dumps({"version": datasets.__version__, **dict(found)}))
    sys.stdout.flush()
    os._exit(0)  # a process that streamed sometimes aborts in its threads on the way out
