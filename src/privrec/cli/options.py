"""Options that several commands share, and the settings that they make."""

from pathlib import Path
from typing import Annotated, Any

import typer

from privrec.cli.completion import offer_runs, offer_settings

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
