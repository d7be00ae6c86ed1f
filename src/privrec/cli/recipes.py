"""`privrec recipes`: lists the recipes, and explains the settings of one recipe."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from privrec.cli.console import plain_errors, print_json, print_line
from privrec.cli.options import JsonOption, offer_data, offer_recipes
from privrec.errors import SettingsError

if TYPE_CHECKING:
    from privrec.settings import RunSettings

_TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
}
_SIGNS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


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


def _summary(name: str) -> dict[str, object]:
    """Return a recipe's entry in the list; if another package's recipe is broken, its error."""
    from privrec.algorithms.recipes import recipe_named

    try:
        recipe = recipe_named(name)
    except SettingsError as error:
        return {"name": name, "summary": str(error), "privacy": None}
    return {"name": name, "summary": recipe.summary, "privacy": recipe.statement}


class Key(NamedTuple):
    """A setting of a recipe: its name, value, type, allowed values and description."""

    key: str
    value: object
    type: str
    allowed: str | list[str]
    about: str


def keys_of(settings: type["RunSettings"], values: Mapping[str, object]) -> list[Key]:
    """Return the settings of a recipe with their types, allowed values and descriptions."""
    schemas = settings.model_json_schema()["properties"].items()
    return [
        Key(key, values[key], *_kind(schema), " ".join(schema.get("description", "").split()))
        for key, schema in schemas
    ]


def _kind(schema: Mapping[str, Any]) -> tuple[str, str | list[str]]:
    """Return the type of a JSON schema as text, and its limits or the list of its values."""
    if "anyOf" in schema:
        kind, allowed = _kind(schema["anyOf"][0])
        return f"{kind} or not set", allowed
    if "items" in schema:
        kind, allowed = _kind(schema["items"])
        return f"list of {kind}s", allowed
    if "enum" in schema or "const" in schema:
        return "text", [str(value) for value in schema.get("enum") or [schema["const"]]]
    limits = [f"{sign} {schema[name]:g}" for name, sign in _SIGNS.items() if name in schema]
    return _TYPES[schema["type"]], ", ".join(limits)


def _explain(name: str, data: str, json_: bool) -> None:
    from privrec.algorithms.recipes import configure, recipe_named

    recipe = recipe_named(name)
    settings = configure(name, data, {}).model_dump()
    keys = keys_of(recipe.settings, settings)
    if json_:
        print_json({**settings, "keys": [one._asdict() for one in keys]})
        return
    print_line(f"{name} on {data}: {recipe.summary}")
    for one in keys[2:]:  # The first two settings, recipe and data, are in the line above.
        value = "not set" if one.value is None else _text(one.value)
        words = one.allowed if isinstance(one.allowed, str) else " | ".join(one.allowed)
        what = f"{one.type}, {words}" if isinstance(one.allowed, str) and words else words
        print_line(f"{one.key} = {value}  ({what or one.type})")
        print_line(one.about, indent=4)
    print_line(f"change one with: privrec train {name} --set KEY=VALUE")


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
