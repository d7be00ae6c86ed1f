"""Packed files for tests."""

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable

import zstandard


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, contents in files.items():
            opened.writestr(name, contents)
    return out.getvalue()


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".zip": lambda raw: zipped({"lines.csv": raw}),
}
