"""Local training of one client. A phone runs it once; the simulator runs it for each client."""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp

from privrec.algorithms.reptile.packed import PackedClient
from privrec.core.local import LocalResult, LocalTrain
from privrec.data.schema import Bag, Bags
from privrec.models.api import (
    ITEM_TABLE,
    Recommender,
    dense_of,
    look_up,
    multi_hot,
    score_pairs,
    tables_of,
)
from privrec.types import Array, Leaf, Params


@lru_cache(maxsize=16)
def local_sgd(
    recommender: Recommender,
    *,
    learning_rate: float,
    epochs: int,
    batch_size: int,
    max_steps: int | None = None,
) -> LocalTrain:
    """Return `epochs` of mini-batch SGD over one client's data (Algorithm 1, lines 10–18).

    The data is divided into mini-batches once and every epoch passes over them in that order, as
    printed. A step looks up the rows that its batch needs, differentiates with respect to those
    rows and the dense weights, and adds the result in place: its cost does not depend on the
    size of the catalogue. A client without data returns a zero update.
    """

    def local(params: Params, catalogue: Bags, client: PackedClient) -> LocalResult:
        start = {**params, ITEM_TABLE: params[ITEM_TABLE][client.rows]}
        own = {
            name: _cheapest(bag.take(client.rows), len(params[name]))
            for name, bag in catalogue.items()
        }
        n_batches = (client.size + batch_size - 1) // batch_size
        steps = jnp.minimum(epochs * n_batches, max_steps or epochs * n_batches)

        def step(i: Array, carry: tuple[dict[str, Array], Array]) -> tuple[dict[str, Array], Array]:
            current, total = carry
            batch = _Batch.cut(client, own, (i % n_batches) * batch_size, batch_size)
            loss, changed = _sgd_step(recommender, current, batch, learning_rate)
            return changed, total + loss

        end, total = jax.lax.fori_loop(0, steps, step, (start, jnp.zeros(())))
        update = {name: end[name] - start[name] for name in start}
        return LocalResult(update=update, loss=total / jnp.maximum(steps, 1))

    return local


class _Batch(NamedTuple):
    """One mini-batch: encoded columns by table (one row for the user's own) and targets.

    `share` is 1 / size for each real instance and 0 for padding.
    """

    bags: dict[str, Bag]
    target: Array
    share: Array

    @classmethod
    def cut(cls, client: PackedClient, own: Bags, begin: Leaf, size: int) -> "_Batch":
        def window(column: Leaf) -> Array:
            return jax.lax.dynamic_slice_in_dim(column, begin, size)

        item = window(client.item)
        real = (begin + jnp.arange(size) < client.size).astype(jnp.float32)
        return cls(
            bags={
                ITEM_TABLE: Bag(item[:, None], jnp.ones((size, 1))),
                **{name: _of_items(bag, item) for name, bag in own.items()},
                **{name: Bag(*map(window, bag)) for name, bag in client.context.items()},
                **client.features,
            },
            target=window(client.target),
            share=real / real.sum(),
        )


_SMALL_TABLE = 128
"""The most rows of a table that is worth a multi-hot product. Chosen by hand; not tuned."""


def _cheapest(bag: Bag, n_rows: int) -> Bag:
    """Return a multi-valued bag of a small table as multi-hot: a step is several times faster."""
    several = bag.codes.shape[1] > 1
    return multi_hot(bag, n_rows) if several and n_rows <= _SMALL_TABLE else bag


def _of_items(bag: Bag, item: Array) -> Bag:
    """Return the rows of these items; multi-hot codes are the same for all of them."""
    codes = bag.codes if len(bag.codes) == 1 else bag.codes[item]
    return Bag(codes, bag.weights[item])


def _sgd_step(
    recommender: Recommender, params: Params, batch: _Batch, learning_rate: float
) -> tuple[Array, dict[str, Array]]:
    """Return the batch's mean loss and the parameters after one step of plain SGD."""
    dense, tables = dense_of(params), tables_of(params)
    rows, weights = look_up(tables, batch.bags)

    def mean_loss(dense: Params, rows: Params) -> Array:
        score = score_pairs(recommender, dense, rows, weights)
        return (batch.share * recommender.loss(score, batch.target)).sum()

    loss, (dense_slope, row_slope) = jax.value_and_grad(mean_loss, (0, 1))(dense, rows)
    changed = {name: value - learning_rate * dense_slope[name] for name, value in dense.items()}
    for name, table in tables.items():
        changed[name] = table.at[batch.bags[name].codes].add(-learning_rate * row_slope[name])
    return loss, changed


def apply_update(params: Params, client: PackedClient, update: Params) -> dict[str, Array]:
    """Return the client's own parameters: `params` plus its update, item rows in their place."""
    own = {name: params[name] + update[name] for name in params if name != ITEM_TABLE}
    rows = params[ITEM_TABLE].at[client.rows].add(update[ITEM_TABLE], mode="drop")
    return {**own, ITEM_TABLE: rows}
