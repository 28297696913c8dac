"""Files from elsewhere, damaged at random: no crash, no hang, no other exception than the gate's, and no flipped bit that goes unnoticed.

Each target gets CASES damaged files (300; REASONKNEE_FUZZ=20000 for a long run, which `make fuzz` does), and hypothesis its own examples on top. The
damage is done in a child process, so that a crash of a C library fails a test instead of ending them all; a failing case is named by its seed.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import zlib
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from dicom_series import write_series
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee.errors import DataError, ReasonKneeError
from reasonknee.layout import Shard
from reasonknee.layout.strict_text import csv_rows, parse_json
from reasonknee.phantom.cohort import phantom_grid
from reasonknee.system.limits import limited
from reasonknee.validation.findings import Findings
from reasonknee.validation.reading import batches, opened
from reasonknee.volumes import Volume, gunzip, read_volume, write_nifti
from reasonknee.volumes.gate import describe_file
from reasonknee.volumes.gunzip import MAX_MEMBERS, GunzipReader

CASES = int(os.environ.get("REASONKNEE_FUZZ", "300"))
SHAPE = (5, 6, 7)


# --- damage -----------------------------------------------------------------------------------------------------------------------


def damaged(data: bytes, chance: random.Random) -> bytes:
    """One to three mutations: flipped bits, overwritten, removed, repeated or swapped pieces, numbers at the edge of their range."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at, size = chance.randrange(len(out) or 1), chance.choice((1, 1, 2, 4, 8, 64))
        match chance.randrange(7):
            case 0 | 1:
                out[at : at + 1] = bytes(b ^ 1 << chance.randrange(8) for b in out[at : at + 1])
            case 2:
                out[at : at + size] = chance.randbytes(size)
            case 3:
                del out[at : at + size]
            case 4:
                out[at:at] = out[at : at + size]
            case 5:
                out = out[: max(at, 1)]
            case _:
                out[at : at + 4] = struct.pack("<i", chance.choice((-1, 0, 1, 2**31 - 1, -(2**31), 65535)))
    return bytes(out) or b"\0"


def verdict(path: Path, seconds: float = 0) -> str:
    """What the gate says; with so many seconds, within limits as the command has them: a damaged HDF5 file may hold up its library for ever."""
    try:
        return limited(partial(describe_file, path), seconds) if seconds else describe_file(path)
    except ReasonKneeError as error:
        return error.code


def fuzz(kind: str, folder: Path, first: int, cases: int) -> None:
    """Run in a child: damages the sample in the folder, and exits with a message on what must not be."""
    sample = next(folder.glob("sample.*"))
    good, target = (
        sample.read_bytes(),
        folder / (f"case{''.join(sample.suffixes)}" if kind != "dicom" else "series/0"),
    )
    kept = read_volume(sample) if kind == "nifti" else None
    counts: dict[str, int] = {}
    for seed in range(first, first + cases):
        print(seed, file=sys.stderr, flush=True)  # the last line names the case, should this process die
        target.write_bytes(damaged(good, random.Random(seed)))
        if kind == "parquet":
            found = Findings()
            file = opened(folder, Shard(target.name, "annotations", "train", 0, 0, 0, ""), found)
            rows = sum(len(b.table) for b in batches(file, found)) if file else 0
            said = "X406" if found.groups else f"{rows} rows"
        else:
            said = verdict(target.parent if kind == "dicom" else target, 5 if kind == "hdf5" else 0)
        counts[said.split(",")[0]] = counts.get(said.split(",")[0], 0) + 1
        if kept is not None:
            assert_unharmed(target, said, kept)
    print(json.dumps(counts))


def assert_unharmed(path: Path, said: str, kept: Volume) -> None:
    """What a gzip's checksum covers cannot change unseen; and `read_volume` says what `check-volume` says."""
    volume, code = None, ""
    try:
        volume = read_volume(path)
    except ReasonKneeError as error:
        code = error.code
    assert said == code or (volume is not None and said.startswith("NIfTI")), (
        f"check-volume says {said}, read_volume {code or 'nothing'}"
    )
    if volume is not None and path.suffix == ".gz":
        assert np.array_equal(volume.array, kept.array), "other voxels, and nobody noticed"
        assert np.array_equal(volume.grid.affine, kept.grid.affine), "another place, and nobody noticed"


