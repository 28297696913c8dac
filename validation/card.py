"""The card: what `load_dataset` and the Hub read must describe the files that are there.

Its front matter is made anew here from the manifest, the fields of the configs and the terms of a release."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import Any

from reasonknee.errors import shown
from reasonknee.layout import Manifest
from reasonknee.layout.records import yaml_features
from reasonknee.layout.terms import LISTED, NAME, OPEN, RESTRICTED
from reasonknee.validation.findings import Findings

CARD = "README.md"
_MAX_CARD = 4 << 20
_ALIAS = re.compile(r"(?m)(?:^|[:,\[-])[ \t]+[&*]\w")  # grows when it is read
_MOST_BRACKETS = 2000  # in each other, more would be too deep to be read
_KEYS = {"config_name", "default", "data_files"}  # of a config: others would change what is loaded


def check_card(root: Path, manifest: Manifest, findings: Findings) -> None:
    front = front_matter(root, findings)
    if front is None:
        return
    try:
        _terms(front, manifest, findings)
        _configs(front, manifest, findings)
        _infos(front, manifest, findings)
    except (
        AttributeError,
        TypeError,
        ValueError,
        KeyError,
    ) as error:  # lists where texts belong, and the like
        findings.add("X601", CARD, f"the front matter has not its form: {shown(error, 120)}")


def _infos(front: dict[str, Any], manifest: Manifest, findings: Findings) -> None:
    for info in front.get("dataset_info") or []:
        config = info.get("config_name")
        if config not in manifest.configs:
            continue  # named by the check of configs
        place = f"{CARD}, {config}"
        if info.get("features") != yaml_features(config):
            findings.add("X603", place, "dataset_info.features differ from the config's fields")
        sizes = {key: value for key, value in info.items() if key not in ("config_name", "features")}
        wanted = _sizes(manifest, config)
        for key in {**wanted, **sizes}:
            if sizes.get(key) != wanted.get(key):
                told = f"{shown(key)} {shown(sizes.get(key))}, the manifest has {wanted.get(key)}"
                findings.add("X604", place, told)


def _sizes(manifest: Manifest, config: str) -> dict[str, Any]:
    """What the card says of rows and bytes, made anew from the manifest's shards."""
    shards = [(split, manifest.of(config, split)) for split in manifest.volumes]
    splits = [
        {"name": split, "num_bytes": sum(s.arrow_bytes for s in of), "num_examples": sum(s.rows for s in of)}
        for split, of in shards
        if of
    ]
    return {
        "splits": splits,
        "download_size": sum(s.bytes for _, of in shards for s in of),
        "dataset_size": sum(s.arrow_bytes for _, of in shards for s in of),
    }


