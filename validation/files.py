"""The files of a release against its manifest: none missing, none unknown, none changed, none that has no place in a release."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

from reasonknee import schema
from reasonknee.errors import DataError, shown
from reasonknee.manifest import FILE_NAME, Manifest, Shard, read_manifest, sha256_of
from reasonknee.tables import parse_json
from reasonknee.validation.findings import Findings
from reasonknee.validation.reading import storage_error
from reasonknee.validation.rows import points_elsewhere
from reasonknee.version import LAYOUT_VERSION

_SPLIT_WORDS = re.compile(r"train(ing)?|val(id(ation)?)?|dev(elop(ment)?)?|test(ing)?|eval(uation)?", re.IGNORECASE)
_OF_THE_HUB = (".gitattributes", ".gitignore")  # what the Hub or git adds
_FOLDERS_OF_THE_HUB = (".cache", ".git", ".huggingface")
MAX_TEXT = 8 << 20  # bytes of a text file that is looked through
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
    errors += [f"files: {shown(name)!r} leaves the release" for name in manifest.files if not inside(name)]
    if manifest.layout_version != LAYOUT_VERSION and not errors:
        errors.append(f"layout version {manifest.layout_version}; this program knows {LAYOUT_VERSION}")
    for wrong in errors:
        found.add("X401", FILE_NAME, wrong)
    return None if errors else manifest


def _cut_short(root: Path) -> bool:
    """Whether a build or a download left its unfinished files here."""
    return root.name.endswith(".partial") or any(f.endswith((".tmp", ".incomplete")) for _, _, files in os.walk(root) for f in files)


def inside(name: str) -> bool:
    parts = name.split("/")
    return bool(name) and not any(p in ("", ".", "..") for p in parts) and not any(c in name for c in ":\\\0")


def check_files(root: Path, manifest: Manifest, found: Findings) -> set[str]:
    """Names, and what is where. Returns the files that are there and in the manifest."""
    known = {FILE_NAME, *manifest.files, *(s.path for s in manifest.shards)}
    there = set(_walk(root))
    for name in sorted(known - there):
        found.add("X402", name, "it is not there")
    for name in sorted(there - known):
        script = "/" not in name and name.endswith((".py", ".pyc"))
        found.add("X410" if script else "X403", shown(name), "a script" if script else f"{(root / name).stat().st_size} bytes")
    for name in sorted(n for n in manifest.files if "/" not in n and n.endswith(".py")):
        found.add("X410", name, "a script, even in the manifest")
    for folder in sorted({name.split("/")[0] for name in there if "/" in name}):
        if _SPLIT_WORDS.fullmatch(folder):
            found.add("X411", f"{shown(folder)}/", "a split keyword")
    _numbering(manifest, found)
    return there & known


def _walk(root: Path) -> list[str]:
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in _FOLDERS_OF_THE_HUB]
        names += [Path(folder, f).relative_to(root).as_posix() for f in files if f not in _OF_THE_HUB]
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
    """Every file that is not a shard: unchanged, and without a path of a machine."""
    for name in sorted(there & set(manifest.files)):
        if not quick and sha256_of(root / name) != manifest.files[name]:
            found.add("X404", name, "its sha256 is another one")
        if (root / name).stat().st_size <= MAX_TEXT:
            text = (root / name).read_text(encoding="utf-8", errors="replace")
            private = re.search(r"(?:/(?:home|Users|root|mnt|scratch)/|[A-Za-z]:\\Users\\)[\w.-]+", text)
            if private:
                found.add("X502", name, "the text holds a path of somebody's machine")
    ours = {f"schema/{file.name}": file.read_bytes() for file in schema.files()}
    for name in sorted(there & set(ours)):
        if (root / name).read_bytes() != ours[name]:
            found.add("X607", name, f"the release was made by version {shown(manifest.code_version, 20)}")


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


def check_metadata(path: str, metadata: dict[bytes, bytes] | None, found: Findings) -> None:
    """Key-value pairs that a writer left in a shard's footer."""
    for key, value in (metadata or {}).items():
        if key != b"ARROW:schema" and points_elsewhere(value.decode("utf-8", "replace")):
            found.add("X502", path, f"the footer's {shown(key.decode('utf-8', 'replace'), 40)!r} holds a path or a URL")
