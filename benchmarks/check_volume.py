"""How long the gate takes for its verdict on a file, and in how much memory, as a user meets it: `reasonknee
check-volume FILE`.

python benchmarks/check_volume.py [--rounds 5] [--out docs/bench/check_volume.json]

Wall time depends on what else the machine does; processor time hardly. Both are the best of some rounds, with
the start of Python included.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

SLOW = ("blocks.nii.gz", "elements", "chunks.h5")  # made by hand to be slow
FILES = (
    "lie.nii",
    "knee.nii.gz",
    "knee.nii",
    "noise.nii.gz",
    "bomb.nii.gz",
    "refused.nii.gz",
    "series",
    "long",
    "many.h5",
    "most.h5",
    *SLOW,
)
SHAPE = (160, 384, 384)
LONG = (455, 384, 384)  # as many slices of this size as are accepted
FLOATS = (160, 320, 327)  # as float64, nearly as many bytes as are accepted


def make(folder: Path) -> None:
    """In a process of its own: the memory of a child counts from that of its parent."""
    import h5py
    import numpy as np

    from reasonknee.phantom.cohort import phantom_grid
    from reasonknee.volumes import Volume, nifti_bytes, write_nifti

    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from dicom_series import write_series
    from hostile import many_elements, slow_gzip

    rng, grid = np.random.default_rng(0), phantom_grid(SHAPE)
    knee = Volume(rng.normal(600, 60, SHAPE).clip(0, 4095).astype(np.uint16), grid)
    files = {name: folder / name for name in FILES}
    files["lie.nii"].write_text("hello")
    write_nifti(files["knee.nii.gz"], knee)
    files["knee.nii"].write_bytes(nifti_bytes(knee))
    with gzip.open(files["noise.nii.gz"], "wb", 1) as file:
        file.write(nifti_bytes(Volume(rng.normal(size=FLOATS), phantom_grid(FLOATS))))
    _bomb(files["bomb.nii.gz"], (128, 1024, 1024), "uint8")
    _bomb(files["refused.nii.gz"], (512, 512, 512), "uint16")
    write_series(files["series"], knee, change=_as_scanners_write)
    write_series(
        files["long"], Volume(np.zeros(LONG, np.uint16), phantom_grid(LONG)), change=_as_scanners_write
    )
    for name, count in (("many.h5", 8000), ("most.h5", 65536)):
        with h5py.File(files[name], "w") as h5:
            for n in range(count):
                h5[f"{1_000_000 + n}-00m-right"] = np.zeros((2, 8), np.float16)
    slow_gzip(files["blocks.nii.gz"], (128, 1024, 1024))
    write_series(files["elements"], Volume(knee.array[:40], phantom_grid((40, *SHAPE[1:]))))
    for path in files["elements"].iterdir():
        many_elements(path, 1_000_000, "dataset")
    with h5py.File(files["chunks.h5"], "w") as h5:  # gzip, a number a chunk
        h5.create_dataset(
            "1000000-00m-right",
            data=rng.normal(size=(200, 1000)).astype(np.float16),
            chunks=(1, 1),
            compression="gzip",
        )


def _as_scanners_write(n: int, header: Any) -> None:
    """150 private elements and a sequence of 20 items, whose end has to be looked for."""
    from pydicom.dataset import Dataset
    from pydicom.sequence import Sequence

    block = header.private_block(0x0019, "A MAKER", create=True)
    for number in range(150):
        block.add_new(number, "LO", f"value {number}")
    item = Dataset()
    item.ReferencedSOPClassUID, item.ReferencedSOPInstanceUID = "1.2.3", "1.2.3.4"
    header.ReferencedImageSequence = Sequence([item] * 20)
    header["ReferencedImageSequence"].is_undefined_length = True


def _bomb(path: Path, shape: tuple[int, int, int], dtype: str) -> None:
    """Zeros that are a thousandth of their size in the file."""
    import numpy as np

    from reasonknee.phantom.cohort import phantom_grid
    from reasonknee.volumes.nifti import nifti_header

    packer, left = zlib.compressobj(9, wbits=31), int(np.prod(shape)) * np.dtype(dtype).itemsize
    with path.open("wb") as file:
        file.write(packer.compress(nifti_header(phantom_grid(shape), np.dtype(dtype))))
        for _ in range(left >> 20):
            file.write(packer.compress(bytes(1 << 20)))
        file.write(packer.flush())


def timed(path: str) -> dict[str, float | str]:
    """One run of the command: its first line, its times, its peak of memory."""
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "reasonknee", "check-volume", path], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    said = child.stdout.read()
    _, _, used = os.wait4(child.pid, 0)
    return {
        "said": said.split(" ")[0],
        "wall_s": time.perf_counter() - began,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as name:
        maker = multiprocessing.get_context("spawn").Process(target=make, args=(Path(name),))
        maker.start()
        maker.join()
        for what in FILES:
            runs = [timed(str(Path(name, what))) for _ in range(args.rounds)]
            results[what] = {
                "said": runs[0]["said"],
                **{k: round(min(float(r[k]) for r in runs), 3) for k in ("wall_s", "cpu_s", "peak_mb")},
            }
            print(what, results[what])
    if args.out:
        args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
