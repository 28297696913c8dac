"""A release to the Hub, or to a folder for those who upload by other means: checked first, then an allow-list
of files.

Images, crops and embeddings go only to a repo that the Hub says is private or gated, asked before the upload,
before the commit and after it, by one who says that OAI's terms allow it; elsewhere `annotations` go alone,
with a card, Croissant and manifest of their own. Of SGMRI-VQA `qa` goes alone everywhere: fastMRI's images
may not be passed on. What is sent is what was checked: texts as they were then, shards by their sha256.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reasonknee.errors import DataError, StorageError, UsageError, counted, shown
from reasonknee.layout import Manifest, read_manifest
from reasonknee.layout.dataset import KNEE, Dataset
from reasonknee.layout.index import index_names
from reasonknee.layout.manifest import FILE_NAME
from reasonknee.layout.places import REPO
from reasonknee.layout.sgmri import SGMRI, QaManifest, is_release, read_qa_manifest
from reasonknee.release.make import annotations_alone
from reasonknee.sgmri.release import TEXTS as QA_TEXTS
from reasonknee.sgmri.release import qa_alone
from reasonknee.system.files import sha256_of
from reasonknee.system.folders import whole_folder
from reasonknee.system.progress import Progress, silent
from reasonknee.validation.files import TEXTS, checked_manifest
from reasonknee.validation.findings import Findings
from reasonknee.validation.run import validate

_DATASETS = (
    KNEE,
    SGMRI,
)  # a repo may hold a release of the other one, which this one would take the place of
_SHARDS = re.compile(rf"({'|'.join(c for d in _DATASETS for c in d.configs)})/.*[.]parquet")
_IMAGES = re.compile(rf"({'|'.join(c for d in _DATASETS for c in d.configs if c != d.public)})/.*[.]parquet")
_LISTED = 4  # names of what is left in public, in an error

Release = Manifest | QaManifest


@dataclass(frozen=True)
class Published:
    """Where it went, and why images stayed at home if they did."""

    url: str
    configs: list[str]
    held_back: str


@dataclass(frozen=True)
class Wish:
    """What a user asks for."""

    pr: bool = False
    accept_oai_terms: bool = False
    accept: frozenset[str] = frozenset()  # volumes that may look like no scan
    workers: int = 1


def publish(
    release: Path,
    target: str,
    wish: Wish | None = None,
    *,
    show: Callable[[str], object] = lambda line: None,
    progress: Progress = silent,
) -> Published:
    """Sends the release to a repo, or writes it to a folder; its public config alone where images may not go.

    What will be sent is shown first. What an interrupted upload has sent is not sent again.
    """
    wish = wish or Wish()
    folder = _folder_named(target)
    if folder is None:
        _check_token()
    elif os.path.lexists(folder):
        raise UsageError("U013", f"{folder} exists", "choose a new folder, or remove it")
    manifest = _checked(release)
    _names(manifest)
    repo = None if folder else target
    held_back = _why_not_images(manifest, repo, wish.accept_oai_terms)
    with TemporaryDirectory(prefix="reasonknee-") as scratch:
        tree = Path(scratch, "release")
        manifest = _staged(release, manifest, held_back, tree)
        names = _names(manifest)
        if repo:
            _check_removals(manifest, repo)
        checked = validate(tree, accept=wish.accept, workers=wish.workers, progress=progress)
        _refuse_errors(release, checked)
        for line in _outlined(tree, manifest, target):
            show(line)
        if folder:
            _written(tree, names, manifest, folder)
            return Published(str(folder), manifest.configs, held_back)
        return Published(_upload(tree, target, manifest, names, wish.pr), manifest.configs, held_back)


def _folder_named(target: str) -> Path | None:
    """The folder that a target names, which says that it is one by how it starts; None for a repo."""
    if target.startswith(("/", "./", "../")) or os.path.isabs(target):
        return Path(target)
    if not REPO.fullmatch(target):
        hint = "owner/name as in its address on the Hub, or a folder as ./name"
        raise UsageError("U009", f"{shown(target)!r} is not a repo", hint)
    return None


def _check_token() -> None:
    from huggingface_hub import get_token

    if not get_token():
        hint = "set HF_TOKEN, or run `hf auth login`; `publish RELEASE ./FOLDER` needs none"
        raise UsageError("U010", "no token for the Hub", hint)


def _dataset(manifest: Release) -> Dataset:
    return SGMRI if isinstance(manifest, QaManifest) else KNEE


def _staged(release: Path, manifest: Release, held_back: str, tree: Path) -> Release:
    """What is checked and then sent, apart from the release: texts are copied, so that what changes there
    does not go; shards are links, and known by their sha256."""
    if held_back:
        public = _dataset(manifest).public
        if public not in manifest.configs:
            raise UsageError(
                "U008",
                f"images may not go there, and there are no `{public}` to go alone",
                f"{held_back}; or build `{public}`, too",
            )
        if isinstance(manifest, QaManifest):
            return qa_alone(release, manifest, tree)
        return annotations_alone(release, manifest, tree)
    for name in sorted(path.relative_to(release).as_posix() for path in release.rglob("*")):
        source, copy = release / name, tree / name
        if source.is_dir() and not source.is_symlink():
            copy.mkdir(parents=True, exist_ok=True)
        elif not source.is_file():  # a link to a folder or to nowhere, a pipe
            raise _no_place(name)
        elif name.endswith(".parquet"):
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(os.path.realpath(source))
        else:
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    return _checked(tree)


def _outlined(tree: Path, manifest: Release, target: str) -> Iterable[str]:
    """What goes where, by config."""
    yield f"to {target}:"
    for config in manifest.configs:
        shards = manifest.of(config)
        rows, size = sum(s.rows for s in shards), sum(s.bytes for s in shards) / 1e6
        yield f"  {config}: {rows:,} rows, {counted(len(shards), 'shard')}, {size:,.1f} MB"
    texts = [*manifest.files, FILE_NAME]
    yield f"  {', '.join(texts)}: {sum((tree / name).stat().st_size for name in texts) / 1e6:,.1f} MB"


def _written(tree: Path, names: list[str], manifest: Release, folder: Path) -> None:
    """The same tree in a folder of its own, each shard as it was checked."""
    digests = {s.path: s.sha256 for s in manifest.shards}
    with whole_folder(folder) as out:
        for name in names:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tree / name, out / name)
            _check_sent(name, sha256_of(out / name), digests)


def _check_sent(name: str, digest: str, digests: dict[str, str]) -> None:
    if digests.get(name, digest) != digest:
        hint = "let nothing write to a release that is being published, then run it again"
        raise DataError("U011", f"{name} changed after it was checked", hint)


def _checked(release: Path) -> Release:
    """The manifest, with nothing in it that a card cannot be made of."""
    if is_release(release):
        return read_qa_manifest(release)
    read_manifest(release)
    findings = Findings()
    manifest = checked_manifest(release, findings)
    _refuse_errors(release, findings)
    assert manifest is not None
    return manifest


def _refuse_errors(release: Path, findings: Findings) -> None:
    if findings.count("error"):
        codes = ", ".join(g.code for g in findings.ordered() if g.level == "error")
        raise DataError(
            "U001",
            f"{release} has {counted(findings.count('error'), 'error')}: {codes}",
            f"`reasonknee validate {release}` shows them",
        )


def _names(manifest: Release) -> list[str]:
    """The files of the release, all of a kind that belongs in one. (That a shard lies under its own config is
    checked where a manifest is read.)"""
    of_knees = isinstance(manifest, Manifest)
    known = TEXTS | index_names(manifest.shards) if of_knees else QA_TEXTS
    strange = [name for name in manifest.files if name not in known]
    if strange:
        raise _no_place(strange[0])
    return [*manifest.files, FILE_NAME, *(s.path for s in manifest.shards)]


def _no_place(name: str) -> DataError:
    return DataError("U004", f"{shown(name)!r} has no place in a release", "remove it and build again")


def _why_not_images(manifest: Release, repo: str | None, accept_oai_terms: bool) -> str:
    """Nothing if all of the release may go there. A folder is closed: it is up to its owner."""
    closed = repo is None or _is_closed(repo)  # asked in any case, so that a wrong name is told at once
    if manifest.configs == [_dataset(manifest).public]:
        return ""
    if isinstance(manifest, QaManifest):
        return "fastMRI's images may not be passed on"
    if not accept_oai_terms:
        return (
            "OAI's terms forbid passing images on; --accept-oai-terms says that all who can read the "
            "repo "
            "accepted them"
        )
    return "" if closed else f"{repo} is open to everyone; make it private or gated in its settings first"


def _is_closed(repo: str) -> bool:
    info = _info(repo)
    return bool(info.private or info.gated)


def _check_removals(manifest: Release, repo: str) -> None:
    """Shards that this release does not have go away; images of another one are too much to lose in
    passing."""
    there = sorted(
        {name.split("/")[0] for f in _info(repo).siblings or () if _IMAGES.match(name := f.rfilename)}
    )
    public = _dataset(manifest).public
    if there and manifest.configs == [public]:
        hint = (
            f"publish {public} to another repo, or a release with images there; what was deleted stays "
            "in a repo's history"
        )
        raise UsageError(
            "U007", f"{repo} holds {' and '.join(there)}, which {public} alone would remove", hint
        )


def _info(repo: str) -> Any:
    from huggingface_hub import HfApi

    return _asked(repo, lambda: HfApi().dataset_info(repo))


def _upload(tree: Path, repo: str, manifest: Release, names: list[str], pr: bool) -> str:
    """Shards first, without a commit; then, if the repo is still closed to those who may not see them, all in
    one commit. The Hub takes a file under the sha256 that it really has."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    digests = {s.path: s.sha256 for s in manifest.shards}
    images = [s.path for s in manifest.shards if s.config != _dataset(manifest).public]
    _refuse_open(repo, images)
    additions = []
    for name in names:
        source: str | bytes = str(tree / name) if name in digests else (tree / name).read_bytes()
        operation = CommitOperationAdd(path_in_repo=name, path_or_fileobj=source)
        _check_sent(name, operation.upload_info.sha256.hex(), digests)
        additions.append(operation)
    api = HfApi()
    _asked(
        repo, lambda: api.preupload_lfs_files(repo, additions=additions, repo_type="dataset", create_pr=pr)
    )
    _refuse_open(repo, images)
    there = {file.rfilename for file in _info(repo).siblings or ()}
    stale = sorted(name for name in there - set(names) if _SHARDS.fullmatch(name))
    commit = _asked(
        repo,
        lambda: api.create_commit(
            repo,
            [*additions, *(CommitOperationDelete(path_in_repo=name) for name in stale)],
            commit_message=f"Release {manifest.release_version}",
            repo_type="dataset",
            create_pr=pr,
        ),
    )
    url = str(commit.pr_url if pr else commit.commit_url)
    if images and not _is_closed(repo):
        raise DataError(
            "U012",
            f"{repo} IS OPEN TO EVERYONE, AND NOW HOLDS IMAGES: {counted(len(images), 'file')}, "
            f"{', '.join(images[:_LISTED])}{', ...' if len(images) > _LISTED else ''}; {url}",
            "make it private at once; then delete these files, and its history, too "
            "(`HfApi().super_squash_history`)",
        )
    return url


def _refuse_open(repo: str, images: list[str]) -> None:
    if images and not _is_closed(repo):  # it was closed when we began
        raise UsageError(
            "U005",
            f"{repo} has become open to everyone; no image was committed",
            "make it private or gated in its settings, then run it again",
        )


def _asked(repo: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (
        Exception
    ) as error:  # the library's errors are of many types: no such repo, no right to write, no network
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        raise StorageError(
            "U006",
            f"the Hub refused {repo}: {reason}",
            "check the name, HF_TOKEN and the network, then run it again",
        ) from None
