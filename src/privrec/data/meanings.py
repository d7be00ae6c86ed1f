"""What a file's columns mean: user, item, value, time, id, title, features; and its bad rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
import polars as pl

from privrec.data.columns import (
    ALIASES,
    ROLES,
    SURE_TIMES,
    UNUSED_TIME,
    Became,
    Use,
    as_words,
    feature_note,
    is_empty,
    looks_like_times,
    looks_like_titles,
    map_option,
    plain_column,
    time_note,
    unread_time,
    why_chosen,
    why_ignored,
)
from privrec.data.rawfiles import read_raw
from privrec.data.rawvalues import (
    BadRow,
    Check,
    Dates,
    Decimal,
    Form,
    RawTable,
    Table,
    flag_columns,
    read_feature,
    read_flags,
    read_ids,
    read_numbers,
    read_times,
    read_title,
)
from privrec.data.text import short
from privrec.errors import DataError, SettingsError, nearest

_PLACES = {"user": "1", "item": "2", "value": "3", "time": "4", "id": "1", "title": "2"}
_PLACES_OF_ONE = {"item": "1", "value": "2", "time": "3", "id": "1", "title": "2"}
"""The meaning of the columns of a file without a header, and of one that is about one person."""
_FLAGS = 5
"""So many columns of 0 and 1 side by side are pointed out. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The settings that all files of an import share, and what was done so far.

    `mapping` says which column is the user, item, value, time, id or title. Common names need no
    mapping. The columns of a file without a header are "1", "2", … and mean user, item, value,
    time. Other columns of interactions are used only if `context` names them. Other columns of
    people and items are features: multi-valued if values are separated by `|`, numeric if they are
    numbers with a decimal point. `flags` makes one feature of items of columns that are 0 or 1:
    {"genres": "Action..Western"}. Columns in `ignore` are no features: of people or items, or of
    one of them as "users:zip" and "items:url". `user` is the only person of a file of interactions
    that has no user column.

    `decimal` and `dates` say how numbers and dates are written where they are text. A file of the
    form "lists" has one line for each person, her number and then her items'. `skip_bad` leaves
    rows out that cannot be used.

    `skipped` has the rows left out, `uses` what became of each column, and `warnings` what may be
    wrong with the files.
    """

    mapping: Mapping[str, str]
    context: Sequence[str] = ()
    skip_bad: bool = False
    encoding: str = "utf-8"
    form: Form = "auto"
    decimal: Decimal = "."
    dates: Dates = "iso"
    user: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    ignore: Sequence[str] = ()
    skipped: list[BadRow] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        _check_choice("--format", self.form, get_args(Form))
        _check_choice("--decimal", self.decimal, get_args(Decimal))
        _check_choice("--dates", self.dates, get_args(Dates))

    def entities(self, path: Table, what: Literal["user", "item"]) -> pl.DataFrame:
        """Return a users or items file as a table: `id`, `title` if it has one, and features."""
        table = self._without_ignored(self._read(path), what)
        key = self._key(table, what)
        title = self._find(table, "title", taken={key}) if what == "item" else None
        flags = self._flags(table, {key, title}) if what == "item" else {}
        ids, missing = read_ids(table, key)
        twice = Check(key, (~ids.is_first_distinct()).to_numpy(), "must not be there twice")
        columns, checks = [ids.alias("id")], [missing, twice]
        if title is not None:
            columns.append(read_title(table, title).alias("title"))
        # The order of people's keys in a JSON file would tell what the first people have.
        names = sorted(table.frame.columns) if what == "user" else table.frame.columns
        flagged = [name for span in flags.values() for name in span]
        for name in names:
            if name in (key, title, *flagged):
                continue
            taken = {"id": key, "title": title}.get(name)
            if taken is not None:
                raise DataError(
                    f"{path}: the column {name!r} is in the way, as {taken!r} is read as {name};"
                    f" rename or remove one of them"
                )
            self._warn(as_words(table, name))
            features, more = read_feature(table, name, may_split=True)
            columns += features
            checks += more
        for name, span in flags.items():
            values, more = read_flags(table, span)
            columns.append(values.alias(name))
            checks += more
        kept = self._without_bad(table, pl.DataFrame(columns), checks)
        said = self.mapping.get("id", self.mapping.get(what))
        self._note(table, key, "id", why=why_chosen(table, "id", key, said))
        if title is not None:
            why = why_chosen(table, "title", title, self.mapping.get("title"))
            self._note(table, title, "title", why=why)
        for feature in kept.drop("id", "title", strict=False).get_columns():
            self._note(table, feature.name, "feature", note=feature_note(feature))
        return kept

    def interactions(
        self,
        path: Table,
        *,
        listed: Mapping[str, pl.DataFrame | None],
        form: Form,
    ) -> tuple[pl.DataFrame, Form]:
        """Return the interactions file as a table of user, item, value, time and context.

        And the form that the file has. Where it has a list for each person, the item is null for
        somebody whose list is empty.
        """
        table = self._read(path, "table" if self.user and form == "auto" else form)
        found = self._meanings(table)
        columns: list[pl.Series] = []
        checks: list[Check] = []
        for ours, theirs in found.items():
            column, check = _READ[ours](table, theirs)
            columns.append(column.alias(ours))
            if not (table.lists and ours == "item"):
                checks.append(check)
            known = listed.get(ours)
            if known is not None:
                strange = (~column.is_in(known["id"].implode())).fill_null(value=False).to_numpy()
                checks.append(Check(theirs, strange, f"must be one of the {ours}s listed"))
        if self.user:
            columns.insert(0, pl.Series("user", [self.user] * table.frame.height))
        for name in self.context:
            self._warn(as_words(table, name))
            features, more = read_feature(table, name, may_split=False)
            columns += features
            checks += more
        kept = self._without_bad(table, pl.DataFrame(columns), checks)
        self._note_interactions(table, found, kept)
        if table.lists and kept["item"].null_count() == kept.height:
            raise DataError(f"{path} has people but no items")
        return kept, "lists" if table.lists else "table"

    def told(self) -> tuple[Use, ...]:
        """Return what became of each column: first of interactions, then of people and items."""
        entities = [use.file for use in self.uses if use.became == "id"]
        return tuple(sorted(self.uses, key=lambda use: use.file in entities))

    def check_ignored(self) -> None:
        """Raise if no file of people or items has a column that is to be left out."""
        left_out = [use.column for use in self.uses if use.became == "ignored"]
        for name in self.ignore:
            plain = name.removeprefix("users:").removeprefix("items:")
            if plain not in left_out:
                close = nearest(plain, {use.column for use in self.uses})
                raise DataError(f"no file of people or items has the column {plain!r}{close}")

    def _read(self, path: Table, form: Form = "table") -> RawTable:
        table = read_raw(path, encoding=self.encoding, form=form, decimal=self.decimal)
        return replace(table, decimal=self.decimal, dates=self.dates)

    def _without_ignored(self, table: RawTable, what: Literal["user", "item"]) -> RawTable:
        named = {name.removeprefix(f"{what}s:") for name in self.ignore}
        left_out = [name for name in table.frame.columns if name in named]
        for name in left_out:
            self._note(table, name, "ignored", why="you said so")
        return replace(table, frame=table.frame.drop(left_out))

    def _flags(self, table: RawTable, taken: set[str | None]) -> dict[str, list[str]]:
        """Return the columns of each feature of flags; warn of others that may be flags."""
        known = [name for name in table.frame.columns if name not in taken]
        run = [] if self.flags else flag_columns(table, known)
        if len(run) >= _FLAGS:
            self._warn(
                f"{table.file} has {len(run)} columns of 0 and 1, each a feature of its own"
                f" (--flags NAME={run[0]}..{run[-1]} makes one feature of them)"
            )
        return {name: _span(table, known, name, span) for name, span in self.flags.items()}

    def _warn(self, warning: str) -> None:
        self.warnings.extend([warning] if warning else [])

    def _note(
        self, table: RawTable, column: str, became: Became, *, why: str = "", note: str = ""
    ) -> None:
        use = Use(file=table.file, column=column, became=became, why=why, note=note)
        self.uses.append(use)

    def _note_interactions(
        self, table: RawTable, found: Mapping[str, str], kept: pl.DataFrame
    ) -> None:
        """Record what became of the columns of an interactions file."""
        for name in table.frame.columns:
            ours = next((ours for ours in ROLES if found.get(ours) == name), None)
            if ours is not None:
                note, warning = time_note(kept["time"]) if ours == "time" else ("", "")
                self._warn(f"{table.file}: {warning}" if warning else "")
                why = why_chosen(table, ours, name, self.mapping.get(ours))
                self._note(table, name, ours, why=why, note=note)
            elif name in self.context:
                # Numbers with spaces between them become one column for each place.
                note = feature_note(kept[name]) if name in kept.columns else "numbers"
                self._note(table, name, "context", why="you said so", note=note)
            else:
                column = table.frame[name]
                self._note(table, name, "ignored", why=why_ignored(table, name, found))
                if "time" in found or is_empty(column):
                    continue
                if looks_like_times(table, name):
                    self._warn(
                        f"{table.file}: {UNUSED_TIME}; {name!r} looks like a time:"
                        f" {map_option('time', name)}"
                    )
                elif unread := unread_time(column):
                    self._warn(f"{table.file}: {UNUSED_TIME}; {name!r} {unread}")

    def _meanings(self, table: RawTable) -> dict[str, str]:
        """Return which column of the file is the user, item, value and time."""
        context = self.context
        taken = {*context, *(self.mapping[ours] for ours in ROLES if ours in self.mapping)}
        found: dict[str, str] = {}
        for ours in ROLES[1:] if self.user else ROLES:
            theirs = self._find(table, ours, taken=taken)
            if theirs is not None:
                found[ours] = theirs
                taken.add(theirs)
        needed = ("item",) if self.user else ("user", "item")
        if missing := [ours for ours in needed if ours not in found]:
            options = " ".join(f"--map {ours}=…" for ours in missing)
            which = "which it is" if len(missing) == 1 else "which columns they are"
            lacks = _lacks(table, *missing)
            one = " (or --user NAME if all lines are of one person)" * ("user" in missing)
            raise DataError(f"{lacks}; say {which} with {options}{one}{_or_lists(table)}")
        if self.user:
            self._check_one_person(table)
        for name in context:
            if name not in table.frame.columns:
                raise DataError(_lacks(table, name))
            if name in ROLES or name in found.values() or context.count(name) > 1:
                raise SettingsError(
                    f"`--context` must name columns that are nothing else already; got {name!r}"
                )
        return found

    def _check_one_person(self, table: RawTable) -> None:
        """Raise if a file about one person has a column of several."""
        name = self._alias(table, "user", taken=set()) if table.has_header else None
        people = 1 if name is None else table.frame[name].drop_nulls().n_unique()
        if people > 1:
            raise DataError(
                f"{table.file}: {name!r} names {people:,} people; --user is for the file of one"
            )

    def _key(self, table: RawTable, what: Literal["user", "item"]) -> str:
        """Return the id column of a users or items file."""
        if table.has_header and "id" not in self.mapping:
            if self.mapping.get(what) in table.frame.columns:
                return self.mapping[what]
            if "id" in table.frame.columns:
                return "id"
            by_name = self._alias(table, what, taken=set())
            if by_name is not None:
                return by_name
        found = self._find(table, "id", taken=set())
        if found is None:
            raise DataError(_lacks(table, "id") + "; say which it is with --map id=…")
        return found

    def _find(self, table: RawTable, ours: str, *, taken: set[str]) -> str | None:
        """Return the column with this meaning: the mapped one, or one with a common name."""
        theirs = self.mapping.get(ours)
        if theirs is not None:
            if theirs not in table.frame.columns:
                raise DataError(_lacks(table, theirs))
            return theirs
        if not table.has_header:
            place = (_PLACES_OF_ONE if self.user else _PLACES)[ours]
            if place not in table.frame.columns or place in taken:
                return None
            return place if ours != "title" or looks_like_titles(table.frame[place]) else None
        return self._alias(table, ours, taken=taken)

    def _alias(self, table: RawTable, ours: str, *, taken: set[str]) -> str | None:
        plain = {
            plain_column(name): name for name in reversed(table.frame.columns) if name not in taken
        }
        for alias in ALIASES[ours]:
            name = plain.get(alias)
            if name is not None and ours in ("value", "time") and is_empty(table.frame[name]):
                continue
            is_sure = ours != "time" or alias in SURE_TIMES
            if name is not None and (is_sure or looks_like_times(table, name)):
                return name
        return None

    def _without_bad(
        self, table: RawTable, frame: pl.DataFrame, checks: Sequence[Check]
    ) -> pl.DataFrame:
        """Return the rows that pass all checks; raise for the first bad row, or list bad rows."""
        seen = np.zeros(frame.height, np.bool_)
        bad = list(table.bad)
        for check in checks:
            fresh = check.mask & ~seen
            seen |= check.mask
            # The error names one bad row: building messages for a million rows would be slow.
            rows = np.flatnonzero(fresh) if self.skip_bad else np.flatnonzero(fresh)[:1]
            bad += table.bad_rows(rows, check.column, check.reason)
        bad.sort(key=lambda row: row.line)
        if bad and not self.skip_bad:
            raise DataError(f"{bad[0]} (--skip-bad leaves such rows out)")
        self.skipped.extend(bad)
        kept = frame.filter(~seen) if seen.any() else frame
        if kept.height == 0:
            raise DataError(f"{table.file} has no row that can be used; the first: {bad[0]}")
        return kept


def _span(table: RawTable, known: list[str], name: str, span: str) -> list[str]:
    """Return the columns FIRST to LAST of a feature of flags."""
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


def _check_choice(option: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        names = f"one of {', '.join(allowed)}" if len(allowed) > 2 else " or ".join(allowed)
        raise SettingsError(f"`{option}` must be {names}; got {given!r}{nearest(given, allowed)}")


_READ = {"user": read_ids, "item": read_ids, "value": read_numbers, "time": read_times}


def _lacks(table: RawTable, *names: str) -> str:
    known = table.frame.columns
    more = f" and {len(known) - _MOST_NAMES:,} more" if len(known) > _MOST_NAMES else ""
    has = ", ".join(short(one) for one in known[:_MOST_NAMES]) + more
    wanted = " and no column ".join(map(repr, names))
    close = nearest(names[0], known) if len(names) == 1 else ""
    return f"{table.file} has no column {wanted}{close} (it has: {has})"


_MOST_NAMES = 12
"""Columns that an error lists. Chosen by hand."""


def _or_lists(table: RawTable) -> str:
    """Return a hint if the file may have a list for each person, with spaces between items."""
    first = table.frame.row(0) if table.frame.height else ()
    shown = [*table.frame.columns, *map(str, first)]
    if table.frame.width > 1 or not any(" " in text for text in shown):
        return ""
    return ", or say --format lists if each line is a person and then her items"
