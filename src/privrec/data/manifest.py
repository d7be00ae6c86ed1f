"""`dataset.toml`: the meaning of columns, the threshold of a like, and what is public."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, StrictBool, TypeAdapter, ValidationError

from privrec.data.schema import Kind
from privrec.data.text import brief
from privrec.errors import DataError, first_fault, nearest
from privrec.toml import toml_value


def _names(given: object) -> tuple[str, ...]:
    if isinstance(given, list | tuple) and all(isinstance(name, str) for name in given):
        return tuple(given)
    raise ValueError("must be a list of names")


def _names_or_all(given: object) -> bool | tuple[str, ...]:
    if isinstance(given, bool | list | tuple):
        return given if isinstance(given, bool) else _names(given)
    raise ValueError("must be true, false or a list of names")


def _vocabulary(given: object) -> tuple[str, ...]:
    texts = _names(given)
    if texts and len(set(texts)) == len(texts):
        return texts
    raise ValueError("must be a list of distinct texts")


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Scale = Annotated[Number, Field(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Public:
    """What the data set declares public: fixed without looking at people's data.

    `people` is the approximate number of people. `items` says that the list of items does not
    depend on who is in the data, and `threshold` that `positive_above` was not computed from the
    values. `values` are the vocabularies of features of people and contexts, `numbers` the mean and
    scale of their numeric features. `item_features` names the columns of items that were computed
    without looking at people's data. True means all columns, including the title.
    """

    people: Annotated[int, Field(strict=True, ge=1)] | None = None
    items: StrictBool = False
    threshold: StrictBool = False
    item_features: Annotated[bool | tuple[str, ...], BeforeValidator(_names_or_all)] = False
    values: Mapping[str, Annotated[tuple[str, ...], BeforeValidator(_vocabulary)]] = field(
        default_factory=dict
    )
    numbers: Mapping[str, tuple[Number, _Scale]] = field(default_factory=dict)

    __repr__ = brief


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of `dataset.toml`.

    A value greater than `positive_above` is a like. `kinds` overrides the kind of a feature, which
    otherwise follows from the column type: numbers with a decimal point are numeric, lists
    multi-valued, and all others categorical. `population` names the people in ledgers. Data sets
    about the same people should have the same `population`.
    """

    name: str
    user: str = "user"
    item: str = "item"
    value: str | None = None
    time: str | None = None
    context: Annotated[tuple[str, ...], BeforeValidator(_names)] = ()
    positive_above: Number = 0.0
    kinds: dict[str, Kind] = field(default_factory=dict)
    population: str = ""
    public: Public = field(default_factory=Public)

    __repr__ = brief


_KEYS = ("name", "population", "positive_above", "columns", "kinds", "public")
_COLUMN_KEYS = ("user", "item", "value", "time", "context")


def read_manifest(path: Path) -> Manifest:
    """Return the content of a `dataset.toml`; raise the first fault as an error of one line."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; a data folder has one") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    known = {"": _KEYS, "columns": _COLUMN_KEYS, "public": Public.__slots__}
    for name, keys in known.items():
        table = raw.get(name, {}) if name else raw
        if not isinstance(table, dict):
            raise DataError(f"{path}: [{name}] must be a table; got {table!r}")
        for key in table:
            if key not in keys:
                raise DataError(f"{path}: unknown key {key!r}{nearest(key, keys)}")
    columns = raw.pop("columns", {})
    try:
        return TypeAdapter(Manifest).validate_python({"name": path.parent.name, **raw, **columns})
    except ValidationError as error:
        raise DataError(f"{path}: {first_fault(error)}") from error


def manifest_text(manifest: Manifest) -> str:
    """Return the text of a `dataset.toml`."""
    columns = {key: getattr(manifest, key) for key in _COLUMN_KEYS}
    declared = {key: getattr(manifest.public, key) for key in Public.__slots__}
    values, numbers = declared.pop("values"), declared.pop("numbers")
    if declared["item_features"] is False:
        declared["item_features"] = None
    return "\n".join(
        [
            *_lines({"name": manifest.name, "population": manifest.population or None}),
            "# a value counts as positive when it is greater than this",
            *_lines({"positive_above": manifest.positive_above}),
            "\n[columns]",
            *_lines(columns),
            "\n[kinds]",
            *_lines(manifest.kinds, quoted=True),
            "\n# what was fixed without looking at people's data (docs/data.md)",
            "[public]",
            *_lines(declared),
            *(["\n[public.values]", *_lines(values, quoted=True)] if values else []),
            *(["\n[public.numbers]", *_lines(numbers, quoted=True)] if numbers else []),
            "",
        ]
    )


def _lines(table: Mapping[str, object], *, quoted: bool = False) -> list[str]:
    """Return the lines of a TOML table, without keys whose value is None."""
    return [
        f"{toml_value(key) if quoted else key} = {toml_value(value)}"
        for key, value in table.items()
        if value is not None
    ]
