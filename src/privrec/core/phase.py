"""The phases of a training; a phase is a number of rounds of the same kind.

All that is learned from people is sums over a cohort of one bounded contribution per person. So a
phase is a device's half (`contribute`), a server's half (`start`, `tell`, `absorb`) and an
aggregator, which draws cohorts, adds noise to sums and is counted.

A device checks what it is told before it reads any person's data (`Accepted`). A server could
choose numbers whose effect shows what a person has: an infinite weight of an item makes a sum
infinite for those alone who have it. So every array that is told has a declared shape, kind and
range. Within these ranges, a person whose part is not finite adds nothing to the sum.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from privrec.core.contribution import Contribution
from privrec.data.clients import Clients
from privrec.data.text import brief
from privrec.errors import WireError
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.privacy.release import NoiseSource, Release, seeded
from privrec.seeds import rng
from privrec.types import Array, IntArray, Leaf, Params

MOST = 1e9
"""The largest number that is accepted where nothing else is declared. Chosen by hand."""
_KINDS = {"numbers": (np.float32, np.float64), "whole": (np.int32, np.int64)}
"""Coarser numbers would make rounding errors larger than the margin of the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """One array that is told.

    A None in `shape` is any length from 1 to `longest`, the same wherever it stands among the
    arrays of a phase. Each number is in `least` … `most`, or is 0 where `or_zero` is true.
    `distinct` numbers occur once each.
    """

    shape: tuple[int | None, ...]
    kind: Literal["numbers", "whole"] = "numbers"
    least: float = -MOST
    most: float = MOST
    or_zero: bool = False
    distinct: bool = False
    longest: int = 2**31


def positions(n_items: int, longest: int) -> Accepted:
    """Return what is accepted as a list of some items, at most `longest`."""
    return Accepted(
        shape=(None,), kind="whole", least=0, most=n_items - 1, distinct=True, longest=longest
    )


def weights(shape: tuple[int | None, ...], *, or_zero: bool = False) -> Accepted:
    """Return what is accepted as weights: their fourth powers are neither 0 nor infinite."""
    return Accepted(shape=shape, least=1 / MOST, most=MOST, or_zero=or_zero)


def alike(leaf: Leaf) -> Accepted:
    """Return what is accepted where a phase declares nothing: an array of the same shape."""
    return Accepted(shape=leaf.shape, kind="numbers" if leaf.dtype.kind == "f" else "whole")


def check_told(told: Mapping[str, Leaf], accepted: Mapping[str, Accepted]) -> None:
    """Raise `WireError` unless exactly the accepted arrays are told, each within its range."""
    if told.keys() != accepted.keys():
        raise WireError("what the server tells does not fit: the recipe has other arrays")
    lengths = set[int]()
    for name, rule in accepted.items():
        array, unfit = np.asarray(told[name]), f"what the server tells does not fit: `{name}` has"
        if array.dtype not in _KINDS[rule.kind]:
            raise WireError(f"{unfit} the wrong kind of numbers")
        if array.ndim != len(rule.shape):
            raise WireError(f"{unfit} the wrong shape")
        for size, wanted in zip(array.shape, rule.shape, strict=True):
            if not (1 <= size <= rule.longest if wanted is None else size == wanted):
                raise WireError(f"{unfit} the wrong shape")
            lengths |= {size} if wanted is None else set()
        # A comparison with NaN is false.
        inside = (array >= rule.least) & (array <= rule.most)
        if not (inside | (array == 0) if rule.or_zero else inside).all():
            raise WireError(f"{unfit} numbers that are too large or too small")
        if rule.distinct and len(np.unique(array)) != array.size:
            raise WireError(f"{unfit} a number twice")
    if len(lengths) > 1:
        raise WireError("what the server tells does not fit: lengths differ")


Told = Mapping[str, Leaf]
"""What the server tells every device of a round: public arrays by name."""

