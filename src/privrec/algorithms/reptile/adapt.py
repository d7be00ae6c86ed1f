"""Adapts the shared model to one person by local training, and scores all items for her."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from privrec.algorithms.recipe import Plan, Task
from privrec.algorithms.reptile.dssm import instances_of, known, recommender_of
from privrec.algorithms.reptile.local import apply_update, local_sgd
from privrec.algorithms.reptile.pack import Instances, PackedClient, pack, seen
from privrec.algorithms.reptile.settings import MOST_STEPS, DssmSettings
from privrec.core.model import ITEM_TABLE, Recommender, dense_of, look_up
from privrec.core.phase import Stage
from privrec.core.scorer import Scorer, Scores
from privrec.core.tables import check_shapes
from privrec.core.training import LocalTrain, jit_in_place
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients
from privrec.data.schema import Bag, Bags
from privrec.simulate.lanes import map_clients
from privrec.types import Array, IntArray, Params

_CONTEXTS = 16
"""The number of contexts that one compiled call scores. Chosen by hand; not tuned."""


def dssm_plan(stages: Callable[[Any], tuple[Stage, ...]], task: Task[DssmSettings]) -> Plan:
    """Return the plan of a recipe for the DSSM; `stages(task)` returns its training stages."""
    settings, catalogue = task.settings, task.federation.catalogue
    epochs = settings.adapt_epochs
    return Plan(
        task=task,
        stages=partial(stages, task),
        ranker=partial(by_adapting, settings, catalogue, epochs),
        unadapted=partial(by_adapting, settings, catalogue, 0) if epochs else None,
    )


def by_adapting(
    settings: DssmSettings, catalogue: Catalogue, epochs: int, params: Params
) -> Scorer:
    """Return the scorer: it adapts the DSSM to the person's own data, then scores all items."""
    recommender = recommender_of(settings, catalogue)
    expected = jax.eval_shape(recommender.init, jax.random.key(0))
    check_shapes(params, {name: leaf.shape for name, leaf in expected.items()})
    local = local_sgd(
        recommender,
        learning_rate=settings.adapt_lr,
        epochs=epochs,
        batch_size=settings.batch_size,
        max_steps=settings.adapt_steps or MOST_STEPS,
        whole_batch=settings.whole_batch,
    )
    instances = replace(instances_of(settings), negatives=settings.adapt_negatives)
    public = known(settings, catalogue)
    return adapted_scorer(recommender, local, public, instances, params, seed=settings.seed)


def adapted_scorer(
    recommender: Recommender,
    local: LocalTrain,
    catalogue: Catalogue,
    instances: Instances,
    params: Params,
    *,
    seed: int,
) -> Scorer:
    """Return a scorer: it trains on the device's own data, then scores all items.

    The code is compiled once for all parameters. The adapted parameters stay inside the scorer.
    """
    items, n_items = dict(catalogue.items), catalogue.n_items
    adapt, score = _programs(recommender, local)

    def serve(
        params: Params, catalogue: Bags, job: tuple[PackedClient, Mapping[str, Bag]]
    ) -> Scores:
        client, contexts = job
        own = adapt(params, catalogue, client)
        if not contexts:
            return np.asarray(score(own, catalogue, client.features, {}))
        distinct, inverse = _distinct_contexts(contexts)
        count = len(next(iter(distinct.values())).codes)
        parts = [
            np.asarray(score(own, catalogue, client.features, _window(distinct, start)))
            for start in range(0, count, _CONTEXTS)
        ]
        scores: Scores = np.concatenate(parts)[inverse]
        return scores

    def scorer(first: Clients, lines: Clients) -> Iterable[Scores]:
        if len(first) == 0:
            return []
        packed = pack(first, instances, n_items=n_items, seed=seed, round_index=0)
        tested = seen(lines, instances)
        jobs = [(client, _contexts_of(tested, k)) for k, client in enumerate(packed)]
        return map_clients(serve, params, items, jobs)

    return scorer


@lru_cache(maxsize=16)
def _programs(
    recommender: Recommender, local: LocalTrain
) -> tuple[Callable[..., dict[str, Array]], Callable[..., Array]]:
    """Return the functions for adaptation and for scoring, compiled once per model."""

    @jit_in_place
    def adapt(params: Params, catalogue: Bags, client: PackedClient) -> dict[str, Array]:
        return apply_update(params, client, local(params, catalogue, client).update)

    @jax.jit
    def score(
        params: Params,
        catalogue: Bags,
        features: Mapping[str, Bag],
        contexts: Mapping[str, Bag],
    ) -> Array:
        return score_items(recommender, params, catalogue, {**features, **contexts})

    return adapt, score


def score_items(
    recommender: Recommender, params: Params, catalogue: Bags, bags: Mapping[str, Bag]
) -> Array:
    """Return the scores of all items for each context in `bags`, shape (contexts or 1, n_items)."""
    dense, ids = dense_of(params), params[ITEM_TABLE]
    every_item = Bag(jnp.arange(len(ids))[:, None], jnp.ones((len(ids), 1)))
    rows, weights = look_up(params, {**catalogue, **bags, ITEM_TABLE: every_item})
    item = recommender.item(dense, rows, weights)
    user = recommender.user(dense, rows, weights)

    def one_context(context: Array) -> Array:
        return recommender.head(dense, context[None, :], item)

    scores: Array = jax.lax.map(one_context, user)
    return scores


def _contexts_of(lines: Clients, k: int) -> dict[str, Bag]:
    rows = slice(int(lines.offsets[k]), int(lines.offsets[k + 1]))
    return {name: bag.take(rows) for name, bag in lines.context.items()}


def _distinct_contexts(contexts: Mapping[str, Bag]) -> tuple[dict[str, Bag], IntArray]:
    """Return the distinct contexts, and for each interaction the index of its context."""
    columns = [part for bag in contexts.values() for part in (bag.codes, bag.weights)]
    table = np.concatenate([np.asarray(column, np.float64) for column in columns], axis=1)
    _, place, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return {name: bag.take(place) for name, bag in contexts.items()}, inverse.reshape(-1)


def _window(contexts: Mapping[str, Bag], start: int) -> dict[str, Bag]:
    """Return `_CONTEXTS` contexts from `start` on; the last context fills up the rest."""
    count = len(next(iter(contexts.values())).codes)
    rows = np.minimum(np.arange(start, start + _CONTEXTS), count - 1)
    return {name: bag.take(rows) for name, bag in contexts.items()}
