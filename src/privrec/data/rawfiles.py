"""Reads files (separated text, RecBole atomic files, JSON lines, Parquet) into columns."""

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import numpy as np
import polars as pl

from privrec.data.itemlists import looks_like_lists, may_be_lists, split_lists
from privrec.data.jsonlines import looks_like_json, read_json
from privrec.data.packed import Contents, read_contents
from privrec.data.rawtable import PARQUET, BadRow, Decimal, Form, RawTable, Table
from privrec.errors import DataError
from privrec.types import IntArray

ATOMIC = (".inter", ".user", ".item")
ATOMIC_TYPES = ("token", "token_seq", "float", "float_seq")


def read_raw(
    path: Table, *, encoding: str = "utf-8", form: Form = "table", decimal: Decimal = "."
) -> RawTable:
    """Return the columns of a file, packed or not: Parquet, RecBole's atomic files, JSON or text.

    A table that is in memory already is returned as it is.

    The separator and the header of a text file are detected from its first lines; a comma is the
    least likely separator where it is the decimal comma. A first line that contains a number or a
    date is not a header. "auto" finds out whether a text file has a list for each person instead
    of columns.
    """
    if isinstance(path, RawTable):
        if path.frame.height == 0:
            raise DataError(f"{path} has no rows")
        return path
    if path.is_dir():
        raise DataError(f"{path} is a folder; name the file in it")
    found = read_contents(path)
    ending = PurePosixPath(found.name).suffix.lower()
    is_parquet = ending in PARQUET or found.raw.startswith(_PARQUET_MARK)
    if form == "lists" and (is_parquet or ending in ATOMIC):
        raise DataError(f"{path} has columns, by its name: it cannot be read with --format lists")
    if is_parquet:
        table = _read_parquet(found)
    else:
        text = _decode(found, encoding)
        del found  # Its bytes take as much memory as the text.
        table = _read_text(text, encoding, form, decimal)
    if table.frame.height == 0 and not table.bad:
        raise DataError(
            f"{table.file} has {'a header' if table.has_header else 'columns'} but no rows"
        )
    return table


_PARQUET_MARK = b"PAR1"


def _read_parquet(found: Contents) -> RawTable:
    try:
        frame = pl.read_parquet(io.BytesIO(found.raw))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"cannot read {found.label}: it is not a whole Parquet file") from error
    return RawTable(
        file=found.label,
        frame=frame,
        lines=np.arange(1, frame.height + 1),
        has_header=True,
        types={},
        bad=(),
        is_text=False,
        unit="row",
    )


