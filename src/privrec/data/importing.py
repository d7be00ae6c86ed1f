"""Import of the user's own files into a data folder: the meaning of columns, and bad rows."""

import contextlib
import csv
import math
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from privrec.data.manifest import Manifest, Public
from privrec.data.rawfiles import BadRow, RawTable, read_raw
from privrec.data.rawvalues import (
    Check,
    read_feature,
    read_ids,
    read_numbers,
    read_times,
    read_title,
)
from privrec.data.tables import Tables, write_folder
from privrec.errors import DataError, SettingsError, nearest

ALIASES: dict[str, tuple[str, ...]] = {
    "user": ("user", "userid", "uid", "customerid", "memberid", "reviewerid", "visitorid"),
    "item": (
        *("item", "itemid", "iid", "movieid", "productid", "bookid", "isbn", "songid", "trackid"),
        *("artistid", "parentasin", "asin", "businessid", "articleid", "newsid", "appid"),
    ),
    "value": ("value", "rating", "score", "stars", "overall", "label"),
    "time": ("time", "timestamp", "ts", "unixtime", "datetime", "date"),
    "id": ("id",),
    "title": ("title", "name", "movietitle", "itemtitle", "itemname"),
}
"""Column names that need no mapping, preferred names first; case and `_` are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """The result of an import: the tables, the rows that were left out, and warnings."""

    tables: Tables
    skipped: list[BadRow]
    warnings: tuple[str, ...] = ()


def import_files(
    source: Path,
    *,
    mapping: Mapping[str, str],
    users: Path | None = None,
    items: Path | None = None,
    test: Path | None = None,
    positive_above: float | None = None,
    name: str | None = None,
    skip_bad: bool = False,
    context: Sequence[str] = (),
    encoding: str = "utf-8",
) -> ImportResult:
    """Return the tables of CSV, TSV, `::`-separated, Parquet or RecBole atomic files.

    `mapping` says which column is the user, item, value, time, id or title. Common names need no
    mapping. The columns of a file without a header are "1", "2", … and mean user, item, value,
    time. Other columns of `source` are used only if `context` names them. Other columns of `users`
    and `items` are features: multi-valued if values are separated by `|`, numeric if they are
    numbers with a decimal point. Without those files, the users and items of `source` are listed.
    An atomic `source` (its .inter file or its folder) includes the .user and .item files next to
    it.
    `test` has the same columns and holds lines to be tested; nothing but ids is read off it.

    The default of the threshold `positive_above` is 0 if there is no value; 0.5 if values are 0 or
    1; 3 for ratings up to 5 and 6 for ratings up to 10, in whole or half steps; else 0. The rule
    that fits at least half of the people is used, so one unusual rating cannot change it.

    A given `items` file counts as the public catalogue, a given `positive_above` as a public
    choice. Everything else is computed from the data and not declared public (docs/data.md).

    Raises:
        DataError: A bad row (with `skip_bad` they are left out and listed instead), a missing
            column or a file that cannot be read.
    """
    is_public = items is not None
    source, users, items = _with_siblings(source, users, items)
    _check_mapping(mapping, has_users=users is not None, has_items=items is not None)
    reader = _Reader(mapping=mapping, skip_bad=skip_bad, encoding=encoding, skipped=[])
    people = reader.entities(users, "user") if users else None
    things = reader.entities(items, "item") if items else None
    known = {"user": people, "item": things}
    lines = reader.interactions(source, context, known)
    asked = _alike(reader.interactions(test, context, known), lines, test, source) if test else None
    public = Public(items=is_public, threshold=positive_above is not None)
    above = _threshold(lines, positive_above, source)
    manifest = _manifest(lines, name=name or source.stem, positive_above=above, public=public)
    tables = Tables(
        manifest=manifest,
        interactions=lines,
        users=_listed("user", lines, asked) if people is None else people,
        items=_listed("item", lines, asked) if things is None else things,
        test=asked,
    )
    warnings = [] if people is None else _nearly_unique(people, people["id"])
    warnings += _nearly_unique(lines.select(manifest.context), lines["user"])
    return ImportResult(tables=tables, skipped=reader.skipped, warnings=tuple(warnings))


def write_import(result: ImportResult, folder: Path) -> None:
    """Write the data folder atomically, with `skipped.csv` if rows were left out."""
    folder = folder.resolve()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise DataError(f"{folder} is in the way: it exists and is not an empty folder")
    part = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        part.mkdir(parents=True)
        write_folder(result.tables, part)
        if result.skipped:
            with (part / "skipped.csv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([BadRow._fields, *result.skipped])
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()
        part.replace(folder)
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _with_siblings(
    source: Path, users: Path | None, items: Path | None
) -> tuple[Path, Path | None, Path | None]:
    if source.is_dir():
        found = sorted(source.glob("*.inter"))
        if len(found) != 1:
            names = ", ".join(path.name for path in found) or "none"
            raise DataError(
                f"{source} must hold one .inter file, or name the file itself; it holds {names}"
            )
        source = found[0]
    if source.suffix == ".inter":
        beside = {ending: source.with_suffix(ending) for ending in (".user", ".item")}
        users = users or (beside[".user"] if beside[".user"].is_file() else None)
        items = items or (beside[".item"] if beside[".item"].is_file() else None)
    return source, users, items


def _check_mapping(mapping: Mapping[str, str], *, has_users: bool, has_items: bool) -> None:
    for ours in mapping:
        if ours not in ALIASES:
            raise SettingsError(
                f"`--map` must name one of {', '.join(ALIASES)}; got {ours!r}"
                f"{nearest(ours, ALIASES)}"
            )
    if "title" in mapping and not has_items:
        raise SettingsError("`--map title=…` is about the items file, but none is given")
    if "id" in mapping and not (has_users or has_items):
        raise SettingsError("`--map id=…` is about the users and items files, but none is given")
    taken = [mapping[ours] for ours in ("user", "item", "value", "time") if ours in mapping]
    if twice := [theirs for theirs in taken if taken.count(theirs) > 1]:
        raise SettingsError(f"`--map` gives the column {twice[0]!r} two meanings")


def _manifest(lines: pl.DataFrame, *, name: str, positive_above: float, public: Public) -> Manifest:
    return Manifest(
        name=name,
        value="value" if "value" in lines.columns else None,
        time="time" if "time" in lines.columns else None,
        context=tuple(column for column in lines.columns if column not in _READ),
        positive_above=positive_above,
        population=secrets.token_hex(16),
        public=public,
    )


def _alike(asked: pl.DataFrame, lines: pl.DataFrame, test: Path, source: Path) -> pl.DataFrame:
    """Return the lines to be tested with the columns, and the kinds of columns, of the others."""
    if asked.columns != lines.columns:
        raise DataError(
            f"{test} must have the same columns as {source}: {', '.join(lines.columns)};"
            f" got {', '.join(asked.columns)}"
        )
    try:
        return asked.cast(lines.schema)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{test} must have the same kinds of columns as {source}") from error


def _listed(what: str, lines: pl.DataFrame, asked: pl.DataFrame | None) -> pl.DataFrame:
    """Return everybody or everything that has a line, those with a training line first."""
    ids = lines[what] if asked is None else pl.concat([lines[what], asked[what]])
    return ids.unique(maintain_order=True).to_frame("id")


def _threshold(lines: pl.DataFrame, given: float | None, source: Path) -> float:
    """Return the value above which a line is a like; raise if no line would be a like."""
    has_values = "value" in lines.columns
    found = given if given is not None else _found_threshold(lines) if has_values else 0.0
    if not math.isfinite(found):
        raise SettingsError(f"`positive_above` must be a finite number; got {given}")
    largest = float(lines["value"].to_numpy().max()) if has_values else 1.0
    if largest <= found:
        raise DataError(
            f"{source}: nobody likes anything, as no value is greater than positive_above ="
            f" {found:g}; the largest is {largest:g}"
        )
    return float(found)


def _found_threshold(lines: pl.DataFrame) -> float:
    """Return the threshold that fits the values of at least half of the people."""
    value = pl.col("value")
    people = lines.group_by("user").agg(
        binary=value.is_in([0.0, 1.0]).all(),
        steps=((value >= 0) & (value * 2 % 1 == 0)).all(),
        largest=value.max(),
    )

    def most(said: pl.Series) -> bool:
        return 2 * int(said.sum()) >= people.height

    if most(people["binary"]):
        return 0.5
    if most(people["steps"]):
        for threshold, top in ((3.0, 5), (6.0, 10)):
            if most(people["largest"] > threshold) and most(people["largest"] <= top):
                return threshold
    return 0.0


_TELLING = 5
"""A feature with fewer people per value, on average, gets a warning. Chosen by hand; not tuned."""


def _nearly_unique(frame: pl.DataFrame, owner: pl.Series) -> list[str]:
    """Return a warning for each categorical feature whose values nearly identify people."""
    found = []
    people = owner.n_unique()
    for column in frame.get_columns():
        if column.name in ("id", "title") or column.dtype.is_float():
            continue
        values = column.explode().n_unique() if column.dtype == pl.List else column.n_unique()
        if values * _TELLING > people > _TELLING:
            found.append(
                f"{column.name!r} has {values:,} values for {people:,} people: a value nearly"
                " names a person, and the list of values becomes part of every model; leave the"
                " column out, or make it coarser"
            )
    return found


_PLACES = {"user": "1", "item": "2", "value": "3", "time": "4", "id": "1"}
"""The meaning of the columns of a file without a header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """The settings that all files of an import share, and the list of rows left out so far."""

    mapping: Mapping[str, str]
    skip_bad: bool
    encoding: str
    skipped: list[BadRow]

    def entities(self, path: Path, what: Literal["user", "item"]) -> pl.DataFrame:
        """Return a users or items file as a table: `id`, `title` if it has one, and features."""
        table = read_raw(path, encoding=self.encoding)
        key = self._key(table, what)
        title = self._find(table, "title", taken={key}) if what == "item" else None
        ids, missing = read_ids(table, key)
        twice = Check(key, (~ids.is_first_distinct()).to_numpy(), "must not be there twice")
        columns, checks = [ids.alias("id")], [missing, twice]
        if title is not None:
            columns.append(read_title(table, title).alias("title"))
        for name in table.frame.columns:
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
        return self._without_bad(table, pl.DataFrame(columns), checks)

    def interactions(
        self, path: Path, context: Sequence[str], listed: Mapping[str, pl.DataFrame | None]
    ) -> pl.DataFrame:
        """Return the interactions file as a table of user, item, value, time and context."""
        table = read_raw(path, encoding=self.encoding)
        found = self._meanings(table, context)
        columns: list[pl.Series] = []
        checks: list[Check] = []
        for ours, theirs in found.items():
            column, check = _READ[ours](table, theirs)
            columns.append(column.alias(ours))
            checks.append(check)
            known = listed.get(ours)
            if known is not None:
                strange = (~column.is_in(known["id"].implode())).fill_null(value=False).to_numpy()
                checks.append(Check(theirs, strange, f"must be one of the {ours}s listed"))
        for name in context:
            features, more = read_feature(table, name, may_split=False)
            columns += features
            checks += more
        return self._without_bad(table, pl.DataFrame(columns), checks)

    def _meanings(self, table: RawTable, context: Sequence[str]) -> dict[str, str]:
        """Return which column of the file is the user, item, value and time."""
        roles = ("user", "item", "value", "time")
        taken = {*context, *(self.mapping[ours] for ours in roles if ours in self.mapping)}
        found: dict[str, str] = {}
        for ours in roles:
            theirs = self._find(table, ours, taken=taken)
            if theirs is not None:
                found[ours] = theirs
                taken.add(theirs)
            elif ours in ("user", "item"):
                raise DataError(_lacks(table, ours) + f"; say which it is with --map {ours}=…")
        for name in context:
            if name not in table.frame.columns:
                raise DataError(_lacks(table, name))
            if name in _READ or name in found.values() or context.count(name) > 1:
                raise SettingsError(
                    f"`--context` must name columns that are nothing else already; got {name!r}"
                )
        return found

    def _key(self, table: RawTable, what: Literal["user", "item"]) -> str:
        """Return the id column of a users or items file."""
        if table.has_header and "id" not in self.mapping:
            if self.mapping.get(what) in table.frame.columns:
                return self.mapping[what]
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
            re.sub("[ _-]", "", name.casefold()): name
            for name in reversed(table.frame.columns)
            if name not in taken
        }
        return next((plain[alias] for alias in ALIASES[ours] if alias in plain), None)

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
    return f"{table.file} has no column {name!r}{nearest(name, known)} (it has: {', '.join(known)})"
