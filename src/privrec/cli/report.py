"""`privrec report`: the pages of a run, written again from what is in its folder."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from privrec.cli.console import plain_errors, print_json, print_line
from privrec.cli.options import JsonOption, RunArgument


def report(
    run: RunArgument,
    open_: Annotated[
        bool, typer.Option("--open", help="Open the report in the web browser.")
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Write the report of a run again, from what is in its folder, and print its path.

    Nothing is computed from people's data. A run that was not evaluated gets a page of what is
    known: what it promises, its rounds and its settings.
    """
    with plain_errors():
        from privrec.runs.api import open_run

        opened = open_run(run)
        path = opened.write_report()
        evaluated = opened.folder.evaluation_path.is_file()
        shown = open_ and _opened(path)
        if json_:
            pages = {"report": str(path), "privacy": str(opened.folder.privacy_path)}
            print_json({**pages, "evaluated": evaluated, "opened": shown})
            return
        print_line(f"report: {path}")
        if not evaluated:
            print_line(f"nobody was tested yet: privrec evaluate {shlex.quote(str(run))}")
        if open_ and not shown:
            print_line(f"there is no browser or no screen here; open {path.resolve()} yourself")


def _opened(path: Path) -> bool:
    """Return whether a browser was asked to show a page."""
    import webbrowser

    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or _wayland()):
        return False  # A browser for the terminal would take the terminal over.
    try:
        return webbrowser.open(path.resolve().as_uri())
    except (webbrowser.Error, OSError):
        return False


def _wayland() -> bool:
    return bool(os.environ.get("WAYLAND_DISPLAY"))
