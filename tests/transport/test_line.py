"""What somebody sees who watches the TLS connection of a node: sizes, which tell nothing."""

import socket
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from link_nodes import Cutter, ended_nodes, until

from loopback import Loopback, count_attempts, noised
from privrec.data.federation import Federation
from privrec.protocol.certificates import make_authority
from privrec.transport import client
from privrec.transport import link as links
from privrec.transport.link import open_link
from privrec.transport.local import LOCAL, free_port
from privrec.types import IntArray


class Watched(Cutter):
    """The line between a node and its server; `down` counts the bytes of each connection."""

    def __init__(self, port: int) -> None:
        self.down: dict[socket.socket, int] = {}
        super().__init__(port)

    def _pump(self, source: socket.socket, target: socket.socket, way: str) -> None:
        if way == "down":
            self.down[source] = 0
        with suppress(OSError):
            while piece := source.recv(2**16):
                if way == "down":
                    self.down[source] += len(piece)
                target.sendall(piece)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    @property
    def stream(self) -> int:
        """The bytes of requests: the first connection of a node becomes its stream."""
        return next(iter(self.down.values()))


def asked(
    data: Federation, path: Path, patch: pytest.MonkeyPatch, share: float, **terms: Any
) -> list[int]:
    """Return the bytes on the line of each node in a round; a share of node 0's people is drawn."""
    with patch.context() as inner, ExitStack() as stack:
        count_attempts(inner)
        for module in (client, links):
            inner.setattr(module, "HEARTBEAT", 3000.0)
        net = Loopback(noised("dp-privrec-plus", data), path, fake=True, min_people=1, **terms)
        net.terms = net.server.terms.model_copy(update={"deadline": 600.0})
        net.nodes = {node: net.node(node) for node in net.nodes}
        make_authority(path, hosts=[LOCAL])
        port = free_port()
        threads = stack.enter_context(ended_nodes(inner))
        link = stack.enter_context(open_link(path, net.keys, host=LOCAL, port=port))
        lines = [stack.enter_context(Watched(port)) for _ in net.nodes]
        for k, node in net.nodes.items():
            known = {"server": f"{LOCAL}:{lines[k].port}", "ca": path / "ca.crt"}
            known["key"] = path / f"node{k}" / "key"
            threads.append(threading.Thread(target=client.serve, args=(node.handle,), kwargs=known))
            threads[-1].start()
        until(lambda: len(link.online()) == len(net.keys))
        net.server = replace(net.server, terms=net.terms, ask=link.ask, online=link.online)
        net.play(number=0)
        before = [line.stream for line in lines]
        net.play(drawn(net, share), number=1)
        return [line.stream - old for line, old in zip(lines, before, strict=True)]


def drawn(net: Loopback, share: float) -> IntArray:
    """Return a share of the people of node 0, and all people of the other nodes."""
    mine = net.terms.positions(0)
    count = round(share * len(mine))
    return np.concatenate([net.everybody()[:count], net.everybody()[mine.stop :]])


@pytest.mark.parametrize("secure_sum", [True, False], ids=["masked", "plain"])
def test_the_length_of_requests_does_not_tell_who_was_drawn(
    secure_sum: bool, data: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With plain sums, a node without drawn people is not asked."""
    shares = (0.0, 0.1, 1.0) if secure_sum else (0.1, 1.0)
    seen = [
        asked(data, tmp_path / str(share), monkeypatch, share, secure_sum=secure_sum)
        for share in shares
    ]
    assert min(seen[0]) > 1000
    assert seen == [seen[0]] * len(shares)