TRAIN = "train"
"""The name of the last stage of a training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """Everything that the server keeps from one round to the next.

    `params` are public: devices receive them, and the last ones are released. `opt_state` is never
    sent.
    """

    round_index: int
    params: dict[str, Array]
    opt_state: Any
    clip_norm: float

    __repr__ = brief


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """What one round did. All but `round_index` comes from raw client data: simulation only.

    `clients` is None if the round was published before a kill and is read from the disk.
    `dropped` clients had an update that is not finite. `skipped` clients had too little data to
    train on.
    """

    round_index: int
    clients: int | None
    loss: float | None
    clipped: int = 0
    dropped: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWork:
    """What a stage takes in one place, beyond its devices: known from shapes before it begins.

    `bytes` is its memory at the peak. `what` says what needs it, and `instead(free)` which settings
    would need no more than `free` bytes. `multiply_adds` are those of what the server computes
    after the last round; a dry run counts them and does not compute it.
    """

    bytes: int
    what: str
    instead: Callable[[int], str]
    multiply_adds: int = 0


Advance = Callable[[int], None]
"""Is told how many more people a round is done with. It changes no result."""


def silent(count: int) -> None:
    """Tell nobody."""


class Cohort(NamedTuple):
    """The people of one round: their positions, and what reads the data on their devices."""

    people: IntArray
    take: Callable[[IntArray], Clients]
    advance: Advance = silent

    def parts(self, size: int = 1024) -> Iterator[Clients]:
        """Yield what is on people's devices, `size` people at a time.

        A part counts as done when the next one is asked for.
        """
        for start in range(0, len(self.people), size):
            part = self.people[start : start + size]
            yield self.take(part)
            self.advance(len(part))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceHalf:
    """What runs on a device: a function of what was told and of one person's own data.

    `contribute(told, person, round_index)` returns what the device of one person sends, before it
    is bounded; `person` has one client. What is random in it comes from the person's id, the round
    and the seed. For a person without data it has the same names and shapes.

    `kernel(told, cohort, round_index, clip_norm)`, where an algorithm offers one, returns the sum
    of the bounded contributions of a whole cohort, only faster. `prepare(params)` compiles it.
    `cost(params)` measures one person's part of a round.
    """

    contribute: Callable[[Told, Clients, int], Contribution]
    kernel: Callable[[Told, Cohort, int, float], CohortTotal] | None = None
    prepare: Callable[[Params], None] = lambda params: None
    cost: Callable[[Params], Any] | None = None

    __repr__ = brief


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stage:
    """Rounds `first` to `first + rounds - 1` of a run.

    `start(params)` returns the state before the first round, given the parameters of the stage
    before. `note` is what its ledger lines say besides. `work(told)` is what the server needs,
    where that is known beforehand; with None for what is told, at most.
    """

    name: str
    rounds: int
    first: int = 0
    aggregator: Aggregator
    start: Callable[[Params | None], ServerState]
    note: Mapping[str, Any] = field(default_factory=dict)
    work: Callable[[Told | None], ServerWork] | None = None

    @property
    def last(self) -> int:
        """The number of rounds of the run at the end of this stage."""
        return self.first + self.rounds

    @property
    def release(self) -> Release:
        """What the ledger counts of one round."""
        return self.aggregator.release


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phase(_Stage):
    """Rounds of one kind, each of which publishes a sum over its cohort.

    The server's half: `start`; `tell(state)` is what every device is told; `absorb(state,
    published)` the state with the new parameters.

    `ranks` is true if the model can rank after the phase.
    `accepts` declares what a device accepts of what is told; None is arrays of the names, shapes
    and kinds of the first round.
    `alone` is not empty if a federation cannot play it, because the cells of its sum that are not 0
    tell people's items and are too many to be masked; it says what to do instead.
    """

    population: IntArray
    device: DeviceHalf
    tell: Callable[[ServerState], Told]
    absorb: Callable[[ServerState, Published], ServerState]
    ranks: bool = True
    accepts: Mapping[str, Accepted] | None = None
    alone: str = ""

    __repr__ = brief


def accepted_by(phases: Sequence[Phase]) -> list[Mapping[str, Accepted]]:
    """Return for each phase of a run what its devices accept of what is told."""
    accepted: list[Mapping[str, Accepted]] = []
    params: Params | None = None
    for phase in phases:
        state = phase.start(params)
        params = state.params
        begun = {name: alike(np.asarray(leaf)) for name, leaf in phase.tell(state).items()}
        accepted.append(begun if phase.accepts is None else phase.accepts)
    return accepted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CentralFit(_Stage):
    """Training with all data in one place, outside of the round: no cohort, no sum, no privacy.

    `play(state, advance)` returns the state after one more round; `advance` is told how many people
    are done. Its ledger line says that the release had no noise. `read(count)` does for the first
    `count` people what a round does for each person, where a round does more than that: a dry run
    measures it.
    """

    play: Callable[[ServerState, Advance], tuple[ServerState, RoundReport]]
    read: Callable[[int], object] | None = None

    __repr__ = brief

    ranks = True
    device = None


class Exchange(CentralFit):
    """One round in which devices send something that is not a sum; `note` says in words what.

    No bound and no noise on sums covers it.
    """

    __slots__ = ()


Stage = Phase | CentralFit

Executor = Callable[[Phase, Told, Cohort, int, float], CohortTotal]
"""(phase, told, cohort, round_index, clip_norm) -> the sum of the cohort's bounded contributions.

It reads only the cohort's data. One person's contribution does not depend on other people.
"""


class Journal(Protocol):
    """Where rounds are written down. It gets noised sums alone."""

    def kept(self, state: ServerState) -> Published | None:
        """Return what the round published before a kill, with its ledger line on disk, or None."""
        ...

    def noise(self, state: ServerState) -> NoiseSource:
        """Return the source of the round's noise."""
        ...

    def write(self, state: ServerState, published: Published) -> None:
        """Return when the release is on the disk: first the sum, if it is kept, then its line."""
        ...


@dataclass(slots=True)
class Unwritten:
    """A journal for rounds that are played and thrown away: seeded noise, and nothing is kept."""

    seed: int = 0

    def kept(self, state: ServerState) -> Published | None:
        """Return None: no round is kept."""
        return None

    def noise(self, state: ServerState) -> NoiseSource:
        """Return noise that follows from the seed and the round."""
        return seeded(rng(self.seed, state.round_index, "noise"))

    def write(self, state: ServerState, published: Published) -> None:
        """Write nothing."""
