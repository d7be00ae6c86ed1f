"""The raw columns of a file, and conversion of their values to ids, numbers, times and features.

A row with a value that cannot be converted is a bad row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl

from privrec.data.text import value_text
from privrec.errors import DataError
from privrec.types import BoolArray, IntArray

Form = Literal["auto", "table", "lists"]
"""The form of a file: "table" has columns, "lists" has one line for each person with her items."""
Dates = Literal["iso", "day-first", "month-first"]
"""The notation of dates: 2023-12-31, 31.12.2023 or 12/31/2023."""
Decimal = Literal[".", ","]
"""The decimal sign in numbers."""


class BadRow(NamedTuple):
    """A row that cannot be used: its file, its line, and the reason.

    `line` counts from 1: the lines of a text file, with the header, or the rows of a Parquet file.
    In a frame, it counts rows from 0. `column` is empty if the whole line is wrong.

    >>> print(BadRow("ratings.csv", 3, "score", "good", "must be a finite number"))
    ratings.csv line 3: 'score' must be a finite number; got 'good'
    """

    file: str
    line: int
    column: str
    value: str
    reason: str
    unit: Literal["line", "row"] = "line"

    def __str__(self) -> str:
        column = f": {self.column!r}" if self.column else ""
        value = self.value if len(self.value) <= 80 else f"{self.value[:79]}…"
        return f"{self.file} {self.unit} {self.line}{column} {self.reason}; got {value!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTable:
    """The columns of a file under their original names, before they have a meaning.

    `lines` has the line of each row of `frame`. Columns of a text file (`is_text`) contain text,
    without spaces around a value. Without a header, the columns are named "1", "2", … . `types` has
    the column types in the header of an atomic RecBole file, `bad` the rows that could not be split
    into columns. If `lists` is true, the file has one line for each person, and the item of a
    person without items is null. `decimal` and `dates` are the notations of numbers and dates in
    text.
    """

    file: str
    frame: pl.DataFrame
    lines: IntArray
    has_header: bool = True
    types: Mapping[str, str] = field(default_factory=dict)
    bad: tuple[BadRow, ...] = ()
    lists: bool = False
    is_text: bool = True
    decimal: Decimal = "."
    dates: Dates = "iso"

    def __str__(self) -> str:
        return self.file

    def bad_rows(self, rows: IntArray, column: str, reason: str) -> list[BadRow]:
        """Return the given rows as bad rows, with their line numbers and values."""
        values = self.frame[column]
        unit: Literal["line", "row"] = "line" if self.is_text else "row"
        return [
            BadRow(self.file, int(self.lines[row]), column, _shown(values[int(row)]), reason, unit)
            for row in rows
        ]


Table = Path | RawTable
"""A file, or a table in memory."""


def _shown(value: object) -> str:
    if isinstance(value, pl.Series):
        return ", ".join(map(_shown, value))
    return "" if value is None else value_text(value)


@dataclass(frozen=True, slots=True)
class Check:
    """The bad rows of one column, as a mask over all rows, and the reason."""

    column: str
    mask: BoolArray
    reason: str


def read_ids(table: RawTable, name: str) -> tuple[pl.Series, Check]:
    """Return a column of ids as text, and a check for empty ids."""
    column = table.frame[name]
    kind = column.dtype
    reason = "must be text or a whole number, and not empty"
    if kind.is_float():
        # Integers may be stored as floats if some rows are empty. Large integers then lose their
        # last digits, so several ids could become equal.
        exact = 2**53 if kind == pl.Float64 else 2**24 if kind == pl.Float32 else 2**11
        whole = column.cast(pl.Int64, strict=False)
        inexact = (whole.cast(kind) != column) | (whole.abs() > exact)
        text = whole.set(inexact, None).cast(pl.String)
        if (column.abs() > exact).any():
            reason += f", and below {exact:,} in a column of {kind}, where digits are lost"
    elif kind.is_integer() or kind in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        text = column.cast(pl.String)
    else:
        raise DataError(f"{table.file}: {name!r} must be text or whole numbers; got {kind}")
    return text, Check(name, (text.is_null() | (text == "")).to_numpy(), reason)


def read_numbers(table: RawTable, name: str) -> tuple[pl.Series, Check]:
    """Return a column as numbers, and a check for values that are not finite numbers."""
    column = table.frame[name]
    if not (column.dtype.is_numeric() or column.dtype in (pl.String, pl.Boolean, pl.Null)):
        raise DataError(f"{table.file}: {name!r} must be numbers; got {column.dtype}")
    numbers = _numbers(column, table.decimal)
    # Values are used in single precision, in which 1e39 is infinite.
    unusable = ~numbers.cast(pl.Float32).is_finite().fill_null(value=False).to_numpy()
    must = "must be a finite number"
    if table.decimal == ",":
        must += ", with a decimal comma"
    elif has_commas(column.filter(unusable).head(1)):
        must += " (--decimal , reads a decimal comma)"
    return numbers, Check(name, unusable, must)


def _numbers(column: pl.Series, decimal: Decimal) -> pl.Series:
    """Return a column as numbers, null if a text is not a number.

    With a decimal comma, a number with a point is null too.
    """
    if column.dtype == pl.String and decimal == ",":
        column = column.set(column.str.contains(".", literal=True), None)
        column = column.str.replace(",", ".", literal=True)
    return column.cast(pl.Float64, strict=False)


def has_commas(column: pl.Series) -> bool:
    """Return whether a text column has only numbers, some of them with a decimal comma."""
    if column.dtype != pl.String or not column.str.contains(",", literal=True).any():
        return False
    return bool(column.str.contains(r"^([+-]?\d*(,\d+)?)?$").all())


def read_times(table: RawTable, name: str) -> tuple[pl.Series, Check]:
    """Return a column as numbers or dates, and a check for values that are neither."""
    column = times = table.frame[name]
    must = _MUST_BE_TIME[table.dates]
    if column.dtype == pl.String:
        whole = column.cast(pl.Int64, strict=False)
        times = _numbers(column, table.decimal) if whole.null_count() else whole
        if times.null_count() == times.len():
            times = _dates(column, table.dates)
        else:
            must = "must be a time: a finite number, as others of the column are"
    elif column.dtype == pl.Time:
        raise DataError(f"{table.file}: {name!r} must be times with a date; got times of a day")
    elif not (column.dtype.is_numeric() or column.dtype.is_temporal() or column.dtype == pl.Null):
        raise DataError(f"{table.file}: {name!r} must be times; got {column.dtype}")
    unusable = times.is_null()
    if times.dtype.is_float():
        unusable |= ~times.is_finite()
    return times, Check(name, unusable.to_numpy(), must)


_MUST_BE_TIME: dict[Dates, str] = {
    "iso": "must be a time: a finite number or an ISO date such as 2023-12-31 (--dates day-first"
    " reads 31.12.2023, --dates month-first 12/31/2023)",
    "day-first": "must be a time: a finite number or a date with the day first, as 31.12.2023",
    "month-first": "must be a time: a finite number or a date with the month first, as 12/31/2023",
}
_ISO = r"^([12]\d{3})-(\d{2})-(\d{2})"
_LOCAL = r"^(\d{1,2})[./-](\d{1,2})[./-]([12]\d{3}|\d{2})"
_CLOCK = r"(?:[T ,]+(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?(?: ?([AaPp])\.?[Mm]\.?)?)?"
_ZONE = r" ?(Z|UTC|[+-]\d{2}:?\d{2})?$"
_ORDER: dict[Dates, tuple[str, str, str]] = {
    "iso": ("year", "month", "day"),
    "day-first": ("day", "month", "year"),
    "month-first": ("month", "day", "year"),
}


def _dates(column: pl.Series, dates: Dates) -> pl.Series:
    """Return the dates of a column. ISO dates are always read; a date without a zone is in UTC."""
    day = _ISO if dates == "iso" else _LOCAL
    parts = column.str.extract_groups(day + _CLOCK + _ZONE).struct.unnest()
    parts.columns = [*_ORDER[dates], "hour", "minute", "second", "half", "zone"]
    year, hour = pl.col("year").cast(pl.Int64), pl.col("hour").fill_null("0").cast(pl.Int64)
    # The years 23 and 99 mean 2023 and 1999.
    year = pl.when(year < 70).then(year + 2000).when(year < 100).then(year + 1900).otherwise(year)
    is_late = pl.col("half").str.to_lowercase() == "p"
    hour = pl.when(is_late.is_null()).then(hour).otherwise(hour % 12 + 12 * is_late)
    minute, second = (pl.col(name).fill_null("0") for name in ("minute", "second"))
    zone = pl.col("zone").str.replace("^(Z|UTC)$", "+00:00").fill_null("+00:00")
    text = pl.format("{}-{}-{} {}:{}:{} {}", year, "month", "day", hour, minute, second, zone)
    times = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f %#z", strict=False, time_unit="us")
    found = parts.select(times.dt.replace_time_zone(None)).to_series().alias(column.name)
    if dates == "iso":
        return found
    return found.zip_with(found.is_not_null(), _dates(column, "iso"))


def read_title(table: RawTable, name: str) -> pl.Series:
    """Return a column as text to be shown; empty values become null."""
    column = table.frame[name]
    if column.dtype.is_nested() or column.dtype == pl.Binary:
        raise DataError(f"{table.file}: {name!r} must be text; got {column.dtype}")
    return _blank_to_null(column.cast(pl.String))


def read_feature(table: RawTable, name: str, *, may_split: bool) -> tuple[pl.Series, Check]:
    """Return a column as a feature of the detected kind, and a check for bad numbers.

    In an atomic RecBole file, the header gives the type. In other files, text is split at `|` if
    `may_split` is true and a value contains `|`. Other text is converted by `_as_it_looks`; whole
    numbers are categories.
    """
    column = table.frame[name]
    kind = table.types.get(name)
    if kind == "float_seq":
        raise DataError(f"{table.file}: {name!r} is a float_seq, which is not read (--ignore it)")
    inner = column.explode().dtype if column.dtype in (pl.List, pl.Array) else column.dtype
    if inner.is_nested() or inner == pl.Object:
        raise DataError(f"{table.file}: {name!r} must be plain values or lists; got {column.dtype}")
    converted = column = _blank_to_null(column) if column.dtype == pl.String else column
    if column.dtype == pl.String:
        if kind == "token_seq":
            converted = _parts(column, " ")
        elif kind == "float":
            converted = _numbers(column, table.decimal)
        elif kind is None and may_split and column.str.contains("|", literal=True).any():
            converted = _parts(column, "|")
        elif kind is None and table.is_text:
            converted = _as_it_looks(column, table.decimal)
    unusable = converted.is_null() & column.is_not_null()
    if converted.dtype.is_float():
        unusable |= converted.is_infinite().fill_null(value=False)
    return converted, Check(name, unusable.to_numpy(), "must be a finite number")


_ON, _OFF = ("1", "true"), ("0", "false", "")


def read_flags(table: RawTable, names: Sequence[str]) -> tuple[pl.Series, list[Check]]:
    """Return for each row the names of the columns that are 1, and a check for each column.

    The check finds values other than 0 and 1.
    """
    texts = table.frame.select(pl.col(names).cast(pl.String).fill_null(""))
    checks = [
        Check(name, (~texts[name].is_in([*_ON, *_OFF])).to_numpy(), "must be 0 or 1")
        for name in names
    ]
    chosen = [pl.when(pl.col(name).is_in(_ON)).then(pl.lit(name)) for name in names]
    return texts.select(pl.concat_list(chosen).list.drop_nulls()).to_series(), checks


def _blank_to_null(column: pl.Series) -> pl.Series:
    return column.set(column == "", None)


def _parts(column: pl.Series, separator: str) -> pl.Series:
    part = pl.element().str.strip_chars(" ")
    return column.str.split(separator).list.eval(part.filter(part != ""))


def _as_it_looks(column: pl.Series, decimal: Decimal) -> pl.Series:
    """Return a text column as integers or decimal numbers if all values are such, else as text.

    A column with a leading zero, as in 007, stays text.
    """
    present = column.drop_nulls()
    if present.is_empty() or present.str.contains(r"^[+-]?0\d").any():
        return column
    if present.str.contains(r"^-?\d+$").all():
        numbers = column.cast(pl.Int64, strict=False)
    elif present.str.contains(decimal, literal=True).any():
        numbers = _numbers(column, decimal)
    else:
        return column
    return numbers if numbers.null_count() == column.null_count() else column
