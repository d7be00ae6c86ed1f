"""Reading the files of an import into columns: text with separators, RecBole, Parquet and lists.

Polars reads Parquet, and text whose lines all have the same number of fields. The functions below
split other text: polars would fill short lines without an error, and its errors name no line.
"""

import contextlib
import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import polars as pl

from privrec.data.rawvalues import BadRow, Decimal, Form, RawTable, Table
from privrec.data.unpack import read_bytes
from privrec.errors import DataError
from privrec.types import IntArray

ATOMIC_TYPES = ("token", "token_seq", "float", "float_seq")
_ATOMIC = (".inter", ".user", ".item")
_JSON = (".jsonl", ".ndjson", ".json")


def read_raw(
    source: Table, *, encoding: str = "utf-8", form: Form = "table", decimal: Decimal = "."
) -> RawTable:
    """Return the columns of a file; a `RawTable` is returned unchanged.

    The separator of a text file is detected from its first lines. The first line is the header,
    unless it contains a number or a date. The form "auto" detects whether a text file has columns
    or lists.
    """
    if isinstance(source, RawTable):
        table = source
    elif source.is_dir():
        raise DataError(f"{source} is a folder; name the file in it")
    else:
        name, raw = read_bytes(source)
        is_parquet = raw.startswith(b"PAR1") or name.lower().endswith((".parquet", ".pq"))
        if form == "lists" and (is_parquet or name.endswith(_ATOMIC)):
            raise DataError(f"{source} has columns, by its name: --format lists cannot read it")
        if is_parquet:
            table = _read_parquet(raw, str(source))
        else:
            text = _decode(raw, encoding, str(source))
            del raw  # The bytes take as much memory as `text`.
            table = _read_text(text, name, form, decimal, str(source))
    if table.frame.height == 0 and not table.bad:
        rows = "a header but no rows" if table.is_text else "no rows"
        raise DataError(f"{table.file} has {rows}")
    return table


def _read_parquet(raw: bytes, file: str) -> RawTable:
    try:
        frame = pl.read_parquet(io.BytesIO(raw))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"cannot read {file}: it is not a whole Parquet file") from error
    return RawTable(file=file, frame=frame, lines=np.arange(1, frame.height + 1), is_text=False)


def _decode(raw: bytes, encoding: str, file: str) -> str:
    advice = "save the file as UTF-8, or say --encoding cp1252 (Excel on Windows) or latin-1"
    try:
        text = raw.decode(encoding)
    except LookupError as error:
        raise DataError(
            f"`encoding` must be one that Python knows, such as 'utf-8' or 'latin-1';"
            f" got {encoding!r}"
        ) from error
    except UnicodeDecodeError as error:
        start = raw.rfind(b"\n", 0, error.start) + 1
        line = raw[start:].partition(b"\n")[0].decode(encoding, errors="replace")
        place = BadRow(file, raw.count(b"\n", 0, start) + 1, "", line, f"is not {encoding}")
        raise DataError(f"{place} ({advice})") from error
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    text = text if "\n" in text else text.replace("\r", "\n")
    if "\0" in _first_line(text):  # This is UTF-16 that was read as UTF-8.
        raise DataError(f"{file} line 1 is not {encoding} ({advice})")
    if not text or text.isspace():
        raise DataError(f"{file} is empty")
    return text


def _first_line(text: str) -> str:
    return text[: text.find("\n")] if "\n" in text else text


