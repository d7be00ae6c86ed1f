"""PrivRec-CEN: the same network trained where all the data lies in one place."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from privrec.algorithms.reptile.model import Network
from privrec.algorithms.reptile.pack import bucket
from privrec.algorithms.reptile.packed import PackedClient
from privrec.core.phase import RoundReport, ServerState
from privrec.core.round import cohort_draw
from privrec.data.federation import Federation
from privrec.data.schema import Bag, Bags
from privrec.models.api import ITEM_TABLE, Recommender, look_up, score_pairs
from privrec.seeds import rng
from privrec.types import Array, IntArray, Leaf, Params


class Pool(NamedTuple):
    """The instances of several people in one random order, padded; bags have one row each."""

    item: Leaf
    target: Leaf
    bags: dict[str, Bag]
    size: Leaf


Train = Callable[[Params, optax.OptState, Bags, Pool], tuple[Any, optax.OptState, Array]]
"""(params, opt_state, catalogue, pool) -> the first two after a pass over the pool; mean loss."""


def central_round(
    network: Network,
    federation: Federation,
    *,
    optimizer: optax.GradientTransformation,
    draw: Callable[[np.random.Generator | None], IntArray],
    batch_size: int,
    seed: int,
) -> Callable[[ServerState], tuple[ServerState, RoundReport]]:
    """Return a round of central training: mini-batches over the pooled data of a few people.

    Each person is a task: her features are repeated for each of her instances. The optimizer
    takes one step over all parameters per mini-batch.
    """
    randomness = cohort_draw(seed, secret=False)
    train = _pass_over_pool(network.recommender, optimizer, batch_size)

    def play(state: ServerState) -> tuple[ServerState, RoundReport]:
        people = draw(randomness(state.round_index))
        order = rng(seed, state.round_index, "pool")
        clients = network.pack(federation.take(people), state.round_index)
        pool = pooled(clients, order, batch_size)
        params, opt_state, loss = train(state.params, state.opt_state, dict(network.items), pool)
        after = replace(
            state, round_index=state.round_index + 1, params=params, opt_state=opt_state
        )
        return after, RoundReport(
            round_index=state.round_index, clients=len(people), loss=float(loss)
        )

    return play


@lru_cache(maxsize=16)
def _pass_over_pool(
    recommender: Recommender, optimizer: optax.GradientTransformation, batch_size: int
) -> Train:
    """Return one pass of mini-batch steps over a pool."""

    def mean_loss(params: Params, catalogue: Bags, pool: Pool, begin: Array) -> Array:
        def window(column: Leaf) -> Array:
            return jax.lax.dynamic_slice_in_dim(column, begin, batch_size)

        item = window(pool.item)
        bags = {
            **{name: bag.take(item) for name, bag in catalogue.items()},
            **{name: Bag(*map(window, bag)) for name, bag in pool.bags.items()},
            ITEM_TABLE: Bag(item[:, None], jnp.ones((batch_size, 1))),
        }
        score = score_pairs(recommender, params, *look_up(params, bags))
        real = (begin + jnp.arange(batch_size) < pool.size).astype(jnp.float32)
        mean: Array = (real * recommender.loss(score, window(pool.target))).sum() / real.sum()
        return mean

    def train(
        params: Params, opt_state: optax.OptState, catalogue: Bags, pool: Pool
    ) -> tuple[dict[str, Array], optax.OptState, Array]:
        steps = (pool.size + batch_size - 1) // batch_size

        def step(
            i: Array, carry: tuple[dict[str, Array], optax.OptState, Array]
        ) -> tuple[dict[str, Array], optax.OptState, Array]:
            params, opt_state, total = carry
            loss, slope = jax.value_and_grad(mean_loss)(params, catalogue, pool, i * batch_size)
            change, opt_state = optimizer.update(slope, opt_state, params)
            return optax.apply_updates(params, change), opt_state, total + loss

        start = (dict(params), opt_state, jnp.zeros(()))
        end, opt_state, total = jax.lax.fori_loop(0, steps, step, start)
        return end, opt_state, total / jnp.maximum(steps, 1)

    return jax.jit(train)


def pooled(clients: Sequence[PackedClient], order: np.random.Generator, batch_size: int) -> Pool:
    """Return the clients' instances in one random order."""
    sizes = [int(client.size) for client in clients]
    total = sum(sizes)
    shuffled = order.permutation(total)
    cap = bucket(total, batch_size)

    def joined(parts: Sequence[Leaf]) -> Leaf:
        column = np.concatenate(parts)[shuffled]
        out = np.zeros((cap, *column.shape[1:]), column.dtype)
        out[:total] = column
        return out

    def spread(name: str) -> Bag:
        bags = [client.features[name] for client in clients]
        return Bag(
            *(
                joined([np.repeat(bag[p], n, 0) for bag, n in zip(bags, sizes, strict=True)])
                for p in (0, 1)
            )
        )

    def lined(name: str) -> Bag:
        return Bag(*(joined([c.context[name][p][: int(c.size)] for c in clients]) for p in (0, 1)))

    return Pool(
        item=joined([client.rows[client.item[: int(client.size)]] for client in clients]),
        target=joined([client.target[: int(client.size)] for client in clients]),
        bags={
            **{name: spread(name) for name in clients[0].features},
            **{name: lined(name) for name in clients[0].context},
        },
        size=np.int32(total),
    )
