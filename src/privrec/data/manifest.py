"""`dataset.toml`: the meaning of columns, when a value is a like, and what is public."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privrec.data.schema import KINDS, Kind
from privrec.data.text import brief
from privrec.errors import DataError, nearest
from privrec.toml import toml_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Public:
    """What the data set declares public: fixed without looking at people's data.

    `people`: about how many people there are. `items`: the list of items does not depend on who is
    in the data. `threshold`: `positive_above` was chosen, not computed from the values. `values`:
    vocabularies of the features of people and contexts. `numbers`: mean and scale of their numeric
    features. `item_features`: which columns of the items were computed without looking at people's
    data, by name; True means all of them, with the title.
    """

    people: int | None = None
    items: bool = False
    item_features: bool | tuple[str, ...] = False
    threshold: bool = False
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    numbers: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    __repr__ = brief


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What `dataset.toml` says.

    A value counts as positive when it is greater than `positive_above`. `kinds` overrides the kind
    that a feature's column type suggests (numbers with a point are numeric, lists multi-valued,
    everything else categorical). `population` names the people in ledgers. Two data sets about the
    same people should have the same `population`.
    """

    name: str
    user: str = "user"
    item: str = "item"
    value: str | None = None
    time: str | None = None
    context: tuple[str, ...] = ()
    positive_above: float = 0.0
    kinds: dict[str, Kind] = field(default_factory=dict)
    population: str = ""
    public: Public = field(default_factory=Public)

    __repr__ = brief


_KEYS = ("name", "population", "positive_above", "columns", "kinds", "public")
_COLUMN_KEYS = ("user", "item", "value", "time", "context")
_PUBLIC_KEYS = ("people", "items", "item_features", "threshold", "values", "numbers")


def read_manifest(path: Path) -> Manifest:
    """Return what a `dataset.toml` says."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; a data folder has one") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    _check(raw, path)
    columns, public = raw.get("columns", {}), raw.get("public", {})
    return Manifest(
        name=str(raw.get("name", path.parent.name)),
        population=raw.get("population", ""),
        positive_above=float(raw.get("positive_above", 0.0)),
        kinds=raw.get("kinds", {}),
        public=Public(
            people=public.get("people"),
            items=public.get("items", False),
            item_features=_names_or_all(public.get("item_features", False)),
            threshold=public.get("threshold", False),
            values={name: tuple(values) for name, values in public.get("values", {}).items()},
            numbers={
                name: (float(mean), float(scale))
                for name, (mean, scale) in public.get("numbers", {}).items()
            },
        ),
        **{**columns, "context": tuple(columns.get("context", ()))},
    )


def manifest_text(manifest: Manifest) -> str:
    """Return a `dataset.toml`."""
    quote, public = toml_value, manifest.public
    columns = [f"user = {quote(manifest.user)}", f"item = {quote(manifest.item)}"]
    columns += [f"value = {quote(manifest.value)}"] if manifest.value else []
    columns += [f"time = {quote(manifest.time)}"] if manifest.time else []
    columns += [f"context = [{', '.join(map(quote, manifest.context))}]"]
    kinds = [f"{quote(name)} = {quote(kind)}" for name, kind in manifest.kinds.items()]
    declared = [] if public.people is None else [f"people = {public.people}"]
    declared += [f"items = {quote(public.items)}", f"threshold = {quote(public.threshold)}"]
    if public.item_features is not False:
        declared.append(f"item_features = {quote(public.item_features)}")
    values = [f"{quote(name)} = {quote(texts)}" for name, texts in public.values.items()]
    numbers = [f"{quote(name)} = {quote(pair)}" for name, pair in public.numbers.items()]
    return "\n".join(
        [
            f"name = {quote(manifest.name)}",
            *([f"population = {quote(manifest.population)}"] if manifest.population else []),
            "# a value counts as positive when it is greater than this",
            f"positive_above = {manifest.positive_above!r}",
            "\n[columns]",
            *columns,
            "\n[kinds]",
            *kinds,
            "\n# what was fixed without looking at people's data (docs/data.md)",
            "[public]",
            *declared,
            *(["\n[public.values]", *values] if values else []),
            *(["\n[public.numbers]", *numbers] if numbers else []),
            "",
        ]
    )


def _check(raw: dict[str, Any], path: Path) -> None:
    """Raise for the first wrong entry in `dataset.toml`."""
    columns, kinds, public = (raw.get(key, {}) for key in ("columns", "kinds", "public"))
    for key, table in (("columns", columns), ("kinds", kinds), ("public", public)):
        if not isinstance(table, dict):
            raise DataError(f"{path}: [{key}] must be a table; got {table!r}")
    known = [(key, _KEYS) for key in raw] + [(key, _COLUMN_KEYS) for key in columns]
    for key, names in [*known, *((key, _PUBLIC_KEYS) for key in public)]:
        if key not in names:
            raise DataError(f"{path}: unknown key {key!r}{nearest(key, names)}")
    for column, kind in kinds.items():
        if kind not in KINDS:
            raise DataError(f"{path}: kind of {column!r} must be one of {KINDS}; got {kind!r}")
    if not isinstance(raw.get("population", ""), str):
        raise DataError(f"{path}: population must be text; got {raw['population']!r}")
    if not _is_number(raw.get("positive_above", 0.0)):
        raise DataError(
            f"{path}: positive_above must be a finite number; got {raw['positive_above']!r}"
        )
    for key, column in columns.items():
        if key == "context" and not isinstance(column, list):
            raise DataError(f"{path}: context must be a list of column names; got {column!r}")
        for name in column if key == "context" else [column]:
            if not isinstance(name, str):
                raise DataError(f"{path}: {key} must be the name of a column; got {name!r}")
    _check_public(public, path)


def _check_public(public: dict[str, Any], path: Path) -> None:
    people = public.get("people", 1)
    if not isinstance(people, int) or isinstance(people, bool) or people < 1:
        raise DataError(f"{path}: [public] people must be a whole number >= 1; got {people!r}")
    for key in ("items", "threshold"):
        if not isinstance(public.get(key, False), bool):
            raise DataError(f"{path}: [public] {key} must be true or false; got {public[key]!r}")
    named = public.get("item_features", False)
    are_names = isinstance(named, list) and all(isinstance(name, str) for name in named)
    if not (are_names or isinstance(named, bool)):
        raise DataError(
            f"{path}: [public] item_features must be true, false or a list of columns;"
            f" got {named!r}"
        )
    for key in ("values", "numbers"):
        if not isinstance(public.get(key, {}), dict):
            raise DataError(f"{path}: [public.{key}] must be a table; got {public[key]!r}")
    for name, texts in public.get("values", {}).items():
        are_texts = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
        if not are_texts or not texts or len(set(texts)) < len(texts):
            raise DataError(
                f"{path}: [public.values] {name} must be a list of distinct texts; got {texts!r}"
            )
    for name, pair in public.get("numbers", {}).items():
        if not (
            isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair)) and pair[1] > 0
        ):
            raise DataError(
                f"{path}: [public.numbers] {name} must be [mean, scale] with scale > 0;"
                f" got {pair!r}"
            )


def _names_or_all(given: bool | list[str]) -> bool | tuple[str, ...]:
    return given if isinstance(given, bool) else tuple(given)


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # An integer too large for a float.
        return False
