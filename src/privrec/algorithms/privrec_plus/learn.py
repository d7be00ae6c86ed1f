"""Training on top of the closed form: a softmax over all items, one gradient step per round.

`score` is the score of the closed form. A client hides about half of its lines. The loss is the
mean of -log softmax over the hidden likes; the softmax runs over all items that are not in the
other half. The gradient is written out by hand. Every part of it is an outer product, so the norm
of a client's gradient is known without building it, and a cohort's clipped sum is two matrix
products.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from privrec.algorithms.privrec_plus.layout import Layout
from privrec.algorithms.privrec_plus.scoring import (
    LEARNED_BIAS,
    LEARNED_OUT,
    LEARNED_TRUST,
    forward,
    learned_names,
)
from privrec.privacy.release import MARGIN
from privrec.types import Array, Key, Leaf, Params

_TRUST = 2.0
"""The weight of the closed form's log score before the first round; it is then trained. Chosen by
hand: a start with "too little trust" made the ranking worse (docs/results.md)."""
TOGETHER = 128
"""How many clients are in one compiled call. Chosen by hand; no measurement is on record."""
_HIDDEN_ITEM = -1e9
"""The logit that excludes an item from the softmax: its exponential is 0 in float32."""


class Histories(NamedTuple):
    """The data of C clients, as arrays: `row` (C, columns), `score` (C, n), `target` (C, n).

    A target row sums to 1, or to 0 for a client without a hidden like.
    """

    row: Leaf
    score: Leaf
    target: Leaf


class Bounded(NamedTuple):
    """Sums of some clients' clipped updates and losses, and how many were clipped or dropped."""

    update: dict[str, Array]
    loss: Array
    clipped: Array
    dropped: Array


def fresh(key: Key, layout: Layout, size: int, scale: float) -> dict[str, Array]:
    """Return the initial learned parameters: small random vectors beside the closed form."""
    shapes = {
        name: (rows, size) for name, rows in zip(learned_names(layout), layout.sizes, strict=True)
    }
    shapes[LEARNED_OUT] = (layout.n_items, size)
    keys = jax.random.split(key, len(shapes))
    drawn = {
        name: scale * jax.random.normal(key, shape)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return {**drawn, LEARNED_BIAS: jnp.zeros(layout.n_items), LEARNED_TRUST: jnp.asarray(_TRUST)}


def logits_of(params: Mapping[str, Leaf], layout: Layout, row: Leaf, score: Leaf) -> Leaf:
    """Return the logits of all items for some people: (C, columns), (C, n) -> (C, n)."""
    return forward(params, layout, row, score, jnp).logits


def losses_of(params: Params, layout: Layout, batch: Histories) -> Array:
    """Return each client's loss, shape (C,)."""
    return _losses(
        _visible(logits_of(params, layout, batch.row, batch.score), layout, batch), batch
    )


def bounded_sum(params: Params, layout: Layout, batch: Histories, clip_norm: Leaf) -> Bounded:
    """Return the sum over clients of update · min(1, S/‖update‖), update = -gradient of its loss.

    With δ = softmax - target, t the pooled vector and g the slope at h, the gradient's parts are
    δ ⊗ t, δ, δ · log score and row ⊗ g, so that
    ‖·‖² = ‖δ‖²(1 + ‖t‖²) + (δ · log score)² + ‖row‖²‖g‖².
    """
    log_score, pooled, root, logits = forward(params, layout, batch.row, batch.score, jnp)
    seen = _visible(logits, layout, batch)
    has_target = batch.target.sum(1, keepdims=True)
    slope = jax.nn.softmax(seen) * has_target - batch.target
    trust = (slope * log_score).sum(1)
    inner = slope @ params[LEARNED_OUT] * (1 - pooled**2) / root
    lengths = jnp.sqrt(
        _squares(slope) * (1 + _squares(pooled)) + trust**2 + _squares(batch.row) * _squares(inner)
    )
    finite = jnp.isfinite(lengths)
    bound = clip_norm * (1 - MARGIN)
    was_long = finite & (lengths > bound)
    weight = jnp.where(was_long, bound / jnp.where(was_long, lengths, 1.0), 1.0) * finite
    safe = jnp.where(finite[:, None], slope, 0.0) * weight[:, None]
    inner = jnp.where(finite[:, None], inner, 0.0) * weight[:, None]
    vectors = batch.row.T @ inner
    ends = np.cumsum(layout.sizes)
    update = {
        name: -vectors[end - size : end]
        for name, end, size in zip(learned_names(layout), ends, layout.sizes, strict=True)
    }
    update[LEARNED_OUT] = -(safe.T @ jnp.where(finite[:, None], pooled, 0.0))
    update[LEARNED_BIAS] = -safe.sum(0)
    update[LEARNED_TRUST] = -jnp.where(finite, weight * trust, 0.0).sum()
    return Bounded(
        update=update,
        loss=jnp.where(finite, _losses(seen, batch), 0.0).sum(),
        clipped=was_long.sum(),
        dropped=(~finite).sum(),
    )


def _visible(logits: Array, layout: Layout, batch: Histories) -> Array:
    """Return the logits; items in the client's kept lines are excluded from the softmax."""
    n = layout.n_items
    known = batch.row[:, :n]
    if layout.dislikes:
        known = known + batch.row[:, n : 2 * n]
    return jnp.where(known > 0, _HIDDEN_ITEM, logits)


def _losses(seen: Array, batch: Histories) -> Array:
    each: Array = batch.target * jax.nn.log_softmax(seen)
    return -each.sum(1)


def _squares(values: Leaf) -> Array:
    return jnp.sum(jnp.square(values), axis=1)