@dataclass(frozen=True, slots=True)
class _Text:
    """A file's text with uniform line ends; `broken` if some bytes could not be decoded."""

    label: str
    name: str
    text: str
    broken: bool


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of a text file, including the header, in columns without names."""

    frame: pl.DataFrame
    lines: IntArray
    bad: list[BadRow]


def _read_text(found: _Text, encoding: str, form: Form, decimal: Decimal) -> RawTable:
    path, text, broken = found.label, found.text, found.broken
    if not text or text.isspace():
        raise DataError(f"{path} is empty")
    # MovieLens-100K has files u.user and u.item, of another form.
    atomic = PurePosixPath(found.name).suffix in ATOMIC and "|" not in _first_line(text)
    if form != "lists" and not atomic and looks_like_json(text, found.name):
        table = read_json(text, path)
        return _without_broken(table, encoding) if broken else table
    if form == "lists" or (form == "auto" and not atomic and looks_like_lists(text)):
        return split_lists(text, path)
    separator = "\t" if atomic else _sniff(text, decimal)
    if separator == " ":
        if form == "auto" and may_be_lists(text):
            raise DataError(
                f"{path} may have columns with spaces between them, or a line for each person with"
                " her items: say --format table or --format lists"
            )
        text = _SPACES.sub(" ", _OUTER.sub("", text))
    fields = _split_even(text, separator) or _split_plain(text, separator, path)
    if '"' in text and not atomic and separator != "::":
        fields = _unquoted(fields) or _split_quoted(text, separator, path) or fields
    first = [str(field) for field in fields.frame.row(0)]
    has_header = atomic or not any(_NUMBER.fullmatch(field) for field in first)
    types: dict[str, str] = {}
    if atomic:
        types = _atomic_types(first, path)
        first = list(types)
    names = [str(place) for place in range(1, len(first) + 1)]
    if has_header:
        names = [name or place for name, place in zip(first, names, strict=True)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise DataError(f"{path} has the column {twice[0]!r} more than once")
    start = 1 if has_header else 0
    table = RawTable(
        file=path,
        frame=fields.frame.rename(dict(zip(fields.frame.columns, names, strict=True)))[start:],
        lines=fields.lines[start:],
        has_header=has_header,
        types=types,
        bad=tuple(fields.bad),
    )
    return _without_broken(table, encoding) if broken else table


_NUMBER = re.compile(
    r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?|\d{1,4}[./-]\d{1,2}[./-]\d{1,4}([ T].*)?"
)
_SPACES, _OUTER = re.compile(" {2,}"), re.compile("^ +| +$", re.MULTILINE)
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_ENCODINGS = "--encoding cp1252 reads files of Excel on Windows, latin-1 many older ones"


def _decode(found: Contents, encoding: str) -> _Text:
    raw, broken = found.raw, False
    try:
        text = raw.decode(encoding)
    except LookupError as error:
        raise DataError(
            f"`encoding` must be one that Python knows, such as 'utf-8' or 'latin-1';"
            f" got {encoding!r}"
        ) from error
    except UnicodeDecodeError:
        text, broken = raw.decode(encoding, errors="replace"), True
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    text = text if "\n" in text else text.replace("\r", "\n")
    first = _first_line(text)
    # The names in a broken header are not reliable. A NUL means UTF-16 that was read as UTF-8.
    if (broken and _BROKEN in first) or "\0" in first:
        raise DataError(
            f"{found.label} line 1 is not text in {encoding}; save the file as UTF-8, or name its"
            f" encoding: {_ENCODINGS}"
        )
    return _Text(found.label, found.name, text, broken)


def _first_line(text: str) -> str:
    end = text.find("\n")
    return text if end < 0 else text[:end]


def _sniff(text: str, decimal: Decimal) -> str:
    """Return the separator that fits at least half of the first lines, or `,`.

    The first of these groups with one that fits; of a group, the one that is there most often.
    """
    sample = re.sub(r'"[^"\n]*"', "quoted", text[:65536]).split("\n")[:50]
    sample = [_SPACES.sub(" ", line.strip(" ")) for line in sample if line.strip()]
    groups: tuple[tuple[str, ...], ...] = (("::",), ("\t",), (";", ","), ("|",), (" ",))
    if decimal == ",":
        groups = (("::",), ("\t",), (";",), ("|",), (",", " "))
    counts = {name: sample[0].count(name) for group in groups for name in group}
    present = [name for name in counts if counts[name]]
    fits = {n: sum(line.count(n) == counts[n] for line in sample) / len(sample) for n in present}
    for group in groups:
        fitting = [name for name in group if fits.get(name, 0) >= 0.5]
        if group == (" ",) and (present != [" "] or not _has_numbers(sample)):
            break  # Spaces are in words too.
        if fitting:
            best = max(fitting, key=lambda name: counts[name])
            # Titles may have commas, in a file that has bars between its columns.
            return "|" if best in ",;" and fits[best] < fits.get("|", 0) == 1 else best
    return next((name for name in present if name != " "), ",")


def _has_numbers(lines: list[str]) -> bool:
    """Return whether at least half of the lines have a number among their words."""
    return 2 * sum(any(map(_NUMBER.fullmatch, line.split())) for line in lines) >= len(lines)


_RARE = "\x1f"
"""Stands for `::` where a single character must separate fields: ASCII's unit separator.

