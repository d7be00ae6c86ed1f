"""The progress bar of Python and of the command line: one line in a terminal or a notebook.

This module does not import JAX, so that commands without JAX start quickly.
"""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from privrec.errors import SettingsError, got
from privrec.types import OnProgress

_EVERY = 0.1
"""The least number of seconds between two updates of the bar. Chosen by hand."""
_WIDTH = 20


@contextmanager
def progress_bar(
    on_progress: OnProgress | None, progress: bool = True
) -> Iterator[OnProgress | None]:
    """Yield the callback for progress: `on_progress` if it is given, else one that draws a bar.

    Without `on_progress` the callback is None if `progress` is false, or if the output is neither a
    notebook nor a terminal.
    """
    if on_progress is not None and not callable(on_progress):
        raise SettingsError(f"`on_progress` must be a function; got {got(on_progress)}")
    out = _screen() if on_progress is None and progress else None
    if out is None:
        yield on_progress
        return
    bar = _Bar(out)
    try:
        yield bar.tell
    finally:
        bar.draw("")


class _Bar:
    """Draws the count, the rate and the remaining time of each unfinished step."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._length, self._drawn = out, 0, -_EVERY
        self._begun: dict[str, tuple[float, int]] = {}
        self._reached: dict[str, int] = {}
        self._lines: dict[str, str] = {}

    def tell(self, what: str, done: int, total: int) -> None:
        """Show that `done` of `total` units of the step `what` are done."""
        now = time.monotonic()
        if done < self._reached.get(what, done):
            del self._begun[what]  # The count is smaller: the step began again in another round.
        start, before = self._begun.setdefault(what, (now, done))
        self._reached[what] = done
        if now - self._drawn < _EVERY and 0 < done < total:
            return
        self._drawn = now
        rate = (done - before) / (now - start) if now > start else 0.0
        full = round(_WIDTH * done / total) if total else _WIDTH
        blocks = "█" * full + "░" * (_WIDTH - full)
        self._lines[what] = line_of(what, done, total, rate)
        self.draw(f"{blocks} {' · '.join(self._lines.values())}")
        if done >= total:
            del self._lines[what]

    def draw(self, line: str) -> None:
        """Replace the line on the screen; an empty line removes the bar."""
        # Leave the last column free: some terminals start a new line after a full line.
        line = line[: max(shutil.get_terminal_size().columns - 1, 1)]
        self._out.write(f"\r{line:<{self._length}}" + ("" if line else "\r"))
        self._out.flush()
        self._length = len(line)


def line_of(what: str, done: int, total: int, rate: float) -> str:
    """Return the progress of a step as text; `rate` is 0 if it is not known.

    >>> line_of("rounds", 30, 400, 5.0)
    'rounds 30/400, 5.0/s, 1:14 left'
    """
    parts = [f"{what} {done:,}/{total:,}"]
    if rate > 0 and done < total:
        left = round((total - done) / rate)
        parts += [f"{rate:,.1f}/s", f"{left // 60}:{left % 60:02d} left"]
    return ", ".join(parts)


def _screen() -> TextIO | None:
    """Return the stream for the bar: stdout in a notebook, stderr in a terminal, else None."""
    ipython: Any = sys.modules.get("IPython")
    if ipython is not None and hasattr(ipython.get_ipython(), "kernel"):
        return sys.stdout
    return sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
