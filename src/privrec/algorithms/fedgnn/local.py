"""What one device computes and sends in one round: a noised gradient, with rows for cover."""

from functools import lru_cache

import jax
import jax.numpy as jnp

from privrec.algorithms.fedgnn.graph import person_vector, scores
from privrec.algorithms.fedgnn.packed import GraphClient
from privrec.core.local import LocalResult, LocalTrain
from privrec.data.schema import Bags
from privrec.models.api import ITEM_TABLE
from privrec.types import Array, Key, Params


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
    found = {name: jnp.clip(sent[name], -clip, clip) for name in names}
    if noise == 0:
        return found
    return {
        name: leaf + noise * jax.random.laplace(keys[name], leaf.shape)
        for name, leaf in found.items()
    }
