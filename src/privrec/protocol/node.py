"""The work of a node in every round: it adds up the contributions of the people whom it serves.

A node answers only the requests in `KINDS`. It reads the recipe, the clipping bound and the noise
from its own copy of the terms of the federation. It sends the sum over those of its people whom
the server drew for the round. If the terms have secure sums, the node masks its sum.

A refused request must not reveal anything about people. So a node checks everything before it
reads a person's data: the step of the protocol, the encrypted shares, the positions of people, the
bound, and each array that the server sends (`core/phase.py`). After these checks a node always
answers, and all answers have the same size. If the contribution of a person fails or is not
finite, it counts as zero. If the whole sum fails, the node sends zeros, with noise and masks as
usual.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from privrec.algorithms.recipes import plan_on_device, settings_of
from privrec.core.contribution import Contribution, told_to_bytes
from privrec.core.phase import Accepted, Cohort, DeviceHalf, Phase, Told, accepted_by, check_told
from privrec.core.round import fastest
from privrec.data.catalogue import to_json
from privrec.data.clients import Clients, nobody
from privrec.data.federation import Federation
from privrec.data.schema import Schema
from privrec.device import open_model
from privrec.errors import DataError, FederationError, PrivrecError, WireError
from privrec.evaluation.ranking import EvalReport, evaluate
from privrec.privacy.aggregate import MOST_MOVE, laplace
from privrec.privacy.release import Sampling, secure
from privrec.protocol import wire
from privrec.protocol.certificates import write_private
from privrec.protocol.coding import Coding, SumLayout, coding_of, layout_of
from privrec.protocol.enrolment import NodeFolder, read_people
from privrec.protocol.masks import Words, default_degree
from privrec.protocol.noise import discrete_gaussian, gap, node_deviation
from privrec.protocol.secure_sum import BadDealer, NodeRound, SavedRound
from privrec.protocol.terms import Terms, catalogue_hash
from privrec.protocol.wire import Attempt, Request
from privrec.types import F64, IntArray, Leaf

LOG = logging.getLogger("privrec.node")
Sign = Callable[[bytes], bytes]
Verify = Callable[[int, bytes, bytes], bool]
Arrays = Mapping[str, Leaf]
KINDS = ("sum", "keys", "shares", "mask", "agree", "reveal")
"""The kinds of requests that a node answers. The method `_sum` answers "sum", and so on."""


class _Helped(BaseModel):
    """What a node helped to unmask: how often in each round, and which sum over which nodes."""

    times: dict[int, int] = {}
    sums: dict[int, tuple[str, str]] = {}


class Reveals:
    """A file that counts how often a node helped to unmask each round of one federation.

    It also has the sum that the node helped with. It is written to the disk before the node helps.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            text = path.read_bytes() if path.is_file() else b"{}"
            self._helped = _Helped.model_validate_json(text)
        except (OSError, ValidationError) as error:
            raise FederationError(f"cannot read {path}: {error}") from error

    def count(self, round_index: int, most: int) -> None:
        """Count one more answer for a round; raise if there were `most` answers already."""
        times = self._helped.times.get(round_index, 0)
        if times >= most:
            raise FederationError(
                f"round {round_index} was answered {most} times already; one more sum of it would"
                " cost more privacy than the ledger counts"
            )
        self._helped.times[round_index] = times + 1
        self._write()

    def bind(self, round_index: int, content: str, survivors: Sequence[int] | None = None) -> None:
        """Raise if the node helped to unmask another sum of this round; otherwise note this sum.

        `content` is a hash of everything that decides the node's part of the sum, except its
        people's data. `survivors` are the nodes in the sum. If they are None, the sum is only
        checked, and nothing is written.
        """
        nodes = json.dumps(sorted(survivors or ()))
        before = self._helped.sums.get(round_index)
        if before is not None and (
            before[0] != content or (survivors is not None and before[1] != nodes)
        ):
            raise FederationError(
                f"this node has helped with another sum of round {round_index}; two sums of one"
                " round would show what single nodes added"
            )
        if survivors is not None:
            self._helped.sums[round_index] = content, nodes
            self._write()

    def _write(self) -> None:
        write_private(self._path, self._helped.model_dump_json().encode())


