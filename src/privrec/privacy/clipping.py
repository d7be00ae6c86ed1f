"""Clipping of a client's update; all parameters together are one vector."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from privrec.types import Array, Leaf, Params

Norm = Literal["l1", "l2"]

# Updates are clipped to clip_norm · (1 - MARGIN). The rounding error of a float32 sum of squares
# is less than this margin, so the bound also holds in exact arithmetic. Chosen by hand.
MARGIN = 1e-3


class Clipped(NamedTuple):
    """A clipped update, whether it was longer than the bound, and whether it was finite."""

    update: dict[str, Array]
    was_long: Array
    is_finite: Array


def clip(update: Params, clip_norm: Leaf, norm: Norm = "l2") -> Clipped:
    """Return `update · min(1, S/‖update‖)` over all parameters at once (Algorithm 2, line 21).

    A zero update stays zero. An update with a NaN or an infinity becomes zero and is marked. An
    infinite `clip_norm` clips nothing.
    """
    leaves = jax.tree.leaves(dict(update))
    # Entries are divided by the largest one before squaring, so that squares do not overflow.
    peak = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]))
    is_finite = jnp.isfinite(peak)
    unit = jnp.where(is_finite & (peak > 0), peak, 1.0)
    length = _length([jnp.where(is_finite, leaf / unit, 0.0) for leaf in leaves], norm)
    bound = clip_norm * (1 - MARGIN)
    was_long = is_finite & (length > bound / unit)
    shrink = bound / jnp.where(was_long, length, 1.0)

    def bounded(leaf: Array) -> Array:
        return jnp.where(was_long, leaf / unit * shrink, jnp.where(is_finite, leaf, 0.0))

    return Clipped(jax.tree.map(bounded, dict(update)), was_long, is_finite)


def _length(leaves: list[Array], norm: Norm) -> Array:
    if norm == "l1":
        return jnp.sum(jnp.stack([jnp.sum(jnp.abs(leaf)) for leaf in leaves]))
    return jnp.sqrt(jnp.sum(jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in leaves])))
