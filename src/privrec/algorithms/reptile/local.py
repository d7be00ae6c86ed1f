"""Local training of one client, for Reptile and MAML: a phone runs it once, a simulator for each.

A step looks at some instances of the client at a time. The derivatives of the mean over all of its
data are added up in a loop that runs over the real data only. So clients of any size share compiled
code, and nothing is computed for padding. JAX cannot differentiate backwards through such a loop;
`whole_bend` makes that unnecessary.
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
    """Return the meta-gradient of one client, with its sign changed.

        θ_j+1 = θ_j - α ∇L_support(θ_j),   update = -∇_θ0 L_query(θ_k),   k = inner_steps

    With v_k = ∇L_query(θ_k), the chain rule gives v_j = v_j+1 - α H_j v_j+1, where H_j is the
    second derivative of L_support at θ_j; the update is -v_0. The first-order variant takes H as 0.
    Losses are means over all instances of their part, `batch_size` of which are computed at a time.
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
    """Return the client's own parameters: `params` plus its update, item rows in their place."""
    own = {name: params[name] + update[name] for name in params if name != ITEM_TABLE}
    rows = params[ITEM_TABLE].at[client.rows].add(update[ITEM_TABLE], mode="drop")
    return {**own, ITEM_TABLE: rows}


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
    here, bend = jax.jvp(
        lambda at: slope_of(recommender, at, batch), (dict(params),), (dict(along),)
    )
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
