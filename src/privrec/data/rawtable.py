"""A file's columns as they were read, before a meaning is assigned to them, and its bad rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl

from privrec.data.text import value_text
from privrec.types import IntArray

Form = Literal["auto", "table", "lists"]
"""A file's form: a table of columns, or one line for each person with her items."""
Unit = Literal["line", "row"]
"""What a file is counted in: the lines of a text, or the rows of a table without lines."""
Dates = Literal["iso", "day-first", "month-first"]
"""How dates are written: 2023-12-31, or 31.12.2023, or 12/31/2023."""
Decimal = Literal[".", ","]
"""What stands before the decimals of a number."""
PARQUET = (".parquet", ".pq")


class BadRow(NamedTuple):
    """A row that cannot be used: its file and line, and what is wrong with it.

    `line` counts the lines of a text file, including the header, or the rows of a Parquet file or
    of a JSON list, both from 1, or the rows of a frame from 0. `column` is empty if the whole line
    is wrong.

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
    has none. `is_text` says that the columns have no types, as those of separated text. `nested`
    has the rows of a column that hold lists of lists or of objects. `decimal` and `dates` say how
    numbers and dates are written where they are text.
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
    nested: Mapping[str, IntArray] = field(default_factory=dict)
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