def front_matter(root: Path, findings: Findings) -> dict[str, Any] | None:
    import yaml

    path = root / CARD
    if not path.is_file() or path.stat().st_size > _MAX_CARD:
        if not path.is_file():
            findings.add("X601", CARD, "there is no card")
        else:
            findings.add("X601", CARD, f"{path.stat().st_size} bytes")
        return None
    try:
        parts = path.read_text(encoding="utf-8").split("---\n", 2)
        if len(parts) == 3 and (
            _ALIAS.search(parts[1]) or parts[1].count("[") + parts[1].count("{") > _MOST_BRACKETS
        ):
            raise ValueError("anchors, aliases or brackets by the thousand")
        front = (
            yaml.load(parts[1], Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            if len(parts) == 3 and not parts[0].strip()
            else None
        )
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        findings.add("X601", CARD, shown(" ".join(str(error).split()), 160))
        return None
    shaped = isinstance(front, dict) and all(
        isinstance(front.get(key), list) and all(isinstance(item, dict) for item in front[key])
        for key in ("configs", "dataset_info")
    )
    if front is None or not shaped:
        findings.add("X601", CARD, "the front matter must hold the lists `configs` and `dataset_info`")
        return None
    return dict(front)


def _terms(front: dict[str, Any], manifest: Manifest, findings: Findings) -> None:
    """Licence and gate word for word, as a lawyer would want them; then all else that the Hub reads."""
    terms = RESTRICTED if manifest.restricted else OPEN
    for key in dict.fromkeys([*RESTRICTED, *OPEN]):
        if front.get(key) != terms.get(key):
            kind = "a restricted" if manifest.restricted else "an open"
            told = "is not set" if key not in front else f"is {shown(front[key], 60)!r}"
            findings.add("X504", CARD, f"`{key}` {told}, {kind} release has {shown(terms.get(key), 60)!r}")
    total = sum(manifest.quintuples.values())
    listed = {
        **LISTED,
        "pretty_name": f"{NAME} (synthetic knees)" if manifest.synthetic else NAME,
        "size_categories": [_size_category(total)],
    }
    other = {k: v for k, v in front.items() if k not in (*RESTRICTED, *OPEN, "configs", "dataset_info")}
    for key in {**listed, **other}:
        if other.get(key) != listed.get(key):
            told = f"is {shown(other.get(key), 60)!r}, a release has {shown(listed.get(key), 60)!r}"
            findings.add("X608", CARD, f"`{shown(key, 40)}` {told}")


def _size_category(rows: int) -> str:
    """As the Hub names them: powers of ten, 1K to 1M."""
    if rows < 1000:
        return "n<1K"
    power = len(str(rows)) - 1
    names = {3: "1K", 4: "10K", 5: "100K", 6: "1M", 7: "10M"}
    return f"{names[power]}<n<{names[power + 1]}"


def _configs(front: dict[str, Any], manifest: Manifest, findings: Findings) -> None:
    """The first config is the default one and decides how `datasets` reads all: order matters."""
    names = [c.get("config_name") for c in front["configs"]]
    infos = [i.get("config_name") for i in front["dataset_info"]]
    if names != manifest.configs or sorted(map(str, infos)) != sorted(manifest.configs):
        findings.add(
            "X602",
            CARD,
            f"configs {shown(names)}, dataset_info {shown(infos)}; the manifest has {manifest.configs}",
        )
        return
    default = [c["config_name"] for c in front["configs"] if c.get("default")]
    if default not in ([], manifest.configs[:1]):
        findings.add("X602", CARD, f"the default is {shown(default)}, it must be the first")
    paths = [s.path for s in manifest.shards]
    for config in front["configs"]:
        strange = [str(k) for k in config if k not in _KEYS]
        files = config.get("data_files") or []
        if (
            strange
            or not isinstance(files, list)
            or any(not isinstance(f, dict) or set(f) != {"split", "path"} for f in files)
        ):
            told = (
                f"{', '.join(strange)} would change what is loaded"
                if strange
                else "data_files are a list of a split and a path each"
            )
            findings.add("X602", f"{CARD}, {config['config_name']}", shown(told))
            continue
        if len({str(f["split"]) for f in files}) < len(files):
            findings.add("X602", f"{CARD}, {config['config_name']}", "data_files name a split twice")
            continue
        got = {str(f["split"]): sorted(p for p in paths if _matches(p, str(f["path"]))) for f in files}
        wanted = {
            s: sorted(x.path for x in manifest.of(config["config_name"], s))
            for s in manifest.volumes
            if manifest.of(config["config_name"], s)
        }
        if got != wanted:
            wrong = [s for s in dict.fromkeys([*got, *wanted]) if got.get(s) != wanted.get(s)]
            findings.add(
                "X602",
                f"{CARD}, {config['config_name']}",
                f"data_files of {shown(', '.join(wrong))} do not name the shards of the manifest",
            )


def _matches(path: str, pattern: str) -> bool:
    """As `datasets` has it: a star stays within a folder, and the folder is named as it is."""
    return pattern.rsplit("/", 1)[0] == path.rsplit("/", 1)[0] and fnmatch.fnmatchcase(path, pattern)
