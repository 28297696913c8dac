"""Spoils a copy of a clean release as a fault.json says, and seals it again, so that a check sees exactly that fault and no broken checksum.

only        configs to keep
rows        changes of rows: `configs`, `split`, `volume` (its number in the split, or "all"), `question` or `region`; then `set` (dotted names),
            `derive` (reasoning anew), `turned_side`, `patient_of` (another volume's patient), `bytes` (patches of the NIfTI bytes), `voxels_of` (mirrored, `turned`
            with a voxel changed, or `altered`: intensity, noise, shift or mirror), `embedding_of`, `zeros`, `repeat`, `swap`
unchecked   whether rows that were changed are written without checksums
together    whether rows that were changed go into one row group
columns     [old, new] name of a column of `annotations`
metadata    key-value pairs for the footers of `annotations`
manifest    dotted names to set
files       changes before sealing: `write`, `remove`, `replace` in a text, `flip` a byte, `rename` a shard, `hide` bytes in
            it, `misstate` a text (by default a patient) in its footer, a `bomb` in one of its columns, or `stow` a name in a dictionary
after       the same after sealing
"""

from __future__ import annotations

import itertools
import json
import shutil
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reasonknee.boxes import Box
from reasonknee.layout import PER_VOLUME, Manifest, Shard, quintuple_id, read_manifest, volume_id
from reasonknee.layout.parquet import writer_settings
from reasonknee.layout.records import arrow_schema
from reasonknee.questions import QUESTIONS, REGIONS, reasoning
from reasonknee.release.card import card_text
from reasonknee.release.croissant import croissant_text
from reasonknee.release.index import index_texts
from reasonknee.release.provenance import summed
from reasonknee.system.files import sha256_of
from reasonknee.volumes import Volume, nifti_bytes, volume_from_bytes

Row = dict[str, Any]


def spoil(clean: Path, folder: Path, fault: dict[str, Any]) -> None:
    shutil.copytree(clean, folder)
    manifest = read_manifest(folder)
    if "only" in fault:
        for config in set(manifest.configs) - set(fault["only"]):
            shutil.rmtree(folder / config)
        manifest = replace(manifest, shards=tuple(s for s in manifest.shards if s.config in fault["only"]))
    tables = _Tables(folder)
    for change in fault.get("rows", []):
        _change_rows(manifest, tables, change)
    if "columns" in fault or "metadata" in fault:
        _rows(manifest, tables, "annotations", "train")
    for shard in manifest.shards:
        if shard.path in tables:
            _write(folder, shard, tables[shard.path], fault)
    sealed = _seal_shards(folder, manifest)
    if tables:
        with suppress(KeyError, TypeError, pa.ArrowException):  # of rows that are no rows there is no sum
            sealed["provenance"] = summed(folder, [Shard(**s) for s in sealed["shards"]])
    for dotted, value in fault.get("manifest", {}).items():
        _set(sealed, dotted, value)
    changes = [
        {**change, "path": path.relative_to(folder).as_posix()} if "*" in change["path"] else change
        for change in fault.get("files", [])
        for path in (sorted(folder.glob(change["path"])) if "*" in change["path"] else [folder])
    ]
    of_shards = [change for change in changes if change["path"].endswith(".parquet")]
    for change in of_shards:
        _change_file(folder, sealed, change)
    if tables or of_shards or "only" in fault or "manifest" in fault:
        _write_texts(folder, sealed)
    for change in [change for change in changes if change not in of_shards]:
        _change_file(folder, sealed, change)
    sealed["files"] = {
        name: sha256_of(folder / name)
        for name in sorted(sealed["files"])
        if (folder / name).is_file() or name in fault.get("lost", [])
    }
    (folder / "manifest.json").write_text(json.dumps(sealed, indent=1) + "\n")
    for change in fault.get("after", []):
        _change_file(folder, sealed, change)


