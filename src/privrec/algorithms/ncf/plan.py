"""The recipe of neural collaborative filtering, and how it ranks for a person it never saw."""

from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from privrec.algorithms.ncf.model import Person, items_of, scores, shapes_of, start_of
from privrec.algorithms.ncf.settings import NcfSettings
from privrec.algorithms.ncf.train import ncf_stages
from privrec.algorithms.recipe import Recipe
from privrec.algorithms.reptile.pack import Instances, pack
from privrec.algorithms.reptile.packed import PackedClient
from privrec.core.scorer import Ranker, Rankers, Scorer, Scores, check_shapes
from privrec.data.catalogue import Catalogue
from privrec.data.clients import Clients
from privrec.data.schema import Bags
from privrec.evaluation.references import own_first
from privrec.models.api import implicit_loss
from privrec.simulate.lanes import map_clients
from privrec.types import Array, Params

_PADDED = 64
"""Instances of a person are padded to 2, 4, 8, … times this many."""


def ncf_rankers(settings: NcfSettings, catalogue: Catalogue) -> Rankers:
    """Return how a device ranks: learn the person's two vectors, then score all items."""
    n_items = catalogue.n_items
    shapes = shapes_of(n_items, settings.embedding_size, settings.hidden)
    instances = Instances(
        negatives=settings.adapt_negatives,
        batch_size=_PADDED,
        dislike_target=settings.dislike_target,
    )

    def ranker(steps: int) -> Ranker:
        serve = _compiled_adaptation(steps, settings.adapt_lr, settings.adapt_decay)

        def score_all(params: Params, first: Clients) -> Scores:
            packed = pack(first, instances, n_items=n_items, seed=settings.seed, round_index=0)
            return np.stack([np.asarray(row) for row in map_clients(serve, params, {}, packed)])

        def fitting(params: Params) -> Scorer:
            check_shapes(params, shapes)
            whole = partial(score_all, params)
            if settings.own_first and steps:
                return own_first(n_items, whole)

            def scorer(first: Clients, lines: Clients) -> Iterable[Scores]:
                del lines
                return whole(first)[:, None, :] if len(first) else []

            return scorer

        return fitting

    steps = settings.adapt_steps
    return Rankers(adapted=ranker(steps), unadapted=ranker(0) if steps else None)


@lru_cache(maxsize=16)
def _compiled_adaptation(steps: int, learning_rate: float, decay: float) -> Any:
    """Return (params, {}, client) -> the scores of all items, shape (n_items,), compiled."""

    @jax.jit
    def serve(params: Params, catalogue: Bags, client: PackedClient) -> Array:
        del catalogue
        person, _ = fold_in(params, client, steps, learning_rate, decay)
        return scores(params, person, items_of(params, slice(None)))

    return serve


def fold_in(
    params: Params, client: PackedClient, steps: int, learning_rate: float, decay: float
) -> tuple[Person, Array]:
    """Return the vectors of a new person, and the loss before each step.

    Adam on the mean loss over her instances, from the start that all share. Nothing but her two
    vectors is changed. A person without instances keeps the start.
    """
    items = items_of(params, client.rows[client.item])
    real = jnp.arange(len(client.item)) < client.size
    share = real / jnp.maximum(client.size, 1)
    start, optimizer = start_of(params), optax.adam(learning_rate)

    def mean_loss(person: Person) -> Array:
        loss: Array = (share * implicit_loss(scores(params, person, items), client.target)).sum()
        away = sum(((here - there) ** 2).sum() for here, there in zip(person, start, strict=True))
        return loss + decay / 2 * away / jnp.maximum(client.size, 1)

    def step(carry: tuple[Person, optax.OptState], _: None) -> tuple[Any, Array]:
        person, adam = carry
        loss, slope = jax.value_and_grad(mean_loss)(person)
        change, adam = optimizer.update(slope, adam, person)
        return (optax.apply_updates(person, change), adam), loss

    (person, _), losses = jax.lax.scan(step, (start, optimizer.init(start)), length=steps)
    return person, losses


NCF = Recipe(
    summary="neural collaborative filtering (NeuMF), trained centrally; new people's vectors on"
    " the device",
    settings=NcfSettings,
    server_sees="everything",
    stages=ncf_stages,
    rankers=ncf_rankers,
    # Validation would take 77 of 766 people out of training.
    presets={"frappe": {"rounds": 10, "validation_share": 0.0}},
)
