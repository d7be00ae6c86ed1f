"""Functions that all commands share: tables, the progress bar, JSON, and errors in one line."""

import contextlib
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from privrec.data.text import safe_text
from privrec.errors import PrivacyWarning, PrivrecError

if TYPE_CHECKING:
    from privrec.privacy.statement import PrivacyReport
    from privrec.runs.documents import Privacy

EXIT_WRONG_INPUT = 2
EXIT_STOPPED = 130
"""The exit code of a command that Ctrl-C has ended, by the convention of shells."""
NOTHING_KEPT = "stopped; nothing is kept, and the same command begins anew"
EXPERIMENTS_KEPT = "stopped; what is trained is kept, and the same command goes on from there"
"""The message of a stopped command that trains several runs in a folder."""


class _Console(Console):
    """A console that raises `BrokenPipeError` if stdout is closed; `plain_errors` handles it."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


_WIDE = 200
"""The width if the output is not a terminal; a row of a table then fits on one line."""
_NO_EDGE = {"show_edge": False, "pad_edge": False}
_NARROW = 16
"""A column of longer text may be narrowed to this many characters. Chosen by hand."""


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def screen_width() -> int:
    """Return the characters per line: $COLUMNS, the terminal's width, or `_WIDE` without either."""
    return shutil.get_terminal_size(fallback=(_WIDE, 24)).columns


def _show(shown: Any, **how: Any) -> None:
    # Give the height too: otherwise rich uses a width of 80 on a dumb terminal.
    _Console(width=screen_width(), height=24).print(shown, **how)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns of numbers are aligned right.

    Text is wrapped, never cut. A table that is too wide is printed without its frame. If it is
    still too wide, each row is printed as a block of lines.
    """
    width = screen_width()
    cells = [[safe_text(row[k]) for row in (columns, *rows)] for k in range(len(columns))]
    least = [_least_width(name, column[1:]) for name, column in zip(columns, cells, strict=True)]
    bare = 2 * (len(columns) - 1)
    framed = sum(least) + 3 * len(columns) + 1 <= width
    if not framed and sum(least) + bare > width:
        _print_blocks(title, columns, rows)
        return
    room = width - (3 * len(columns) + 1 if framed else bare)
    wanted = [max(least[k], *map(cell_len, column)) for k, column in enumerate(cells)]
    _show(_safe(title), style="italic")
    frame: Any = {} if framed else {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0), **_NO_EDGE}
    # `_safe` returns `Text`, because rich reads square brackets in a plain string as markup.
    table = Table(**frame)
    for place, places in enumerate(_shrunk(wanted, least, room)):
        figures = place > 0 and any(map(_is_figure, cells[place][1:]))
        justify: Any = "right" if figures else "left"
        # Give the width, because rich would make columns narrower than their least width.
        table.add_column(_safe(columns[place]), justify=justify, width=places, overflow="fold")
    for row in rows:
        table.add_row(*map(_safe, row))
    _show(table)


def print_line(text: str, *, indent: int = 0) -> None:
    """Print plain text, wrapped in a terminal and unwrapped otherwise."""
    if sys.stdout.isatty():
        _show(Padding(_safe(text), (0, 0, 0, indent)))
    else:
        _show(_safe(" " * indent + text), soft_wrap=True)


_COLOURS = {"none": "red", "weak": "yellow", "moderate": "blue", "strong": "green"}


def print_privacy(privacy: "Privacy | PrivacyReport", in_full: str) -> None:
    """Print a short form of the privacy guarantee.

    In a terminal it is in a box, whose colour shows the strength of the guarantee; the strength is
    also printed as a word. `in_full` says where the whole statement is.
    """
    from privrec.privacy.statement import SCALE, headline

    lines = [privacy.short]
    if privacy.epsilon is not None:
        lines.append(f"scale: {SCALE}")
    if privacy.not_covered:
        lines += ["not covered:", *(f"- {one}" for one in privacy.not_covered)]
    lines.append(f"in full: {in_full}")
    title = f"privacy: {headline(privacy.as_json())}"
    if not sys.stdout.isatty():
        for line in (title, *lines):
            print_line(line)
        return
    text, colour = "\n".join(map(safe_text, lines)), _COLOURS[privacy.strength]
    _show(Panel(Text(text), title=Text(title, "bold"), title_align="left", border_style=colour))


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback (what, done, total) that draws a bar if stderr is a terminal."""
    from privrec.runs.bar import progress_bar

    with progress_bar(None) as tell:
        yield tell or (lambda what, done, total: None)