class _Tables(dict[str, list[Row]]):
    """Rows by shard, read when they are asked for: what nobody touches stays as it is."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, path: str) -> list[Row]:
        self[path] = pq.read_table(self.folder / path).to_pylist()
        return self[path]


# --- rows -------------------------------------------------------------------------------------------------------------------------


def _rows(manifest: Manifest, tables: _Tables, config: str, split: str) -> list[Row]:
    return [row for s in manifest.of(config, split) for row in tables[s.path]]


def _volumes(rows: list[Row]) -> list[str]:
    return sorted({r["volume_id"] for r in rows})


def _change_rows(manifest: Manifest, tables: _Tables, change: dict[str, Any]) -> None:
    for config in change.get("configs", manifest.configs):
        split = change.get("split", "train")
        rows = _rows(manifest, tables, config, split)
        names = (
            _volumes(rows) if change.get("volume", 0) == "all" else [_volumes(rows)[change.get("volume", 0)]]
        )
        mine = [r for r in rows if r["volume_id"] in names]
        if "patient_of" in change:
            other_split, number = change["patient_of"]
            others = _rows(manifest, tables, config, other_split)
            patient = next(r["patient"] for r in others if r["volume_id"] == _volumes(others)[number])
            for row in mine:
                _rename(row, change.get("spelled", "{}").format(patient), change["visit"])
        if change.get("turned_side"):
            for row in mine:
                row["side"] = {"left": "right", "right": "left"}[row["side"]]
                _rename(row, row["patient"], "96m")
        if "voxels_of" in change:
            other_split, number = change["voxels_of"]
            others = _rows(manifest, tables, config, other_split)
            other = volume_from_bytes(
                next(r for r in others if r["volume_id"] == _volumes(others)[number])["volume"]["bytes"]
            )
            copy = other.array[::-1].copy()
            if "altered" in change:
                copy = _altered(other.array, change["altered"])
            if change.get("turned"):
                copy = np.flip(copy, (1, 2)).copy()
                copy[0, 0, 0] ^= 1
            for row in mine:
                row["volume"]["bytes"] = nifti_bytes(
                    Volume(copy, volume_from_bytes(row["volume"]["bytes"]).grid)
                )
        if "embedding_of" in change:
            other_split, number = change["embedding_of"]
            others = _rows(manifest, tables, config, other_split)
            for row in mine:
                row["embedding"] = next(r for r in others if r["volume_id"] == _volumes(others)[number])[
                    "embedding"
                ]
        if change.get("zeros"):
            for row in mine:
                row["embedding"]["bytes"] = bytes(len(row["embedding"]["bytes"]))
        for row, quintuple in _quintuples(mine, change):
            for dotted, value in change.get("set", {}).items():
                _set(row if dotted.split(".")[0] not in quintuple else quintuple, dotted, value)
            for patch in change.get("bytes", []):
                row["volume"]["bytes"] = _patched(row["volume"]["bytes"], patch)
            if change.get("derive"):
                _derive(row, quintuple)
        for shard in manifest.of(config, split):
            tables[shard.path] = _reordered(tables[shard.path], names, change)


def _quintuples(rows: list[Row], change: dict[str, Any]) -> Iterator[tuple[Row, Row]]:
    for row in rows:
        for quintuple in row.get("quintuples", [row]):
            if all(
                quintuple[key] == change[name]
                for name, key in (("question", "question_id"), ("region", "region"))
                if name in change
            ):
                yield row, quintuple


def _set(target: Row, dotted: str, value: Any) -> None:
    *way, last = dotted.split(".")
    inner: Any = target
    for step in way:
        inner = inner[int(step) if isinstance(inner, list) else step]
    inner[int(last) if isinstance(inner, list) else last] = value


def _rename(row: Row, patient: str, visit: str) -> None:
    row.update(patient=patient, visit=visit, volume_id=volume_id(patient, visit, row["side"]))
    for quintuple in row.get("quintuples", [row]):
        quintuple["id"] = quintuple_id(row["volume_id"], quintuple["question_id"])


def _derive(row: Row, quintuple: Row) -> None:
    grades = {a: g for a, g in quintuple["grades"].items() if g is not None}
    box = quintuple["box"] and Box.from_dict(quintuple["box"])
    shape = (row["shape"]["z"], row["shape"]["y"], row["shape"]["x"])
    quintuple["reasoning"] = reasoning.steps(QUESTIONS[quintuple["question_id"]], grades, box, shape)


def _patched(data: bytes, patch: dict[str, Any]) -> bytes:
    if "cut" in patch:
        return data[: -patch["cut"]]
    if "fill" in patch:
        return data[:352] + bytes([patch["fill"]]) * (len(data) - 352)
    if "labels" in patch:  # the voxels as a mask would have them: in steps, by how bright they are
        volume = volume_from_bytes(data)
        steps = np.quantile(volume.array, np.linspace(0.5, 1, patch["labels"]))
        coarse = (
            volume.array[:, ::8, ::8]
            .repeat(8, 1)
            .repeat(8, 2)[:, : volume.array.shape[1], : volume.array.shape[2]]
        )
        return nifti_bytes(Volume(np.searchsorted(steps, coarse).astype(volume.array.dtype), volume.grid))
    if patch.get("swap"):
        big = Volume(volume_from_bytes(data).array, volume_from_bytes(data).grid)
        import nibabel as nib

        header = nib.Nifti1Header(endianness=">")
        header.set_data_dtype(big.array.dtype)
        return bytes(nib.Nifti1Image(big.array.transpose(2, 1, 0), big.grid.affine, header).to_bytes())
    spoiled = bytearray(data)
    if "text" in patch:
        spoiled[patch["at"] : patch["at"] + len(patch["text"])] = patch["text"].encode()
    elif "add" in patch:
        struct.pack_into(
            "<f", spoiled, patch["at"], struct.unpack_from("<f", spoiled, patch["at"])[0] + patch["add"]
        )
    else:
        spoiled[patch["at"]] ^= patch["xor"]
    return bytes(spoiled)


def _altered(array: np.ndarray, how: str) -> np.ndarray:
    """A copy that has not one slice of its original."""
    noise = np.random.default_rng(0).normal(0, 0.2 * array.std(), array.shape)
    changed = {
        "intensity": array * 0.7 + 20,
        "noise": array + noise,
        "shift": np.roll(array, 1, axis=1) * 0.99,
        "mirror": array[::-1] * 0.9 + 5,
    }[how]
    return np.clip(np.rint(changed), 0, np.iinfo(array.dtype).max).astype(array.dtype)


def _reordered(rows: list[Row], names: list[str], change: dict[str, Any]) -> list[Row]:
    rows = sorted(rows, key=lambda r: r["volume_id"])  # stable: the questions keep their order
    first = next((n for n, r in enumerate(rows) if r["volume_id"] in names), 0)
    if change.get("repeat"):
        rows = [*rows[: first + 1], *rows[first:]]
    if change.get("drop"):
        rows = [*rows[:first], *rows[first + 1 :]]
    if change.get("swap"):
        rows[first], rows[first + 1] = rows[first + 1], rows[first]
    return rows


# --- shards and files -------------------------------------------------------------------------------------------------------------


def _write(folder: Path, shard: Shard, rows: list[Row], fault: dict[str, Any]) -> None:
    schema = arrow_schema(shard.config)
    if shard.config == "annotations":
        schema = schema.with_metadata(fault.get("metadata"))
        old, new = fault.get("columns", ["", ""])
        rows = [{new if k == old else k: v for k, v in r.items()} for r in rows] if old else rows
        schema = pa.schema(
            [f.with_name(new) if f.name == old else f for f in schema], metadata=schema.metadata
        )
    shared = ["volume.bytes"] if shard.config == "cropped" else shard.config not in PER_VOLUME
    with pq.ParquetWriter(
        folder / shard.path,
        schema,
        compression="zstd",
        use_dictionary=shared,
        write_page_checksum=not fault.get("unchecked"),
    ) as writer:
        for group in [rows] if fault.get("together") else _groups(rows, shard.config):
            writer.write_table(pa.Table.from_pylist(group, schema=schema))


def _groups(rows: list[Row], config: str) -> list[list[Row]]:
    if config in PER_VOLUME:
        return [[row] for row in rows]
    key = {"cropped": lambda r: (r["volume_id"], _section(r))}.get(config, lambda r: r["volume_id"])
    return [list(group) for _, group in itertools.groupby(rows, key=key)]


def _section(row: Row) -> str:
    region = REGIONS.get(row["region"])
    return region.section if region else ""


def _seal_shards(folder: Path, manifest: Manifest) -> dict[str, Any]:
    sealed = asdict(manifest)
    for shard in sealed["shards"]:
        path = folder / shard["path"]
        shard |= {
            "rows": pq.ParquetFile(path).metadata.num_rows,
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
        }
    sealed["shards"] = list(sealed["shards"])
    return sealed


def _write_texts(folder: Path, sealed: dict[str, Any]) -> None:
    manifest = Manifest(**{**sealed, "shards": tuple(Shard(**s) for s in sealed["shards"])})
    (folder / "README.md").write_text(card_text(manifest))
    (folder / "croissant.json").write_text(croissant_text(manifest))
    for name in [n for n in sealed["files"] if n.startswith("index/")]:
        (folder / name).unlink()
        del sealed["files"][name]
    for name, text in index_texts(folder, manifest).items():
        (folder / name).write_text(text)
        sealed["files"][name] = ""


def _footer(data: bytes) -> int:
    """Where it starts."""
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def _rewrite(path: Path, shard: dict[str, Any] | None, change: dict[str, Any]) -> None:
    """The same rows as the builder writes them, but for one thing that is huge, or that no row has."""
    assert shard is not None
    schema = arrow_schema(shard["config"])
    file = pq.ParquetFile(path)
    groups = [file.read_row_group(n).cast(schema) for n in range(file.num_row_groups)]
    if change["do"] == "bomb":
        name, rows = change["column"], groups[0].to_pylist()
        large = {
            "reasoning": ["a" * change["size"]],
            "volume": {"bytes": bytes(change["size"]), "path": None},
        }
        for row in rows if name == "study" else rows[:1]:
            row[name] = large.get(name, "a" * change["size"])
        groups[0] = pa.Table.from_pylist(rows, schema=schema)
    else:
        stored = groups[0].column("study").combine_chunks().dictionary_encode()
        more = pa.concat_arrays([stored.dictionary, pa.array(["DOE-JANE"])])
        column = pa.DictionaryArray.from_arrays(stored.indices, more)
        groups[0] = groups[0].set_column(groups[0].schema.get_field_index("study"), "study", column)
        schema = groups[0].schema
    settings = writer_settings(shard["config"]) | {"store_schema": change["do"] == "bomb"}
    if change["do"] == "bomb":
        settings |= {"compression": "zstd", "compression_level": None}
    with pq.ParquetWriter(path, schema, **settings) as writer:
        for table in groups:
            writer.write_table(table)


def _change_file(folder: Path, sealed: dict[str, Any], change: dict[str, Any]) -> None:
    path = folder / change["path"]
    shard = next((s for s in sealed["shards"] if s["path"] == change["path"]), None)
    match change["do"]:
        case "write":
            path.parent.mkdir(exist_ok=True)
            path.write_text(change["text"])
            if change.get("listed"):
                sealed["files"][change["path"]] = ""
        case "remove":
            path.unlink()
        case "replace":
            text = path.read_text()
            assert change["old"] in text
            path.write_text(text.replace(change["old"], change["new"], change.get("times", 1)))
        case "flip":
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        case "hide":
            data = path.read_bytes()
            at = _footer(data)
            path.write_bytes(data[:at] + bytes(100_000) + data[at:])
        case "misstate":
            data = path.read_bytes()
            at = _footer(data)
            patient = pq.read_table(path, columns=["patient"])["patient"][0].as_py()
            old, new = (change.get(k, d).encode() for k, d in (("old", patient), ("new", "1999999")))
            assert old in data[at:]
            path.write_bytes(data[:at] + data[at:].replace(old, new))
        case "bomb" | "stow":
            _rewrite(path, shard, change)
        case "rename":
            path.rename(folder / change["to"])
            assert shard is not None
            shard["path"] = change["to"]
    if shard is not None and (folder / shard["path"]).is_file():
        shard |= {
            "bytes": (folder / shard["path"]).stat().st_size,
            "sha256": sha256_of(folder / shard["path"]),
        }
