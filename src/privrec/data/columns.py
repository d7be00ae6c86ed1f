"""The meaning of columns in an import's files: user, item, value, time, id, title, features."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import polars as pl

from privrec.data.rawfiles import read_raw
from privrec.data.rawvalues import (
    BadRow,
    Check,
    Dates,
    Decimal,
    Form,
    RawTable,
    Table,
    has_commas,
    read_feature,
    read_flags,
    read_ids,
    read_numbers,
    read_times,
    read_title,
)
from privrec.data.text import short
from privrec.errors import DataError, SettingsError, nearest, one_of

_PEOPLE = (
    "customer|member|reviewer|visitor|person|client|account|profile|player|subscriber|viewer"
    "|listener|reader|buyer|shopper"
)
_THINGS = (
    "movie|product|book|song|track|artist|business|article|news|app|film|game|video|show|recipe"
    "|poi|venue|place|location|hotel|restaurant|content|goods|podcast|anime|joke|course|beer|sku"
)
_ACTS = (
    "event|unix|epoch|created|creation|rating|review|unixreview|order|purchase|orderpurchase"
    "|checkin|interaction|invoice|transaction|click|play|start"
)
_DONE = (
    "created|occurred|logged|rated|watched|played|clicked|viewed|purchased|ordered|reviewed"
    "|visited|added|started"
)
_UNITS = "ms|millis|milliseconds|s|sec|seconds|us|micros|utc|unix"
_SURE_TIMES = ("time", "timestamp", "ts", "unixtime", "datetime", "date")
"""Names of columns that always mean a time. Columns with other names must also look like times."""
USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "user": ("user", "userid", "uid", f"({_PEOPLE})id", f"user(key|name|hash)|{_PEOPLE}"),
    "item": (
        *("item", "itemid", "iid", "movieid", "productid", "bookid", "isbn", "parentasin", "asin"),
        *(f"({_THINGS})id", f"(stock|product|item)code|productsku|{_THINGS}"),
    ),
    "value": (
        *("value", "rating", "score", "stars", "overall", "label"),
        "ratings|(user|book|movie|review|star)rating|reviewscore|rating(value|score)",
    ),
    "time": (
        *_SURE_TIMES,
        f"((({_ACTS})?({'|'.join(_SURE_TIMES)})|({_DONE})(at|on)|created|epoch)({_UNITS})?)",
    ),
    "id": ("id",),
    "title": ("title", "name", "movietitle", "itemtitle", "itemname"),
}
"""Patterns of column names that need no mapping, preferred ones first, for `plain_column`."""
_PLACES = {"user": "1", "item": "2", "value": "3", "time": "4", "id": "1", "title": "2"}
"""The position of each meaning in a file without a header."""
_LOOKED_AT = 1000
"""How many first rows decide the meaning of a column. Chosen by hand."""
SKIP_BAD = " (--skip-bad leaves such rows out)"
"""The end of an error message about a bad row."""
_MOST_NAMES = 12
"""The most columns that an error message lists. Chosen by hand."""

Role = Literal["user", "item", "value", "time"]
ROLES: tuple[Role, ...] = get_args(Role)
"""The meanings of columns in an interactions file. Other columns are read only as context."""
Became = Literal["user", "item", "value", "time", "context", "id", "title", "feature", "ignored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How one column was used; `note` gives the reason or describes the values."""

    file: str
    column: str
    became: Became
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The settings that all files of an import share, and a record of how their columns were used.

    `mapping` gives the column of each meaning: user, item, value, time, id or title. Common names
    need no mapping. The columns of a file without a header are named "1", "2", … and mean user,
    item, value, time. Other columns of interactions are used only if `context` names them; other
    columns of people and items are features. A feature is multi-valued if its values are separated
    by `|`, and numeric if its values are numbers with a decimal point. `flags` makes one feature of
    items from columns of 0 and 1: {"genres": "Action..Western"}. Columns in `ignore` are left out:
    "users:zip" of the people only, "items:url" of the items only.

    `decimal` and `dates` are the notations of numbers and dates in text. A file of the form "lists"
    has a line for each person: her number, then the numbers of her items. `skip_bad` leaves out
    rows that cannot be used. They are recorded in `skipped`, the use of each column in `uses`, and
    possible errors in the files in `warnings`.
    """

    mapping: Mapping[str, str]
    context: Sequence[str] = ()
    skip_bad: bool = False
    encoding: str = "utf-8"
    form: Form = "auto"
    decimal: Decimal = "."
    dates: Dates = "iso"
    flags: Mapping[str, str] = field(default_factory=dict)
    ignore: Sequence[str] = ()
    skipped: list[BadRow] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        choices = (("format", self.form, Form), ("decimal", self.decimal, Decimal))
        for option, given, kind in (*choices, ("dates", self.dates, Dates)):
            one_of(f"--{option}", given, get_args(kind))

    def entities(self, path: Table, what: Literal["user", "item"]) -> pl.DataFrame:
        """Return a users or items file as a table of `id`, features, and any `title`."""
        table = self._read(path, "table")
        ignored = {name.removeprefix(f"{what}s:") for name in self.ignore}
        left_out = [name for name in table.frame.columns if name in ignored]
        for name in left_out:
            self._note(table, name, "ignored", "you said so")
        table = replace(table, frame=table.frame.drop(left_out))
        key = self._key(table, what)
        title = self._find(table, "title", taken={key}) if what == "item" else None
        ids, missing = read_ids(table, key)
        twice = Check(key, (~ids.is_first_distinct()).to_numpy(), "must not be there twice")
        columns, checks = [ids.alias("id")], [missing, twice]
        self._note(table, key, "id", self._how_chosen(table, "id", key))
        if title is not None:
            columns.append(read_title(table, title).alias("title"))
            self._note(table, title, "title", self._how_chosen(table, "title", title))
        known = [name for name in table.frame.columns if name not in (key, title)]
        for ours, theirs in (("id", key), ("title", title)):
            if theirs is not None and ours in known:
                raise DataError(
                    f"{path}: the column {ours!r} is in the way, as {theirs!r} is read as {ours};"
                    " rename or remove one of them"
                )
        spans = {
            name: _span(table, known, name, span)
            for name, span in (self.flags if what == "item" else {}).items()
        }
        flagged = [name for span in spans.values() for name in span]
        # If the columns were computed from people's records, their order could be that of one
        # person's. So they are sorted.
        for name in sorted(known) if what == "user" else known:
            if name not in flagged:
                feature, check = self._feature(table, name, may_split=True)
                columns.append(feature)
                checks.append(check)
        for name, span in spans.items():
            values, more = read_flags(table, span)
            columns.append(values.alias(name))
            checks += more
        kept = self._without_bad(table, pl.DataFrame(columns), checks)
        for feature in kept.drop("id", "title", strict=False).get_columns():
            self._note(table, feature.name, "feature", _kind(feature))
        return kept

    def interactions(
        self, path: Table, *, listed: Mapping[str, pl.DataFrame | None], form: Form
    ) -> tuple[pl.DataFrame, Form]:
        """Return the interactions as a table of user, item, value, time and context, and the form.

        In the form "lists", a person with an empty list has one row whose item is null.
        """
        table = self._read(path, form)
        meanings = self._meanings(table)
        columns: list[pl.Series] = []
        checks: list[Check] = []
        for ours, theirs in meanings.items():
            column, check = _READ[ours](table, theirs)
            columns.append(column.alias(ours))
            if not (table.lists and ours == "item"):
                checks.append(check)
            known = listed.get(ours)
            if known is not None:
                strange = (~column.is_in(known["id"].implode())).fill_null(value=False).to_numpy()
                checks.append(Check(theirs, strange, f"must be one of the {ours}s listed"))
        for name in self.context:
            column, check = self._feature(table, name, may_split=False)
            columns.append(column)
            checks.append(check)
        kept = self._without_bad(table, pl.DataFrame(columns), checks)
        self._note_interactions(table, meanings, kept)
        if table.lists and kept["item"].null_count() == kept.height:
            raise DataError(f"{path} has people but no items")
        if table.lists and form == "auto":
            self.warnings.append(
                f"{Path(table.file).name} was read as one line a person (--format table reads it as"
                " columns)"
            )
        return kept, "lists" if table.lists else "table"

    def check_ignored(self) -> None:
        """Raise if a column of `ignore` is in no file of people or items."""
        left_out = [use.column for use in self.uses if use.became == "ignored"]
        for name in self.ignore:
            plain = name.removeprefix("users:").removeprefix("items:")
            if plain not in left_out:
                close = nearest(plain, {use.column for use in self.uses})
                raise DataError(f"no file of people or items has the column {plain!r}{close}")

    def _read(self, path: Table, form: Form) -> RawTable:
        table = read_raw(path, encoding=self.encoding, form=form, decimal=self.decimal)
        return replace(table, decimal=self.decimal, dates=self.dates)

    def _note(self, table: RawTable, column: str, became: Became, note: str) -> None:
        self.uses.append(Use(file=table.file, column=column, became=became, note=note))

    def _how_chosen(self, table: RawTable, ours: str, theirs: str) -> str:
        if self.mapping.get(ours) == theirs:
            return "you said so"
        return "its name" if table.has_header and not table.lists else "its place"

    def _feature(self, table: RawTable, name: str, *, may_split: bool) -> tuple[pl.Series, Check]:
        if self.decimal == "." and has_commas(table.frame[name].head(_LOOKED_AT)):
            self.warnings.append(
                f"{name!r} has decimal commas, and so its numbers are read as words"
                " (--decimal , reads a decimal comma)"
            )
        return read_feature(table, name, may_split=may_split)

    def _note_interactions(
        self, table: RawTable, meanings: Mapping[Role, str], kept: pl.DataFrame
    ) -> None:
        roles = {theirs: ours for ours, theirs in meanings.items()}
        for name in table.frame.columns:
            if ours := roles.get(name):
                note = self._how_chosen(table, ours, name)
                if ours == "time":
                    note += f"; {kept['time'].min()!s} to {kept['time'].max()!s}"
                self._note(table, name, ours, note)
            elif name in self.context:
                self._note(table, name, "context", f"you said so; {_kind(kept[name])}")
            else:
                self._note(table, name, "ignored", "empty" if _is_empty(table.frame[name]) else "")
                ways = [replace(table, dates=dates) for dates in get_args(Dates)]
                if "time" not in meanings and any(_looks_like_times(way, name) for way in ways):
                    self.warnings.append(
                        f"{table.file}: no column is the time, so lines stay in the order of the"
                        f" file; {name!r} looks like a time (--map time=…)"
                    )

    def _meanings(self, table: RawTable) -> dict[Role, str]:
        context = self.context
        taken = {*context, *(self.mapping[ours] for ours in ROLES if ours in self.mapping)}
        meanings: dict[Role, str] = {}
        for ours in ROLES:
            theirs = self._find(table, ours, taken=taken)
            if theirs is not None:
                meanings[ours] = theirs
                taken.add(theirs)
        if missing := [ours for ours in ROLES[:2] if ours not in meanings]:
            options = " ".join(f"--map {ours}=…" for ours in missing)
            lists = ", or --format lists if a line is a person and her items"
            options += lists if table.frame.width == 1 else ""
            raise DataError(f"{_lacks(table, *missing)} (say which it is with {options})")
        for name in context:
            if name not in table.frame.columns:
                raise DataError(_lacks(table, name))
            if name in ROLES or name in meanings.values() or context.count(name) > 1:
                raise SettingsError(
                    f"`--context` must name columns that are nothing else already; got {name!r}"
                )
        return meanings

    def _key(self, table: RawTable, what: Literal["user", "item"]) -> str:
        if table.has_header and "id" not in self.mapping:
            if self.mapping.get(what) in table.frame.columns:
                return self.mapping[what]
            if "id" in table.frame.columns:
                return "id"
            by_name = _by_name(table, what, taken=set())
            if by_name is not None:
                return by_name
        key = self._find(table, "id", taken=set())
        if key is None:
            raise DataError(f"{_lacks(table, 'id')} (say which it is with --map id=…)")
        return key

    def _find(self, table: RawTable, ours: str, *, taken: set[str]) -> str | None:
        theirs = self.mapping.get(ours)
        if theirs is not None:
            if theirs not in table.frame.columns:
                raise DataError(_lacks(table, theirs))
            return theirs
        if table.has_header:
            return _by_name(table, ours, taken=taken)
        place = _PLACES[ours]
        if place not in table.frame.columns or place in taken:
            return None
        return place if ours != "title" or _looks_like_titles(table.frame[place]) else None

    def _without_bad(
        self, table: RawTable, frame: pl.DataFrame, checks: Sequence[Check]
    ) -> pl.DataFrame:
        """Return the rows that pass all checks. Record bad rows, or raise for the first one."""
        is_bad = np.zeros(frame.height, np.bool_)
        bad = list(table.bad)
        for check in checks:
            fresh = np.flatnonzero(check.mask & ~is_bad)
            is_bad |= check.mask
            # A million messages would be slow, and only the first one is shown.
            bad += table.bad_rows(fresh if self.skip_bad else fresh[:1], check.column, check.reason)
        bad.sort(key=lambda row: row.line)
        if bad and not self.skip_bad:
            raise DataError(f"{bad[0]}{SKIP_BAD}")
        self.skipped.extend(bad)
        kept = frame.filter(~is_bad) if is_bad.any() else frame
        if kept.height == 0:
            raise DataError(f"{table.file} has no row that can be used; the first: {bad[0]}")
        return kept


_READ = {"user": read_ids, "item": read_ids, "value": read_numbers, "time": read_times}


def plain_column(name: str) -> str:
    """Return a column's name without case, spaces, `_`, `-` and `.`.

    >>> plain_column("Event_Time-ms")
    'eventtimems'
    """
    return re.sub("[ _.-]", "", name.casefold())


def _by_name(table: RawTable, ours: str, *, taken: set[str]) -> str | None:
    free = [name for name in table.frame.columns if name not in taken]
    for pattern in USUAL_NAMES[ours]:
        for name in free:
            if not re.fullmatch(pattern, plain_column(name)):
                continue
            if ours in ("value", "time") and _is_empty(table.frame[name]):
                continue
            if ours != "time" or pattern in _SURE_TIMES or _looks_like_times(table, name):
                return name
    return None


def _kind(column: pl.Series) -> str:
    if column.null_count() == column.len():
        return "empty"
    if column.dtype.is_float():
        return "numeric"
    is_list = column.dtype in (pl.List, pl.Array)
    values = (column.explode() if is_list else column).drop_nulls().n_unique()
    return f"{'multi-valued' if is_list else 'categorical'}, {values:,} values"


def _is_empty(column: pl.Series) -> bool:
    gone = column.is_null()
    return bool((gone | (column == "")).all() if column.dtype == pl.String else gone.all())


_YEAR = 365.25 * 86400


def _looks_like_times(table: RawTable, name: str) -> bool:
    """Return whether at least half of the first values are dates, or numbers that may be times.

    Such a number counts s, ms, µs or ns since 1970 and means a time from 1985 to 2061.
    """
    first = table.frame[name].head(_LOOKED_AT).drop_nulls()
    first = first.filter(first != "") if first.dtype == pl.String else first
    if first.is_empty() or first.dtype == pl.Duration or plain_column(name).endswith("id"):
        return False
    try:
        times, check = read_times(replace(table, frame=first.to_frame()), name)
    except DataError:
        return False
    is_time = ~check.mask
    if not times.dtype.is_temporal():
        numbers = times.cast(pl.Float64).fill_null(0.0).to_numpy()
        seconds = [numbers / unit for unit in (1, 10**3, 10**6, 10**9)]
        is_time &= np.any([(part >= 15 * _YEAR) & (part <= 91 * _YEAR) for part in seconds], axis=0)
    return 2 * int(is_time.sum()) >= times.len()


def _looks_like_titles(column: pl.Series) -> bool:
    """Return whether a column is text that differs in nearly all rows, as titles do."""
    first = column.head(_LOOKED_AT)
    if first.dtype != pl.String or 10 * first.n_unique() < 9 * first.len():
        return False
    return 2 * int(first.str.contains(r"\p{L}{2}").sum()) >= first.len()


def _span(table: RawTable, known: list[str], name: str, span: str) -> list[str]:
    """Return the columns from FIRST to LAST that form one feature of flags."""
    ends = span.split("..")
    for end in ends:
        if len(ends) == 2 and end not in known:
            raise DataError(_lacks(table, end))
    columns = known[known.index(ends[0]) : known.index(ends[1]) + 1] if len(ends) == 2 else []
    if not columns:
        raise SettingsError(f"`--flags` must be NAME=FIRST..LAST; got '{name}={span}'")
    if name in ("id", "title") or name in {*table.frame.columns}.difference(columns):
        raise SettingsError(f"`--flags` must have a new name; got {name!r}")
    return columns


def _lacks(table: RawTable, *names: str) -> str:
    known = table.frame.columns
    more = f" and {len(known) - _MOST_NAMES:,} more" if len(known) > _MOST_NAMES else ""
    has = ", ".join(short(name) for name in known[:_MOST_NAMES]) + more
    wanted = " and no column ".join(map(repr, names))
    close = nearest(names[0], known) if len(names) == 1 else ""
    return f"{table.file} has no column {wanted}{close} (it has: {has})"
