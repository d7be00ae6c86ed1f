"""Runs a function of one client for many clients: one after another on each core, in parallel.

A lane is one core and the thread that drives it. A client's dense weights fit into a core's cache.
Clients are not stacked, so no client is padded to the size of the largest one
(docs/architecture.md; measurements in docs/results.md).
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, reduce
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import SingleDeviceSharding
from jax.stages import Wrapped

from privrec.core.bound import clip
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import Advance, silent
from privrec.core.training import LocalTrain, Packed, jit_in_place
from privrec.data.schema import Bags
from privrec.privacy.aggregate import CohortTotal
from privrec.types import Array, Leaf, Norm, Params

Client = TypeVar("Client")
Result = TypeVar("Result")


RunCohort = Callable[..., CohortTotal]
"""(params, clients, clip_norm, advance) -> the sum of the clients' bounded updates.

The optional function `advance` is called after each client, by any thread."""


def cohort_runner(
    local: LocalTrain,
    norm: Norm,
    catalogue: Bags,
    cores: Sequence[jax.Device] | None = None,
) -> RunCohort:
    """Return a function that trains a cohort and returns the sum of its clipped updates.

    Each core keeps only a running sum. The sums of the cores are added at the end, in a fixed
    order.
    """
    lanes = list(cores or jax.local_devices())
    catalogues = [jax.device_put(dict(catalogue), core) for core in lanes]
    zeros, adders, finish = _programs(local, norm, tuple(lanes))

    def run(
        params: Params, clients: Sequence[Packed], clip_norm: float, advance: Advance = silent
    ) -> CohortTotal:
        # A client without data also costs a call, so its load is 1.
        shares = assign([int(client.size) + 1 for client in clients], len(lanes))

        def run_lane(lane: int) -> CohortTotal:
            here, bound = jax.device_put((dict(params), np.float32(clip_norm)), lanes[lane])
            total: CohortTotal = zeros[lane](here)
            for k in shares[lane]:
                total = adders[lane](total, here, bound, catalogues[lane], clients[k])
                advance(1)
            total.loss.block_until_ready()
            return total

        parts = _side_by_side(run_lane, len(lanes))
        here = jax.device_put((dict(params), parts), lanes[0])
        total: CohortTotal = finish(*here)
        return total

    return run


@lru_cache(maxsize=16)
def _programs(
    local: LocalTrain, norm: Norm, lanes: tuple[jax.Device, ...]
) -> tuple[Sequence[Wrapped], Sequence[Wrapped], Wrapped]:
    """Return three compiled functions, which all runs of the same training share.

    For each lane, the first returns a zero sum and the second adds a client to a sum. The third
    adds up the sums of all lanes.
    """
    # With a fixed core, a function is not compiled again for arguments from another device.
    places = [SingleDeviceSharding(core) for core in lanes]
    zeros = [jax.jit(_zero, in_shardings=place, out_shardings=place) for place in places]
    accumulate = _accumulator(local, norm)
    adders = [
        jit_in_place(accumulate, donate_argnums=0, in_shardings=place, out_shardings=place)
        for place in places
    ]
    return zeros, adders, jax.jit(_added_up, in_shardings=places[0], out_shardings=places[0])


def _accumulator(
    local: LocalTrain, norm: Norm
) -> Callable[[CohortTotal, Params, Leaf, Bags, Packed], CohortTotal]:
    """Return the function that trains one client and adds its bounded update to a running sum.

    The running sum has the item table, and all other parameters as one vector. So a call has few
    arguments, and clipping and adding need few operations.
    """

    def accumulate(
        total: CohortTotal, params: Params, clip_norm: Leaf, catalogue: Bags, client: Packed
    ) -> CohortTotal:
        trained = local(params, catalogue, client)
        rows, others = _two_parts(trained.update)
        update, was_long, is_finite = clip({"rows": rows, "others": others}, clip_norm, norm)
        items = total.update["items"].at[client.rows].add(update["rows"], mode="drop")
        return total._replace(
            update={"items": items, "others": total.update["others"] + update["others"]},
            loss=total.loss + jnp.where(is_finite, trained.loss, 0.0),
            clipped=total.clipped + was_long,
            dropped=total.dropped + ~is_finite,
        )

    return accumulate


def _zero(params: Params) -> CohortTotal:
    items, others = _two_parts(params)
    none = jnp.zeros((), jnp.int32)
    update = {"items": jnp.zeros_like(items), "others": jnp.zeros_like(others)}
    return CohortTotal(update, loss=jnp.zeros(()), clipped=none, dropped=none)


def _added_up(params: Params, parts: Sequence[CohortTotal]) -> CohortTotal:
    total: CohortTotal = reduce(lambda one, other: jax.tree.map(jnp.add, one, other), parts)
    _, restore = ravel_pytree(_others(params))
    others = restore(total.update["others"])
    return total._replace(update={**others, ITEM_TABLE: total.update["items"]})


def _two_parts(params: Params) -> tuple[Array, Array]:
    return params[ITEM_TABLE], ravel_pytree(_others(params))[0]


def _others(params: Params) -> dict[str, Array]:
    return {name: value for name, value in params.items() if name != ITEM_TABLE}


def warm_up(run: RunCohort, params: Params, examples: Sequence[Packed]) -> None:
    """Compile the functions for clients of every shape, on every core, before the first round.

    `examples` are clients without data, one of each shape.
    """
    for example in examples:
        # As many equal clients as cores, so `assign` gives one to each core.
        run(params, [example] * jax.local_device_count(), math.inf)


def map_clients(
    function: Callable[[Params, Bags, Client], Result],
    params: Params,
    catalogue: Bags,
    clients: Sequence[Client],
    cores: Sequence[jax.Device] | None = None,
) -> list[Result]:
    """Return `function(params, catalogue, client)` for each client, in order.

    `function` must call only compiled functions, so that several calls compile only once.
    """
    lanes = list(cores or jax.local_devices())

    def run_lane(lane: int) -> list[Result]:
        here, items = jax.device_put((dict(params), dict(catalogue)), lanes[lane])
        return [function(here, items, client) for client in clients[lane :: len(lanes)]]

    results = _side_by_side(run_lane, len(lanes))
    return [results[k % len(lanes)][k // len(lanes)] for k in range(len(clients))]


def assign(loads: Sequence[int], n_lanes: int) -> list[list[int]]:
    """Return the clients of each lane. The heaviest client goes first, to the lightest lane.

    >>> assign([5, 1, 4], 2)
    [[0], [2, 1]]
    """
    lanes: list[list[int]] = [[] for _ in range(n_lanes)]
    totals = [0] * n_lanes
    for k in sorted(range(len(loads)), key=lambda k: (-loads[k], k)):
        lane = totals.index(min(totals))
        lanes[lane].append(k)
        totals[lane] += loads[k]
    return lanes


def _side_by_side(run_lane: Callable[[int], Result], n_lanes: int) -> list[Result]:
    with ThreadPoolExecutor(n_lanes) as pool:
        return list(pool.map(run_lane, range(n_lanes)))
