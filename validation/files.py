"""The files of a release against its manifest: none missing, none unknown, none changed, none that has no
place in a release."""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import os
import re
import stat
from collections import defaultdict
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING

from reasonknee import schema
from reasonknee.errors import DataError, shown
from reasonknee.layout import Manifest, Shard, read_manifest
from reasonknee.layout.index import index_names
from reasonknee.layout.manifest import FILE_NAME
from reasonknee.layout.places import MAX_TEXT
from reasonknee.layout.sgmri import QaManifest
from reasonknee.layout.strict_text import parse_json
from reasonknee.layout.terms import OWN_URLS
from reasonknee.system.files import sha256_of
from reasonknee.validation.findings import Findings
from reasonknee.validation.reading import storage_error
from reasonknee.validation.rows import points_elsewhere
from reasonknee.version import VERSION

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_SPLIT_WORDS = re.compile(
    r"train(ing)?|val(id(ation)?)?|dev(elop(ment)?)?|test(ing)?|eval(uation)?", re.IGNORECASE
)
# What the Hub, git and a maintainer's CI add: by name, so that nothing else can lie beside them.
_AROUND = {
    ".gitattributes",
    ".gitignore",
    ".github/validate_release.sh",
    ".github/workflows/validate-release.yml",
}
_OF_A_DOWNLOAD = re.compile(
    r"\.cache/huggingface/(?:\.gitignore|CACHEDIR\.TAG|download/.+\.(?:lock|metadata|incomplete))"
)
_OF_GIT = {"HEAD", "objects", "refs"}  # by which git knows its own folder
_POINTER = re.compile(rb"gitdir: [^\n]+\n?")
_MAX_AROUND = 1 << 16  # bytes of such a file
TEXTS = {"README.md", "croissant.json", *(f"schema/{file.name}" for file in schema.files())}
# A path of somebody's machine, a share, or a token of the Hub; a URL may well stand in a card.
_PRIVATE = re.compile(
    r"(?<![\w./:~-])/(?:home|Users|root|mnt|scratch|data|Volumes|work|tmp|var|opt|srv|media|export|gpfs|lustre|storage|nfs)/[\w.-]+"
    r"|[A-Za-z]:\\Users\\|\\\\[\w.-]+\\|\bfile://|(?<!\w)~/\w|\bhf_[A-Za-z0-9]{20,}"
)
_URL = re.compile(r"\b(?:https?|ftp|s3|gs|hf|file)://[^\s\"'<>()\[\]{}]*", re.IGNORECASE)
_SHARD = re.compile(r"(?P<config>[a-z]+)/(?P<split>[a-z]+)-(?P<number>[0-9]{5})-of-(?P<of>[0-9]{5})\.parquet")


def checked_manifest(root: Path, findings: Findings) -> Manifest | None:
    """The manifest, if it is one: nothing else can be checked without it."""
    try:
        manifest = read_manifest(root)
        raw = parse_json((root / FILE_NAME).read_bytes(), FILE_NAME)
    except DataError as error:
        hint = "a build or a download was cut short, run it again" if _cut_short(root) else ""
        hint = error.hint if error.code == "M006" else hint  # of another layout: no cut made it so
        told = shown(error.told.removeprefix(f"{FILE_NAME}: "), 160)
        findings.add("X401", FILE_NAME, f"{told}: {hint}" if hint else told)
        return None
    errors = [
        f"{'.'.join(map(str, e.path))}: {shown(e.message, 120)}"
        for e in schema.validator("manifest").iter_errors(raw)
    ]
    if not errors:
        errors += _contradictions(manifest)
    for wrong in errors:
        findings.add("X401", FILE_NAME, wrong)
    return None if errors else manifest


