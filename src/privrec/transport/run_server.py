"""Run the server of a federation: train by its terms until the run is done."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Literal

from privrec.errors import FederationError
from privrec.protocol.certificates import verify
from privrec.protocol.enrolment import read_server, running
from privrec.protocol.server import Server, ServerStatus, Unmasking
from privrec.protocol.terms import check_transport, phases_of, plan_of, promised
from privrec.runs import folder as records
from privrec.runs.loop import play_stages
from privrec.simulate.cost import check_memory
from privrec.transport.link import Link, open_link
from privrec.transport.metrics import Spent, text
from privrec.types import OnProgress

OpenLink = Callable[..., AbstractContextManager[Link]]


def serve(
    path: Path,
    *,
    host: str,
    port: int,
    wait: float = 300.0,
    watch: Callable[[ServerStatus], None] = lambda status: None,
    check: Callable[[], None] = lambda: None,
    on_progress: OnProgress | None = None,
    connect: OpenLink = open_link,
    transport: Literal["flower"] | None = None,
) -> Path:
    """Train by the terms until the run is done; return the run folder.

    A run that was stopped goes on from its last round. `wait` is the time in seconds that nodes
    have to connect before the first round. Meanwhile `check` is called every half second; it may
    raise. `watch` is called with the status of the server after each change. `connect` opens the
    link to the nodes; its `transport` must be that of the terms.
    """
    folder, terms, catalogue = read_server(path)
    check_transport(terms, transport)
    plan = plan_of(terms, catalogue)
    check_memory(phases_of(plan))
    keys = [member.public_key for member in terms.members]
    if folder.run.is_dir() and not records.is_untouched(folder.run):
        place, resume = records.read_run(folder.run)[0], True
    else:
        public = folder.catalogue.read_text(encoding="utf-8")
        place, resume = records.create_run(folder.run, terms.settings, public, None), False
    with records.locked(place), running(folder):
        if not place.params_path.is_file():
            records.clear_leftovers(place)
            status, counts = ServerStatus(), Counter[str]()
            spent = Spent(place, terms.settings.budget.delta)
            show = partial(text, status, counts, len(keys), spent)
            with connect(path, keys, host=host, port=port, metrics=show, counts=counts) as link:
                server = Server(
                    terms=terms,
                    ask=link.ask,
                    online=partial(status.look, link.online),
                    status=status,
                    verify=lambda node, content, made: verify(keys[node], content, made),
                    epsilon=promised(terms, phases_of(plan))[1],
                    watch=partial(_show, watch, folder.status),
                    unmasking=Unmasking(folder.unmasking),
                )
                _gather(server, wait, check)
                play_stages(
                    plan,
                    place,
                    resume=resume,
                    on_progress=on_progress,
                    network=server.network(),
                )
                status.step = "done"
                server.watch(status)
    return folder.run


def _gather(server: Server, wait: float, check: Callable[[], None]) -> None:
    """Wait until all nodes are online. After `wait` seconds, raise if too few are online."""
    end, members = time.monotonic() + wait, len(server.terms.members)
    least = server.terms.threshold(members) if server.terms.secure_sum else 1
    there = -1
    while (now := len(server.online())) < members:
        check()
        if now != there:
            there = now
            server.status.step = f"waiting for nodes: {now} of {members} are there"
            server.watch(server.status)
        if time.monotonic() > end:
            if now >= least:
                return
            away = sorted(set(range(members)) - server.status.online)
            names = ", ".join(server.terms.members[k].name or str(k) for k in away)
            raise FederationError(
                f"{now} of {members} nodes are there after {wait:g} s; at least {least} are needed;"
                f" missing: {names}"
            )
        time.sleep(0.5)


def _show(watch: Callable[[ServerStatus], None], path: Path, status: ServerStatus) -> None:
    """Write the status to its file, and call `watch`."""
    status.write(path)
    watch(status)
