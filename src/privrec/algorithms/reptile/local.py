"""Local training of one client by Reptile or MAML, on a phone or in the simulator.

A mini-batch step uses some instances of the client. A step over all data of the client adds up the
gradients of batches in a loop. The loop skips batches that are only padding, so clients of any size
use the same compiled code. JAX has no reverse-mode derivative of such a loop, so `whole_bend`
computes the second derivatives batch by batch.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from privrec.algorithms.reptile.pack import PackedClient, PackedTask
from privrec.core.model import ITEM_TABLE, Recommender, look_up, multi_hot, score_pairs
from privrec.core.training import LocalResult, LocalTrain
from privrec.data.schema import Bag, Bags
from privrec.types import Array, Leaf, Params


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
    """Return a local training: `epochs` of mini-batch SGD (Algorithm 1, lines 10–18).

    As in the paper, every epoch uses the same mini-batches in the same order. A step computes the
    gradient with respect to the table rows of its mini-batch and the dense weights, and changes
    them in place. So the cost of a step does not depend on the size of the catalogue.

    With `whole_batch`, an epoch is one step along the mean gradient over all data of the client.
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
            return loss, _moved(current, slope, learning_rate)

        def step(i: Array, carry: tuple[dict[str, Array], Array]) -> tuple[dict[str, Array], Array]:
            current, total = carry
            loss, changed = (all_data if whole_batch else mini_batch)(i, current)
            return changed, total + loss

        end, total = jax.lax.fori_loop(0, steps, step, (start, jnp.zeros(())))
        update = {name: end[name] - start[name] for name in start}
        sent = to_send(update, params, client)
        return LocalResult(update=sent, loss=total / jnp.maximum(steps, 1))

    return local


@lru_cache(maxsize=16)
def local_maml(
    recommender: Recommender,
    *,
    learning_rate: float,
    inner_steps: int,
    batch_size: int,
    second_order: bool,
) -> LocalTrain:
    """Return a local training whose update is the negative meta-gradient of one client.

        θ_j+1 = θ_j - α ∇L_support(θ_j),   update = -∇_θ0 L_query(θ_k),   k = inner_steps

    Let v_k = ∇L_query(θ_k), and let H_j be the second derivative of L_support at θ_j. The chain
    rule gives v_j = v_j+1 - α H_j v_j+1, and the update is -v_0. The first-order variant sets H_j
    to 0. Each loss is the mean over all instances of the support or of the query. They are computed
    in batches of `batch_size`.
    """

    def local(params: Params, catalogue: Bags, task: PackedTask) -> LocalResult:
        client, own = task.client, own_of(params, catalogue, task.client)
        support = Span(client, own, 0, task.support, batch_size)
        query = Span(client, own, task.begin, task.end, batch_size)
        path = [start_of(params, client)]
        for _ in range(inner_steps):
            _, slope = whole_slope(recommender, path[-1], support)
            path.append(_moved(path[-1], slope, learning_rate))
        loss, back = whole_slope(recommender, path[-1], query)
        if second_order:
            for before in reversed(path[:-1]):
                bend = whole_bend(recommender, before, support, back)
                back = _moved(back, bend, learning_rate)
        update = {name: -value for name, value in back.items()}
        return LocalResult(update=to_send(update, params, client), loss=loss)

    return local


def _moved(start: Params, slope: Params, rate: float) -> dict[str, Array]:
    return {name: start[name] - rate * slope[name] for name in start}


def apply_update(params: Params, client: PackedClient, update: Params) -> dict[str, Array]:
    """Return the client's adapted parameters: `params` plus the client's update."""
    own = {name: params[name] + update[name] for name in params if name != ITEM_TABLE}
    rows = params[ITEM_TABLE].at[client.rows].add(update[ITEM_TABLE], mode="drop")
    return {**own, ITEM_TABLE: rows}


class Own(NamedTuple):
    """The features that are the same in all batches of a client, by table.

    `items` has the encoded features of the client's R items. `hot` has the encoded features of
    small tables as multi-hot weights, shape (R, rows of the table). `person` has the weights of the
    person's own table rows, shape (1, width); `start_of` copies these rows out of the tables.
    """

    items: dict[str, Bag]
    hot: dict[str, Array]
    person: dict[str, Array]


class Batch(NamedTuple):
    """Some instances: encoded features by table, and targets.

    `bags` has the numbers and weights of table rows, which must be looked up. `whole` has weights
    of all rows of a table, shape (n or 1, rows), which needs no look-up. `share` is the weight of
    each instance in the loss; the weight of padding is 0.
    """

    bags: dict[str, Bag]
    whole: dict[str, Array]
    target: Array
    share: Array

    @classmethod
    def cut(
        cls, client: PackedClient, own: Own, begin: Leaf, size: int, *, end: Leaf, whole: Leaf
    ) -> "Batch":
        """Return `size` instances from `begin` on.

        Instances before `end` have a `share` of 1 / `whole`; the others are padding.
        """
        window = partial(jax.lax.dynamic_slice_in_dim, start_index=begin, slice_size=size)
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
    """Return the parameters with only the table rows of the client's items and of the person."""
    person = {name: params[name][bag.codes[0]] for name, bag in client.features.items()}
    return {**params, **person, ITEM_TABLE: params[ITEM_TABLE][client.rows]}


