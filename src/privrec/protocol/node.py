"""What runs on a node: the devices' half of every round, for the people whom the node serves.

The node answers a few kinds of request and nothing else. It knows the recipe, the bound and the
noise from its own copy of the terms. It sends sums over its drawn people: plain ones, or masked
ones where the terms say so.

A refusal must not tell anything about people. So all that can be refused is checked before a
person's data is read: the step of the protocol, the boxes, the people's positions, the bound, and
each array that the server tells (`core/phase.py`). After that a node always answers, and every
answer has the same size: a person whose part fails or is not finite adds zero, and if the whole sum
fails, zeros are sent, with noise and masks as ever.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from privrec.core.contribution import Contribution, told_to_bytes
from privrec.core.phase import Accepted, Cohort, DeviceHalf, Phase, Told, accepted_by, check_told
from privrec.core.round import fastest
from privrec.data.clients import Clients, nobody
from privrec.data.schema import Schema
from privrec.errors import FederationError, PrivrecError, WireError
from privrec.privacy.aggregate import MOST_MOVE
from privrec.protocol import wire
from privrec.protocol.coding import Coding, discrete_gaussian, gap, node_deviation
from privrec.protocol.masks import default_degree
from privrec.protocol.secure_sum import BadDealer, NodeRound, Reveals
from privrec.protocol.terms import Terms
from privrec.protocol.wire import Sheet, coding_of, sheet_of
from privrec.types import IntArray, Leaf

LOG = logging.getLogger("privrec.node")
Sign = Callable[[bytes], bytes]
Verify = Callable[[int, bytes, bytes], bool]


class Host:
    """A node between messages: its people, its keys, and the round it is in.

    `phases()` are those of the terms, and `take` reads the data of people by their positions in
    the federation.
    """

    def __init__(
        self,
        terms: Terms,
        node: int,
        *,
        phases: Callable[[], tuple[Phase, ...]],
        take: Callable[[IntArray], Clients],
        schema: Schema,
        sign: Sign,
        verify: Verify,
        reveals: Reveals,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._terms, self._node, self._schema = terms, node, schema
        self._phases, self._take = phases, take
        self._sign, self._verify, self._reveals = sign, verify, reveals
        self._clock = clock
        self._accepted: list[Mapping[str, Accepted]] | None = None
        self._at: tuple[str, int, int] | None = None
        self._round: NodeRound | None = None
        self._clip_norm = 0.0
        self._masked, self._masked_at = "", 0.0
        self._answers: dict[str, Callable[[wire.Message], bytes]] = {
            "sum": self._sum,
            "keys": self._keys,
            "shares": self._shares,
            "mask": self._mask,
            "agree": self._agree,
            "reveal": self._reveal,
        }

    def handle(self, request: bytes) -> bytes:
        """Return the signed reply to a request; one that breaks the terms is refused."""
        return wire.signed(self._reply(request), request, self._sign)

    def _reply(self, request: bytes) -> bytes:
        try:
            message = wire.unpack(request)
            answer = self._answers.get(str(message.about.get("kind")))
            if answer is None:
                raise WireError("a request of an unknown kind")
            if message.about.get("terms") != self._terms.fingerprint:
                raise FederationError("the server works by other terms than this node agreed to")
            return answer(message)
        except PrivrecError as error:
            LOG.warning("refused: %s", error)
            blames = {"blames": error.node} if isinstance(error, BadDealer) else {}
            return wire.pack({"kind": "refused", "why": str(error), **blames})
        except Exception as error:
            # What the server told can make the recipe's own code fail. Its message may have
            # private content, so only its class is sent.
            LOG.exception("refused")
            return wire.pack(
                {"kind": "refused", "why": f"the recipe failed: {type(error).__name__}"}
            )

    def _sum(self, message: wire.Message) -> bytes:
        """Return the node's plain sum; only where the terms have no secure sums."""
        if self._terms.secure_sum:
            raise FederationError("the terms have secure sums: a plain one is not given")
        asked = self._asked(message)
        vector = self._vector(asked)
        LOG.info("%s: sends the plain sum of %d people", _named(message), len(asked.people))
        ends = np.cumsum([0, *asked.sheet.sizes.values()])
        rows = {
            f"sum {name}": vector[begin:end]
            for name, begin, end in zip(asked.sheet.sizes, ends[:-1], ends[1:], strict=True)
        }
        return wire.pack(_echo(message, "sum"), rows)

    def _keys(self, message: wire.Message) -> bytes:
        if not self._terms.secure_sum:
            raise FederationError("the terms have no secure sums")
        place = run, number, attempt = _place(message)
        self._clip_norm = _clip_norm(message, self._phase_at(number)[0])
        context = wire.round_context(self._terms.fingerprint, *place, self._clip_norm)
        self._round = NodeRound(
            me=self._node, context=context, sign=self._sign, verify=self._verify
        )
        self._at = (run, number, attempt)
        return wire.pack({**_echo(message, "keys"), "keys": self._round.keys()})

    def _shares(self, message: wire.Message) -> bytes:
        keys = wire.keys_by_node(message.about.get("keys"))
        members = len(keys)
        threshold = self._terms.threshold(members)
        shares = self._current(message).shares(
            keys, threshold=threshold, degree=default_degree(members)
        )
        return wire.pack({**_echo(message, "shares"), "shares": _by_text(shares)})

    def _mask(self, message: wire.Message) -> bytes:
        """Return the node's coded sum under masks, with its share of the noise."""
        current, asked = self._current(message), self._asked(message)
        if asked.clip_norm != self._clip_norm:
            raise FederationError("the server asks for another bound than that of the keys")
        coding = coding_of(self._terms.people, asked.phase, asked.sheet, asked.clip_norm)
        noise: Any = 0
        if self._terms.noise_from == "nodes":
            noise = self._noise(asked.phase, asked.clip_norm, coding)
        else:
            self._reveals.bind(asked.round_index, asked.digest)
        current.accept(wire.blobs(message.about.get("sealed"), "sealed"))
        # From here on people's data is read, and nothing is refused.
        coded = coding.encode(self._vector(asked), len(asked.people))
        masked = current.mask(coded + noise)
        self._masked, self._masked_at = asked.digest, self._clock()
        LOG.info("%s: sends the masked sum of %d people", _named(message), len(asked.people))
        return wire.pack(_echo(message, "mask"), {"sum": masked})

    def _noise(self, phase: Phase, clip_norm: float, coding: Coding) -> Any:
        """Return this node's share of the noise, in units of the coding."""
        # All shares are by the number of enrolled nodes, which no server chooses.
        nodes = len(self._terms.members)
        deviation = node_deviation(
            phase.aggregator.noise_scale(clip_norm) / coding.unit,
            nodes=nodes,
            missing=self._terms.missing,
            colluding=self._terms.colluders / nodes,
        )
        gap(deviation, nodes)
        return discrete_gaussian(deviation, coding.size).view(np.uint64)

    def _agree(self, message: wire.Message) -> bytes:
        signature = self._current(message).agree_on(_survivors(message))
        return wire.pack({**_echo(message, "agree"), "signature": signature})

    def _reveal(self, message: wire.Message) -> bytes:
        """Return the secrets that take the masks off one sum, within the deadline.

        If nodes add the noise, each answer may show the server one more sum, so answers are
        counted. If not, a second sum of the round would show what single nodes added (docs/
        privacy.md), so the node helps with one sum alone: of the same nodes, people and arrays.
        """
        current, (_, number, _) = self._current(message), _place(message)
        noised, survivors, confirmations = (
            self._terms.noise_from == "nodes",
            _survivors(message),
            None,
        )
        if noised:
            confirmations = wire.blobs(message.about.get("confirmations"), "confirmations")
        # After a masked sum come its own exchange, that of signatures, and this one.
        if self._clock() - self._masked_at > (3 if noised else 2) * self._terms.deadline:
            raise FederationError("the deadline of this attempt is over: nothing is revealed")
        shares = current.reveal(survivors, confirmations)
        if noised:
            self._reveals.count(number, self._terms.reveals)
        else:
            self._reveals.bind(number, self._masked, survivors)
        self._round = self._at = None
        return wire.pack({**_echo(message, "reveal"), "shares": _by_text(shares)})

    def _phase_at(self, round_index: int) -> tuple[Phase, Mapping[str, Accepted]]:
        """Return the phase of a round, and what its devices accept."""
        phases = self._phases()
        if self._accepted is None:
            self._accepted = accepted_by(phases)
        for phase, accepted in zip(phases, self._accepted, strict=True):
            if phase.first <= round_index < phase.last:
                return phase, accepted
        raise FederationError(f"there is no round {round_index} in the terms")

    def _current(self, message: wire.Message) -> NodeRound:
        if self._round is None or self._at != _place(message):
            raise FederationError("this node is not in that attempt of that round")
        return self._round

    def _asked(self, message: wire.Message) -> "_Asked":
        """Return what the server asks for, after all checks that need no data of people."""
        _, number, _ = _place(message)
        phase, accepted = self._phase_at(number)
        clip_norm = _clip_norm(message, phase)
        people = message.arrays.get("people")
        if people is None or people.dtype != np.int64 or people.ndim != 1:
            raise WireError("`people` must be whole numbers")
        own = self._terms.positions(self._node)
        inside = (people >= own.start) & (people < own.stop)
        if not inside.all() or len(np.unique(people)) != len(people):
            raise FederationError(
                "the server asks for people whom this node does not serve, or twice"
            )
        told = _told(message)
        check_told(told, accepted)
        try:
            sheet = sheet_of(phase, told, nobody(self._schema, 1), number, clip_norm)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise WireError("what the server tells does not fit the recipe") from error
        return _Asked(
            phase=phase,
            round_index=number,
            people=people,
            told=told,
            clip_norm=clip_norm,
            sheet=sheet,
        )

    def _vector(self, asked: "_Asked") -> npt.NDArray[np.float64]:
        """Return the sum of the bounded contributions of the node's drawn people; it never raises.

        Zeros stand for a sum that failed, or that is not finite.
        """
        if len(asked.people):
            try:
                device = _without_errors(asked.phase.device)
                cohort = Cohort(asked.people, self._take)
                total = fastest(
                    replace(asked.phase, device=device),
                    asked.told,
                    cohort,
                    asked.round_index,
                    asked.clip_norm,
                )
                vector = asked.sheet.vector(total, len(asked.people))
                if vector.shape == (asked.sheet.size,) and np.isfinite(vector).all():
                    return vector
                LOG.error("round %d: the sum is not finite; zeros are sent", asked.round_index)
            except Exception:
                LOG.exception("round %d: the sum failed; zeros are sent", asked.round_index)
        return np.zeros(asked.sheet.size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Asked:
    """What a server asks of a node in one round, checked: whose sum of what."""

    phase: Phase
    round_index: int
    people: IntArray
    told: Mapping[str, Leaf]
    clip_norm: float
    sheet: Sheet

    @property
    def digest(self) -> str:
        """All that the sum depends on, besides the people's data."""
        arrays = {**self.told, "people": self.people, "clip_norm": np.float64(self.clip_norm)}
        return hashlib.sha256(told_to_bytes(dict(sorted(arrays.items())))).hexdigest()


def _without_errors(device: DeviceHalf) -> DeviceHalf:
    """Return the same device's half, in which a person whose part raises adds nothing."""

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        try:
            return device.contribute(told, person, round_index)
        except Exception:
            LOG.exception("round %d: the part of one person failed", round_index)
            return Contribution()

    return replace(device, contribute=contribute)


def _clip_norm(message: wire.Message, phase: Phase) -> float:
    """Return the bound that the server asks for; it must be the terms', or near it if it moves."""
    asked, agreed = wire.number(message.about, "clip_norm"), phase.aggregator.clip_norm
    moves = phase.aggregator.clip_quantile is not None
    if asked != agreed and not (moves and agreed / MOST_MOVE <= asked <= agreed * MOST_MOVE):
        raise FederationError("the server asks for another bound than the terms have")
    return asked


def _told(message: wire.Message) -> dict[str, Leaf]:
    names = [name for name in message.arrays if name.startswith(wire.TOLD)]
    return {name.removeprefix(wire.TOLD): message.arrays[name] for name in names}


def _place(message: wire.Message) -> tuple[str, int, int]:
    about = message.about
    return str(about.get("run")), wire.whole(about, "round"), wire.whole(about, "attempt")


def _named(message: wire.Message) -> str:
    return f"round {_place(message)[1]}"


def _echo(message: wire.Message, kind: str) -> dict[str, Any]:
    run, number, attempt = _place(message)
    return {"kind": kind, "run": run, "round": number, "attempt": attempt}


def _survivors(message: wire.Message) -> list[int]:
    found = message.about.get("survivors")
    if not isinstance(found, list) or not all(isinstance(node, int) for node in found):
        raise WireError("`survivors` must be a list of nodes")
    return found


def _by_text(shares: Mapping[int, bytes]) -> dict[str, bytes]:
    return {str(node): share for node, share in shares.items()}
