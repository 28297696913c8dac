"""Make: what a real OAI download needs before and beside `construct`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reasonknee.cli.app import MAKE, Bar, app


@app.command(rich_help_panel=MAKE)
def columns(
    table: Annotated[Path, typer.Argument(help="A MOAKS table: kMRI_SQ_MOAKS_BICL00.txt and so on.")],
    columns: Annotated[
        Path | None, typer.Option(help="JSON of your tables' columns: our variable -> their name.")
    ] = None,
) -> None:
    """Show which variables a MOAKS table holds: matched, assumed, named by you, or absent."""
    from reasonknee.construct.columns import read_names
    from reasonknee.construct.moaks_tables import describe_table

    for line in describe_table(table, read_names(columns) if columns else {}):
        typer.echo(line)


@app.command(rich_help_panel=MAKE)
def plan(
    folder: Annotated[
        Path, typer.Argument(help="Your OAI download: images anywhere below, tables/, masks/.")
    ],
    columns: Annotated[
        Path | None, typer.Option(help="JSON of your tables' columns: our variable -> their name.")
    ] = None,
) -> None:
    """Look at a download first: what is there, what is missing, what it will need, what to type next."""
    from reasonknee.construct.columns import read_names
    from reasonknee.construct.plan import look, told

    bar = Bar()
    found = look(folder, read_names(columns) if columns else {}, bar)
    bar.close()
    for line in told(found, folder):
        typer.echo(line)


@app.command(rich_help_panel=MAKE)
def regions(
    masks: Annotated[Path, typer.Argument(help="Folder of tissue masks: bones, cartilages, menisci.")],
    out: Annotated[Path, typer.Argument(help="Folder of subregion masks to write; must not exist.")],
    labels: Annotated[
        str, typer.Option(help="nnunet_knee, kneeseg or oaizib; or a JSON file: number -> tissue.")
    ] = "nnunet_knee",
) -> None:
    """Make the subregions that questions ask about from tissue masks, by rules in millimetres."""
    from reasonknee.construct.regions import make_regions

    bar = Bar()
    for line in make_regions(masks, out, labels, bar):
        bar.close()
        typer.echo(line)


@app.command(rich_help_panel=MAKE)
def compare_boxes(
    made: Annotated[Path, typer.Argument(help="Annotations (.jsonl), for example with boxes made by rule.")],
    other: Annotated[Path, typer.Argument(help="Annotations to compare with: published ones.")],
) -> None:
    """Compare the boxes of two files of annotations: IoU by region, with intervals."""
    from reasonknee.scoring.agreement import box_agreement

    for line in box_agreement(made, other):
        typer.echo(line)


@app.command(rich_help_panel=MAKE)
def dice(
    predicted: Annotated[Path, typer.Argument(help="Folder of masks.")],
    manual: Annotated[Path, typer.Argument(help="Folder of masks to compare with.")],
) -> None:
    """Compare two folders of masks: Dice by region, with intervals."""
    from reasonknee.scoring.agreement import mask_agreement

    for line in mask_agreement(predicted, manual):
        typer.echo(line)


@app.command(rich_help_panel=MAKE)
def import_nnunet(
    predictions: Annotated[Path, typer.Argument(help="Folder of nnU-Net's predictions.")],
    dataset: Annotated[Path, typer.Argument(help="What `export nnunet` wrote: OUT/Dataset501_Knee.")],
    cohort: Annotated[Path, typer.Argument(help="The cohort that was exported.")],
    out: Annotated[Path, typer.Argument(help="Folder of masks to write; must not exist.")],
) -> None:
    """Bring nnU-Net's predictions back as masks of a cohort, checked for grid, labels and side."""
    from reasonknee.construct.nnunet import bring_back

    bar = Bar()
    for line in bring_back(predictions, dataset, cohort, out, bar):
        bar.close()
        typer.echo(line)
