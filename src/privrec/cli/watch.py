"""`privrec watch` (a page about a run while it trains) and `privrec report` (its pages)."""

import contextlib
import html
import os
import shlex
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from privrec.cli.console import plain_errors, print_json, print_line
from privrec.cli.options import JsonOption, RunArgument

PortOption = Annotated[
    int, typer.Option(help="The port.", min=0, max=65535, show_default="a free one")
]
OpenOption = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


def watch(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder; it need not exist yet.")
    ],
    port: PortOption = 0,
    open_: OpenOption = False,
    json_: JsonOption = False,
) -> None:
    """Serve a page about a run to this machine: rounds, time left, epsilon, validation, memory.

    It works while the run trains, after it was stopped, and when it is finished; it changes nothing
    in the folder. Ctrl-C ends it.
    """
    with plain_errors(stopped="the page has ended"), contextlib.ExitStack() as until_the_end:
        from privrec.show.server import HOST, serve, site_of, step_back
        from privrec.show.status import check_watchable

        check_watchable(run)
        site = site_of(run)

        def ready(opened: int) -> None:
            url = f"http://{HOST}:{opened}/?token={site.token}"
            if json_:
                print_json({"url": url, "port": opened})
            else:
                if not run.exists():
                    print_line(f"{run} does not exist yet: waiting for it")
                print_line(f"{run}: {url}")
            sys.stdout.flush()
            if open_:
                with contextlib.suppress(webbrowser.Error):
                    webbrowser.open(until_the_end.enter_context(opening_page(url)))
            step_back()

        serve(site, port, ready)


@contextlib.contextmanager
def opening_page(url: str) -> Iterator[str]:
    """Yield the address of a file of this user alone that leads to `url`; it is removed at the end.

    The command line of a browser can be read by every user of the machine, and `url` has the token.
    """
    place, name = tempfile.mkstemp(prefix="privrec-watch-", suffix=".html")
    try:
        with os.fdopen(place, "w", encoding="utf-8") as out:
            leads = html.escape(url)
            out.write('<!doctype html><meta charset="utf-8"><title>privrec</title>')
            out.write(
                f'<meta http-equiv="refresh" content="0;url={leads}"><a href="{leads}">open</a>'
            )
        yield Path(name).as_uri()
    finally:
        Path(name).unlink(missing_ok=True)


def report(
    run: RunArgument,
    open_: OpenOption = False,
    json_: JsonOption = False,
) -> None:
    """Write the report of a run again, from what is in its folder, and print its path.

    Nothing is computed from people's data. A run that was not evaluated gets a page of what is
    known: what it promises, its rounds and its settings.
    """
    with plain_errors():
        from privrec.runs.api import open_run
        from privrec.show.write import write_report

        opened = open_run(run)
        path = write_report(opened)
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
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform == "linux" and not screen:
        return False  # A browser for the terminal would take the terminal over.
    try:
        return webbrowser.open(path.resolve().as_uri())
    except (webbrowser.Error, OSError):
        return False
