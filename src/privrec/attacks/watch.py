"""What an attacker sees who reads along: all that each round tells and publishes.

One training that an attacker watches. The trained model is thrown away.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from privrec.algorithms.recipe import PreparedRun
from privrec.attacks.games import EVERYBODY_TRAINS
from privrec.core.phase import Cohort, Phase, ServerState, Stage, Told
from privrec.core.round import one_by_one
from privrec.data.clients import Clients, nobody
from privrec.data.federation import Federation
from privrec.privacy.aggregate import CohortTotal, Published
from privrec.privacy.ledger import PrivacyLedger
from privrec.settings import RunSettings
from privrec.types import IntArray, Law, Leaf, Params


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """One round: what devices were told, the bound on what each sends, and the published sum.

    `people` are the positions of those who were drawn, and `noise` is the published sum minus the
    true one: no attacker has that. `bound` is the one that devices were asked to keep to, and
    `count_noise` the noise on the count of adaptive clipping, if there is one.
    """

    phase: Phase
    round_index: int
    people: IntArray
    noise: Mapping[str, Leaf]
    told: dict[str, Leaf]
    clip_norm: float
    published: Published
    bound: float
    count_noise: float | None

    @property
    def where(self) -> str:
        """The round in words."""
        return f"round {self.round_index} ({self.phase.name})"

    @property
    def noise_scale(self) -> float:
        """The scale that the noise is said to have."""
        return self.phase.aggregator.noise_scale(self.clip_norm)


def watched(prepared: PreparedRun, look: Callable[[Seen], None]) -> PreparedRun:
    """Return the run with stages that show each round; nothing else about them changes."""
    made: list[tuple[Stage, ...]] = []

    def stages() -> tuple[Stage, ...]:
        if not made:
            made.append(tuple(_watched_stage(stage, look) for stage in prepared.stages()))
        return made[0]

    return replace(prepared, stages=stages)


def _watched_stage(stage: Stage, look: Callable[[Seen], None]) -> Stage:
    if not isinstance(stage, Phase):
        return stage
    told: dict[str, Leaf] = {}
    drawn: list[tuple[IntArray, float, CohortTotal]] = []
    run = stage.device.kernel or partial(one_by_one, stage)

    def kernel(said: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        total = run(said, cohort, round_index, clip_norm)
        drawn.append((cohort.people, clip_norm, total))
        return total

    def tell(state: ServerState) -> Told:
        said = stage.tell(state)
        told.clear()
        told.update({name: np.asarray(leaf) for name, leaf in said.items()})
        return said

    def absorb(state: ServerState, published: Published) -> ServerState:
        people, bound, total = drawn[-1]
        count = stage.aggregator.count_behind(state.clip_norm, published.clip_norm)
        true = total._replace(clients=len(people)).balance
        look(
            Seen(
                phase=stage,
                round_index=state.round_index,
                people=people,
                noise=_noise(published, total),
                told=dict(told),
                clip_norm=state.clip_norm,
                published=published,
                bound=bound,
                count_noise=None if count is None else count - true,
            )
        )
        drawn.clear()
        return stage.absorb(state, published)

    device = replace(stage.device, kernel=kernel)
    return replace(stage, device=device, tell=tell, absorb=absorb)


def _noise(published: Published, total: CohortTotal) -> dict[str, Leaf]:
    return {
        name: np.asarray(np.asarray(array) - np.asarray(total.update[name]), np.float32)
        for name, array in published.update.items()
    }


def untold(stages: Sequence[Stage], seen: Sequence[Seen], released: Params) -> list[str]:
    """Return what was told or released that does not follow from what was published before.

    `stages` are those of the run, made `without_data`. The server's half is played again, with the
    published sums. Whatever it then tells or releases otherwise came from people's data on another
    way than through noised sums.
    """
    found: list[str] = []
    named = {stage.name: stage for stage in stages}
    state: ServerState | None = None
    playing = ""
    for one in seen:
        where, stage = one.where, named[one.phase.name]
        try:
            if not isinstance(stage, Phase):
                raise TypeError(f"{stage.name} is not a phase")
            if state is None or stage.name != playing:
                state = stage.start(None if state is None else state.params)
                playing = stage.name
            found += _differences(where, one.told, stage.tell(state))
            after = stage.absorb(state, one.published)
            clip_norm = one.published.clip_norm
            state = replace(after, round_index=one.round_index + 1, clip_norm=clip_norm)
        except Exception as error:  # Whatever it is: it did not happen with people's data.
            return [*found, f"{where}: the server cannot go on from published sums alone ({error})"]
    if state is not None:
        found += _differences("the released model", released, state.params)
    return found


def _differences(where: str, one: Params | Told, other: Params | Told) -> list[str]:
    return [
        f"{where}: {name!r} was computed from people's data, not from published sums alone"
        for name in sorted(one.keys() | other.keys())
        if not _same(one.get(name), other.get(name))
    ]


def without_data(federation: Federation) -> Federation:
    """Return as many people, none of whom has a line or a feature."""

    def take(positions: IntArray) -> Clients:
        return nobody(federation.schema, len(positions))

    return replace(federation, take=take)


def _same(one: Leaf | None, other: Leaf | None) -> bool:
    if one is None or other is None:
        return one is other
    if np.shape(one) != np.shape(other):
        return False
    return bool(np.allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=1e-7))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """The run, all that it told and published, its ledger as it was on the disk, and its model."""

    prepared: PreparedRun
    seen: list[Seen]
    ledger: PrivacyLedger
    params: Params


def try_out(train: Callable[..., Any], people: Federation) -> Trial:
    """Return a training among these people, all of whom train.

    `train` is `runs.loop.train` with its recipe and settings: what `privrec train` runs.
    """
    seen: list[Seen] = []
    kept: list[PreparedRun] = []

    def watch(prepared: PreparedRun) -> PreparedRun:
        kept.append(prepared)
        return watched(prepared, seen.append)

    with tempfile.TemporaryDirectory(prefix="privrec-trial-") as folder:
        run = train(people, out=Path(folder) / "run", watch=watch, **EVERYBODY_TRAINS)
        model = dict(run.model().params)
        return Trial(prepared=kept[0], seen=seen, ledger=run.ledger, params=model)


def law_of(config: RunSettings) -> Law:
    """Return how cohorts are sampled."""
    law: Law = getattr(config, "sampling", "fixed")
    return law
