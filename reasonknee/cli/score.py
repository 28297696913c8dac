"""Score: what a model said."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from reasonknee.answers import CONVENTIONS, EXAMPLES
from reasonknee.cli.app import SCORE, app, shape_of

# The same box in each, so that a reader finds the one that a model was asked for.
_CONVENTIONS = "Conventions of boxes:\n\n" + "\n\n".join(
    f"{name}: {words}. {escape(example)}" for name, (words, example) in EXAMPLES.items()
)


@app.command(rich_help_panel=SCORE)
def parse(
    question_id: Annotated[str, typer.Argument(help="Question id or upstream's integer.")],
    shape: Annotated[
        str,
        typer.Option(
            help="Voxels of the volume as Z,Y,X: refuses boxes outside it, and normalised boxes need it."
        ),
    ] = "",
    convention: Annotated[
        str, typer.Option(help=f"How six plain numbers are a box: {', '.join(CONVENTIONS)}.")
    ] = "canonical",
) -> None:
    """Read a model's text from standard input, and print what it answers as one JSON object."""
    import json

    from reasonknee.answers import read
    from reasonknee.questions import question

    asked, voxels = question(question_id), shape_of(shape) if shape else None  # before it waits for a text
    text = sys.stdin.buffer.read().decode("utf-8", "replace")
    typer.echo(json.dumps(read(asked, text, shape=voxels, box_convention=convention).as_dict()))


Split = Annotated[str, typer.Option(help="Split to score.")]
Convention = Annotated[str, typer.Option(help="How to read the numbers of a box; see below.")]
View = Annotated[str, typer.Option(help="Z,Y,X to which volumes were resized, with --convention resized.")]
Resamples = Annotated[int, typer.Option(min=0, help="Resamples of patients, and permutations.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed gives the same intervals.")]
Workers = Annotated[int, typer.Option(min=1, help="Processes that read the answers.")]
Questions = Annotated[
    str, typer.Option(help="Only these questions, comma-separated; the rest is not counted as missing.")
]
Categories = Annotated[str, typer.Option(help="Only the questions of these categories, comma-separated.")]
ReleasePlace = Annotated[str, typer.Argument(help="Release folder, or a repo on the Hub as owner/name.")]


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


@app.command(rich_help_panel=SCORE, epilog=_CONVENTIONS)
def score(
    predictions: Annotated[
        Path, typer.Argument(help="JSON Lines: `id` with `response`, or with `grades` and `box`.")
    ],
    release: ReleasePlace,
    split: Split = "test",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for scores.json, scores.md, rows.parquet, report.html and the Hub's files."
        ),
    ] = None,
    convention: Convention = "canonical",
    view: View = "",
    bootstrap: Resamples = 1000,
    seed: Seed = 0,
    workers: Workers = 2,
    model: Annotated[str, typer.Option(help="The model's name in the report; default: the file's.")] = "",
    questions: Questions = "",
    categories: Categories = "",
    baselines: Annotated[
        str,
        typer.Option(help="Folder that `reasonknee baselines` wrote; default: all but image_mean are made."),
    ] = "",
    run: Annotated[
        list[Path] | None,
        typer.Option(help="Another run of the same model, for the spread over seeds; may be repeated."),
    ] = None,
) -> None:
    """Score predictions: diagnosis, boxes, reasoning, beside baselines and with intervals over patients."""
    from reasonknee.report import FILES, markdown, write_report
    from reasonknee.scoring import Options
    from reasonknee.scoring import score as score_file
    from reasonknee.system.folders import check_free

    if out:  # before minutes of work
        check_free(out, FILES)
    options = Options(
        convention=convention,
        view=shape_of(view) if view else None,
        samples=bootstrap,
        seed=seed,
        workers=workers,
        model=model,
        questions=_listed(questions),
        categories=_listed(categories),
        baselines=baselines,
        runs=tuple(run or ()),
    )
    scored = score_file(predictions, release, split, options)
    written = (
        write_report(scored, out, release, predictions) if out else ()
    )  # before a word is printed: a closed pipe loses no file
    told = [markdown(scored.scores), *(f"wrote {path}" for path in written)]
    typer.echo("\n".join(told))
    if out and not any(path.name == "report.html" for path in written):
        typer.echo("no report.html, which needs jinja2: pip install 'reasonknee[report]'")


