"""Reference recipes, such as popularity and EASE, which fit all data centrally in one round."""

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np

from privrec.algorithms.recipe import Plan, Recipe, Task
from privrec.core.phase import (
    TRAIN,
    Advance,
    CentralFit,
    RoundReport,
    ServerState,
    ServerWork,
    Told,
)
from privrec.core.scorer import Scorer
from privrec.core.tables import check_shapes
from privrec.data.clients import Split
from privrec.data.federation import Federation
from privrec.evaluation.references import EASE_L2, REFERENCES, Reference, ease, sums_of
from privrec.privacy.aggregate import plain
from privrec.privacy.release import Sampling
from privrec.settings import Positive, RunSettings
from privrec.types import Params

_COPIES = 4
"""The number of copies of the fitted matrix in memory: the matrix, its copy in the parameters, and
two more while the parameters are written."""


class EaseSettings(RunSettings):
    """The settings of EASE."""

    ease_l2: Positive = EASE_L2
    """Weight of the L2 penalty (ridge) of EASE."""


def _plan(task: Task[RunSettings]) -> Plan:
    settings, n_items = task.settings, task.federation.n_items
    reference = REFERENCES[settings.recipe]
    if isinstance(settings, EaseSettings):
        reference = ease(settings.ease_l2)
    return Plan(
        task=task,
        stages=lambda: (_one_fit(task.federation, task.split, reference),),
        ranker=partial(_fitted, reference, n_items),
    )


def _fitted(reference: Reference, n_items: int, params: Params) -> Scorer:
    check_shapes(params, reference.shapes(n_items))
    return reference.scorer({name: np.asarray(array) for name, array in params.items()})


def _one_fit(federation: Federation, split: Split, reference: Reference) -> CentralFit:
    people, n_items = split.fitted, federation.n_items
    reference.check(n_items)
    sampling = Sampling(law="fixed", users=len(people), cohort=len(people))

    def start(before: Params | None) -> ServerState:
        return ServerState(round_index=0, params={}, opt_state=(), clip_norm=np.inf)

    def play(state: ServerState, advance: Advance) -> tuple[ServerState, RoundReport]:
        arrays = reference.fit(federation, people, advance)
        params = {name: jnp.asarray(array) for name, array in arrays.items()}
        after = replace(state, round_index=state.round_index + 1, params=params)
        return after, RoundReport(round_index=state.round_index, clients=len(people), loss=None)

    def read(count: int) -> object:
        return sums_of(federation, people[:count], pairs=reference.needs_pairs)

    def work(told: Told | None) -> ServerWork:
        return ServerWork(
            bytes=round(_COPIES * 1e9 * reference.gigabytes(n_items)),
            what=f"this reference over {n_items:,} items",
            instead=lambda free: "choose 'privrec-plus', or data with fewer items",
            multiply_adds=n_items**3 // 2 if reference.needs_pairs else 0,
        )

    return CentralFit(
        name=TRAIN,
        rounds=1,
        aggregator=plain(sampling),
        start=start,
        play=play,
        work=work,
        read=read,
    )


POPULARITY = Recipe(
    summary="most liked first, the same for everybody",
    settings=RunSettings,
    server_sees="everything",
    plan=_plan,
)
OWN_ITEMS = replace(POPULARITY, summary="a person's own items first, then the most liked")
ITEM_KNN = replace(
    POPULARITY, summary="own items first, then cosine similarity to what the person likes"
)
EASE = replace(
    POPULARITY,
    summary="own items first, then EASE, a linear model in closed form",
    settings=EaseSettings,
)
