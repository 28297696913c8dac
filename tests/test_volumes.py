"""Volumes in and out: exact voxels, exact geometry, and a gate that lets nothing damaged through."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import math
import os
import struct
import zlib
from pathlib import Path

import h5py
import nibabel as nib
import numpy as np
import pytest
from conftest import run
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from reasonknee.boxes import Box
from reasonknee.errors import DataError, ReasonKneeError, StorageError
from reasonknee.phantom.cohort import phantom_grid
from reasonknee.volumes import (
    Grid,
    Volume,
    nifti_bytes,
    read_grid,
    read_volume,
    volume_from_bytes,
    write_nifti,
)
from reasonknee.volumes.embeddings import EmbeddingFile
from reasonknee.volumes.gate import describe_file

SHAPE = (5, 6, 7)
GRID = phantom_grid(SHAPE)
AFFINE = GRID.affine


def voxels(dtype: str = "uint16") -> np.ndarray:
    return np.arange(np.prod(SHAPE)).reshape(SHAPE).astype(dtype)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "knee.nii.gz"
    write_nifti(target, Volume(voxels(), GRID))
    return target


def plain(path: Path) -> bytearray:
    return bytearray(gzip.decompress(path.read_bytes()))


def test_round_trip(path: Path) -> None:
    volume = read_volume(path)
    assert np.array_equal(volume.array, voxels())
    assert volume.array.flags.c_contiguous
    assert volume.grid.same_place(GRID)
    assert volume.grid.orientation == "LIP"
    assert np.allclose(volume.grid.affine, AFFINE)


def test_nibabel_agrees(path: Path) -> None:
    image = nib.load(path)
    assert np.array_equal(np.asanyarray(image.dataobj).transpose(2, 1, 0), voxels())
    assert np.array_equal(image.affine, AFFINE)
    assert "".join(nib.aff2axcodes(image.affine)) == "PIL"


def test_the_bytes_are_the_array() -> None:
    data = nifti_bytes(Volume(voxels(), GRID))
    assert np.array_equal(np.frombuffer(data, "uint16", offset=352).reshape(SHAPE), voxels())
    view = volume_from_bytes(data).array
    assert np.shares_memory(view, np.frombuffer(data, "uint8"))


def test_headers_say_nothing_about_people() -> None:
    header = nib.Nifti1Image.from_bytes(nifti_bytes(Volume(voxels(), GRID))).header
    assert all(
        header[name].tobytes().strip(b"\0") == b""
        for name in ("descrip", "aux_file", "intent_name", "db_name", "data_type")
    )


@pytest.mark.parametrize("axes", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("flips", [(), (0,), (1, 2), (0, 1, 2)])
def test_axes_come_from_the_affine(
    axes: tuple[int, int, int], flips: tuple[int, ...], tmp_path: Path
) -> None:
    """However a file orders and directs its axes, each voxel keeps its place in the world."""
    array = voxels().transpose(2, 1, 0)  # x, y, z
    image = nib.Nifti1Image(array, AFFINE)
    orientation = np.array([[a, -1 if a in flips else 1] for a in axes], dtype=float)
    nib.save(image.as_reoriented(orientation), tmp_path / "v.nii")
    volume = read_volume(tmp_path / "v.nii")
    assert volume.grid.shape == SHAPE
    for z, y, x in ((0, 0, 0), (4, 5, 6), (1, 2, 3)):
        world = volume.grid.affine @ (x, y, z, 1)
        i, j, k = np.rint(np.linalg.inv(AFFINE) @ world).astype(int)[:3]
        assert volume.array[z, y, x] == array[i, j, k]
    assert read_grid(tmp_path / "v.nii").orientation == volume.grid.orientation


@given(
    st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4),
    st.sampled_from([1, -1, 0]),
    st.sampled_from("<>"),
)
def test_a_qform_places_voxels_as_nibabel_does(quaternion: list[float], sign: int, order: str) -> None:
    """Where there is no sform. The axes may be too oblique: then that is said, and nothing else."""
    header = nib.Nifti1Header(endianness=order)
    header.set_data_shape((7, 6, 5))
    header.set_data_dtype("uint8")
    header["pixdim"][:4] = [sign, 0.4, 0.5, 0.6]
    header["qform_code"], header["magic"], header["vox_offset"] = 1, b"n+1", 352
    for name, value in zip(("quatern_b", "quatern_c", "quatern_d", "qoffset_x"), quaternion, strict=True):
        header[name] = value
    data = header.binaryblock + bytes(4 + 5 * 6 * 7)
    try:
        wanted = header.get_qform()
    except (ValueError, nib.spatialimages.HeaderDataError):
        with pytest.raises(DataError, match=r"V005.*not a rotation"):
            volume_from_bytes(data)
        return
    direction = np.abs(wanted[:3, :3] / np.linalg.norm(wanted[:3, :3], axis=0))
    world = direction.argmax(axis=0).tolist()  # of each axis of the file
    assume(abs(direction.max(axis=0).min() - math.cos(math.radians(40))) > 1e-4)  # where rounding decides
    if sorted(world) != [0, 1, 2] or direction.max(axis=0).min() < math.cos(math.radians(40)):
        with pytest.raises(DataError, match=r"V005.*too oblique"):
            volume_from_bytes(data)
        return
    grid = volume_from_bytes(data).grid
    assert np.allclose(grid.affine, wanted[:, [world.index(1), world.index(2), world.index(0), 3]])


@given(
    st.integers(0, 4),
    st.integers(0, 5),
    st.integers(0, 6),
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 7),
)
def test_a_crop_is_the_slice_with_its_place(z: int, y: int, x: int, dz: int, dy: int, dx: int) -> None:
    box = Box(z, min(z + dz, 5), y, min(y + dy, 6), x, min(x + dx, 7))
    crop = Volume(voxels(), GRID).crop(box)
    assert np.array_equal(crop.array, voxels()[box.slices])
    assert np.allclose(crop.grid.affine @ (0, 0, 0, 1), AFFINE @ (x, y, z, 1))
    again = volume_from_bytes(nifti_bytes(crop))
    assert np.array_equal(again.array, crop.array)
    assert again.grid.same_place(crop.grid)


def test_a_crop_outside_is_refused() -> None:
    with pytest.raises(DataError, match="B003"):
        Volume(voxels(), GRID).crop(Box(0, 6, 0, 1, 0, 1))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "int32", "float32", "float64"])
@pytest.mark.parametrize("order", "<>")
def test_voxel_types(dtype: str, order: str, tmp_path: Path) -> None:
    header = nib.Nifti1Header(endianness=order)
    header.set_data_dtype(dtype)
    image = nib.Nifti1Image(voxels(dtype).transpose(2, 1, 0), AFFINE, header)
    nib.save(image, tmp_path / "v.nii.gz")
    volume = read_volume(tmp_path / "v.nii.gz")
    assert np.array_equal(volume.array, voxels(dtype))
    assert volume.array.dtype == np.dtype(dtype)
    assert volume.array.dtype.isnative


def test_every_flipped_bit_of_a_gzip_is_caught(path: Path, tmp_path: Path) -> None:
    """nibabel alone lets most of these through with wrong voxels. A few bits (of the gzip header, padding) carry nothing: those change nothing."""
    good, target = path.read_bytes(), tmp_path / "bad.nii.gz"
    accepted = []
    for position in range(len(good)):
        for bit in (0, 3, 7):
            bad = bytearray(good)
            bad[position] ^= 1 << bit
            target.write_bytes(bad)
            try:
                volume = read_volume(target)
            except ReasonKneeError:
                continue
            accepted.append(
                np.array_equal(volume.array, voxels()) and np.array_equal(volume.grid.affine, AFFINE)
            )
    assert all(accepted)
    assert len(accepted) < 30


def test_every_truncation_is_caught(path: Path, tmp_path: Path) -> None:
    for data, name in ((path.read_bytes(), "t.nii.gz"), (bytes(plain(path)), "t.nii")):
        for size in range(0, len(data), 7):
            (tmp_path / name).write_bytes(data[:size])
            with pytest.raises(DataError, match="V00"):
                read_volume(tmp_path / name)


LIES = {
    "not a volume": (lambda h: h.__setitem__(slice(None), b"PK\x03\x04" + bytes(600)), "V001"),
    "two files": (lambda h: h.__setitem__(slice(344, 348), b"ni1\0"), "V001"),
    "2-D": (lambda h: struct.pack_into("<h", h, 40, 2), "V002"),
    "4-D": (lambda h: struct.pack_into("<h", h, 40, 4), "V002"),
    "no slices": (lambda h: struct.pack_into("<h", h, 46, 0), "V002"),
    "negative size": (lambda h: struct.pack_into("<h", h, 46, -5), "V002"),
    "four billion voxels": (lambda h: struct.pack_into("<3h", h, 42, 4000, 4000, 4000), "V002"),
    "complex voxels": (lambda h: struct.pack_into("<2h", h, 70, 32, 64), "V003"),
    "wrong bits": (lambda h: struct.pack_into("<h", h, 72, 8), "V003"),
    "scaled": (lambda h: struct.pack_into("<2f", h, 112, 2.0, 1.0), "V004"),
    "no orientation": (lambda h: struct.pack_into("<2h", h, 252, 0, 0), "V005"),
    "NaN orientation": (lambda h: struct.pack_into("<f", h, 280, float("nan")), "V005"),
    "singular": (lambda h: struct.pack_into("<12f", h, 280, *[1.0] * 12), "V005"),
    "voxels before the header ends": (lambda h: struct.pack_into("<f", h, 108, 0.0), "V001"),
    "voxels at infinity": (lambda h: struct.pack_into("<f", h, 108, float("inf")), "V001"),
    "more than it holds": (lambda h: struct.pack_into("<3h", h, 42, 4096, 4096, 4), "V006"),
    "less than it holds": (lambda h: struct.pack_into("<3h", h, 42, 2, 2, 2), "V008"),
}


@pytest.mark.parametrize("lie", LIES)
def test_headers_that_lie(lie: str, path: Path, tmp_path: Path) -> None:
    change, code = LIES[lie]
    data = plain(path)
    change(data)
    for name, packed in (("lie.nii", bytes(data)), ("lie.nii.gz", gzip.compress(bytes(data)))):
        (tmp_path / name).write_bytes(packed)
        with pytest.raises(DataError, match=code) as caught:
            read_volume(tmp_path / name)
        assert name in str(caught.value)


def test_oblique_axes_are_refused_and_tilted_ones_are_not(tmp_path: Path) -> None:
    for degrees, fine in ((20, True), (45, False)):
        c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
        turn = np.array([[c, -s, 0, 0], [s, c, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
        nib.save(nib.Nifti1Image(voxels().transpose(2, 1, 0), turn @ AFFINE), tmp_path / "v.nii")
        if fine:
            assert np.array_equal(read_volume(tmp_path / "v.nii").array, voxels())
        else:
            with pytest.raises(DataError, match="oblique"):
                read_volume(tmp_path / "v.nii")


def test_nan_voxels_and_missing_files(tmp_path: Path) -> None:
    bad = voxels("float32")
    bad[1, 1, 1] = np.nan
    nib.save(nib.Nifti1Image(bad.transpose(2, 1, 0), AFFINE), tmp_path / "v.nii")
    with pytest.raises(DataError, match="V009"):
        read_volume(tmp_path / "v.nii")
    with pytest.raises(StorageError, match="V000"):
        read_volume(tmp_path / "none.nii")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(data=st.data())
def test_any_damage_to_a_header_is_refused_or_harmless(data: st.DataObject, path: Path) -> None:
    """Random bytes over a header: a clear error or a volume, never another exception."""
    raw = plain(path)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 351))
        patch = data.draw(st.binary(min_size=1, max_size=8))
        raw[at : at + len(patch)] = patch
    with contextlib.suppress(ReasonKneeError):
        assert volume_from_bytes(bytes(raw)).array.ndim == 3


def test_grids_in_another_place_differ() -> None:
    moved = Grid(SHAPE, AFFINE + np.array([[0, 0, 0, 0.5], [0] * 4, [0] * 4, [0] * 4]))
    assert not GRID.same_place(moved)
    assert GRID.same_place(Grid(SHAPE, AFFINE + 1e-6))


# --- embeddings -------------------------------------------------------------------------------------------------------------------


def test_embeddings(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float16)
    with h5py.File(tmp_path / "e.h5", "w") as file:
        file["half"] = numbers
        file["brain"] = numbers.view(np.uint16)
        file["brain"].attrs["dtype"] = "bfloat16"
    with EmbeddingFile(tmp_path / "e.h5") as file:
        assert file.ids() == {"half", "brain"}
        assert np.array_equal(file.read("half").array, numbers)
        assert file.read("brain").dtype == "bfloat16"
        with pytest.raises(DataError, match="E002"):
            file.read("none")


def test_embeddings_that_reach_elsewhere_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = np.zeros((2, 2), np.float16)
    (tmp_path / "raw").write_bytes(bytes(8))
    with h5py.File(tmp_path / "e.h5", "w") as file:
        file["linked"] = h5py.ExternalLink("secret.h5", "x")
        file["soft"] = h5py.SoftLink("/linked")
        layout = h5py.VirtualLayout((2, 2), np.float16)
        layout[:] = h5py.VirtualSource("secret.h5", "x", (2, 2))
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("outside", (2, 2), np.float16, external=[(str(tmp_path / "raw"), 0, 8)])
        file["double"] = np.zeros((2, 2))
        file["flat"] = np.zeros(4, np.float16)
        file.create_dataset("vast", (2**20, 2**20), np.float16, chunks=(1, 2**10))
    codes = {
        "linked": "E002",
        "soft": "E002",
        "virtual": "E003",
        "outside": "E003",
        "double": "E005",
        "flat": "E004",
        "vast": "E004",
    }
    with EmbeddingFile(tmp_path / "e.h5") as file:
        for name, code in codes.items():
            with pytest.raises(DataError, match=code):
                file.read(name)
    (tmp_path / "junk.h5").write_bytes(b"junk")
    with pytest.raises(DataError, match="E001"):
        EmbeddingFile(tmp_path / "junk.h5")


def test_gzip_of_several_members(path: Path, tmp_path: Path) -> None:
    data = bytes(plain(path))
    buffer = io.BytesIO()
    for part in (data[:400], data[400:]):
        buffer.write(gzip.compress(part))
    (tmp_path / "m.nii.gz").write_bytes(buffer.getvalue())
    assert np.array_equal(read_volume(tmp_path / "m.nii.gz").array, voxels())


# --- the gate's verdict, as a user meets it ---------------------------------------------------------------------------------------


def test_a_verdict_imports_only_what_it_needs(path: Path) -> None:
    """It takes well under a second because of what it leaves alone; benchmarks/check_volume.py has the times."""
    code = "import sys, atexit; sys.argv[0] = 'reasonknee'; sys.argv.insert(1, 'check-volume')\natexit.register(lambda: print(sorted({'typer', 'h5py', 'nibabel', 'pydicom', 'pyarrow', 'datasets', 'scipy'} & set(sys.modules))))\nfrom reasonknee.__main__ import main; main()"
    said = run("-c", code, path).stdout.splitlines()
    assert said[0].startswith(f"ok {path}: NIfTI, 5 x 6 x 7 voxels")
    assert said[1] == "[]"


def test_both_ways_to_a_verdict_say_the_same(path: Path, tmp_path: Path) -> None:
    """The short one, and that of the whole command, which an option leads to."""
    (tmp_path / "text.nii").write_text("hello")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("hello")
    files = [path, tmp_path / "text.nii", tmp_path / "notes"]
    short, whole = run("check-volume", *files), run("check-volume", "--", *files)
    assert (short.stdout, short.returncode, short.stderr) == (whole.stdout, whole.returncode, whole.stderr)
    assert [line.split()[0] for line in short.stdout.splitlines()] == ["ok", "V001", "Y008"]
    assert short.returncode == 3
    assert "there is no DICOM file in this folder" in short.stdout
    assert run("check-volume", path).returncode == 0
    assert run("check-volume", tmp_path / "none.nii").returncode == 4
    assert run("check-volume").returncode == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in the file system")
def test_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "knee.nii.gz")
    for read in (read_volume, describe_file):
        with pytest.raises(DataError, match=r"V001.*not a regular file"):
            read(tmp_path / "knee.nii.gz")


def test_a_folder_without_dicom(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(DataError, match="there is no DICOM file in this folder"):
        describe_file(tmp_path)
    (tmp_path / "b").write_bytes(bytes(128) + b"DICM")
    with pytest.raises(DataError, match=r"a\.txt: not a DICOM file"):
        describe_file(tmp_path)


def test_units_other_than_millimetres(path: Path) -> None:
    for unit, right in (
        (0, True),
        (2, True),
        (1, False),
        (3, False),
        (10, True),
    ):  # not told, mm, m, micron, mm and seconds
        data = plain(path)
        data[123] = unit
        with contextlib.nullcontext() if right else pytest.raises(DataError, match=r"V005: .*millimetre"):
            volume_from_bytes(bytes(data))


def test_a_gzip_member_may_end_in_the_header(path: Path, tmp_path: Path) -> None:
    data = bytes(plain(path))
    (tmp_path / "m.nii.gz").write_bytes(gzip.compress(data[:300]) + gzip.compress(data[300:]))
    assert np.array_equal(read_volume(tmp_path / "m.nii.gz").array, voxels())


@pytest.mark.parametrize("length", [10, 65_500, 65_530])
def test_gzip_headers_are_checked_wherever_they_end(length: int, path: Path, tmp_path: Path) -> None:
    """A name and its checksum, within the first block that is read and across its end; and flags that mean nothing."""
    data = bytes(plain(path))
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    body = packer.compress(data) + packer.flush() + struct.pack("<II", zlib.crc32(data), len(data))
    header = b"\x1f\x8b\x08\x0a\0\0\0\0\0\xff" + b"n" * length + b"\0"
    right = struct.pack("<H", zlib.crc32(header) & 0xFFFF)
    for name, packed, sound in (
        ("right", header + right + body, True),
        ("wrong", header + bytes([right[0] ^ 1, right[1]]) + body, False),
        ("flags", header[:3] + b"\xe8" + header[4:] + body, False),
    ):
        (tmp_path / f"{name}.nii.gz").write_bytes(packed)
        with contextlib.nullcontext() if sound else pytest.raises(DataError, match="V006"):
            assert np.array_equal(read_volume(tmp_path / f"{name}.nii.gz").array, voxels())
