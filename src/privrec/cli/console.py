"""What the commands share: tables, the progress bar, JSON, and errors as one line."""

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
"""What shells give a command that Ctrl-C has ended."""
NOTHING_KEPT = "stopped; nothing is kept, and the same command begins anew"
EXPERIMENTS_KEPT = "stopped; what is trained is kept, and the same command goes on from there"
"""What a command says that trains several runs in a folder."""


class _Console(Console):
    """A console that leaves it to `plain_errors` what happens if nobody reads any more."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


_WIDE = 200
"""The width where the output is no terminal: wide enough to have a row of a table on one line."""
_NO_EDGE = {"show_edge": False, "pad_edge": False}
_NARROW = 16
"""A column of text that is longer may be folded down to so many places. Chosen by hand."""


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def screen_width() -> int:
    """Return how many places a line has: $COLUMNS, the terminal's, or many where there is none."""
    return shutil.get_terminal_size(fallback=(_WIDE, 24)).columns


def _show(shown: Any, **how: Any) -> None:
    """Print to what is stdout now, in as many places as a line has."""
    # With a height: rich takes 80 places on a dumb terminal unless both are given.
    _Console(width=screen_width(), height=24).print(shown, **how)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns of numbers are aligned right.

    Nothing is cut: columns of text are wrapped. A table that is too wide loses its frame; where
    its figures still do not fit beside each other, a row becomes a block of lines.
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
    # `Text`, because rich reads square brackets in a plain string as markup.
    table = Table(**frame)
    for place, places in enumerate(_shrunk(wanted, least, room)):
        figures = place > 0 and any(map(_is_figure, cells[place][1:]))
        justify: Any = "right" if figures else "left"
        # The width is given: rich would narrow columns below the least that they need.
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
    """Print what is promised in short.

    In a terminal it is a box in the colour of its strength; the word is always there. `in_full`
    says where the whole statement is.
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

    A warning about privacy is also one line on stderr. Ctrl-C ends the command with `stopped`, or
    what it returns: what is kept, and how to go on. Nothing is said if nobody reads stdout any
    more: whoever closed it has what was wanted.
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
    """Return the name of a data set as a part of a file's name."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(data).name)


def _safe(text: str) -> Text:
    """Return text that may come from data, made safe for a terminal."""
    return Text(safe_text(text))


def _is_figure(text: str) -> bool:
    """Return whether a cell is a number, perhaps with its sign, and with what follows ± it."""
    digits = text.removesuffix(" %").lstrip("+-").replace(" ± ", "")
    return digits.replace(",", "").replace(".", "").isdecimal()


def _least_width(name: str, cells: Sequence[str]) -> int:
    """Return the least width of a column: its name and figures are never folded, long words may be.

    A name is folded between its words alone.
    """
    whole = [cell_len(cell) for cell in cells if _is_figure(cell)]
    whole += [cell_len(word) for word in name.split()]
    words = [cell_len(word) for cell in cells for word in cell.split()]
    return max([1, *whole, *(min(word, _NARROW) for word in words)])


def _shrunk(wanted: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return widths that fit into `room`: what is too much is taken where most can be spared.

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
    """Forget what could not be written: Python would try it again, and complain, at its end."""
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
