"""`privrec recipes`: the recipes, and what each key of one means."""

import json
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from privrec.cli.console import plain_errors, print_json, print_line
from privrec.cli.options import NAMES_PATH, JsonOption, offer_data, offer_recipes
from privrec.errors import SettingsError

_TYPES = {int: "whole number", float: "number", str: "text", bool: "true or false"}
_SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(help="Explain this recipe's settings.", autocompletion=offer_recipes),
    ] = None,
    data: Annotated[
        str, typer.Option(help="The data set whose presets apply.", autocompletion=offer_data)
    ] = "synthetic",
    json_: JsonOption = False,
) -> None:
    """List the recipes, or explain the settings of one."""
    with plain_errors():
        from privrec.algorithms.recipes import recipe_names

        if name is not None:
            _explain(name, data, json_)
            return
        listed = [_summary(name) for name in recipe_names()]
        if json_:
            print_json(listed)
            return
        for entry in listed:
            print_line(f"{entry['name']:<15} {entry['summary']}")


def _summary(name: str) -> dict[str, Any]:
    """Return what the list says of a recipe; of another package's that is broken, what is wrong."""
    from privrec.algorithms.recipes import recipe_named

    try:
        recipe = recipe_named(name)
    except SettingsError as error:
        return {"name": name, "summary": str(error), "privacy": None}
    return {"name": name, "summary": recipe.summary, "privacy": recipe.statement}


def keys_of(fields: Mapping[str, Any], values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is known of each key: its value, type, what is allowed, and what it is."""
    found = []
    for key, field in fields.items():
        kind, options, limits = _kind(field.annotation)
        allowed = options or _limits([*limits, *field.metadata])
        about = " ".join((field.description or "").split())
        found.append(
            {"key": key, "value": values[key], "type": kind, "allowed": allowed, "about": about}
        )
    return found


def names() -> dict[str, Any]:
    """Return what a shell completes: recipes, their keys with usual values, and data sets."""
    from privrec.algorithms.recipes import RECIPES, configure
    from privrec.data.sources import BUILT_IN

    recipes: dict[str, Any] = {}
    about: dict[str, str] = {}
    for name, recipe in RECIPES.items():
        known = keys_of(
            recipe.settings.model_fields, configure(name, "synthetic", {}).model_dump()
        )[2:]
        recipes[name] = {
            "summary": recipe.summary,
            "keys": {one["key"]: _usual(one["value"], one["allowed"]) for one in known},
        }
        about |= {one["key"]: one["about"] for one in known}
    return {"recipes": recipes, "about": about, "data": BUILT_IN}


def _usual(value: Any, allowed: Any) -> list[str]:
    """Return the values that a shell offers for a key: all where there is a list, or its own."""
    if isinstance(allowed, list):
        return allowed
    if isinstance(value, bool):
        return ["true", "false"]
    return ["1.0"] if value is None else [_text(value)]


def _explain(name: str, data: str, json_: bool) -> None:
    """Print each key of a recipe: its value for the data, its type, what is allowed, what it is."""
    from privrec.algorithms.recipes import configure, recipe_named

    recipe = recipe_named(name)
    settings = configure(name, data, {}).model_dump()
    keys = keys_of(recipe.settings.model_fields, settings)
    if json_:
        print_json({**settings, "keys": keys})
        return
    print_line(f"{name} on {data}: {recipe.summary}")
    for one in keys[2:]:  # The first two are in the line above.
        value = "not set" if one["value"] is None else _text(one["value"])
        allowed = one["allowed"]
        words = allowed if isinstance(allowed, str) else " | ".join(allowed)
        what = f"{one['type']}, {words}" if isinstance(allowed, str) and words else words
        print_line(f"{one['key']} = {value}  ({what or one['type']})")
        print_line(one["about"], indent=4)
    print_line(f"change one with: privrec train {name} --set KEY=VALUE")


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(annotation: Any) -> tuple[str, list[str], list[Any]]:
    """Return the type in words, the values where there is a list of them, and the limits."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        kind, options, limits = _kind(inner[0])
        more = [limit for part in inner[1:] for limit in getattr(part, "metadata", [part])]
        return kind, options, [*limits, *more]
    if origin is Literal:
        return "text", [str(value) for value in inner], []
    if origin in (Union, types.UnionType):
        parts = [_kind(part) for part in inner if part is not type(None)]
        none = " or not set" if type(None) in inner else ""
        kinds = " or ".join(dict.fromkeys(kind for kind, _, _ in parts))
        options = [value for _, values, _ in parts for value in values]
        return kinds + none, options, [limit for _, _, limits in parts for limit in limits]
    if origin is tuple:
        kind, _, limits = _kind(inner[0])
        return f"list of {kind}s", [], limits
    return _TYPES.get(annotation, str(annotation)), [], []


def _limits(limits: list[Any]) -> str:
    """Return the limits of a number in signs, such as ">= 0, < 1"."""
    found = [
        f"{sign} {getattr(limit, name):g}"
        for limit in limits
        for name, sign in _SIGNS.items()
        if getattr(limit, name, None) is not None
    ]
    return ", ".join(dict.fromkeys(found))


def names_text() -> str:
    """Return the content of `recipes.json`, a line for each recipe and key."""
    parts = [
        f'"{part}": {{\n'
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(one)}" for name, one in found.items())
        + "\n}"
        for part, found in names().items()
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    NAMES_PATH.write_text(names_text(), encoding="utf-8")
