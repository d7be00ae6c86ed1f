"""A federation's server: train by its terms until the run is done."""

import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from privrec.algorithms.recipes import settings_of
from privrec.data.catalogue import Catalogue
from privrec.errors import FederationError, SettingsError
from privrec.protocol.certificates import verify
from privrec.protocol.enrolment import read_server, running, write_private
from privrec.protocol.secure_sum import Unmasking
from privrec.protocol.server import Seen, Server
from privrec.protocol.terms import Terms, bind, promised
from privrec.runs import folder as records
from privrec.runs.loop import play_stages
from privrec.simulate.cost import check_memory
from privrec.transport.link import Link, open_link
from privrec.types import OnProgress

_MOST_NOISE = 2.0**12
"""What discrete noise in units of the coding can be drawn for."""
OpenLink = Callable[..., AbstractContextManager[Link]]


def check_terms(terms: Terms, catalogue: Catalogue) -> None:
    """Raise for terms that could not be kept, before any file is written."""
    phases = bind(terms, catalogue).phases()
    bare = [phase.name for phase in phases if not phase.release.is_private]
    if terms.noise_from == "nodes" and bare:
        raise SettingsError(f"noise from nodes needs noise in every phase; {bare[0]} has none")
    for phase in phases if terms.noise_from == "nodes" else ():
        multiplier = phase.release.noise_multiplier * phase.release.sampling.reach
        if not multiplier < _MOST_NOISE:
            raise SettingsError(
                f"`noise_multiplier` must be < {_MOST_NOISE:g} with noise from nodes;"
                f" {phase.name} has {multiplier:g}"
            )
    if terms.secure_sum:
        terms.threshold(len(terms.members))


def serve(
    path: Path,
    *,
    host: str,
    port: int,
    wait: float = 300.0,
    watch: Callable[[Seen], None] = lambda seen: None,
    check: Callable[[], None] = lambda: None,
    on_progress: OnProgress | None = None,
    connect: OpenLink = open_link,
) -> Path:
    """Train by the terms until the run is done, from where it stopped; return its folder.

    `wait` is how many seconds nodes have to appear before the first round. `check` is called now
    and then while they are waited for, and may raise.
    """
    folder, terms, catalogue = read_server(path, settings_of)
    bound = bind(terms, catalogue)
    prepared = bound.prepared(terms.settings)
    check_memory(bound.phases())
    keys = [member.public_key for member in terms.members]
    if folder.run.is_dir() and not records.is_untouched(folder.run):
        place, resume = records.read_run(folder.run)[0], True
    else:
        public = folder.catalogue.read_text(encoding="utf-8")
        place, resume = records.create_run(folder.run, terms.settings, public, None), False
    with records.locked(place), running(folder):
        if not place.params_path.is_file():
            records.clear_leftovers(place)
            with connect(path, keys, host=host, port=port) as link:
                seen = Seen()
                server = Server(
                    terms=terms,
                    ask=link.ask,
                    online=seen.looking(link.online),
                    seen=seen,
                    verify=lambda node, content, made: verify(keys[node], content, made),
                    epsilon=promised(terms, bound.phases())[1],
                    watch=_both(watch, folder.status),
                    unmasking=Unmasking(folder.unmasking),
                )
                _gather(server, wait, check)
                play_stages(
                    prepared,
                    place,
                    resume=resume,
                    on_progress=on_progress,
                    network=server.network(),
                )
                server.seen.step = "done"
                server.watch(server.seen)
    return folder.run


def _gather(server: Server, wait: float, check: Callable[[], None]) -> None:
    """Return when all nodes are there, or after a while if enough are."""
    end, members = time.monotonic() + wait, len(server.terms.members)
    least = server.terms.threshold(members) if server.terms.secure_sum else 1
    there = -1
    while (now := len(server.online())) < members:
        check()
        if now != there:
            there = now
            server.seen.step = f"waiting for nodes: {now} of {members} are there"
            server.watch(server.seen)
        if time.monotonic() > end:
            if now >= least:
                return
            away = sorted(set(range(members)) - server.seen.online)
            names = ", ".join(server.terms.members[k].name or str(k) for k in away)
            raise FederationError(
                f"{now} of {members} nodes are there after {wait:g} s; at least {least} are needed;"
                f" missing: {names}"
            )
        time.sleep(0.5)


def _both(watch: Callable[[Seen], None], status: Path) -> Callable[[Seen], None]:
    """Return what shows what was seen and writes it to a file, for `status`."""

    def seen_by_both(seen: Seen) -> None:
        found = {"time": time.time(), **seen.as_json()}
        write_private(status, json.dumps(found).encode())
        watch(seen)

    return seen_by_both
