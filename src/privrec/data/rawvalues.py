"""A file's columns as they were read, and their values as ids, numbers, times and features.

What cannot be converted is a bad row: it is named by file, line, column and value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from privrec.data.text import value_text
from privrec.errors import DataError
from privrec.types import BoolArray, IntArray

Form = Literal["auto", "table", "lists"]
"""A file's form: a table of columns, or one line for each person with her items."""
Unit = Literal["line", "row"]
"""What a file is counted in: the lines of a text, or the rows of a table without lines."""
Dates = Literal["iso", "day-first", "month-first"]
"""How dates are written: 2023-12-31, or 31.12.2023, or 12/31/2023."""
Decimal = Literal[".", ","]
"""What stands before the decimals of a number."""


class BadRow(NamedTuple):
    """A row that cannot be used: its file and line, and what is wrong with it.

    `line` counts the lines of a text file, including the header, or the rows of a Parquet file,
    both from 1, or the rows of a frame from 0. `column` is empty if the whole line is wrong.

    >>> print(BadRow("ratings.csv", 3, "score", "good", "must be a finite number"))
    ratings.csv line 3: 'score' must be a finite number; got 'good'
    """

    file: str
    line: int
    column: str
    value: str
    reason: str
    unit: Unit = "line"

    def __str__(self) -> str:
        column = f": {self.column!r}" if self.column else ""
        value = self.value if len(self.value) <= 80 else f"{self.value[:79]}…"
        return f"{self.file} {self.unit} {self.line}{column} {self.reason}; got {value!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTable:
    """A file's columns under their original names, before a meaning is assigned to them.

    `lines` has the line of each row of `frame`. The columns of a text file are all text, without
    the spaces around a value; if it has no header they are called "1", "2", … . `types` has the
    types in an atomic file's header. `bad` has the rows that could not be split into columns.
    `lists` says that the file had one line for each person: then an item is null where somebody
    has none. `is_text` says that the columns have no types, as those of separated text. `decimal`
    and `dates` say how numbers and dates are written where they are text.
    """

    file: str
    frame: pl.DataFrame
    lines: IntArray
    has_header: bool
    types: Mapping[str, str]
    bad: tuple[BadRow, ...]
    lists: bool = False
    is_text: bool = True
    unit: Unit = "line"
    decimal: Decimal = "."
    dates: Dates = "iso"

    def __str__(self) -> str:
        return self.file

    def bad_rows(self, rows: IntArray, column: str, reason: str) -> list[BadRow]:
        """Return what is wrong with the given rows."""
        values = self.frame[column]
        return [
            BadRow(
                *(self.file, int(self.lines[row]), column, _shown(values[int(row)]), reason),
                self.unit,
            )
            for row in rows
        ]


Table = Path | RawTable
"""A file, or a table that is in memory already."""


def _shown(value: object) -> str:
    if isinstance(value, pl.Series):
        return ", ".join(map(_shown, value))
    return "" if value is None else value_text(value)


_COMMA = r"^\s*[+-]?\d*,\d+\s*$"


@dataclass(frozen=True, slots=True)
class Check:
    """The bad rows of a file for one column."""

    column: str
    mask: BoolArray
    reason: str


def read_ids(table: RawTable, name: str) -> tuple[pl.Series, Check]:
    """Return a column as text, and the rows where it is empty."""
    column = table.frame[name]
    kind = column.dtype
    if kind.is_float():
        # Integers are stored as floats if other rows of the column are empty. Large ones have lost
        # their last digits then, and several of them would be one id.
        whole = column.cast(pl.Int64, strict=False)
        inexact = (whole.cast(kind) != column) | (whole.abs() > _exact(kind))
        text = whole.set(inexact, None).cast(pl.String)
    elif kind.is_integer() or kind in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        text = column.cast(pl.String)
    else:
        raise DataError(f"{table.file}: {name!r} must be text or whole numbers; got {kind}")
    missing = (text.is_null() | (text == "")).to_numpy()
    reason = "must be text or a whole number, and not empty"
    if kind.is_float() and (column.filter(missing).abs() > _exact(kind)).any():
        reason += f", and below {_exact(kind):,} in a column of {kind}, where digits are lost"
    return text, Check(name, missing, reason)


def _exact(kind: pl.DataType) -> int:
    """Return the number up to which each whole number has a float of its own."""
    return 2**53 if kind == pl.Float64 else 2**24 if kind == pl.Float32 else 2**11


def read_numbers(table: RawTable, name: str) -> tuple[pl.Series, Check]:
    """Return a column as numbers, and the rows where it is not a finite number."""
    column = table.frame[name]
    if not (column.dtype.is_numeric() or column.dtype in (pl.String, pl.Boolean, pl.Null)):
        raise DataError(f"{table.file}: {name!r} must be numbers; got {column.dtype}")
    numbers = _numbers(column, table.decimal)
    # Values are used in single precision, where 1e39 is infinite.
    unusable = ~numbers.cast(pl.Float32).is_finite().fill_null(value=False).to_numpy()
    return numbers, Check(name, unusable, _must_be_number(column.filter(unusable), table.decimal))