def _contradictions(manifest: Manifest) -> list[str]:
    """What the JSON Schema cannot say."""
    splits = [sorted(getattr(manifest, what)) for what in ("volumes", "patients", "quintuples")]
    wrong = (
        ["volumes, patients and quintuples are counted for different splits"]
        if splits[1:] != splits[:-1]
        else []
    )
    wrong += [
        f"{shown(s.path)} is of a split that is not counted"
        for s in manifest.shards
        if s.split not in manifest.volumes
    ][:1]
    paths = [s.path for s in manifest.shards]
    wrong += ["a shard is listed twice"] if len(set(paths)) < len(paths) else []
    wrong += ["the release holds no quintuple"] if not sum(manifest.quintuples.values()) or not paths else []
    return wrong


def _cut_short(root: Path) -> bool:
    """Whether a build or a download left its unfinished files here."""
    some = itertools.islice(os.walk(root), 100)  # it may be any folder, and hold a whole disk
    return root.name.endswith(".partial") or any(
        f.endswith((".tmp", ".incomplete")) for _, _, files in some for f in files
    )


def check_files(
    root: Path, manifest: Manifest | QaManifest, findings: Findings, texts: Set[str] = TEXTS
) -> set[str]:
    """Names, and what is where: `texts` are those that the release must have. Returns the files that are
    there and in the manifest."""
    known = {FILE_NAME, *manifest.files, *(s.path for s in manifest.shards)}
    there = set(_walk(root))
    files = {name for name in there if _is_file(root / name)}
    for name in sorted(known - files):
        findings.add(
            "X402",
            shown(name),
            "it is not there" if name not in there else "a link to nowhere, or not a file",
        )
    for name in sorted(there - known):
        script = "/" not in name and name.endswith((".py", ".pyc"))
        findings.add(
            "X410" if script else "X403",
            shown(name),
            "a script" if script else f"{(root / name).lstat().st_size} bytes",
        )
    scripts = {n for n in manifest.files if "/" not in n and n.lower().endswith((".py", ".pyc"))}
    for name in sorted(scripts):
        findings.add("X410", shown(name), "a script, even in the manifest")
    index = index_names(manifest.shards) if isinstance(manifest, Manifest) else set()
    for name in sorted(manifest.files.keys() - texts - index - scripts):
        findings.add("X413", shown(name), "it has no place in a release")
    for name in sorted(texts - manifest.files.keys()):
        findings.add("X413", name, "the manifest does not list it")
    for folder in sorted({name.split("/")[0] for name in there if "/" in name}):
        if _SPLIT_WORDS.fullmatch(folder):
            findings.add("X411", f"{shown(folder)}/", "a split keyword")
    _numbering(manifest, findings)
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
    """Every file, and every folder that is a link: it is not followed, so what it holds is not known. What
    git keeps for itself is no part of a release, and what the Hub's library notes of a download neither."""
    names = []
    for folder, folders, files in os.walk(root):
        if Path(folder) == root and _is_of_git(root / ".git"):
            folders[:], files = [f for f in folders if f != ".git"], [f for f in files if f != ".git"]
        names += [
            Path(folder, f).relative_to(root).as_posix()
            for f in [*files, *(f for f in folders if Path(folder, f).is_symlink())]
        ]
    return [name for name in names if not _OF_A_DOWNLOAD.fullmatch(name) and not _is_around(root, name)]


def _is_of_git(path: Path) -> bool:
    """The folder of a clone, or the line of a worktree or submodule that says where it lies."""
    if path.is_symlink() or not path.is_file():
        return all((path / name).exists() for name in _OF_GIT)
    return path.stat().st_size <= _MAX_AROUND and bool(_POINTER.fullmatch(path.read_bytes()))


def _is_around(root: Path, name: str) -> bool:
    path = root / name
    return name in _AROUND and not path.is_symlink() and path.stat().st_size <= _MAX_AROUND


