"""Text files with one line for each person: her number, then the numbers of her items."""

import re
from collections import Counter

import numpy as np
import polars as pl

from privrec.data.rawtable import BadRow, RawTable

_CELL = "[^ \t,]+"
_WHOLE = "^[0-9]+$"
_EMPTY = re.compile("[,\t][,\t]|[,\t]\\s*$")
_SAMPLE = 65536
"""How many characters decide whether a file is of this kind. Chosen by hand."""


def looks_like_lists(text: str) -> bool:
    """Return whether the first lines can be nothing but people and their items.

    All cells are whole numbers, no two lines begin with the same one, and no number of cells is
    that of more than half of the lines. A table of numbers with a few short rows is no such file.
    """
    widths = Counter(map(len, _rows_of_lists(text)))
    return bool(widths) and 2 * max(widths.values()) <= widths.total()


def may_be_lists(text: str) -> bool:
    """Return whether the first lines may be people and their items, or else a table."""
    return bool(_rows_of_lists(text))


def _rows_of_lists(text: str) -> list[list[str]]:
    """Return the cells of the first lines if they may be people and their items, else nothing."""
    lines = text[:_SAMPLE].split("\n")
    if any(_EMPTY.search(line) for line in lines):
        return []  # An empty cell is a missing value of a table.
    # The last line of the sample may be cut.
    rows = [re.findall(_CELL, line) for line in (lines[:-1] if len(text) > _SAMPLE else lines)]
    rows = [row for row in rows if row]
    if len(rows) < 2 or not all(re.match(_WHOLE, cell) for row in rows for cell in row):
        return []
    return rows if len({row[0] for row in rows}) == len(rows) else []


def split_lists(text: str, file: str) -> RawTable:
    """Return a row for each person and item; somebody without items has one row of item null.

    Spaces, tabs or commas separate the numbers. A line is bad if it has anything else than whole
    numbers, or if its person has had a line before.
    """
    lines = pl.Series("line", [text]).str.split("\n").explode()
    cells = lines.str.extract_all(_CELL)
    people = pl.DataFrame(
        {
            "line": np.arange(1, len(lines) + 1),
            "user": cells.list.first(),
            "item": cells.list.slice(1),
        }
    ).filter(pl.col("user").is_not_null())
    rows = people.explode("item", empty_as_null=True)
    strange = [
        rows.filter(~pl.col(name).str.contains(_WHOLE)).select("line", value=name)
        for name in ("user", "item")
    ]
    first = pl.concat(strange).unique("line", keep="first", maintain_order=True)
    again = people.filter(~pl.col("user").is_first_distinct())
    again = again.join(first, on="line", how="anti").select("line", value="user")
    bad = [
        BadRow(file, line, "", value, reason)
        for frame, reason in (
            (first, "must be whole numbers: a person, then her items"),
            (again, "must be the only line of its person"),
        )
        for line, value in frame.iter_rows()
    ]
    wrong = [row.line for row in bad]
    rows = rows.filter(~pl.col("line").is_in(wrong)) if wrong else rows
    return RawTable(
        file=file,
        frame=rows.select("user", "item"),
        lines=rows["line"].to_numpy(),
        has_header=True,
        types={},
        bad=tuple(sorted(bad, key=lambda row: row.line)),
        lists=True,
    )
