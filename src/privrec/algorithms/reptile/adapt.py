"""Adapting the shared model to one person by local training, and scoring every item for her."""

from collections.abc import Callable, Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from privrec.algorithms.reptile.local import apply_update
from privrec.algorithms.reptile.pack import Instances, PackedClient, pack
from privrec.core.local import LocalTrain
from privrec.data.catalogue import Catalogue
from privrec.data.federation import Clients
from privrec.data.schema import Bag, Bags
from privrec.evaluation.ranking import Scorer, Scores
from privrec.models.api import ITEM_TABLE, Recommender, dense_of, look_up
from privrec.simulate.lanes import map_clients
from privrec.types import Array, IntArray, Params

_MOMENTS = 16
"""How many contexts are scored in one compiled call. Chosen by hand; no measurement on record."""


def adapted_scorer(
    recommender: Recommender,
    local: LocalTrain,
    catalogue: Catalogue,
    instances: Instances,
    *,
    seed: int,
) -> Callable[[Params], Scorer]:
    """Return a scorer for given parameters: train on the device's own data, then score all items.

    It is compiled once for all parameters. The adapted parameters stay inside the scorer.
    """
    items, n_items = dict(catalogue.items), catalogue.n_items

    @jax.jit
    def adapt(params: Params, catalogue: Bags, client: PackedClient) -> dict[str, Array]:
        return apply_update(params, client, local(params, catalogue, client).update)

    @jax.jit
    def score(
        params: Params,
        catalogue: Bags,
        features: Mapping[str, Bag],
        moments: Mapping[str, Bag],
    ) -> Array:
        return score_items(recommender, params, catalogue, {**features, **moments})

    def serve(
        params: Params, catalogue: Bags, job: tuple[PackedClient, Mapping[str, Bag]]
    ) -> Scores:
        client, moments = job
        own = adapt(params, catalogue, client)
        if not moments:
            return np.asarray(score(own, catalogue, client.features, {}))
        distinct, inverse = _distinct_moments(moments)
        count = len(next(iter(distinct.values())).codes)
        parts = [
            np.asarray(score(own, catalogue, client.features, _window(distinct, start)))
            for start in range(0, count, _MOMENTS)
        ]
        scores: Scores = np.concatenate(parts)[inverse]
        return scores

    def scorer_of(params: Params) -> Scorer:
        def scorer(first: Clients, lines: Clients) -> Iterable[Scores]:
            if len(first) == 0:
                return []
            packed = pack(first, instances, n_items=n_items, seed=seed, round_index=0)
            jobs = [(client, _moments(lines, k)) for k, client in enumerate(packed)]
            return map_clients(serve, params, items, jobs)

        return scorer

    return scorer_of


def score_items(
    recommender: Recommender, params: Params, catalogue: Bags, bags: Mapping[str, Bag]
) -> Array:
    """Return the scores of all items for each moment in `bags`: shape (moments or 1, n_items)."""
    dense, ids = dense_of(params), params[ITEM_TABLE]
    every_item = Bag(jnp.arange(len(ids))[:, None], jnp.ones((len(ids), 1)))
    rows, weights = look_up(params, {**catalogue, **bags, ITEM_TABLE: every_item})
    item = recommender.item(dense, rows, weights)
    user = recommender.user(dense, rows, weights)

    def one_moment(moment: Array) -> Array:
        return recommender.head(dense, moment[None, :], item)

    scores: Array = jax.lax.map(one_moment, user)
    return scores


def _moments(lines: Clients, k: int) -> dict[str, Bag]:
    rows = slice(int(lines.offsets[k]), int(lines.offsets[k + 1]))
    return {name: bag.take(rows) for name, bag in lines.context.items()}


def _distinct_moments(moments: Mapping[str, Bag]) -> tuple[dict[str, Bag], IntArray]:
    """Return each context once, and for each line which of them is its own."""
    columns = [part for bag in moments.values() for part in (bag.codes, bag.weights)]
    table = np.concatenate([np.asarray(column, np.float64) for column in columns], axis=1)
    _, place, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return {name: bag.take(place) for name, bag in moments.items()}, inverse.reshape(-1)


def _window(moments: Mapping[str, Bag], start: int) -> dict[str, Bag]:
    """Return `_MOMENTS` contexts from `start` on, the last one repeated to fill up."""
    count = len(next(iter(moments.values())).codes)
    rows = np.minimum(np.arange(start, start + _MOMENTS), count - 1)
    return {name: bag.take(rows) for name, bag in moments.items()}
