"""Reads what is new in a file that grows, and small files only when they have changed."""

import json
import os
import stat
from pathlib import Path
from typing import Any

from privrec.errors import RunFolderError
from privrec.runs.shapes import NOT_JSON

SMALL = 2**20
"""Bytes of a file that is read whole. Chosen by hand, and so are the numbers below."""
_AT_ONCE = 8 * 2**20
"""Bytes of a growing file that are read in one look."""
_LARGEST = 128 * 2**20
"""A growing file of more bytes is refused: privrec writes less in 100,000 rounds."""
Mark = tuple[int, int, int, int]


class Tail:
    """The lines of a file that grows; if it was replaced or cut, from its beginning."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self._path, self._offset = path, 0
        self._mark: Mark | None = None
        self.is_behind = False

    def read(self) -> tuple[bool, bytes]:
        """Return whether it is another file than before, and the whole lines that are new.

        Of a long file a part is read in one look; `is_behind` says whether there is more.
        """
        mark = mark_of(self._path)
        if mark is None:
            was, self._mark, self._offset = self._mark, None, 0
            self.is_behind = False
            return was is not None, b""
        if mark == self._mark and not self.is_behind:
            return False, b""
        if mark[2] > _LARGEST:
            raise RunFolderError(f"{self._path} is too large to watch: {mark[2]:,} bytes")
        anew = self._mark is None or mark[:2] != self._mark[:2] or mark[2] < self._offset
        try:
            with self._path.open("rb") as file:
                file.seek(0 if anew else self._offset)
                new = file.read(_AT_ONCE)
        except OSError:
            return False, b""
        whole = new.rfind(b"\n") + 1
        self.is_behind = len(new) == _AT_ONCE
        if self.is_behind and not whole:
            raise RunFolderError(f"{self._path} has a line of more than {_AT_ONCE:,} bytes")
        self._mark, self._offset = mark, (0 if anew else self._offset) + whole
        return anew, new[:whole]


class SmallFile:
    """A JSON object in a file, read again only if the file has changed."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self.path = path
        self._found: dict[str, Any] | None = None
        self._mark: Mark | None = None

    def read(self) -> dict[str, Any] | None:
        """Return the object; None if there is none, or if it is not whole."""
        mark = mark_of(self.path)
        if mark != self._mark:
            is_small = mark is not None and mark[2] <= SMALL
            self._mark, self._found = mark, _object_in(self.path) if is_small else None
        return self._found


def mark_of(path: Path) -> Mark | None:
    """Return what changes when a file does: the file, its size and its time; None for no file.

    Pipes and devices are no files: reading them may never end.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def objects_in(lines: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects in lines; others are left out."""
    return [found for line in lines.splitlines() if (found := _parsed(line)) is not None]


def _object_in(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            return _parsed(file.read(SMALL))
    except OSError:
        return None


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except NOT_JSON:
        return None
    return found if isinstance(found, dict) else None


def age_of(path: Path, now: float) -> float:
    """Return how many seconds ago a file was written; infinite for no file."""
    try:
        return now - os.stat(path).st_mtime
    except OSError:
        return float("inf")
