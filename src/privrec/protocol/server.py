"""The server's work in a round: it asks nodes for the sum over a cohort, the people drawn.

`executor` connects this to the round that the simulator and a federation share.
"""

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
from typing import Annotated, Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
"""The most letters of a refusal's reason, and the most reasons, since nodes choose the texts."""


_LARGEST_STATUS = 2**24
"""The most bytes of a status; one of a thousand nodes has less than a megabyte."""


class ServerStatus(BaseModel):
    """The state of a round and of the nodes, for `federate status`; no content of any message.

    `state` is the state of each node in the present round. `refused` counts refused replies by
    reason. `blames` has the accusations (accuser, accused) of the present attempt, and `gone` the
    nodes that stopped during this attempt. `excluded` nodes are left out of further attempts of
    the round. `online` nodes were connected at the last look. `silent` nodes did not answer their
    last request. `last` has the time of each node's last sign of life, in seconds since 1970.
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
    last: dict[int, Annotated[float, Field(ge=0, le=2**33)]] = {}

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the status in a file; raise if it is not one, or too large to be one."""
        try:
            if path.exists() and not (path.is_file() and path.stat().st_size <= _LARGEST_STATUS):
                raise FederationError(f"{path} is damaged")
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise FederationError(f"{path} is damaged") from error

    def write(self, path: Path) -> None:
        """Write the status and the present time to a file."""
        self.time = time.time()
        write_private(path, self.model_dump_json().encode())

    def missing(self, members: int) -> dict[int, float | None]:
        """Return the missing nodes, with the time of their last sign of life; None if unknown.

        A node is missing if it was not connected at the last look or did not answer its last
        request.
        """
        there = self.online - self.silent
        return {node: self.last.get(node) for node in range(members) if node not in there}

    def heard(self, node: int, kind: str) -> None:
        """Note that a node answered a request of this kind."""
        self.state[node], self.last[node] = kind, time.time()
        self.silent.discard(node)

    def unheard(self, node: int, kind: str) -> None:
        """Note that a node gave no valid answer to a request of this kind in time."""
        self.state[node] = f"no {kind}"
        self.silent.add(node)

    def look(self, online: Callable[[], set[int]]) -> set[int]:
        """Return which nodes are online, and note them in the status."""
        self.online = online()
        self.last |= dict.fromkeys(self.online - self.silent, time.time())
        return self.online

    def refuse(self, why: str) -> str:
        """Count a refused reply; return the reason, shortened and safe to show."""
        reason = safe_text(why[:_LONGEST_REASON])
        known = reason in self.refused or len(self.refused) < _MOST_REASONS
        name = reason if known else "other reasons"
        self.refused[name] = self.refused.get(name, 0) + 1
        return reason


def liars(blames: set[tuple[int, int]]) -> set[int]:
    """Return nodes such that each accusation (accuser, accused) has one of them.

    In each accusation, the accuser or the accused lies. The node with the most accusations is
    chosen first. If several nodes have the same number, all of them are chosen, for example two
    nodes that only accuse each other. So an honest node is left out only together with a liar.
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
    """A round for which the server asked nodes to remove masks: its drawn people, and the nodes."""

    round: int
    people: list[int]
    survivors: set[int]


class Unmasking:
    """The last round for which a server asked nodes to remove masks.

    It is written to the file `path` before the server asks. Without a path, it is only in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._last: UnmaskedRound | None = None
        if path is not None and path.is_file():
            self._last = UnmaskedRound.model_validate_json(path.read_bytes())

    def begun(self, round_index: int) -> UnmaskedRound | None:
        """Return the record of a round if the server asked for its masks, otherwise None."""
        return self._last if self._last is not None and self._last.round == round_index else None

    def people(self, round_index: int) -> IntArray | None:
        """Return the drawn people of a round if the server asked for its masks, otherwise None."""
        begun = self.begun(round_index)
        return None if begun is None else np.array(begun.people, np.int64)

    def begin(self, round_index: int, people: IntArray, survivors: Sequence[int]) -> None:
        """Record that the server asks these survivors for the masks of a round."""
        self._last = UnmaskedRound(
            round=round_index, people=people.tolist(), survivors=set(survivors)
        )
        if self._path is not None:
            write_private(self._path, self._last.model_dump_json().encode())


LOG = logging.getLogger("privrec.server")
_PAUSE = 3.0
"""Seconds between two attempts of a round. Chosen by hand."""
Ask = Callable[[Mapping[int, bytes], float, int], Iterator[tuple[int, bytes]]]
"""(request by node, deadline in seconds, most bytes of a reply) -> (node, reply), in the order of
arrival. Late replies are missing."""
Verify = Callable[[int, bytes, bytes], bool]