def _numbers(column: pl.Series, decimal: Decimal) -> pl.Series:
    """Return the numbers of a column, null where a text is none; with a comma no point is read."""
    if column.dtype == pl.String and decimal == ",":
        column = column.set(column.str.contains(".", literal=True), None)
        column = column.str.replace(",", ".", literal=True)
    return column.cast(pl.Float64, strict=False)


def _must_be_number(unusable: pl.Series, decimal: Decimal) -> str:
    """Return what a number must be, and the option by which the first bad one would be read."""
    if decimal == ",":
        return "must be a finite number, with a decimal comma"
    offer = " (--decimal , reads a decimal comma)" if has_commas(unusable.head(1)) else ""
    return f"must be a finite number{offer}"


def has_commas(column: pl.Series) -> bool:
    """Return whether a column of text has numbers with a decimal comma, and nothing but numbers."""
    if column.dtype != pl.String or not column.str.contains(_COMMA).any():
        return False
    filled = column.set(column == "", None)
    return _numbers(filled, ",").null_count() == filled.null_count()


def read_times(table: RawTable, name: str) -> tuple[pl.Series, Check]:
    """Return a column as numbers or else as dates, and the rows where it is neither."""
    column = table.frame[name]
    times = column
    if column.dtype == pl.String:
        whole = column.cast(pl.Int64, strict=False)
        times = _numbers(column, table.decimal) if whole.null_count() else whole
        if times.null_count() == times.len():
            times = _dates(column, table.dates)
    elif column.dtype == pl.Time:
        raise DataError(f"{table.file}: {name!r} must be times with a date; got times of a day")
    elif not (column.dtype.is_numeric() or column.dtype.is_temporal() or column.dtype == pl.Null):
        raise DataError(f"{table.file}: {name!r} must be times; got {column.dtype}")
    unusable = times.is_null()
    if times.dtype.is_float():
        unusable |= ~times.is_finite()
    must = _MUST_BE_TIME[table.dates]
    if column.dtype == pl.String and times.dtype.is_numeric():
        must = "must be a time: a finite number, as others of the column are"
    elif offer := _dates_offer(column) if table.dates == "iso" else "":
        must += f" ({offer})"
    return times, Check(name, unusable.to_numpy(), must)


_MUST_BE_TIME: dict[Dates, str] = {
    "iso": "must be a time: a finite number or an ISO date such as 2023-12-31",
    "day-first": "must be a time: a finite number or a date with the day first, as 31.12.2023",
    "month-first": "must be a time: a finite number or a date with the month first, as 12/31/2023",
}


def _dates_offer(column: pl.Series) -> str:
    """Return the options that would read the dates of a column of text; "" if it has none."""
    if column.dtype != pl.String or not column.str.contains(_LOCAL_DATE).any():
        return ""
    filled = column.filter(column != "")
    ways: list[Dates] = ["day-first", "month-first"]
    fitting = [way for way in ways if not _local_dates(filled, way).null_count()] or ways
    if len(fitting) > 1:
        return "say --dates day-first or --dates month-first"
    return f"--dates {fitting[0]} reads it"


def read_title(table: RawTable, name: str) -> pl.Series:
    """Return a column as text to show; empty values become missing."""
    column = table.frame[name]
    if column.dtype.is_nested() or column.dtype == pl.Binary:
        raise DataError(f"{table.file}: {name!r} must be text; got {column.dtype}")
    return _blank_to_null(column.cast(pl.String))


def read_feature(
    table: RawTable, name: str, *, may_split: bool
) -> tuple[list[pl.Series], list[Check]]:
    """Return a column as a feature of the detected kind, and the rows with a bad number.

    The types of an atomic file decide; its `float_seq` becomes one column per position. In other
    files, text is split at `|` if some value has one and `may_split` is true. It is numeric if all
    values are numbers and some have a decimal point. Otherwise it stays as it is. Integers are
    categories; an integer with a leading zero stays text.
    """
    column = table.frame[name]
    if column.dtype == pl.String:
        column = _blank_to_null(column)
        kind = table.types.get(name)
        if kind == "float_seq":
            return _spread(column)
        if kind == "token_seq":
            return [_split(column, " ")], []
        if kind == "float":
            return _checked(column, _numbers(column, table.decimal))
        if kind is None and may_split and column.str.contains("|", literal=True).any():
            return [_split(column, "|")], []
        if kind is None and table.is_text:
            return _checked(column, _as_it_looks(column, table.decimal))
    elif not _is_plain(column):
        raise DataError(f"{table.file}: {name!r} must be plain values or lists; got {column.dtype}")
    return _checked(column, column)


_ON, _OFF = ("1", "true"), ("0", "false", "")


def read_flags(table: RawTable, names: Sequence[str]) -> tuple[pl.Series, list[Check]]:
    """Return for each row the names of the columns that are 1, and rows with more than 0 and 1."""
    texts = table.frame.select(pl.col(names).cast(pl.String).fill_null(""))
    checks = [
        Check(name, (~texts[name].is_in([*_ON, *_OFF])).to_numpy(), "must be 0 or 1")
        for name in names
    ]
    chosen = [pl.when(pl.col(name).is_in(_ON)).then(pl.lit(name)) for name in names]
    return texts.select(pl.concat_list(chosen).list.drop_nulls()).to_series(), checks


