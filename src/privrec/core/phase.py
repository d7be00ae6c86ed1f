"""The phases of a training; a phase is a number of rounds of the same kind.

Every algorithm learns from sums over a cohort, with one bounded contribution per person. So a
phase has three parts. The server side decides what devices are told and how a published sum
changes the state. The device side adds up the cohort's contributions. The mechanism samples
cohorts, adds noise to sums, and counts the releases.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.privacy.release import Release
from privrec.types import Array, IntArray, Params


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


AddUp = Callable[[Any, IntArray, int, float], CohortTotal]
"""(told, cohort, round_index, clip_norm) -> the sum of the cohort's bounded contributions.

It reads only the cohort's data. One person's contribution does not depend on other people.
"""
Publish = Callable[[ServerState, Callable[[], CohortTotal]], Published]
"""(state, function that adds up the cohort) -> what the round publishes.

When it returns, the result and its ledger line are on the disk. If the run is killed after that,
the resumed run gets the same result from the disk and asks no cohort a second time.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phase:
    """Rounds `first` to `first + rounds - 1` of a run.

    The server side: `start(params)` returns the state before the first round, given the parameters
    of the phase before. `tell(state)` returns what every device receives. `absorb(state,
    published)` returns the state with the new parameters. The device side is `add_up`.
    `aggregator` samples from `population`, clips, adds noise, and has the release that is counted.

    `prepare(params)` compiles. `phone(params)` measures what one round costs one device. `ranks`
    is true if the model can rank after the phase. `volunteers` is true if only people take part
    who gave up the guarantee.
    """

    name: str
    rounds: int
    first: int
    population: IntArray
    aggregator: Aggregator
    start: Callable[[Params | None], ServerState]
    tell: Callable[[ServerState], Any]
    add_up: AddUp
    absorb: Callable[[ServerState, Published], ServerState]
    prepare: Callable[[Params], None] = lambda params: None
    phone: Callable[[Params], Any] | None = None
    ranks: bool = True
    volunteers: bool = False

    @property
    def last(self) -> int:
        """The number of rounds of the run at the end of this phase."""
        return self.first + self.rounds

    @property
    def release(self) -> Release:
        """What one round publishes."""
        return self.aggregator.release


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CentralFit:
    """Training with all data in one place: no cohort, no sum, no privacy.

    `play(state)` returns the state after one more round. Its ledger line says that the release had
    no noise.
    """

    name: str
    rounds: int
    aggregator: Aggregator
    start: Callable[[Params | None], ServerState]
    play: Callable[[ServerState], tuple[ServerState, RoundReport]]

    first = 0
    ranks = True
    volunteers = False
    phone = None

    @property
    def last(self) -> int:
        """The number of rounds of the run at the end of this stage."""
        return self.rounds

    @property
    def release(self) -> Release:
        """What one round publishes."""
        return self.aggregator.release

    def prepare(self, params: Params) -> None:
        """Do nothing: there is nothing to compile beforehand."""


Stage = Phase | CentralFit
