"""The ServerApp: privrec's server, which asks its nodes over Flower.

Flower gives a node a number of its own (`flower_id` below), a new one whenever a SuperNode without
a key of its own starts. So the server asks each new one who it is. The answer is signed with the
node's key in the terms.
"""

import logging
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from privrec.data.text import safe_text
from privrec.errors import FederationError
from privrec.protocol.certificates import verify
from privrec.protocol.enrolment import read_server
from privrec.protocol.server import ServerStatus
from privrec.runs.api import open_run
from privrec.runs.run import export_run
from privrec.transport.flower.app import SERVER
from privrec.transport.flower.node import greeting
from privrec.transport.flower.payload import content_of, record_of
from privrec.transport.link import Link
from privrec.transport.run_server import serve

LOG = logging.getLogger("privrec.server")
PAUSE = 0.3
"""Seconds between two looks for replies (chosen by hand)."""
GREETING_SECONDS, AGAIN = 120.0, 30.0
"""How long a node has to say who it is, and when one that failed is asked again (by hand)."""
app = ServerApp()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A question to a node of Flower who it is."""

    flower_id: int
    challenge: bytes
    end: float


@dataclass(slots=True, kw_only=True)
class GridLink:
    """The link to the nodes behind a grid.

    `nodes` has Flower's number of each known node. `asked` has the questions that are not answered
    yet, by the name of their message, and `failed` when a node may be asked again.
    """

    grid: Grid
    fingerprint: str
    public_keys: Sequence[str]
    nodes: dict[int, int] = field(default_factory=dict)
    asked: dict[str, _Asked] = field(default_factory=dict)
    failed: dict[int, float] = field(default_factory=dict)

    def online(self) -> set[int]:
        """Return which nodes are there and have said who they are; ask new ones, do not wait."""
        there, now = set(self.grid.get_node_ids()), time.monotonic()
        self._hear(there)
        self.asked = {name: asked for name, asked in self.asked.items() if asked.end > now}
        self.failed = {flower_id: end for flower_id, end in self.failed.items() if end > now}
        waiting = {asked.flower_id for asked in self.asked.values()}
        for flower_id in there - set(self.nodes.values()) - waiting - self.failed.keys():
            challenge, end = secrets.token_bytes(32), now + GREETING_SECONDS
            if name := self._push(flower_id, MessageType.QUERY, challenge, GREETING_SECONDS):
                self.asked[name] = _Asked(flower_id=flower_id, challenge=challenge, end=end)
        return {node for node, flower_id in self.nodes.items() if flower_id in there}

    def ask(
        self, requests: Mapping[int, bytes], deadline: float, most: int
    ) -> Iterator[tuple[int, bytes]]:
        """Send each request once, and yield the replies that come before the deadline."""
        waiting: dict[str, int] = {}
        end = time.monotonic() + deadline
        for node, request in requests.items():
            name = self._push(self.nodes[node], MessageType.TRAIN, request, deadline)
            if name is not None:
                waiting[name] = node
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, -1)
                if reply.has_error():
                    LOG.warning("node %d: %s", node, safe_text(str(reply.error.reason)[:200]))
                elif node >= 0:
                    yield node, content_of(reply)
            if waiting:
                time.sleep(PAUSE)

    def _push(self, flower_id: int, kind: str, content: bytes, seconds: float) -> str | None:
        """Send a message that is good for some seconds; return its name, or None if it was lost."""
        message = Message(RecordDict(record_of(content)), flower_id, kind, ttl=seconds)
        names = list(self.grid.push_messages([message]))
        return names[0] if names else None

    def _hear(self, there: set[int]) -> None:
        """Note who the nodes are that have answered."""
        for reply in self.grid.pull_messages(list(self.asked)) if self.asked else ():
            asked = self.asked.pop(reply.metadata.reply_to_message_id, None)
            if asked is None:
                continue
            content = b"" if reply.has_error() else content_of(reply)
            node, signature = int.from_bytes(content[:8], "big"), content[8:]
            statement = greeting(self.fingerprint, asked.challenge)
            why = ""
            if reply.has_error():
                why = str(reply.error.reason)
            elif node >= len(self.public_keys) or not verify(
                self.public_keys[node], statement, signature
            ):
                why = "it is not enrolled in these terms, or accepted others"
            elif self.nodes.get(node) in there:
                why = f"node {node} is there already"
            if why:
                LOG.warning("a node of Flower cannot take part: %s", safe_text(why[:200]))
                self.failed[asked.flower_id] = time.monotonic() + AGAIN
            else:
                self.nodes[node] = asked.flower_id


def train(grid: Grid, path: Path) -> Path:
    """Train by the terms in a server's folder, over Flower; return the run folder.

    A run that was stopped goes on from its last round.
    """
    _, terms, _ = read_server(path)

    @contextmanager
    def connect(_: Path, keys: Sequence[str], **__: object) -> Iterator[Link]:
        link = GridLink(grid=grid, fingerprint=terms.fingerprint, public_keys=keys)
        yield Link(ask=link.ask, online=link.online)

    shown = partial(_show, set())
    run = serve(path, host="", port=0, watch=shown, connect=connect, transport="flower")
    export_run(open_run(run), path / "model.privrec")
    return run


def _show(shown: set[str], status: ServerStatus) -> None:
    """Log each round once, and what the server waits for."""
    waits = status.step.startswith("waiting")
    text = status.step if waits else f"round {status.round_index}"
    if text not in shown:
        shown.add(text)
        LOG.info("%s", text)


def _main(grid: Grid, context: Context) -> None:
    log = logging.getLogger("privrec")
    log.setLevel(logging.INFO)
    log.addHandler(logging.StreamHandler(sys.stderr))
    path = context.run_config.get(SERVER)
    if not path:
        raise FederationError(f"`{SERVER}` must be in the config of the app; got nothing")
    LOG.info("trained: %s", train(grid, Path(str(path))))


app.main()(_main)
