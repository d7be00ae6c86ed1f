"""More nodes than may all be neighbours, over real connections: a masked round that many leave."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from link_nodes import ended_nodes, until

import raw
from privrec.core.phase import Cohort
from privrec.core.round import fastest
from privrec.data.clients import nobody
from privrec.protocol.certificates import verify
from privrec.protocol.coding import coding_of, layout_of
from privrec.protocol.enrolment import NodeFolder, read_people, read_server
from privrec.protocol.masks import COMPLETE_UP_TO, default_degree
from privrec.protocol.server import Server, executor
from privrec.protocol.terms import phases_of, plan_of
from privrec.transport import client, run_node
from privrec.transport.link import open_link
from privrec.transport.local import LOCAL, LocalFederation, free_port, make_local

NODES = 300
LOST = frozenset(range(0, NODES, 5))


def start(local: LocalFederation, number: int, port: int) -> threading.Thread:
    """Start a node in a thread; one of LOST goes without a word when its sum is asked for."""
    folder = local.node(number)
    node = run_node.open_node(folder, local.terms)

    def handle(request: bytes) -> bytes:
        if number in LOST and raw.unpack(request).about["kind"] == "mask":
            raise client._Stopped
        return node.handle(request)

    known = {"server": f"{LOCAL}:{port}", "ca": local.server.ca, "key": NodeFolder(folder).key}
    thread = threading.Thread(target=client.serve, args=(handle,), kwargs=known)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_masked_sum_of_three_hundred_nodes_is_right_though_a_fifth_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbourhood has too few survivors in less than one of a million runs."""
    assert COMPLETE_UP_TO < NODES
    assert default_degree(NODES) < NODES - 1
    agreed = {"missing": 0.45, "deadline": 3600.0, "attempts": 1, "rounds": 0}
    data = "synthetic:users=800,items=40,longest=20"
    local = make_local(tmp_path / "net", "privrec-plus", data, nodes=NODES, settings=agreed)
    _, terms, catalogue = read_server(local.server.path)
    plan = plan_of(terms, catalogue)
    phase = phases_of(plan)[0]
    state = phase.start(None)
    told = {name: np.asarray(leaf) for name, leaf in phase.tell(state).items()}
    # The nodes are in one process: they share which signatures are right.
    monkeypatch.setattr(run_node, "verify", cache(verify))
    port, keys = free_port(), [member.public_key for member in terms.members]
    with ExitStack() as stack:
        threads = stack.enter_context(ended_nodes(monkeypatch))
        link = stack.enter_context(open_link(local.server.path, keys, host=LOCAL, port=port))

        def ask(
            requests: Mapping[int, bytes], deadline: float, most: int
        ) -> Iterator[tuple[int, bytes]]:
            """Stop waiting when all have answered who still can, in place of a deadline."""
            asked = next(iter(requests.values()))
            left = requests.keys() - (LOST if raw.unpack(asked).about["kind"] == "mask" else set())
            for node, reply in link.ask(requests, deadline, most):
                yield node, reply
                left = left - {node}
                if not left:
                    return

        threads += [start(local, number, port) for number in range(NODES)]
        until(lambda: len(link.online()) == NODES)
        server = Server(
            terms=terms,
            ask=ask,
            online=link.online,
            verify=lambda node, content, made: verify(keys[node], content, made),
        )
        cohort = Cohort(np.arange(terms.people), plan.task.federation.take)
        total = executor(server)(phase, told, cohort, phase.first, state.clip_norm)
        begun = server.unmasking.begun(phase.first)
    assert begun is not None
    assert begun.survivors == set(range(NODES)) - LOST
    layout = layout_of(phase, told, nobody(catalogue.schema, 1), phase.first, state.clip_norm)
    plain = np.zeros(layout.size)
    for number in begun.survivors:
        people, _ = read_people(NodeFolder(local.node(number)))
        take = plan_of(terms, catalogue, people, number).task.federation.take
        mine = Cohort(np.array(terms.positions(number)), take)
        found = fastest(phase, told, mine, phase.first, state.clip_norm)
        plain += layout.vector(found, len(people))
    unit = coding_of(terms.people, phase, layout, state.clip_norm).unit
    for name, wanted in layout.total(plain).update.items():
        assert np.abs(wanted).max() > 1
        np.testing.assert_allclose(total.update[name], wanted, rtol=0, atol=NODES * unit)
