"""What the server does to add up a cohort on other machines: the executor of the one round."""

import contextlib
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from privrec.core.phase import Cohort, Executor, Phase, Told
from privrec.core.round import Network
from privrec.data.text import safe_text
from privrec.errors import FederationError, PrivrecError, WireError
from privrec.privacy.aggregate import CohortTotal
from privrec.protocol import wire
from privrec.protocol.certificates import write_private
from privrec.protocol.coding import SumLayout, coding_of, layout_of
from privrec.protocol.masks import Roster, Words, default_degree
from privrec.protocol.secure_sum import BadDealer, check_keys, check_shares, route, unmask
from privrec.protocol.terms import Terms
from privrec.protocol.wire import Attempt, Reply, Request
from privrec.types import IntArray, Leaf

_LONGEST_REASON, _MOST_REASONS = 120, 100
"""How much of a reason is kept, and how many reasons: a node chooses its words."""


class ServerStatus(BaseModel):
    """What the server saw, for people who watch: no content of any message.

    `refused` counts replies by why they were refused. `state` is the state of each node in the
    present round. `blames` has who accused whom in the present attempt, and `gone` who stopped in
    the middle of it. `excluded` nodes are left out of further attempts of the round. `online` are
    the nodes that were there at the last look, `silent` did not answer their last request, and
    `last` has when each gave its last sign of life, in seconds since 1970.
    """

    model_config = ConfigDict(extra="forbid")

    time: float = 0.0
    round_index: int = 0
    attempt: int = 0
    step: str = "waiting for nodes"
    state: dict[int, str] = {}
    refused: dict[str, int] = {}
    blames: set[tuple[int, int]] = set()
    gone: set[int] = set()
    excluded: set[int] = set()
    abandoned: int = 0
    online: set[int] = set()
    silent: set[int] = set()
    last: dict[int, float] = {}

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the status in a file."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise FederationError(f"{path} is damaged") from error

    def write(self, path: Path) -> None:
        """Write the status to a file, with the time of it."""
        self.time = time.time()
        write_private(path, self.model_dump_json().encode())

    def missing(self, members: int) -> dict[int, float | None]:
        """Return who is missing, and when they were last there.

        A node is missing that was not there at the last look, or did not answer its last request.
        """
        there = self.online - self.silent
        return {node: self.last.get(node) for node in range(members) if node not in there}

    def heard(self, node: int, kind: str) -> None:
        """Note that a node answered a request of this kind."""
        self.state[node], self.last[node] = kind, time.time()
        self.silent.discard(node)

    def unheard(self, node: int, kind: str) -> None:
        """Note that a node did not answer a request of this kind in time, or not soundly."""
        self.state[node] = f"no {kind}"
        self.silent.add(node)

    def look(self, online: Callable[[], set[int]]) -> set[int]:
        """Return which nodes are online, and note it."""
        self.online = online()
        self.last |= dict.fromkeys(self.online - self.silent, time.time())
        return self.online

    def refuse(self, why: str) -> str:
        """Count a reply that was refused; return the reason as it was counted."""
        reason = safe_text(why[:_LONGEST_REASON])
        known = reason in self.refused or len(self.refused) < _MOST_REASONS
        name = reason if known else "other reasons"
        self.refused[name] = self.refused.get(name, 0) + 1
        return reason


def liars(blames: set[tuple[int, int]]) -> set[int]:
    """Return whom to leave out, so that no accusation (accuser, accused) is left.

    In each one, the accuser or the accused lies. Whoever is in most of them goes first; if two
    nodes only accuse each other, both go. So an honest node goes only together with a liar.
    """
    left, excluded = set(blames), set[int]()
    while left:
        counts = Counter(node for pair in left for node in set(pair))
        most = max(counts.values())
        chosen = {node for node, count in counts.items() if count == most}
        excluded |= chosen
        left = {pair for pair in left if not chosen & set(pair)}
    return excluded


