"""Reading the bytes of an imported file; a gz file, or a zip with one file, is unpacked."""

import gzip
import io
import re
import zipfile
import zlib
from pathlib import Path
from typing import IO

from privrec.errors import DataError

_ROOM = 100 * 2**20
_GROWTH = 250
"""A file may unpack to `_ROOM` bytes, or to `_GROWTH` times its size if that is more: a malicious
file must not fill the memory. Chosen by hand; tables unpack to 3 to 30 times their size."""
_GZ = b"\x1f\x8b"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_NOT_READ = (
    *(_GZ, *_ZIP, b"\xfd7zXZ\0", b"BZh", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf\x27\x1c"),
    *(b"Rar!\x1a\x07", b"\xd0\xcf\x11\xe0"),
)
"""The first bytes of files that are packed again or in another way, and of old office documents."""


def read_bytes(path: Path) -> tuple[str, bytes]:
    """Return the name and the bytes of a file, or of the one file in a gz or zip file.

    The first bytes of a file tell whether it is packed.
    """
    name, raw = path.name, _read(path)
    if raw.startswith(_GZ):
        name = name.removesuffix(".gz")
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            raw = _unpacked(file, path, len(raw))
    elif raw.startswith(_ZIP):
        name, raw = _from_zip(path, raw)
    if raw.startswith(_NOT_READ) or raw[257:262] == b"ustar":
        raise DataError(
            f"{path} is packed in another way than gz or zip, or more than once, or an office"
            " document: unpack it first, or save the sheet as CSV"
        )
    if not raw or raw.isspace():
        raise DataError(f"{path} is empty")
    return name, raw


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"{path} does not exist") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _from_zip(path: Path, packed: bytes) -> tuple[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as opened:
            # Operating systems add hidden files, which are ignored.
            names = [
                name
                for name in opened.namelist()
                if not name.endswith("/") and not re.search(r"(^|/)(\.|__MACOSX)", name)
            ]
            if len(names) != 1:
                some = f": {', '.join(names[:10])}" if names else ""
                raise DataError(
                    f"{path} must hold one file; it holds {len(names)}{some} (unpack it and name"
                    " the file; save the sheet of an office document as CSV)"
                )
            # With other methods, a block of unlimited size is unpacked at once.
            kind = opened.getinfo(names[0]).compress_type
            if kind not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DataError(f"{path} is packed in a rare way; unpack it first")
            with opened.open(names[0]) as file:
                return names[0], _unpacked(file, path, len(packed))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError) as error:
        raise DataError(_damaged(path, error)) from error


def _unpacked(file: gzip.GzipFile | IO[bytes], path: Path, size: int) -> bytes:
    limit = max(_ROOM, _GROWTH * size)
    try:
        raw = file.read(limit + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(_damaged(path, error)) from error
    if len(raw) > limit:
        raise DataError(
            f"{path} has {size:,} bytes and unpacks to more than {limit:,}: no table is packed so"
            " tightly; unpack it yourself if it is one"
        )
    return raw


def _damaged(path: Path, error: Exception) -> str:
    return f"{path} is damaged or cut off or has a password, and cannot be unpacked ({error})"