class SavedNode(BaseModel):
    """The state of a node between two requests of one attempt (`SavedRound` says what it has)."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    at: Attempt
    round: SavedRound
    clip_norm: float
    masked: str
    masked_at: float


class Node:
    """A node, with its people, its keys and the state of its present round.

    `phases()` returns the phases of the terms. `take` reads the data of people by their positions
    in the federation. `sign` signs with the node's key. `verify(node, content, signature)` checks
    the signature of another node.
    """

    def __init__(
        self,
        terms: Terms,
        number: int,
        *,
        phases: Callable[[], tuple[Phase, ...]],
        take: Callable[[IntArray], Clients],
        schema: Schema,
        sign: Sign,
        verify: Verify,
        reveals: Reveals,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._terms, self._number, self._schema = terms, number, schema
        self._phases, self._take = phases, take
        self._sign, self._verify, self._reveals = sign, verify, reveals
        self._clock = clock
        self._accepted: list[Mapping[str, Accepted]] | None = None
        self._at: Attempt | None = None
        self._round: NodeRound | None = None
        self._clip_norm = 0.0
        self._masked, self._masked_at = "", 0.0

    def saved(self) -> bytes:
        """Return the state of the present attempt, for a process that answers its next request.

        The state has the secrets of the attempt. It is empty if there is no attempt.
        """
        if self._round is None or self._at is None:
            return b""
        state = SavedNode(
            at=self._at,
            round=self._round.saved(),
            clip_norm=self._clip_norm,
            masked=self._masked,
            masked_at=self._masked_at,
        )
        return state.model_dump_json().encode()

    def restore(self, saved: bytes) -> None:
        """Go on from a state that `saved` returned. Each state must be used once."""
        state = SavedNode.model_validate_json(saved)
        self._at, self._clip_norm = state.at, state.clip_norm
        self._masked, self._masked_at = state.masked, state.masked_at
        self._round = NodeRound(
            me=self._number,
            context=state.round.context,
            sign=self._sign,
            verify=self._verify,
            saved=state.round,
        )

    def handle(self, request: bytes) -> bytes:
        """Return the signed reply to a request. The reply refuses a request against the terms."""
        return wire.signed(self._reply(request), request, self._sign)

    def _reply(self, content: bytes) -> bytes:
        try:
            request, arrays = wire.unpack(content, Request)
            if request.kind not in KINDS:
                raise WireError("a request of an unknown kind")
            if request.terms != self._terms.fingerprint:
                raise FederationError("the server works by other terms than this node agreed to")
            answer: Callable[[Request, Arrays], bytes] = getattr(self, f"_{request.kind}")
            return answer(request, arrays)
        except BadDealer as error:
            LOG.warning("refused: %s", error)
            return wire.pack(wire.Reply(kind="refused", why=str(error), blames=error.node))
        except PrivrecError as error:
            LOG.warning("refused: %s", error)
            return wire.pack(wire.Reply(kind="refused", why=str(error)))
        except Exception as error:
            # Arrays of the server can make the recipe's code fail. The error message may have
            # private content, so the node sends only the class of the error.
            LOG.exception("refused")
            why = f"the recipe failed: {type(error).__name__}"
            return wire.pack(wire.Reply(kind="refused", why=why))

    def _sum(self, request: Request, arrays: Arrays) -> bytes:
        """Return the node's sum without masks; refused if the terms have secure sums."""
        if self._terms.secure_sum:
            raise FederationError("the terms have secure sums: a plain one is not given")
        task = self._task(request, arrays)
        vector = self._vector(task)
        LOG.info("round %d: sends the plain sum of %d people", request.round, len(task.people))
        return wire.pack(request.reply(), {"sum": vector})

    def _keys(self, request: Request, _: Arrays) -> bytes:
        if not self._terms.secure_sum:
            raise FederationError("the terms have no secure sums")
        self._clip_norm = _clip_norm(request, self._phase_at(request.round)[0])
        context = wire.round_context(self._terms.fingerprint, request.at, self._clip_norm)
        self._round = NodeRound(
            me=self._number, context=context, sign=self._sign, verify=self._verify
        )
        self._at = request.at
        return wire.pack(request.reply(keys=self._round.keys()))

    def _shares(self, request: Request, _: Arrays) -> bytes:
        members = len(request.keys)
        threshold = self._terms.threshold(members)
        shares = self._current(request).shares(
            request.keys, threshold=threshold, degree=default_degree(members)
        )
        return wire.pack(request.reply(shares=shares))

    def _mask(self, request: Request, arrays: Arrays) -> bytes:
        """Return the node's coded sum with its share of the noise, if nodes add it, and masks."""
        current, task = self._current(request), self._task(request, arrays)
        if task.clip_norm != self._clip_norm:
            raise FederationError("the server asks for another bound than that of the keys")
        coding = coding_of(self._terms.people, task.phase, task.layout, task.clip_norm)
        noise = np.zeros(1, np.uint64)
        if self._terms.noise_from == "nodes":
            noise = self._noise(task.phase, task.clip_norm, coding)
        else:
            self._reveals.bind(task.round_index, task.digest)
        current.accept(request.sealed)
        # From here on the node reads people's data, so it refuses nothing any more.
        coded = coding.encode(self._vector(task), len(task.people))
        masked = current.mask(coded + noise)
        self._masked, self._masked_at = task.digest, self._clock()
        LOG.info("round %d: sends the masked sum of %d people", request.round, len(task.people))
        return wire.pack(request.reply(), {"sum": masked})

    def _noise(self, phase: Phase, clip_norm: float, coding: Coding) -> Words:
        """Return this node's share of the noise as uint64, in units of the coding."""
        # The size of a share depends on the number of enrolled nodes, which no server chooses.
        nodes = len(self._terms.members)
        deviation = node_deviation(
            phase.aggregator.noise_scale(clip_norm) / coding.unit,
            nodes=nodes,
            missing=self._terms.missing,
            colluding=self._terms.colluders / nodes,
        )
        gap(deviation, nodes)
        return discrete_gaussian(deviation, coding.size).view(np.uint64)

    def _agree(self, request: Request, _: Arrays) -> bytes:
        signature = self._current(request).agree_on(request.survivors)
        return wire.pack(request.reply(signature=signature))

    def _reveal(self, request: Request, _: Arrays) -> bytes:
        """Return the shares of secrets that remove the masks from one sum, within the deadline.

        If nodes add the noise, each answer may show the server one more sum, so answers are
        counted. If the server adds the noise, a second sum of the round would show what single
        nodes added (docs/privacy.md). So the node helps with only one sum of a round, over the
        same nodes, people and arrays.
        """
        current, noised = self._current(request), self._terms.noise_from == "nodes"
        # Since the masked sum, there were two exchanges: its own and this one. If nodes add the
        # noise, there was also the exchange of signatures (`agree`). Each has the same deadline.
        if self._clock() - self._masked_at > (3 if noised else 2) * self._terms.deadline:
            raise FederationError("the deadline of this attempt is over: nothing is revealed")
        shares = current.reveal(request.survivors, request.confirmations if noised else None)
        if noised:
            self._reveals.count(request.round, self._terms.reveals)
        else:
            self._reveals.bind(request.round, self._masked, request.survivors)
        self._round = self._at = None
        return wire.pack(request.reply(shares=shares))

    def _phase_at(self, round_index: int) -> tuple[Phase, Mapping[str, Accepted]]:
        """Return the phase of a round, and the rules for the arrays that its devices accept."""
        phases = self._phases()
        if self._accepted is None:
            self._accepted = accepted_by(phases)
        for phase, accepted in zip(phases, self._accepted, strict=True):
            if phase.first <= round_index < phase.last:
                return phase, accepted
        raise FederationError(f"there is no round {round_index} in the terms")

    def _current(self, request: Request) -> NodeRound:
        if self._round is None or self._at != request.at:
            raise FederationError("this node is not in that attempt of that round")
        return self._round

    def _task(self, request: Request, arrays: Arrays) -> "_Task":
        """Return what the server asks for, after all checks; they need no data of people."""
        phase, accepted = self._phase_at(request.round)
        clip_norm = _clip_norm(request, phase)
        people = wire.drawn_people(arrays, self._terms.positions(self._number))
        told = {
            name.removeprefix(wire.TOLD): array
            for name, array in arrays.items()
            if name.startswith(wire.TOLD)
        }
        check_told(told, accepted)
        try:
            layout = layout_of(phase, told, nobody(self._schema, 1), request.round, clip_norm)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise WireError("what the server tells does not fit the recipe") from error
        return _Task(
            phase=phase,
            round_index=request.round,
            people=people,
            told=told,
            clip_norm=clip_norm,
            layout=layout,
        )

    def _vector(self, task: "_Task") -> F64:
        """Return the sum of the bounded contributions of the node's drawn people, one vector.

        It never raises. If the sum fails or is not finite, zeros are returned.
        """
        if len(task.people):
            try:
                contribute = partial(_contribute_or_nothing, task.phase.device)
                device = replace(task.phase.device, contribute=contribute)
                cohort = Cohort(task.people, self._take)
                phase = replace(task.phase, device=device)
                total = fastest(phase, task.told, cohort, task.round_index, task.clip_norm)
                vector = task.layout.vector(total, len(task.people))
                if np.isfinite(vector).all():
                    return vector
                LOG.error("round %d: the sum is not finite; zeros are sent", task.round_index)
            except Exception:
                LOG.exception("round %d: the sum failed; zeros are sent", task.round_index)
        return np.zeros(task.layout.size)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Task:
    """What a server asks of a node in one round, after all checks.

    `people` are the drawn people of the node, by position, and `told` the arrays of the server.
    """

    phase: Phase
    round_index: int
    people: IntArray
    told: Mapping[str, Leaf]
    clip_norm: float
    layout: SumLayout

    @property
    def digest(self) -> str:
        """A hash of all that the node's sum depends on, except the data of people."""
        arrays = {**self.told, "people": self.people, "clip_norm": np.float64(self.clip_norm)}
        return hashlib.sha256(told_to_bytes(dict(sorted(arrays.items())))).hexdigest()


