"""A file's columns as they were read, before a meaning is assigned to them, and its bad rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl

from privrec.data.text import value_text
from privrec.types import IntArray

Form = Literal["auto", "table", "lists"]
"""A file's form: a table of columns, or one line for each person with her items."""
PARQUET = (".parquet", ".pq")
FRAMES = ("the frame", "the frame of users", "the frame of items", "the frame of test lines")
"""What stands for the name of a file where a table was given as a frame."""


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

    def __str__(self) -> str:
        unit = "row" if _has_types(self.file) else "line"
        column = f": {self.column!r}" if self.column else ""
        value = self.value if len(self.value) <= 80 else f"{self.value[:79]}…"
        return f"{self.file} {unit} {self.line}{column} {self.reason}; got {value!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawTable:
    """A file's columns under their original names, before a meaning is assigned to them.

    `lines` has the line of each row of `frame`. The columns of a text file are all text, without
    the spaces around a value; if it has no header they are called "1", "2", … . `types` has the
    types in an atomic file's header. `bad` has the rows that could not be split into columns.
    `lists` says that the file had one line for each person: then an item is null where somebody
    has none.
    """

    file: str
    frame: pl.DataFrame
    lines: IntArray
    has_header: bool
    types: Mapping[str, str]
    bad: tuple[BadRow, ...]
    lists: bool = False

    def __str__(self) -> str:
        return self.file

    @property
    def is_text(self) -> bool:
        """Whether the file is text, so that columns have no types."""
        return not _has_types(self.file)

    def bad_rows(self, rows: IntArray, column: str, reason: str) -> list[BadRow]:
        """Return what is wrong with the given rows."""
        values = self.frame[column]
        return [
            BadRow(self.file, int(self.lines[row]), column, _shown(values[int(row)]), reason)
            for row in rows
        ]


Table = Path | RawTable
"""A file, or a table that is in memory already."""


def _has_types(file: str) -> bool:
    return file.lower().endswith(PARQUET) or file in FRAMES


def _shown(value: object) -> str:
    return "" if value is None else value_text(value)
