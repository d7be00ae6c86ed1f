"""Reads files (separated text, RecBole atomic files, JSON lines, Parquet) into columns.

The bytes of a file, plain or packed (gz, xz, bz2, zstd, zip).
"""

import bz2
import csv
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
import polars as pl
import zstandard

from privrec.data.jsonlines import (
    looks_like_json,
    looks_like_lists,
    may_be_lists,
    read_json,
    split_lists,
)
from privrec.data.rawvalues import PARQUET, BadRow, Decimal, Form, RawTable, Table
from privrec.errors import DataError
from privrec.types import IntArray

ENDINGS = (".gz", ".xz", ".bz2", ".zst", ".zstd", ".zip")
_CHUNK = 2**20
_LAYERS = 3
"""How often a file may be packed, as a zip of gz files is twice."""
_ROOM = 100 * 2**20
_GROWTH = 250
"""A file may unpack to `_ROOM` bytes, or to `_GROWTH` times its size if that is more: a limit
against malicious files. Chosen by hand; tables unpack to 3 to 30 times their size."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a file holds. `label` is what messages call it.

    `name` is its name without the endings of packed files, which tells the kind of file.
    """

    label: str
    name: str
    raw: bytes


def read_contents(path: Path) -> Contents:
    """Return the bytes of a file, unpacked. `a.zip/b.csv` is the file b.csv in an archive.

    What is packed is told by its first bytes and not by its name.
    """
    archive, member = _archive_of(path)
    found = Contents(str(archive), archive.name, _read(archive))
    if member:
        found = _from_zip(found, member)
    for _ in range(_LAYERS):
        unpack = _unpacker(found.raw)
        if unpack is None:
            break
        found = unpack(found)
    if _unpacker(found.raw) is not None:
        raise DataError(f"{found.label} is packed more than {_LAYERS} times; unpack it first")
    _refuse_others(found)
    if not found.raw or found.raw.isspace():
        raise DataError(f"{found.label} is empty")
    return found


def plain_name(name: str) -> str:
    """Return a file's name without the endings of packed files.

    >>> plain_name("ratings.csv.gz"), plain_name("ratings.csv")
    ('ratings.csv', 'ratings.csv')
    """
    path = PurePosixPath(name)
    while path.suffix.lower() in ENDINGS:
        path = path.with_suffix("")
    return path.name


def is_there(path: Path) -> bool:
    """Return whether a file exists, on the disk or in an archive (`a.zip/b.csv`)."""
    archive, member = _archive_of(path)
    return member in _listed(archive) if member else path.is_file()


def atomic_member(path: Path) -> Path:
    """Return the .inter file in a zip archive that has just one, else the path itself."""
    found = [name for name in _listed(path) if name.endswith(".inter")]
    return path / found[0] if len(found) == 1 else path


def _listed(archive: Path) -> list[str]:
    """Return the files in a zip archive; none if the path is something else."""
    with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(archive) as opened:
        return _files(opened)
    return []


