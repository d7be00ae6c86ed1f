"""The rounds of FedGNN: devices send noised gradients, the server steps along their mean.

Besides the rows of the items that it touched, a device sends rows of other items, for cover.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from privrec.algorithms.budgets import aggregator_of
from privrec.algorithms.fedgnn.graph import person_vector, scores
from privrec.algorithms.fedgnn.matching import is_trained
from privrec.algorithms.fedgnn.pack import FedGnnSettings, GraphClient, example, graph_buckets, pack
from privrec.algorithms.recipe import Task
from privrec.algorithms.training import Training, training_phase
from privrec.core.model import ITEM_TABLE
from privrec.core.phase import TRAIN, Phase
from privrec.core.training import LocalResult, LocalTrain, server_optimizer
from privrec.data.schema import Bags
from privrec.simulate.cost import usual_person
from privrec.types import Array, Key, Params, ServerOptimizer


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


def gradient_phase(
    task: Task[FedGnnSettings],
    *,
    name: str,
    first: int,
    rounds: int,
    neighbours: int,
    begin: Callable[[Params | None], Params],
) -> Phase:
    """Return rounds that step along the mean of what devices send, from `begin(before)` on.

    Graphs have up to `neighbours` neighbours of an item. In the last rounds the server's rate falls
    to 0.
    """
    settings, federation, split = task.settings, task.federation, task.split
    longest = min(federation.largest, max(settings.graph_items, settings.targets))
    training = Training(
        pack=partial(pack, settings, federation.n_items),
        local=local_gradient(clip=settings.local_clip, noise=settings.local_noise),
        catalogue={},
        examples=lambda: [
            example(settings, graph, federation.n_items, neighbours)
            for graph in graph_buckets(longest)
        ],
        usual=lambda: federation.take(usual_person(federation, split.train)),
        steps=lambda client: 1,
        is_trained=is_trained,
    )
    phase = training_phase(
        training,
        name=name,
        first=first,
        rounds=rounds,
        population=split.train,
        aggregator=aggregator_of(settings, split),
        optimizer=falling_rate(
            settings.server_optimizer,
            settings.server_lr,
            item_rate=settings.item_rate,
            rounds=rounds if name == TRAIN else 0,
        ),
        start=begin,
    )
    return replace(phase, note={"local_noise": local_noise_of(settings)})


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
