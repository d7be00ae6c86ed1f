"""The rounds of FedGNN: devices send noised gradients, the server steps along their mean.

Besides the rows of the items that it touched, a device sends rows of other items, for cover.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from privrec.algorithms.budgets import aggregator_of
from privrec.algorithms.fedgnn.graph import person_vector, scores
from privrec.algorithms.fedgnn.matching import directory_of, is_matching
from privrec.algorithms.fedgnn.pack import FedGnnSettings, GraphClient, example, graph_buckets, pack
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import Cohort, DeviceHalf, Phase, ServerState, Told
from privrec.core.training import LocalResult, LocalTrain, mean_step, server_optimizer
from privrec.data.clients import Clients, Split
from privrec.data.federation import Federation
from privrec.data.schema import Bags
from privrec.privacy.aggregate import Aggregator, CohortTotal, Published
from privrec.simulate.cost import DeviceCost, cost_of_training, usual_person
from privrec.simulate.lanes import cohort_runner, training_kernel, warm_up
from privrec.types import Array, Key, Leaf, Params, ServerOptimizer


@lru_cache(maxsize=16)
def local_gradient(*, clip: float, noise: float) -> LocalTrain:
    """Return what a device sends: minus its gradient, clipped and noised number by number.

    The rows of `pseudo` items, which the person never touched, get values with the mean and the
    covariance of the true rows. A person without likes sends zeros.
    """

    def local(params: Params, catalogue: Bags, client: GraphClient) -> LocalResult:
        touched = {**params, ITEM_TABLE: params[ITEM_TABLE][client.rows]}
        loss, slope = jax.value_and_grad(hidden_loss)(touched, client)
        drawn, noised = jax.random.split(jax.random.wrap_key_data(client.key))
        real, rows = client.rows < len(params[ITEM_TABLE]), slope[ITEM_TABLE]
        if len(client.pseudo):
            true = real.at[client.pseudo].set(False, mode="drop")
            cover = pseudo_rows(drawn, rows, true, len(client.pseudo))
            rows = rows.at[client.pseudo].set(cover, mode="drop")
        sent = locally_noised(noised, {**slope, ITEM_TABLE: rows}, clip=clip, noise=noise)
        sent[ITEM_TABLE] = jnp.where(real[:, None], sent[ITEM_TABLE], 0.0)
        trains = client.size > 0
        update = {name: jnp.where(trains, -leaf, 0.0) for name, leaf in sent.items()}
        return LocalResult(update=update, loss=loss / jnp.maximum(client.size, 1))

    return local


def hidden_loss(touched: Params, client: GraphClient) -> Array:
    """Return Σ over hidden likes t of log Σ_j e^s_j - s_t, where j is t or any negative."""
    rows = touched[ITEM_TABLE]
    person = person_vector(touched, rows, client.graph)
    every = scores(person, rows)
    hidden, unseen = every[client.target], every[client.negative]
    there = jnp.arange(len(unseen)) < client.negatives
    others = jax.nn.logsumexp(jnp.where(there, unseen, -1e9))
    each = jnp.logaddexp(hidden, others) - hidden
    return jnp.where(jnp.arange(len(each)) < client.size, each, 0.0).sum()


def pseudo_rows(key: Key, slope: Array, true: Array, count: int) -> Array:
    """Return `count` rows from the Gaussian with the mean and covariance of the `true` rows."""
    share = true.astype(slope.dtype) / jnp.maximum(true.sum(), 1)
    mean = share @ slope
    centred = slope - mean
    variance = (centred * share[:, None]).T @ centred
    # Rows of one person span few directions; without this the root would not exist in 32 bits.
    ridge = 1e-4 * jnp.trace(variance) / len(variance) + 1e-20
    root = jnp.linalg.cholesky(variance + ridge * jnp.eye(len(variance)))
    root = jnp.where(jnp.isfinite(root).all(), root, jnp.diag(jnp.sqrt(jnp.diag(variance))))
    return mean + jax.random.normal(key, (count, slope.shape[1])) @ root.T


def locally_noised(key: Key, sent: Params, *, clip: float, noise: float) -> dict[str, Array]:
    """Return every number clipped to [-clip, clip], plus Laplace noise of scale `noise`."""
    names = sorted(sent)
    keys = dict(zip(names, jax.random.split(key, len(names)), strict=True))
    clipped = {name: jnp.clip(sent[name], -clip, clip) for name in names}
    if noise == 0:
        return clipped
    return {
        name: leaf + noise * jax.random.laplace(keys[name], leaf.shape)
        for name, leaf in clipped.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Some rounds: on graphs with up to `neighbours` neighbours of an item; `last` ones or not."""

    name: str
    first: int
    count: int
    neighbours: int
    last: bool


