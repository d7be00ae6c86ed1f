"""Options that several commands share, what a shell offers for them, and wrong usage as one line.

`recipes.json` has the names that a shell offers, so that TAB imports neither JAX nor data:
`python -m privrec.cli.recipes` writes it, and a test compares it with the recipes.
"""

import json
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from privrec.data.text import safe_text

N = TypeVar("N", int, float)


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


NAMES_PATH = Path(__file__).with_name("recipes.json")


@cache
def _names() -> Any:
    return json.loads(NAMES_PATH.read_text(encoding="utf-8"))


Offers = list[tuple[str, str]]
"""What may be typed, and what is said about each."""


def offer_recipes(incomplete: str) -> Offers:
    """Return the recipes that begin so, with their summaries."""
    recipes = _names()["recipes"].items()
    return [(name, about["summary"]) for name, about in recipes if name.startswith(incomplete)]


def offer_recipe_lists(incomplete: str) -> list[str]:
    """Return lists of recipes with commas: what is there, and one more."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _names()["recipes"] if name.startswith(last)]


def offer_data(incomplete: str) -> Offers:
    """Return the built-in data sets and the folders that begin so; data folders are marked."""
    built_in = [offer for offer in _names()["data"].items() if offer[0].startswith(incomplete)]
    return built_in + _folders(incomplete, "dataset.toml", "a data folder")


def offer_published(incomplete: str) -> Offers:
    """Return the data sets to fetch that begin so: all built-in ones but those made here."""
    built_in = _names()["data"].items()
    return [(n, about) for n, about in built_in if n.startswith(incomplete) and n != "synthetic"]


def offer_runs(incomplete: str) -> Offers:
    """Return the folders that begin so; run folders are marked."""
    return _folders(incomplete, "config.toml", "a run")


def offer_recipes_and_runs(incomplete: str) -> Offers:
    """Return the recipes and the folders that begin so."""
    return offer_recipes(incomplete) + offer_runs(incomplete)


def offer_settings(ctx: typer.Context, incomplete: str) -> Offers:
    """Return `key=` for the keys of the recipe that begin so; of a single key also its values.

    Where the command names no recipe yet, the keys of all of them.
    """
    recipes, about = _names()["recipes"], _names()["about"]
    recipe = ctx.params.get("recipe")
    values: dict[str, list[str]] = {}
    for name in [recipe] if recipe in recipes else recipes:
        for key, usual in recipes[name]["keys"].items():
            values[key] = list(dict.fromkeys([*values.get(key, []), *usual]))
    typed, equals, _ = incomplete.partition("=")
    keys = [key for key in values if (key == typed if equals else key.startswith(typed))]
    offers = [(f"{key}=", about[key]) for key in keys]
    if len(keys) == 1:
        # Two offers at least: after a single one, bash would begin the next word.
        [key] = keys
        offers += [(f"{key}={value}", about[key]) for value in values[key]]
    return [offer for offer in offers if offer[0].startswith(incomplete)]


def _folders(incomplete: str, file: str, kind: str) -> Offers:
    """Return the folders whose path begins so; those with the file are of this kind.

    Hidden folders are offered only if they are asked for.
    """
    start = Path(incomplete or ".")
    parent = start if not incomplete or incomplete.endswith("/") else start.parent
    last = "" if parent == start else start.name
    try:
        inside = sorted(path for path in parent.iterdir() if path.is_dir())
    except OSError:
        return []
    return [
        (str(path), kind) if (path / file).is_file() else (f"{path}/", "a folder")
        for path in inside
        if path.name.startswith(last) and (last or not path.name.startswith("."))
    ]


RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=offer_runs)
]
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
        autocompletion=offer_settings,
    ),
]
RoundsOption = Annotated[
    int | None, typer.Option(help="Rounds to play.", show_default="the recipe's")
]
EpsilonsOption = Annotated[
    str, typer.Option(help="With --data: the budgets of recipes with noise, with commas.")
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
    """Return the end of a command's help: commands to begin with, each on a line."""
    return "\n\n".join([f"Example{'s' if len(lines) > 1 else ''}:", *lines])


def _show_all(ctx: typer.Context, asked: bool) -> None:
    """Show the help of a command with its rare options, and end."""
    if not asked:
        return
    hidden = [one for one in ctx.command.params if getattr(one, "hidden", False)]
    for one in hidden:
        vars(one)["hidden"] = False
    try:
        typer.echo(ctx.get_help())
    finally:
        for one in hidden:
            vars(one)["hidden"] = True
    raise typer.Exit


HelpAllOption = Annotated[
    bool,
    typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show rare options too."),
]


def settings_from(
    config: Path | None, pairs: list[str] | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings from a file, from --set, and from options such as --seed.

    Raises:
        SettingsError: An option and --set give a key different values.
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
    """Return the numbers between the commas of an option."""
    return _split(text, name, float, "numbers")


def whole_numbers(text: str, name: str) -> list[int]:
    """Return the whole numbers between the commas of an option."""
    return _split(text, name, int, "whole numbers")


def _split(text: str, name: str, number: Callable[[str], N], kind: str) -> list[N]:
    from privrec.errors import SettingsError

    try:
        return [number(part) for part in text.split(",")]
    except ValueError as error:
        raise SettingsError(f"`{name}` must be {kind} with commas; got {text!r}") from error


def names_between_commas(text: str) -> list[str]:
    """Return the names between the commas of an option."""
    return [name.strip() for name in text.split(",")]