class UnmaskedRound(BaseModel):
    """A round whose masks nodes were asked to take off: its drawn people, and these nodes."""

    round: int
    people: list[int]
    survivors: set[int]


class Unmasking:
    """The last such round of a server, on the disk before masks are asked for.

    Without a path, it is only in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._last: UnmaskedRound | None = None
        if path is not None and path.is_file():
            self._last = UnmaskedRound.model_validate_json(path.read_bytes())

    def begun(self, round_index: int) -> UnmaskedRound | None:
        """Return the round if its masks were asked for."""
        return self._last if self._last is not None and self._last.round == round_index else None

    def people(self, round_index: int) -> IntArray | None:
        """Return the people of the round if its masks were asked for."""
        begun = self.begun(round_index)
        return None if begun is None else np.array(begun.people, np.int64)

    def begin(self, round_index: int, people: IntArray, survivors: Sequence[int]) -> None:
        """Write down that the masks of a round are asked for."""
        self._last = UnmaskedRound(
            round=round_index, people=people.tolist(), survivors=set(survivors)
        )
        if self._path is not None:
            write_private(self._path, self._last.model_dump_json().encode())


LOG = logging.getLogger("privrec.server")
_PAUSE = 3.0
"""Seconds between two attempts of a round. Chosen by hand."""
Ask = Callable[[Mapping[int, bytes], float, int], Iterator[tuple[int, bytes]]]
"""(request by node, deadline in seconds) -> (node, reply) as they arrive; the late are missing."""
Verify = Callable[[int, bytes, bytes], bool]


class RoundAbandoned(FederationError):
    """Too few people or nodes answered: nothing was published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server's side of a federation.

    `ask` carries messages. `online` says which nodes are there. `verify(node, content, signature)`
    checks a signature. `epsilon` is what a hostile server could spend if nodes add the noise.
    `watch` is called whenever the status has changed. `unmasking` is kept on the disk.
    """

    terms: Terms
    ask: Ask
    online: Callable[[], set[int]]
    verify: Verify
    epsilon: float = math.inf
    watch: Callable[[ServerStatus], None] = lambda status: None
    status: ServerStatus = field(default_factory=ServerStatus)
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    unmasking: Unmasking = field(default_factory=Unmasking)

    def network(self) -> Network:
        """Return what a run's loop needs of a network."""
        terms = self.terms
        about: dict[str, str | float] = {
            "sums": "masked" if terms.secure_sum else "plain",
            "noise_from": terms.noise_from,
            "nodes": len(terms.members),
        }
        if terms.noise_from == "nodes":
            about |= {"honest": terms.honest, "sums_of_a_round": terms.sums}
            about |= {"epsilon_of_server": self.epsilon}
        return Network(run=executor(self), about=about, begun=self.unmasking.people)

    @property
    def unmasks_once(self) -> bool:
        """Whether a round can be ended only with the nodes that were first asked to unmask it."""
        return self.terms.secure_sum and self.terms.noise_from == "server"


def executor(server: Server) -> Executor:
    """Return what adds up a cohort through the network."""
    return partial(_add_up, server)


def _add_up(
    server: Server, phase: Phase, told: Told, cohort: Cohort, round_index: int, clip_norm: float
) -> CohortTotal:
    """Return the sum of a cohort; an abandoned round is tried again.

    The cohort stays the same in every attempt: one that was drawn again because of who answered
    would not follow the sampling that is counted.
    """
    arrays = {name: np.asarray(leaf) for name, leaf in told.items()}
    nobody = cohort.take(phase.population[:1])
    layout = layout_of(phase, arrays, nobody, round_index, clip_norm)
    terms, status = server.terms, server.status
    if not len(cohort.people) and not terms.secure_sum:
        return layout.total(np.zeros(layout.size))
    last: FederationError | None = None
    status.excluded = set()
    for number in range(terms.attempts):
        attempt = _Attempt(
            server=server,
            phase=phase,
            at=Attempt(server.run, round_index, secrets.randbits(48)),
            clip_norm=clip_norm,
            told=arrays,
            people=_by_node(server, cohort.people, round_index),
            cohort=cohort.people,
            layout=layout,
        )
        status.round_index, status.attempt = round_index, number
        status.state, status.blames, status.gone = {}, set(), set()
        try:
            return attempt.masked_sum() if terms.secure_sum else attempt.plain_sum()
        except RoundAbandoned as error:
            last = error
            status.abandoned += 1
            attempt.leave_out()
            time.sleep(min(_PAUSE, terms.deadline / 20))
            LOG.warning("round %d, attempt %d: %s", round_index, number + 1, error)
    raise FederationError(
        f"round {round_index} was abandoned {terms.attempts} times and nothing of it was"
        f" published ({last}); go on later with the same command"
        f"{_retry_limit_text(server, round_index)}"
    )


