"""The recipe of a federation's terms, on its enrolled people, as one party sees them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from privrec.algorithms.prepared import PreparedRun
from privrec.algorithms.recipes import rankers, stages_of
from privrec.core.phase import Exchange, Phase
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients, nobody
from privrec.data.federation import Federation
from privrec.data.splits import Split
from privrec.errors import FederationError
from privrec.evaluation.protocols import protocol_named, resolve
from privrec.flower.terms import Terms
from privrec.privacy.calibrate import refuse_large_delta
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.statement import against_server
from privrec.settings import RunSettings
from privrec.types import IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bound:
    """The recipe on the enrolled people; `phases()` finds the noise at its first call."""

    federation: Federation
    split: Split
    phases: Callable[[], tuple[Phase, ...]]

    def prepared(self, settings: RunSettings) -> PreparedRun:
        """Return the same as a run is prepared from."""
        name, candidates = resolve(settings.protocol, settings.candidates, self.federation)
        protocol = protocol_named(name, candidates=candidates, seed=settings.seed)
        return PreparedRun(
            config=settings,
            protocol=protocol,
            federation=self.federation,
            whole=self.federation,
            split=self.split,
            stages=self.phases,
            rankers=rankers(settings, self.federation.catalogue),
        )


def promised(terms: Terms, phases: Sequence[Phase]) -> tuple[float, float]:
    """Return epsilon of all planned rounds, and epsilon against a server that is not trusted."""
    planned = PrivacyLedger()
    for phase in phases:
        planned = planned.record(phase.release, phase.rounds)
    delta = terms.settings.budget.delta
    if not planned.is_private:
        return math.inf, math.inf
    trusted = terms.noise_from == "server"
    hostile = math.inf if trusted else against_server(planned, terms.sums, delta)
    return planned.epsilon(delta), hostile


def bind(terms: Terms, catalogue: Catalogue, mine: Clients | None = None, node: int = 0) -> Bound:
    """Return the recipe of the terms on all enrolled people, as one party sees them.

    A node has the data of its own people, `mine`. Everybody else is there and has none.
    """
    settings = terms.settings
    take = _taker(catalogue, mine, int(terms.firsts[node]))
    everybody = np.arange(terms.people)
    federation = Federation(
        catalogue=catalogue,
        n_clients=terms.people,
        take=take,
        ids=lambda positions: positions,
        largest=max(1, 0 if mine is None or not len(mine) else int(mine.sizes.max())),
        repeats=True,
        population=terms.name,
        people=terms.people,
        fingerprint=terms.fingerprint,
    )
    budget = settings.budget
    if budget.mechanism != "none":
        most = max(terms.people, budget.train_people)
        refuse_large_delta(budget.delta, most, forced=budget.force_delta)
    split = Split(
        public_train=budget.train_people or terms.people,
        train=everybody,
        validation=everybody[:0],
        test=everybody[:0],
    )

    @cache
    def phases() -> tuple[Phase, ...]:
        made = stages_of(settings, federation, split)
        for stage in made:
            if isinstance(stage, Exchange):
                raise FederationError(
                    f"{settings.recipe} has an exchange that is not a sum ({stage.name}), and a"
                    " federation only adds up; set `neighbours` to 0"
                )
            if not isinstance(stage, Phase):
                raise FederationError(
                    f"{settings.recipe} needs all data in one place; a federation has it nowhere"
                )
            if stage.volunteers:
                raise FederationError(
                    f"{settings.recipe}: {stage.name} asks volunteers alone, and an enrolment does"
                    " not say who volunteered; choose another `stage1`"
                )
        return tuple(stage for stage in made if isinstance(stage, Phase))

    return Bound(federation=federation, split=split, phases=phases)


def _taker(catalogue: Catalogue, mine: Clients | None, first: int) -> Callable[[IntArray], Clients]:
    """Return what reads the data of people by their positions in the federation."""
    if mine is None:
        return lambda positions: nobody(catalogue.schema, len(positions))
    own = mine

    def take(positions: IntArray) -> Clients:
        local = np.asarray(positions) - first
        if ((local >= 0) & (local < len(own))).all():
            return own.take(local)
        return nobody(catalogue.schema, len(local))

    return take
