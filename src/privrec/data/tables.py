"""Data folders: three tables and a manifest, and their checked conversion to a federation."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from privrec.data.catalogue import Catalogue, to_json
from privrec.data.clients import Clients, cuts
from privrec.data.federation import Federation
from privrec.data.manifest import Manifest, manifest_text, read_manifest
from privrec.data.schema import (
    AT_MEAN,
    LARGEST,
    Bag,
    Bags,
    Feature,
    Kind,
    Schema,
    Side,
    encode,
    is_missing,
)
from privrec.data.text import ITEM_FEATURES, ITEM_LIST, brief, natural_order, safe_text, value_text
from privrec.errors import DataError, nearest
from privrec.types import F32, CodeArray, IntArray

_SORTED_AT_ONCE = 2**18
"""The number of lines in one sort. Chosen by hand: they fit into a processor's cache."""


def _clients(
    frame: pl.DataFrame,
    manifest: Manifest,
    *,
    users: list[str],
    items: list[str],
    features: Bags,
    context: Mapping[str, Bag],
    where: str = "interactions",
) -> Clients:
    """Return the checked lines of all people, from the columns that the manifest names.

    A person's lines are sorted by time; lines with equal times stay in the order of the file.
    """
    if frame.height == 0:
        raise DataError(f"{where} has no rows")
    user = _positions(frame, manifest.user, users, "user", where)
    item = _positions(frame, manifest.item, items, "item", where)
    value, time = _values(frame, manifest, where), _times(frame, manifest, where)
    liked = value > manifest.positive_above
    if not liked.any():
        prefix = "" if where == "interactions" else f"{where}: "
        raise DataError(
            f"{prefix}nobody likes anything: no value is greater than positive_above ="
            f" {manifest.positive_above:g}; the largest is {value.max():g}"
        )
    offsets = np.concatenate([[0], np.cumsum(np.bincount(user, minlength=len(users)))])
    order = np.argsort(user, kind="stable")
    # One sort of all lines by person and time would take twice as long.
    for first, last in cuts(offsets, _SORTED_AT_ONCE):
        rows = order[offsets[first] : offsets[last]]
        rows[:] = rows[np.lexsort((time[rows], user[rows]))]
    return Clients(
        ids=person_ids(users),
        offsets=offsets,
        item=item[order],
        value=value[order],
        liked=liked[order],
        time=time[order],
        features=features,
        context={name: bag.take(order) for name, bag in context.items()},
    )


def require(frame: pl.DataFrame, column: str, where: str) -> None:
    """Raise unless a table has a column."""
    if column not in frame.columns:
        raise DataError(
            f"{where} has no column {column!r}{nearest(column, frame.columns)}"
            f" (it has: {', '.join(frame.columns) or 'none'})"
        )


def ids_of(column: pl.Series, where: str) -> pl.Series:
    """Return a column of ids as text; raise if an id is missing or is not text or an integer."""
    kind = column.dtype
    if not (kind.is_integer() or kind in (pl.String, pl.Categorical, pl.Enum, pl.Null)):
        raise DataError(f"{where} ids must be text or whole numbers; got {kind}")
    ids = column.cast(pl.String)
    missing = (ids.is_null() | (ids == "")).arg_true()
    if missing.len():
        raise DataError(f"{where} has no id in row {missing[0]}")
    return ids


def _positions(
    lines: pl.DataFrame, column: str, known: list[str], what: str, where: str
) -> CodeArray:
    ids = ids_of(lines[column], f"{where} column {column!r}")
    codes = ids.cast(pl.Enum(known), strict=False)
    if codes.null_count():
        row = int(np.flatnonzero(codes.is_null().to_numpy())[0])
        who = "whom" if what == "user" else "which"
        raise DataError(
            f"{where} row {row} names the {what} {ids[row]!r}, {who} {what}s does not list"
        )
    return codes.to_physical().to_numpy().astype(np.int32)