A line that has it already has too many fields then.
"""


def _split_even(text: str, separator: str) -> _Fields | None:
    """Return what `_split_plain` returns, or None if a line has more or fewer fields than others.

    Most files are even, and the reader of CSV files takes a fraction of the time and memory.
    """
    lines = text.count("\n") + (not text.endswith("\n"))
    width = _first_line(text).count(separator) + 1
    # The reader of CSV files takes a \r before the end of a line for a part of that end.
    if width == 1 or "\r" in text or text.count(separator) != lines * (width - 1):
        return None
    if len(separator) > 1:
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
    # A line with too many fields has raised. So no line has too few, and what is null is empty.
    frame = frame.fill_null("") if any(frame.null_count().row(0)) else frame
    if frame.height != lines:
        return None
    return _Fields(_stripped(frame, text, separator), np.arange(1, lines + 1), [])


def _split_plain(text: str, separator: str, file: str) -> _Fields:
    """Return the fields of a text in which quotes are ordinary characters."""
    lines = pl.Series("line", [text.rstrip("\n")]).str.split("\n").explode()
    filled = (lines.str.strip_chars(" ") != "").to_numpy()
    width = lines[int(np.flatnonzero(filled)[0])].count(separator) + 1
    # Allow one field too many, so that a line with too many fields is detected.
    frame = lines.str.split_exact(separator, width).struct.unnest()
    whole = (frame[:, width - 1].is_not_null() & frame[:, width].is_null()).to_numpy()
    numbers = np.arange(1, len(lines) + 1)
    bad = [
        BadRow(file, int(numbers[row]), "", str(lines[int(row)]), f"must have {width} columns")
        for row in np.flatnonzero(filled & ~whole)
    ]
    keep = filled & whole
    frame = frame[:, :width]
    if not keep.all():
        frame, numbers = frame.filter(keep), numbers[keep]
    return _Fields(_stripped(frame, text, separator), numbers, bad)


def _stripped(frame: pl.DataFrame, text: str, separator: str) -> pl.DataFrame:
    """Return the fields of the text without the spaces around them."""
    around = (f" {separator}", f"{separator} ", "\n ", " \n")
    if any(spaced in text for spaced in around) or " " in (text[0], text[-1]):
        return frame.select(pl.all().str.strip_chars(" "))
    return frame


def _unquoted(fields: _Fields) -> _Fields | None:
    """Return the fields without the quotes around them, or None if quotes need a full parser.

    Most files with quotes are simple, and this is much faster than parsing row by row.
    """
    if fields.bad:
        return None
    columns = []
    for column in fields.frame.get_columns():
        inner = column.str.strip_prefix('"').str.strip_suffix('"')
        taken = column.str.len_bytes() - inner.str.len_bytes()
        if (taken == 1).any() or inner.str.contains('"', literal=True).any():
            return None
        columns.append(inner.str.strip_chars(" "))
    return _Fields(pl.DataFrame(columns), fields.lines, [])


def _split_quoted(text: str, separator: str, file: str) -> _Fields | None:
    """Return the fields of a text in which quoted fields may have any content.

    Many tab-separated files use quotes as ordinary characters. The result is None for such a file:
    a quote is not closed within its line.
    """
    source = list(io.StringIO(text, newline="\n"))
    rows: list[list[str]] = []
    lines: list[int] = []
    bad: list[BadRow] = []
    for line, last, row in _quoted_rows(source, separator):
        fault = "" if row is not None else "must close a quote where the field ends"
        if separator == "\t" and (fault or last > line):
            return None
        if row is None and last > line:
            # It is unknown how many rows the open quote covers, so it cannot be skipped.
            raise DataError(f"{file} line {line} {fault}")
        fields = [field.strip(" ") for field in row or []]
        if not fault and fields in ([], [""]):
            continue
        if not fault and rows and len(fields) != len(rows[0]):
            fault = f"must have {len(rows[0])} columns"
        if fault:
            bad.append(BadRow(file, line, "", source[line - 1].rstrip("\n"), fault))
        else:
            rows.append(fields)
            lines.append(line)
    if not rows or (bad and bad[0].line < lines[0]):
        raise DataError(str(bad[0]))
    columns = [f"field_{place}" for place in range(len(rows[0]))]
    frame = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row")
    return _Fields(frame, np.asarray(lines), bad)


def _quoted_rows(source: list[str], separator: str) -> Iterator[tuple[int, int, list[str] | None]]:
    """Yield each row's first and last line and its fields, None where its quotes are wrong."""
    reader = csv.reader(source, delimiter=separator, strict=True, skipinitialspace=True)
    while reader.line_num < len(source):
        line = reader.line_num + 1
        try:
            row = next(reader)
        except csv.Error:
            row = None
        yield line, reader.line_num, row


def _atomic_types(header: list[str], path: str) -> dict[str, str]:
    types: dict[str, str] = {}
    for field in header:
        name, _, kind = field.rpartition(":")
        if not name or kind not in ATOMIC_TYPES:
            raise DataError(
                f"{path} line 1: a column must be name:type with a type of"
                f" {', '.join(ATOMIC_TYPES)}; got {field!r}"
            )
        if name in types:
            raise DataError(f"{path} has the column {name!r} more than once")
        types[name] = kind
    return types


def _without_broken(table: RawTable, encoding: str) -> RawTable:
    reason = f"holds bytes that are not {encoding} ({_ENCODINGS})"
    seen = np.zeros(table.frame.height, np.bool_)
    bad = list(table.bad)
    for column in table.frame.get_columns():
        text = column.list.join(" ") if column.dtype == pl.List else column.cast(pl.String)
        found = text.str.contains(_BROKEN, literal=True).fill_null(value=False)
        mask = found.to_numpy() & ~seen
        bad += table.bad_rows(np.flatnonzero(mask), column.name, reason)
        seen |= mask
    places = np.cumsum(~seen) - 1
    return replace(
        table,
        frame=table.frame.filter(~seen),
        lines=table.lines[~seen],
        bad=tuple(bad),
        nested={name: places[rows[~seen[rows]]] for name, rows in table.nested.items()},
    )
