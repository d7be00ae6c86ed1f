"""What an import did with each column of its files, in words."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import polars as pl

from privrec.data.columnnames import ALIASES, ROLES, plain_column
from privrec.data.rawtable import RawTable
from privrec.data.rawvalues import is_plain, read_numbers, read_times
from privrec.errors import DataError

Became = Literal["user", "item", "value", "time", "context", "id", "title", "feature", "ignored"]

UNUSED_TIME = "no column is the time, so lines stay in the order of the file"
UNREAD_TIME = (
    "may be one, in a form that is not read: write dates as 2023-12-31, or as seconds since 1970"
)
_LOOKED_AT = 1000
"""Rows that decide what an unknown column may be. Chosen by hand."""
_FEW_VALUES = 20
"""A column of numbers with more different values is no rating. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What became of one column. `why` says how that was decided, `note` what is in it."""

    file: str
    column: str
    became: Became
    why: str
    note: str = ""


def why_chosen(table: RawTable, ours: str, theirs: str, said: str | None) -> str:
    """Return how it was decided that a column is ours; `said` is the column that --map names."""
    if said == theirs:
        return "you said so"
    if table.lists:
        return "the file has one line a person"
    if not table.has_header:
        return f"guessed: it is column {theirs} of a file without a header"
    return "its name" if theirs.casefold() == ours else "guessed from its name"


def looks_like_times(column: pl.Series) -> bool:
    """Return whether at least half of the first values are ISO dates or numbers of an epoch."""
    first = None if column.dtype == pl.Duration else _first(column)
    if first is None or plain_column(column.name).endswith("id"):
        return False
    try:
        times, check = read_times(first, column.name)
    except DataError:
        return False
    is_time = ~check.mask
    if not times.dtype.is_temporal():
        is_time &= [time is not None and bool(_unit(float(time))) for time in times]
    return 2 * int(is_time.sum()) >= times.len()


def why_ignored(column: pl.Series, found: Mapping[str, str]) -> str:
    """Return what an ignored column may be, and the option that would use it."""
    if is_empty(column):
        return "it is empty"
    return _may_be(column, found) or _as_context(column)


def _may_be(column: pl.Series, found: Mapping[str, str]) -> str:
    """Return the meaning that a column may have, or ""."""
    name = column.name
    if looks_like_times(column):
        but = f", but {found['time']!r} is the time" if "time" in found else ""
        return f"it looks like a time{but}: {map_option('time', name)}"
    if "time" not in found and is_unread_time(column):
        return "it may be a time, but in a form that is not read: write 2023-12-31 or a number"
    for ours in ROLES:
        if plain_column(name) in ALIASES[ours] and ours in found:
            return f"it may be the {ours}, but {found[ours]!r} is: {map_option(ours, name)}"
    if "value" not in found and _looks_like_ratings(column):
        return f"it may be a value, such as a rating: {map_option('value', name)}"
    return ""


def _as_context(column: pl.Series) -> str:
    if not is_plain(column):
        return "it has no plain values"
    if _is_unlike(column):
        return "nearly each line has its own value"
    return f"--context {shlex.quote(column.name)} would use it"


def map_option(ours: str, name: str) -> str:
    """Return the option that gives a column a meaning, as a shell takes it."""
    return f"--map {shlex.quote(f'{ours}={name}')}"


def is_empty(column: pl.Series) -> bool:
    """Return whether a column has no value at all."""
    gone = column.is_null()
    return bool((gone | (column == "")).all() if column.dtype == pl.String else gone.all())


def is_unread_time(column: pl.Series) -> bool:
    """Return whether a column of text has a name of times, or dates as 31.12.2023 or 12/31/23."""
    first = column.head(_LOOKED_AT).drop_nulls()
    if first.dtype != pl.String or first.is_empty():
        return False
    is_date = first.str.contains(_DATE)
    return plain_column(column.name) in ALIASES["time"] or 2 * int(is_date.sum()) >= first.len()


_DATE = r"^\s*(\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{4}[./]\d{1,2}[./]\d{1,2})\b"


def feature_note(column: pl.Series) -> str:
    """Return the kind of a feature and how many values it has."""
    if column.null_count() == column.len():
        return "empty"
    if column.dtype.is_float():
        return "numeric"
    is_list = column.dtype in (pl.List, pl.Array)
    values = (column.explode() if is_list else column).drop_nulls().n_unique()
    return f"{'multi-valued' if is_list else 'categorical'}, {values:,} values"


def time_note(times: pl.Series) -> tuple[str, str]:
    """Return the unit and the span of times, and a warning or "".

    The size of a number tells seconds, milliseconds, microseconds and nanoseconds apart. Numbers
    stay as they are: only their order is used.
    """
    if times.dtype == pl.Duration:
        return f"spans of time, {times.min()!s} to {times.max()!s}", ""
    if times.dtype.is_temporal():
        return f"dates, {str(times.min())[:10]} to {str(times.max())[:10]}", ""
    low, high = (float(time) for time in (times.min(), times.max()))  # type: ignore[arg-type]
    units = {unit for unit in (_unit(low), _unit(high)) if unit}
    if not units:
        return f"numbers without a known unit, {low:.12g} to {high:.12g}", ""
    span = f"{low:.0f} to {high:.0f}"
    if _unit(low) != _unit(high):
        some = " and others ".join([*sorted(units), "not"][:2])
        warning = f"the times run from {span}: some are {some}, and so their order is wrong"
        return f"numbers, {span}", warning
    unit = units.pop()
    days = [datetime.fromtimestamp(t / _PER_SECOND[unit], UTC).date() for t in (low, high)]
    return f"{unit} since 1970, {days[0]} to {days[1]}", ""


_PER_SECOND = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
_YEAR = 365.25 * 86400


def _unit(time: float) -> str:
    """Return the unit in which a time is one of the years 1985 to 2060, or ""."""
    for unit, factor in _PER_SECOND.items():
        if 15 * _YEAR <= time / factor <= 91 * _YEAR:
            return unit
    return ""


def _looks_like_ratings(column: pl.Series) -> bool:
    first = _first(column)
    if first is None:
        return False
    try:
        numbers, check = read_numbers(first, column.name)
    except DataError:
        return False
    return not check.mask.any() and 1 < numbers.n_unique() <= min(_FEW_VALUES, numbers.len() - 1)


def _is_unlike(column: pl.Series) -> bool:
    """Return whether values hardly occur twice, as those of an id or a text: no use as context."""
    first = column.head(_LOOKED_AT).drop_nulls()
    first = first.explode() if first.dtype in (pl.List, pl.Array) else first
    return first.len() >= _FEW_VALUES and 2 * first.n_unique() > first.len()


def _first(column: pl.Series) -> RawTable | None:
    """Return the first values of a column that are not empty, as a table; None without any."""
    first = column.head(_LOOKED_AT).drop_nulls()
    first = first.filter(first != "") if first.dtype == pl.String else first
    if first.is_empty():
        return None
    lines = first.to_frame().with_row_index()["index"].to_numpy()
    return RawTable(file="", frame=first.to_frame(), lines=lines, has_header=True, types={}, bad=())
