"""What a training is made of: phases, each a number of rounds of one kind.

All that is learned from people is sums over a cohort of one bounded contribution per person. So a
phase is two halves and a mechanism: what the server tells and what it makes of a published sum,
how a cohort's contributions are added up, and how cohorts are drawn, sums noised and counted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.privacy.release import Release
from privrec.types import Array, IntArray, Params


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """All that the server carries from one round to the next.

    `params` are public: they are told and, at the end, released. `opt_state` is never sent.
    """

    round_index: int
    params: dict[str, Array]
    opt_state: Any
    clip_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundReport:
    """What one round did. All but `round_index` comes from raw client data: simulation only.

    `clients` is None for a round that was published before a kill and taken from the disk.
    `dropped` clients had an update that is not finite, `skipped` ones too little data to train on.
    """

    round_index: int
    clients: int | None
    loss: float | None
    clipped: int = 0
    dropped: int = 0
    skipped: int = 0


AddUp = Callable[[Any, IntArray, int, float], CohortTotal]
"""(told, cohort, round_index, clip_norm) -> the sum of the cohort's bounded contributions.

It asks nobody but the cohort, and what it does for one person depends on nobody else.
"""
Publish = Callable[[ServerState, Callable[[], CohortTotal]], Published]
"""(state, what adds up the cohort) -> what the round publishes.

It and its line in the ledger are on the disk when this returns. Where a kill came after that, the
resumed run gets the same again, and no cohort is asked a second time.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phase:
    """Rounds `first` to `first + rounds - 1` of a run.

    The server's half: `start(params)` returns the state before the first round, given the
    parameters of the phase before; `tell(state)` what every device is told; `absorb(state,
    published)` the state with the new parameters. The devices' half is `add_up`. `aggregator` draws
    from `population`, bounds, noises, and has the release that is counted.

    `prepare(params)` compiles; `phone(params)` measures one person's part of a round. After a
    phase that `ranks` there is something to rank with. `volunteers` tells that only people take
    part who gave up the guarantee.
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
        """The number of rounds of the run when the phase is over."""
        return self.first + self.rounds

    @property
    def release(self) -> Release:
        """What one round publishes."""
        return self.aggregator.release


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CentralFit:
    """Training where all data lies in one place: no cohort, no sum, no privacy.

    `play(state)` returns the state after one more round. Its ledger says that what was released
    had no noise.
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
        """The number of rounds of the run when it is over."""
        return self.rounds

    @property
    def release(self) -> Release:
        """What one round publishes."""
        return self.aggregator.release

    def prepare(self, params: Params) -> None:
        """Do nothing: there is nothing to compile beforehand."""


Stage = Phase | CentralFit
