"""Files for tests, plain and packed."""

import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path


def put(folder: Path, name: str, text: str | bytes, encoding: str = "utf-8") -> Path:
    """Write a file, and return its path."""
    path = folder / name
    path.write_bytes(text.encode(encoding) if isinstance(text, str) else text)
    return path


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