@app.command(rich_help_panel=SCORE, epilog=_CONVENTIONS)
def compare(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Two or more predictions, rows.parquet or its folder, or names of baselines; then RELEASE."
        ),
    ],
    release: ReleasePlace,
    split: Split = "test",
    out: Annotated[Path | None, typer.Option(help="File for the same as JSON.")] = None,
    convention: Convention = "canonical",
    view: View = "",
    bootstrap: Resamples = 1000,
    seed: Seed = 0,
    workers: Workers = 2,
    questions: Questions = "",
    categories: Categories = "",
) -> None:
    """Compare models and baselines on the same patients: differences with intervals, and paired tests."""
    import json

    from reasonknee.models.controls import verdicts
    from reasonknee.report.markdown import comparison
    from reasonknee.scoring import Options
    from reasonknee.scoring import compare as compare_files
    from reasonknee.system.files import write_text

    options = Options(
        convention=convention,
        view=shape_of(view) if view else None,
        samples=max(bootstrap, 1),
        seed=seed,
        workers=workers,
        questions=_listed(questions),
        categories=_listed(categories),
    )
    result = compare_files(models, release, split, options)
    if out:
        write_text(out, json.dumps(result, indent=1, allow_nan=False) + "\n")
    for line in verdicts(models, release, split, options, result):
        typer.echo(line)
    typer.echo(comparison(result))
    if out:
        typer.echo(f"wrote {out}")


@app.command(rich_help_panel=SCORE)
def report(
    release: ReleasePlace,
    scores: Annotated[list[Path], typer.Argument(help="One or two folders that `score --out` wrote.")],
    predictions: Annotated[
        list[Path] | None, typer.Option(help="The answers that were scored, for their words; in that order.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write the report again, or one page for two models, without scoring again."""
    from reasonknee.report import write_page

    write_page(release, scores, predictions or [], out)
    typer.echo(f"wrote {out}")


@app.command(rich_help_panel=SCORE)
def baselines(
    release: ReleasePlace,
    out: Annotated[Path, typer.Argument(help="Folder for a file of predictions each.")],
    split: Split = "test",
    names: Annotated[
        str, typer.Option(help="Which, comma-separated; default: all that the release has the data for.")
    ] = "",
) -> None:
    """Write what can be had without the image as predictions, each fitted on the training split alone."""
    from reasonknee.scoring.baselines import fit_and_write

    for line in fit_and_write(release, out, split, _listed(names)):
        typer.echo(line)


@app.command(rich_help_panel=SCORE)
def selftest(
    scores: Annotated[
        Path | None, typer.Option(help="A scores.json that a scorer of your own made of the kit.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for a copy of the kit: release, predictions and their scores.")
    ] = None,
) -> None:
    """Check that this installation, or another scorer, gives the golden scores."""
    from reasonknee.scoring import protocol
    from reasonknee.scoring import selftest as kit

    if out:
        kit.copy_kit(out)
        typer.echo(f"wrote {out}")
        return
    outcome = kit.check_file(scores) if scores else kit.check()
    for line in outcome.differences:
        typer.echo(line)
    same = outcome.compared - outcome.different
    typer.echo(
        f"{protocol.NAME} {protocol.VERSION}: {same:,} of {outcome.compared:,} numbers are the golden ones"
    )
    if outcome.different:
        raise typer.Exit(3)


@app.command(rich_help_panel=SCORE)
def tables(
    release: ReleasePlace,
    scores: Annotated[
        list[Path] | None,
        typer.Argument(help="What `reasonknee score --out` wrote: folders or scores.json files."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("tables"),
) -> None:
    """Write the paper's tables and figure 4a of any release, with our rows beside the published ones."""
    from reasonknee.report.tables import write_tables

    for path in write_tables(release, scores or (), out):
        typer.echo(f"wrote {path}")