def run_child(kind: str, folder: Path) -> dict[str, int]:
    cases = CASES // 3 if kind == "hdf5" else CASES  # each of which is a process
    command = [sys.executable, __file__, kind, str(folder), "0", str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + CASES, check=False)
    assert done.returncode == 0, f"seed {' '.join(done.stderr.split()[-40:])}"
    counts: dict[str, int] = json.loads(done.stdout)
    assert sum(counts.values()) == cases
    return counts


# --- the targets ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sample.nii.gz", "sample.nii"])
def test_nifti(name: str, tmp_path: Path) -> None:
    volume = Volume(np.arange(np.prod(SHAPE)).reshape(SHAPE).astype("uint16"), phantom_grid(SHAPE))
    write_nifti(tmp_path / "sample.nii.gz", volume)
    if name == "sample.nii":
        (tmp_path / name).write_bytes(gzip.decompress((tmp_path / "sample.nii.gz").read_bytes()))
        (tmp_path / "sample.nii.gz").unlink()
    counts = run_child("nifti", tmp_path)
    refused = sum(n for said, n in counts.items() if not said.startswith("NIfTI"))
    assert refused > (0.9 if name.endswith("gz") else 0.3) * CASES, counts


def test_hdf5(eight: Path, tmp_path: Path) -> None:
    shutil.copy(eight / "cohort" / "embeddings.h5", tmp_path / "sample.h5")
    counts = run_child("hdf5", tmp_path)
    assert set(counts) <= {"HDF5", "V010", "V011", "V013", "V014", *(f"E00{n}" for n in range(1, 10))}, counts


def test_dicom(tmp_path: Path) -> None:
    """One slice of three is damaged. Its pixels carry no checksum: only what describes them is refused."""
    volume = Volume(np.arange(3 * 6 * 7).reshape(3, 6, 7).astype("uint16"), phantom_grid((3, 6, 7)))
    write_series(tmp_path / "series", volume)
    next((tmp_path / "series").iterdir()).rename(tmp_path / "sample.dcm")
    counts = run_child("dicom", tmp_path)
    assert set(counts) <= {"DICOM series", *(f"Y00{n}" for n in range(2, 9)), "V005"}, counts
    assert counts["Y002"] > 0.1 * CASES, counts


def test_parquet(release: Path, tmp_path: Path) -> None:
    shutil.copy(next((release / "annotations").glob("train*")), tmp_path / "sample.parquet")
    counts = run_child("parquet", tmp_path)
    assert counts["X406"] > 0.5 * CASES, counts


# --- gzip -------------------------------------------------------------------------------------------------------------------------


def unpacked(packed: IO[bytes], sizes: list[int]) -> bytes:
    reader, out = GunzipReader(packed), b""
    while piece := reader.read(sizes[len(out) % len(sizes)]):
        out += piece
    return out


@settings(max_examples=200)
@given(
    st.lists(st.binary(max_size=400), min_size=1, max_size=5),
    st.integers(0, 9),
    st.lists(st.integers(1, 500), min_size=1, max_size=4),
)
def test_gunzip_reads_what_gzip_wrote(parts: list[bytes], padding: int, sizes: list[int]) -> None:
    packed = b"".join(gzip.compress(p, mtime=0) for p in parts) + bytes(padding)
    assert unpacked(io.BytesIO(packed), sizes) == b"".join(parts)


@settings(max_examples=300)
@given(st.binary(min_size=1, max_size=200), st.data())
def test_gunzip_notices_every_flipped_bit(content: bytes, data: st.DataObject) -> None:
    packed = bytearray(gzip.compress(content, mtime=0))
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(zlib.error, EOFError):
        assert unpacked(io.BytesIO(packed), [7]) == content, "only bits that carry nothing may pass"


