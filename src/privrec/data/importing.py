"""Import of the user's own files into a data folder."""

import contextlib
import csv
import math
import os
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from privrec.data.columns import ROLES, USUAL_NAMES, Reader, Use
from privrec.data.manifest import Manifest, Public
from privrec.data.rawvalues import BadRow, RawTable, Table
from privrec.data.tables import Tables, in_order, write_folder
from privrec.errors import DataError, SettingsError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """The result of an import: the tables, the rows that were left out, and warnings.

    `uses` has the use of each column of each file.
    """

    tables: Tables
    skipped: list[BadRow]
    warnings: tuple[str, ...] = ()
    uses: tuple[Use, ...] = ()

    @property
    def likes(self) -> int:
        """The number of interactions that are likes."""
        manifest, lines = self.tables.manifest, self.tables.interactions
        if manifest.value is None:
            return lines.height
        value = lines[manifest.value].cast(pl.Float32).to_numpy()
        return int((value > manifest.positive_above).sum())

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        tables, manifest = self.tables, self.tables.manifest
        threshold_is = "given" if manifest.public.threshold else "found"
        return {
            "name": manifest.name,
            "people": tables.users.height,
            "items": tables.items.height,
            "people_without_lines": tables.users.height - tables.interactions["user"].n_unique(),
            "interactions": tables.interactions.height,
            "likes": self.likes,
            "interactions_to_test": None if tables.test is None else tables.test.height,
            "positive_above": None if manifest.value is None else manifest.positive_above,
            "positive_above_is": None if manifest.value is None else threshold_is,
            "has_times": manifest.time is not None,
            "columns": [asdict(use) for use in self.uses],
            "ignored": [use.column for use in self.uses if use.became == "ignored"],
            "skipped": len(self.skipped),
            "warnings": list(self.warnings),
        }


def import_files(
    source: Table,
    *,
    users: Table | None = None,
    items: Table | None = None,
    test: Table | None = None,
    positive_above: float | None = None,
    name: str | None = None,
    public_item_features: bool = False,
    **how: Any,
) -> ImportResult:
    """Return the tables of text files with separators, Parquet or RecBole files, or lists.

    `how` are fields of `Reader`: the meaning of columns, and the notation in files. Without `users`
    or `items`, the people or items are those that occur in `source` and `test`. For an atomic
    RecBole file (.inter) or its folder, the .user and .item files next to it are read too. `test`
    has lines for testing, in the form and columns of `source`; nothing but those two lists is
    computed from it. A given `items` file counts as the public catalogue, and a given
    `positive_above` as a public choice. `public_item_features` declares that no column of `items`
    was computed from people's data. Everything else is computed from the data and not declared
    public (docs/data.md).

    Raises:
        DataError: A bad row (unless `skip_bad`), a missing column or a file that cannot be read.
    """
    public = _declared(items, positive_above, item_features=public_item_features)
    source, users, items = _with_siblings(source, users, items)
    reader = Reader(**how)
    _check_files(reader, has_users=users is not None, has_items=items is not None)
    people = reader.entities(users, "user") if users else None
    things = reader.entities(items, "item") if items else None
    listed = {"user": people, "item": things}
    lines, form = reader.interactions(source, listed=listed, form=reader.form)
    asked = None
    if test:
        asked = reader.interactions(test, listed=listed, form=form)[0]
        asked = _alike(asked, lines, test, source)
    reader.check_ignored()
    tables = Tables(
        manifest=Manifest(
            name=name or Path(str(source)).name.partition(".")[0],
            value="value" if "value" in lines.columns else None,
            time="time" if "time" in lines.columns else None,
            context=tuple(column for column in lines.columns if column not in ROLES),
            positive_above=_threshold(lines, positive_above, source),
            population=secrets.token_hex(16),
            public=public,
        ),
        # A person with an empty list has one row without an item.
        interactions=lines.drop_nulls("item"),
        users=_listed("user", lines, asked) if people is None else people,
        items=in_order(_listed("item", lines, asked) if things is None else things),
        test=None if asked is None else asked.drop_nulls("item"),
    )
    return ImportResult(
        tables=tables,
        skipped=reader.skipped,
        warnings=tuple(reader.warnings + _warnings(tables)),
        uses=tuple(sorted(reader.uses, key=lambda use: use.file not in (str(source), str(test)))),
    )


