"""Conversion of polars and pandas data frames to polars."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from privrec.errors import DataError, check_kind, got

Frame = pl.DataFrame
"""The type of data frame that privrec returns."""


def is_frame(data: object) -> bool:
    """Return whether this is a frame of polars, also a lazy one, or of pandas."""
    return isinstance(data, pl.DataFrame | pl.LazyFrame) or _is_pandas(data)


def new_frame(columns: Mapping[str, Sequence[Any]], kinds: Sequence[type]) -> Frame:
    """Return a frame of these columns with these types, which empty columns have too."""
    return pl.DataFrame(columns, schema=dict(zip(columns, kinds, strict=True)))


def as_polars(frame: object, file: str = "the frame") -> pl.DataFrame:
    """Return a frame of polars: a lazy frame is collected, and a pandas frame is converted."""
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
    """Return whether this is a pandas frame, without importing pandas."""
    pandas: Any = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


def _from_pandas(frame: Any, file: str) -> pl.DataFrame:
    """Return the columns of a pandas frame; a named index becomes columns too."""
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

    The values pass through numpy or a list, because polars' own converter needs pyarrow for some
    columns.
    """
    kind = column.dtype
    if isinstance(kind, np.dtype) and kind.kind in "iubMm":
        values = column.to_numpy()
        # Polars has no unit of whole seconds.
        return pl.Series(name, values.astype("M8[ms]") if kind == np.dtype("M8[s]") else values)
    if isinstance(kind, np.dtype) and kind.kind == "f":
        return pl.Series(name, column.to_numpy(np.float64)).fill_nan(None)
    missing = column.isna().tolist()
    values = column.astype(object).tolist()
    return _listed(
        name, [None if gone else v for v, gone in zip(values, missing, strict=True)], file
    )


def _listed(name: str, values: list[Any], file: str) -> pl.Series:
    present = {type(value) for value in values if value is not None}
    if present == {int, str}:
        # Pandas makes such columns from some text files. They become text.
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
"""Whole numbers from here on become text, because they do not fit into 64 bits with a sign."""


def column_name(role: str, column: object) -> str:
    """Return the name of a column as text. In pandas, a column's name may be a number."""
    check_kind(role, column, (str, int), "the name of a column")
    return str(column)
