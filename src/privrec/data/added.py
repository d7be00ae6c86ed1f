"""Items that are added to a catalogue after a model was trained on the catalogue."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from privrec.data.catalogue import Catalogue
from privrec.data.columns import SKIP_BAD, Reader
from privrec.data.schema import Bag, Feature, Schema
from privrec.data.tables import encode_column, in_order, item_titles, require
from privrec.errors import DataError, SettingsError, nearest

_MAPPED = ("id", "item", "title")


def read_items(path: Path, **how: Any) -> pl.DataFrame:
    """Return an items file as a table of `id`, features, and `title` if the file has titles.

    `how` are fields of `Reader`.
    """
    for ours in how.get("mapping", {}):
        if ours not in _MAPPED:
            raise SettingsError(
                f"`--map` must name one of {', '.join(_MAPPED)}; got {ours!r}"
                f"{nearest(ours, _MAPPED)}"
            )
    reader = Reader(**how)
    try:
        found = reader.entities(path, "item")
    except DataError as error:
        raise DataError(str(error).removesuffix(SKIP_BAD)) from error  # Exports have no --skip-bad.
    reader.check_ignored()
    return found


def with_new_items(catalogue: Catalogue, items: pl.DataFrame, where: str) -> Catalogue:
    """Return the catalogue with the new items of a table after its own items, which do not change.

    The table must have the columns from which the catalogue was made. Errors call the table
    `where`.
    """
    features = catalogue.schema.of("item")
    has_titles = list(catalogue.titles) != list(catalogue.item_ids)
    for name in [*(["title"] if has_titles else []), *(feature.name for feature in features)]:
        require(items, name, where)
    ids = items["id"].cast(pl.String)
    new = in_order(items.filter(~ids.is_in(list(catalogue.item_ids))))
    if not new.height:
        raise DataError(f"{where} has no new item: all of its {items.height:,} are in the model")
    names = new["id"].cast(pl.String).to_list()
    try:
        encoded = {
            feature.table: _joined(feature, catalogue.items[feature.table], new[feature.name])
            for feature in features
        }
        titles = item_titles(new, names)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    wider = {table: feature for table, (feature, _) in encoded.items()}
    return replace(
        catalogue,
        schema=Schema(features=tuple(wider.get(f.table, f) for f in catalogue.schema.features)),
        item_ids=[*catalogue.item_ids, *names],
        titles=[*catalogue.titles, *titles],
        items={table: bag for table, (_, bag) in encoded.items()},
    )


def _joined(feature: Feature, bag: Bag, column: pl.Series) -> tuple[Feature, Bag]:
    """Return the feature with the new values of a column, and the bag with the new rows."""
    if feature.kind == "numeric":
        numbers = (feature.mean, feature.scale)
        column = _as_numbers(column)
        _, rows = encode_column(column, "item", feature.kind, values=(), numbers=numbers)
        return feature, bag.join(rows)
    found, _ = encode_column(column, "item", feature.kind, values=(), numbers=None)
    known = set(feature.values)
    values = (*feature.values, *(value for value in found.values if value not in known))
    _, rows = encode_column(column, "item", feature.kind, values=values, numbers=None)
    return replace(feature, values=values), bag.join(rows)


def _as_numbers(column: pl.Series) -> pl.Series:
    """Return the column as numbers if all texts are numbers or empty, otherwise unchanged."""
    text = column.cast(pl.String) if column.dtype in (pl.String, pl.Null) else None
    if text is None:
        return column
    numbers = text.cast(pl.Float64, strict=False)
    return column if (numbers.is_null() & (text != "")).any() else numbers
