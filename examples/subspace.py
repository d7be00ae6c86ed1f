"""A recipe in one file: item vectors by a federated subspace iteration.

The vectors span the directions in which people's likes vary most. One round is one step of the
power method: a device adds up the vectors of what its person likes and sends the sum, of length 1,
for each of those items; the server adds up what everybody sent and makes it orthonormal again.
docs/extending.md walks through this file.
"""

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from privrec.algorithms.budgets import noised, sampling_of
from privrec.algorithms.recipe import Plan, Recipe, Task
from privrec.algorithms.settings import NoiseSettings
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.phase import TRAIN, DeviceHalf, Phase, ServerState, Told
from privrec.core.scorer import Scorer, TableScorer
from privrec.core.tables import check_shapes
from privrec.data.clients import Clients
from privrec.privacy.aggregate import Published
from privrec.privacy.ledger import PrivacyLedger
from privrec.seeds import rng
from privrec.settings import Size
from privrec.types import IntArray, Law, Params

VECTORS = "items/vectors"


class SubspaceSettings(NoiseSettings):
    """The keys of the recipe, besides those of every run and of noise."""

    rank: Size = 8
    """Length of an item's vector."""
    rounds: Size = 8
    """Steps of the power method."""
    cohort: Size = 100
    """People per round; under Poisson sampling this is the expected number."""
    sampling: Law = "poisson"
    """How a cohort is drawn: each person with the same probability, or a fixed number."""


def likes_of(person: Clients, k: int = 0) -> IntArray:
    """Return the items that a person likes, each once."""
    lines = slice(int(person.offsets[k]), int(person.offsets[k + 1]))
    return np.unique(person.item[lines][person.liked[lines]]).astype(np.int64)


# --- the device's half: a function of what was told and of one person ----------------------------


def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
    """Return what one device sends: the direction of its person's taste, for each of her likes."""
    vectors, likes = np.asarray(told[VECTORS], np.float64), likes_of(person)
    taste = vectors[likes].sum(0)
    taste /= max(float(np.linalg.norm(taste)), 1e-12) * np.sqrt(max(len(likes), 1))
    values = np.tile(taste, (len(likes), 1))
    return Contribution(rows={VECTORS: TouchedRows(likes, values, len(vectors))})


# --- the server's half ---------------------------------------------------------------------------


def absorb(state: ServerState, published: Published) -> ServerState:
    """Return the state with orthonormal vectors that span what was published."""
    basis, _ = np.linalg.qr(np.asarray(published.update[VECTORS], np.float64))
    return replace(state, params={VECTORS: jnp.asarray(basis, jnp.float32)})


def stages(task: Task[SubspaceSettings]) -> tuple[Phase, ...]:
    """Return the one phase of the recipe."""
    settings, federation, split = task.settings, task.federation, task.split
    aggregator = noised(
        settings,
        sampling_of(settings.sampling, settings.cohort, split),
        rounds=settings.rounds,
        clip_norm=settings.clip_norm,
        epsilon=settings.epsilon,
        spent=PrivacyLedger(),
    )

    def start(before: Params | None) -> ServerState:
        shape = (federation.n_items, min(settings.rank, federation.n_items))
        drawn = rng(settings.seed, 0, "vectors").standard_normal(shape)
        params = {VECTORS: jnp.asarray(np.linalg.qr(drawn)[0], jnp.float32)}
        clip_norm = aggregator.clip_norm
        return ServerState(round_index=0, params=params, opt_state=(), clip_norm=clip_norm)

    return (
        Phase(
            name=TRAIN,
            rounds=settings.rounds,
            first=0,
            population=split.train,
            aggregator=aggregator,
            device=DeviceHalf(contribute=contribute),
            start=start,
            tell=lambda state: state.params,
            absorb=absorb,
        ),
    )


# --- ranking, on the device ----------------------------------------------------------------------


def by_taste(rank: int, n_items: int, params: Params) -> Scorer:
    """Return how a device ranks: by how well an item fits the vectors of what its person likes."""
    check_shapes(params, {VECTORS: (n_items, min(rank, n_items))})
    vectors = np.asarray(params[VECTORS])

    def score(people: Clients) -> npt.NDArray[np.float32]:
        tastes = [vectors[likes_of(people, k)].sum(0) for k in range(len(people))]
        return np.asarray(np.stack(tastes) @ vectors.T, np.float32)

    return TableScorer(table=score, own_first=True)


# --- the recipe ----------------------------------------------------------------------------------


def plan(task: Task[SubspaceSettings]) -> Plan:
    """Return how the recipe trains and how it ranks."""
    ranker = partial(by_taste, task.settings.rank, task.federation.n_items)
    return Plan(task=task, stages=partial(stages, task), ranker=ranker)


SUBSPACE = Recipe(
    summary="item vectors by a federated subspace iteration",
    settings=SubspaceSettings,
    server_sees="items",
    plan=plan,
)
