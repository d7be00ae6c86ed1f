"""The phases of a training; a phase is a number of rounds of the same kind.

The server learns from people only by sums over a cohort, to which each person adds one bounded
contribution. So a phase has a device's half (`contribute`), a server's half (`start`, `tell`,
`absorb`) and an aggregator, which draws cohorts, adds noise and has the release that the ledger
counts.

A device checks what the server tells it before it reads any person's data (`Accepted`). Otherwise
a hostile server could choose numbers that reveal what a person has: if it gives one item an
infinite weight, the contributions of exactly those people are infinite who have the item. So every
array that the server tells has a declared shape, kind and range. A contribution that is not finite
although the numbers are in range is replaced by zeros.
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
"""The largest number that a device accepts if no other range is declared. Chosen by hand."""
_KINDS = {"numbers": (np.float32, np.float64), "whole": (np.int32, np.int64)}
"""The accepted types. With fewer bits, rounding errors would be larger than the bound's margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What a device accepts as one of the arrays that the server tells.

    A None in `shape` is any length from 1 to `longest`; it is the same length for all arrays of a
    phase. Each number is in `least` … `most`, or is 0 if `or_zero` is true. If `distinct` is true,
    no number occurs twice.
    """

    shape: tuple[int | None, ...]
    kind: Literal["numbers", "whole"] = "numbers"
    least: float = -MOST
    most: float = MOST
    or_zero: bool = False
    distinct: bool = False
    longest: int = 2**31


def positions(n_items: int, longest: int) -> Accepted:
    """Return the rule for a list of at most `longest` items, by their positions."""
    return Accepted(
        shape=(None,), kind="whole", least=0, most=n_items - 1, distinct=True, longest=longest
    )


def weights(shape: tuple[int | None, ...], *, or_zero: bool = False) -> Accepted:
    """Return the rule for weights: in a range whose fourth powers are neither 0 nor infinite."""
    return Accepted(shape=shape, least=1 / MOST, most=MOST, or_zero=or_zero)


def alike(leaf: Leaf) -> Accepted:
    """Return the rule for an array of the shape of `leaf`, if a phase declares no other."""
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
    """Figures of one round. All but `round_index` are computed from raw data: simulation only.

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
    """The memory and the work of the server in a stage, known from shapes before the stage begins.

    `bytes` is the peak memory. `what` names what needs it, and `instead(free)` names settings that
    need no more than `free` bytes. `multiply_adds` counts the operations of the server after the
    last round: a dry run estimates their time and does not run them.
    """

    bytes: int
    what: str
    instead: Callable[[int], str]
    multiply_adds: int = 0


Advance = Callable[[int], None]
"""A callback for the progress of a round: its argument is the number of people just finished."""


def silent(count: int) -> None:
    """Do nothing: the progress is not shown."""


class Cohort(NamedTuple):
    """The people of one round: their positions, and the function that reads their data."""

    people: IntArray
    take: Callable[[IntArray], Clients]
    advance: Advance = silent

    def parts(self, size: int = 1024) -> Iterator[Clients]:
        """Yield the data of the people, `size` people at a time.

        `advance` gets the size of a part when the next part is requested.
        """
        for start in range(0, len(self.people), size):
            part = self.people[start : start + size]
            yield self.take(part)
            self.advance(len(part))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceHalf:
    """What runs on a device: a function of what the server told and of one person's own data.

    `contribute(told, person, round_index)` returns what the device of one person sends, before it
    is bounded; `person` has one client. What is random in it comes from the person's id, the round
    and the seed. For a person without data it has the same names and shapes.

    `kernel(told, cohort, round_index, clip_norm)`, where an algorithm offers one, returns the sum
    of the bounded contributions of a whole cohort, only faster. `prepare(params)` compiles it.
    `cost(params)` returns the time and bytes of one person's device in one round (`DeviceCost`).
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
    before. `note` is added to its ledger lines. `work(told)` returns the memory and work of the
    server, if they are known before the stage; with None for `told`, an upper limit.
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
        """The number of rounds that the run has played at the end of this stage."""
        return self.first + self.rounds

    @property
    def release(self) -> Release:
        """The release of one round, as the ledger counts it."""
        return self.aggregator.release


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phase(_Stage):
    """Rounds of one kind, each of which publishes a sum over its cohort.

    The server's half: `start`; `tell(state)` returns what every device is told; `absorb(state,
    published)` returns the state with the new parameters.

    `ranks` is true if the model can rank after the phase.
    `accepts` has the rules for what a device is told; None accepts arrays of the names, shapes and
    kinds of the first round.
    `alone` is not empty if only the simulator can play the phase; it says what to do instead. In a
    federation all cells of its sum would have to be masked, and they are too many. A node cannot
    send only the cells that are not 0, because their positions reveal people's items.
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
    """Return for each phase of a run the rules for what its devices are told."""
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
    """Training with all data in one place, without `play_round`: no cohort, no sum, no privacy.

    `play(state, advance)` returns the state after one more round; `advance` gets the number of
    people just finished. Its ledger line says that the release had no noise. `read(count)` is for a
    dry run, which measures its time: it does the part of a round that is done for each person, for
    the first `count` people. None if a round has no other part.
    """

    play: Callable[[ServerState, Advance], tuple[ServerState, RoundReport]]
    read: Callable[[int], object] | None = None

    __repr__ = brief

    ranks = True
    device = None


class Exchange(CentralFit):
    """One round in which devices send something that is not a sum; `note` describes it.

    It is neither bounded nor noised, so no guarantee covers it.
    """

    __slots__ = ()


Stage = Phase | CentralFit

Executor = Callable[[Phase, Told, Cohort, int, float], CohortTotal]
"""(phase, told, cohort, round_index, clip_norm) -> the sum of the cohort's bounded contributions.

It reads only the cohort's data. One person's contribution does not depend on other people.
"""


class Journal(Protocol):
    """The storage of published rounds. It never gets a sum before its noise is added."""

    def kept(self, state: ServerState) -> Published | None:
        """Return what the round published before a kill, with its ledger line on disk, or None."""
        ...

    def noise(self, state: ServerState) -> NoiseSource:
        """Return the source of the round's noise."""
        ...

    def write(self, state: ServerState, published: Published) -> None:
        """Write a release: first the sum, if sums are kept, then its ledger line. Then return."""
        ...


@dataclass(slots=True)
class Unwritten:
    """A journal for rounds whose results are not kept: seeded noise, and nothing is written."""

    seed: int = 0

    def kept(self, state: ServerState) -> Published | None:
        """Return None: no round is kept."""
        return None

    def noise(self, state: ServerState) -> NoiseSource:
        """Return noise that is determined by the seed and the round."""
        return seeded(rng(self.seed, state.round_index, "noise"))

    def write(self, state: ServerState, published: Published) -> None:
        """Write nothing."""
