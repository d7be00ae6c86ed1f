"""Run a whole federation on this machine for a trial, with real processes, keys and TLS."""

import contextlib
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from privrec.algorithms.recipes import configure, prepare
from privrec.data.catalogue import to_json
from privrec.data.sources import load
from privrec.errors import FederationError, SettingsError
from privrec.protocol.enrolment import ServerFolder, create_federation, enrol
from privrec.protocol.terms import Terms, split_terms
from privrec.runs.folder import RunFolder, mark_data
from privrec.transport.processes import child

LOCAL = "127.0.0.1"
_GIVEN: set[int] = set()
"""Ports that `free_port` returned; their new owner may not listen on them yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFederation:
    """The folders of a federation on this machine: one for the server, and one for each node."""

    path: Path
    terms: Terms

    @property
    def server(self) -> ServerFolder:
        """The server's folder."""
        return ServerFolder(self.path / "server")

    def node(self, number: int) -> Path:
        """Return the folder of a node."""
        return self.path / "nodes" / f"{number:02d}"


def make_local(
    path: Path,
    recipe: str,
    data: str,
    *,
    nodes: int,
    users: int | None = None,
    settings: Mapping[str, Any],
) -> LocalFederation:
    """Write the folders of a server and of `nodes` nodes, which share the people of a data set.

    `settings` has settings of the recipe and fields of the terms. For `synthetic` data, `users`
    people are generated. For other data, the first `users` people of the training set take part.
    """
    if path.exists() and any(path.iterdir()):
        raise FederationError(f"{path} is in the way: choose another --out")
    if nodes < 1:
        raise SettingsError(f"`nodes` must be >= 1; got {nodes}")
    if data == "synthetic" and users is not None:
        data, users = f"synthetic:users={users}", None
    options, rest = split_terms(settings)
    prepared = prepare(configure(recipe, data, rest), load(data))
    people, config = prepared.task.split.train, prepared.task.settings
    if users is not None and not 1 <= users <= len(people):
        raise SettingsError(
            f"`users` must be >= 1 and <= {len(people):,}, the people who train; got {users}"
        )
    people = people[:users]
    if nodes > len(people):
        raise SettingsError(f"`nodes` must be <= {len(people):,}, the people; got {nodes}")
    if config.budget.mechanism != "none" and users is None and not config.budget.train_people:
        # The simulator uses the same public number of people, so that both have the same epsilon.
        public = {"train_people": prepared.task.split.public_train}
        config = config.model_copy(update=public)
    enrolments = [
        enrol(prepared.task.federation, part, path / "nodes" / f"{number:02d}")
        for number, part in enumerate(np.array_split(people, nodes))
    ]
    terms = create_federation(
        path / "server",
        catalogue=to_json(prepared.task.federation.catalogue),
        enrolments=enrolments,
        options={**options, "name": prepared.task.federation.population, "settings": config},
        hosts=[LOCAL],
    )
    # This function knows which people do not take part. So the run can be tested on them.
    run = RunFolder(path=ServerFolder(path / "server").run)
    mark_data(run, prepared.task.federation.fingerprint)
    return LocalFederation(path=path, terms=terms)


def start_node(
    local: LocalFederation, number: int, port: int
) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which one node runs as a process."""
    folder, server = local.node(number), local.server
    arguments = [str(folder), str(server.terms), str(server.ca), f"{LOCAL}:{port}"]
    return child("privrec.transport.run_node", arguments, log=folder / "node.log")


def run_local(local: LocalFederation, serve: Callable[..., Path]) -> Path:
    """Run all nodes as processes and the server in this process; return the run folder.

    `serve(folder, host=, port=, check=)` runs the server.
    """
    port = free_port()
    with contextlib.ExitStack() as stack:
        nodes = range(len(local.terms.members))
        processes = [stack.enter_context(start_node(local, node, port)) for node in nodes]
        check = partial(_check_alive, local, processes)
        return serve(local.server.path, host=LOCAL, port=port, check=check)


def _check_alive(local: LocalFederation, processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Raise `FederationError` with the last line of the log of a node if its process has ended."""
    for number, process in enumerate(processes):
        if process.poll() is not None:
            text = (local.node(number) / "node.log").read_text(encoding="utf-8", errors="replace")
            last = text.splitlines()[-1:] or ["it said nothing"]
            raise FederationError(f"node {number} ended: {last[0]}")


def free_port() -> int:
    """Return a free port of this machine, a different port at each call."""
    while True:
        with socket.socket() as probe:
            probe.bind((LOCAL, 0))
            port = int(probe.getsockname()[1])
        if port not in _GIVEN:
            _GIVEN.add(port)
            return port
