"""A release to the Hub: checked first, then an allow-list of files.

Images, crops and embeddings go only to a repo that the Hub says is private or gated just then, by one who says that OAI's terms allow it; elsewhere
`annotations` go alone, with a card, Croissant and manifest of their own.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reasonknee.errors import DataError, StorageError, UsageError, shown
from reasonknee.manifest import FILE_NAME, Manifest, read_manifest
from reasonknee.records import CONFIGS
from reasonknee.release import annotations_alone
from reasonknee.validation.files import TEXTS, checked_manifest
from reasonknee.validation.findings import Findings
from reasonknee.validation.report import counted
from reasonknee.validation.run import validate_release

_SHARD = re.compile(rf"({'|'.join(CONFIGS)})/[a-z]+-[0-9]{{5}}-of-[0-9]{{5}}\.parquet")
_IMAGES = re.compile(rf"({'|'.join(c for c in CONFIGS if c != 'annotations')})/.*[.]parquet")
_REPO = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}", re.ASCII)


@dataclass(frozen=True)
class Published:
    """Where it went, and why images stayed at home if they did."""

    url: str
    configs: list[str]
    held_back: str


def publish(
    release: Path,
    repo: str,
    *,
    pr: bool = False,
    accept_oai_terms: bool = False,
    workers: int = 1,
    progress: Callable[[str, int, int], object] = lambda what, done, of: None,
) -> Published:
    """Uploads the release, or its `annotations` alone where images may not go. What an interrupted upload has sent is not sent again."""
    if not _REPO.fullmatch(repo):
        raise UsageError("U009", f"{shown(repo)!r} is not a repo", "owner/name, as in its address on the Hub")
    manifest = _checked(release)
    names = _names(manifest)
    held_back = _why_not_images(manifest, repo, accept_oai_terms)
    with TemporaryDirectory(prefix="reasonknee-") as scratch:
        folder = release
        if held_back:
            folder, manifest = Path(scratch), _without_images(release, manifest, held_back, Path(scratch))
            names = _names(manifest)
        _check_removals(manifest, repo)
        _refuse_errors(release, validate_release(folder, workers=workers, progress=progress))
        if manifest.configs != ["annotations"] and not _is_closed(repo):  # it was, when the check began
            raise UsageError("U005", f"{repo} has become open to everyone", "make it private or gated in its settings, then run it again")
        return Published(_upload(folder, repo, manifest, names, pr), manifest.configs, held_back)


def _checked(release: Path) -> Manifest:
    """The manifest, with nothing in it that a card cannot be made of."""
    read_manifest(release)
    found = Findings()
    manifest = checked_manifest(release, found)
    _refuse_errors(release, found)
    assert manifest is not None
    return manifest


def _refuse_errors(release: Path, found: Findings) -> None:
    if found.count("error"):
        codes = ", ".join(g.code for g in found.ordered() if g.level == "error")
        raise DataError("U001", f"{release} has {counted(found.count('error'), 'error')}: {codes}", f"`reasonknee validate {release}` shows them")


def _names(manifest: Manifest) -> list[str]:
    """The files of the release, all of a kind that belongs in one: a shard under its own config, so that its name tells whether it holds images."""
    shards = [s.path for s in manifest.shards]
    strange = [n for n in manifest.files if n not in TEXTS]
    strange += [s.path for s in manifest.shards if not _SHARD.fullmatch(s.path) or not s.path.startswith(f"{s.config}/")]
    if strange:
        raise DataError("U004", f"{shown(strange[0])!r} has no place in a release", "remove it and build again")
    return [*manifest.files, FILE_NAME, *shards]


def _why_not_images(manifest: Manifest, repo: str, accept_oai_terms: bool) -> str:
    """Nothing if all of the release may go there."""
    closed = _is_closed(repo)  # asked in any case, so that a wrong name is told at once
    if manifest.configs == ["annotations"]:
        return ""
    if not accept_oai_terms:
        return "OAI's terms forbid passing images on; --accept-oai-terms says that all who can read the repo accepted them"
    return "" if closed else f"{repo} is open to everyone; make it private or gated in its settings first"


def _without_images(release: Path, manifest: Manifest, why: str, out: Path) -> Manifest:
    if "annotations" not in manifest.configs:
        raise UsageError("U008", "images may not go there, and there are no `annotations` to go alone", f"{why}; or build `annotations`, too")
    return annotations_alone(release, manifest, out)


def _is_closed(repo: str) -> bool:
    info = _info(repo)
    return bool(info.private or info.gated)


def _check_removals(manifest: Manifest, repo: str) -> None:
    """Shards that this release does not have go away; images of another one are too much to lose in passing."""
    there = sorted({name.split("/")[0] for f in _info(repo).siblings or () if _IMAGES.match(name := f.rfilename)})
    if there and manifest.configs == ["annotations"]:
        hint = "publish annotations to another repo, or a release with images there; what was deleted stays in a repo's history"
        raise UsageError("U007", f"{repo} holds {' and '.join(there)}, which annotations alone would remove", hint)


def _info(repo: str) -> Any:
    from huggingface_hub import HfApi

    return _asked(repo, lambda: HfApi().dataset_info(repo))


def _upload(release: Path, repo: str, manifest: Manifest, names: list[str], pr: bool) -> str:
    from huggingface_hub import HfApi

    commit = _asked(
        repo,
        lambda: HfApi().upload_folder(
            repo_id=repo,
            repo_type="dataset",
            folder_path=release,
            allow_patterns=[glob.escape(n) for n in names],
            delete_patterns=[f"{config}/*.parquet" for config in CONFIGS],  # shards of an earlier release that this one does not have
            commit_message=f"Release {manifest.release_version}",
            create_pr=pr,
        ),
    )
    return str(commit.pr_url if pr else commit.commit_url)


def _asked(repo: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # the library's errors are of many types: no such repo, no right to write, no network
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise StorageError("U006", f"the Hub refused {repo}: {reason}", "check the name, HF_TOKEN and the network, then run it again") from None