def _values(lines: pl.DataFrame, manifest: Manifest, where: str) -> F32:
    if manifest.value is None:
        return np.ones(lines.height, np.float32)
    require(lines, manifest.value, where)
    column = lines[manifest.value]
    if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        raise DataError(f"{where} column {manifest.value!r} must be numbers; got {column.dtype}")
    value = column.cast(pl.Float32).fill_null(float("nan")).to_numpy()
    if not np.isfinite(value).all():
        row = int(np.flatnonzero(~np.isfinite(value))[0])
        raise DataError(
            f"{where} row {row}: {manifest.value} must be a finite number; got {column[row]}"
        )
    return np.asarray(value, np.float32)


def _times(lines: pl.DataFrame, manifest: Manifest, where: str) -> npt.NDArray[np.float64]:
    """Return the time of each line in the data's own unit; without times, the line's number."""
    if manifest.time is None:
        return np.arange(lines.height, dtype=np.float64)
    require(lines, manifest.time, where)
    time = lines[manifest.time]
    if not (time.dtype.is_numeric() or time.dtype.is_temporal()):
        raise DataError(f"{where} column {manifest.time!r} must be times; got {time.dtype}")
    if time.null_count() or (time.dtype.is_float() and not time.is_finite().all()):
        raise DataError(f"{where} column {manifest.time!r} has rows without a finite time")
    return time.to_physical().cast(pl.Float64).to_numpy()


RESERVED = ("id", "title")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The tables of a data folder. `users` and `items` have a column `id` and features.

    `test` has lines for testing alone, with the columns of `interactions`.
    """

    manifest: Manifest
    interactions: pl.DataFrame
    users: pl.DataFrame
    items: pl.DataFrame
    test: pl.DataFrame | None = None

    __repr__ = brief


def read_folder(folder: Path) -> Tables:
    """Return the tables of a data folder; every error is a `DataError` that names the file."""
    manifest = read_manifest(folder / "dataset.toml")
    frames = [_read_parquet(folder / f"{name}.parquet") for name in _FRAMES]
    held_out = folder / "test.parquet"
    return Tables(
        manifest=manifest,
        interactions=frames[0],
        users=frames[1],
        items=frames[2],
        test=_read_parquet(held_out) if held_out.exists() else None,
    )


def write_folder(tables: Tables, folder: Path) -> None:
    """Write the tables. `dataset.toml` is last, so that an incomplete folder cannot be read."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in zip(_FRAMES, (tables.interactions, tables.users, tables.items), strict=True):
        frame.write_parquet(folder / f"{name}.parquet")
    if tables.test is not None:
        tables.test.write_parquet(folder / "test.parquet")
    (folder / "dataset.toml").write_text(manifest_text(tables.manifest), encoding="utf-8")


def to_federation(tables: Tables, *, item_order: Sequence[str] | None = None) -> Federation:
    """Return the federation of the tables, after checking every id and value in them.

    Items are sorted by id. In the order of the table, they could be in the order in which people's
    lines first name them, and the catalogue of a released model would reveal something about these
    people. `item_order` is another order of all ids, with which a resumed run keeps its own.
    """
    manifest = tables.manifest
    users = _checked_ids(tables.users, "users")
    _checked_ids(tables.items, "items")
    item_table = in_order(tables.items, item_order)
    items = item_table["id"].cast(pl.String).to_list()
    _check_columns(tables)
    for column in [manifest.user, manifest.item, *manifest.context]:
        for frame, where in ((tables.interactions, "interactions"), (tables.test, "test")):
            if frame is not None:
                require(frame, column, where)
    user_features, user_bags = _encode_frame(tables.users, "user", manifest)
    item_features, item_bags = _encode_frame(item_table, "item", manifest)
    moments = tables.interactions.select(manifest.context)
    context_features, context_bags = _encode_frame(moments, "context", manifest)
    people = partial(_clients, manifest=manifest, users=users, items=items, features=user_bags)
    columns = people(tables.interactions, context=context_bags)
    test = None
    if tables.test is not None:
        bags = _encode_like(tables.test, context_features, manifest)
        test = people(tables.test, context=bags, where="test")
    catalogue = Catalogue(
        name=manifest.name,
        schema=Schema(features=(*user_features, *item_features, *context_features)),
        item_ids=items,
        titles=item_titles(item_table, items),
        items=item_bags,
        positive_above=manifest.positive_above,
        undeclared=_undeclared(tables),
        has_dislikes=manifest.value is not None,
    )
    return Federation(
        catalogue=catalogue,
        n_clients=len(users),
        take=columns.take,
        ids=lambda positions: columns.ids[positions],
        largest=int(columns.sizes.max()),
        repeats=_has_repeats(columns, len(items)),
        population=manifest.population or manifest.name,
        people=manifest.public.people or len(users),
        fingerprint=_fingerprint(columns, test, catalogue, manifest),
        has_times=manifest.time is not None,
        take_test=None if test is None else test.take,
    )


