"""What runs on a node: the devices' half of every round, for the people whom the node serves.

The node answers a few kinds of request and nothing else. It knows the recipe, the bound and the
noise from its own copy of the terms. It sends sums over its drawn people: plain ones, or masked
ones where the terms say so.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from privrec.core.phase import Cohort, Phase
from privrec.core.round import fastest
from privrec.data.clients import Clients, nobody
from privrec.data.schema import Schema
from privrec.errors import FederationError, PrivrecError, WireError
from privrec.flower import wire
from privrec.flower.coding import Coding
from privrec.flower.discrete import discrete_gaussian, gap, node_deviation
from privrec.flower.masks import default_degree
from privrec.flower.reveals import Reveals
from privrec.flower.secure_sum import BadDealer, NodeRound
from privrec.flower.sheet import Sheet, coding_of, sheet_of
from privrec.flower.terms import Terms
from privrec.privacy.aggregate import CohortTotal
from privrec.types import IntArray, Leaf

LOG = logging.getLogger("privrec.node")
_TOLD_AS = (np.float32, np.float64, np.int32, np.int64)
"""Coarser numbers would make rounding errors larger than the margin of the bound."""
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
    ) -> None:
        self._terms, self._node, self._schema = terms, node, schema
        self._phases, self._take = phases, take
        self._sign, self._verify, self._reveals = sign, verify, reveals
        self._at: tuple[str, int, int] | None = None
        self._round: NodeRound | None = None
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
        phase, people, sheet, _ = self._asked(message)
        rows = sheet.parts(self._summed(message, phase, people, sheet), len(people))
        _check_finite(rows)
        LOG.info("%s: sends the plain sum of %d people", _named(message), len(people))
        return wire.pack(_echo(message, "sum"), {f"sum {name}": row for name, row in rows.items()})

    def _keys(self, message: wire.Message) -> bytes:
        if not self._terms.secure_sum:
            raise FederationError("the terms have no secure sums")
        run, number, attempt = _place(message)
        self._phase_at(number)
        context = wire.round_context(self._terms.fingerprint, run, number, attempt)
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
        current = self._current(message)
        phase, people, sheet, clip_norm = self._asked(message)
        coding = coding_of(self._terms.people, phase, sheet, clip_norm)
        vector = sheet.vector(self._summed(message, phase, people, sheet), len(people))
        _check_finite({"sum": vector})
        coded = coding.encode(vector, len(people))
        if self._terms.noise_from == "nodes":
            coded = coded + self._noise(phase, clip_norm, coding)
        masked = current.mask(coded, wire.blobs(message.about.get("sealed"), "sealed"))
        LOG.info("%s: sends the masked sum of %d people", _named(message), len(people))
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
        """Return the secrets that take the masks off a sum; a round is answered few times only."""
        current, (_, number, _) = self._current(message), _place(message)
        confirmations = None
        if self._terms.noise_from == "nodes":
            confirmations = wire.blobs(message.about.get("confirmations"), "confirmations")
        shares = current.reveal(_survivors(message), confirmations)
        if self._terms.noise_from == "nodes":
            # Each answer may show the server one more sum with fresh noise.
            self._reveals.count(number, self._terms.reveals)
        self._round = self._at = None
        return wire.pack({**_echo(message, "reveal"), "shares": _by_text(shares)})

    def _phase_at(self, round_index: int) -> Phase:
        for phase in self._phases():
            if phase.first <= round_index < phase.last:
                return phase
        raise FederationError(f"there is no round {round_index} in the terms")

    def _current(self, message: wire.Message) -> NodeRound:
        if self._round is None or self._at != _place(message):
            raise FederationError("this node is not in that attempt of that round")
        return self._round

    def _asked(self, message: wire.Message) -> tuple[Phase, IntArray, Sheet, float]:
        """Return the phase, the drawn people, how the sums lie and the bound, after checks."""
        _, number, _ = _place(message)
        phase = self._phase_at(number)
        clip_norm = wire.number(message.about, "clip_norm")
        fixed = phase.aggregator
        if fixed.clip_quantile is None and clip_norm != fixed.clip_norm:
            raise FederationError("the server asks for another bound than the terms have")
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
        try:
            sheet = sheet_of(phase, told, nobody(self._schema, 1), number, clip_norm)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise WireError("what the server tells does not fit the recipe") from error
        return phase, people, sheet, clip_norm

    def _summed(
        self, message: wire.Message, phase: Phase, people: IntArray, sheet: Sheet
    ) -> CohortTotal:
        """Return the sum of the bounded contributions of the node's drawn people."""
        _, number, _ = _place(message)
        cohort = Cohort(people, self._take)
        clip_norm = wire.number(message.about, "clip_norm")
        if not len(people):
            return sheet.total(np.zeros(sheet.size))
        return fastest(phase, _told(message), cohort, number, clip_norm)


def _check_finite(rows: Mapping[str, Leaf]) -> None:
    if not all(np.isfinite(row).all() for row in rows.values()):
        raise FederationError("the sum on this node is not finite")


def _told(message: wire.Message) -> dict[str, Any]:
    names = [name for name in message.arrays if name.startswith(wire.TOLD)]
    told = {name.removeprefix(wire.TOLD): message.arrays[name] for name in names}
    if any(array.dtype not in _TOLD_AS for array in told.values()):
        raise WireError("the server tells numbers of another kind than recipes compute with")
    return told


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
