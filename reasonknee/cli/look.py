"""Look: questions and rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reasonknee.cli.app import LOOK, app
from reasonknee.errors import UsageError
from reasonknee.layout.sgmri import is_release


@app.command(rich_help_panel=LOOK)
def questions(
    key: Annotated[
        str, typer.Argument(help="Question id or upstream's integer; without it, all are listed.")
    ] = "",
    wording: Annotated[str, typer.Option(help="zero_shot, instruction, region or locate.")] = "instruction",
) -> None:
    """List the questions, or print one as a model gets it."""
    from reasonknee.questions import QUESTIONS, question
    from reasonknee.questions.prompts import SETTINGS, ask

    if wording not in SETTINGS:
        raise UsageError("C002", f"unknown wording {wording!r}", f"choose one of {', '.join(SETTINGS)}")
    if key:
        typer.echo(ask(question(key), wording))
        return
    for q in QUESTIONS.values():
        category = f"{q.category.id} ({q.category.title})"  # filters take the id, tables show the title
        typer.echo(
            f"{q.upstream_id:>2}  {q.id:38} {category:42} {q.region.id:26} "
            f"{', '.join(a.id for a in q.attributes)}"
        )


@app.command(rich_help_panel=LOOK)
def look(
    release: Annotated[str, typer.Argument(help="Release folder, or a repo on the Hub as owner/name.")],
    row_id: Annotated[
        str, typer.Option("--id", help="Quintuple id; default: the first one with a finding.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="Write a picture of three planes with the box (needs the extra `report`)."),
    ] = None,
    boxes: Annotated[
        Path | None,
        typer.Option(help="Write the boxes of its volume as a NIfTI label map (.nii.gz), for 3D Slicer."),
    ] = None,
) -> None:
    """Print a quintuple of each config, and draw three planes through its box."""
    from reasonknee.release.inspect import describe_release
    from reasonknee.viewer.label_map import write_label_map

    for line in describe_release(release, row_id, out):
        typer.echo(line)
    for line in write_label_map(release, row_id, boxes) if boxes else ():
        typer.echo(line)


@app.command(rich_help_panel=LOOK)
def view(
    release: Annotated[
        str, typer.Argument(help="Release folder, cohort folder, or dataset repo on the Hub (owner/name).")
    ],
    predictions: Annotated[
        list[Path] | None, typer.Option(help="JSON Lines of a model's answers; twice for two models.")
    ] = None,
    scores: Annotated[
        list[Path] | None,
        typer.Option(help="Folder that `score --out` wrote: opens at once; the words are in --predictions."),
    ] = None,
    convention: Annotated[
        str, typer.Option(help="How six plain numbers are a box, as `score` has it.")
    ] = "canonical",
    qwen: Annotated[
        str, typer.Option(help="Of SGMRI-VQA: what the numbers of Qwen's boxes are, pixels or thousandths.")
    ] = "pixels",
    review: Annotated[
        Path | None, typer.Option(help="File for flags and corrections; default: <name>.review.jsonl here.")
    ] = None,
    reader: Annotated[str, typer.Option(help="Who reviews; default: the user's name.")] = "",
    host: Annotated[
        str, typer.Option(help="Address to serve at; anything but this machine's own lets others in.")
    ] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Default: 8642, or a free one.")] = None,
    browser: Annotated[bool, typer.Option(help="Open the browser.")] = True,
) -> None:
    """Look at rows in the browser: three planes, boxes, answers and reasoning; flag and correct them.

    A release of SGMRI-VQA is shown by its frames; there, nothing can be flagged."""
    from reasonknee.viewer.open import started
    from reasonknee.viewer.open import view as serve

    def tell(line: str) -> None:
        typer.echo(line)

    if is_release(release):
        from reasonknee.sgmri import view as frames

        if scores or review or reader or convention != "canonical":
            hint = "of SGMRI-VQA, --predictions, --qwen, --host, --port and --browser are known"
            raise UsageError("Z074", "an option for knees", hint)
        serve(frames.started(release, predictions or [], qwen=qwen, host=host, port=port), browser, tell)
        return
    server = started(
        release,
        predictions or [],
        scores or [],
        convention=convention,
        review=review,
        reader=reader,
        host=host,
        port=port,
    )
    serve(server, browser, tell)