def _archive_of(path: Path) -> tuple[Path, str]:
    """Return a file and the name of a member in it, "" unless the path leads into an archive."""
    if not path.exists():
        for parent in path.parents:
            if parent.is_file() and zipfile.is_zipfile(parent):
                return parent, path.relative_to(parent).as_posix()
    return path, ""


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except NotADirectoryError as error:
        raise DataError(f"{path} does not exist: a part of it is a file, and no zip") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _unpacker(raw: bytes) -> Callable[[Contents], Contents] | None:
    if raw.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _from_zip
    if raw.startswith((b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", *_SKIPPED)):
        return _from_stream
    return _from_stream if raw.startswith(b"BZh") and raw[4:10] == b"1AY&SY" else None


_SKIPPED = tuple(bytes([low]) + b"\x2a\x4d\x18" for low in range(0x50, 0x60))
"""The first bytes of zstd frames that hold no data; some writers begin with one."""


def _from_stream(packed: Contents) -> Contents:
    file, raw = io.BytesIO(packed.raw), packed.raw
    if raw.startswith(b"\x1f\x8b"):
        chunks = _chunks(gzip.GzipFile(fileobj=file).read)
    elif raw.startswith(b"\xfd7zXZ"):
        chunks = _chunks(lzma.LZMAFile(file).read)  # noqa: SIM115 (nothing is open)
    elif raw.startswith(b"BZh"):
        chunks = _chunks(bz2.BZ2File(file).read)
    else:
        chunks = _zstd_chunks(raw)
    return Contents(packed.label, plain_name(packed.name), _joined(chunks, packed))


def _chunks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while chunk := read(_CHUNK):
        yield chunk


def _zstd_chunks(raw: bytes) -> Iterator[bytes]:
    """Yield what the frames hold, after each other."""
    # The stream reader of the library takes a cut file for a whole one; these objects do not. A
    # block of 4 bytes can hold 128 kB: from 1 kB at most 32 MB come out at once.
    step, place, view = 1024, 0, memoryview(raw)
    frame = zstandard.ZstdDecompressor().decompressobj()
    is_open = False
    while place < len(raw):
        piece = view[place : place + step]
        is_open = True
        yield frame.decompress(piece)
        place += len(piece)
        if frame.eof:
            place -= len(frame.unused_data)
            frame = zstandard.ZstdDecompressor().decompressobj()
            is_open = False
    if is_open:
        raise EOFError("it ends before its end mark")


def _from_zip(packed: Contents, wanted: str = "") -> Contents:
    try:
        with zipfile.ZipFile(io.BytesIO(packed.raw)) as opened:
            member = _member(opened, packed, wanted)
            with opened.open(member) as file:
                raw = _joined(_chunks(file.read), packed)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        if "encrypted" in str(error):
            raise DataError(f"{packed.label} needs a password; unpack it first") from error
        raise DataError(_damaged(packed, error)) from error
    return Contents(f"{packed.label}/{member}", plain_name(member), raw)


def _joined(chunks: Iterator[bytes], packed: Contents) -> bytes:
    out, limit = io.BytesIO(), max(_ROOM, _GROWTH * len(packed.raw))
    try:
        for chunk in chunks:
            out.write(chunk)
            if out.tell() > limit:
                raise DataError(
                    f"{packed.label} has {len(packed.raw):,} bytes and unpacks to more than"
                    f" {limit:,}: no table is packed so tightly; unpack it yourself if it is one"
                )
    except (EOFError, OSError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise DataError(_damaged(packed, error)) from error
    return out.getvalue()


def _damaged(packed: Contents, error: Exception) -> str:
    return f"{packed.label} is damaged or cut off and cannot be unpacked ({error})"


def _files(opened: zipfile.ZipFile) -> list[str]:
    """Return the files of an archive, without those that operating systems add."""
    return [
        name
        for name in dict.fromkeys(opened.namelist())
        if not name.endswith("/")
        and not any(part.startswith((".", "__MACOSX")) for part in name.split("/"))
    ]


_TABLES = (".csv", ".tsv", ".dat", ".jsonl", ".ndjson", ".json", ".parquet", ".pq", ".inter")
_USUAL = ("ratings", "interactions", "events", "reviews", "train")
"""Names that a file of interactions often has: the one to propose where there are several."""


def _member(opened: zipfile.ZipFile, packed: Contents, wanted: str) -> str:
    """Return the file in an archive that is wanted or meant; raise if that is unclear."""
    files = _files(opened)
    if "[Content_Types].xml" in files:
        raise DataError(f"{packed.label} is an office document; save the sheet as CSV")
    if not files:
        raise DataError(f"{packed.label} holds no file")
    listed = ", ".join(files[:10]) + (f" and {len(files) - 10:,} more" if len(files) > 10 else "")
    if wanted:
        fitting = [name for name in files if name == wanted or name.endswith(f"/{wanted}")]
        if wanted in fitting or len(fitting) == 1:
            return wanted if wanted in fitting else fitting[0]
        raise DataError(
            f"{packed.label} holds {'several files' if fitting else 'no file'} called {wanted!r};"
            f" it holds {listed}"
        )
    tables = [name for name in files if PurePosixPath(plain_name(name)).suffix.lower() in _TABLES]
    for meant in (files, tables):
        if len(meant) == 1:
            return meant[0]
    stem = PurePosixPath(packed.name).stem
    ours = [name for name in tables if PurePosixPath(plain_name(name)).stem == stem]
    if len(ours) == 1:
        return ours[0]
    usual = [n for word in _USUAL for n in tables if PurePosixPath(n).name.startswith(word)]
    example = PurePosixPath((usual or tables or files)[0]).name
    raise DataError(
        f"{packed.label} holds {len(files):,} files: {listed}; name one, such as"
        f" {packed.label}/{example}"
    )


_OTHERS = {
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it first",
    b"Rar!\x1a\x07": "a rar archive; unpack it first",
    b"\xd0\xcf\x11\xe0": "an office document; save the sheet as CSV",
    b"SQLite format 3\0": "a SQLite database; export the table as CSV",
    b"ARROW1": "an Arrow file; save it as Parquet",
    b"\x89HDF": "an HDF5 file; save the table as Parquet",
}


def _refuse_others(found: Contents) -> None:
    if found.raw[257:262] == b"ustar":
        raise DataError(f"{found.label} is a tar archive; unpack it first and name the file")
    for begin, what in _OTHERS.items():
        if found.raw.startswith(begin):
            raise DataError(f"{found.label} is {what}")


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
