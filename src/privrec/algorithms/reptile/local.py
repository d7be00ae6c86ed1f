"""Local training of one client. A phone runs it once; the simulator runs it for each client.

MAML on the DSSM: what a device sends is the gradient at the end of its own adaptation.
"""

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
    whole_bend,
    whole_slope,
)
from privrec.algorithms.reptile.pack import PackedClient, PackedTask
from privrec.core.model import ITEM_TABLE, Recommender
from privrec.core.training import LocalResult, LocalTrain
from privrec.data.schema import Bags
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


@lru_cache(maxsize=16)
def local_maml(
    recommender: Recommender,
    *,
    learning_rate: float,
    inner_steps: int,
    batch_size: int,
    second_order: bool,
) -> LocalTrain:
    """Return the meta-gradient of one client, with its sign changed.

        θ_j+1 = θ_j - α ∇L_support(θ_j),   update = -∇_θ0 L_query(θ_k),   k = inner_steps

    With v_k = ∇L_query(θ_k), the chain rule gives v_j = v_j+1 - α H_j v_j+1, where H_j is the
    second derivative of L_support at θ_j; the update is -v_0. The first-order variant takes H as 0.
    Losses are means over all instances of their part, `batch_size` of which are computed at a time.
    """

    def moved(start: Params, slope: Params) -> dict[str, Array]:
        return {name: start[name] - learning_rate * slope[name] for name in start}

    def local(params: Params, catalogue: Bags, task: PackedTask) -> LocalResult:
        client, own = task.client, own_of(params, catalogue, task.client)
        support = Span(client, own, 0, task.support, batch_size)
        query = Span(client, own, task.begin, task.end, batch_size)
        path = [start_of(params, client)]
        for _ in range(inner_steps):
            path.append(moved(path[-1], whole_slope(recommender, path[-1], support)[1]))
        loss, back = whole_slope(recommender, path[-1], query)
        if second_order:
            for before in reversed(path[:-1]):
                back = moved(back, whole_bend(recommender, before, support, back))
        update = {name: -value for name, value in back.items()}
        return LocalResult(update=to_send(update, params, client), loss=loss)

    return local
