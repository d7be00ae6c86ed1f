"""A federation against its own floor: a no-op exchange, and the simulator on the same people."""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from figures import Figure
from noop_node import NOTHING
from privrec.algorithms.recipes import configure, prepare
from privrec.core.contribution import told_to_bytes
from privrec.core.phase import Cohort
from privrec.data.catalogue import Catalogue
from privrec.data.clients import nobody
from privrec.data.sources import load
from privrec.privacy.aggregate import Published
from privrec.protocol.certificates import (
    make_node_key,
    public_key_text,
    read_private_key,
    sign,
    verify,
)
from privrec.protocol.coding import layout_of
from privrec.protocol.enrolment import read_server
from privrec.protocol.masks import Roster, default_degree
from privrec.protocol.secure_sum import NodeRound, route
from privrec.protocol.server import Server, executor
from privrec.protocol.terms import Terms, phases_of, plan_of
from privrec.runs import folder as records
from privrec.runs.loop import play_stages
from privrec.transport.link import Link, open_link
from privrec.transport.local import LOCAL, LocalFederation, free_port, make_local

NODES, TURNS = 4, 12
POPULAR_SUM = 1e6
"""A sum by which every item counts as popular, so that the sums after it are as large as can be."""


def traffic_of(terms: Terms, catalogue: Catalogue) -> list[tuple[int, int]]:
    """Return how many bytes a node gets and sends at most in one round of each phase."""
    traffic, params = [], None
    phases = phases_of(plan_of(terms, catalogue))
    for phase in phases:
        state = phase.start(params)
        told = {name: np.asarray(leaf) for name, leaf in phase.tell(state).items()}
        layout = layout_of(phase, told, nobody(catalogue.schema, 1), phase.first, state.clip_norm)
        traffic.append((len(told_to_bytes(told)), 8 * layout.size))
        if phase is not phases[-1]:
            largest = layout.total(np.full(layout.size, POPULAR_SUM)).update
            params = phase.absorb(state, Published(dict(largest), state.clip_norm)).params
    return traffic