def _is_plain(column: pl.Series) -> bool:
    """Return whether a column has plain values, or lists of them, so that it can be a feature."""
    kind = column.dtype
    kind = column.explode().dtype if kind in (pl.List, pl.Array) else kind
    return not kind.is_nested() and kind != pl.Object


_LOCAL_DATE = (
    r"(?i)^\s*(\d{1,2})[./-](\d{1,2})[./-](\d{4}|\d{2})"
    r"(?:[ ,]+(\d{1,2}):(\d{2})(?::(\d{2}))?(?: ?([ap])\.?m\.?)?)?\s*$"
)


def _local_dates(column: pl.Series, dates: Dates) -> pl.Series:
    """Parse dates that have the day or the month first; a time of day may follow."""
    parts = column.str.extract_groups(_LOCAL_DATE).struct.unnest()
    order = ("day", "month") if dates == "day-first" else ("month", "day")
    parts.columns = [*order, "year", "hour", "minute", "second", "half"]
    year, hour = pl.col("year").cast(pl.Int64), pl.col("hour").fill_null("0").cast(pl.Int64)
    # 23 is 2023 and 99 is 1999.
    year = pl.when(year < 70).then(year + 2000).when(year < 100).then(year + 1900).otherwise(year)
    is_late = pl.col("half").str.to_lowercase() == "p"
    hour = pl.when(is_late.is_null()).then(hour).otherwise(hour % 12 + 12 * is_late)
    minute, second = (pl.col(name).fill_null("0") for name in ("minute", "second"))
    text = pl.format("{}-{}-{} {}:{}:{}", year, "month", "day", hour, minute, second)
    iso = parts.select(text.str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False)).to_series()
    return iso.alias(column.name)


def _dates(column: pl.Series, dates: Dates) -> pl.Series:
    """Return dates; if they are written in several ways, those without a zone count as UTC."""
    rest = column.set(~column.str.contains(r"^\d{4}-\d{2}-\d{2}"), None)
    times = _dates_of_a_kind(rest) if dates == "iso" else _local_dates(column, dates)
    for _ in range(_WAYS):
        rest = rest.set(times.is_not_null(), None)
        if rest.null_count() == rest.len():
            break
        more = _in_utc(_dates_of_a_kind(rest))
        times = _in_utc(times)
        times = times.zip_with(times.is_not_null(), more)
    return times


_WAYS = 4
"""In how many more ways dates of one column may be written: without a time, with a zone, …"""


def _dates_of_a_kind(column: pl.Series) -> pl.Series:
    """Return the dates that are written as the first one is."""
    try:
        return column.str.to_datetime(strict=False)
    except pl.exceptions.PolarsError:  # not one of them is a date that exists
        return pl.Series(column.name, [None] * column.len(), dtype=pl.Datetime)


def _in_utc(dates: pl.Series) -> pl.Series:
    zone = dates.dtype.time_zone if isinstance(dates.dtype, pl.Datetime) else None
    naive = dates.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if zone else dates
    return naive.cast(pl.Datetime("us"))


def _blank_to_null(column: pl.Series) -> pl.Series:
    return column.set(column == "", None)


def _split(column: pl.Series, separator: str) -> pl.Series:
    parts = pl.element().str.strip_chars(" ")
    return column.str.split(separator).list.eval(parts.filter(parts != ""))


def _as_it_looks(column: pl.Series, decimal: Decimal) -> pl.Series:
    present = column.drop_nulls()
    if present.is_empty() or present.str.contains(r"^[+-]?0\d").any():
        return column
    if present.str.contains(r"^-?\d+$").all():
        whole = column.cast(pl.Int64, strict=False)
        return whole if whole.null_count() == column.null_count() else column
    number = _numbers(column, decimal)
    pointed = present.str.contains(decimal, literal=True).any()
    return number if pointed and number.null_count() == column.null_count() else column


def _checked(column: pl.Series, converted: pl.Series) -> tuple[list[pl.Series], list[Check]]:
    if not converted.dtype.is_float():
        return [converted], []
    unusable = (converted.is_null() & column.is_not_null()) | converted.is_infinite()
    mask = unusable.fill_null(value=False).to_numpy()
    return [converted], [Check(column.name, mask, "must be a finite number")]


def _spread(column: pl.Series) -> tuple[list[pl.Series], list[Check]]:
    parts = _split(column, " ")
    series, unusable = [], np.zeros(len(column), np.bool_)
    for place in range(int(parts.list.len().max() or 0)):  # type: ignore[arg-type]
        text = parts.list.get(place, null_on_oob=True)
        (number,), (check,) = _checked(text, text.cast(pl.Float64, strict=False))
        series.append(number.alias(f"{column.name}.{place + 1}"))
        unusable |= check.mask
    return series, [Check(column.name, unusable, "must be finite numbers with spaces between")]
