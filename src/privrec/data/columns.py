"""What an import did with each column of its files, in words.

The usual names of columns, which need no mapping.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import polars as pl

from privrec.data.rawvalues import (
    RawTable,
    dates_offer,
    has_commas,
    is_plain,
    read_numbers,
    read_times,
)
from privrec.errors import DataError

_THINGS = (
    *("movie", "product", "book", "song", "track", "artist", "business", "article", "news", "app"),
    *("film", "game", "video", "show", "recipe", "poi", "venue", "place", "location", "hotel"),
    *("restaurant", "content", "goods", "podcast", "anime", "joke", "course", "beer", "sku"),
)
_PEOPLE = (
    *("customer", "member", "reviewer", "visitor", "person", "client", "account", "profile"),
    *("player", "subscriber", "viewer", "listener", "reader", "buyer", "shopper"),
)
_MOMENTS = (
    *("time", "timestamp", "ts", "unixtime", "datetime", "date", "eventtime", "eventtimestamp"),
    *("eventts", "eventdate", "unixtimestamp", "epoch", "epochtime", "createdat", "createdon"),
    *("created", "createdtime", "creationtime", "creationdate", "occurredat", "loggedat"),
    *("ratedat", "watchedat", "playedat", "clickedat", "viewedat", "purchasedat", "orderedat"),
    *("reviewedat", "visitedat", "ratingtime", "reviewtime", "unixreviewtime", "reviewdate"),
    *("orderdate", "purchasedate", "orderpurchasetimestamp", "checkintime", "interactiontime"),
    *("invoicedate", "ordertime", "purchasetime", "transactiondate", "transactiontime", "addedat"),
    *("clicktime", "playtime", "starttime", "startedat", "starttimestamp"),
)
_UNITS = ("", "ms", "millis", "milliseconds", "s", "sec", "seconds", "us", "micros", "utc", "unix")

ALIASES: dict[str, tuple[str, ...]] = {
    "user": (
        *("user", "userid", "uid", "customerid", "memberid", "reviewerid", "visitorid"),
        *(f"{who}id" for who in _PEOPLE),
        *("userkey", "username", "userhash", *_PEOPLE),
    ),
    "item": (
        *("item", "itemid", "iid", "movieid", "productid", "bookid", "isbn", "songid", "trackid"),
        *("artistid", "parentasin", "asin", "businessid", "articleid", "newsid", "appid"),
        *(f"{what}id" for what in _THINGS),
        *("stockcode", "productcode", "itemcode", "productsku", *_THINGS),
    ),
    "value": (
        *("value", "rating", "score", "stars", "overall", "label"),
        *("ratings", "userrating", "bookrating", "movierating", "reviewrating", "reviewscore"),
        *("starrating", "ratingvalue", "ratingscore"),
    ),
    "time": tuple(f"{moment}{unit}" for unit in _UNITS for moment in _MOMENTS),
    "id": ("id",),
    "title": ("title", "name", "movietitle", "itemtitle", "itemname"),
}
"""Column names that need no mapping, preferred names first, as `plain_column` writes them."""

Role = Literal["user", "item", "value", "time"]
ROLES: tuple[Role, ...] = ("user", "item", "value", "time")
"""The columns of an interactions file that are read; others are only its context."""

SURE_TIMES = ("time", "timestamp", "ts", "unixtime", "datetime", "date")
"""A column of such a name must hold times. One of another name is a time only if it looks so."""


def plain_column(name: str) -> str:
    """Return a column's name without case, spaces, `_`, `-` and `.`.

    >>> plain_column("Event_Time-ms")
    'eventtimems'
    """
    return re.sub("[ _.-]", "", name.casefold())


Became = Literal["user", "item", "value", "time", "context", "id", "title", "feature", "ignored"]

UNUSED_TIME = "no column is the time, so lines stay in the order of the file"
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


def looks_like_times(table: RawTable, name: str) -> bool:
    """Return whether at least half of the first values are dates or numbers of an epoch."""
    first = None if table.frame[name].dtype == pl.Duration else _first(table, name)
    if first is None or plain_column(name).endswith("id"):
        return False
    try:
        times, check = read_times(first, name)
    except DataError:
        return False
    is_time = ~check.mask
    if not times.dtype.is_temporal():
        is_time &= [time is not None and bool(_unit(float(time))) for time in times]
    return 2 * int(is_time.sum()) >= times.len()


def why_ignored(table: RawTable, name: str, found: Mapping[str, str]) -> str:
    """Return what an ignored column may be, and the option that would use it."""
    if is_empty(table.frame[name]):
        return "it is empty"
    return _may_be(table, name, found) or _as_context(table.frame[name])


def _may_be(table: RawTable, name: str, found: Mapping[str, str]) -> str:
    """Return the meaning that a column may have, or ""."""
    if looks_like_times(table, name):
        but = f", but {found['time']!r} is the time" if "time" in found else ""
        return f"it looks like a time{but}: {map_option('time', name)}"
    if "time" not in found and (unread := unread_time(table.frame[name])):
        return f"it {unread}"
    for ours in ROLES:
        if plain_column(name) in ALIASES[ours] and ours in found:
            return f"it may be the {ours}, but {found[ours]!r} is: {map_option(ours, name)}"
    if "value" not in found and _looks_like_ratings(table, name):
        return f"it may be a value, such as a rating: {map_option('value', name)}"
    if "value" not in found and _looks_like_ratings(replace(table, decimal=","), name):
        option = f"{map_option('value', name)} (--decimal , reads it)"
        return f"it may be a value, such as a rating: {option}"
    return ""


def _as_context(column: pl.Series) -> str:
    if not is_plain(column):
        return "it has no plain values"
    if _is_unlike(column):
        return "nearly each line has its own value"
    return f"--context {shlex.quote(column.name)} would use it"


def looks_like_titles(column: pl.Series) -> bool:
    """Return whether a column has words, and nearly each row its own: titles, not a feature."""
    first = column.head(_LOOKED_AT)
    if first.dtype != pl.String or 10 * first.n_unique() < 9 * first.len():
        return False
    return 2 * int(first.str.contains(r"\p{L}{2}").sum()) >= first.len()


def map_option(ours: str, name: str) -> str:
    """Return the option that gives a column a meaning, as a shell takes it."""
    return f"--map {shlex.quote(f'{ours}={name}')}"


def is_empty(column: pl.Series) -> bool:
    """Return whether a column has no value at all."""
    gone = column.is_null()
    return bool((gone | (column == "")).all() if column.dtype == pl.String else gone.all())


def unread_time(column: pl.Series) -> str:
    """Return what a column of text may be that has a name of times, or dates as 31.12.2023."""
    first = column.head(_LOOKED_AT).drop_nulls()
    if first.dtype != pl.String or first.is_empty():
        return ""
    is_date = first.str.contains(_DATE)
    if plain_column(column.name) not in ALIASES["time"] and 2 * int(is_date.sum()) < first.len():
        return ""
    if offer := dates_offer(first):
        return f"looks like a time: {map_option('time', column.name)} ({offer})"
    return (
        "may be a time, in a form that is not read: write dates as 2023-12-31, or as seconds since"
        " 1970"
    )


_DATE = r"^\s*(\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{4}[./]\d{1,2}[./]\d{1,2})\b"


def as_words(table: RawTable, name: str) -> str:
    """Return a warning of a feature whose numbers are read as words, or ""."""
    if table.decimal == "," or not has_commas(table.frame[name].head(_LOOKED_AT)):
        return ""
    offer = "(--decimal , reads a decimal comma)"
    return f"{name!r} has decimal commas, and so its numbers are read as words {offer}"


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


def _looks_like_ratings(table: RawTable, name: str) -> bool:
    first = _first(table, name)
    if first is None:
        return False
    try:
        numbers, check = read_numbers(first, name)
    except DataError:
        return False
    return not check.mask.any() and 1 < numbers.n_unique() <= min(_FEW_VALUES, numbers.len() - 1)


def _is_unlike(column: pl.Series) -> bool:
    """Return whether values hardly occur twice, as those of an id or a text: no use as context."""
    first = column.head(_LOOKED_AT).drop_nulls()
    first = first.explode() if first.dtype in (pl.List, pl.Array) else first
    return first.len() >= _FEW_VALUES and 2 * first.n_unique() > first.len()


def _first(table: RawTable, name: str) -> RawTable | None:
    """Return the first values of a column that are not empty, as a table; None without any."""
    first = table.frame[name].head(_LOOKED_AT).drop_nulls()
    first = first.filter(first != "") if first.dtype == pl.String else first
    return None if first.is_empty() else replace(table, frame=first.to_frame())
