"""What the server does to add up a cohort on other machines: the executor of the one round.

What a federation's server saw: for people who watch, and for whom to leave out.
"""

import contextlib
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from privrec.core.phase import Cohort, Executor, Phase, Told
from privrec.core.round import Network
from privrec.data.text import safe_text
from privrec.errors import FederationError, PrivrecError, WireError
from privrec.privacy.aggregate import CohortTotal
from privrec.protocol import wire
from privrec.protocol.masks import MOST_SIGNATURE, Roster, default_degree
from privrec.protocol.secure_sum import (
    BadDealer,
    Unmasking,
    check_keys,
    check_shares,
    route,
    unmask,
)
from privrec.protocol.terms import Terms
from privrec.protocol.wire import Sheet, clipped_again, coding_of, sheet_of
from privrec.types import IntArray, Leaf

_LONGEST, _KINDS = 120, 100
"""How much of a reason is kept, and how many reasons: a node chooses its words."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """What the server saw, for people who watch: no content of any message.

    `refused` counts replies by why they were refused. `state` is the state of each node in the
    present round. `blames` has who accused whom in the present attempt, and `gone` who stopped in
    the middle of it. `excluded` nodes are left out of further attempts of the round. `online` are
    the nodes that were there at the last look, `silent` did not answer their last request, and
    `last` has when each gave its last sign of life, in seconds since 1970.
    """

    round_index: int = 0
    attempt: int = 0
    step: str = "waiting for nodes"
    state: dict[int, str] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    blames: set[tuple[int, int]] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    excluded: set[int] = field(default_factory=set)
    abandoned: int = 0
    online: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    last: dict[int, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return what `status` shows."""
        found = {name: getattr(self, name) for name in self.__slots__}
        names = ("blames", "gone", "excluded", "online", "silent")
        sets = {name: sorted(found[name]) for name in names}
        return {**found, **sets, "refused": dict(self.refused)}

    def heard(self, node: int, kind: str) -> None:
        """Note that a node answered a request of this kind."""
        self.state[node], self.last[node] = kind, time.time()
        self.silent.discard(node)

    def unheard(self, node: int, kind: str) -> None:
        """Note that a node did not answer a request of this kind in time, or not soundly."""
        self.state[node] = f"no {kind}"
        self.silent.add(node)

    def looking(self, online: Callable[[], set[int]]) -> Callable[[], set[int]]:
        """Return `online`, of which every look is noted."""

        def look() -> set[int]:
            self.online = online()
            self.last |= dict.fromkeys(self.online - self.silent, time.time())
            return self.online

        return look

    def refuse(self, why: str) -> str:
        """Count a reply that was refused; return the reason as it was counted."""
        short = safe_text(why[:_LONGEST])
        known = short in self.refused or len(self.refused) < _KINDS
        self.refused[short if known else "other reasons"] += 1
        return short


def missing_in(found: Mapping[str, Any], members: int) -> dict[int, float | None]:
    """Return who is missing by a status from `Seen.as_json`, and when they were last there.

    A node is missing that was not there at the last look, or did not answer its last request.
    """
    there = set(found["online"]) - set(found["silent"])
    return {k: found["last"].get(str(k)) for k in range(members) if k not in there}


def liars(blames: set[tuple[int, int]]) -> set[int]:
    """Return whom to leave out, so that no accusation (accuser, accused) is left.

    In each one, the accuser or the accused lies. Whoever is in most of them goes first; if two
    nodes only accuse each other, both go. So an honest node goes only together with a liar.
    """
    left, found = set(blames), set[int]()
    while left:
        counts = Counter(node for pair in left for node in set(pair))
        most = max(counts.values())
        chosen = {node for node, count in counts.items() if count == most}
        found |= chosen
        left = {pair for pair in left if not chosen & set(pair)}
    return found


LOG = logging.getLogger("privrec.server")
_PAUSE = 3.0
"""Seconds between two attempts of a round. Chosen by hand."""
Ask = Callable[[Mapping[int, bytes], float], Iterator[tuple[int, bytes]]]
"""(request by node, deadline in seconds) -> (node, reply) as they arrive; the late are missing."""
Verify = Callable[[int, bytes, bytes], bool]