def to_send(update: Params, params: Params, client: PackedClient) -> dict[str, Array]:
    """Return an update with the person's rows put back into tables of full size.

    `update` has the names and shapes of `start_of(params, client)`.
    """
    person = {
        name: jnp.zeros_like(params[name]).at[bag.codes[0]].add(update[name])
        for name, bag in client.features.items()
    }
    return {**update, **person}


def own_of(params: Params, catalogue: Bags, client: PackedClient) -> Own:
    """Return the features of the client's items and of the person."""
    items = {name: bag.take(client.rows) for name, bag in catalogue.items()}
    small = {name for name, bag in items.items() if _is_worth_a_product(bag, len(params[name]))}
    return Own(
        items={name: bag for name, bag in items.items() if name not in small},
        hot={name: multi_hot(items[name], len(params[name])) for name in small},
        person={name: merged(bag) for name, bag in client.features.items()},
    )


_SMALL_TABLE = 128
"""The largest number of rows of a table for a multi-hot product. Chosen by hand; not tuned."""


def _is_worth_a_product(bag: Bag, n_rows: int) -> bool:
    """Return whether a multi-hot product is used: for multi-valued features with a small table."""
    return bag.codes.shape[1] > 1 and n_rows <= _SMALL_TABLE


def merged(bag: Bag) -> Array:
    """Return the weights of a person's feature values, shape (1, width), without repetitions.

    If a value occurs several times, its first position gets the sum of its weights, and its other
    positions get 0. Each position trains its own copy of a table row, and the update of the table
    is the sum over the copies.
    """
    codes, weights = bag.codes[0], bag.weights[0]
    same = codes[:, None] == codes[None, :]
    first = jnp.argmax(same, axis=1) == jnp.arange(len(codes))
    return jnp.where(first, jnp.where(same, weights, 0.0).sum(1), 0.0)[None, :]


class Slope(NamedTuple):
    """The loss of a batch and a derivative: `rows` by looked-up table rows, `dense` by the rest."""

    loss: Array
    dense: dict[str, Array]
    rows: dict[str, Array]


def slope_of(recommender: Recommender, params: Params, batch: Batch) -> Slope:
    """Return the loss of a batch, Σ share · loss over its instances, and its gradient."""
    rows, weights = look_up(params, batch.bags)

    def loss_of(dense: Params, rows: Params) -> Array:
        every = {**rows, **{name: dense[name][None] for name in batch.whole}}
        score = score_pairs(recommender, dense, every, {**weights, **batch.whole})
        return (batch.share * recommender.loss(score, batch.target)).sum()

    dense = {name: value for name, value in params.items() if name not in rows}
    loss, (dense_slope, row_slope) = jax.value_and_grad(loss_of, (0, 1))(dense, rows)
    return Slope(loss, dense_slope, row_slope)


def bend_of(recommender: Recommender, params: Params, batch: Batch, along: Params) -> Slope:
    """Return the loss and H·v, where H is the second derivative of the loss and v is `along`.

    v has the names and shapes of the parameters. H·v is the derivative of the gradient along v
    (forward-mode over reverse-mode). It costs twice as much as the gradient.
    """
    here, bend = jax.jvp(
        lambda at: slope_of(recommender, at, batch), (dict(params),), (dict(along),)
    )
    return Slope(here.loss, bend.dense, bend.rows)


def step_along(params: Params, batch: Batch, slope: Slope, rate: float | Leaf) -> dict[str, Array]:
    """Return params - rate · slope; looked-up rows are changed in their tables."""
    changed = {name: params[name] - rate * value for name, value in slope.dense.items()}
    for name, value in slope.rows.items():
        changed[name] = params[name].at[batch.bags[name].codes].add(-rate * value)
    return changed


class Span(NamedTuple):
    """The instances `begin` to `end` of a client, processed in batches of `batch_size`.

    The last batch must not exceed the arrays. So at least `batch_size` - 1 entries follow `end`, or
    `end` - `begin` is a multiple of `batch_size`.
    """

    client: PackedClient
    own: Own
    begin: Leaf | int
    end: Leaf
    batch_size: int


def whole_slope(
    recommender: Recommender, params: Params, span: Span
) -> tuple[Array, dict[str, Array]]:
    """Return the mean loss over the span, and the gradient of this mean; 0 for an empty span."""
    return _added_up(lambda batch: slope_of(recommender, params, batch), params, span)


def whole_bend(
    recommender: Recommender, params: Params, span: Span, along: Params
) -> dict[str, Array]:
    """Return H·v, where H is the second derivative of the mean loss over the span."""
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
