"""What a file's columns mean: user, item, value, time, id, title, features; and its bad rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import polars as pl

from privrec.data.columnnames import ALIASES, ROLES, SURE_TIMES, plain_column
from privrec.data.rawfiles import read_raw
from privrec.data.rawtable import BadRow, Form, RawTable, Table
from privrec.data.rawvalues import (
    Check,
    read_feature,
    read_ids,
    read_numbers,
    read_times,
    read_title,
)
from privrec.data.text import short
from privrec.data.uses import (
    UNREAD_TIME,
    UNUSED_TIME,
    Became,
    Use,
    feature_note,
    is_empty,
    is_unread_time,
    looks_like_times,
    map_option,
    time_note,
    why_chosen,
    why_ignored,
)
from privrec.errors import DataError, SettingsError, nearest

_PLACES = {"user": "1", "item": "2", "value": "3", "time": "4", "id": "1"}
"""The meaning of the columns of a file without a header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The settings that all files of an import share, and what was done so far.

    `skipped` has the rows left out, `uses` what became of each column, and `warnings` what may be
    wrong with the files.
    """

    mapping: Mapping[str, str]
    skip_bad: bool
    encoding: str
    skipped: list[BadRow] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def entities(self, path: Table, what: Literal["user", "item"]) -> pl.DataFrame:
        """Return a users or items file as a table: `id`, `title` if it has one, and features."""
        table = read_raw(path, encoding=self.encoding)
        key = self._key(table, what)
        title = self._find(table, "title", taken={key}) if what == "item" else None
        ids, missing = read_ids(table, key)
        twice = Check(key, (~ids.is_first_distinct()).to_numpy(), "must not be there twice")
        columns, checks = [ids.alias("id")], [missing, twice]
        if title is not None:
            columns.append(read_title(table, title).alias("title"))
        # The order of people's keys in a JSON file would tell what the first people have.
        names = sorted(table.frame.columns) if what == "user" else table.frame.columns
        for name in names:
            if name in (key, title):
                continue
            taken = {"id": key, "title": title}.get(name)
            if taken is not None:
                raise DataError(
                    f"{path}: the column {name!r} is in the way, as {taken!r} is read as {name};"
                    f" rename or remove one of them"
                )
            features, more = read_feature(table, name, may_split=True)
            columns += features
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
        context: Sequence[str],
        listed: Mapping[str, pl.DataFrame | None],
        form: Form,
    ) -> tuple[pl.DataFrame, Form]:
        """Return the interactions file as a table of user, item, value, time and context.

        And the form that the file has. Where it has a list for each person, the item is null for
        somebody whose list is empty.
        """
        table = read_raw(path, encoding=self.encoding, form=form)
        found = self._meanings(table, context)
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
        for name in context:
            features, more = read_feature(table, name, may_split=False)
            columns += features
            checks += more
        kept = self._without_bad(table, pl.DataFrame(columns), checks)
        self._note_interactions(table, found, kept, context)
        if table.lists and kept["item"].null_count() == kept.height:
            raise DataError(f"{path} has people but no items")
        return kept, "lists" if table.lists else "table"

    def told(self) -> tuple[Use, ...]:
        """Return what became of each column: first of interactions, then of people and items."""
        entities = [use.file for use in self.uses if use.became == "id"]
        return tuple(sorted(self.uses, key=lambda use: use.file in entities))

    def _note(
        self, table: RawTable, column: str, became: Became, *, why: str = "", note: str = ""
    ) -> None:
        use = Use(file=table.file, column=column, became=became, why=why, note=note)
        self.uses.append(use)

    def _note_interactions(
        self,
        table: RawTable,
        found: Mapping[str, str],
        kept: pl.DataFrame,
        context: Sequence[str],
    ) -> None:
        """Record what became of the columns of an interactions file."""
        for name in table.frame.columns:
            ours = next((ours for ours in ROLES if found.get(ours) == name), None)
            if ours is not None:
                note, warning = time_note(kept["time"]) if ours == "time" else ("", "")
                self.warnings.extend([f"{table.file}: {warning}"] if warning else [])
                why = why_chosen(table, ours, name, self.mapping.get(ours))
                self._note(table, name, ours, why=why, note=note)
            elif name in context:
                # Numbers with spaces between them become one column for each place.
                note = feature_note(kept[name]) if name in kept.columns else "numbers"
                self._note(table, name, "context", why="you said so", note=note)
            else:
                column = table.frame[name]
                self._note(table, name, "ignored", why=why_ignored(column, found))
                if "time" in found or is_empty(column):
                    continue
                if looks_like_times(column):
                    self.warnings.append(
                        f"{table.file}: {UNUSED_TIME}; {name!r} looks like one:"
                        f" {map_option('time', name)}"
                    )
                elif is_unread_time(column):
                    self.warnings.append(f"{table.file}: {UNUSED_TIME}; {name!r} {UNREAD_TIME}")

    def _meanings(self, table: RawTable, context: Sequence[str]) -> dict[str, str]:
        """Return which column of the file is the user, item, value and time."""
        taken = {*context, *(self.mapping[ours] for ours in ROLES if ours in self.mapping)}
        found: dict[str, str] = {}
        for ours in ROLES:
            theirs = self._find(table, ours, taken=taken)
            if theirs is not None:
                found[ours] = theirs
                taken.add(theirs)
            elif ours in ("user", "item"):
                hint = f"; say which it is with --map {ours}=…{_or_lists(table)}"
                raise DataError(_lacks(table, ours) + hint)
        for name in context:
            if name not in table.frame.columns:
                raise DataError(_lacks(table, name))
            if name in ROLES or name in found.values() or context.count(name) > 1:
                raise SettingsError(
                    f"`--context` must name columns that are nothing else already; got {name!r}"
                )
        return found

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
            place = _PLACES.get(ours)
            return place if place in table.frame.columns and place not in taken else None
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
            if name is not None and (is_sure or looks_like_times(table.frame[name])):
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


_READ = {"user": read_ids, "item": read_ids, "value": read_numbers, "time": read_times}


def _lacks(table: RawTable, name: str) -> str:
    known = table.frame.columns
    more = f" and {len(known) - _MOST_NAMES:,} more" if len(known) > _MOST_NAMES else ""
    has = ", ".join(short(one) for one in known[:_MOST_NAMES]) + more
    return f"{table.file} has no column {name!r}{nearest(name, known)} (it has: {has})"


_MOST_NAMES = 12
"""Columns that an error lists. Chosen by hand."""


def _or_lists(table: RawTable) -> str:
    """Return a hint if the file may have a list for each person, with spaces between items."""
    first = table.frame.row(0) if table.frame.height else ()
    shown = [*table.frame.columns, *map(str, first)]
    if table.frame.width > 1 or not any(" " in text for text in shown):
        return ""
    return ", or say --format lists if each line is a person and then her items"
