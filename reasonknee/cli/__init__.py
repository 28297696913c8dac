"""`reasonknee`: one command, a module for each panel of its help. Thin: a subcommand calls one function.

All subcommands are imported when the command starts, so each imports what it needs inside itself.
"""

from __future__ import annotations

import sys
from typing import Any

import typer

from reasonknee.cli import ask, check, look, make, oai, score, sgmri, train  # noqa: F401 - each adds commands
from reasonknee.cli.app import PANELS, app
from reasonknee.errors import UsageError, reported

__all__ = ["app", "main", "run"]

_Misuse: Any = typer.BadParameter.__bases__[0]  # click's UsageError, or that of typer's own copy of click
app.registered_commands.sort(key=lambda command: PANELS.index(str(command.rich_help_panel)))


def run() -> None:
    """The command; a mistake in calling it is one line with a code, as all others are."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except _Misuse as mistake:
        if type(mistake).__name__ == "NoArgsIsHelpError":
            mistake.show()
            sys.exit(2)
        told = " ".join(str(mistake.format_message()).split()).rstrip(".")
        name = mistake.ctx.command_path if mistake.ctx else "reasonknee"
        raise UsageError("I001", told, f"`{name} --help` shows how it is called") from None
    except typer.Abort:  # Ctrl-C
        sys.exit(130)


def main() -> None:
    """Run the command on `sys.argv`, and end the process with its exit code."""
    reported(run)
