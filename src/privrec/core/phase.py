"""The phases of a training. A phase is a number of rounds of the same kind.

The server learns from people only through sums over a cohort (the people of one round). Each person
adds one bounded contribution to a sum. So a phase has a device's half (`contribute`), a server's
half (`start`, `tell`, `absorb`) and an aggregator, which draws cohorts and adds noise.

A device checks the arrays from the server before it reads any person's data (`Accepted`).
Otherwise, a hostile server could choose numbers that reveal a person's items. For example, with an
infinite weight for one item, only the contributions of people who have this item are infinite.
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
"""The accepted number types. With fewer bits, rounding errors could exceed the clipping margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The rule by which a device checks one array from the server.

    None in `shape` stands for any length from 1 to `longest`. This length must be the same in all
    arrays of a phase. Each number must be between `least` and `most`; 0 is also allowed if
    `or_zero` is true. If `distinct` is true, no number may occur twice.
    """

    shape: tuple[int | None, ...]
    kind: Literal["numbers", "whole"] = "numbers"
    least: float = -MOST
    most: float = MOST
    or_zero: bool = False
    distinct: bool = False
    longest: int = 2**31


def positions(n_items: int, longest: int) -> Accepted:
    """Return the rule for an array of at most `longest` different item positions."""
    return Accepted(
        shape=(None,), kind="whole", least=0, most=n_items - 1, distinct=True, longest=longest
    )


def weights(shape: tuple[int | None, ...], *, or_zero: bool = False) -> Accepted:
    """Return the rule for weights: positive, with fourth powers that are finite and not 0."""
    return Accepted(shape=shape, least=1 / MOST, most=MOST, or_zero=or_zero)


def alike(leaf: Leaf) -> Accepted:
    """Return the rule for an array with the shape and kind of `leaf`, for phases without rules."""
    return Accepted(shape=leaf.shape, kind="numbers" if leaf.dtype.kind == "f" else "whole")


def check_told(told: Mapping[str, Leaf], accepted: Mapping[str, Accepted]) -> None:
    """Raise `WireError` unless the server sent exactly the accepted arrays, as their rules say."""
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
        # Comparisons with NaN are false, so NaN is refused.
        inside = (array >= rule.least) & (array <= rule.most)
        if not (inside | (array == 0) if rule.or_zero else inside).all():
            raise WireError(f"{unfit} numbers that are too large or too small")
        if rule.distinct and len(np.unique(array)) != array.size:
            raise WireError(f"{unfit} a number twice")
    if len(lengths) > 1:
        raise WireError("what the server tells does not fit: lengths differ")


Told = Mapping[str, Leaf]
"""The public arrays that the server sends to every device of a round, by name."""

TRAIN = "train"
"""The name of the last stage of a training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """Everything that the server keeps from one round to the next.

    `params` are public: devices receive them. `opt_state`, the state of the optimizer, is never
    sent.
    """

    round_index: int
    params: dict[str, Array]
    opt_state: Any
    clip_norm: float

    __repr__ = brief


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """Figures of one round, for simulations: except `round_index`, all are computed from raw data.

    `clients` is None if the process was killed after the release and the round is read from disk.
    `clipped` is the number of clients whose update was clipped, `dropped` of those whose update was
    not finite, and `skipped` of those with too little data for training.
    """

    round_index: int
    clients: int | None
    loss: float | None
    clipped: int = 0
    dropped: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerWork:
    """The memory and the work of the server in a stage, computed from shapes before the stage.

    `bytes` is the peak memory, and `what` names the computation that needs it. `instead(free)`
    returns advice for the user: settings that need at most `free` bytes. `multiply_adds` is the
    number of the server's operations after the last round, of which a dry run estimates the time.
    """

    bytes: int
    what: str
    instead: Callable[[int], str]
    multiply_adds: int = 0


Advance = Callable[[int], None]
"""A progress callback; its argument is the number of people that were just processed."""


def silent(count: int) -> None:
    """Show no progress."""


