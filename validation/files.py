"""The files of a release against its manifest: none missing, none unknown, none changed, none that has no place in a release."""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import os
import re
import stat
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from reasonknee import schema
from reasonknee.errors import DataError, shown
from reasonknee.manifest import FILE_NAME, Manifest, Shard, read_manifest, sha256_of
from reasonknee.tables import parse_json
from reasonknee.validation.findings import Findings
from reasonknee.validation.reading import storage_error
from reasonknee.validation.rows import points_elsewhere
from reasonknee.version import LAYOUT_VERSION, VERSION

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_SPLIT_WORDS = re.compile(r"train(ing)?|val(id(ation)?)?|dev(elop(ment)?)?|test(ing)?|eval(uation)?", re.IGNORECASE)
_OF_THE_HUB = (".gitattributes", ".gitignore")  # what the Hub or git adds
_FOLDERS_OF_THE_HUB = (".cache", ".git", ".github", ".huggingface")  # and of a maintainer's CI; at the root only, as the files
MAX_TEXT = 4 << 20  # bytes of a text file
TEXTS = {"README.md", "croissant.json", *(f"schema/{file.name}" for file in schema.files())}
# A path of somebody's machine, a share, or a token of the Hub; a URL may well stand in a card.
_PRIVATE = re.compile(
    r"(?<![\w./:~-])/(?:home|Users|root|mnt|scratch|data|Volumes|work|tmp|var|opt|srv|media|export|gpfs|lustre|storage|nfs)/[\w.-]+"
    r"|[A-Za-z]:\\Users\\|\\\\[\w.-]+\\|\bfile://|(?<!\w)~/\w|\bhf_[A-Za-z0-9]{20,}"
)
_AROUND, _INDEX = 12, 256  # bytes of a Parquet file that are neither columns nor footer: two marks and a length, and a column chunk's page index
_SHARD = re.compile(r"(?P<config>[a-z]+)/(?P<split>[a-z]+)-(?P<number>[0-9]{5})-of-(?P<of>[0-9]{5})\.parquet")


def checked_manifest(root: Path, found: Findings) -> Manifest | None:
    """The manifest, if it is one: nothing else can be checked without it."""
    try:
        manifest = read_manifest(root)
        raw = parse_json((root / FILE_NAME).read_bytes(), FILE_NAME)
    except DataError as error:
        found.add("X401", FILE_NAME, shown(error.message, 160) + (": a build or a download was cut short, run it again" if _cut_short(root) else ""))
        return None
    errors = [f"{'.'.join(map(str, e.path))}: {shown(e.message, 120)}" for e in schema.validator("manifest").iter_errors(raw)]
    if not errors:
        errors += [f"files: {shown(name)!r} leaves the release" for name in manifest.files if not inside(name)] + _contradictions(manifest)
    if manifest.layout_version != LAYOUT_VERSION and not errors:
        errors.append(f"layout version {manifest.layout_version}; this program knows {LAYOUT_VERSION}")
    for wrong in errors:
        found.add("X401", FILE_NAME, wrong)
    return None if errors else manifest


def _contradictions(manifest: Manifest) -> list[str]:
    """What the JSON Schema cannot say."""
    splits = [sorted(getattr(manifest, what)) for what in ("volumes", "patients", "quintuples")]
    wrong = ["volumes, patients and quintuples are counted for different splits"] if splits[1:] != splits[:-1] else []
    wrong += [f"{shown(s.path)} is of a split that is not counted" for s in manifest.shards if s.split not in manifest.volumes][:1]
    paths = [s.path for s in manifest.shards]
    wrong += ["a shard is listed twice"] if len(set(paths)) < len(paths) else []
    wrong += ["the release holds no quintuple"] if not sum(manifest.quintuples.values()) or not paths else []
    return wrong


def _cut_short(root: Path) -> bool:
    """Whether a build or a download left its unfinished files here."""
    some = itertools.islice(os.walk(root), 100)  # it may be any folder, and hold a whole disk
    return root.name.endswith(".partial") or any(f.endswith((".tmp", ".incomplete")) for _, _, files in some for f in files)


def inside(name: str) -> bool:
    parts = name.split("/")
    return bool(name) and not any(p in ("", ".", "..") for p in parts) and not any(c in name for c in ":\\\0")


def check_files(root: Path, manifest: Manifest, found: Findings) -> set[str]:
    """Names, and what is where. Returns the files that are there and in the manifest."""
    known = {FILE_NAME, *manifest.files, *(s.path for s in manifest.shards)}
    there = set(_walk(root))
    files = {name for name in there if _is_file(root / name)}
    for name in sorted(known - files):
        found.add("X402", shown(name), "it is not there" if name not in there else "a link to nowhere, or not a file")
    for name in sorted(there - known):
        script = "/" not in name and name.endswith((".py", ".pyc"))
        found.add("X410" if script else "X403", shown(name), "a script" if script else f"{(root / name).lstat().st_size} bytes")
    scripts = {n for n in manifest.files if "/" not in n and n.lower().endswith((".py", ".pyc"))}
    for name in sorted(scripts):
        found.add("X410", shown(name), "a script, even in the manifest")
    for name in sorted(manifest.files.keys() - TEXTS - scripts):
        found.add("X413", shown(name), "it has no place in a release")
    for name in sorted(TEXTS - manifest.files.keys()):
        found.add("X413", name, "the manifest does not list it")
    for folder in sorted({name.split("/")[0] for name in there if "/" in name}):
        if _SPLIT_WORDS.fullmatch(folder):
            found.add("X411", f"{shown(folder)}/", "a split keyword")
    _numbering(manifest, found)
    return files & known


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)  # a pipe would keep us waiting
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def _walk(root: Path) -> list[str]:
    """Every file, and every folder that is a link: it is not followed, so what it holds is not known."""
    names = []
    for folder, folders, files in os.walk(root):
        if Path(folder) == root:
            folders[:] = [f for f in folders if f not in _FOLDERS_OF_THE_HUB]
            files = [f for f in files if f not in _OF_THE_HUB]
        names += [Path(folder, f).relative_to(root).as_posix() for f in [*files, *(f for f in folders if Path(folder, f).is_symlink())]]
    return names


