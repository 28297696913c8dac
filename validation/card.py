"""The card and Croissant: what `load_dataset` and search engines read must describe the files that are there."""

from __future__ import annotations

import fnmatch
import json
import logging
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from reasonknee.errors import DataError, shown
from reasonknee.manifest import Manifest
from reasonknee.records import fields, yaml_features
from reasonknee.tables import parse_json
from reasonknee.validation.findings import Findings

CARD, CROISSANT = "README.md", "croissant.json"
_MAX_CARD = 4 << 20
_ALIAS = re.compile(r"(?m)(?:^|[:,\[-])[ \t]+[&*]\w")  # grows when it is read
_MOST_BRACKETS = 2000  # in each other, more would be too deep to be read
_KEYS = {"config_name", "default", "data_files"}  # of a config: others would change what is loaded
_LICENCES = re.compile(r"[a-z][a-z0-9.-]{1,39}")


def check_card(root: Path, manifest: Manifest, found: Findings) -> None:
    front = _front_matter(root, found)
    if front is None:
        return
    try:
        _terms(front, manifest, found)
        _configs(front, manifest, found)
        _infos(front, manifest, found)
    except (AttributeError, TypeError, ValueError, KeyError) as error:  # lists where texts belong, and the like
        found.add("X601", CARD, f"the front matter has not its form: {shown(error, 120)}")


def _infos(front: dict[str, Any], manifest: Manifest, found: Findings) -> None:
    for info in front.get("dataset_info") or []:
        config = info.get("config_name")
        if config not in manifest.configs:
            continue  # named by the check of configs
        if info.get("features") != yaml_features(config):
            found.add("X603", f"{CARD}, {config}", "dataset_info.features differ from the config's fields")
        rows = {s.get("name"): s.get("num_examples") for s in info.get("splits") or []}
        wanted = {split: sum(s.rows for s in manifest.of(config, split)) for split in manifest.volumes if manifest.of(config, split)}
        if rows != wanted:
            found.add("X604", f"{CARD}, {config}", f"{shown(rows)} where the manifest says {wanted}")