def in_order(items: pl.DataFrame, item_order: Sequence[str] | None = None) -> pl.DataFrame:
    """Return a table of items, sorted by id (numbers before text) or in the given order."""
    ids = items["id"].cast(pl.String).to_list()
    wanted = sorted(ids, key=natural_order) if item_order is None else item_order
    if ids == wanted:
        return items
    place = {item_id: row for row, item_id in enumerate(ids)}
    return items[[place[item_id] for item_id in wanted]]


_AT_A_TIME = 2**20
"""The number of lines in one sort, to limit memory. Chosen by hand."""


def _has_repeats(columns: Clients, n_items: int) -> bool:
    offsets = columns.offsets
    for first, last in cuts(offsets, _AT_A_TIME):
        owner = np.repeat(np.arange(last - first), np.diff(offsets[first : last + 1]))
        pairs = np.sort(owner * n_items + columns.item[offsets[first] : offsets[last]])
        if (pairs[1:] == pairs[:-1]).any():
            return True
    return False


def person_ids(names: list[str]) -> IntArray:
    """Return for each person a number that is computed from her id alone."""
    digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(b"".join(digests), np.int64).copy()


def _undeclared(tables: Tables) -> tuple[str, ...]:
    """Return what was computed from people's data and becomes public, for the privacy statement."""
    manifest, public = tables.manifest, tables.manifest.public
    if not public.items:
        parts = [ITEM_LIST]
    else:
        named = ", ".join(repr(safe_text(name)) for name in _undeclared_of_items(tables))
        parts = [f"{ITEM_FEATURES} ({named})"] if named else []
    if manifest.value is not None and not public.threshold:
        parts.append("the value above which a rating is a like")
    if public.people is None:
        parts.append("the number of people")
    # A feature without any value is left out of the model, which depends on people's data too.
    features = [name for name in tables.users.columns if name not in RESERVED]
    return (
        *parts,
        *(
            f"the values of {safe_text(name)!r}"
            for name in (*features, *manifest.context)
            if name not in public.values and name not in public.numbers
        ),
    )


def _undeclared_of_items(tables: Tables) -> list[str]:
    declared = tables.manifest.public.item_features
    if declared is True:
        return []
    known = declared or ()
    return [name for name in tables.items.columns if name != "id" and name not in known]