def _retry_limit_text(server: Server, round_index: int) -> str:
    if server.terms.noise_from == "nodes":
        return f", unless nodes have answered the round {server.terms.reveals} times already"
    begun = server.unmasking.begun(round_index)
    if begun is None:
        return ""
    return (
        f", when nodes {sorted(begun.survivors)} are all there; a node that stays away or breaks"
        " the protocol must be left out by a new enrolment"
    )


def _by_node(server: Server, drawn: IntArray, round_index: int) -> dict[int, IntArray]:
    """Return the drawn people of each node that is there and takes part.

    With secure sums all nodes take part, also those without drawn people: nodes learn who else
    does, and a cohort that they know amplifies nothing. If all drawn people are of one node, its
    sum could not be hidden; then all nodes are asked for nobody, and these people count as missing.
    A round whose masks were asked for is for the same nodes.
    """
    terms, nodes = server.terms, server.terms.node_of(drawn)
    online = server.online() - server.status.excluded
    if begun := server.unmasking.begun(round_index):
        online &= begun.survivors
    if not terms.secure_sum:
        online &= set(nodes.tolist())
    elif server.unmasks_once and len(set(nodes.tolist())) == 1:
        LOG.warning("round %d: all drawn people are of one node; they are not asked", round_index)
        drawn, nodes = drawn[:0], nodes[:0]
    return {node: drawn[nodes == node].astype(np.int64) for node in sorted(online)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One attempt of one round: who is asked for whom, and how the sums lie in a vector."""

    server: Server
    phase: Phase
    at: Attempt
    clip_norm: float
    told: Mapping[str, Leaf]
    people: Mapping[int, IntArray]
    cohort: IntArray
    layout: SumLayout

    def leave_out(self) -> None:
        """Leave out of the next attempt who lied, and who stopped, if enough others remain."""
        terms, status = self.server.terms, self.server.status
        if self.server.unmasking.begun(self.at.round_index):
            return
        status.excluded |= liars(status.blames)
        if not terms.secure_sum:
            return
        with contextlib.suppress(FederationError):
            terms.threshold(len(self.people.keys() - status.excluded - status.gone))
            status.excluded |= status.gone

    def plain_sum(self) -> CohortTotal:
        """Return the sum of the nodes' plain sums, each bounded again for its people."""
        layout, norm = self.layout, self.phase.aggregator.norm
        total, answered = np.zeros(layout.size), 0
        requests = {node: self._request("sum", node) for node in self.people}
        for node, _, arrays in self._replies("sum", requests, 8 * layout.size):
            with self._refusing(node):
                vector = wire.vector(arrays, "sum", layout.size, np.float64)
                people = len(self.people[node])
                vector, was_long = layout.clipped(vector, self.clip_norm, people, norm)
                if was_long:
                    self.server.status.refuse("a sum was longer than its people's bounds")
                total += vector
                answered += people
        self._check_people(answered)
        return layout.total(total)

    def masked_sum(self) -> CohortTotal:
        """Return the sum over the nodes that remained to the end; single sums stay under masks."""
        server, status = self.server, self.server.status
        coding = coding_of(server.terms.people, self.phase, self.layout, self.clip_norm)
        roster = self._roster(self._ask_keys())
        sealed = self._ask_shares(roster)
        total, survivors = self._ask_masked(route(roster, sealed))
        _check_nodes(survivors, roster)
        if any(map(len, self.people.values())):
            self._check_people(sum(len(self.people[node]) for node in survivors))
        if server.unmasks_once:
            self._begin_unmasking(survivors)
        revealed = self._ask_reveals(survivors)
        status.step = "taking off the masks"
        server.watch(status)
        try:
            plain = unmask(roster, total, survivors=survivors, sealed_by=sealed, revealed=revealed)
        except FederationError as error:
            if isinstance(error, BadDealer):
                status.gone.add(error.node)
            raise RoundAbandoned(f"the masks could not be taken off: {error}") from error
        return self.layout.total(coding.decode(plain), noised=server.terms.noise_from == "nodes")

    def _begin_unmasking(self, survivors: list[int]) -> None:
        """Write down whose masks are asked for, if no other sum of the round was and none shows."""
        if sum(len(self.people[node]) > 0 for node in survivors) == 1:
            raise RoundAbandoned("drawn people of one node alone remained: its sum would be shown")
        unmasking, round_index = self.server.unmasking, self.at.round_index
        begun = unmasking.begun(round_index)
        if begun is not None and begun.survivors != set(survivors):
            missing = sorted(begun.survivors - set(survivors))
            raise RoundAbandoned(
                f"nodes {missing} are missing, and others may have helped to unmask a sum with them"
            )
        unmasking.begin(round_index, self.cohort, survivors)

    @property
    def _context(self) -> bytes:
        return wire.round_context(self.server.terms.fingerprint, self.at, self.clip_norm)

    def _ask_keys(self) -> dict[int, dict[str, bytes]]:
        gone = self.server.status.gone
        requests = {node: self._request("keys") for node in self.people}
        keys: dict[int, dict[str, bytes]] = {}
        for node, reply, _ in self._replies("keys", requests, 0):
            with self._refusing(node):
                check_keys(self._context, node, reply.keys, self.server.verify)
                keys[node] = reply.keys
            gone |= {node} - keys.keys()
        uses = Counter(part for parts in keys.values() for part in set(parts.values()))
        doubled = [node for node in keys if any(uses[part] > 1 for part in keys[node].values())]
        for node in doubled:
            del keys[node]
            gone.add(node)
            self._refuse(node, "a key of another node")
        return keys

    def _roster(self, keys: Mapping[int, Mapping[str, bytes]]) -> Roster:
        """Return who takes part in this attempt."""
        try:
            threshold = self.server.terms.threshold(len(keys))
            degree = default_degree(len(keys))
            return Roster.of(keys, context=self._context, threshold=threshold, degree=degree)
        except PrivrecError as error:
            raise RoundAbandoned(str(error)) from error

    def _ask_shares(self, roster: Roster) -> dict[int, dict[int, bytes]]:
        requests = dict.fromkeys(roster.keys, self._request("shares", keys=roster.keys))
        sealed: dict[int, dict[int, bytes]] = {}
        for node, reply, _ in self._replies("shares", requests, 0):
            with self._refusing(node):
                check_shares(roster, node, reply.shares)
                sealed[node] = reply.shares
        _check_nodes(sealed, roster)
        return sealed

    def _ask_masked(self, inboxes: Mapping[int, Mapping[int, bytes]]) -> tuple[Words, list[int]]:
        """Return the sum of the masked vectors, added up as they arrive, and who sent them."""
        size = self.layout.size
        total, survivors = np.zeros(size, np.uint64), []
        requests = {
            node: self._request("mask", node, sealed=sealed) for node, sealed in inboxes.items()
        }
        for node, _, arrays in self._replies("mask", requests, 8 * size):
            with self._refusing(node):
                total += wire.vector(arrays, "sum", size, np.uint64)
                survivors.append(node)
        return total, sorted(survivors)

    def _ask_reveals(self, survivors: list[int]) -> dict[int, dict[int, bytes]]:
        request = partial(self._request, survivors=tuple(survivors))
        if self.server.terms.noise_from == "nodes":
            replies = self._replies("agree", dict.fromkeys(survivors, request("agree")), 0)
            signatures = {node: reply.signature for node, reply, _ in replies}
            request = partial(request, confirmations=signatures)
        replies = self._replies("reveal", dict.fromkeys(survivors, request("reveal")), 0)
        return {node: reply.shares for node, reply, _ in replies}

    def _request(self, kind: str, node: int | None = None, **content: Any) -> bytes:
        """Return a request; one that names a node has what is told and the node's drawn people."""
        request = Request(
            kind=kind,
            terms=self.server.terms.fingerprint,
            run=self.at.run,
            round=self.at.round_index,
            attempt=self.at.number,
            clip_norm=self.clip_norm,
            **content,
        )
        if node is None:
            return wire.pack(request)
        arrays = {f"{wire.TOLD}{name}": array for name, array in self.told.items()}
        return wire.pack(request, {**arrays, "people": self.people[node]})

    def _replies(
        self, kind: str, requests: Mapping[int, bytes], numbers: int
    ) -> Iterator[tuple[int, Reply, Mapping[str, Leaf]]]:
        """Yield sound replies of the nodes that were asked, the first of each; others are refused.

        `numbers` is the size in bytes of the arrays that a reply may have.
        """
        server, status = self.server, self.server.status
        status.step = kind
        status.state |= dict.fromkeys(requests, f"{kind} …")
        server.watch(status)
        answered: set[int] = set()
        refusing: set[int] = set()
        most = numbers + wire.SLACK + 2048 * len(requests)
        for node, content in server.ask(requests, server.terms.deadline, most):
            try:
                if node not in requests or node in answered:
                    raise WireError("a reply that nobody asked for, or a second one")
                if len(content) > most:
                    raise WireError(
                        f"a reply has {len(content):,} bytes; at most {most:,} may come"
                    )
                body = wire.verified(content, requests[node], partial(server.verify, node))
                reply, arrays = wire.unpack(body, Reply)
                if reply.kind == "refused":
                    blames = reply.blames if reply.blames in requests else None
                    if blames is not None and node not in refusing:
                        status.blames.add((node, blames))
                    refusing.add(node)
                    raise WireError(f"the node refused: {reply.why[:200]}")
                if reply.kind != kind or reply.at != self.at:
                    raise WireError("a reply to another request")
            except WireError as error:
                self._refuse(node, str(error))
                continue
            answered.add(node)
            status.heard(node, kind)
            server.watch(status)
            yield node, reply, arrays
        for node in requests.keys() - answered:
            status.unheard(node, kind)
        if kind != "keys":
            status.gone |= requests.keys() - answered - refusing
        server.watch(status)

    @contextlib.contextmanager
    def _refusing(self, node: int) -> Iterator[None]:
        """Refuse a node's reply if what is done with it raises."""
        try:
            yield
        except PrivrecError as error:
            self._refuse(node, str(error))

    def _refuse(self, node: int, why: str) -> None:
        LOG.warning("node %d: %s", node, self.server.status.refuse(why))

    def _check_people(self, heard: int) -> None:
        """Raise unless enough of the drawn people are in the sum; the missing count as zero."""
        drawn = len(self.cohort)
        least = self.server.terms.min_people or math.ceil(drawn / 2)
        if heard < least:
            raise RoundAbandoned(
                f"{heard:,} of {drawn:,} people are in the sum; {least:,} are needed"
            )


def _check_nodes(nodes: Collection[int], roster: Roster) -> None:
    if len(nodes) < roster.threshold:
        raise RoundAbandoned(f"{len(nodes)} nodes remained; {roster.threshold} are needed")
