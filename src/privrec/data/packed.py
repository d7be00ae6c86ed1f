"""The bytes of a file, plain or packed (gz, xz, bz2, zstd, zip)."""

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import zstandard

from privrec.errors import DataError

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
