"""Reads what is new in a file that grows, and small files only when they have changed."""

import json
import os
from pathlib import Path
from typing import Any

Mark = tuple[int, int, int, int]


class Tail:
    """The lines of a file that grows; if it was replaced or cut, from its beginning."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self._path, self._offset = path, 0
        self._mark: Mark | None = None

    def read(self) -> tuple[bool, bytes]:
        """Return whether it is another file than before, and the whole lines that are new."""
        mark = mark_of(self._path)
        if mark is None:
            was, self._mark, self._offset = self._mark, None, 0
            return was is not None, b""
        if mark == self._mark:
            return False, b""
        anew = self._mark is None or mark[:2] != self._mark[:2] or mark[2] < self._offset
        try:
            with self._path.open("rb") as file:
                file.seek(0 if anew else self._offset)
                new = file.read()
        except OSError:
            return False, b""
        whole = new.rfind(b"\n") + 1
        self._mark, self._offset = mark, (0 if anew else self._offset) + whole
        return anew, new[:whole]


class SmallFile:
    """A JSON object in a file, read again only if the file has changed."""

    def __init__(self, path: Path) -> None:
        """Nothing is read yet."""
        self._path = path
        self._found: dict[str, Any] | None = None
        self._mark: Mark | None = None

    def read(self) -> dict[str, Any] | None:
        """Return the object; None if there is none, or if it is not whole."""
        mark = mark_of(self._path)
        if mark != self._mark:
            self._mark, self._found = mark, None if mark is None else _object_in(self._path)
        return self._found


def mark_of(path: Path) -> Mark | None:
    """Return what changes when a file does: the file, its size and its time; None for no file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def objects_in(lines: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects in lines; others are left out."""
    return [found for line in lines.splitlines() if (found := _parsed(line)) is not None]


def _object_in(path: Path) -> dict[str, Any] | None:
    try:
        return _parsed(path.read_bytes())
    except OSError:
        return None


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def age_of(path: Path, now: float) -> float:
    """Return how many seconds ago a file was written; infinite for no file."""
    try:
        return now - os.stat(path).st_mtime
    except OSError:
        return float("inf")
