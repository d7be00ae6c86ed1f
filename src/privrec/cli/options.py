"""Options that several commands share, and the settings that they make.

Wrong usage of the command line, such as an unknown option: one line, like every other error.

What a shell offers after TAB: recipes, data sets and keys. It imports neither JAX nor data.

`recipes.json` has the names: `python -m privrec.cli.recipes` writes it, and a test compares it with
the recipes.
"""

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer
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


NAMES_PATH = Path(__file__).with_name("recipes.json")


@cache
def _names() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(NAMES_PATH.read_text(encoding="utf-8"))
    return found


def offer_recipes(incomplete: str) -> list[tuple[str, str]]:
    """Return the recipes that begin so, with their summaries."""
    found = _names()["recipes"].items()
    return [(name, one["summary"]) for name, one in found if name.startswith(incomplete)]


def offer_recipe_lists(incomplete: str) -> list[str]:
    """Return lists of recipes with commas: what is there, and one more."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _names()["recipes"] if name.startswith(last)]


def offer_data(incomplete: str) -> list[tuple[str, str]]:
    """Return the built-in data sets and the folders that begin so; data folders are marked."""
    built_in = [(name, about) for name, about in _names()["data"].items()]
    named = [(name, about) for name, about in built_in if name.startswith(incomplete)]
    return named + [
        (str(path) if is_data else f"{path}/", "a data folder" if is_data else "a folder")
        for path in _folders(incomplete)
        for is_data in [(path / "dataset.toml").is_file()]
    ]


def offer_published(incomplete: str) -> list[tuple[str, str]]:
    """Return the data sets to fetch that begin so: all built-in ones but those made here."""
    built_in = _names()["data"].items()
    return [(n, about) for n, about in built_in if n.startswith(incomplete) and n != "synthetic"]


def offer_runs(incomplete: str) -> list[tuple[str, str]]:
    """Return the folders that begin so; run folders are marked."""
    return [
        (str(path) if is_run else f"{path}/", "a run" if is_run else "a folder")
        for path in _folders(incomplete)
        for is_run in [(path / "config.toml").is_file()]
    ]


def offer_recipes_and_runs(incomplete: str) -> list[tuple[str, str]]:
    """Return the recipes and the folders that begin so."""
    return offer_recipes(incomplete) + offer_runs(incomplete)


def offer_settings(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return `key=` for the keys of the recipe that begin so; of a single key also its values.

    Where the command names no recipe yet, the keys of all of them.
    """
    recipes = _names()["recipes"]
    recipe = ctx.params.get("recipe")
    chosen = [recipes[recipe]] if recipe in recipes else list(recipes.values())
    values: dict[str, list[str]] = {}
    for one in chosen:
        for key, known in one["keys"].items():
            values.setdefault(key, []).extend(v for v in known if v not in values.get(key, []))
    typed, equals, _ = incomplete.partition("=")
    fit = [key for key in values if (key == typed if equals else key.startswith(typed))]
    about = _names()["about"]
    offered = [(f"{key}=", about[key]) for key in fit]
    if len(fit) == 1:
        # Two offers at least: after a single one, bash would begin the next word.
        offered += [(f"{fit[0]}={value}", about[fit[0]]) for value in values[fit[0]]]
    return [(text, words) for text, words in offered if text.startswith(incomplete)]


def _folders(incomplete: str) -> list[Path]:
    """Return the folders whose path begins so; hidden ones only if they are asked for."""
    start = Path(incomplete or ".")
    place = start if not incomplete or incomplete.endswith("/") else start.parent
    last = "" if place == start else start.name
    try:
        inside = sorted(path for path in place.iterdir() if path.is_dir())
    except OSError:
        return []
    return [
        path
        for path in inside
        if path.name.startswith(last) and (last or not path.name.startswith("."))
    ]


RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=offer_runs)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="One setting; repeat. 'privrec recipes RECIPE' explains them.",
        autocompletion=offer_settings,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
ProtocolOption = Annotated[
    str | None,
    typer.Option(
        help="Who trains and what is tested: halves, leave-last or files (docs/protocols.md)."
    ),
]
CandidatesOption = Annotated[
    str | None,
    typer.Option(help="What a tested item is ranked among: unseen or not-kept items."),
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


def settings_from(config: Path | None, pairs: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings from a file, from --set, and from options such as --seed."""
    from privrec.settings import parse_overrides, read_toml

    given = parse_overrides(pairs)
    for key, value in options.items():
        _give(given, key, value)
    settings = {**(read_toml(config) if config else {}), **given}
    settings.pop("format", None)
    return settings


def _give(given: dict[str, Any], key: str, value: str | float | None) -> None:
    """Add the value of an option to the settings of `--set`; raise if both give it."""
    from privrec.errors import SettingsError

    if value is not None and str(given.setdefault(key, value)) != str(value):
        raise SettingsError(f"`{key}` is given twice: {value!r} and --set {key}={given[key]}")


def numbers(text: str, name: str, *, whole: bool = False) -> list[float]:
    """Return the numbers between the commas of an option."""
    from privrec.errors import SettingsError

    try:
        return [int(part) if whole else float(part) for part in text.split(",")]
    except ValueError as error:
        kind = "whole numbers" if whole else "numbers"
        raise SettingsError(f"`{name}` must be {kind} with commas; got {text!r}") from error
