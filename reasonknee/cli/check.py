"""Check: what a release, a cohort or a file is worth, and sending it on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reasonknee.cli.app import CHECK, Accept, Bar, Dask, Workers, app
from reasonknee.errors import UsageError
from reasonknee.system.limits import SECONDS, SECONDS_OF_A_SERIES


@app.command(rich_help_panel=CHECK)
def validate(
    target: Annotated[
        str, typer.Argument(help="Release folder, cohort folder or Hub repo (owner/name).")
    ] = "",
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag, commit or refs/pr/N of a Hub repo.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Names, sizes, card and footers only; no row is read.")
    ] = False,
    canonical: Annotated[
        bool,
        typer.Option(
            "--canonical", help="Write every shard again and compare the bytes, to find hidden data."
        ),
    ] = False,
    accept: Accept = [],  # noqa: B006 - typer makes its own
    workers: Workers = 1,
    dask: Dask = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the findings, or with --list the checks, as JSON.")
    ] = False,
    github: Annotated[
        bool, typer.Option("--github", help="Print the findings as GitHub annotations, too.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="Print every check and exit.")] = False,
) -> None:
    """Check a release, a cohort or a repo: exit 0 if it is sound, 3 if a finding is an error."""
    from reasonknee.validation import report, run
    from reasonknee.validation.findings import CHECKS

    if listed and as_json:
        typer.echo(report.checks_as_json())
        return
    if listed:
        for check in CHECKS.values():
            typer.echo(f"{check.code}  {check.level:8} {check.theme:10} {check.title}")
        return
    if not target:
        raise UsageError("X001", "nothing to check", "name a release folder, a cohort folder or a Hub repo")
    if quick and canonical:
        raise UsageError("X005", "--quick reads no row, --canonical writes all again", "choose one of them")
    bar = Bar()
    try:
        findings = run.validate(
            target,
            revision=revision,
            quick=quick,
            canonical=canonical,
            accept=accept,
            workers=workers,
            dask=dask,
            progress=bar,
        )
    finally:
        bar.close()
    typer.echo(
        report.as_json(findings, target, quick) if as_json else report.as_text(findings, target, quick)
    )
    if github and findings:
        typer.echo(report.as_github(findings, target), err=as_json)
    raise typer.Exit(3 if findings.count("error") else 0)


@app.command(rich_help_panel=CHECK)
def diff(
    old: Annotated[str, typer.Argument(help="Release folder, or Hub repo (owner/name).")],
    new: Annotated[str, typer.Argument(help="Release folder, or Hub repo, that follows it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the difference as JSON.")] = False,
) -> None:
    """Compare two releases: rows, grades, splits, and the version step that is needed; exit 3 if the
    declared one is too small."""
    from reasonknee.layout.sgmri import is_release
    from reasonknee.validation import diff as differ
    from reasonknee.validation import sgmri_diff

    of_frames = is_release(old) and is_release(new)
    bar = Bar()
    try:
        difference = (sgmri_diff if of_frames else differ).compare(old, new, progress=bar)
    finally:
        bar.close()
    parts = sgmri_diff.PARTS if of_frames else differ.PARTS
    typer.echo(differ.as_json(difference) if as_json else differ.as_text(difference, parts))
    raise typer.Exit(0 if difference.enough else 3)


@app.command(rich_help_panel=CHECK)
def publish(
    release: Annotated[Path, typer.Argument(help="Release folder.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="REPO|FOLDER", help="Dataset repo that exists (owner/name), or a new folder (./name)."
        ),
    ],
    pr: Annotated[
        bool, typer.Option("--pr", help="Open a pull request instead of a commit to main.")
    ] = False,
    accept_oai_terms: Annotated[
        bool,
        typer.Option("--accept-oai-terms", help="Who reads the repo may have OAI's images: upload them."),
    ] = False,
    accept: Accept = [],  # noqa: B006 - typer makes its own
    workers: Workers = 1,
) -> None:
    """Check a release and send it to the Hub or a folder: images go only to a private or gated
    place, elsewhere `annotations` go alone. Of SGMRI-VQA only `qa` is ever sent.

    The token comes from HF_TOKEN or `hf auth login`, never from an option.
    """
    from reasonknee.publish import Wish
    from reasonknee.publish import publish as send

    bar = Bar()

    def show(line: str) -> None:
        bar.close()
        typer.echo(line)

    wish = Wish(pr, accept_oai_terms, frozenset(accept), workers)
    try:
        done = send(release, target, wish, show=show, progress=bar)
    finally:
        bar.close()
    if done.held_back:
        typer.echo(f"{done.configs[0]} alone: {done.held_back}", err=True)
    typer.echo(done.url)


@app.command("check-volume", rich_help_panel=CHECK)
def check_volume(
    files: Annotated[list[Path], typer.Argument(help="NIfTI or HDF5 files, or folders with a DICOM series.")],
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=3600,
            help="Of the processor, for each; what takes longer is refused. "
            f"Default: {SECONDS:g} for a file, {SECONDS_OF_A_SERIES:g} for a series.",
        ),
    ] = None,
) -> None:
    """Show the input gate's verdict on each file, a line each: exit 0 if all are let in, 3 if not."""
    from reasonknee.volumes.gate import print_verdicts

    raise typer.Exit(print_verdicts(files, seconds))
