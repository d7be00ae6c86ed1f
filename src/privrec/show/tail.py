"""Reads what is new in files that grow; and the ε of a run so far, computed in a thread beside."""

import contextlib
import json
import math
import stat
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from privrec.errors import RunFolderError
from privrec.privacy.ledger import PrivacyLedger
from privrec.runs.documents import NOT_JSON, Document
from privrec.runs.folder import RunFolder
from privrec.runs.ledger import LedgerLine, checked_lines

AnyDocument = TypeVar("AnyDocument", bound=Document)
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


def documents_in(lines: bytes, kind: type[AnyDocument]) -> list[AnyDocument]:
    """Return the lines that are documents of a kind; others are left out."""
    found = []
    for line in lines.splitlines():
        with contextlib.suppress(*NOT_JSON):
            found.append(kind.model_validate_json(line))
    return found


def small_object(path: Path) -> dict[str, object]:
    """Return the JSON object in a small file; an empty one where there is none."""
    mark = mark_of(path)
    if mark is None or mark[2] > SMALL:
        return {}
    try:
        found = json.loads(path.read_bytes())
    except (OSError, *NOT_JSON):
        return {}
    return found if isinstance(found, dict) else {}


_PATIENCE = 20.0
"""After a computation it rests for so many times as long, so that it takes 5 % of a core at most.
Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What a ledger has so far: all releases, those with noise, and the kinds of noise."""

    all: PrivacyLedger = field(default_factory=PrivacyLedger)
    noised: PrivacyLedger = field(default_factory=PrivacyLedger)
    kinds: frozenset[str] = frozenset()


class LedgerTail:
    """The ledger of a run, read as it grows. Every line is checked."""

    def __init__(self, folder: RunFolder) -> None:
        """Nothing is read yet."""
        self._path, self._tail = folder.ledger_path, Tail(folder.ledger_path)
        self._chain, self._lines = "", 0
        self.counted = Counted()

    @property
    def is_behind(self) -> bool:
        """Whether the ledger has more lines than were read."""
        return self._tail.is_behind

    def read(self) -> Counted:
        """Return what the ledger counts now; raise if it is damaged."""
        anew, text = self._tail.read()
        if anew:
            self._chain, self._lines, self.counted = "", 0, Counted()
        if text:
            lines = checked_lines(self._path, text, self._chain, self._lines + 1)
            self._chain, self._lines = lines[-1].chain, self._lines + len(lines)
            for line in lines:
                self._count(line)
        return self.counted

    def _count(self, line: LedgerLine) -> None:
        release, before = line.release, self.counted
        kinds = before.kinds | {line.noise}
        noised = before.noised.record(release) if release.is_private else before.noised
        self.counted = replace(before, all=before.all.record(release), noised=noised, kinds=kinds)


@dataclass(frozen=True, slots=True)
class Figure:
    """The newest ε, which is of the first so many releases; or why there is none."""

    epsilon: float | None = None
    releases: int = 0
    problem: str | None = None


class Spent:
    """Computes ε in a thread of its own."""

    def __init__(self) -> None:
        """Nothing is computed yet."""
        self._lock = threading.Lock()
        self._busy = False
        self._rest_until = 0.0
        self._done: tuple[PrivacyLedger, float] | None = None
        self._figure = Figure()

    def epsilon(self, noised: PrivacyLedger, delta: float, *, at_once: bool = False) -> Figure:
        """Return the newest ε of the noised releases; `at_once` does not rest before a new one."""
        asked = (noised, delta)
        with self._lock:
            is_due = not self._busy and (at_once or time.monotonic() >= self._rest_until)
            if noised.entries and asked != self._done and is_due:
                self._busy = True
                threading.Thread(target=self._compute, args=asked, daemon=True).start()
            return self._figure

    def _compute(self, noised: PrivacyLedger, delta: float) -> None:
        started = time.monotonic()
        try:
            epsilon = noised.epsilon(delta)
            found = Figure(epsilon, noised.releases)
            if math.isinf(epsilon):
                found = Figure(None, noised.releases, "there is too little noise")
        except Exception as error:  # A ledger may be of any kind; the page must say something.
            found = Figure(None, noised.releases, " ".join(str(error).split()) or repr(error))
        took = time.monotonic() - started
        with self._lock:
            first = self._done is None
            self._figure = found
            self._done, self._busy = (noised, delta), False
            # The first time includes importing the accountant.
            self._rest_until = time.monotonic() + (1.0 if first else _PATIENCE * took)
