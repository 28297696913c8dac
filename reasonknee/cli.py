"""`reasonknee`: one command, one subcommand per stage, in the order in which data flows. Thin: each calls one function of the package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from reasonknee.errors import ReasonKneeError
from reasonknee.version import VERSION

app = typer.Typer(
    name="reasonknee",
    help="3DReasonKnee: from a cohort of knee MRIs to a release, a training loop and a score.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reasonknee {VERSION}")
        raise typer.Exit


@app.callback()
def _top(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False) -> None:
    pass


@app.command()
def phantom(
    out: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
    patients: Annotated[int, typer.Option(help="How many patients; each has one or two knees and one to three visits.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 0,
    shape: Annotated[str, typer.Option(help="Voxels as Z,Y,X; 160,384,384 is OAI's.")] = "160,384,384",
) -> None:
    """Make a synthetic cohort: images, masks, tables, embeddings and annotations."""
    from reasonknee.phantom.cohort import write_cohort

    bar = _Bar()
    volumes = write_cohort(out, patients, seed, _shape(shape), lambda done, of: bar("drawing knees", done, of))
    bar.close()
    typer.echo(f"{volumes} volumes of {patients} patients in {out}\nnext: reasonknee build {out} <release folder>")


@app.command()
def build(
    cohort: Annotated[Path, typer.Argument(help="Cohort folder.")],
    release: Annotated[Path, typer.Argument(help="Release folder to write; must not exist.")],
    configs: Annotated[str, typer.Option(help="Comma-separated; default: every config whose source the cohort has.")] = "",
    questions: Annotated[str, typer.Option(help="Question set: paper62 or all69.")] = "paper62",
    margin: Annotated[float, typer.Option(help="Millimetres around the ground-truth box of a crop.")] = 0.0,
    wording: Annotated[str, typer.Option(help="both, zero_shot or instruction.")] = "both",
    release_version: Annotated[str, typer.Option(help="MAJOR.MINOR.PATCH of the data.")] = "1.0.0",
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
) -> None:
    """Build a release that `load_dataset` opens: Parquet, card, Croissant, schemas, manifest."""
    from reasonknee.cohort import Cohort
    from reasonknee.materialise import Options
    from reasonknee.release import available_configs
    from reasonknee.release import build as build_release

    source = Cohort(cohort)
    chosen = [c.strip() for c in configs.split(",") if c.strip()] or available_configs(source)
    bar = _Bar()
    manifest = build_release(
        source, release, chosen, Options(questions, margin, wording), release_version=release_version, workers=workers, progress=bar
    )
    bar.close()
    for config in manifest.configs:
        shards = manifest.of(config)
        size = sum(s.bytes for s in shards) / 1e6
        typer.echo(f"{config:12} {sum(s.rows for s in shards):>9,} rows {len(shards):>5} shards {size:>10,.1f} MB")
    counts = ", ".join(f"{n} {split}" for split, n in manifest.volumes.items())
    typer.echo(f"volumes: {counts}\nrelease: {release}")


@app.command()
def questions(
    key: Annotated[str, typer.Argument(help="Question id or upstream's integer; without it, all are listed.")] = "",
    wording: Annotated[str, typer.Option(help="zero_shot or instruction.")] = "instruction",
) -> None:
    """List the questions, or print one as a model gets it."""
    from reasonknee.errors import UsageError
    from reasonknee.prompts import WORDINGS, wordings
    from reasonknee.questions import QUESTIONS, question

    if wording not in WORDINGS:
        raise UsageError("C002", f"unknown wording {wording!r}", f"choose one of {', '.join(WORDINGS)}")
    if key:
        typer.echo(wordings(question(key))[wording])
        return
    for q in QUESTIONS.values():
        typer.echo(f"{q.upstream_id:>2}  {q.id:38} {q.category.title:22} {', '.join(a.id for a in q.attributes)}")


@app.command()
def look(
    release: Annotated[Path, typer.Argument(help="Release folder.")],
    row_id: Annotated[str, typer.Option("--id", help="Quintuple id; default: the first one with a finding.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write a picture of the slice with its box (needs the extra `report`).")] = None,
) -> None:
    """Print a quintuple of each config, and draw its slice with the box."""
    from reasonknee.look import describe_release

    for line in describe_release(release, row_id, out):
        typer.echo(line)


class _Bar:
    """A progress bar on standard error, made anew when the stage changes; silent where nobody watches."""

    def __init__(self) -> None:
        self.bar: Any = None
        self.stage = ""

    def __call__(self, stage: str, done: int, of: int) -> None:
        from tqdm import tqdm

        if stage != self.stage:
            self.close()
            self.stage, self.bar = stage, tqdm(total=of, desc=stage, unit="vol", disable=not sys.stderr.isatty())
        self.bar.update(done - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def _shape(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(p.strip().isascii() and p.strip().isdigit() for p in parts):
        raise typer.BadParameter(f"{text!r} is not Z,Y,X")
    z, y, x = (int(p) for p in parts)
    return (z, y, x)


def main(run: Callable[[], object] = app) -> None:
    """Errors that a user can act on are one line on standard error and an exit code, never a traceback."""
    try:
        run()
    except ReasonKneeError as error:
        typer.echo(f"error {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        typer.echo(f"error I000: {error.strerror or error}: {error.filename or ''} (check space and permissions)", err=True)
        sys.exit(4)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)


if __name__ == "__main__":
    main()
