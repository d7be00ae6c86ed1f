"""JSON lines (one object on each line) and JSON lists of objects, as columns.

Text files with one line for each person: her number, then the numbers of her items.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import polars as pl

from privrec.data.rawvalues import BadRow, RawTable, Unit
from privrec.data.text import value_text
from privrec.errors import DataError

ENDINGS = (".jsonl", ".ndjson", ".json")
_LIST = re.compile(r"\s*\[\s*[\[{\]]")
_TWO_ON_A_LINE = re.compile(r"\}[ \t\r]*,[ \t\r]*\{")
_HALF = re.compile(r"\\ud", re.IGNORECASE)
_AT_A_TIME = 2**22
"""Characters that are Python objects at once, to bound memory. Chosen by hand."""
_MOST_KEYS = 1000
"""More different keys than this are no columns. Chosen by hand."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of a file: their numbers, what stands there, and what JSON makes of it.

    `has_halves` says that some text may have one half of a character that is written in two.
    """

    numbers: list[int]
    texts: list[str] | None
    found: list[object]
    has_halves: bool


def looks_like_json(text: str, name: str) -> bool:
    """Return whether a text is JSON: by its name's ending or its first characters."""
    if name.lower().endswith(ENDINGS):
        return True
    if _LIST.match(text):
        return True
    first = text.lstrip()[:65536].split("\n", 1)[0]
    return first.startswith("{") and isinstance(_parsed(first), dict)


def read_json(text: str, file: str) -> RawTable:
    """Return the objects as rows and their keys as columns, in the order in which keys appear.

    A key of an inner object is a column of its own: {"a": {"b": 1}} has the column "a.b". A column
    has the type of its values; numbers and texts together are text, and a list makes all values of
    its column lists. NaN is a missing value.
    """
    is_list = _LIST.match(text) is not None
    unit: Unit = "row" if is_list else "line"
    lines: list[int] = []
    bad: list[BadRow] = []
    parts: dict[str, list[pl.Series]] = {}
    nested: dict[str, list[int]] = {}
    for part in _list_part(text, file) if is_list else _line_parts(text):
        rows: list[Row] = []
        start = len(lines)
        for place, (number, entry) in enumerate(zip(part.numbers, part.found, strict=True)):
            row = _row(entry, has_halves=part.has_halves)
            if isinstance(row, str):
                shown = _shown(entry) if part.texts is None else part.texts[place]
                bad.append(BadRow(file, number, "", shown, row, unit))
            else:
                rows.append(row)
                lines.append(number)
        _add_columns(rows, parts, nested, start=start, file=file)
    if not lines and bad:
        raise DataError(str(bad[0]))
    columns = [_joined(name, series, len(lines)) for name, series in parts.items()]
    return RawTable(
        file=file,
        frame=pl.DataFrame(columns),
        lines=np.asarray(lines, np.int64),
        has_header=True,
        types={},
        bad=tuple(bad),
        is_text=False,
        unit=unit,
        nested={name: np.asarray(rows, np.int64) for name, rows in nested.items() if rows},
    )