def _numbering(manifest: Manifest, found: Findings) -> None:
    numbers: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for shard in manifest.shards:
        match = _SHARD.fullmatch(shard.path)
        if not match or (match["config"], match["split"]) != (shard.config, shard.split):
            found.add("X412", shard.path, f"listed under {shard.config}, {shard.split}")
        else:
            numbers[shard.config, shard.split].append((int(match["number"]), int(match["of"])))
    for (config, split), got in numbers.items():
        if sorted(got) != [(n, len(got)) for n in range(len(got))]:
            found.add("X412", f"{config}/{split}-*", f"{len(got)} shards, numbered {', '.join(f'{n} of {of}' for n, of in sorted(got)[:4])}")


def check_texts(root: Path, manifest: Manifest, there: set[str], quick: bool, found: Findings) -> None:
    """Every file that is not a shard: unchanged, of a text's size, and without a path of a machine."""
    for name in sorted(there & set(manifest.files)):
        path = root / name
        if path.stat().st_size > MAX_TEXT:
            found.add("X413", shown(name), f"{path.stat().st_size} bytes of text")
            continue
        data = path.read_bytes()
        if not quick and hashlib.sha256(data).hexdigest() != manifest.files[name]:
            found.add("X404", shown(name), "its sha256 is another one")
        if data == _ours().get(name):
            continue  # the schemas are long, and known
        if _PRIVATE.search(data.decode("utf-8", "replace")):
            found.add("X502", shown(name), "the text holds a path of somebody's machine, or a token")
        if name in _ours():
            _check_schema(name, data, manifest, found)


@functools.cache
def _ours() -> dict[str, bytes]:
    return {f"schema/{file.name}": file.read_bytes() for file in schema.files()}


def _check_schema(name: str, data: bytes, manifest: Manifest, found: Findings) -> None:
    version = shown(manifest.code_version, 20)
    try:
        parse_json(data, name)
    except DataError:
        found.add("X413", name, "it is not JSON")
    else:
        found.add("X404" if version == VERSION else "X607", name, f"not the schema of version {VERSION}; the release was made by {version}")


def check_shard_file(root: Path, shard: Shard, quick: bool, found: Findings) -> None:
    path = root / shard.path
    try:
        if path.stat().st_size != shard.bytes:
            found.add("X404", shard.path, f"{path.stat().st_size} bytes where the manifest says {shard.bytes}")
        elif not quick and sha256_of(path) != shard.sha256:
            found.add("X404", shard.path, "its sha256 is another one")
    except OSError as error:
        storage_error(error, shard.path)
        raise


def check_metadata(path: str, file: pq.ParquetFile, size: int, found: Findings) -> None:
    """What a shard holds besides its columns: a writer's name and Arrow's schema, and nothing that could hide something."""
    about, footer = file.metadata.metadata or {}, file.metadata
    for key in about:
        if key != b"ARROW:schema":
            found.add("X502", path, f"the footer holds {shown(key.decode('utf-8', 'replace'), 40)!r}, which no reader needs")
    more = file.schema_arrow.metadata or any(set(field.metadata or ()) - {b"PARQUET:field_id"} for field in file.schema_arrow)
    if more and set(about) <= {b"ARROW:schema"}:
        found.add("X502", path, "the schema in the footer holds more than names and types")
    if points_elsewhere(footer.created_by or ""):
        found.add("X502", path, "the name of the writer holds a path or a URL")
    groups = (footer.row_group(g) for g in range(footer.num_row_groups))
    sizes = [group.column(c).total_compressed_size for group in groups for c in range(group.num_columns)]
    other = size - sum(sizes) - footer.serialized_size
    if other > _AROUND + _INDEX * len(sizes) + size // 1000:
        found.add("X414", path, f"{other} bytes besides {len(sizes)} column chunks and the footer")


def check_checksums(root: Path, path: str, file: pq.ParquetFile, found: Findings) -> None:
    """The first page of each column chunk has one: without, reading with checksums verified would verify nothing."""
    with (root / path).open("rb", buffering=0) as raw:
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            for column in (group.column(c) for c in range(group.num_columns)):
                raw.seek(min(o for o in (column.dictionary_page_offset, column.data_page_offset) if o is not None))
                if not _has_checksum(raw.read(32)):
                    found.add("X416", f"{path} row group {number}", f"column {shown(column.path_in_schema)}")
                    return


def _has_checksum(header: bytes) -> bool:
    """Of a page header in Thrift's compact form: three numbers (type, two sizes), each with a byte before it, then the checksum, if there is one."""
    at = 0
    for _ in range(3):
        at += 1
        while at < len(header) and header[at] & 0x80:
            at += 1
        at += 1
    return header[at : at + 1] == b"\x15"  # the next field, a number
