"""The files of an import as columns: separated text, RecBole's files, JSON lines, Parquet, lists.

Polars reads Parquet, JSON lines, and text of which all lines have the same number of fields. In
other text it fills short lines in silence, and no error of it has a line; such text is split here.
"""

import csv
import gzip
import io
import json
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import polars as pl

from privrec.data.rawvalues import BadRow, Decimal, Form, RawTable, Table
from privrec.errors import DataError
from privrec.types import IntArray

ATOMIC_TYPES = ("token", "token_seq", "float", "float_seq")
_ATOMIC = (".inter", ".user", ".item")
_JSON = (".jsonl", ".ndjson", ".json")
_ROOM = 100 * 2**20
_GROWTH = 250
"""A file may unpack to `_ROOM` bytes, or to `_GROWTH` times its size if that is more: a limit
against malicious files. Chosen by hand; tables unpack to 3 to 30 times their size."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The bytes of a file. `label` is what messages call it, and `name` tells its kind."""

    label: str
    name: str
    raw: bytes


def read_contents(path: Path) -> Contents:
    """Return the bytes of a file, or of the one file in a gz or zip file.

    The first bytes tell whether a file is packed, and not its name.
    """
    packed = Contents(str(path), path.name, _read_bytes(path))
    contents = packed
    if packed.raw.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=io.BytesIO(packed.raw)) as file:
            raw = _unpacked(file, packed)
        contents = replace(packed, name=path.name.removesuffix(".gz"), raw=raw)
    elif packed.raw.startswith(_ZIP):
        contents = _from_zip(packed)
    for begin, advice in _UNREADABLE_FORMATS.items():
        if contents.raw.startswith(begin):
            raise DataError(f"{path} is {advice}")
    if contents.raw[257:262] == b"ustar":
        raise DataError(f"{path} is a tar archive; unpack it first and name the file")
    if not contents.raw or contents.raw.isspace():
        raise DataError(f"{path} is empty")
    return contents


_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_UNREADABLE_FORMATS = {
    **dict.fromkeys((b"\x1f\x8b", *_ZIP), "packed more than once; unpack it first"),
    **dict.fromkeys(
        (b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07"),
        "packed in another way than gz or zip; unpack it first",
    ),
    b"\xd0\xcf\x11\xe0": "an office document; save the sheet as CSV",
}


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"{path} does not exist") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _from_zip(packed: Contents) -> Contents:
    try:
        with zipfile.ZipFile(io.BytesIO(packed.raw)) as opened:
            # Operating systems add files of their own.
            names = [
                name
                for name in opened.namelist()
                if not name.endswith("/") and not re.search(r"(^|/)(\.|__MACOSX)", name)
            ]
            if "[Content_Types].xml" in names:
                raise DataError(f"{packed.label} is an office document; save the sheet as CSV")
            if len(names) != 1:
                some = f": {', '.join(names[:10])}" if names else ""
                raise DataError(
                    f"{packed.label} must hold one file; it holds {len(names)}{some}"
                    " (unpack it, and name the file)"
                )
            # Other methods than deflate unpack a whole block at once, of any size.
            if opened.getinfo(names[0]).compress_type not in _METHODS:
                raise DataError(f"{packed.label} is packed in a rare way; unpack it first")
            with opened.open(names[0]) as file:
                raw = _unpacked(file, packed)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        if "encrypted" in str(error):
            raise DataError(f"{packed.label} needs a password; unpack it first") from error
        raise DataError(_damaged(packed, error)) from error
    return Contents(packed.label, names[0], raw)


