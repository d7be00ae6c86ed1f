"""How long a round of Reptile and of MAML takes, on the same network, data and cohorts."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from privrec.algorithms.recipe import Plan
from privrec.algorithms.recipes import configure, prepare
from privrec.core.phase import Phase, ServerState, Unwritten
from privrec.core.round import Surroundings, cohort_draw, fastest, play_round
from privrec.data.sources import load
from privrec.errors import SettingsError

PAPER = (1.1, 1.3)
"""The paper: a round of second-order MAML takes 10 to 30 % longer than one of Reptile."""
SECOND = "MAML"
"""The contender that the others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A way to train on a device, and what it does with a person's data."""

    recipe: str
    does: str
    settings: Mapping[str, Any] = field(default_factory=dict)


CONTENDERS: Mapping[str, Contender] = {
    "Reptile": Contender(
        recipe="privrec",
        does="a step on each mini-batch of 32, one pass over all instances",
        settings={"batch_size": 32, "local_epochs": 1, "local_steps": 0, "whole_batch": False},
    ),
    "one step": Contender(
        recipe="privrec",
        does="Reptile with a single step: one gradient over all instances",
        settings={"batch_size": 128, "local_epochs": 1, "whole_batch": True},
    ),
    "first order": Contender(
        recipe="nn-self",
        does="MAML without second derivatives: one gradient on each half",
        settings={"batch_size": 128, "inner_steps": 1, "second_order": False},
    ),
    SECOND: Contender(
        recipe="nn-self",
        does="one step on the support half, one gradient on the query half, and that gradient"
        " back through the step, by the second derivative on the support half",
        settings={"batch_size": 128, "inner_steps": 1, "second_order": True},
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The median time of a round in seconds, by the number of people and by contender."""

    data: str
    rounds: int
    seconds: Mapping[int, Mapping[str, float]]

    def ratio(self, cohort: int, against: str) -> float:
        """Return how many times as long second-order MAML takes."""
        return self.seconds[cohort][SECOND] / self.seconds[cohort][against]

    def as_json(self) -> dict[str, Any]:
        """Return all of it, with what each contender does and what the paper says."""
        against = [name for name in CONTENDERS if name != SECOND]
        return {
            **asdict(self),
            "ratio": {
                cohort: {name: self.ratio(cohort, name) for name in against}
                for cohort in self.seconds
            },
            "does": {name: contender.does for name, contender in CONTENDERS.items()},
            "paper": {"ratio": list(PAPER), "against": "Reptile"},
        }


def time_rounds(
    data: str,
    cohorts: Sequence[int],
    *,
    rounds: int,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Times:
    """Return the times of rounds; the contenders take turns, round by round, in one process.

    A round is timed from the draw of its cohort to the new parameters. Everything is compiled
    before, and each contender plays one round that is not counted.
    """
    for name, value in (("rounds", rounds), *(("cohorts", cohort) for cohort in cohorts)):
        if value < 1:
            raise SettingsError(f"`{name}` must be >= 1; got {value}")
    whole = load(data)
    usual = configure("privrec", data, {})
    # The same people, instances and network for all; only training on a device differs.
    same = {
        "negatives": usual.negatives,
        "dislike_target": usual.dislike_target,
        "sampling": "fixed",
        "server_optimizer": usual.server_optimizer,
    }
    found: dict[int, dict[str, float]] = {}
    done, total = 0, len(cohorts) * (rounds + 1) * len(CONTENDERS)
    for cohort in cohorts:
        races = {
            name: _Race.of(
                prepare(
                    configure(one.recipe, data, {**one.settings, **same, "cohort": cohort}), whole
                )
            )
            for name, one in CONTENDERS.items()
        }
        taken: dict[str, list[float]] = {name: [] for name in races}
        for _ in range(rounds + 1):
            for name, race in races.items():
                taken[name].append(race.play())
                done += 1
                on_progress("rounds", done, total)
        found[cohort] = {name: statistics.median(times[1:]) for name, times in taken.items()}
    return Times(data=data, rounds=rounds, seconds=found)


@dataclass(slots=True)
class _Race:
    """A contender in the middle of its rounds."""

    phase: Phase
    around: Surroundings
    state: ServerState

    @classmethod
    def of(cls, prepared: Plan) -> "_Race":
        (phase,) = prepared.stages()
        if not isinstance(phase, Phase):
            raise TypeError(f"{prepared.task.settings.recipe} has no rounds of devices")
        around = Surroundings(
            take=prepared.task.federation.take,
            run=fastest,
            draw=cohort_draw(prepared.task.settings.seed, secret=False),
            journal=Unwritten(),
        )
        state = phase.start(None)
        phase.device.prepare(state.params)
        return cls(phase, around, state)

    def play(self) -> float:
        """Play one round and return how many seconds it took."""
        started = time.perf_counter()
        self.state, _ = play_round(self.phase, self.state, self.around)
        for value in self.state.params.values():
            value.block_until_ready()
        return time.perf_counter() - started
