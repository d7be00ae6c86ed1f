"""Packed files for tests."""

import gzip
import io
import zipfile
from collections.abc import Callable


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, contents in files.items():
            opened.writestr(name, contents)
    return out.getvalue()


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zip": lambda raw: zipped({"lines.csv": raw}),
}
