"""The progress bar of Python and of the command line: one line in a terminal, or in a notebook.

It imports little, so that a command which needs no JAX can show it.
"""

import html
import importlib
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from privrec.errors import SettingsError, got
from privrec.types import OnProgress

_Draw = Callable[[str, float], None]
"""Shows a line of text and the share that is done; an empty text removes the bar."""

_EVERY = 0.1
"""Seconds between two drawings. Chosen by hand."""
_WIDTH = 20


@contextmanager
def progress_bar(
    on_progress: OnProgress | None, progress: bool = True
) -> Iterator[OnProgress | None]:
    """Yield what is to be told of progress: `on_progress` if there is one, else a bar.

    It is None, and nothing is shown, if `progress` is false or the output is neither a notebook nor
    a terminal.
    """
    if on_progress is not None and not callable(on_progress):
        raise SettingsError(f"`on_progress` must be a function; got {got(on_progress)}")
    draw = _in_notebook() or _in_terminal() if on_progress is None and progress else None
    if draw is None:
        yield on_progress
        return
    try:
        yield _timed(draw)
    finally:
        draw("", 0.0)


def _timed(draw: _Draw) -> OnProgress:
    """Return what draws a step's count, rate and time left, and not too often."""
    begun: dict[str, tuple[float, int]] = {}
    reached: dict[str, int] = {}
    drawn = -_EVERY

    def tell(what: str, done: int, total: int) -> None:
        nonlocal drawn
        now = time.monotonic()
        if done < reached.get(what, done):
            del begun[what]  # The same step again, in another round.
        start, before = begun.setdefault(what, (now, done))
        reached[what] = done
        if now - drawn < _EVERY and 0 < done < total:
            return
        drawn = now
        rate = (done - before) / (now - start) if now > start else 0.0
        draw(line_of(what, done, total, rate), done / total if total else 1.0)

    return tell


def line_of(what: str, done: int, total: int, rate: float) -> str:
    """Return a step in words; `rate` is 0 where it is not known. At the end no time is left.

    >>> line_of("rounds", 30, 400, 5.0)
    'rounds 30/400, 5.0/s, 1:14 left'
    """
    parts = [f"{what} {done:,}/{total:,}"]
    if rate > 0 and done < total:
        left = round((total - done) / rate)
        parts += [f"{rate:,.1f}/s", f"{left // 60}:{left % 60:02d} left"]
    return ", ".join(parts)


def _in_terminal() -> _Draw | None:
    out = sys.stderr
    if out is None or not out.isatty():
        return None
    last = 0

    def draw(text: str, share: float) -> None:
        nonlocal last
        full = round(_WIDTH * share)
        line = f"{'█' * full}{'░' * (_WIDTH - full)} {text}" if text else ""
        # One column is left free: some terminals begin a new line after the last one.
        line = line[: max(shutil.get_terminal_size().columns - 1, 1)]
        out.write(f"\r{line:<{last}}" + ("" if text else "\r"))
        out.flush()
        last = len(line)

    return draw


def _in_notebook() -> _Draw | None:
    """Return a bar in the output of a notebook's cell; None if Python does not run in one."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if not hasattr(shell, "kernel"):
        return None
    display = importlib.import_module("IPython.display").display
    handle: Any = None

    def draw(text: str, share: float) -> None:
        nonlocal handle
        shape = f'<progress value="{share:.3f}" max="1"></progress> {html.escape(text)}'
        bundle = {"text/plain": text, "text/html": f"<div>{shape}</div>" if text else ""}
        if handle is not None:
            handle.update(bundle, raw=True)
        elif text:
            handle = display(bundle, raw=True, display_id=True)

    return draw
