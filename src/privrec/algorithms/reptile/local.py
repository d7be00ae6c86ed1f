"""Local training of one client. A phone runs it once; the simulator runs it for each client."""

from functools import lru_cache

import jax
import jax.numpy as jnp

from privrec.algorithms.reptile.batch import (
    Batch,
    Span,
    own_of,
    slope_of,
    start_of,
    step_along,
    to_send,
    whole_slope,
)
from privrec.algorithms.reptile.packed import PackedClient
from privrec.core.local import LocalResult, LocalTrain
from privrec.data.schema import Bags
from privrec.models.api import ITEM_TABLE, Recommender
from privrec.types import Array, Params


@lru_cache(maxsize=16)
def local_sgd(
    recommender: Recommender,
    *,
    learning_rate: float,
    epochs: int,
    batch_size: int,
    max_steps: int | None = None,
    whole_batch: bool = False,
) -> LocalTrain:
    """Return `epochs` of mini-batch SGD over one client's data (Algorithm 1, lines 10–18).

    The data is divided into mini-batches once and every epoch passes over them in that order, as
    printed. A step looks up the rows that its batch needs, differentiates with respect to those
    rows and the dense weights, and adds the result in place: its cost does not depend on the
    size of the catalogue. A client without data returns a zero update.

    With `whole_batch` an epoch is one step along the mean over all of the client's data.
    """

    def local(params: Params, catalogue: Bags, client: PackedClient) -> LocalResult:
        start = start_of(params, client)
        own = own_of(params, catalogue, client)
        n_batches = (client.size + batch_size - 1) // batch_size
        n_steps = jnp.minimum(n_batches, 1) if whole_batch else n_batches
        steps = jnp.minimum(epochs * n_steps, max_steps or epochs * n_steps)

        def mini_batch(i: Array, current: Params) -> tuple[Array, dict[str, Array]]:
            begin = (i % n_batches) * batch_size
            whole = jnp.minimum(client.size - begin, batch_size)
            batch = Batch.cut(client, own, begin, batch_size, end=client.size, whole=whole)
            slope = slope_of(recommender, current, batch)
            return slope.loss, step_along(current, batch, slope, learning_rate)

        def all_data(i: Array, current: Params) -> tuple[Array, dict[str, Array]]:
            span = Span(client, own, 0, client.size, batch_size)
            loss, slope = whole_slope(recommender, current, span)
            return loss, {name: current[name] - learning_rate * slope[name] for name in current}

        def step(i: Array, carry: tuple[dict[str, Array], Array]) -> tuple[dict[str, Array], Array]:
            current, total = carry
            loss, changed = (all_data if whole_batch else mini_batch)(i, current)
            return changed, total + loss

        end, total = jax.lax.fori_loop(0, steps, step, (start, jnp.zeros(())))
        update = {name: end[name] - start[name] for name in start}
        sent = to_send(update, params, client)
        return LocalResult(update=sent, loss=total / jnp.maximum(steps, 1))

    return local


def apply_update(params: Params, client: PackedClient, update: Params) -> dict[str, Array]:
    """Return the client's own parameters: `params` plus its update, item rows in their place."""
    own = {name: params[name] + update[name] for name in params if name != ITEM_TABLE}
    rows = params[ITEM_TABLE].at[client.rows].add(update[ITEM_TABLE], mode="drop")
    return {**own, ITEM_TABLE: rows}