class Cohort(NamedTuple):
    """The people of one round: their positions, and the function that reads their data."""

    people: IntArray
    take: Callable[[IntArray], Clients]
    advance: Advance = silent

    def parts(self, size: int = 1024) -> Iterator[Clients]:
        """Yield the data of the people, `size` people at a time.

        When the next part is requested, `advance` is called with the size of the part before.
        """
        for start in range(0, len(self.people), size):
            part = self.people[start : start + size]
            yield self.take(part)
            self.advance(len(part))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceHalf:
    """What runs on a device: a function of the server's arrays (`told`) and of one person's data.

    `contribute(told, person, round_index)` returns the contribution of one person before clipping;
    `person` has one client. Random numbers depend only on the person's id, the round and the seed.
    The contribution of a person without data has the same names and shapes.

    `kernel(told, cohort, round_index, clip_norm)` is optional. It returns the sum of the bounded
    contributions of a whole cohort, as `contribute` and clipping would, but faster.
    `prepare(params)` compiles the kernel. `cost(params)` returns the cost of one round for one
    person's device (`DeviceCost`).
    """

    contribute: Callable[[Told, Clients, int], Contribution]
    kernel: Callable[[Told, Cohort, int, float], CohortTotal] | None = None
    prepare: Callable[[Params], None] = lambda params: None
    cost: Callable[[Params], Any] | None = None

    __repr__ = brief


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stage:
    """Rounds `first` to `first + rounds - 1` of a run.

    `start(params)` returns the state before the first round; `params` are the parameters after the
    previous stage. `note` is added to the ledger lines of the stage. `work(told)` returns the
    memory and work of the server, and `work(None)` an upper limit. `work` is None if they are not
    known before the stage.
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
        """The number of rounds of the run up to the end of this stage."""
        return self.first + self.rounds

    @property
    def release(self) -> Release:
        """The release of one round, as recorded in the privacy ledger."""
        return self.aggregator.release


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phase(_Stage):
    """Rounds of one kind, each of which publishes a sum over its cohort.

    `tell(state)` returns the arrays that the server sends to every device. `absorb(state,
    published)` returns the state with the new parameters. `ranks` is true if the model can rank
    after the phase.

    `accepts` has the rules by which a device checks the server's arrays. If it is None, devices
    accept arrays with the names, shapes and kinds of the first round.

    `alone` is not empty if only the simulator can play the phase; it then says what to do instead.
    The positions of the cells that are not 0 reveal people's items. So a federation would have to
    mask every cell of the phase's sum, and there are too many.
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
    """Return, for each phase, the rules by which devices check the arrays from the server."""
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
    """Central training with all data: no cohort, no sum, no privacy.

    `play(state, advance)` returns the state after one more round; it calls `advance` with the
    number of people that were just processed. The ledger line of a round says that the release had
    no noise. `read(count)` does the work per person of a round for the first `count` people, so
    that a dry run can measure its time. If `read` is None, a dry run measures whole rounds.
    """

    play: Callable[[ServerState, Advance], tuple[ServerState, RoundReport]]
    read: Callable[[int], object] | None = None

    __repr__ = brief

    ranks = True
    device = None


class Exchange(CentralFit):
    """One round in which devices send data that are not added to a sum; `note` describes the data.

    These data are neither bounded nor noised, so no guarantee covers them.
    """

    __slots__ = ()


Stage = Phase | CentralFit

Executor = Callable[[Phase, Told, Cohort, int, float], CohortTotal]
"""(phase, told, cohort, round_index, clip_norm) -> the sum of the cohort's bounded contributions.

An executor reads only the data of the cohort."""


class Journal(Protocol):
    """The storage of published rounds. A journal never gets a sum without its noise."""

    def kept(self, state: ServerState) -> Published | None:
        """Return the stored release of the round, or None. Its ledger line is on disk, too."""
        ...

    def noise(self, state: ServerState) -> NoiseSource:
        """Return the source of the round's noise."""
        ...

    def write(self, state: ServerState, published: Published) -> None:
        """Write the noised sum to disk, if sums are kept, and then its ledger line."""
        ...


@dataclass(slots=True)
class Unwritten:
    """A journal that writes nothing, with seeded noise, for rounds whose results are not kept."""

    seed: int = 0

    def kept(self, state: ServerState) -> Published | None:
        """Return None, because no round is stored."""
        return None

    def noise(self, state: ServerState) -> NoiseSource:
        """Return a noise source that depends only on the seed and the round."""
        return seeded(rng(self.seed, state.round_index, "noise"))

    def write(self, state: ServerState, published: Published) -> None:
        """Write nothing."""
