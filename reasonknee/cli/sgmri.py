"""Second benchmark: SGMRI-VQA, from sources to a score."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from reasonknee.cli.app import SECOND, Bar, app
from reasonknee.errors import counted

sgmri = typer.Typer(
    help="SGMRI-VQA: questions on slices and volumes of knee and brain MRI, with boxes on frames.",
    no_args_is_help=True,
)
app.add_typer(sgmri, name="sgmri", rich_help_panel=SECOND)
Questions = Annotated[
    str,
    typer.Argument(help="Release folder or Hub repo, folder with qa.jsonl, or a copy of the published ones."),
]
Images = Annotated[Path | None, typer.Option(help="Folder of your fastMRI files (.h5), anywhere below it.")]


@sgmri.command()
def phantom(
    out: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    volumes: Annotated[int, typer.Option(min=2, help="Volumes of each anatomy.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same knees and brains.")] = 0,
) -> None:
    """Make a synthetic cohort: HDF5 files, annotation tables with their known faults, published questions."""
    from reasonknee.sgmri.phantom import write_cohort

    bar = Bar()
    count = write_cohort(out, volumes, seed, lambda done, of: bar("drawing scans", done, of))
    bar.close()
    tables = " ".join(f"--annotations {quote(f'{out}/annotations/{name}.csv')}" for name in ("knee", "brain"))
    typer.echo(f"{counted(count, 'volume')} in {out}")
    typer.echo(
        f"next: reasonknee sgmri construct {quote(f'{out}/qa')} {tables} --images {quote(f'{out}/images')}"
    )


@sgmri.command()
def construct(
    out: Annotated[Path, typer.Argument(help="Folder for qa.jsonl and report.json; must not exist.")],
    published: Annotated[
        Path | None, typer.Option(help="A copy of the published repository: {brain,knee}/{train,test}/...")
    ] = None,
    annotations: Annotated[
        list[Path] | None, typer.Option(help="Tables of fastMRI+ (knee.csv, brain.csv); may be given twice.")
    ] = None,
    images: Images = None,
    splits: Annotated[Path | None, typer.Option(help="JSON object: volume -> train or test.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of what is asked and of the choices.")] = 0,
    slices: Annotated[int, typer.Option(min=0, help="The most slices of a volume that are asked about.")] = 6,
) -> None:
    """Make questions: read the published ones, or derive new ones from the readers' boxes."""
    from reasonknee.errors import UsageError
    from reasonknee.sgmri.construct import construct_derived, construct_published, told
    from reasonknee.sgmri.derive import Deriving

    if bool(published) == bool(annotations):
        raise UsageError("Z015", "--published or --annotations", "name one of the two sources")
    if published:
        made = construct_published(published, out, images)
    else:
        made = construct_derived(annotations or [], out, Deriving(seed, slices), images, splits)
    typer.echo("\n".join([*told(made), f"questions: {out / 'qa.jsonl'}"]))


@sgmri.command()
def baselines(
    questions: Questions,
    out: Annotated[Path, typer.Argument(help="Folder for one file of predictions for each baseline.")],
) -> None:
    """Write what can be answered without an image, learnt from the training split, as predictions."""
    from reasonknee.sgmri.command import write_baselines

    for path in write_baselines(questions, out):
        typer.echo(f"wrote {path}")


@sgmri.command()
def score(
    predictions: Annotated[Path, typer.Argument(help="JSON Lines of `id` and `response`.")],
    questions: Questions,
    out: Annotated[Path, typer.Option(help="Folder for scores.json, scores.md, rows.parquet, report.html.")],
    model: Annotated[str, typer.Option(help="The model's name in the report; default: the file's.")] = "",
    qwen: Annotated[
        str, typer.Option(help="What the numbers of Qwen's boxes are: pixels or thousandths.")
    ] = "pixels",
    images: Images = None,
    judge: Annotated[Path | None, typer.Option(help="A judge's numbers: lines of `id` and `value`.")] = None,
    judge_name: Annotated[str, typer.Option(help="What made them: model, version, prompt.")] = "",
    bertscore: Annotated[Path | None, typer.Option(help="BERTScore's numbers, in the same form.")] = None,
    bertscore_name: Annotated[str, typer.Option(help="What made them: model and version.")] = "",
    bootstrap: Annotated[int, typer.Option(min=0, help="Resamples of patients, or of volumes.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same intervals.")] = 0,
) -> None:
    """Score predictions by the benchmark's columns, beside baselines and the published table."""
    from reasonknee.sgmri.command import ScoreFiles, score_files

    files = ScoreFiles(predictions, questions, images, judge, judge_name, bertscore, bertscore_name)
    text, paths = score_files(files, out, model or predictions.stem, qwen, bootstrap, seed)
    typer.echo("\n".join([text, *(f"wrote {path}" for path in paths)]))


@sgmri.command()
def build(
    questions: Annotated[Path, typer.Argument(help="Folder with qa.jsonl.")],
    release: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    images: Images = None,
    rendering: Annotated[str, typer.Option(help="White by each `slice`, or by the `volume`.")] = "slice",
    release_version: Annotated[str, typer.Option(help="MAJOR.MINOR.PATCH of the data.")] = "1.0.0",
) -> None:
    """Build a release: `qa` without pixels and, with --images, `slices` and `volumes`."""
    from reasonknee.errors import UsageError
    from reasonknee.sgmri.images import Rendering
    from reasonknee.sgmri.release import Build

    if rendering not in ("slice", "volume"):
        raise UsageError("Z033", f"rendering {rendering!r}", "slice or volume")
    chosen: Rendering = "volume" if rendering == "volume" else "slice"
    made = Build(questions, release, images, chosen, release_version=release_version).run()
    typer.echo(f"{sum(made.questions.values()):,} questions in {release}: {', '.join(made.configs)}")


@sgmri.command()
def look(
    release: Annotated[str, typer.Argument(help="Release folder, or a repo on the Hub as owner/name.")],
    row_id: Annotated[
        str, typer.Option("--id", help="Id of a question; default: the first that locates, or is answered.")
    ] = "",
    predictions: Annotated[
        Path | None, typer.Option(help="A model's answers, as `score` takes them.")
    ] = None,
    qwen: Annotated[
        str, typer.Option(help="What the numbers of Qwen's boxes are, as for `score`.")
    ] = "pixels",
    out: Annotated[
        Path | None, typer.Option(help="Write a picture of the frames with their boxes (extra `report`).")
    ] = None,
) -> None:
    """Print a question with its answer and a model's, and draw its frames with the boxes of both."""
    from reasonknee.sgmri.look import look as lines

    for line in lines(release, row_id, predictions, out, qwen):
        typer.echo(line)
