"""Some instances of one client at a time, and derivatives of their loss.

The derivatives of the mean over all of a client's data are added up in a loop that runs over the
real data only. So clients of any size share compiled code, and nothing is computed for padding.
JAX cannot differentiate backwards through such a loop; `whole_bend` makes that unnecessary.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from privrec.algorithms.reptile.packed import PackedClient
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


class Batch(NamedTuple):
    """Some instances: encoded columns by table (one row for the user's own) and targets.

    `share` is the weight of each instance in the loss, and 0 for padding.
    """

    bags: dict[str, Bag]
    target: Array
    share: Array

    @classmethod
    def cut(
        cls, client: PackedClient, own: Bags, begin: Leaf, size: int, *, end: Leaf, whole: Leaf
    ) -> "Batch":
        """Return the instances from `begin` on, those before `end` with a share of 1 / whole."""

        def window(column: Leaf) -> Array:
            return jax.lax.dynamic_slice_in_dim(column, begin, size)

        item = window(client.item)
        real = (begin + jnp.arange(size) < end).astype(jnp.float32)
        return cls(
            bags={
                ITEM_TABLE: Bag(item[:, None], jnp.ones((size, 1))),
                **{name: _of_items(bag, item) for name, bag in own.items()},
                **{name: Bag(*map(window, bag)) for name, bag in client.context.items()},
                **client.features,
            },
            target=window(client.target),
            share=real / whole,
        )


def start_of(params: Params, client: PackedClient) -> dict[str, Array]:
    """Return the parameters with only those item rows that the client touches."""
    return {**params, ITEM_TABLE: params[ITEM_TABLE][client.rows]}


def own_items(params: Params, catalogue: Bags, client: PackedClient) -> dict[str, Bag]:
    """Return the features of the items that the client touches."""
    return {
        name: _cheapest(bag.take(client.rows), len(params[name])) for name, bag in catalogue.items()
    }


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


class Slope(NamedTuple):
    """The loss of a batch, and a derivative of it by dense weights and by looked-up rows."""

    loss: Array
    dense: dict[str, Array]
    rows: dict[str, Array]


def slope_of(recommender: Recommender, params: Params, batch: Batch) -> Slope:
    """Return Σ share · loss and its gradient."""
    rows, weights = look_up(tables_of(params), batch.bags)

    def loss_of(dense: Params, rows: Params) -> Array:
        score = score_pairs(recommender, dense, rows, weights)
        return (batch.share * recommender.loss(score, batch.target)).sum()

    loss, (dense_slope, row_slope) = jax.value_and_grad(loss_of, (0, 1))(dense_of(params), rows)
    return Slope(loss, dense_slope, row_slope)


def bend_of(recommender: Recommender, params: Params, batch: Batch, along: Params) -> Slope:
    """Return the loss and H·v: its second derivative, times a vector in the parameters' shape.

    It is the derivative of the gradient along v, forward over reverse: twice the cost of the
    gradient, and no matrix.
    """

    def gradient(params: Params) -> Slope:
        return slope_of(recommender, params, batch)

    here, bend = jax.jvp(gradient, (dict(params),), (dict(along),))
    return Slope(here.loss, bend.dense, bend.rows)


def step_along(params: Params, batch: Batch, slope: Slope, rate: float | Leaf) -> dict[str, Array]:
    """Return params - rate · slope; table rows are changed in their place."""
    changed = {name: params[name] - rate * slope.dense[name] for name in dense_of(params)}
    for name, table in tables_of(params).items():
        changed[name] = table.at[batch.bags[name].codes].add(-rate * slope.rows[name])
    return changed


class Span(NamedTuple):
    """The instances `begin` to `end` of a client, of which `batch_size` are taken at a time.

    At least `batch_size` - 1 places follow `end`, or it is a multiple of `batch_size` from `begin`.
    """

    client: PackedClient
    own: Bags
    begin: Leaf | int
    end: Leaf
    batch_size: int


def whole_slope(
    recommender: Recommender, params: Params, span: Span
) -> tuple[Array, dict[str, Array]]:
    """Return the mean loss over the span and its gradient; zeros for an empty span."""
    return _added_up(lambda batch: slope_of(recommender, params, batch), params, span)


def whole_bend(
    recommender: Recommender, params: Params, span: Span, along: Params
) -> dict[str, Array]:
    """Return H·v of the mean loss over the span, where H is its second derivative."""
    return _added_up(lambda batch: bend_of(recommender, params, batch, along), params, span)[1]


def _added_up(
    part_of: Callable[[Batch], Slope], params: Params, span: Span
) -> tuple[Array, dict[str, Array]]:
    count, size = span.end - span.begin, span.batch_size

    def add(i: Array, carry: tuple[dict[str, Array], Array]) -> tuple[dict[str, Array], Array]:
        total, loss = carry
        batch = Batch.cut(
            span.client, span.own, span.begin + i * size, size, end=span.end, whole=count
        )
        part = part_of(batch)
        return step_along(total, batch, part, -1.0), loss + part.loss

    zeros = {name: jnp.zeros_like(value) for name, value in params.items()}
    batches = (count + size - 1) // size
    total, loss = jax.lax.fori_loop(0, batches, add, (zeros, jnp.zeros(())))
    return loss, total
