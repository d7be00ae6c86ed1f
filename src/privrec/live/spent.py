"""The ε of a run so far, computed beside the requests: the accountant takes its time."""

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from privrec.live.tail import Tail
from privrec.privacy.ledger import PrivacyLedger
from privrec.runs.ledgerfile import checked_lines, release_of
from privrec.runs.records import RunFolder

_PATIENCE = 20.0
"""After a computation it rests for so many times as long, so that it takes 5 % of a core at most.
Chosen by hand."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What a ledger has so far: all releases, those with noise, and the kinds of noise.

    Releases of `volunteers` alone are in neither: they cost other people nothing.
    """

    all: PrivacyLedger = field(default_factory=PrivacyLedger)
    noised: PrivacyLedger = field(default_factory=PrivacyLedger)
    kinds: frozenset[str] = frozenset()
    volunteers: int = 0


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
            self._chain, self._lines = lines[-1]["chain"], self._lines + len(lines)
            for line in lines:
                self._count(line)
        return self.counted

    def _count(self, line: Mapping[str, Any]) -> None:
        release, before = release_of(dict(line)), self.counted
        if line["people"] == "volunteers":
            self.counted = replace(before, volunteers=before.volunteers + 1)
            return
        kinds = before.kinds | {str(line["noise"])}
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
