"""The data of some people, as it lies on their devices, held as columns.

Frames of polars and pandas: which kinds there are, and all of them as frames of polars.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from privrec.data.schema import Bag, Bags, Schema, Side
from privrec.errors import DataError, check_kind, got
from privrec.types import F32, BoolArray, CodeArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Clients:
    """The data of some clients, one after another.

    Client k has the interaction rows `offsets[k]:offsets[k + 1]`, in the order of `time`. Time is
    in the data's own unit, or the line number if the data has no times. `ids[k]` is a number
    computed from the person's id alone. The random numbers of a device depend on it and never on
    other people. `features` has one row per client, `context` one row per interaction.
    """

    ids: IntArray
    offsets: IntArray
    item: CodeArray
    value: F32
    liked: BoolArray
    time: npt.NDArray[np.float64]
    features: Bags
    context: Bags

    def __repr__(self) -> str:
        return f"Clients({len(self):,} people, {len(self.item):,} lines)"

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sizes(self) -> IntArray:
        """How many interactions each client has."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> IntArray:
        """For each interaction, the position k of its client."""
        return np.repeat(np.arange(len(self.ids)), self.sizes)

    def keep(self, mask: BoolArray) -> "Clients":
        """Return the same clients with only the interactions that `mask` keeps."""
        counts = np.bincount(self.owner[mask], minlength=len(self.ids))
        return replace(
            self,
            offsets=np.concatenate([[0], np.cumsum(counts)]),
            item=self.item[mask],
            value=self.value[mask],
            liked=self.liked[mask],
            time=self.time[mask],
            context={name: bag.take(mask) for name, bag in self.context.items()},
        )

    def take(self, positions: IntArray) -> "Clients":
        """Return the clients at the given positions, in that order."""
        # Not `self.sizes`: its cost grows with everybody, and this must not.
        starts = self.offsets[positions]
        sizes = self.offsets[positions + 1] - starts
        rows = ranges(starts, sizes)
        return Clients(
            ids=self.ids[positions],
            offsets=np.concatenate([[0], np.cumsum(sizes)]),
            item=self.item[rows],
            value=self.value[rows],
            liked=self.liked[rows],
            time=self.time[rows],
            features={name: bag.take(positions) for name, bag in self.features.items()},
            context={name: bag.take(rows) for name, bag in self.context.items()},
        )


def nobody(schema: Schema, count: int) -> Clients:
    """Return `count` people without any data."""

    def bags(side: Side, rows: int) -> Bags:
        empty = Bag(np.zeros((rows, 1), np.int32), np.zeros((rows, 1), np.float32))
        return {feature.table: empty for feature in schema.of(side)}

    return Clients(
        ids=np.arange(count),
        offsets=np.zeros(count + 1, np.int64),
        item=np.zeros(0, np.int32),
        value=np.zeros(0, np.float32),
        liked=np.zeros(0, np.bool_),
        time=np.zeros(0, np.float64),
        features=bags("user", count),
        context=bags("context", 0),
    )