@contextmanager
def plain_errors(stopped: Callable[[], str] | str = NOTHING_KEPT) -> Iterator[None]:
    """Turn errors that the user can correct into one line on stderr and exit code 2.

    A warning about privacy is also one line on stderr. Ctrl-C ends the command with the message
    `stopped` (or its result if it is a function): what is kept, and how to continue. If stdout was
    closed by the program that reads it, such as `head`, the command ends without an error.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", PrivacyWarning)
            warnings.showwarning = _show_warning
            yield
            sys.stdout.flush()
    except PrivrecError as error:
        _leave(str(error))
    except KeyboardInterrupt:
        _leave(stopped if isinstance(stopped, str) else stopped(), EXIT_STOPPED)
    except BrokenPipeError:
        _close_stdout()
        raise typer.Exit(0) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _close_stdout()
        _leave(f"{where}{error.strerror or error}")


def file_name(data: str) -> str:
    """Return the name of a data set without characters that are unsafe in a file name."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(data).name)


def _safe(text: str) -> Text:
    """Return text that may come from data, made safe for a terminal."""
    return Text(safe_text(text))


def _is_figure(text: str) -> bool:
    """Return whether a cell is a number, perhaps with a sign, ± and a second number, or " %"."""
    digits = text.removesuffix(" %").lstrip("+-").replace(" ± ", "")
    return digits.replace(",", "").replace(".", "").isdecimal()


def _least_width(name: str, cells: Sequence[str]) -> int:
    """Return the least width of a column.

    Numbers and words of the column's name are never split. Other words may be split if they are
    longer than `_NARROW`.
    """
    whole = [cell_len(cell) for cell in cells if _is_figure(cell)]
    whole += [cell_len(word) for word in name.split()]
    words = [cell_len(word) for cell in cells for word in cell.split()]
    return max([1, *whole, *(min(word, _NARROW) for word in words)])


def _shrunk(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return widths with a sum of at most `room`: the column with most spare width shrinks first.

    >>> _shrunk([30, 5, 12], [16, 5, 9], 35)
    [18, 5, 12]
    """
    widths = [min(width, max(room, low)) for width, low in zip(wanted, least, strict=True)]
    while sum(widths) > max(room, sum(least)):
        spare = [width - low for width, low in zip(widths, least, strict=True)]
        widths[spare.index(max(spare))] -= 1
    return widths


def _print_blocks(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as a block: its first cell, then a line for each other column."""
    _show(_safe(title), style="italic")
    for first, *rest in rows:
        heading = f"{columns[0]} {first}" if _is_figure(first) else first
        lines = [f"  {name}: {cell}" for name, cell in zip(columns[1:], rest, strict=True)]
        for text in (heading, *lines):
            _show(_safe(text))


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    sys.stderr.write(f"privrec: warning: {safe_text(' '.join(str(message).split()))}\n")


def _close_stdout() -> None:
    """Discard unwritten output; otherwise Python would report an error at its exit."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _leave(message: str, code: int = EXIT_WRONG_INPUT) -> None:
    line = safe_text(" ".join(message.split()))
    with contextlib.suppress(OSError):
        sys.stderr.write(f"privrec: {line}\n")
    raise typer.Exit(code)
