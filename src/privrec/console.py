"""What the commands share: tables, progress bars, JSON, and errors as one line."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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

from privrec.errors import PrivrecError

EXIT_WRONG_INPUT = 2
out = Console()
err = Console(stderr=True)


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is words, the others are figures."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def print_line(text: str) -> None:
    """Print plain words, wrapped to the terminal."""
    out.print(Text(text))


class _Rate(ProgressColumn):
    """How many a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.1f}/s" if speed else "")


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback (what, done, total) that draws a bar; none when stderr is no terminal."""
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate()]
    with Progress(
        *columns, TimeRemainingColumn(), console=err, disable=not err.is_terminal, transient=True
    ) as bar:
        tasks: dict[str, Any] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield advance


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what the user can put right into one line on stderr and exit code 2."""
    try:
        yield
    except PrivrecError as error:
        _leave(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _leave(f"{where}{error.strerror or error}")


def _leave(message: str) -> None:
    line = " ".join(message.split())
    sys.stderr.write(f"privrec: {line}\n")
    raise typer.Exit(EXIT_WRONG_INPUT)