def ranges(starts: npt.NDArray[np.integer], sizes: npt.NDArray[np.integer]) -> IntArray:
    """Return the concatenation of arange(start, start + size) for each pair.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    shifts: IntArray = np.repeat(starts - (ends - sizes), sizes).astype(np.int64)
    return np.arange(total, dtype=np.int64) + shifts


def cuts(offsets: IntArray, lines: int) -> list[tuple[int, int]]:
    """Return ranges of clients, everybody in one of them, of about `lines` interactions each.

    >>> cuts(np.array([0, 2, 2, 7, 9]), 4)
    [(0, 3), (3, 4)]
    """
    starts = np.searchsorted(offsets, np.arange(0, int(offsets[-1]), lines))
    return list(pairwise(np.unique([0, *starts, len(offsets) - 1]).tolist()))


Frame = pl.DataFrame
"""The frames that privrec returns."""


def is_frame(data: object) -> bool:
    """Return whether this is a frame of polars, lazy or not, or of pandas."""
    return isinstance(data, pl.DataFrame | pl.LazyFrame) or _is_pandas(data)


def new_frame(columns: Mapping[str, Sequence[Any]], kinds: Sequence[type]) -> Frame:
    """Return a frame of these columns, each of its kind also where it is empty."""
    return pl.DataFrame(columns, schema=dict(zip(columns, kinds, strict=True)))


def as_polars(frame: object, file: str = "the frame") -> pl.DataFrame:
    """Return a frame of polars: a lazy one is collected, one of pandas is converted."""
    if isinstance(frame, pl.DataFrame):
        return frame
    if isinstance(frame, pl.LazyFrame):
        try:
            return frame.collect()
        except (pl.exceptions.PolarsError, OSError) as error:
            reason = next(iter(str(error).splitlines()), "")
            raise DataError(f"{file} cannot be collected: {reason}") from error
    if _is_pandas(frame):
        return _from_pandas(frame, file)
    raise DataError(f"{file} must be a frame of polars or pandas; got {got(frame)}")


def _is_pandas(data: object) -> bool:
    """Return whether this is a frame of pandas, which is not imported for the question."""
    pandas: Any = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def _from_pandas(frame: Any, file: str) -> pl.DataFrame:
    """Return the columns of a pandas frame, with its index as columns where that has a name."""
    if any(name is not None for name in frame.index.names):
        try:
            frame = frame.reset_index()
        except ValueError as error:
            raise DataError(f"{file} has a column with the name of its index: {error}") from error
    names = [str(name) for name in frame.columns]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{file} has the column {twice[0]!r} more than once")
    return pl.DataFrame(
        [_series(name, frame.iloc[:, place], file) for place, name in enumerate(names)]
    )


def _series(name: str, column: Any, file: str) -> pl.Series:
    """Return a column of pandas; its missing values (NaN, NaT, NA) become null.

    By way of numpy or of a list, because the converter of polars needs pyarrow for some columns.
    """
    kind = column.dtype
    if isinstance(kind, np.dtype) and kind.kind in "iubMm":
        values = column.to_numpy()
        # Polars has no whole seconds.
        return pl.Series(name, values.astype("M8[ms]") if kind == np.dtype("M8[s]") else values)
    if isinstance(kind, np.dtype) and kind.kind == "f":
        return pl.Series(name, column.to_numpy(np.float64)).fill_nan(None)
    if hasattr(column, "cat"):
        codes = pl.Series(column.cat.codes.to_numpy().astype(np.int64))
        words = _series(name, column.cat.categories.to_series(), file)
        table = pl.DataFrame({"code": np.arange(words.len()), "word": words})
        found = codes.to_frame("code").join(table, on="code", how="left", maintain_order="left")
        return found["word"].alias(name)
    missing = column.isna().tolist()
    values = column.astype(object).tolist()
    return _listed(
        name, [None if gone else v for v, gone in zip(values, missing, strict=True)], file
    )


def _listed(name: str, values: list[Any], file: str) -> pl.Series:
    present = {type(value) for value in values if value is not None}
    if present == {int, str}:
        # As a text file would have them: pandas leaves such columns behind when it reads one.
        return pl.Series(name, [None if value is None else str(value) for value in values])
    if present == {int, float}:
        return pl.Series(name, values, dtype=pl.Float64)
    if present == {int} and not all(-_LARGE <= v < _LARGE for v in values if v is not None):
        return pl.Series(name, [None if value is None else str(value) for value in values])
    try:
        return pl.Series(name, values, strict=True)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
        kinds = ", ".join(sorted(kind.__name__ for kind in present))
        raise DataError(f"{file}: {name!r} must have values of one kind; got {kinds}") from error


_LARGE = 2**63
"""Whole numbers from here on are text: no column of numbers holds them all."""


def column_name(role: str, column: object) -> str:
    """Return the name of a column as text; columns of pandas may be numbers."""
    check_kind(role, column, (str, int), "the name of a column")
    return str(column)