def gradient_phase(
    settings: FedGnnSettings,
    federation: Federation,
    split: Split,
    rounds: Rounds,
    begin: Callable[[Params | None], Params],
) -> Phase:
    """Return rounds that step along the mean of what devices send, from `begin(before)` on.

    In the last ones the server's rate falls to 0.
    """
    aggregator = aggregator_of(settings, split)
    optimizer = falling_rate(
        settings.server_optimizer,
        settings.server_lr,
        item_rate=settings.item_rate,
        rounds=rounds.count if rounds.last else 0,
    )
    step = mean_step(optimizer, aggregator.release.sampling.cohort)

    def start(before: Params | None) -> ServerState:
        params = dict(begin(before))
        return ServerState(
            round_index=rounds.first,
            params=params,
            opt_state=jax.jit(optimizer.init)(trained_of(params)),
            clip_norm=aggregator.clip_norm,
        )

    def absorb(state: ServerState, published: Published) -> ServerState:
        params, opt_state = step(trained_of(state.params), state.opt_state, published.update)
        return replace(state, params={**state.params, **params}, opt_state=opt_state)

    return Phase(
        name=rounds.name,
        rounds=rounds.count,
        first=rounds.first,
        population=split.train,
        aggregator=aggregator,
        device=device_half(settings, federation, split, aggregator, rounds),
        start=start,
        tell=lambda state: state.params,
        absorb=absorb,
        note={"local_noise": local_noise_of(settings)},
    )


def local_noise_of(settings: FedGnnSettings) -> dict[str, Any] | None:
    """Return what the ledger says of the noise on devices; None if there is none."""
    if not settings.local_noise:
        return None
    return {
        "law": "laplace",
        "scale": settings.local_noise,
        "clip": settings.local_clip,
        "from": "seed",
        "guarantee": "none for a person: it is noise on each number of each round alone, and a"
        " device sends many numbers in many rounds",
    }


def trained_of(params: Mapping[str, Leaf]) -> dict[str, Any]:
    """Return the parameters that training changes, without those of the matching."""
    return {name: leaf for name, leaf in params.items() if not is_matching(name)}


def device_half(
    settings: FedGnnSettings,
    federation: Federation,
    split: Split,
    aggregator: Aggregator,
    rounds: Rounds,
) -> DeviceHalf:
    """Return what a device sends: its noised gradient, with the item rows that it touched."""
    local = local_gradient(clip=settings.local_clip, noise=settings.local_noise)
    n_items, nothing = federation.n_items, dict[str, Any]()
    run_cohort = cohort_runner(local, aggregator.norm, nothing)
    train_one = jax.jit(local)

    def packed(told: Mapping[str, Leaf], people: Clients, round_index: int) -> list[GraphClient]:
        return pack(
            people,
            settings,
            n_items=n_items,
            round_index=round_index,
            directory=directory_of(told),
        )

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        (client,) = packed(told, person, round_index)
        update = train_one(trained_of(told), nothing, client).update
        sent = {name: np.asarray(leaf) for name, leaf in update.items()}
        rows = np.asarray(client.rows, np.int64)
        real = rows < n_items
        touched = TouchedRows(rows[real], sent.pop(ITEM_TABLE)[real], n_items)
        return Contribution(dense=sent, rows={ITEM_TABLE: touched})

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        run = training_kernel(partial(packed, told), run_cohort)
        return run(trained_of(told), cohort, round_index, clip_norm)

    def prepare(params: Params) -> None:
        longest = min(federation.largest, max(settings.graph_items, settings.targets))
        empty = [
            example(settings, graph, n_items, rounds.neighbours) for graph in graph_buckets(longest)
        ]
        warm_up(run_cohort, trained_of(params), empty)

    def cost(params: Params) -> DeviceCost:
        usual = federation.take(usual_person(federation, split.train))
        (client,) = packed(params, usual, rounds.first)
        what, trained = f"{rounds.name} round", trained_of(params)
        computed = cost_of_training(what, local, trained, nothing, client, 1)
        # The phone also gets what the matching told: numbers of 4 bytes.
        return replace(computed, bytes_down=sum(4 * leaf.size for leaf in params.values()))

    return DeviceHalf(contribute=contribute, kernel=kernel, prepare=prepare, cost=cost)


@lru_cache(maxsize=16)
def falling_rate(
    name: ServerOptimizer,
    learning_rate: float,
    *,
    item_rate: float,
    rounds: int,
) -> optax.GradientTransformation:
    """Return the server's optimizer, with a rate that falls in a straight line over `rounds`.

    Late steps are small, so that the noise of many rounds is averaged. 0 rounds: it stays.
    """
    chosen = server_optimizer(name, learning_rate, item_rate)
    if rounds:
        falling = optax.linear_schedule(1.0, 0.0, rounds)
        chosen = optax.chain(chosen, optax.scale_by_schedule(falling))
    return chosen
