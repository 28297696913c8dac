"""The command itself, and what its subcommands share."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from reasonknee.version import VERSION

# The panels of `reasonknee --help`, in the order in which data flows.
PANELS = MAKE, CHECK, LOOK, ASK, SCORE, SECOND = (
    "Make",
    "Check",
    "Look",
    "Ask and train",
    "Score",
    "Second benchmark",
)

app = typer.Typer(
    name="reasonknee",
    help="3DReasonKnee: from a cohort of knee MRIs to a release, a training loop and a score.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
"""The command as a typer application; the modules of this room add their subcommands to it."""


# Of every command that does long work.
Workers = Annotated[int, typer.Option(min=1, help="Number of worker processes.")]
Dask = Annotated[
    str, typer.Option(help="Address of a Dask scheduler to run on instead, e.g. tcp://node:8786.")
]


# Of every command that takes images in, or judges them.
Accept = Annotated[
    list[str],
    typer.Option(
        metavar="VOLUME_ID", help="Take this volume even if it does not look like a scan; may be repeated."
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reasonknee {VERSION}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


class Bar:
    """A progress bar on standard error, new for each stage; silent where nobody watches.

    Counts volumes, or MB where the stage says so.
    """

    def __init__(self) -> None:
        self.bar: Any = None
        self.stage = ""

    def __call__(self, stage: str, done: int, of: int) -> None:
        from tqdm import tqdm

        if stage != self.stage:
            self.close()
            what, unit = stage.removesuffix(", MB"), "MB" if stage.endswith(", MB") else "vol"
            self.stage, self.bar = (
                stage,
                tqdm(total=of, desc=what, unit=unit, disable=not sys.stderr.isatty()),
            )
        self.bar.update(done - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def part_of(text: str) -> tuple[int, int]:
    part, _, of = text.partition("/")
    if not (part.isascii() and part.isdigit() and of.isascii() and of.isdigit()):
        raise typer.BadParameter(f"{text!r} is not i/n, such as 1/16")
    return int(part), int(of)


def shape_of(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(p.strip().isascii() and p.strip().isdigit() for p in parts):
        raise typer.BadParameter(f"{text!r} is not Z,Y,X")
    z, y, x = (int(p) for p in parts)
    return (z, y, x)
