"""A release to the Hub: checked first, then an allow-list of files; image bytes only to a repo that the Hub says is private or gated just then."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reasonknee.errors import DataError, StorageError, UsageError
from reasonknee.manifest import FILE_NAME, Manifest, read_manifest
from reasonknee.records import CONFIGS
from reasonknee.validation.run import validate_release

_TEXTS = rf"README\.md|croissant\.json|{re.escape(FILE_NAME)}|schema/[a-z]+\.schema\.json"
_ALLOWED = re.compile(rf"{_TEXTS}|({'|'.join(CONFIGS)})/[a-z]+-\d{{5}}-of-\d{{5}}\.parquet", re.ASCII)


def publish(
    release: Path,
    repo: str,
    *,
    pr: bool = False,
    images: bool = False,
    accept_oai_terms: bool = False,
    workers: int = 1,
    progress: Callable[[str, int, int], object] = lambda what, done, of: None,
) -> str:
    """Uploads the release and returns the address of the commit or pull request. What an interrupted upload has sent is not sent again."""
    manifest = read_manifest(release)
    with_images = manifest.configs != ["annotations"]
    _check_terms(with_images, images, accept_oai_terms)
    names = _names(manifest)
    _check_repo(repo, with_images)  # now, so as not to check for an hour in vain, and again before the upload
    found = validate_release(release, workers=workers, progress=progress)
    if found.count("error"):
        codes = ", ".join(g.code for g in found.ordered() if g.level == "error")
        raise DataError("U001", f"{release} has {found.count('error')} errors: {codes}", f"`reasonknee validate {release}` shows them")
    _check_repo(repo, with_images)
    return _upload(release, repo, manifest, names, pr)


def _check_terms(with_images: bool, images: bool, accept_oai_terms: bool) -> None:
    if with_images and not images:
        raise UsageError(
            "U002", "the release holds images or embeddings", "build one with `--configs annotations` to publish, or add --images for a gated repo"
        )
    if with_images and not accept_oai_terms:
        raise UsageError("U003", "OAI's terms forbid passing images on", "--accept-oai-terms says that all who can read the repo accepted them")


def _names(manifest: Manifest) -> list[str]:
    """The files of the release, all of a kind that belongs in one."""
    names = [*manifest.files, FILE_NAME, *(s.path for s in manifest.shards)]
    strange = [n for n in names if not _ALLOWED.fullmatch(n)]
    if strange:
        raise DataError("U004", f"{strange[0][:80]!r} has no place in a release", "remove it and build again")
    return names


def _check_repo(repo: str, with_images: bool) -> None:
    from huggingface_hub import HfApi

    info = _asked(repo, lambda: HfApi().dataset_info(repo))
    if with_images and not (info.private or info.gated):
        raise UsageError("U005", f"{repo} is open to everyone", "make it private or gated in its settings first, or publish annotations alone")


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
