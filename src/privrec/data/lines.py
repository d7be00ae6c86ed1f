"""The lines of a data folder, checked: who met which item, with what value, and when."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from privrec.data.clients import Clients, cuts
from privrec.data.manifest import Manifest
from privrec.data.schema import Bag, Bags
from privrec.errors import DataError, nearest
from privrec.types import F32, BoolArray, CodeArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lines:
    """Lines as they stand in the file, one entry each; `user` and `item` are positions.

    `sizes` has one entry a person: how many lines she has.
    """

    user: CodeArray
    item: CodeArray
    value: F32
    liked: BoolArray
    time: npt.NDArray[np.float64]
    sizes: IntArray

    def clients(self, *, ids: IntArray, features: Bags, context: Mapping[str, Bag]) -> Clients:
        """Return everybody's lines in the order of time; at one time in the order of the file."""
        offsets = np.concatenate([[0], np.cumsum(self.sizes)])
        order = np.argsort(self.user, kind="stable")
        # One sort of all lines by person and time would take twice as long.
        for first, last in cuts(offsets, _LINES_AT_A_TIME):
            rows = order[offsets[first] : offsets[last]]
            rows[:] = rows[np.lexsort((self.time[rows], self.user[rows]))]
        return Clients(
            ids=ids,
            offsets=offsets,
            item=self.item[order],
            value=self.value[order],
            liked=self.liked[order],
            time=self.time[order],
            features=features,
            context={name: bag.take(order) for name, bag in context.items()},
        )


_LINES_AT_A_TIME = 2**18
"""Lines that are sorted at once. Chosen by hand: they fit into the cache of a processor."""


def read_lines(
    frame: pl.DataFrame,
    manifest: Manifest,
    *,
    users: list[str],
    items: list[str],
    where: str = "interactions",
) -> Lines:
    """Return the lines of a table by the columns that the manifest names, all of them checked."""
    for column in [manifest.user, manifest.item, *manifest.context]:
        require(frame, column, where)
    if frame.height == 0:
        raise DataError(f"{where} has no rows")
    user = _positions(frame, manifest.user, users, "user", where)
    value = _values(frame, manifest, where)
    liked = value > manifest.positive_above
    lines = Lines(
        user=user,
        item=_positions(frame, manifest.item, items, "item", where),
        value=value,
        liked=liked,
        time=_times(frame, manifest, where),
        sizes=np.bincount(user, minlength=len(users)),
    )
    if not liked.any():
        prefix = "" if where == "interactions" else f"{where}: "
        raise DataError(
            f"{prefix}nobody likes anything: no value is greater than positive_above ="
            f" {manifest.positive_above:g}; the largest is {value.max():g}"
        )
    return lines


def require(frame: pl.DataFrame, column: str, where: str) -> None:
    """Raise unless a table has a column."""
    if column not in frame.columns:
        raise DataError(
            f"{where} has no column {column!r}{nearest(column, frame.columns)}"
            f" (it has: {', '.join(frame.columns) or 'none'})"
        )


def ids_of(column: pl.Series, where: str) -> pl.Series:
    """Return a column of ids as text; everybody and everything has one."""
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
    found = ids.cast(pl.Enum(known), strict=False)
    if found.null_count():
        row = int(np.flatnonzero(found.is_null().to_numpy())[0])
        who = "whom" if what == "user" else "which"
        raise DataError(
            f"{where} row {row} names the {what} {ids[row]!r}, {who} {what}s does not list"
        )
    return found.to_physical().to_numpy().astype(np.int32)


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
    """Return the time of each line in the data's own unit, or the line number without times."""
    if manifest.time is None:
        return np.arange(lines.height, dtype=np.float64)
    require(lines, manifest.time, where)
    time = lines[manifest.time]
    if not (time.dtype.is_numeric() or time.dtype.is_temporal()):
        raise DataError(f"{where} column {manifest.time!r} must be times; got {time.dtype}")
    if time.null_count() or (time.dtype.is_float() and not time.is_finite().all()):
        raise DataError(f"{where} column {manifest.time!r} has rows without a finite time")
    return time.to_physical().cast(pl.Float64).to_numpy()