def _parsed(text: str) -> object:
    """Return what a JSON text says, or an error: not JSON, too deep, or a number too long."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        return error


_DECODER = json.JSONDecoder(parse_constant=lambda name: None if name == "NaN" else float(name))


def _line_parts(text: str) -> Iterator[_Part]:
    """Yield the lines that are not empty, some at a time."""
    start, first = 0, 1
    while start < len(text):
        end = text.find("\n", start + _AT_A_TIME)
        end = len(text) if end < 0 else end
        lines = text[start:end].split("\n")
        numbers = [number for number, line in enumerate(lines, first) if line.strip()]
        texts = [lines[number - first].strip() for number in numbers]
        found = _all_parsed(texts) or [_parsed(line) for line in texts]
        has_halves = _HALF.search(text, start, end) is not None
        yield _Part(numbers, texts, found, has_halves)
        start, first = end + 1, first + len(lines)


def _all_parsed(lines: list[str]) -> list[object] | None:
    """Return the objects of lines that are one object each, or None.

    One call for all lines takes a third of the time. No line has two objects, so that as many
    objects as lines are one for each.
    """
    whole = ",\n".join(lines)
    found = None if _TWO_ON_A_LINE.search(whole) else _parsed(f"[{whole}]")
    if not isinstance(found, list) or len(found) != len(lines) or set(map(type, found)) - {dict}:
        return None
    return found


def _list_part(text: str, file: str) -> Iterator[_Part]:
    found = _parsed(text)
    if not isinstance(found, list):
        raise DataError(f"{file} is not a whole JSON list ({found})")
    numbers = list(range(1, len(found) + 1))
    yield _Part(numbers, None, found, _HALF.search(text) is not None)


def _row(found: object, *, has_halves: bool) -> Row | str:
    """Return an object with the keys of inner objects as its own, or what is wrong with it."""
    if not isinstance(found, dict):
        return "must be a JSON object on one line"
    if dict in map(type, found.values()):
        flat: Row = {}
        for key, value in _pairs(found, ""):
            if key in flat:
                return f"must have {key!r} once only"
            flat[key] = value
        found = flat
    # JSON allows one half of a character that is written in two halves. Nothing else does.
    return "must have whole characters" if has_halves and not _is_unicode(found) else found


def _pairs(found: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in found.items():
        if type(value) is dict:
            yield from _pairs(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _is_unicode(row: Row) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _add_columns(
    rows: list[Row],
    parts: dict[str, list[pl.Series]],
    nested: dict[str, list[int]],
    *,
    start: int,
    file: str,
) -> None:
    """Append a series for each column; one for a column that is new here fills the rows before."""
    names = list(dict.fromkeys([*parts, *dict.fromkeys(chain.from_iterable(rows))]))
    if len(names) > _MOST_KEYS:
        raise DataError(
            f"{file} has more than {_MOST_KEYS:,} different keys, such as {names[-1]!r}: a key must"
            " be the name of a column"
        )
    for name in names:
        cells = [row.get(name) for row in rows]
        kinds = set(map(type, cells))
        if list in kinds:
            nested.setdefault(name, []).extend(
                start + place
                for place, cell in enumerate(cells)
                if type(cell) is list and {dict, list} & set(map(type, cell))
            )
        before = [pl.Series(name, [None] * start)] if name not in parts and start else []
        parts.setdefault(name, before).append(_series(name, cells))


def _series(name: str, cells: list[Any]) -> pl.Series:
    kinds = set(map(type, cells)) - {type(None)}
    if list in kinds:
        lists = [cell if cell is None or type(cell) is list else [cell] for cell in cells]
        texts = [
            None if cell is None else [_shown(entry) for entry in cell if entry is not None]
            for cell in lists
        ]
        return pl.Series(name, texts, dtype=pl.List(pl.String))
    if not kinds or kinds in ({str}, {bool}):
        return pl.Series(name, cells)
    if kinds <= {int, float}:
        try:
            return pl.Series(name, cells, dtype=pl.Float64 if float in kinds else pl.Int64)
        except (OverflowError, TypeError):  # an integer that is too large for a column of numbers
            pass
    return pl.Series(name, [None if cell is None else _shown(cell) for cell in cells])


def _joined(name: str, parts: list[pl.Series], height: int) -> pl.Series:
    """Return the parts of a column as one, of a type that all of them can have."""
    kinds = {part.dtype for part in parts} - {pl.Null()}
    if len(kinds) > 1:
        if kinds == {pl.Int64(), pl.Float64()}:
            parts = [part.cast(pl.Float64) for part in parts]
        else:
            parts = [_series(name, [*part.to_list(), *_kind(kinds)])[:-1] for part in parts]
    elif kinds:
        parts = [part.cast(*kinds) for part in parts]
    return pl.concat(parts) if parts else pl.Series(name, [None] * height)


def _kind(kinds: set[pl.DataType]) -> list[Any]:
    """Return one value that makes a column text, or lists if one of its parts has lists."""
    return [[]] if pl.List(pl.String) in kinds else ["text"]


def _shown(value: object) -> str:
    return json.dumps(value) if isinstance(value, list | dict) else value_text(value)


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
