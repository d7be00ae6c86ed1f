"""What the commands share: tables, progress bars, JSON, and errors as one line."""

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from privrec.data.text import safe_text
from privrec.errors import PrivacyWarning, PrivrecError

EXIT_WRONG_INPUT = 2
out = Console()
err = Console(stderr=True)
_WIDE = 200


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, wide: bool = False
) -> None:
    """Print a table; columns of numbers are aligned right.

    A `wide` one is not folded where the output is no terminal.
    """
    # `Text`, because rich reads square brackets in a plain string as markup.
    table = Table(title=_safe(title), title_justify="left")
    for place, column in enumerate(columns):
        figures = any(_is_figure(row[place]) for row in rows)
        table.add_column(_safe(column), justify="right" if place and figures else "left")
    for row in rows:
        table.add_row(*map(_safe, row))
    where = Console(width=_WIDE) if wide and not sys.stdout.isatty() else out
    where.print(table)


def print_line(text: str) -> None:
    """Print plain text, wrapped in a terminal and unwrapped otherwise."""
    out.print(_safe(text), soft_wrap=not sys.stdout.isatty())


def time_text(seconds: float) -> str:
    """Return a duration in words, rounded.

    >>> time_text(0.3), time_text(42.4), time_text(250), time_text(9000)
    ('1 second', '42 seconds', '4 minutes', '2.5 hours')
    """
    if seconds < 1.5:
        return "1 second"
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


class _Rate(ProgressColumn):
    """The column that shows the rate per second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.1f}/s" if speed else "")


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback (what, done, total) that draws a bar if stderr is a terminal."""
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate()]
    # `err.is_terminal` is not used: with FORCE_COLOR it is true for a file.
    disable = not sys.stderr.isatty()
    with Progress(
        *columns, TimeRemainingColumn(), console=err, disable=disable, transient=True
    ) as bar:
        tasks: dict[str, Any] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield advance


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn errors that the user can correct into one line on stderr and exit code 2.

    A warning about privacy is also one line on stderr.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", PrivacyWarning)
            warnings.showwarning = _show_warning
            yield
    except PrivrecError as error:
        _leave(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _leave(f"{where}{error.strerror or error}")


def file_name(data: str) -> str:
    """Return the name of a data set as a part of a file's name."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in Path(data).name)


def _safe(text: str) -> Text:
    """Return text that may come from data, made safe for a terminal."""
    return Text(safe_text(text))


def _is_figure(text: str) -> bool:
    return text.replace(",", "").replace(".", "").removeprefix("-").isdecimal()


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    sys.stderr.write(f"privrec: warning: {safe_text(' '.join(str(message).split()))}\n")


def _leave(message: str) -> None:
    line = safe_text(" ".join(message.split()))
    sys.stderr.write(f"privrec: {line}\n")
    raise typer.Exit(EXIT_WRONG_INPUT)
