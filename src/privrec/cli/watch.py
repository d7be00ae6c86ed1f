"""`privrec watch`: a page about a run while it trains, and the accountant as a form."""

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from privrec.cli.console import plain_errors, print_json, print_line
from privrec.cli.options import JsonOption

PortOption = Annotated[
    int, typer.Option(help="The port.", min=0, max=65535, show_default="a free one")
]
OpenOption = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


def watch(
    run: Annotated[
        Path | None, typer.Argument(metavar="[RUN]", help="A run folder; it need not exist yet.")
    ] = None,
    port: PortOption = 0,
    open_: OpenOption = False,
    json_: JsonOption = False,
) -> None:
    """Serve a page about a run to this machine: rounds, time left, epsilon, validation, memory.

    It works while the run trains, after it was stopped, and when it is finished; it changes nothing
    in the folder. Without RUN it serves the calculator of 'privrec privacy' alone. Ctrl-C ends it.
    """
    with plain_errors(stopped="the page has ended; the run goes on"):
        import asyncio

        from privrec.live.background import step_back
        from privrec.live.server import HOST, serve
        from privrec.live.site import site_of
        from privrec.live.status import check_watchable

        if run is not None:
            check_watchable(run)
        site = site_of(run)

        def ready(opened: int) -> None:
            addresses = {
                name: f"http://{HOST}:{opened}{path}?token={site.token}"
                for name, path in (("url", "/"), ("calculator", "/calculator"))
            }
            if json_:
                print_json({**addresses, "port": opened})
            else:
                waits = run is not None and not run.exists()
                if waits:
                    print_line(f"{run} does not exist yet: waiting for it")
                print_line(f"{run or 'the calculator'}: {addresses['url']}")
            sys.stdout.flush()
            if open_:
                webbrowser.open(addresses["url"])
            step_back()

        asyncio.run(serve(site, port, ready))