def _contribute_or_nothing(
    device: DeviceHalf, told: Told, person: Clients, round_index: int
) -> Contribution:
    """Return a person's contribution, or an empty one if computing it raises."""
    try:
        return device.contribute(told, person, round_index)
    except Exception:
        LOG.exception("round %d: the part of one person failed", round_index)
        return Contribution()


def _clip_norm(request: Request, phase: Phase) -> float:
    """Return the clipping bound that the server asks for; raise if the terms forbid it.

    It must equal the bound of the terms. With adaptive clipping it must be near that bound.
    """
    asked, agreed = request.clip_norm, phase.aggregator.clip_norm
    moves = phase.aggregator.clip_quantile is not None
    if asked != agreed and not (moves and agreed / MOST_MOVE <= asked <= agreed * MOST_MOVE):
        raise FederationError("the server asks for another bound than the terms have")
    return asked


def tested_on_held_out(path: Path, model: Path) -> EvalReport:
    """Return the figures of a released model on the people whom a node held out.

    Held-out people are in no enrolment, so no round can ask for them. Their lines are halved as
    under the protocol `halves`. The figures have no noise. The data stay in the node's folder.
    """
    folder = NodeFolder(path)
    if folder.key.is_file() and not folder.held_out.is_file():
        raise FederationError(
            f"{path} has held nobody out, and all its people may have trained: enrol again with"
            " --hold-out, for another federation"
        )
    people, catalogue = read_people(folder, folder.held_out)
    released = open_model(model)
    if catalogue_hash(to_json(released.catalogue)) != catalogue_hash(to_json(catalogue)):
        raise FederationError(f"{model} has another catalogue than {path}: it is of another model")
    settings = settings_of(released.settings)
    data = Federation(
        catalogue=catalogue,
        n_clients=len(people),
        take=people.take,
        ids=lambda positions: people.ids[positions],
        largest=max(1, int(people.sizes.max(initial=0))),
        repeats=True,
        population="",
        people=len(people),
        fingerprint="",
    )
    scorer = plan_on_device(settings, catalogue).ranker(released.params)
    everybody = np.arange(len(people))
    report = evaluate(data, everybody, scorer, seed=settings.seed, halving=settings.halving)
    if not report.tested:
        raise DataError(f"none of the {len(people):,} held-out people has two likes, one to test")
    return report


def noised_sums(report: EvalReport, epsilon: float) -> dict[str, float]:
    """Return how many people were tested and the sum of each Hits@k over them, with Laplace noise.

    One person more or less moves each of these numbers by at most 1. For a figure over several
    nodes, add up their sums, and divide the total of hits by the total of people.
    """
    exact = np.array([1.0, *report.hits.values()]) * report.tested
    release = laplace(
        Sampling(law="poisson", users=1, cohort=1),
        clip_norm=float(len(exact)),
        noise_multiplier=1 / epsilon,
    )
    noised = np.asarray(release.publish({"": exact}, float(len(exact)), secure())[""])
    return dict(zip(["people", *map(str, report.hits)], noised.tolist(), strict=True))