@pytest.mark.parametrize("library", [gunzip._library, zlib], ids=["installed", "without ISA-L"])
def test_gunzip_is_not_held_up(library: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of ten megabytes, more members than anyone writes, megabytes of blocks or padding that hold nothing: an error, at once."""
    monkeypatch.setattr(gunzip, "_library", library)
    member = gzip.compress(b"x", mtime=0)
    packer = zlib.compressobj(wbits=31)
    nothing = packer.compress(b"x") + packer.flush(zlib.Z_FULL_FLUSH) + b"\0\0\0\xff\xff" * (1 << 20)
    for data in (
        member[:3] + b"\x08" + member[4:10] + b"n" * 10_000_000,
        member + gzip.compress(b"", mtime=0) * (MAX_MEMBERS + 1),
        nothing,
        member + bytes(10_000_000),
    ):
        stream = io.BytesIO(data)
        with pytest.raises(zlib.error, match=r"longer than|more than|without an end"):
            unpacked(stream, [1 << 20])
        assert stream.tell() < 1 << 20


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_a_bomb_takes_no_memory(tmp_path: Path) -> None:
    """A header that claims 134 MB in 600 bytes, and one that claims 512 MB in half a megabyte of gzip: refused within 150 MB."""
    header = bytearray(gzip.decompress(_small(tmp_path)))[:352]
    struct.pack_into("<3h", header, 42, 4096, 4096, 4)
    (tmp_path / "lie.nii").write_bytes(bytes(header) + bytes(240))
    struct.pack_into("<3h", header, 42, 4096, 4096, 16)
    packer = zlib.compressobj(9, wbits=31)
    with (tmp_path / "bomb.nii.gz").open("wb") as file:
        file.write(packer.compress(bytes(header)))
        for _ in range(512):
            file.write(packer.compress(bytes(1 << 20)))
        file.write(packer.flush())
    code = (
        "import sys; from reasonknee.cli import main; sys.argv = ['reasonknee', 'check-volume', *sys.argv[1:]]\n"
        "try: main()\nexcept SystemExit as e: print(e.code, next(s for s in open('/proc/self/status') if s.startswith('VmHWM')).split()[1])"
    )
    files = [str(tmp_path / n) for n in ("lie.nii", "bomb.nii.gz")]
    done = subprocess.run(
        [sys.executable, "-c", code, *files], capture_output=True, text=True, timeout=60, check=True
    )
    first, second, last = done.stdout.splitlines()
    assert first.startswith("V006 ")
    assert second.startswith("V002 ")
    exit_code, kilobytes = map(int, last.split())
    assert exit_code == 3
    assert kilobytes < 150_000


def _small(folder: Path) -> bytes:
    write_nifti(folder / "small.nii.gz", Volume(np.zeros(SHAPE, "uint16"), phantom_grid(SHAPE)))
    return (folder / "small.nii.gz").read_bytes()


# --- HDF5 that is well-formed and hostile -----------------------------------------------------------------------------------------


def test_hostile_hdf5(tmp_path: Path) -> None:
    import h5py

    def made(name: str, **how: object) -> Path:
        with h5py.File(tmp_path / name, "w") as file:
            file.create_dataset("1000001-00m-right", **how)
        return tmp_path / name

    assert verdict(
        made("good.h5", data=np.zeros((4, 4), np.float16), chunks=(2, 4), compression="gzip", fletcher32=True)
    ).startswith("HDF5, 1 ")
    assert verdict(made("unwritten.h5", shape=(2**13, 2**13), dtype=np.float16)) == "E004"
    assert (
        verdict(
            made(
                "chunks.h5", shape=(2**13, 2**13), dtype=np.float16, chunks=(2**13, 2**13), compression="gzip"
            )
        )
        == "E004"
    )
    assert verdict(made("vast.h5", shape=(2**40, 4), dtype=np.float16, chunks=(1024, 4))) == "E004"
    assert (
        verdict(made("filter.h5", data=np.zeros((4, 4), np.float16), chunks=(4, 4), compression="lzf"))
        == "E003"
    )
    assert verdict(made("nan.h5", data=np.full((4, 4), np.nan, np.float16))) == "E008"
    assert (
        verdict(
            made(
                "some.h5", shape=(200, 64), dtype=np.float16, chunks=(10, 64), compression="gzip", fillvalue=7
            )
        )
        == "E004"
    )
    with h5py.File(tmp_path / "some.h5", "a") as file:
        file["1000001-00m-right"][:10] = np.ones((10, 64))
    assert verdict(tmp_path / "some.h5") == "E004", "one chunk of twenty is there"
    for name, inflated, mask in (("short.h5", 1000, 0), ("long.h5", 200_000, 0), ("mask.h5", 1000, 1)):
        with h5py.File(
            made(name, shape=(50, 1024), dtype=np.float16, chunks=(50, 1024), compression="gzip"), "a"
        ) as file:
            file["1000001-00m-right"].id.write_direct_chunk(
                (0, 0), zlib.compress(random.Random(0).randbytes(inflated)), mask
            )
        assert verdict(tmp_path / name) == ("E004" if mask else "E006"), (
            "HDF5 would hand out what else is in memory"
        )
    (tmp_path / "named.nii").write_bytes((tmp_path / "good.h5").read_bytes())
    assert verdict(tmp_path / "named.nii").startswith("HDF5"), "the first bytes decide, not the name"
    (tmp_path / "text.h5").write_text("hello")
    assert verdict(tmp_path / "text.h5") == "E001"
    h5py.File(tmp_path / "empty.h5", "w").close()
    assert verdict(tmp_path / "empty.h5") == "E002"
    with h5py.File(tmp_path / "names.h5", "w") as file:
        file["0"] = np.zeros((1, 2), np.float16)
        for n in range(1, 2**16 + 1):
            file[str(n)] = file["0"]
    assert verdict(tmp_path / "names.h5") == "E007", (
        "one dataset under ever so many names takes no time to write"
    )
    with h5py.File(tmp_path / "names.h5", "a") as file:
        del file["0"]
    assert verdict(tmp_path / "names.h5").startswith(
        "HDF5, 65536 embeddings, 256 of them read; the others are checked"
    )


def test_hdf5_names_are_not_paths(tmp_path: Path) -> None:
    """A name with a slash in it would be looked up as a path: through a link into another file, or into a pipe that nobody writes to."""
    import h5py

    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["b"] = np.zeros((2, 2), np.float16)
    with h5py.File(tmp_path / "h.h5", "w") as file:
        file["0z0e0b"] = np.zeros((2, 2), np.float16)
        for n in range(256):
            file[f"f{n:04d}"] = file["0z0e0b"]
        file.create_group("z")["e"] = h5py.ExternalLink("secret.h5", "/")
    data = (tmp_path / "h.h5").read_bytes()
    (tmp_path / "h.h5").write_bytes(data.replace(b"0z0e0b\0", b"/z/e/b\0"))
    assert verdict(tmp_path / "h.h5") == "E002"


# --- tables -----------------------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass")))
def test_json_of_any_bytes(raw: bytes) -> None:
    with contextlib.suppress(DataError):
        assert isinstance(parse_json(raw, "x"), dict)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": 1e999}',
        b'{"a": -Infinity}',
        b'{"a": "\\ud800"}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a": 1, "a": 2}',
        b"\xff{}",
        b"5",
    ],
)
def test_json_that_json_loads_lets_through(raw: bytes) -> None:
    with pytest.raises(DataError, match="T00"):
        parse_json(raw, "x")


@settings(max_examples=200)
@given(
    raw=st.binary(max_size=200)
    | st.text(alphabet='ab,;"\n\r\0x', max_size=60).map(lambda t: ("id,visit\n" + t).encode())
)
def test_csv_of_any_bytes(raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(raw)
    with contextlib.suppress(DataError):
        for _, row in csv_rows(path, [("id", "visit")]):
            assert list(row) == ["id", "visit"]


if __name__ == "__main__":
    fuzz(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