class RoundAbandoned(FederationError):
    """Too few people or nodes answered: nothing was published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server's side of a federation.

    `ask` carries messages. `online` says which nodes are there. `verify(node, content, signature)`
    checks a signature. `epsilon` is what a hostile server could spend if nodes add the noise.
    `watch` is called whenever what was seen has changed. `unmasking` is kept on the disk.
    """

    terms: Terms
    ask: Ask
    online: Callable[[], set[int]]
    verify: Verify
    epsilon: float = math.inf
    watch: Callable[[Seen], None] = lambda seen: None
    seen: Seen = field(default_factory=Seen)
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    unmasking: Unmasking = field(default_factory=Unmasking)

    def network(self) -> Network:
        """Return what a run's loop needs of a network."""
        terms = self.terms
        about: dict[str, Any] = {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One attempt of one round: who is asked for whom, and how the sums lie in a vector."""

    phase: Phase
    round_index: int
    attempt: int
    clip_norm: float
    told: Mapping[str, Leaf]
    people: Mapping[int, IntArray]
    cohort: IntArray
    sheet: Sheet


def executor(server: Server) -> Executor:
    """Return what adds up a cohort through the network; an abandoned round is tried again.

    The cohort stays the same in every attempt: one that was drawn again because of who answered
    would not follow the sampling that is counted.
    """

    def run(
        phase: Phase, told: Told, cohort: Cohort, round_index: int, clip_norm: float
    ) -> CohortTotal:
        arrays = {name: np.asarray(leaf) for name, leaf in told.items()}
        nobody = cohort.take(phase.population[:1])
        sheet = sheet_of(phase, arrays, nobody, round_index, clip_norm)
        if not len(cohort.people) and not server.terms.secure_sum:
            return sheet.total(np.zeros(sheet.size))
        last: FederationError | None = None
        server.seen.excluded = set()
        for attempt in range(server.terms.attempts):
            job = Job(
                phase=phase,
                round_index=round_index,
                attempt=secrets.randbits(48),
                clip_norm=clip_norm,
                told=arrays,
                people=_by_node(server, cohort.people, round_index),
                cohort=cohort.people,
                sheet=sheet,
            )
            server.seen.round_index, server.seen.attempt = round_index, attempt
            server.seen.state, server.seen.blames, server.seen.gone = {}, set(), set()
            try:
                play = _masked if server.terms.secure_sum else _plain
                return play(server, job)
            except RoundAbandoned as error:
                last = error
                server.seen.abandoned += 1
                _leave_out(server, job)
                time.sleep(min(_PAUSE, server.terms.deadline / 20))
                LOG.warning("round %d, attempt %d: %s", round_index, attempt + 1, error)
        raise FederationError(
            f"round {round_index} was abandoned {server.terms.attempts} times and nothing of it was"
            f" published ({last}); go on later with the same command{_unless(server, round_index)}"
        )

    return run


def _unless(server: Server, round_index: int) -> str:
    if server.terms.noise_from == "nodes":
        return f", unless nodes have answered the round {server.terms.reveals} times already"
    begun = server.unmasking.begun(round_index)
    if begun is None:
        return ""
    return (
        f", when nodes {sorted(begun.survivors)} are all there; a node that stays away or breaks"
        " the protocol must be left out by a new enrolment"
    )


def _leave_out(server: Server, job: Job) -> None:
    """Leave out of the next attempt who lied, and who stopped, if enough others remain."""
    seen = server.seen
    if server.unmasking.begun(job.round_index):
        return
    seen.excluded |= liars(seen.blames)
    rest = job.people.keys() - seen.excluded - seen.gone
    if not server.terms.secure_sum:
        return
    with contextlib.suppress(FederationError):
        server.terms.threshold(len(rest))
        seen.excluded |= seen.gone


def _by_node(server: Server, drawn: IntArray, round_index: int) -> dict[int, IntArray]:
    """Return the drawn people of each node that is there and takes part.

    With secure sums all nodes take part, also those without drawn people: nodes learn who else
    does, and a cohort that they know amplifies nothing. If all drawn people are of one node, its
    sum could not be hidden; then all nodes are asked for nobody, and these people count as missing.
    A round whose masks were asked for is for the same nodes.
    """
    terms, nodes = server.terms, server.terms.node_of(drawn)
    online = server.online() - server.seen.excluded
    if begun := server.unmasking.begun(round_index):
        online &= begun.survivors
    if not terms.secure_sum:
        online &= set(nodes.tolist())
    elif server.unmasks_once and len(set(nodes.tolist())) == 1:
        LOG.warning("round %d: all drawn people are of one node; they are not asked", round_index)
        drawn, nodes = drawn[:0], nodes[:0]
    return {node: drawn[nodes == node].astype(np.int64) for node in sorted(online)}


def _plain(server: Server, job: Job) -> CohortTotal:
    """Return the sum of the nodes' plain sums, each bounded again by what its people may add."""
    total = {name: np.zeros(size) for name, size in job.sheet.sizes.items()}
    heard, norm = 0, job.phase.aggregator.norm
    requests = {node: _request(server, job, "sum", node) for node in job.people}
    for node, reply in _replies(server, job, "sum", requests, 8 * job.sheet.size):
        try:
            rows = {
                name: wire.row(reply.arrays, f"sum {name}", size)
                for name, size in job.sheet.sizes.items()
            }
        except WireError as error:
            _refuse(server, node, error)
            continue
        people = len(job.people[node])
        rows, was_long = clipped_again(job.sheet, rows, job.clip_norm, people, norm)
        if was_long:
            server.seen.refuse("a sum was longer than its people's bounds")
        for name, row in rows.items():
            total[name] += row
        heard += people
    _enough(server, heard, len(job.cohort))
    return job.sheet.together(total)


def _masked(server: Server, job: Job) -> CohortTotal:
    """Return the sum over the nodes that remained to the end; single sums stay under masks."""
    coding = coding_of(server.terms.people, job.phase, job.sheet, job.clip_norm)
    roster = _roster(server, job, _ask_keys(server, job))
    sealed = _ask_shares(server, job, roster)
    total, survivors = _ask_masked(server, job, route(roster, sealed))
    _remaining(survivors, roster)
    heard = {node: len(job.people[node]) for node in survivors}
    if any(map(len, job.people.values())):
        _enough(server, sum(heard.values()), len(job.cohort))
    if server.unmasks_once:
        if sum(count > 0 for count in heard.values()) == 1:
            raise RoundAbandoned("drawn people of one node alone remained: its sum would be shown")
        begun = server.unmasking.begun(job.round_index)
        if begun is not None and begun.survivors != set(survivors):
            missing = sorted(begun.survivors - set(survivors))
            raise RoundAbandoned(
                f"nodes {missing} are missing, and others may have helped to unmask a sum with them"
            )
        server.unmasking.begin(job.round_index, job.cohort, survivors)
    revealed = _ask_reveals(server, job, survivors)
    server.seen.step = "taking off the masks"
    server.watch(server.seen)
    try:
        plain = unmask(roster, total, survivors=survivors, sealed_by=sealed, revealed=revealed)
    except FederationError as error:
        if isinstance(error, BadDealer):
            server.seen.gone.add(error.node)
        raise RoundAbandoned(f"the masks could not be taken off: {error}") from error
    noised = server.terms.noise_from == "nodes"
    return job.sheet.total(coding.decode(plain), noised=noised)


def _ask_keys(server: Server, job: Job) -> dict[int, dict[str, bytes]]:
    requests = {node: _request(server, job, "keys") for node in job.people}
    keys: dict[int, dict[str, bytes]] = {}
    for node, reply in _replies(server, job, "keys", requests, 0):
        try:
            found = wire.blobs_by_name(reply.about.get("keys"))
            check_keys(_context(server, job), node, found, server.verify)
            keys[node] = found
        except PrivrecError as error:
            _refuse(server, node, error)
            server.seen.gone.add(node)
    uses = Counter(part for parts in keys.values() for part in set(parts.values()))
    for node in [node for node, parts in keys.items() if any(uses[p] > 1 for p in parts.values())]:
        del keys[node]
        _refuse(server, node, WireError("a key of another node"))
        server.seen.gone.add(node)
    return keys


def _roster(server: Server, job: Job, keys: Mapping[int, Mapping[str, bytes]]) -> Roster:
    """Return who takes part in this attempt."""
    try:
        threshold = server.terms.threshold(len(keys))
        degree = default_degree(len(keys))
        return Roster.of(keys, context=_context(server, job), threshold=threshold, degree=degree)
    except PrivrecError as error:
        raise RoundAbandoned(str(error)) from error


def _context(server: Server, job: Job) -> bytes:
    place = (server.run, job.round_index, job.attempt, job.clip_norm)
    return wire.round_context(server.terms.fingerprint, *place)


def _ask_shares(server: Server, job: Job, roster: Roster) -> dict[int, dict[int, bytes]]:
    about = {"keys": {str(node): dict(parts) for node, parts in roster.keys.items()}}
    requests = dict.fromkeys(roster.keys, _request(server, job, "shares", about=about))
    sealed: dict[int, dict[int, bytes]] = {}
    for node, reply in _replies(server, job, "shares", requests, 0):
        try:
            found = wire.blobs(reply.about.get("shares"), "shares")
            check_shares(roster, node, found)
            sealed[node] = found
        except PrivrecError as error:
            _refuse(server, node, error)
    _remaining(sorted(sealed), roster)
    return sealed


def _ask_masked(
    server: Server, job: Job, inboxes: Mapping[int, Mapping[int, bytes]]
) -> tuple[Any, list[int]]:
    """Return the sum of the masked vectors, added up as they arrive, and who sent them."""
    total, survivors = np.zeros(job.sheet.size, np.uint64), []
    requests = {
        node: _request(
            server, job, "mask", node, about={"sealed": {str(k): v for k, v in inbox.items()}}
        )
        for node, inbox in inboxes.items()
    }
    for node, reply in _replies(server, job, "mask", requests, 8 * job.sheet.size):
        try:
            total += wire.vector(reply.arrays, "sum", job.sheet.size, np.uint64)
        except WireError as error:
            _refuse(server, node, error)
            continue
        survivors.append(node)
    return total, sorted(survivors)


def _ask_reveals(server: Server, job: Job, survivors: list[int]) -> dict[int, dict[int, bytes]]:
    about: dict[str, Any] = {"survivors": survivors}
    if server.terms.noise_from == "nodes":
        signed: dict[str, bytes] = {}
        requests = dict.fromkeys(survivors, _request(server, job, "agree", about=about))
        for node, reply in _replies(server, job, "agree", requests, 0):
            try:
                signature = bytes.fromhex(str(reply.about.get("signature"))[: 2 * MOST_SIGNATURE])
                signed[str(node)] = signature
            except ValueError:
                _refuse(server, node, WireError("a signature is no bytes"))
        about |= {"confirmations": signed}
    revealed: dict[int, dict[int, bytes]] = {}
    requests = dict.fromkeys(survivors, _request(server, job, "reveal", about=about))
    for node, reply in _replies(server, job, "reveal", requests, 0):
        try:
            revealed[node] = wire.blobs(reply.about.get("shares"), "shares")
        except WireError as error:
            _refuse(server, node, error)
    return revealed


def _request(
    server: Server,
    job: Job,
    kind: str,
    node: int | None = None,
    about: Mapping[str, Any] | None = None,
) -> bytes:
    """Return a request; one that names a node has what is told and the node's drawn people."""
    words: dict[str, Any] = {
        "kind": kind,
        "terms": server.terms.fingerprint,
        "run": server.run,
        "round": job.round_index,
        "attempt": job.attempt,
        "clip_norm": job.clip_norm,
        **(about or {}),
    }
    if node is None:
        return wire.pack(words)
    arrays = {f"{wire.TOLD}{name}": array for name, array in job.told.items()}
    return wire.pack(words, {**arrays, "people": job.people[node]})


def _replies(
    server: Server, job: Job, kind: str, requests: Mapping[int, bytes], numbers: int
) -> Iterator[tuple[int, wire.Message]]:
    """Yield sound replies of the nodes that were asked, the first of each; others are refused.

    `numbers` is the size in bytes of the arrays that a reply may have.
    """
    server.seen.step = kind
    server.seen.state |= dict.fromkeys(requests, f"{kind} …")
    server.watch(server.seen)
    heard: set[int] = set()
    refusing: set[int] = set()
    expected = {"run": server.run, "round": job.round_index, "attempt": job.attempt}
    most = numbers + wire.SLACK + 2048 * len(requests)
    for node, content in server.ask(requests, server.terms.deadline):
        try:
            if node not in requests or node in heard:
                raise WireError("a reply that nobody asked for, or a second one")
            if len(content) > most:
                raise WireError(f"a reply has {len(content):,} bytes; at most {most:,} may come")
            check = partial(server.verify, node)
            reply = wire.unpack(wire.verified(content, requests[node], check))
            if reply.about.get("kind") == "refused":
                accused = reply.about.get("blames")
                if isinstance(accused, int) and accused in requests and node not in refusing:
                    server.seen.blames.add((node, accused))
                refusing.add(node)
                raise WireError(f"the node refused: {str(reply.about.get('why'))[:200]}")
            if reply.about.get("kind") != kind or any(
                reply.about.get(name) != value for name, value in expected.items()
            ):
                raise WireError("a reply to another request")
        except WireError as error:
            _refuse(server, node, error)
            continue
        heard.add(node)
        server.seen.heard(node, kind)
        server.watch(server.seen)
        yield node, reply
    for node in requests.keys() - heard:
        server.seen.unheard(node, kind)
    if kind != "keys":
        server.seen.gone |= requests.keys() - heard - refusing
    server.watch(server.seen)


def _refuse(server: Server, node: int, error: PrivrecError) -> None:
    LOG.warning("node %d: %s", node, server.seen.refuse(str(error)))


def _remaining(nodes: list[int], roster: Roster) -> None:
    if len(nodes) < roster.threshold:
        raise RoundAbandoned(f"{len(nodes)} nodes remained; {roster.threshold} are needed")


def _enough(server: Server, heard: int, drawn: int) -> None:
    """Raise unless enough of the drawn people are in the sum; the missing ones count as zero."""
    least = server.terms.min_people or math.ceil(drawn / 2)
    if heard < least:
        raise RoundAbandoned(f"{heard:,} of {drawn:,} people are in the sum; {least:,} are needed")