class RoundAbandoned(FederationError):
    """An attempt of a round failed, such as by too few people or nodes: nothing was published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server's side of a federation.

    `ask` sends requests and yields replies. `online` returns the connected nodes.
    `verify(node, content, signature)` checks a signature. If nodes add the noise, `epsilon` is the
    guarantee against a hostile server. `watch` is called after each change of the status. `run` is
    a random name of this run of the program.
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
        """Return what the training loop needs: the executor, and facts for the ledger's lines."""
        terms = self.terms
        about: dict[str, str | float] = {
            "sums": "masked" if terms.secure_sum else "plain",
            "noise_from": terms.noise_from,
            "nodes": len(terms.members),
        }
        if terms.noise_from == "nodes":
            about |= {"honest": terms.honest, "sums_of_a_round": terms.sums}
        if terms.noise_from == "nodes" and math.isfinite(self.epsilon):
            about |= {"epsilon_of_server": self.epsilon}
        if terms.transport is not None:
            about |= {"transport": terms.transport}
        return Network(run=executor(self), about=about, begun=self.unmasking.people)

    @property
    def unmasks_once(self) -> bool:
        """Whether only the nodes that were first asked to unmask a round can finish it."""
        return self.terms.secure_sum and self.terms.noise_from == "server"


def executor(server: Server) -> Executor:
    """Return the function that computes the sum over a cohort through the network."""
    return partial(_add_up, server)


def _add_up(
    server: Server, phase: Phase, told: Told, cohort: Cohort, round_index: int, clip_norm: float
) -> CohortTotal:
    """Return the sum over a cohort; an abandoned round is tried again with the same cohort.

    If the cohort were drawn again because of missing answers, it would not follow the sampling
    that the ledger counts.
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
    """Return the drawn people of each node that is connected and takes part.

    With secure sums all nodes take part, also nodes without drawn people. The reason is that nodes
    learn which other nodes take part, and sampling gives no amplification of privacy if the cohort
    is known. If one node serves all drawn people, a secure sum would show the sum of this node. So
    all nodes are asked for nobody, and these people count as missing. If the server has asked for
    the masks of a round, only the nodes of that sum are asked again.
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
    """One attempt of one round.

    `people` are the drawn people by node, `cohort` all drawn people, and `layout` the positions of
    the sums in a vector.
    """

    server: Server
    phase: Phase
    at: Attempt
    clip_norm: float
    told: Mapping[str, Leaf]
    people: Mapping[int, IntArray]
    cohort: IntArray
    layout: SumLayout

    def leave_out(self) -> None:
        """Exclude nodes that lied from the next attempt; also nodes that stopped, if enough remain.

        Nobody is excluded after the server has asked for the masks of the round.
        """
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
        """Return the sum of the nodes' plain sums; the server clips each node's sum again."""
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
        """Return the sum over the nodes that remained to the end; each node's sum stays masked."""
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
        """Record the survivors before the server asks for their masks.

        Raise `RoundAbandoned` if the sum would show the sum of one node, or if the masks of
        another sum of this round were asked for.
        """
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
        """Return the members of this attempt; raise `RoundAbandoned` if there are too few."""
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
        """Return the sum of the masked vectors, and the nodes that sent them."""
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
        """Return a request. With `node`, it has the round's arrays, and who was drawn of the node.

        Its length is the same whoever was drawn.
        """
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
        drawn = wire.drawn(self.people[node], self.server.terms.positions(node))
        return wire.pack(request, {**arrays, **drawn})

    def _replies(
        self, kind: str, requests: Mapping[int, bytes], numbers: int
    ) -> Iterator[tuple[int, Reply, Mapping[str, Leaf]]]:
        """Send requests, and yield the first valid reply of each node; refuse all other replies.

        `numbers` is the most bytes of the arrays of a reply.
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
        """Refuse a node's reply if the code in this context raises an error."""
        try:
            yield
        except PrivrecError as error:
            self._refuse(node, str(error))

    def _refuse(self, node: int, why: str) -> None:
        LOG.warning("node %d: %s", node, self.server.status.refuse(why))

    def _check_people(self, heard: int) -> None:
        """Raise `RoundAbandoned` if too few drawn people are in the sum; the others add zero."""
        drawn = len(self.cohort)
        least = self.server.terms.min_people or math.ceil(drawn / 2)
        if heard < least:
            raise RoundAbandoned(
                f"{heard:,} of {drawn:,} people are in the sum; {least:,} are needed"
            )


def _check_nodes(nodes: Collection[int], roster: Roster) -> None:
    if len(nodes) < roster.threshold:
        raise RoundAbandoned(f"{len(nodes)} nodes remained; {roster.threshold} are needed")
