"""Options and shell completions that several commands share, and one-line usage errors."""

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from privrec.data.text import safe_text

N = TypeVar("N", int, float)


class PlainUsage(TyperGroup):
    """The commands; wrong usage prints one line on stderr and exits with code 2."""

    def __init__(self, **how: Any) -> None:
        """Create the group; its help texts are wrapped at the width of the terminal."""
        super().__init__(**how)
        for command in self.commands.values():
            _unwrap(command)

    def main(self, *arguments: Any, **how: Any) -> Any:
        """Run a command and end the process, unless `standalone_mode` is false."""
        if not how.get("standalone_mode", True):
            return super().main(*arguments, **how)
        try:
            code = super().main(*arguments, **{**how, "standalone_mode": False})
        except Exception as error:
            # Wrong usage. The class of the error depends on typer's version: click's or typer's.
            if not hasattr(error, "format_message"):
                raise
            if line := _line(error):  # Without a message, typer has printed the group's help.
                sys.stderr.write(f"privrec: {safe_text(line)}\n")
            sys.exit(2)
        sys.exit(code if isinstance(code, int) else 0)


def _unwrap(command: Any) -> None:
    """Join each paragraph of the help to one line, because typer keeps the source's line breaks."""
    if command.help:
        command.help = "\n\n".join(" ".join(p.split()) for p in command.help.split("\n\n"))
    for below in getattr(command, "commands", {}).values():
        _unwrap(below)


def _line(error: Any) -> str:
    """Return the error's message and the command that explains the usage; "" without a message."""
    said = " ".join(error.format_message().split()).removesuffix(".")
    said = re.sub(r"( Did you mean [^?]*\?)\1", r"\1", said)  # Click and typer both add it.
    context = getattr(error, "ctx", None)
    if not said or context is None:
        return said
    words = ["privrec", *context.command_path.split()[1:], "--help"]
    return f"{said}{' See' if said.endswith('?') else '; see'} '{' '.join(words)}'"


RECIPES = (
    *("privrec-plus", "dp-privrec-plus", "privrec", "privrec-paper", "privrec-sgd", "privrec-cen"),
    *("fofl-self", "nn-self", "dp-privrec-one", "dp-privrec", "ssl-items", "lm-privrec", "fcf"),
    *("dpals", "fedgnn", "ncf", "popularity", "own-items", "item-knn", "ease"),
)
DATA_SETS = ("synthetic", "movielens-1m", "frappe", "gowalla")
"""Names for TAB completion, which must import neither JAX nor data. A test checks both lists."""


def offer_recipes(incomplete: str) -> list[str]:
    """Return the recipes that start with the typed text."""
    return [name for name in RECIPES if name.startswith(incomplete)]


def offer_recipe_lists(incomplete: str) -> list[str]:
    """Return the comma-separated lists that complete the last typed recipe."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in offer_recipes(last)]


def offer_data(incomplete: str) -> list[str]:
    """Return the built-in data sets that start with the text; the shell completes folders."""
    return [name for name in DATA_SETS if name.startswith(incomplete)]


def offer_published(incomplete: str) -> list[str]:
    """Return the data sets that can be downloaded and start with the typed text."""
    return [name for name in DATA_SETS[1:] if name.startswith(incomplete)]


RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
RunsArgument = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")]
RecipeArgument = Annotated[
    str,
    typer.Argument(help="A recipe; 'privrec recipes' lists them.", autocompletion=offer_recipes),
]
DataOption = Annotated[
    str,
    typer.Option(
        metavar="DATA", help="A built-in name or a data folder.", autocompletion=offer_data
    ),
]
DataOrDefault = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        help="A built-in name or a data folder.",
        show_default="synthetic",
        autocompletion=offer_data,
    ),
]
ConfigOption = Annotated[Path | None, typer.Option(help="A TOML file of settings.", dir_okay=False)]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting; repeat. 'privrec recipes RECIPE' explains them.",
    ),
]
SeedOption = Annotated[
    int | None, typer.Option(help="The seed; secure noise does not use it.", show_default="0")
]
EpsilonOption = Annotated[
    float | None,
    typer.Option(help="The privacy budget; the noise is calibrated to it unless it is given."),
]
RoundsOption = Annotated[
    int | None, typer.Option(help="Rounds to play.", show_default="the recipe's")
]
EpsilonsOption = Annotated[
    str, typer.Option(help="With --data: the budgets of recipes with noise, with commas.")
]
RecipesOption = Annotated[
    str,
    typer.Option(
        help="With --data: which recipes, with commas.", autocompletion=offer_recipe_lists
    ),
]
DeltaOption = Annotated[float, typer.Option(help="The delta of the guarantee.")]
ForceDeltaOption = Annotated[
    bool, typer.Option("--force-delta", help="Accept a delta of 1/N or more.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
ProtocolOption = Annotated[
    str | None,
    typer.Option(
        help="Who trains and what is tested: halves, leave-last or files (docs/protocols.md)."
    ),
]


def examples(*lines: str) -> str:
    """Return the end of a command's help: example commands, each on its own line."""
    return "\n\n".join([f"Example{'s' if len(lines) > 1 else ''}:", *lines])


def settings_from(
    config: Path | None, pairs: list[str] | None, options: Mapping[str, object]
) -> dict[str, Any]:
    """Return the settings from a file, from `--set`, and from options such as `--seed`.

    Raises:
        SettingsError: An option and `--set` give a key different values.
    """
    from privrec.errors import SettingsError
    from privrec.settings import parse_overrides, read_toml

    given = parse_overrides(pairs or [])
    for key, value in options.items():
        if value is not None and str(given.setdefault(key, value)) != str(value):
            raise SettingsError(f"`{key}` is given twice: {value!r} and --set {key}={given[key]}")
    settings = {**(read_toml(config) if config else {}), **given}
    settings.pop("format", None)
    return settings


def numbers(text: str, name: str) -> list[float]:
    """Return the comma-separated numbers of an option."""
    return _split(text, name, float, "numbers")


def whole_numbers(text: str, name: str) -> list[int]:
    """Return the comma-separated whole numbers of an option."""
    return _split(text, name, int, "whole numbers")


def _split(text: str, name: str, number: Callable[[str], N], kind: str) -> list[N]:
    from privrec.errors import SettingsError

    try:
        return [number(part) for part in text.split(",")]
    except ValueError as error:
        raise SettingsError(f"`{name}` must be {kind} with commas; got {text!r}") from error


def names_between_commas(text: str) -> list[str]:
    """Return the comma-separated names of an option."""
    return [name.strip() for name in text.split(",")]
