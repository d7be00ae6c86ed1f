"""Wrong usage of the command line, such as an unknown option: one line, like every other error."""

import re
import sys
from typing import Any

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
        except Exception as error:
            # Wrong usage. Its class is click's or typer's own, as the version of typer has it.
            if not hasattr(error, "format_message"):
                raise
            if line := _line(error):  # Else it is a group alone, whose help has been printed.
                sys.stderr.write(f"privrec: {safe_text(line)}\n")
            sys.exit(2)
        sys.exit(code if isinstance(code, int) else 0)


def _unwrap(command: Any) -> None:
    """Make a line of each paragraph of the help: typer keeps the line ends of the source."""
    if command.help:
        command.help = "\n\n".join(" ".join(p.split()) for p in command.help.split("\n\n"))
    for below in getattr(command, "commands", {}).values():
        _unwrap(below)


def _line(error: Any) -> str:
    """Return what was wrong, and which help to read; empty where nothing is said."""
    said = " ".join(error.format_message().split()).removesuffix(".")
    said = re.sub(r"( Did you mean [^?]*\?)\1", r"\1", said)  # Said by click and by typer.
    context = getattr(error, "ctx", None)
    if not said or context is None:
        return said
    words = ["privrec", *context.command_path.split()[1:], "--help"]
    return f"{said}{' See' if said.endswith('?') else '; see'} '{' '.join(words)}'"
