"""A training that is watched: what each round tells, who was drawn, what is published.

The training is the one of `privrec train`, on the disk, with its ledger. Its model is thrown away.
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from privrec.algorithms.recipe import Plan
from privrec.attacks.games import EVERYBODY_TRAINS
from privrec.core.bound import bounded
from privrec.core.contribution import Contribution, shapes_of
from privrec.core.phase import Cohort, Phase, ServerState, Stage, Told
from privrec.core.round import one_by_one
from privrec.data.clients import Clients
from privrec.data.federation import Federation
from privrec.privacy.aggregate import CohortTotal, Published
from privrec.privacy.ledger import PrivacyLedger
from privrec.settings import RunSettings
from privrec.types import F64, IntArray, Law, Leaf, Params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WatchedRound:
    """One round: what devices were told, the bound on what each sends, and the published sum.

    `people` are the positions of those who were drawn, and `noise` is the published sum minus the
    true one: no attacker has that. `clip_norm` is the bound that the noise is made for, `kept_norm`
    the one that devices were asked to keep to, and `count_noise` the noise on the count of adaptive
    clipping, if there is one.
    """

    phase: Phase
    round_index: int
    people: IntArray
    noise: Mapping[str, Leaf]
    told: Told
    clip_norm: float
    published: Published
    kept_norm: float
    count_noise: float | None

    @property
    def name(self) -> str:
        """The round as findings name it."""
        return f"round {self.round_index} ({self.phase.name})"

    @property
    def is_private(self) -> bool:
        """Whether the sum has noise."""
        return self.phase.release.is_private

    @property
    def is_laplace(self) -> bool:
        """Whether the noise is Laplace's; else it is Gaussian."""
        return self.phase.release.mechanism == "laplace"

    @property
    def noise_scale(self) -> float:
        """The scale that the noise is said to have."""
        return self.phase.aggregator.noise_scale(self.clip_norm)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """A finished training: all its rounds, its ledger as it was on the disk, and its model."""

    prepared: Plan
    rounds: list[WatchedRound]
    ledger: PrivacyLedger
    params: Params


def watch_training(train: Callable[..., Any], people: Federation) -> Trial:
    """Return a training among these people, all of whom train.

    `train` is `runs.loop.train` with its recipe and settings.
    """
    watcher = _Watcher()
    with tempfile.TemporaryDirectory(prefix="privrec-trial-") as folder:
        run = train(people, out=Path(folder) / "run", watch=watcher.watch, **EVERYBODY_TRAINS)
        params = dict(run.model().params)
        return Trial(
            prepared=watcher.runs[0], rounds=watcher.rounds, ledger=run.ledger, params=params
        )


def by_phase(rounds: Sequence[WatchedRound]) -> dict[str, list[WatchedRound]]:
    """Return the rounds by the name of their phase."""
    phases: dict[str, list[WatchedRound]] = defaultdict(list)
    for each in rounds:
        phases[each.phase.name].append(each)
    return phases


def flattened(sums: Mapping[str, Leaf]) -> F64:
    """Return the sums as one vector, in the order in which noise is added."""
    return np.concatenate([np.ravel(np.asarray(sums[name], np.float64)) for name in sorted(sums)])


def sender(
    phase: Phase, told: Told, round_index: int, clip_norm: float, example: Clients
) -> Callable[[Clients], Contribution]:
    """Return what makes one person's contribution and bounds it, as a round does.

    `example` are any people of the same data.
    """
    blank = example.take(np.zeros(1, np.int64))
    blank = blank.keep(np.zeros(len(blank.item), np.bool_))
    expected = shapes_of(phase.device.contribute(told, blank, round_index))
    if expected is None:
        raise ValueError(f"{phase.name}: `contribute` returns an unsound contribution")

    def send(person: Clients) -> Contribution:
        sent = phase.device.contribute(told, person, round_index)
        return bounded(sent, clip_norm, phase.aggregator.norm, expected=expected).contribution

    return send


def law_of(config: RunSettings) -> Law:
    """Return how cohorts are sampled."""
    law: Law = getattr(config, "sampling", "fixed")
    return law


@dataclass(frozen=True, slots=True, eq=False)
class _Watcher:
    """Notes the runs that it is given, and their rounds."""

    runs: list[Plan] = field(default_factory=list)
    rounds: list[WatchedRound] = field(default_factory=list)

    def watch(self, prepared: Plan) -> Plan:
        """Return the run with stages that note each round; nothing else about them changes."""
        self.runs.append(prepared)
        stages: list[Stage] = []
        return replace(prepared, stages=partial(self._stages, prepared, stages))

    def _stages(self, prepared: Plan, made: list[Stage]) -> tuple[Stage, ...]:
        if not made:
            made += (
                _WatchedPhase(stage, self.rounds).stage() if isinstance(stage, Phase) else stage
                for stage in prepared.stages()
            )
        return tuple(made)


@dataclass(slots=True, eq=False)
class _WatchedPhase:
    """A phase whose three steps note what they are given: telling, adding up, absorbing."""

    phase: Phase
    rounds: list[WatchedRound]
    told: Told = field(default_factory=dict)
    people: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    kept_norm: float = 0.0
    total: CohortTotal | None = None

    def stage(self) -> Phase:
        device = replace(self.phase.device, kernel=self.add_up)
        return replace(self.phase, device=device, tell=self.tell, absorb=self.absorb)

    def tell(self, state: ServerState) -> Told:
        told = self.phase.tell(state)
        self.told = {name: np.asarray(leaf) for name, leaf in told.items()}
        return told

    def add_up(self, told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        run = self.phase.device.kernel or partial(one_by_one, self.phase)
        self.total = run(told, cohort, round_index, clip_norm)
        self.people, self.kept_norm = cohort.people, clip_norm
        return self.total

    def absorb(self, state: ServerState, published: Published) -> ServerState:
        if self.total is None:
            raise RuntimeError(f"{self.phase.name}: a sum was absorbed that nobody added up")
        count = self.phase.aggregator.count_behind(state.clip_norm, published.clip_norm)
        true_count = self.total._replace(clients=len(self.people)).balance
        self.rounds.append(
            WatchedRound(
                phase=self.phase,
                round_index=state.round_index,
                people=self.people,
                noise=_noise(published, self.total),
                told=self.told,
                clip_norm=state.clip_norm,
                published=published,
                kept_norm=self.kept_norm,
                count_noise=None if count is None else count - true_count,
            )
        )
        self.total = None
        return self.phase.absorb(state, published)


def _noise(published: Published, total: CohortTotal) -> dict[str, Leaf]:
    return {
        name: np.asarray(np.asarray(array) - np.asarray(total.update[name]), np.float32)
        for name, array in published.update.items()
    }