_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def _unpacked(file: gzip.GzipFile | IO[bytes], packed: Contents) -> bytes:
    limit = max(_ROOM, _GROWTH * len(packed.raw))
    try:
        raw = file.read(limit + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(_damaged(packed, error)) from error
    if len(raw) > limit:
        raise DataError(
            f"{packed.label} has {len(packed.raw):,} bytes and unpacks to more than {limit:,}: no"
            " table is packed so tightly; unpack it yourself if it is one"
        )
    return raw


def _damaged(packed: Contents, error: Exception) -> str:
    return f"{packed.label} is damaged or cut off and cannot be unpacked ({error})"


def read_raw(
    path: Table, *, encoding: str = "utf-8", form: Form = "table", decimal: Decimal = "."
) -> RawTable:
    """Return the columns of a file; a table that is in memory already is returned as it is.

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
    contents = read_contents(path)
    is_parquet = contents.raw.startswith(b"PAR1") or contents.name.lower().endswith(
        (".parquet", ".pq")
    )
    if form == "lists" and (is_parquet or contents.name.endswith(_ATOMIC)):
        raise DataError(f"{path} has columns, by its name: it cannot be read with --format lists")
    if is_parquet:
        table = _read_parquet(contents)
    else:
        text = _decode(contents, encoding)
        del contents  # Its bytes take as much memory as the text.
        table = _read_text(text, form, decimal)
        table = _without_broken(table, encoding) if text.broken else table
    if table.frame.height == 0 and not table.bad:
        raise DataError(
            f"{table.file} has {'a header' if table.has_header else 'columns'} but no rows"
        )
    return table


def _read_parquet(contents: Contents) -> RawTable:
    try:
        frame = pl.read_parquet(io.BytesIO(contents.raw))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"cannot read {contents.label}: it is not a whole Parquet file") from error
    return typed_table(frame, contents.label, np.arange(1, frame.height + 1))


def typed_table(frame: pl.DataFrame, file: str, lines: IntArray) -> RawTable:
    """Return a table whose columns have names and types."""
    return RawTable(
        file=file,
        frame=frame,
        lines=lines,
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


_BROKEN = "\N{REPLACEMENT CHARACTER}"
_ENCODINGS = "--encoding cp1252 reads files of Excel on Windows, latin-1 many older ones"


def _decode(contents: Contents, encoding: str) -> _Text:
    raw, broken = contents.raw, False
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
            f"{contents.label} line 1 is not text in {encoding}; save the file as UTF-8, or name"
            f" its encoding: {_ENCODINGS}"
        )
    if not text or text.isspace():
        raise DataError(f"{contents.label} is empty")
    return _Text(contents.label, contents.name, text, broken)


def _first_line(text: str) -> str:
    end = text.find("\n")
    return text if end < 0 else text[:end]


def _without_broken(table: RawTable, encoding: str) -> RawTable:
    """Return a table without the rows that have bytes of another encoding; these are bad rows."""
    reason = f"holds bytes that are not {encoding} ({_ENCODINGS})"
    seen = np.zeros(table.frame.height, np.bool_)
    bad = list(table.bad)
    for column in table.frame.get_columns():
        text = column.list.join(" ") if column.dtype == pl.List(pl.String) else column
        if text.dtype != pl.String:
            continue
        broken = text.str.contains(_BROKEN, literal=True).fill_null(value=False).to_numpy()
        bad += table.bad_rows(np.flatnonzero(broken & ~seen), column.name, reason)
        seen |= broken
    return replace(table, frame=table.frame.filter(~seen), lines=table.lines[~seen], bad=tuple(bad))


def _read_text(source: _Text, form: Form, decimal: Decimal) -> RawTable:
    path, text = source.label, source.text
    # MovieLens-100K has files u.user and u.item, of another form.
    atomic = source.name.endswith(_ATOMIC) and "|" not in _first_line(text)
    if form != "lists" and (source.name.lower().endswith(_JSON) or text.startswith('{"')):
        return _read_json(text, path)
    if form == "lists" or (form == "auto" and not atomic and looks_like_lists(text)):
        return split_lists(text, path)
    separator = "\t" if atomic else _sniff(text, decimal)
    if separator == " ":
        if form == "auto" and _rows_of_lists(text):
            raise DataError(
                f"{path} may have columns with spaces between them, or a line for each person with"
                " her items: say --format table or --format lists"
            )
        text = re.sub("^ | $", "", _SPACES.sub(" ", text), flags=re.MULTILINE)
    fields = _split(text, separator, path, quoted=not atomic and separator != "::")
    first = [str(field) for field in fields.frame.row(0)]
    has_header = atomic or not any(_NUMBER.fullmatch(field) for field in first)
    types = _atomic_types(first, path) if atomic else {}
    names = [str(place) for place in range(1, len(first) + 1)]
    if has_header:
        first = list(types) if atomic else first
        names = [name or place for name, place in zip(first, names, strict=True)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise DataError(f"{path} has the column {twice[0]!r} more than once")
    start = 1 if has_header else 0
    return RawTable(
        file=path,
        frame=fields.frame.rename(dict(zip(fields.frame.columns, names, strict=True)))[start:],
        lines=fields.lines[start:],
        has_header=has_header,
        types=types,
        bad=tuple(fields.bad),
    )


_NUMBER = re.compile(
    r"[+-]?(\d+[.,]?\d*|[.,]\d+)([eE][+-]?\d+)?|\d{1,4}[./-]\d{1,2}[./-]\d{1,4}([ T].*)?"
)
_SPACES = re.compile(" {2,}")


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


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of a text file, including the header, in columns without names."""

    frame: pl.DataFrame
    lines: IntArray
    bad: list[BadRow]


def _split(text: str, separator: str, file: str, *, quoted: bool) -> _Fields:
    """Return the fields of a text; where `quoted`, quotes around a field are no part of it."""
    fields = _split_even(text, separator)
    if not quoted or '"' not in text:
        return fields or _split_lines(text, separator, file)
    simple = _unquoted(fields) if fields else None
    if simple:
        return simple
    try:
        return _split_quoted(text, separator, file)
    except DataError:
        # Many tab-separated files use quotes as ordinary characters.
        if separator != "\t":
            raise
        return fields or _split_lines(text, separator, file)


_RARE = "\x1f"
"""Stands for `::` where a single character must separate fields: ASCII's unit separator."""


def _split_even(text: str, separator: str) -> _Fields | None:
    """Return what `_split_lines` returns, or None if a line has more or fewer fields than others.

    Most files are even, and the reader of CSV files takes a fraction of the time and memory.
    """
    lines = text.count("\n") + (not text.endswith("\n"))
    width = _first_line(text).count(separator) + 1
    # The reader of CSV files takes a \r before the end of a line for a part of that end.
    if width == 1 or "\r" in text or text.count(separator) != lines * (width - 1):
        return None
    if len(separator) > 1:
        if _RARE in text:
            return None
        text, separator = text.replace(separator, _RARE), _RARE
    # Without a last line end, polars takes one empty field too many for none.
    text = text if text.endswith("\n") else f"{text}\n"
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
    around = (f" {separator}", f"{separator} ", "\n ", " \n")
    if any(spaced in text for spaced in around) or " " in (text[0], text[-1]):
        frame = frame.select(pl.all().str.strip_chars(" "))
    return _Fields(frame, np.arange(1, lines + 1), [])


def _unquoted(fields: _Fields) -> _Fields | None:
    """Return the fields without the quotes around them, or None if quotes need a full parser.

    Most files with quotes are simple, and this is much faster than parsing row by row.
    """
    columns = []
    for column in fields.frame.get_columns():
        inner = column.str.strip_prefix('"').str.strip_suffix('"')
        taken = column.str.len_bytes() - inner.str.len_bytes()
        if (taken == 1).any() or inner.str.contains('"', literal=True).any():
            return None
        columns.append(inner.str.strip_chars(" "))
    return _Fields(pl.DataFrame(columns), fields.lines, [])


def _split_lines(text: str, separator: str, file: str) -> _Fields:
    """Return the fields of a text in which quotes are ordinary characters."""
    lines = pl.Series("line", [text.rstrip("\n")]).str.split("\n").explode()
    filled = (lines.str.strip_chars(" ") != "").to_numpy()
    width = lines[int(np.flatnonzero(filled)[0])].count(separator) + 1
    # Allow one field too many, so that a line with too many fields is detected.
    frame = lines.str.split_exact(separator, width).struct.unnest()
    whole = (frame[:, width - 1].is_not_null() & frame[:, width].is_null()).to_numpy()
    bad = [
        BadRow(file, int(row) + 1, "", str(lines[int(row)]), f"must have {width} columns")
        for row in np.flatnonzero(filled & ~whole)
    ]
    frame = frame[:, :width].filter(filled & whole).select(pl.all().str.strip_chars(" "))
    return _Fields(frame, np.flatnonzero(filled & whole) + 1, bad)


class _Row(NamedTuple):
    """The first line of a row, its fields, and what is wrong with it or ""."""

    line: int
    fields: list[str]
    fault: str


def _quoted_rows(text: str, separator: str, file: str) -> Iterator[_Row]:
    reader = csv.reader(
        io.StringIO(text, newline="\n"), delimiter=separator, strict=True, skipinitialspace=True
    )
    lines = text.count("\n") + (not text.endswith("\n"))
    while reader.line_num < lines:
        line, fault, fields = reader.line_num + 1, "", [""]
        try:
            fields = next(reader)
        except csv.Error:
            fault = "must close a quote where the field ends"
        is_long = reader.line_num > line
        if (fault and is_long) or (separator == "\t" and (fault or is_long)):
            # It is unknown how many rows the open quote covers, so it cannot be skipped.
            raise DataError(f"{file} line {line} must close a quote where the field ends")
        yield _Row(line, fields, fault)


_ROWS_AT_A_TIME = 2**16
"""Rows that are Python objects at once, to bound memory. Chosen by hand."""


def _split_quoted(text: str, separator: str, file: str) -> _Fields:
    """Return the fields of a text in which quoted fields may have any content."""
    rows = _quoted_rows(text, separator, file)
    parts: list[pl.DataFrame] = []
    lines: list[int] = []
    bad: list[_Row] = []
    width = 0
    while some := list(islice(rows, _ROWS_AT_A_TIME)):
        whole: list[list[str]] = []
        for row in some:
            fields = [field.strip(" ") for field in row.fields]
            if not row.fault and fields in ([], [""]):
                continue
            width = width or len(fields)
            if row.fault or len(fields) != width:
                bad.append(row)
                continue
            whole.append(fields)
            lines.append(row.line)
        names = [f"field_{place}" for place in range(width)]
        parts.append(pl.DataFrame(whole, schema=dict.fromkeys(names, pl.String), orient="row"))
    source = text.split("\n") if bad else []
    faults = [
        BadRow(file, row.line, "", source[row.line - 1], row.fault or f"must have {width} columns")
        for row in bad
    ]
    if not lines or (faults and faults[0].line < lines[0]):
        raise DataError(str(faults[0]))
    return _Fields(pl.concat([part for part in parts if part.height]), np.asarray(lines), faults)


def _read_json(text: str, file: str) -> RawTable:
    """Return the objects as rows and their keys as columns.

    A key of an inner object is a column of its own: {"a": {"b": 1}} has the column "a.b".
    """
    if text.lstrip().startswith("["):
        raise DataError(f"{file} must have one JSON object on each line; it is a list")
    frame = None if _SURROGATE.search(text) else _json_frame(text)
    height = text.count("\n") + (not text.endswith("\n"))
    if frame is not None and frame.height == height and not _may_hide_lists(frame):
        return replace(typed_table(frame, file, np.arange(1, height + 1)), unit="line")
    lines = {line: row for line, row in enumerate(text.split("\n"), 1) if row.strip()}
    bad = list(_json_faults(lines, file))
    for row in bad:
        del lines[row.line]
    frame = _json_frame("\n".join(lines.values()))
    if frame is None or frame.height != len(lines):
        first = f"; the first: {bad[0]}" if bad else ""
        raise DataError(f"{file} has lines whose keys have values of different kinds{first}")
    table = typed_table(frame, file, np.asarray(list(lines), np.int64))
    return replace(table, bad=tuple(bad), unit="line")


_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
"""A half of a character that is written in two. One without the other is no text."""


def _json_frame(text: str) -> pl.DataFrame | None:
    """Return the objects with the keys of inner ones as their own, or None if a line is wrong."""
    try:
        frame = pl.read_ndjson(text.encode(), infer_schema_length=None)
        while inner := [name for name, kind in frame.schema.items() if kind == pl.Struct]:
            names = {name: [f"{name}.{key}" for key in frame[name].struct.fields] for name in inner}
            frame = frame.with_columns(
                pl.col(name).struct.rename_fields(keys) for name, keys in names.items()
            ).unnest(inner)
    except (pl.exceptions.PolarsError, UnicodeEncodeError):
        return None
    return frame


def _may_hide_lists(frame: pl.DataFrame) -> bool:
    """Return whether a text may have been a list or an object: polars makes it text among texts."""
    texts = pl.col(pl.String).str.contains(r"^[\[{]").any()
    return any(frame.select(texts).row(0)) if pl.String in frame.dtypes else False


def _json_faults(lines: Mapping[int, str], file: str) -> Iterator[BadRow]:
    """Yield the lines that are no JSON object, or have a value of another kind than lines before.

    Numbers and texts in one column are text.
    """
    kinds: dict[str, str] = {}
    for line, row in lines.items():
        try:
            value = json.loads(row, parse_constant=_refuse)
            json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            yield BadRow(file, line, "", row, "must be a JSON object on one line")
            continue
        for key, entry in value.items():
            kind = _JSON_KINDS.get(type(entry))
            if kind and kinds.setdefault(key, kind) != kind:
                reason = f"must be {kinds[key]}, as in lines before"
                yield BadRow(file, line, key, json.dumps(entry), reason)
                break


_JSON_KINDS = {
    **dict.fromkeys((int, float, str), "a number or a text"),
    bool: "true or false",
    list: "a list",
    dict: "an object",
}


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_CELL = "[^ \t,]+"
_WHOLE = "^[0-9]+$"
_EMPTY = re.compile("[,\t][,\t]|[,\t]\\s*$")
_SAMPLE = 65536
"""How many characters decide whether a file has a list for each person. Chosen by hand."""


def looks_like_lists(text: str) -> bool:
    """Return whether the first lines can be nothing but people and their items.

    All cells are whole numbers, no two lines begin with the same one, and no number of cells is
    that of more than half of the lines. A table of numbers with a few short rows is no such file.
    """
    widths = Counter(map(len, _rows_of_lists(text)))
    return bool(widths) and 2 * max(widths.values()) <= widths.total()


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
