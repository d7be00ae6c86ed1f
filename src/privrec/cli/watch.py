"""`privrec watch`, a page about a run while it trains; `privrec report`, the report of a run."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from privrec.cli.console import plain_errors, print_json, print_line
from privrec.cli.options import JsonOption, RunArgument

PortOption = Annotated[
    int, typer.Option(help="The port.", min=0, max=65535, show_default="a free one")
]


def watch(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run folder, which need not exist yet, or the folder of a federation's server.",
        ),
    ],
    port: PortOption = 0,
    json_: JsonOption = False,
) -> None:
    """Serve a page about a run to this machine: rounds, time left, epsilon, validation, memory.

    It works while the run trains, after a stop, and at the end; it changes nothing in the folder.
    Ctrl-C ends the command.
    """
    with plain_errors(stopped="the page has ended"):
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
            step_back()

        serve(site, port, ready)


def report(run: RunArgument, json_: JsonOption = False) -> None:
    """Write the report of a run again, from what is in its folder, and print its path.

    Nothing is computed from people's data. If the run was not evaluated, the page has its privacy
    guarantee, its rounds and its settings.
    """
    with plain_errors():
        from privrec.runs.api import open_run
        from privrec.show.write import write_report

        opened = open_run(run)
        path = write_report(opened)
        evaluated = opened.folder.evaluation_path.is_file()
        if json_:
            pages = {"report": str(path), "privacy": str(opened.folder.privacy_path)}
            print_json({**pages, "evaluated": evaluated})
            return
        print_line(f"report: {path}")
        if not evaluated:
            print_line(f"nobody was tested yet: privrec evaluate {shlex.quote(str(run))}")