@contextlib.contextmanager
def started(local: LocalFederation, port: int, *, pinned: bool = False) -> Iterator[Link]:
    """Yield a link to running nodes, each on a core of its own if `pinned`."""
    server = local.server
    processes = []
    try:
        for number in range(len(local.terms.members)):
            arguments = [str(local.node(number)), str(server.terms), str(server.ca)]
            arguments.append(f"{LOCAL}:{port}")
            script = Path(__file__).with_name("noop_node.py")
            process = subprocess.Popen(
                [sys.executable, str(script), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            processes.append(process)
            if pinned:
                psutil.Process(process.pid).cpu_affinity([number % (os.cpu_count() or 1)])
        keys = [member.public_key for member in local.terms.members]
        with open_link(server.path, keys, host=LOCAL, port=port) as link:
            while len(link.online()) < len(keys):
                time.sleep(0.2)
            yield link
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)


def server_of(local: LocalFederation, link: Link) -> Server:
    keys = [member.public_key for member in local.terms.members]
    return Server(
        terms=local.terms,
        ask=link.ask,
        online=link.online,
        verify=lambda node, content, made: verify(keys[node], content, made),
    )


def nothing(link: Link, nodes: int, down: int = 0, up: int = 0) -> float:
    """Return the seconds of an exchange in which nodes do nothing but get and send some bytes."""
    began = time.monotonic()
    request = NOTHING + up.to_bytes(8, "big") + bytes(down)
    heard = list(link.ask(dict.fromkeys(range(nodes), request), 300.0, len(NOTHING) + up))
    if len(heard) != nodes:
        raise RuntimeError("a node did not answer")
    return time.monotonic() - began


def exchanges() -> list[Figure]:
    """Return a masked exchange against one in which nothing is done."""
    with tempfile.TemporaryDirectory() as folder:
        local = make_local(
            Path(folder),
            "dp-privrec-plus",
            "synthetic",
            nodes=NODES,
            users=200,
            settings={"force_delta": True, "deadline": 60.0},
        )
        _, terms, catalogue = read_server(local.server.path)
        plan = plan_of(terms, catalogue)
        phase = phases_of(plan)[0]
        state = phase.start(None)
        cohort = Cohort(np.arange(terms.people), plan.task.federation.take)
        with started(local, free_port()) as link:
            run = executor(server_of(local, link))
            ours, floor = [], []
            for _ in range(TURNS):
                floor.append(statistics.mean(nothing(link, NODES) for _ in range(4)))
                began = time.monotonic()
                run(phase, phase.tell(state), cohort, 0, state.clip_norm)
                ours.append((time.monotonic() - began) / 4)
    return [
        Figure(
            name="exchange of a masked round, 4 nodes",
            value=statistics.median(ours),
            unit="s",
            against="an exchange of nothing",
            against_value=statistics.median(floor),
        )
    ]


def masking() -> list[Figure]:
    """Return a node's CPU to mask a million numbers among 50 nodes, against adding 50 vectors."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / str(k) for k in range(50)]
        for path in paths:
            make_node_key(path)
        public = [public_key_text(path) for path in paths]
        private = [read_private_key(path) for path in paths]
    nodes = [
        NodeRound(
            me=k,
            context=b"bench",
            sign=partial(sign, private[k]),
            verify=lambda node, content, made: verify(public[node], content, made),
        )
        for k in range(50)
    ]
    keys = {k: node.keys() for k, node in enumerate(nodes)}
    how: dict[str, Any] = {"threshold": 35, "degree": default_degree(50)}
    began = time.process_time()
    mine = nodes[0].shares(keys, **how)
    spent = time.process_time() - began
    sealed = {0: mine, **{k: nodes[k].shares(keys, **how) for k in range(1, 50)}}
    roster = Roster.of(keys, context=b"bench", **how)
    vector = np.arange(10**6, dtype=np.uint64)
    inbox = route(roster, sealed)[0]
    began = time.process_time()
    nodes[0].accept(inbox)
    nodes[0].mask(vector)
    spent += time.process_time() - began
    began = time.process_time()
    for _ in range(50):
        vector = vector + vector
    return [
        Figure(
            name="masking a million numbers among 50 nodes, CPU of one",
            value=spent,
            unit="s",
            against="adding 50 such vectors",
            against_value=time.process_time() - began,
        )
    ]


def cpu() -> float:
    """Return the seconds of CPU of this process and its children."""
    me = psutil.Process()
    times = [process.cpu_times() for process in [me, *me.children()]]
    return sum(spent.user + spent.system for spent in times)


def two_nodes(rounds: int = 30) -> list[Figure]:
    """Return PrivRec+ on two nodes, a core each, against the simulator."""
    data = "movielens-1m"
    # Without the second opinion, whose rounds are long: here messages count the most.
    settings: dict[str, Any] = {"rounds": rounds, "validate_every": 0, "second_opinion": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        began, before = time.monotonic(), cpu()
        # Not `privrec.train`: it chooses settings first, which a federation cannot.
        plan = prepare(configure("privrec-plus", data, settings), load(data))
        play_stages(
            plan, records.create_run(Path(folder) / "alone", plan.task.settings, "{}", None)
        )
        alone, alone_cpu = time.monotonic() - began, cpu() - before
        began = time.monotonic()
        local = make_local(
            Path(folder) / "federation",
            "privrec-plus",
            data,
            nodes=2,
            settings={**settings, "deadline": 300.0, "secure_sum": False},
        )
        loading = time.monotonic() - began
        _, terms, catalogue = read_server(local.server.path)
        prepared = plan_of(terms, catalogue)
        with started(local, free_port(), pinned=True) as link:
            bare = statistics.median(nothing(link, 2) for _ in range(9)) * (2 + rounds)
            _, moments, train = traffic_of(terms, catalogue)
            # Plain sums are half as large as masked ones.
            floor = 2 * nothing(link, 2) + nothing(link, 2, moments[0], moments[1] // 2)
            floor += rounds * statistics.median(
                nothing(link, 2, train[0], train[1] // 2) for _ in range(9)
            )
            place = records.create_run(Path(folder) / "run", terms.settings, "{}", None)
            began, before = time.monotonic(), cpu()
            play_stages(prepared, place, network=server_of(local, link).network())
            together, together_cpu = time.monotonic() - began, cpu() - before
    print(
        f"two nodes {together:.1f} s; the same messages without work {floor:.1f} s, empty ones"
        f" {bare:.1f} s; loading {loading:.1f} s",
        flush=True,
    )
    return [
        Figure(
            name=f"privrec-plus without a second opinion on two nodes, {rounds} rounds",
            value=together,
            unit="s",
            against="the simulator, with loading",
            against_value=alone,
        ),
        Figure(
            name="CPU of the server and the two nodes",
            value=together_cpu,
            unit="s",
            against="the simulator, with loading",
            against_value=alone_cpu,
        ),
    ]