def _numbering(manifest: Manifest | QaManifest, findings: Findings) -> None:
    numbers: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for shard in manifest.shards:
        match = _SHARD.fullmatch(shard.path)
        if not match or (match["config"], match["split"]) != (shard.config, shard.split):
            findings.add("X412", shard.path, f"listed under {shard.config}, {shard.split}")
        else:
            numbers[shard.config, shard.split].append((int(match["number"]), int(match["of"])))
    for (config, split), got in numbers.items():
        if sorted(got) != [(n, len(got)) for n in range(len(got))]:
            findings.add(
                "X412",
                f"{config}/{split}-*",
                f"{len(got)} shards, numbered {', '.join(f'{n} of {of}' for n, of in sorted(got)[:4])}",
            )


def check_texts(
    root: Path, manifest: Manifest | QaManifest, there: set[str], quick: bool, findings: Findings
) -> None:
    """Every file that is not a shard: unchanged, of a text's size, and without a path of a machine."""
    for name in sorted(there & set(manifest.files)):
        path = root / name
        if path.stat().st_size > MAX_TEXT:
            findings.add("X413", shown(name), f"{path.stat().st_size} bytes of text")
            continue
        data = path.read_bytes()
        if not quick and hashlib.sha256(data).hexdigest() != manifest.files[name]:
            findings.add("X404", shown(name), "its sha256 is another one")
        if data == _ours().get(name) and manifest.code_version == VERSION:
            continue  # the schemas are long, and known
        text = data.decode("utf-8", "replace")
        if _PRIVATE.search(text):
            findings.add("X502", shown(name), "the text holds a path of somebody's machine, or a token")
        strange = [url for url in _URL.findall(text) if not url.startswith(OWN_URLS)]
        if strange:
            findings.add(
                "X502", shown(name), f"the text holds a URL that is not the project's, {len(strange)} in all"
            )
        if name in _ours():
            _check_schema(name, data, manifest, findings)


@functools.cache
def _ours() -> dict[str, bytes]:
    return {f"schema/{file.name}": file.read_bytes() for file in schema.files()}


def _check_schema(name: str, data: bytes, manifest: Manifest | QaManifest, findings: Findings) -> None:
    version = shown(manifest.code_version, 20)
    try:
        named = parse_json(data, name).get("$comment")
    except DataError:
        findings.add("X413", name, "it is not JSON")
        return
    if named != f"reasonknee {manifest.code_version}":
        findings.add("X609", name, f"it is of {shown(named, 40)}, the manifest says {version}")
    elif version == VERSION:
        findings.add("X404", name, f"not the schema of version {VERSION}")
    else:
        findings.add("X607", name, f"not the schema of version {VERSION}; the release was made by {version}")


def check_shard_file(root: Path, shard: Shard, quick: bool, findings: Findings) -> None:
    path = root / shard.path
    try:
        if path.stat().st_size != shard.bytes:
            findings.add(
                "X404", shard.path, f"{path.stat().st_size} bytes where the manifest says {shard.bytes}"
            )
        elif not quick and sha256_of(path) != shard.sha256:
            findings.add("X404", shard.path, "its sha256 is another one")
    except OSError as error:
        storage_error(error, shard.path)
        raise


def check_metadata(path: str, file: pq.ParquetFile, findings: Findings) -> None:
    """What a shard holds besides its columns: a writer's name and Arrow's schema, and nothing that could
    hide something."""
    about, footer = file.metadata.metadata or {}, file.metadata
    for key in about:
        if key != b"ARROW:schema":
            findings.add(
                "X502",
                path,
                f"the footer holds {shown(key.decode('utf-8', 'replace'), 40)!r}, which no reader needs",
            )
    more = file.schema_arrow.metadata or any(
        set(field.metadata or ()) - {b"PARQUET:field_id"} for field in file.schema_arrow
    )
    if more and set(about) <= {b"ARROW:schema"}:
        findings.add("X502", path, "the schema in the footer holds more than names and types")
    if points_elsewhere(footer.created_by or ""):
        findings.add("X502", path, "the name of the writer holds a path or a URL")
