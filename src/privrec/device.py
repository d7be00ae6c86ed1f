"""What lives on a phone: adapting the shared model to one person, and ranking for her."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from privrec.data.federation import Clients, Federation
from privrec.data.schema import Bag, encode_one
from privrec.errors import DataError, SettingsError, nearest
from privrec.evaluation.ranking import Scorer, Scores
from privrec.federated.lanes import map_clients
from privrec.federated.local import Catalogue, LocalTrain, apply_update
from privrec.federated.pack import Instances, PackedClient, pack
from privrec.models.api import ITEM_TABLE, Recommender, dense_of, look_up
from privrec.types import Array, IntArray, Params

_MOMENTS = 16
"""How many contexts are scored in one compiled call."""


def catalogue_of(federation: Federation) -> Catalogue:
    """Return the items' features as compiled code takes them."""
    return dict(federation.items)


def adapted_scorer(
    recommender: Recommender,
    local: LocalTrain,
    federation: Federation,
    instances: Instances,
    *,
    seed: int,
) -> Callable[[Params], Scorer]:
    """Return a scorer for given parameters: train on the device's own data, then score all items.

    Compiled once for all parameters that it is given. The adapted parameters never leave the lane.
    """
    catalogue = catalogue_of(federation)

    @jax.jit
    def adapt(params: Params, catalogue: Catalogue, client: PackedClient) -> dict[str, Array]:
        return apply_update(params, client, local(params, catalogue, client).update)

    @jax.jit
    def score(
        params: Params,
        catalogue: Catalogue,
        features: Mapping[str, Bag],
        moments: Mapping[str, Bag],
    ) -> Array:
        return score_items(recommender, params, catalogue, {**features, **moments})

    def serve(
        params: Params, catalogue: Catalogue, job: tuple[PackedClient, Mapping[str, Bag]]
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
            packed = pack(first, instances, n_items=federation.n_items, seed=seed, round_index=0)
            jobs = [(client, _moments(lines, k)) for k, client in enumerate(packed)]
            return map_clients(serve, params, catalogue, jobs)

        return scorer

    return scorer_of


def score_items(
    recommender: Recommender, params: Params, catalogue: Catalogue, bags: Mapping[str, Bag]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """One recommended item."""

    item: str
    title: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One person's device: it holds her data, adapts the model to it, and sends nothing."""

    federation: Federation
    scorer: Scorer
    data: Clients
    moment: Clients

    def recommend(self, top: int = 10) -> list[Recommendation]:
        """Return the `top` items she has not rated, best first."""
        if top < 1:
            raise SettingsError(f"`top` must be >= 1; got {top}")
        scores = np.asarray(next(iter(self.scorer(self.data, self.moment)))[0], np.float64)
        scores[self.data.item] = -np.inf
        order = np.argsort(-scores, kind="stable")[: min(top, (scores > -np.inf).sum())]
        return [
            Recommendation(
                item=self.federation.item_ids[k],
                title=self.federation.titles[k],
                score=float(scores[k]),
            )
            for k in order
        ]


def new_device(
    federation: Federation,
    scorer: Scorer,
    *,
    likes: Sequence[str] = (),
    dislikes: Sequence[str] = (),
    features: Mapping[str, object] | None = None,
) -> Device:
    """Return the device of a newcomer who has no id in the system.

    Items are given by id or title, features by name (of the user or of the moment).
    """
    for name, items in (("likes", likes), ("dislikes", dislikes)):
        if isinstance(items, str):
            raise SettingsError(f"`{name}` must be a list of items; got {items!r}")
    item = [find_item(federation, name) for name in [*likes, *dislikes]]
    if len(set(item)) < len(item):
        twice = next(k for k in item if item.count(k) > 1)
        raise DataError(f"{federation.titles[twice]!r} was given more than once")
    liked = np.arange(len(item)) < len(likes)
    given = dict(features or {})
    for feature in (*federation.schema.of("user"), *federation.schema.of("context")):
        if feature.kind != "multi" and isinstance(given.get(feature.name), list | tuple):
            raise DataError(f"{feature.name!r} takes one value; got {given[feature.name]!r}")
    context_names = {feature.name for feature in federation.schema.of("context")}
    now = {name: given.pop(name) for name in list(given) if name in context_names}
    context = encode_one(federation.schema, "context", now)
    data = Clients(
        ids=np.zeros(1, np.int64),
        offsets=np.array([0, len(item)]),
        item=np.array(item, np.int32),
        value=np.where(liked, federation.positive_above + 1, federation.positive_above).astype(
            np.float32
        ),
        liked=liked,
        time=np.arange(len(item), dtype=np.float64),
        features=encode_one(federation.schema, "user", given),
        context={name: bag.take(np.zeros(len(item), np.int64)) for name, bag in context.items()},
    )
    return Device(
        federation=federation, scorer=scorer, data=data, moment=_one_moment(data, context)
    )


def find_item(federation: Federation, name: str) -> int:
    """Return the position of the item with this title or id; case does not matter for titles."""
    ids, titles = federation.item_ids, federation.titles
    if name in ids:
        return ids.index(name)
    for spelt in (str, str.casefold):
        found = [k for k, title in enumerate(titles) if spelt(title) == spelt(name)]
        if len(found) > 1:
            several = ", ".join(ids[k] for k in found[:5])
            raise DataError(f"{len(found)} items are called {name!r}: give an id, of {several}")
        if found:
            return found[0]
    raise DataError(f"unknown item {name!r}{nearest(name, federation.titles)}")


def _one_moment(data: Clients, context: Mapping[str, Bag]) -> Clients:
    return Clients(
        ids=data.ids,
        offsets=np.array([0, 1]),
        item=np.zeros(1, np.int32),
        value=np.zeros(1, np.float32),
        liked=np.ones(1, np.bool_),
        time=np.zeros(1),
        features=data.features,
        context=context,
    )


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
