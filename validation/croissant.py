"""Croissant: what machines that look for datasets read must describe the files that are there.

What it says is made anew here from the manifest and the fields of the configs, by code of its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from reasonknee.errors import DataError, shown
from reasonknee.layout import Manifest
from reasonknee.layout.records import Field, NiftiFile, Repeated, Scalar, Struct, fields
from reasonknee.layout.strict_text import parse_json
from reasonknee.layout.terms import OAI_URL, OPEN_LICENCE_URL, REPO_URL
from reasonknee.validation.findings import Findings

CROISSANT = "croissant.json"
_TYPES = {
    "string": "sc:Text",
    "bool": "sc:Boolean",
    "int8": "cr:Int8",
    "int32": "cr:Int32",
    "int64": "cr:Int64",
    "float64": "cr:Float64",
    "binary": "sc:Text",
}


def check_croissant(root: Path, manifest: Manifest, quick: bool, findings: Findings) -> None:
    path = root / CROISSANT
    if not path.is_file():
        findings.add("X605", CROISSANT, "it is not there")
        return
    try:
        text = path.read_bytes()
        described = parse_json(text, CROISSANT)
    except DataError as error:
        findings.add("X605", CROISSANT, shown(error.message, 160))
        return
    problems = (
        _outer_shape(described)
        or _other_story(described, manifest)
        or ([] if quick else _by_mlcroissant(text))
    )
    for problem in problems:
        findings.add("X605", CROISSANT, shown(problem, 160))
    if not problems:
        _record_sets(described, manifest, findings)


def _outer_shape(described: dict[str, Any]) -> list[str]:
    missing = [
        key
        for key in ("@context", "@type", "name", "conformsTo", "license", "distribution", "recordSet")
        if not described.get(key)
    ]
    if missing:
        return [f"missing: {', '.join(missing)}"]
    for name in ("recordSet", "distribution"):
        if not isinstance(described[name], list) or not all(isinstance(r, dict) for r in described[name]):
            return [f"{name} must be a list of objects"]
    return []


def _other_story(described: dict[str, Any], manifest: Manifest) -> list[str]:
    """What it says of the release that the manifest does not."""
    wanted: dict[str, Any] = {
        "version": manifest.release_version,
        "license": OAI_URL if manifest.restricted else OPEN_LICENCE_URL,
        "url": REPO_URL,
    }
    wrong = [f"{key} {described.get(key)}" for key in wanted if described.get(key) != wanted[key]]
    files = sorted(_distributed(described["distribution"]))
    expected = sorted(
        [("repo", REPO_URL, ""), *((f"{c}-files", f"{c}/*.parquet", "repo") for c in manifest.configs)]
    )
    if files != expected:
        odd = [f for f in files if f not in expected] or [f for f in expected if f not in files]
        wrong.append(f"files {', '.join(map(str, odd[0]))}" if odd else "files that stand twice")
    names = [str(r.get("@id")) for r in described["recordSet"]]
    wrong += ["a record set stands twice"] if len(set(names)) < len(names) else []
    return [f"{what}: not as the manifest has it" for what in wrong]


def _distributed(listed: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Id, address or pattern, and container of each file or set of files."""
    for each in listed:
        inside = each.get("containedIn")
        where = each.get("contentUrl" if each.get("@type") == "cr:FileObject" else "includes")
        yield str(each.get("@id")), str(where), str(inside.get("@id") if isinstance(inside, dict) else "")


class _Column(NamedTuple):
    """Where the values of a field come from, and what they are."""

    type: str
    files: str
    column: str
    path: str
    repeated: bool


def _record_sets(described: dict[str, Any], manifest: Manifest, findings: Findings) -> None:
    sets = {str(r.get("@id")): r for r in described["recordSet"]}
    if set(sets) != set(manifest.configs):
        told = f"record sets {shown(sorted(sets))}; the manifest has {manifest.configs}"
        findings.add("X606", CROISSANT, told)
    for config in [c for c in manifest.configs if c in sets]:
        try:
            listed = dict(_described(sets[config].get("field", []), False))
        except (AttributeError, TypeError) as error:  # texts where objects belong, and the like
            findings.add("X606", f"{CROISSANT}, {config}", f"its fields have not their form: {shown(error)}")
            continue
        expected = dict(_expected(config, fields(config), config, ()))
        wrong = [name for name in {**expected, **listed} if expected.get(name) != listed.get(name)]
        if wrong or list(expected) != list(listed):
            told = f"fields differ: {shown(', '.join(wrong) or 'their order', 160)}"
            findings.add("X606", f"{CROISSANT}, {config}", told)


def _described(listed: Any, within_list: bool) -> Iterator[tuple[str, _Column]]:
    for each in listed:
        repeated = within_list or each.get("repeated") is True
        if "subField" in each:
            yield from _described(each["subField"], repeated)
            continue
        source = each.get("source", {})
        path = source.get("transform", {}).get("jsonPath", "")
        files, column = source.get("fileSet", {}).get("@id"), source.get("extract", {}).get("column")
        yield (
            str(each.get("@id")),
            _Column(str(each.get("dataType")), str(files), str(column), str(path), repeated),
        )


def _expected(
    config: str, of: Iterable[Field], prefix: str, way: tuple[str, ...], repeated: bool = False
) -> Iterator[tuple[str, _Column]]:
    for field in of:
        here, name = (*way, field.name), f"{prefix}/{field.name}"
        kind = field.type.of if isinstance(field.type, Repeated) else field.type
        many = repeated or isinstance(field.type, Repeated)
        if isinstance(kind, Struct):
            yield from _expected(config, kind.fields, name, here, many)
            continue
        inner = [*here[1:], *(["bytes"] if isinstance(kind, NiftiFile) else [])]
        of_type = _TYPES[kind.name] if isinstance(kind, Scalar) else "sc:Text"
        yield name, _Column(of_type, f"{config}-files", here[0], ".".join(inner), many)


@lru_cache(maxsize=4)
def _by_mlcroissant(text: bytes) -> list[str]:
    """What the reference implementation says, where it is installed.

    It takes seconds, hence not with --quick.
    """
    try:
        import mlcroissant
    except ImportError:
        return []
    logging.getLogger("absl").setLevel(logging.ERROR)  # it remarks on contexts that are newer than its own
    try:
        return sorted(mlcroissant.Dataset(jsonld=json.loads(text)).metadata.issues.errors)
    except Exception as error:  # mlcroissant raises its own ValidationError, and others on odd input
        return [" ".join(str(error).split())]