def _front_matter(root: Path, found: Findings) -> dict[str, Any] | None:
    import yaml

    path = root / CARD
    if not path.is_file() or path.stat().st_size > _MAX_CARD:
        if not path.is_file():
            found.add("X601", CARD, "there is no card")
        else:
            found.add("X601", CARD, f"{path.stat().st_size} bytes")
        return None
    try:
        parts = path.read_text(encoding="utf-8").split("---\n", 2)
        if len(parts) == 3 and (_ALIAS.search(parts[1]) or parts[1].count("[") + parts[1].count("{") > _MOST_BRACKETS):
            raise ValueError("anchors, aliases or brackets by the thousand")
        front = yaml.load(parts[1], Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if len(parts) == 3 and not parts[0].strip() else None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        found.add("X601", CARD, shown(" ".join(str(error).split()), 160))
        return None
    shaped = isinstance(front, dict) and all(
        isinstance(front.get(key), list) and all(isinstance(item, dict) for item in front[key]) for key in ("configs", "dataset_info")
    )
    if front is None or not shaped:
        found.add("X601", CARD, "the front matter must hold the lists `configs` and `dataset_info`")
        return None
    return dict(front)


def _terms(front: dict[str, Any], manifest: Manifest, found: Findings) -> None:
    licence, gate = front.get("license"), front.get("extra_gated_prompt")
    if not isinstance(licence, str) or not _LICENCES.fullmatch(licence):
        found.add("X504", CARD, "`license` is not set" if not licence else "`license` is not the name of one")
    elif manifest.restricted and (licence != "other" or "oai" not in str(front.get("license_name")).lower()):
        found.add("X504", CARD, "a restricted release has the licence `other`, with the name of OAI's terms")
    if manifest.restricted and (not isinstance(gate, str) or len(gate.strip()) < 40 or "OAI" not in gate or "not" not in gate):
        found.add("X504", CARD, "a restricted release needs `extra_gated_prompt`, the text about OAI's terms that readers must accept")


def _configs(front: dict[str, Any], manifest: Manifest, found: Findings) -> None:
    """The first config is the default one and decides how `datasets` reads all: order matters."""
    names = [c.get("config_name") for c in front["configs"]]
    infos = [i.get("config_name") for i in front["dataset_info"]]
    if names != manifest.configs or sorted(map(str, infos)) != sorted(manifest.configs):
        found.add("X602", CARD, f"configs {shown(names)}, dataset_info {shown(infos)}; the manifest has {manifest.configs}")
        return
    default = [c["config_name"] for c in front["configs"] if c.get("default")]
    if default not in ([], manifest.configs[:1]):
        found.add("X602", CARD, f"the default is {shown(default)}, it must be the first")
    paths = [s.path for s in manifest.shards]
    for config in front["configs"]:
        strange = [str(k) for k in config if k not in _KEYS]
        files = config.get("data_files") or []
        if strange or not isinstance(files, list) or any(not isinstance(f, dict) or set(f) != {"split", "path"} for f in files):
            told = f"{', '.join(strange)} would change what is loaded" if strange else "data_files are a list of a split and a path each"
            found.add("X602", f"{CARD}, {config['config_name']}", shown(told))
            continue
        if len({str(f["split"]) for f in files}) < len(files):
            found.add("X602", f"{CARD}, {config['config_name']}", "data_files name a split twice")
            continue
        got = {str(f["split"]): sorted(p for p in paths if _matches(p, str(f["path"]))) for f in files}
        wanted = {s: sorted(x.path for x in manifest.of(config["config_name"], s)) for s in manifest.volumes if manifest.of(config["config_name"], s)}
        if got != wanted:
            wrong = [s for s in dict.fromkeys([*got, *wanted]) if got.get(s) != wanted.get(s)]
            found.add("X602", f"{CARD}, {config['config_name']}", f"data_files of {shown(', '.join(wrong))} do not name the shards of the manifest")


def _matches(path: str, pattern: str) -> bool:
    """As `datasets` has it: a star stays within a folder, and the folder is named as it is."""
    return pattern.rsplit("/", 1)[0] == path.rsplit("/", 1)[0] and fnmatch.fnmatchcase(path, pattern)


# --- Croissant --------------------------------------------------------------------------------------------------------------------


def check_croissant(root: Path, manifest: Manifest, quick: bool, found: Findings) -> None:
    path = root / CROISSANT
    if not path.is_file():
        found.add("X605", CROISSANT, "it is not there")
        return
    try:
        text = path.read_bytes()
        described = parse_json(text, CROISSANT)
    except DataError as error:
        found.add("X605", CROISSANT, shown(error.message, 160))
        return
    problems = _outer_shape(described) or _other_story(described, manifest) or ([] if quick else _by_mlcroissant(text))
    for problem in problems:
        found.add("X605", CROISSANT, shown(problem, 160))
    if problems:
        return
    sets = {str(r.get("@id")): r for r in described["recordSet"]}
    if set(sets) != set(manifest.configs):
        found.add("X606", CROISSANT, f"record sets {shown(sorted(sets))}; the manifest has {manifest.configs}")
    for config in [c for c in manifest.configs if c in sets]:
        listed = sets[config].get("field")
        got = [str(f.get("@id")).removeprefix(f"{config}/") for f in (listed if isinstance(listed, list) else []) if isinstance(f, dict)]
        wanted = [f.name for f in fields(config)]
        if got != wanted:
            found.add("X606", f"{CROISSANT}, {config}", f"fields differ: {shown(', '.join(sorted(set(got) ^ set(wanted))) or 'their order')}")


def _outer_shape(described: dict[str, Any]) -> list[str]:
    missing = [key for key in ("@context", "@type", "name", "conformsTo", "license", "distribution", "recordSet") if not described.get(key)]
    if missing:
        return [f"missing: {', '.join(missing)}"]
    for name in ("recordSet", "distribution"):
        if not isinstance(described[name], list) or not all(isinstance(r, dict) for r in described[name]):
            return [f"{name} must be a list of objects"]
    return []


def _other_story(described: dict[str, Any], manifest: Manifest) -> list[str]:
    """What it says of the release that the manifest does not."""
    wrong = [] if described.get("version") == manifest.release_version else [f"version {described.get('version')}"]
    open_ = "creativecommons" in str(described["license"])
    wrong += [f"licence {described['license']}"] if open_ == manifest.restricted else []
    included = sorted(str(d.get("includes")) for d in described["distribution"] if d.get("@type") == "cr:FileSet")
    wrong += [f"files {included}"] if included != sorted(f"{c}/*.parquet" for c in manifest.configs) else []
    names = [str(r.get("@id")) for r in described["recordSet"]]
    wrong += ["a record set stands twice"] if len(set(names)) < len(names) else []
    return [f"{what}: not as the manifest has it" for what in wrong]


@lru_cache(maxsize=4)
def _by_mlcroissant(text: bytes) -> list[str]:
    """What the reference implementation says, where it is installed. It takes seconds, hence not with --quick."""
    try:
        import mlcroissant
    except ImportError:
        return []
    logging.getLogger("absl").setLevel(logging.ERROR)  # it remarks on contexts that are newer than its own
    try:
        return sorted(mlcroissant.Dataset(jsonld=json.loads(text)).metadata.issues.errors)
    except Exception as error:  # mlcroissant raises its own ValidationError, and others on odd input
        return [" ".join(str(error).split())]
