"""Some instances of one client at a time, and derivatives of their loss.

The derivatives of the mean over all of a client's data are added up in a loop that runs over the
real data only. So clients of any size share compiled code, and nothing is computed for padding.
JAX cannot differentiate backwards through such a loop; `whole_bend` makes that unnecessary.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from privrec.algorithms.reptile.pack import PackedClient
from privrec.core.model import ITEM_TABLE, Recommender, look_up, multi_hot, score_pairs
from privrec.data.schema import Bag, Bags
from privrec.types import Array, Leaf, Params


class Own(NamedTuple):
    """What is the same in all batches of a client: features of its items and of the person.

    `items` have the table rows of each item that the client touches, by table. `hot` has the same
    for small tables as weights of all rows, shape (R, rows). `person` has the weights of the
    person's own table rows, shape (1, width); `start_of` cuts these rows out of their tables.
    """

    items: dict[str, Bag]
    hot: dict[str, Array]
    person: dict[str, Array]


class Batch(NamedTuple):
    """Some instances: the rows that they need, by table, and targets.

    The rows of `bags` are looked up. `whole` has weights, shape (n or 1, rows), of all rows of a
    table, where nothing has to be looked up. `share` is the weight of each instance in the loss,
    and 0 for padding.
    """

    bags: dict[str, Bag]
    whole: dict[str, Array]
    target: Array
    share: Array

    @classmethod
    def cut(
        cls, client: PackedClient, own: Own, begin: Leaf, size: int, *, end: Leaf, whole: Leaf
    ) -> "Batch":
        """Return the instances from `begin` on, those before `end` with a share of 1 / whole."""

        def window(column: Leaf) -> Array:
            return jax.lax.dynamic_slice_in_dim(column, begin, size)

        item = window(client.item)
        real = (begin + jnp.arange(size) < end).astype(jnp.float32)
        return cls(
            bags={
                ITEM_TABLE: Bag(item[:, None], jnp.ones((size, 1))),
                **{name: bag.take(item) for name, bag in own.items.items()},
                **{name: Bag(*map(window, bag)) for name, bag in client.context.items()},
            },
            whole={**{name: hot[item] for name, hot in own.hot.items()}, **own.person},
            target=window(client.target),
            share=real / whole,
        )


def start_of(params: Params, client: PackedClient) -> dict[str, Array]:
    """Return the parameters with only those rows of items and of the person that are touched."""
    person = {name: params[name][bag.codes[0]] for name, bag in client.features.items()}
    return {**params, **person, ITEM_TABLE: params[ITEM_TABLE][client.rows]}


def to_send(update: Params, params: Params, client: PackedClient) -> dict[str, Array]:
    """Return an update of `start_of(params, client)` with the person's rows in their tables."""
    person = {
        name: jnp.zeros_like(params[name]).at[bag.codes[0]].add(update[name])
        for name, bag in client.features.items()
    }
    return {**update, **person}


def own_of(params: Params, catalogue: Bags, client: PackedClient) -> Own:
    """Return the features of the items that the client touches, and of the person."""
    items = {name: bag.take(client.rows) for name, bag in catalogue.items()}
    small = {name for name, bag in items.items() if _is_worth_a_product(bag, len(params[name]))}
    return Own(
        items={name: bag for name, bag in items.items() if name not in small},
        hot={name: multi_hot(items[name], len(params[name])) for name in small},
        person={name: merged(bag) for name, bag in client.features.items()},
    )


_SMALL_TABLE = 128
"""The most rows of a table that is worth a multi-hot product. Chosen by hand; not tuned."""


def _is_worth_a_product(bag: Bag, n_rows: int) -> bool:
    """Whether a multi-valued bag of a small table is taken as multi-hot: a step is then faster."""
    return bag.codes.shape[1] > 1 and n_rows <= _SMALL_TABLE


def merged(bag: Bag) -> Array:
    """Return a person's weights, shape (1, width), where a value that occurs twice counts once.

    The first place of a value gets the sum of its weights and the others 0. Each place then has a
    row of its own to train, and their updates add up to the update of the table.
    """
    codes, weights = bag.codes[0], bag.weights[0]
    same = codes[:, None] == codes[None, :]
    first = jnp.argmax(same, axis=1) == jnp.arange(len(codes))
    return jnp.where(first, jnp.where(same, weights, 0.0).sum(1), 0.0)[None, :]


class Slope(NamedTuple):
    """The loss of a batch, and a derivative of it by looked-up rows and by all other parameters."""

    loss: Array
    dense: dict[str, Array]
    rows: dict[str, Array]


def slope_of(recommender: Recommender, params: Params, batch: Batch) -> Slope:
    """Return Σ share · loss and its gradient."""
    rows, weights = look_up(params, batch.bags)

    def loss_of(dense: Params, rows: Params) -> Array:
        every = {**rows, **{name: dense[name][None] for name in batch.whole}}
        score = score_pairs(recommender, dense, every, {**weights, **batch.whole})
        return (batch.share * recommender.loss(score, batch.target)).sum()

    dense = {name: value for name, value in params.items() if name not in rows}
    loss, (dense_slope, row_slope) = jax.value_and_grad(loss_of, (0, 1))(dense, rows)
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
    """Return params - rate · slope; looked-up rows are changed in their place."""
    changed = {name: params[name] - rate * value for name, value in slope.dense.items()}
    for name, value in slope.rows.items():
        changed[name] = params[name].at[batch.bags[name].codes].add(-rate * value)
    return changed


class Span(NamedTuple):
    """The instances `begin` to `end` of a client, of which `batch_size` are taken at a time.

    At least `batch_size` - 1 places follow `end`, or it is a multiple of `batch_size` from `begin`.
    """

    client: PackedClient
    own: Own
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
