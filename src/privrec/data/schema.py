"""The features of a data set, and their encoding as weighted bags of rows of embedding tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from privrec.data.text import brief, short, value_text
from privrec.errors import DataError, nearest
from privrec.types import Leaf

Side = Literal["user", "item", "context"]
Kind = Literal["categorical", "multi", "numeric"]
SIDES: tuple[Side, ...] = get_args(Side)
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature: its side (user, item or context), its kind, and its possible values.

    `values` is the vocabulary of a categorical or multi-valued feature. A numeric feature is
    standardised with `mean` and `scale`, and its embedding is the standardised value times the one
    row of its table.
    """

    name: str
    side: Side
    kind: Kind
    values: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0

    __repr__ = brief

    @property
    def rows(self) -> int:
        """The number of rows of the feature's embedding table."""
        return 1 if self.kind == "numeric" else len(self.values)

    @property
    def table(self) -> str:
        """The name of the feature's embedding table among the parameters."""
        return f"embed/{self.side}.{self.name}"


AT_MEAN = np.finfo(np.float32).tiny
"""A weight that is not 0 but too small to change a sum: the smallest positive normal float32."""


class Bag(NamedTuple):
    """The encoded values of a feature: each row is a weighted bag of at most `width` table rows.

    `codes` and `weights` have shape (n, width). A categorical value has one code with weight 1. A
    list of m values has m codes with weight 1/m. A number has code 0, and its weight is the
    standardised value. A missing value has weight 0 and any code, so its embedding is the zero
    vector. A number of an item that equals the mean has weight `AT_MEAN`, because 0 would mean that
    it is missing.
    """

    codes: Leaf
    weights: Leaf

    def __repr__(self) -> str:
        return brief(self)

    def take(self, rows: Leaf | slice) -> "Bag":
        """Return the bag of the given rows."""
        return Bag(codes=self.codes[rows], weights=self.weights[rows])

    def join(self, other: "Bag") -> "Bag":
        """Return the rows of both bags; the narrower bag is filled up with missing values."""
        width = max(self.codes.shape[1], other.codes.shape[1])

        def wide(columns: Leaf) -> Leaf:
            return np.pad(columns, ((0, 0), (0, width - columns.shape[1])))

        return Bag(
            codes=np.concatenate([wide(self.codes), wide(other.codes)]),
            weights=np.concatenate([wide(self.weights), wide(other.weights)]),
        )


Bags = Mapping[str, Bag]
"""Bags by the name of their embedding table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """All features of a data set, in the order in which the model concatenates them."""

    features: tuple[Feature, ...]

    def __repr__(self) -> str:
        named = (f"{short(feature.name, 30)} ({feature.side})" for feature in self.features)
        return f"Schema({len(self.features)} features: {short(', '.join(named), 500)})"

    def of(self, side: Side) -> tuple[Feature, ...]:
        """Return the features of one side."""
        return tuple(feature for feature in self.features if feature.side == side)

    def named(self, name: str, side: Side) -> Feature:
        """Return the feature of that name; if there is none, raise with the most similar name."""
        known = {feature.name: feature for feature in self.of(side)}
        if name not in known:
            raise DataError(
                f"unknown {side} feature {name!r}{nearest(name, known)}"
                f" (this data set has: {', '.join(known) or 'none'})"
            )
        return known[name]


_FEW = 12
"""The most values that an error message lists. Chosen by hand: they fit into two lines."""


def check_names(schema: Schema, names: Iterable[str]) -> None:
    """Raise for a name that is not a feature of a person or context, with the most similar name."""
    known = [feature.name for side in _GIVEN for feature in schema.of(side)]
    for name in names:
        if name in known:
            continue
        if name in [feature.name for feature in schema.of("item")]:
            raise DataError(
                f"{name!r} is a feature of items: give one of a person or a moment"
                f" ({', '.join(known) or 'this data set has none'})"
            )
        raise DataError(
            f"unknown feature {name!r}{nearest(name, known)}"
            f" (this data set has: {', '.join(known) or 'none'})"
        )


_GIVEN: tuple[Side, ...] = ("user", "context")


def encode(feature: Feature, column: Sequence[object], *, strict: bool = False) -> Bag:
    """Return the bag of one column of raw values.

    Missing values (None, NaN, empty lists) get weight 0. So do values outside the vocabulary, but
    with `strict` they raise an error with the most similar known value.
    """
    if feature.kind == "numeric":
        return _encode_numbers(feature, column)
    index = {value: code for code, value in enumerate(feature.values)}
    lists = [_as_values(value) for value in column]
    width = max([1, *map(len, lists)])
    codes = np.zeros((len(lists), width), np.int32)
    weights = np.zeros((len(lists), width), np.float32)
    for row, values in enumerate(lists):
        if strict and (unknown := [value for value in values if value not in index]):
            few = f" (it takes: {', '.join(index)})" if len(index) <= _FEW else ""
            raise DataError(
                f"unknown value {unknown[0]!r} of {feature.side} feature {feature.name!r}"
                f"{nearest(unknown[0], index)}{few}"
            )
        known = [index[value] for value in values if value in index]
        codes[row, : len(known)] = known
        weights[row, : len(known)] = 1 / max(len(known), 1)
    return Bag(codes=codes, weights=weights)


def encode_one(schema: Schema, side: Side, values: Mapping[str, object]) -> dict[str, Bag]:
    """Return the bags of one person's or context's features; missing features have weight 0."""
    for name in values:
        schema.named(name, side)
    return {
        feature.table: encode(feature, [values.get(feature.name)], strict=True)
        for feature in schema.of(side)
    }


LARGEST = float(np.finfo(np.float32).max)
"""The largest feature value; features are encoded in 32 bits."""


def is_missing(value: object) -> bool:
    """Return whether a raw value is missing: None, NaN or an empty string."""
    if isinstance(value, float | np.floating):
        return bool(np.isnan(value))
    return value is None or (isinstance(value, str) and value == "")


def _as_values(value: object) -> list[str]:
    if isinstance(value, list | tuple | np.ndarray):
        return [value_text(entry) for entry in value if not is_missing(entry)]
    return [] if is_missing(value) else [value_text(value)]


def _encode_numbers(feature: Feature, column: Sequence[object]) -> Bag:
    weights = np.zeros((len(column), 1), np.float32)
    for row, value in enumerate(column):
        if is_missing(value):
            continue
        try:
            number = float(str(value))
        except ValueError:
            number = np.nan
        weight = (number - feature.mean) / feature.scale
        if not abs(weight) <= LARGEST:
            raise DataError(
                f"{feature.side} feature {feature.name!r} must be a finite number; got {value!r}"
            )
        weights[row, 0] = weight
    return Bag(codes=np.zeros((len(column), 1), np.int32), weights=weights)
