"""Wrong usage of the command line, such as an unknown option: one line, like every other error."""

import sys
from typing import Any

import click
from typer.core import TyperGroup

from privrec.data.text import safe_text


class PlainUsage(TyperGroup):
    """The commands; wrong usage is one line on stderr and exit code 2, and not a box."""

    def __init__(self, **how: Any) -> None:
        """Take a group's commands, and wrap their help as wide as the terminal is."""
        super().__init__(**how)
        for command in self.commands.values():
            _unwrap(command)

    def main(self, *arguments: Any, **how: Any) -> Any:
        """Run a command and, unless told otherwise, end the process."""
        if not how.get("standalone_mode", True):
            return super().main(*arguments, **how)
        try:
            code = super().main(*arguments, **{**how, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            sys.exit(error.exit_code)  # The help was printed when it was made.
        except click.ClickException as error:
            sys.stderr.write(f"privrec: {safe_text(_line(error))}\n")
            sys.exit(error.exit_code)
        sys.exit(code if isinstance(code, int) else 0)


def _unwrap(command: click.Command) -> None:
    """Make a line of each paragraph of the help: typer keeps the line ends of the source."""
    if command.help:
        command.help = "\n\n".join(" ".join(p.split()) for p in command.help.split("\n\n"))
    for below in getattr(command, "commands", {}).values():
        _unwrap(below)


def _line(error: click.ClickException) -> str:
    said = " ".join(error.format_message().split()).removesuffix(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is None:
        return said
    words = ["privrec", *context.command_path.split()[1:], "--help"]
    return f"{said}{' See' if said.endswith('?') else '; see'} '{' '.join(words)}'"