def _fingerprint(
    columns: Clients, test: Clients | None, catalogue: Catalogue, manifest: Manifest
) -> str:
    """Return a hash of all data that a run can depend on: people's data and the public part."""
    # Left out, so that old data keep their fingerprint: `has_dislikes`, which follows from the
    # lines; the declaration of item features, which changes no run; and `AT_MEAN`.
    older = tuple(part for part in catalogue.undeclared if not part.startswith(ITEM_FEATURES))
    items = {
        table: bag._replace(weights=np.where(bag.weights == AT_MEAN, np.float32(0), bag.weights))
        for table, bag in catalogue.items.items()
    }
    public = replace(catalogue, has_dislikes=True, undeclared=older, items=items)
    digest = hashlib.sha256(to_json(public).encode())
    digest.update(f"{manifest.population}\0{manifest.public.people}".encode())
    for lines in [columns] if test is None else [columns, test]:
        bags = {**lines.features, **lines.context}
        arrays = [lines.ids, lines.offsets, lines.item, lines.value, lines.liked]
        for array in [*arrays, *(part for name in sorted(bags) for part in bags[name])]:
            digest.update(f"{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


_FRAMES = ("interactions", "users", "items")


def _read_parquet(path: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(path, glob=False)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; a data folder has one") from error
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"cannot read {path}: it is not a whole Parquet file") from error


def _check_columns(tables: Tables) -> None:
    """Raise unless the manifest's columns exist and each has one meaning."""
    manifest = tables.manifest
    named = [manifest.user, manifest.item, manifest.value, manifest.time, *manifest.context]
    for column in manifest.context:
        if named.count(column) > 1:
            raise DataError(
                f"context column {column!r} must not be another column of [columns] too"
            )
    known = {*tables.users.columns, *tables.items.columns, *manifest.context}.difference(RESERVED)
    for column in manifest.kinds:
        if column not in known:
            raise DataError(
                f"[kinds] names the unknown feature {column!r}{nearest(column, sorted(known))}"
            )
    theirs = sorted({*tables.users.columns, *manifest.context}.difference(RESERVED))
    public = manifest.public
    of_items = [name for name in tables.items.columns if name != "id"]
    for column in () if isinstance(public.item_features, bool) else public.item_features:
        if column not in of_items:
            raise DataError(
                f"[public] item_features names {column!r}, which items do not have"
                f"{nearest(column, of_items)}"
            )
    for key, table in (("values", public.values), ("numbers", public.numbers)):
        for column in table:
            if column not in theirs:
                raise DataError(
                    f"[public.{key}] names {column!r}, which is no feature of people or moments"
                    f"{nearest(column, theirs)}"
                )


def _checked_ids(frame: pl.DataFrame, where: str) -> list[str]:
    require(frame, "id", where)
    ids = ids_of(frame["id"], where)
    if ids.len() == 0:
        raise DataError(f"{where} has no rows")
    if ids.n_unique() < ids.len():
        twice = ids.filter(ids.is_duplicated())[0]
        raise DataError(f"{where} has the id {twice!r} more than once")
    return ids.to_list()


def item_titles(items: pl.DataFrame, ids: list[str]) -> list[str]:
    """Return the name of each item: its title, or its id if it has none."""
    if "title" not in items.columns:
        return [safe_text(item_id) for item_id in ids]
    titles = items["title"]
    if titles.dtype not in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        raise DataError(f"items column 'title' must be text; got {titles.dtype}")
    shown = zip(titles.cast(pl.String), ids, strict=True)
    return [safe_text(title or item_id) for title, item_id in shown]


def _encode_frame(
    frame: pl.DataFrame, side: Side, manifest: Manifest
) -> tuple[list[Feature], dict[str, Bag]]:
    features, bags = [], {}
    for column in frame.get_columns():
        if side != "context" and column.name in RESERVED:
            continue
        values, numbers = manifest.public.values, manifest.public.numbers
        feature, bag = encode_column(
            column,
            side,
            manifest.kinds.get(column.name),
            values=() if side == "item" else values.get(column.name, ()),
            numbers=None if side == "item" else numbers.get(column.name),
        )
        if feature.rows == 0:
            continue
        features.append(feature)
        bags[feature.table] = bag
    return features, bags


def _encode_like(
    frame: pl.DataFrame, features: list[Feature], manifest: Manifest
) -> dict[str, Bag]:
    """Return the context of test lines as bags, with the values and scales of the training lines.

    Values that do not occur in the training lines count as missing, because a test file must not
    change a model.
    """
    numbers = {f.name: (f.mean, f.scale) for f in features if f.kind == "numeric"}
    values = {f.name: f.values for f in features if f.kind != "numeric"}
    fixed = replace(
        manifest,
        kinds={f.name: f.kind for f in features},
        public=replace(manifest.public, values=values, numbers=numbers),
    )
    return _encode_frame(frame.select([f.name for f in features]), "context", fixed)[1]


def encode_column(
    column: pl.Series,
    side: Side,
    kind: Kind | None,
    *,
    values: tuple[str, ...],
    numbers: tuple[float, float] | None,
) -> tuple[Feature, Bag]:
    """Return a column's feature and its bag.

    `numbers` are the mean and scale of a numeric feature; None computes them from the column.
    `values` is the vocabulary; if it is empty, the values of the column are. A value outside of it
    counts as missing. Only distinct values are encoded one by one, so long columns are fast.
    """
    is_list = column.dtype in (pl.List, pl.Array)
    if column.dtype in (pl.Struct, pl.Binary, pl.Object) or (
        is_list and column.explode().dtype.is_nested()
    ):
        raise DataError(f"{side} feature {column.name!r} must be plain values or lists of them")
    if is_list and kind not in (None, "multi"):
        raise DataError(f"{side} feature {column.name!r} holds lists: its kind must be multi")
    if kind is None:
        # What is declared decides the kind, not the values in the data.
        is_numeric = numbers is not None or (column.dtype.is_float() and not values)
        kind = "multi" if is_list else "numeric" if is_numeric else "categorical"
    if (values and kind == "numeric") or (numbers and kind != "numeric"):
        wrong, right = ("values", "numbers") if values else ("numbers", "values")
        raise DataError(
            f"{side} feature {column.name!r} is {kind}: declare it in [public.{right}], not in"
            f" [public.{wrong}]"
        )
    if kind == "numeric":
        return _encode_numeric(column, side, numbers)
    text = column.cast(pl.String) if column.dtype.is_temporal() else column
    distinct = text.unique(maintain_order=True)
    raw = distinct.to_list()
    plain = [entry for value in raw for entry in (value if isinstance(value, list) else [value])]
    texts = {value_text(value) for value in plain if not is_missing(value)}
    vocabulary = values or tuple(sorted(texts, key=natural_order))
    feature = Feature(name=column.name, side=side, kind=kind, values=vocabulary)
    table = pl.DataFrame({"raw": distinct, "row": np.arange(distinct.len())})
    joined = text.to_frame("raw").join(
        table, on="raw", how="left", nulls_equal=True, maintain_order="left"
    )
    return feature, encode(feature, raw).take(joined["row"].to_numpy())


def _encode_numeric(
    column: pl.Series, side: Side, numbers: tuple[float, float] | None
) -> tuple[Feature, Bag]:
    if not column.dtype.is_numeric():
        raise DataError(f"{side} feature {column.name!r} must be numbers; got {column.dtype}")
    number = column.cast(pl.Float64)
    if number.is_infinite().any():
        raise DataError(f"{side} feature {column.name!r} has infinite values")
    present = number.drop_nulls().drop_nans().to_numpy()
    with np.errstate(over="ignore"):
        mean, scale = numbers or (
            (float(present.mean()), float(present.std())) if len(present) else (0.0, 1.0)
        )
    if not math.isfinite(scale):
        raise DataError(f"{side} feature {column.name!r} has values too large to standardise")
    feature = Feature(name=column.name, side=side, kind="numeric", mean=mean, scale=scale or 1.0)
    raw = number.fill_null(float("nan")).to_numpy()
    with np.errstate(over="ignore"):
        standard = np.nan_to_num((raw - feature.mean) / feature.scale)
    if (np.abs(standard) > LARGEST).any():
        raise DataError(f"{side} feature {column.name!r} has values too large to standardise")
    weights = standard.astype(np.float32)[:, None]
    if side == "item":
        # A weight of 0 means that the value is missing.
        weights[(weights == 0) & np.isfinite(raw)[:, None]] = AT_MEAN
    return feature, Bag(codes=np.zeros((len(raw), 1), np.int32), weights=weights)