def _read_text(text: str, name: str, form: Form, decimal: Decimal, file: str) -> RawTable:
    if name.lower().endswith(_JSON) or text.lstrip().startswith(('{"', "[{")):
        raise DataError(
            f"{file} is JSON, which is not read: use CSV or Parquet, or a frame in Python"
        )
    # MovieLens-100K has files u.user and u.item that are not RecBole files.
    atomic = name.endswith(_ATOMIC) and "|" not in _first_line(text)
    if form == "lists" or (form == "auto" and not atomic and looks_like_lists(text)):
        return split_lists(text, file)
    separator = "\t" if atomic else _sniff(text, decimal)
    if separator == " ":
        if form == "auto" and _rows_of_lists(text):
            raise DataError(
                f"{file} may have columns with spaces between them, or a line for each person with"
                " her items: say --format table or --format lists"
            )
        text = re.sub("^ | $", "", re.sub(" {2,}", " ", text), flags=re.MULTILINE)
    fields = _split(text, separator, file, quoted=not atomic and separator != "::")
    first = [str(field) for field in fields.frame.row(0)]
    has_header = atomic or not any(_NUMBER.fullmatch(field) for field in first)
    types = _atomic_types(first, file) if atomic else {}
    names = [str(place) for place in range(1, len(first) + 1)]
    if has_header:
        titles = [field.rpartition(":")[0] for field in first] if atomic else first
        names = [title or place for title, place in zip(titles, names, strict=True)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{file} has the column {twice[0]!r} more than once")
    start = 1 if has_header else 0
    frame = fields.frame[start:]
    frame.columns = names
    return RawTable(
        file=file,
        frame=frame,
        lines=fields.lines[start:],
        has_header=has_header,
        types=types,
        bad=tuple(fields.bad),
    )


_NUMBER = re.compile(
    r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?|\d{1,4}[./-]\d{1,2}[./-]\d{1,4}([ T].*)?"
)


def _atomic_types(header: list[str], file: str) -> dict[str, str]:
    types: dict[str, str] = {}
    for field in header:
        name, _, kind = field.rpartition(":")
        if not name or kind not in ATOMIC_TYPES:
            raise DataError(
                f"{file} line 1: a column must be name:type with a type of"
                f" {', '.join(ATOMIC_TYPES)}; got {field!r}"
            )
        types[name] = kind
    return types


def _sniff(text: str, decimal: Decimal) -> str:
    """Return the separator of the fields, detected from the first lines; "," if there is none.

    A separator should occur as often in the first line as in at least half of the lines. Of
    several, `::` and tabs come first, spaces and the decimal comma last. Text can contain spaces:
    with a decimal point, a space separates only if no other separator occurs and at least half of
    the lines have a number.
    """
    sample = re.sub(r'"[^"\n]*"', "quoted", text[:65536]).split("\n")[:50]
    sample = [re.sub(" {2,}", " ", line.strip(" ")) for line in sample if line.strip()]
    counts = {name: sample[0].count(name) for name in ("::", "\t", ";", ",", "|", " ")}
    fits = {
        name: sum(line.count(name) == count for line in sample) / len(sample)
        for name, count in counts.items()
    }
    present = [name for name, count in counts.items() if count]
    numbered = sum(any(map(_NUMBER.fullmatch, line.split())) for line in sample)
    alone = present == [" "] and 2 * numbered >= len(sample)
    if " " in present and (fits[" "] < 0.5 or (decimal == "." and not alone)):
        present.remove(" ")
    return max(
        present or [","],
        key=lambda name: (
            fits[name] >= 0.5,
            name in ("::", "\t"),
            name not in (decimal, " "),
            fits[name],
            name != "|",
            counts[name],
        ),
    )


class _Fields(NamedTuple):
    """The fields of a text file, including a header, and the number of each row's line."""

    frame: pl.DataFrame
    lines: IntArray
    bad: list[BadRow]


def _split(text: str, separator: str, file: str, *, quoted: bool) -> _Fields:
    quoted = quoted and '"' in text
    fields = _split_even(text, separator, quoted=quoted)
    if fields is None and quoted:
        try:
            fields = _split_quoted(text, separator, file)
        except DataError:
            # Many tab-separated files use quotes as ordinary characters.
            if separator != "\t":
                raise
    return fields or _split_lines(text, separator, file)


_RARE = "\x1f"
"""The ASCII unit separator. It replaces `::`, because polars takes separators of one character
only."""


def _split_even(text: str, separator: str, *, quoted: bool) -> _Fields | None:
    """Return the fields, or None if lines have different numbers of fields or quotes need a parser.

    This needs a fraction of the time and memory of `_split_lines` and `_split_quoted`.
    """
    if not text.endswith("\n") or text.endswith("\n\n"):
        text = text.rstrip("\n") + "\n"
    lines, width = text.count("\n"), _first_line(text).count(separator) + 1
    # Polars would remove a \r before the end of a line as a part of the line end.
    if width == 1 or "\r" in text or text.count(separator) != lines * (width - 1):
        return None
    if len(separator) > 1:
        if _RARE in text:
            return None
        text, separator = text.replace(separator, _RARE), _RARE
    try:
        frame = pl.read_csv(
            text.encode(),
            separator=separator,
            has_header=False,
            quote_char=None,
            schema={f"field_{place}": pl.String for place in range(width)},
        )
    except (pl.exceptions.PolarsError, UnicodeEncodeError):
        return None
    if frame.height != lines:
        return None
    # Polars raises for a line with too many fields, and all lines together have the right number of
    # separators. So no line has too few fields either, and a null is an empty field.
    frame = frame.fill_null("") if any(frame.null_count().row(0)) else frame
    if quoted:
        plain = pl.all().str.contains(r'^("[^"]*"|[^"]*)$').all()
        if not all(frame.select(plain).row(0)):
            return None
        frame = frame.select(pl.all().str.strip_chars('"'))
    around = (f" {separator}", f"{separator} ", "\n ", " \n", '" ', ' "')
    if text.startswith(" ") or any(spaced in text for spaced in around):
        frame = frame.select(pl.all().str.strip_chars(" "))
    return _Fields(frame, np.arange(1, lines + 1), [])


def _split_lines(text: str, separator: str, file: str) -> _Fields:
    """Return the fields of a text in which quotes are ordinary characters."""
    lines = pl.Series("line", [text.rstrip("\n")]).str.split("\n").explode()
    filled = (lines.str.strip_chars(" ") != "").to_numpy()
    width = lines[int(np.flatnonzero(filled)[0])].count(separator) + 1
    frame = lines.str.split_exact(separator, width).struct.unnest()
    whole = (frame[:, width - 1].is_not_null() & frame[:, width].is_null()).to_numpy()
    bad = [
        BadRow(file, int(row) + 1, "", str(lines[int(row)]), f"must have {width} columns")
        for row in np.flatnonzero(filled & ~whole)
    ]
    frame = frame[:, :width].filter(filled & whole).select(pl.all().str.strip_chars(" "))
    return _Fields(frame, np.flatnonzero(filled & whole) + 1, bad)


class _Row(NamedTuple):
    """A row: the number of its first line, and its fields, or None if a quote is not closed."""

    line: int
    fields: list[str] | None


def _quoted_rows(text: str, separator: str, file: str) -> Iterator[_Row]:
    reader = csv.reader(
        io.StringIO(text, newline="\n"), delimiter=separator, strict=True, skipinitialspace=True
    )
    lines = text.count("\n") + (not text.endswith("\n"))
    while reader.line_num < lines:
        line, fields = reader.line_num + 1, None
        with contextlib.suppress(csv.Error):
            fields = next(reader)
        is_long = reader.line_num > line
        if (fields is None and is_long) or (separator == "\t" and (fields is None or is_long)):
            # How many rows the open quote contains is unknown, so they cannot be skipped.
            raise DataError(f"{file} line {line} {_OPEN}")
        yield _Row(line, fields)


_OPEN = "must close a quote where the field ends"
_ROWS_AT_A_TIME = 2**16
"""The number of rows that are put into a frame at once, because a row takes much more memory as a
Python list. Chosen by hand."""


def _split_quoted(text: str, separator: str, file: str) -> _Fields:
    """Return the fields of a text whose quoted fields may contain separators and line ends."""
    rows = _quoted_rows(text, separator, file)
    parts: list[pl.DataFrame] = []
    lines: list[int] = []
    bad: list[_Row] = []
    width = 0
    while some := list(islice(rows, _ROWS_AT_A_TIME)):
        whole: list[list[str]] = []
        for row in some:
            fields = row.fields
            if fields is not None and len(fields) <= 1 and not "".join(fields).strip(" "):
                continue
            width = width or len(fields or [])
            if fields is None or len(fields) != width:
                bad.append(row)
                continue
            whole.append(fields)
            lines.append(row.line)
        if whole:
            columns = {f"field_{k}": column for k, column in enumerate(zip(*whole, strict=True))}
            parts.append(pl.DataFrame(columns).select(pl.all().str.strip_chars(" ")))
    source = text.split("\n") if bad else []
    must = f"must have {width} columns"
    faults = [
        BadRow(file, line, "", source[line - 1], _OPEN if fields is None else must)
        for line, fields in bad
    ]
    if not lines or (faults and faults[0].line < lines[0]):
        raise DataError(str(faults[0]))
    return _Fields(pl.concat(parts), np.asarray(lines), faults)


_CELL = "[^ \t,]+"
_WHOLE = "^[0-9]+$"
_EMPTY = re.compile("[,\t][,\t]|[,\t]\\s*$")
_SAMPLE = 65536
"""The number of characters from which lists are detected. Chosen by hand."""


def looks_like_lists(text: str) -> bool:
    """Return whether the first lines are lists: a person and her items in each line.

    At most half of the lines may have the same number of cells: a numeric table with a few short
    rows does not count as lists.
    """
    widths = Counter(map(len, _rows_of_lists(text)))
    return bool(widths) and 2 * max(widths.values()) <= widths.total()


def _rows_of_lists(text: str) -> list[list[str]]:
    """Return the cells of the first lines if each line can be a list (a person, then her items).

    Each cell must be a whole number, no cell empty, and no person there twice. Otherwise, return
    [].
    """
    lines = text[:_SAMPLE].split("\n")
    if any(_EMPTY.search(line) for line in lines):
        return []
    # The last line of the sample may be incomplete.
    rows = [re.findall(_CELL, line) for line in (lines[:-1] if len(text) > _SAMPLE else lines)]
    rows = [row for row in rows if row]
    if len(rows) < 2 or not all(re.match(_WHOLE, cell) for row in rows for cell in row):
        return []
    return rows if len({row[0] for row in rows}) == len(rows) else []


def split_lists(text: str, file: str) -> RawTable:
    """Return a row for each person and item; a person without items has one row with item null.

    Spaces, tabs or commas separate the numbers. A line is bad if a cell is not a whole number, or
    if an earlier line has the same person.
    """
    cells = pl.Series("line", [text]).str.split("\n").explode().str.extract_all(_CELL)
    is_strange = ~pl.element().str.contains(_WHOLE)
    people = pl.DataFrame(
        {
            "line": np.arange(1, len(cells) + 1),
            "user": cells.list.first(),
            "item": cells.list.slice(1),
            "strange": cells.list.eval(pl.element().filter(is_strange)).list.first(),
        }
    ).filter(pl.col("user").is_not_null())
    is_bad = people["strange"].is_not_null() | ~people["user"].is_first_distinct()
    bad = [
        BadRow(file, line, "", user, "must be the only line of its person")
        if strange is None
        else BadRow(file, line, "", strange, "must be whole numbers: a person, then her items")
        for line, user, strange in people.filter(is_bad).drop("item").iter_rows()
    ]
    rows = people.filter(~is_bad).explode("item", empty_as_null=True)
    return RawTable(
        file=file,
        frame=rows.select("user", "item"),
        lines=rows["line"].to_numpy(),
        bad=tuple(bad),
        lists=True,
    )