def _declared(items: Table | None, positive_above: float | None, *, item_features: bool) -> Public:
    if item_features and items is None:
        raise SettingsError("`--public-item-features` is about the items file, but none is given")
    return Public(
        items=items is not None, item_features=item_features, threshold=positive_above is not None
    )


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
                rows = [BadRow._fields, *result.skipped]
                csv.writer(file).writerows(row[:_SKIPPED_COLUMNS] for row in rows)
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()
        part.replace(folder)
    except OSError as error:
        raise DataError(f"cannot write {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


_SKIPPED_COLUMNS = 5
"""The columns of skipped.csv: file, line, column, value, reason."""


def _with_siblings(
    source: Table, users: Table | None, items: Table | None
) -> tuple[Table, Table | None, Table | None]:
    if isinstance(source, RawTable):
        return source, users, items
    if source.is_dir():
        lines = sorted(source.glob("*.inter"))
        if len(lines) != 1:
            names = ", ".join(path.name for path in lines) or "none"
            raise DataError(
                f"{source} must hold one .inter file, or name the file itself; it holds {names}"
            )
        source = lines[0]
    if source.suffix == ".inter":
        beside = [source.with_suffix(ending) for ending in (".user", ".item")]
        users, items = (
            given or (path if path.is_file() else None)
            for given, path in zip((users, items), beside, strict=True)
        )
    return source, users, items


def _check_files(reader: Reader, *, has_users: bool, has_items: bool) -> None:
    mapping = reader.mapping
    for ours in mapping:
        if ours not in USUAL_NAMES:
            raise SettingsError(
                f"`--map` must name one of {', '.join(USUAL_NAMES)}; got {ours!r}"
                f"{nearest(ours, USUAL_NAMES)}"
            )
    if "title" in mapping and not has_items:
        raise SettingsError("`--map title=…` is about the items file, but none is given")
    if "id" in mapping and not (has_users or has_items):
        raise SettingsError("`--map id=…` is about the users and items files, but none is given")
    if reader.flags and not has_items:
        raise SettingsError("`--flags` is about the items file, but none is given")
    taken = [mapping[ours] for ours in ROLES if ours in mapping]
    if twice := [theirs for theirs in taken if taken.count(theirs) > 1]:
        roles = " and ".join(f"`{ours}`" for ours in mapping if mapping[ours] == twice[0])
        raise SettingsError(f"{roles} must be different columns; got {twice[0]!r}")


def _alike(asked: pl.DataFrame, lines: pl.DataFrame, test: Table, source: Table) -> pl.DataFrame:
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
    ids = lines[what] if asked is None else pl.concat([lines[what], asked[what]])
    return ids.drop_nulls().unique(maintain_order=True).to_frame("id")


def _threshold(lines: pl.DataFrame, given: float | None, source: Table) -> float:
    """Return the value above which a line is a like; raise if no line would be a like.

    This is the given threshold, or 0 if the lines have no values, or it is found from the values.
    """
    has_values = "value" in lines.columns
    threshold = given if given is not None else _usual_threshold(lines) if has_values else 0.0
    if not math.isfinite(threshold):
        raise SettingsError(f"`positive_above` must be a finite number; got {given}")
    largest = float(lines["value"].to_numpy().max()) if has_values else 1.0
    if largest <= threshold:
        raise DataError(
            f"{source}: nobody likes anything, as no value is greater than positive_above ="
            f" {threshold:g}; the largest is {largest:g}"
        )
    return float(threshold)


def _usual_threshold(lines: pl.DataFrame) -> float:
    """Return the threshold that fits the values of at least half of the people.

    It is 0.5 if values are 0 or 1. For ratings in whole or half steps, it is 3 for ratings up to 5,
    and 6 for ratings up to 10. Otherwise, it is 0. Each person counts once, so that a single
    unusual rating hardly matters.
    """
    value = pl.col("value")
    people = (
        lines.select(
            "user",
            "value",
            binary=value.is_in([0.0, 1.0]),
            steps=(value >= 0) & (value * 2 % 1 == 0),
        )
        .group_by("user")
        .agg(pl.col("binary", "steps").all(), largest=value.max())
    )

    largest = people["largest"]
    if _most(people["binary"]):
        return 0.5
    if _most(people["steps"]):
        for threshold, top in ((3.0, 5), (6.0, 10)):
            if _most(largest > threshold) and _most(largest <= top):
                return threshold
    return 0.0


def _most(answers: pl.Series) -> bool:
    return 2 * int(answers.sum()) >= answers.len()


def _warnings(tables: Tables) -> list[str]:
    return [*_repeated(tables), *_telling_features(tables), *_telling_ids(tables)]


def _repeated(tables: Tables) -> list[str]:
    """Return a warning about lines that occur twice, or both in training and in testing.

    Without a time, two equal lines may be two visits.
    """
    lines, asked, warnings = tables.interactions, tables.test, []
    if tables.manifest.time is None and asked is None:
        return []
    known = lines.hash_rows()  # Hashes take less memory than lines.
    if tables.manifest.time is not None and (twice := lines.height - known.n_unique()):
        warnings.append(
            f"{twice:,} of the {lines.height:,} lines are the same as another one, in every column"
            " that is used: each counts, and one may be on a device when the other is tested; keep"
            " one of each if they are one visit"
        )
    if asked is not None and (both := int(asked.hash_rows().is_in(known.implode()).sum())):
        warnings.append(
            f"{both:,} of the {asked.height:,} lines to be tested are also among those to train on"
        )
    return warnings


_TELLING = 5
"""A feature with fewer people per value than this, on average, gets a warning. Chosen by hand."""


def _telling_features(tables: Tables) -> list[str]:
    lines = tables.interactions
    return [
        f"{name!r} has {values:,} values for {people:,} people: a value nearly names a person, so"
        " it helps little, and the list of values becomes part of every model; make it coarser, or"
        " leave it out (--ignore)"
        for frame, people in (
            (tables.users, tables.users.height),
            (lines.select(tables.manifest.context), lines["user"].n_unique()),
        )
        for name, values in _value_counts(frame)
        if values * _TELLING > people > _TELLING
    ]


def _value_counts(frame: pl.DataFrame) -> list[tuple[str, int]]:
    """Return the number of values of each categorical feature; each entry of a list is a value."""
    return [
        (column.name, (column.explode() if column.dtype == pl.List else column).n_unique())
        for column in frame.drop("id", "title", strict=False).get_columns()
        if not column.dtype.is_float()
    ]


_FEWEST_ITEMS, _OFTEN, _SELDOM = 20, 0.5, 0.1
"""When to warn about items with neighbouring ids that first appear with the same person. There must
be at least `_FEWEST_ITEMS` items and a share of at least `_OFTEN` of such neighbours, where at most
`_SELDOM` is expected by chance. Chosen by hand."""


def _telling_ids(tables: Tables) -> list[str]:
    if tables.manifest.public.items:
        return []
    first = tables.interactions.unique("item", keep="first", maintain_order=True)
    owner = tables.items.join(
        first.select("user", id="item"), on="id", how="inner", maintain_order="left"
    )["user"]
    if owner.len() < _FEWEST_ITEMS:
        return []
    share = float((owner[1:] == owner[:-1]).mean())  # type: ignore[arg-type]
    chance = float((owner.value_counts()["count"] / owner.len()).pow(2).sum())
    if share < _OFTEN or chance > _SELDOM:
        return []
    warning = (
        f"items with neighbouring ids appear first with the same person in {share:.0%} of cases (by"
        f" chance {chance:.0%}): they seem to be numbered as people's lines came, so that ids tell"
        " who has what, in every model; give the items other ids"
    )
    return [warning]
