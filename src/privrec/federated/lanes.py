"""Runs a function of one client over many: one after another on each core, cores side by side.

A client's dense weights fit a core's cache, nothing is padded to the largest client, and an uneven
cohort does not drain a stack; docs/architecture.md has the measurements behind this.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from privrec.federated.local import Catalogue, LocalTrain
from privrec.federated.pack import PackedClient, assign, dummy
from privrec.models.api import ITEM_TABLE
from privrec.types import Array, Params

Client = TypeVar("Client")
Result = TypeVar("Result")


class CohortSum(NamedTuple):
    """The running sum over a cohort: `update` with whole tables, and the clients' mean losses."""

    update: dict[str, Array]
    loss: Array


RunCohort = Callable[[Params, Sequence[PackedClient]], CohortSum]


def cohort_runner(
    local: LocalTrain, catalogue: Catalogue, devices: Sequence[jax.Device] | None = None
) -> RunCohort:
    """Return a function that trains a cohort and returns the sum of its updates.

    Only the running sum is kept: one per device, added up at the end in the order of the devices.
    """
    lanes = list(devices or jax.local_devices())
    catalogues = [jax.device_put(dict(catalogue), device) for device in lanes]

    def accumulate(
        total: CohortSum, params: Params, catalogue: Catalogue, client: PackedClient
    ) -> CohortSum:
        update, loss = local(params, catalogue, client)
        rows = total.update[ITEM_TABLE].at[client.rows].add(update[ITEM_TABLE], mode="drop")
        others = {name: total.update[name] + update[name] for name in update if name != ITEM_TABLE}
        return CohortSum({**others, ITEM_TABLE: rows}, total.loss + loss)

    def zero(params: Params) -> CohortSum:
        return CohortSum(jax.tree.map(jnp.zeros_like, dict(params)), jnp.zeros(()))

    # Bound to their device, so that where an argument came from never makes them compile again.
    places = [SingleDeviceSharding(device) for device in lanes]
    zeros = [jax.jit(zero, in_shardings=place, out_shardings=place) for place in places]
    adders = [
        jax.jit(accumulate, donate_argnums=0, in_shardings=place, out_shardings=place)
        for place in places
    ]
    join = jax.jit(
        lambda one, other: jax.tree.map(jnp.add, one, other),
        in_shardings=places[0],
        out_shardings=places[0],
    )

    def run(params: Params, clients: Sequence[PackedClient]) -> CohortSum:
        # Even an empty client costs a call, so it counts as one instance.
        shares = assign([int(client.size) + 1 for client in clients], len(lanes))

        def run_lane(lane: int) -> CohortSum:
            here = jax.device_put(dict(params), lanes[lane])
            total: CohortSum = zeros[lane](here)
            for k in shares[lane]:
                total = adders[lane](total, here, catalogues[lane], clients[k])
            total.loss.block_until_ready()
            return total

        first, *others = _side_by_side(run_lane, len(lanes))
        for other in others:
            first = join(first, jax.device_put(other, lanes[0]))
        return first

    return run


def warm_up(
    run: RunCohort, params: Params, *, example: PackedClient, buckets: Sequence[int], n_items: int
) -> None:
    """Compile every bucket on every device before the first round, from empty clients."""
    for size in buckets:
        # One empty client per device: equal loads are dealt out one each.
        run(params, [dummy(example, size, n_items)] * jax.local_device_count())


def map_clients(
    function: Callable[[Params, Catalogue, Client], Result],
    params: Params,
    catalogue: Catalogue,
    clients: Sequence[Client],
    devices: Sequence[jax.Device] | None = None,
) -> list[Result]:
    """Return `function(params, catalogue, client)` for each client, in order.

    `function` must call compiled functions only, so that a sweep in pieces compiles once.
    """
    lanes = list(devices or jax.local_devices())

    def run_lane(lane: int) -> list[Result]:
        here, items = jax.device_put((dict(params), dict(catalogue)), lanes[lane])
        return [function(here, items, client) for client in clients[lane :: len(lanes)]]

    results = _side_by_side(run_lane, len(lanes))
    return [results[k % len(lanes)][k // len(lanes)] for k in range(len(clients))]


def _side_by_side(run_lane: Callable[[int], Result], n_lanes: int) -> list[Result]:
    with ThreadPoolExecutor(n_lanes) as pool:
        return list(pool.map(run_lane, range(n_lanes)))
