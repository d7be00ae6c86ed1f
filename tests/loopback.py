"""A whole federation in one process: every message is bytes, but no wire is between the parties."""

import hmac
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raw
from privrec.algorithms.recipe import Plan
from privrec.algorithms.recipes import configure, prepare
from privrec.core.phase import Cohort
from privrec.data import catalogue as catalogues
from privrec.data.federation import Federation
from privrec.privacy.aggregate import CohortTotal
from privrec.protocol import wire
from privrec.protocol.certificates import (
    make_node_key,
    public_key_text,
    read_private_key,
    sign,
    verify,
)
from privrec.protocol.node import Node, Reveals
from privrec.protocol.server import Server, executor
from privrec.protocol.terms import Member, Terms, catalogue_hash, phases_of, plan_of
from privrec.testing import small
from privrec.types import IntArray

Tap = Callable[[int, bytes, bytes | None], bytes | None]
"""(node, request, reply) -> the reply that the server gets; None if it gets none."""


def fake_sign(node: int) -> Callable[[bytes], bytes]:
    return lambda content: hmac.digest(b"key of node %d" % node, content, "sha256")


def fake_verify(node: int, content: bytes, signature: bytes) -> bool:
    return hmac.compare_digest(fake_sign(node)(content), signature)


def count_attempts(patch: pytest.MonkeyPatch) -> None:
    """Number attempts one after another; as random numbers, they would vary in length."""
    numbers = count(2**47)
    patch.setattr("privrec.protocol.server.secrets.randbits", lambda bits: next(numbers))


class Loopback:
    """Nodes with the training people of a prepared run, and a server that asks them.

    Nodes never miss a deadline: their clock stands still. Signatures that are `fake` cost nothing
    and have one length.
    """

    def __init__(
        self,
        prepared: Plan,
        path: Path,
        *,
        nodes: int = 3,
        tap: Tap | None = None,
        fake: bool = False,
        **more: Any,
    ) -> None:
        self.prepared, self.tap, self.fake = prepared, tap, fake
        slices = np.array_split(prepared.task.split.train, nodes)
        paths = [path / f"node{k}" for k in range(nodes)]
        for place in paths:
            place.mkdir(parents=True)
            make_node_key(place / "key")
        self.keys = [public_key_text(place / "key") for place in paths]
        public = catalogues.to_json(prepared.task.federation.catalogue)
        settings = prepared.task.settings
        if "train_people" in type(settings).model_fields:
            settings = settings.model_copy(
                update={"train_people": prepared.task.split.public_train}
            )
        self.terms = Terms(
            name=prepared.task.federation.population,
            settings=settings,
            catalogue=catalogue_hash(public),
            members=tuple(
                Member(public_key=key, people=len(part))
                for key, part in zip(self.keys, slices, strict=True)
            ),
            **{"deadline": 5.0, "attempts": 2, **more},
        )
        self.slices, self.paths = slices, paths
        self.nodes = {node: self.node(node) for node in range(nodes)}
        self.server = self.new_server()

    def node(self, node: int) -> Node:
        """Return a node, as it is after a restart."""
        private = read_private_key(self.paths[node] / "key")
        catalogue = self.prepared.task.federation.catalogue
        people = self.prepared.task.federation.take(self.slices[node])
        bound = plan_of(self.terms, catalogue, people, node)
        return Node(
            self.terms,
            node,
            phases=lambda: phases_of(bound),
            take=bound.task.federation.take,
            schema=catalogue.schema,
            sign=fake_sign(node) if self.fake else lambda content: sign(private, content),
            verify=self.verify,
            reveals=Reveals(self.paths[node] / "reveals.json"),
            clock=lambda: 0.0,
        )

    def verify(self, node: int, content: bytes, signature: bytes) -> bool:
        """Return whether a node signed this."""
        if self.fake:
            return fake_verify(node, content, signature)
        return 0 <= node < len(self.keys) and verify(self.keys[node], content, signature)

    def new_server(self) -> Server:
        """Return a server, as it is after a restart."""
        return Server(
            terms=self.terms,
            ask=self.ask,
            online=lambda: set(self.nodes),
            verify=self.verify,
            run="fedcba9876543210",
        )

    def ask(
        self, requests: Mapping[int, bytes], deadline: float, most: int
    ) -> Iterator[tuple[int, bytes]]:
        """Ask the nodes one after another."""
        for node, request in requests.items():
            reply: bytes | None = None
            if node in self.nodes:
                reply = self.nodes[node].handle(request)
            if self.tap is not None:
                reply = self.tap(node, request, reply)
            if reply is not None:
                yield node, reply

    def run(self) -> Plan:
        """Return the run as the server prepares it: without anybody's data."""
        return plan_of(self.terms, self.prepared.task.federation.catalogue)

    def play(self, people: IntArray | None = None, *, number: int = 0) -> CohortTotal:
        """Return the server's sum over some people, or everybody, in the first round of a phase."""
        plan = self.run()
        params, phase = None, phases_of(plan)[0]
        for phase in phases_of(plan)[: number + 1]:
            state = phase.start(params)
            params = state.params
        cohort = Cohort(self.everybody() if people is None else people, plan.task.federation.take)
        add_up = executor(self.server)
        return add_up(phase, phase.tell(state), cohort, phase.first, state.clip_norm)

    def everybody(self) -> IntArray:
        """Return the positions of all enrolled people."""
        return np.arange(self.terms.people)


def noised(recipe: str, data: Federation, **more: Any) -> Any:
    settings = {**small(recipe), "noise": "secure", "noise_multiplier": 1.0, "epsilon": None}
    return prepare(configure(recipe, data.name, {**settings, **more}), data)


def ask(net: Loopback, node: int, kind: str, attempt: int, **about: Any) -> raw.Message:
    """Ask a node as a hostile server would; return its reply."""
    arrays = about.pop("arrays", None)
    words = {"kind": kind, "terms": net.terms.fingerprint, "run": "", "round": 0, "clip_norm": 1.0}
    words |= about
    request = raw.pack({**words, "attempt": attempt}, arrays)
    reply = net.nodes[node].handle(request)
    return raw.unpack(wire.verified(reply, request, lambda content, made: True))
