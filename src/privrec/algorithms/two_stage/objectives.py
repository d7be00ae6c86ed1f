"""The two self-supervised losses over masked views, and a client's training on them."""

from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp

from privrec.algorithms.two_stage.views import SequenceClient
from privrec.core.model import ITEM_TABLE
from privrec.core.training import LocalResult
from privrec.data.schema import Bags
from privrec.types import Array, Key, Leaf, Params

Batch = SequenceClient
"""Some views of one client; the first `size` of them are real, the rest is padding."""
Loss = Callable[[Params, Batch], Array]
"""The loss of a batch. The parameters are those of the encoders and, as `embed/item`, the client's
item rows."""


@lru_cache(maxsize=16)
def self_supervision(*, item_weight: float, segment_weight: float) -> Loss:
    """Return L_SSL = λ_IM · L_IM + λ_SM · L_SM; both losses are means over the views."""

    def loss(params: Params, batch: Batch) -> Array:
        share = (jnp.arange(len(batch.truth)) < batch.size) / jnp.maximum(batch.size, 1)
        # One pass for both versions: the GRU's steps are sequential, so a wider batch costs little.
        both = jnp.concatenate([batch.masked, batch.torn])
        masked, torn = jnp.split(encode_sequences(params, both, jnp.tile(batch.length, 2)), 2)
        each = item_weight * item_losses(params, batch, masked)
        each = each + segment_weight * segment_losses(params, batch, torn)
        return jnp.sum(share * each)

    return loss


def init_encoders(key: Key, size: int) -> dict[str, Array]:
    """Return the initial parameters of both encoders; all layers have the width `size`."""
    keys = jax.random.split(key, 4)
    return {
        "gru/in": _layer(keys[0], size, 3 * size),
        "gru/state": _layer(keys[1], size, 3 * size),
        "gru/bias": jnp.zeros((3 * size,)),
        "encode/0/weight": _layer(keys[2], size, size),
        "encode/0/bias": jnp.zeros((size,)),
        "encode/1/weight": _layer(keys[3], size, size),
        "encode/1/bias": jnp.zeros((size,)),
    }


def _layer(key: Key, size: int, width: int) -> Array:
    return jax.random.normal(key, (size, width)) / jnp.sqrt(size)


def encode_sequences(params: Params, items: Array, length: Array) -> Array:
    """Return the GRU's last state for each sequence: (n, L), (n,) -> (n, h).

    Padding after the end of a sequence does not change the state.
    """
    # A client has few distinct items, so each one is multiplied by the input weights only once.
    projected = params[ITEM_TABLE] @ params["gru/in"] + params["gru/bias"]
    gates = projected[items.T]
    start = jnp.zeros((len(items), params["gru/state"].shape[0]))

    def step(state: Array, now: tuple[Array, Array]) -> tuple[Array, None]:
        gate, place = now
        reset_in, update_in, new_in = jnp.split(gate, 3, axis=-1)
        reset_st, update_st, new_st = jnp.split(state @ params["gru/state"], 3, axis=-1)
        reset, update = jax.nn.sigmoid(reset_in + reset_st), jax.nn.sigmoid(update_in + update_st)
        new = jnp.tanh(new_in + reset * new_st)
        after = (1 - update) * new + update * state
        return jnp.where((place < length)[:, None], after, state), None

    end, _ = jax.lax.scan(step, start, (gates, jnp.arange(items.shape[1])))
    return end


def encode_items(params: Params, items: Array) -> Array:
    """Return the feed-forward encoding of items, shape (…, h)."""
    hidden = params[ITEM_TABLE][items] @ params["encode/0/weight"] + params["encode/0/bias"]
    return jax.nn.relu(hidden) @ params["encode/1/weight"] + params["encode/1/bias"]


def item_losses(params: Params, batch: Batch, state: Array) -> Array:
    """Return -log softmax of the replaced item among the negatives, for each view (L_IM).

    `state` (n, h) encodes the windows in which this item is replaced.
    """
    true = jnp.sum(state * encode_items(params, batch.truth), axis=-1)
    false = state @ encode_items(params, batch.pool).T
    return _first_among(true, false)


def segment_losses(params: Params, batch: Batch, state: Array) -> Array:
    """Return -log softmax of the replaced segment among other segments, for each view (L_SM).

    `state` (n, h) encodes the windows in which this segment is replaced.
    """
    n, several, span = batch.segments.shape
    flat = batch.segments.reshape(n * several, span)
    encoded = encode_sequences(params, flat, jnp.repeat(batch.span, several))
    scores = jnp.einsum("nh,nkh->nk", state, encoded.reshape(n, several, -1))
    return _first_among(scores[:, 0], scores[:, 1:])


def _first_among(true: Array, false: Array) -> Array:
    everything = jnp.concatenate([true[:, None], false], axis=1)
    return jax.nn.logsumexp(everything, axis=1) - true


def cut(client: SequenceClient, begin: Leaf, size: int) -> Batch:
    """Return `size` views of a client from `begin` on."""
    window = partial(jax.lax.dynamic_slice_in_dim, start_index=begin, slice_size=size)
    return Batch(
        rows=client.rows,
        masked=window(client.masked),
        truth=window(client.truth),
        pool=client.pool,
        torn=window(client.torn),
        segments=window(client.segments),
        length=window(client.length),
        span=window(client.span),
        size=jnp.clip(client.size - begin, 0, size),
    )


@lru_cache(maxsize=16)
def local_ssl(
    loss_of: Loss, *, learning_rate: float, epochs: int, batch_size: int
) -> Callable[[Params, Bags, SequenceClient], LocalResult]:
    """Return `epochs` of mini-batch SGD on L_SSL over one client's views."""

    def local(params: Params, catalogue: Bags, client: SequenceClient) -> LocalResult:
        del catalogue
        start = {**params, ITEM_TABLE: params[ITEM_TABLE][client.rows]}
        n_batches = (client.size + batch_size - 1) // batch_size
        steps = epochs * n_batches

        def step(i: Array, carry: tuple[dict[str, Array], Array]) -> tuple[dict[str, Array], Array]:
            current, total = carry
            batch = cut(client, (i % n_batches) * batch_size, batch_size)
            loss, slope = jax.value_and_grad(loss_of)(current, batch)
            changed = {name: current[name] - learning_rate * slope[name] for name in current}
            return changed, total + loss

        end, total = jax.lax.fori_loop(0, steps, step, (start, jnp.zeros(())))
        update = {name: end[name] - start[name] for name in start}
        return LocalResult(update=update, loss=total / jnp.maximum(steps, 1))

    return local
