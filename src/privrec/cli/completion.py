"""What a shell offers after TAB: recipes, data sets and keys. It imports neither JAX nor data.

`recipes.json` has the names: `python -m privrec.cli.recipes` writes it, and a test compares it with
the recipes.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import typer

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
