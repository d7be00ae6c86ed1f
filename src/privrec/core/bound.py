"""Clipping: a contribution v becomes v · min(1, S/‖v‖), for a bound S.

Noise hides one person only if the length of her contribution is at most the bound. Three functions
clip, and tests/algorithms/test_contract.py compares them:

- `bounded` clips one contribution on a phone, in numpy and 64 bits.
- `clip` clips one update inside a compiled loop over clients, in 32 bits.
- `shrink` returns factors for the lengths of many contributions that are never built.

All three replace a contribution that is not finite by zeros.
"""

import math
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from privrec.core.contribution import Contribution, Shapes, length, nothing, scaled, shapes_of
from privrec.types import Array, Leaf, Norm, Params

MARGIN = 1e-3
"""The relative margin below the bound, in 32 bits. It is larger than the rounding error of a sum of
squares, so the bound also holds in exact arithmetic. Chosen by hand."""
ROUNDING = 1e-9
"""The relative margin below the bound, in 64 bits."""

Sent = TypeVar("Sent")


class Bounded(NamedTuple, Generic[Sent]):
    """A clipped contribution, whether it was longer than the bound, and whether it was usable."""

    contribution: Sent
    was_long: Leaf
    is_finite: Leaf


class Shrink(NamedTuple):
    """The factor that clips each of many contributions, and the same two facts as in `Bounded`."""

    factor: Leaf
    was_long: Leaf
    is_finite: Leaf


def bounded(
    contribution: Contribution, clip_norm: float, norm: Norm = "l2", *, expected: Shapes
) -> Bounded[Contribution]:
    """Return one device's contribution times min(1, clip_norm / its length).

    A contribution is replaced by zeros if clipping could not limit its effect: if it is not finite,
    is unsound (`shapes_of`), or does not have the `expected` names and shapes.
    """
    unusable = Bounded(nothing(expected), was_long=False, is_finite=False)
    if shapes_of(contribution) != expected:
        return unusable
    with np.errstate(over="ignore", invalid="ignore"):
        long = length(contribution, norm)
    if not math.isfinite(long):
        return unusable
    leaves = (*contribution.dense.values(), *(r.values for r in contribution.rows.values()))
    coarse = any(np.asarray(leaf).dtype == np.float32 for leaf in leaves)
    most = clip_norm * (1 - (MARGIN if coarse else ROUNDING))
    if long <= most:
        return Bounded(contribution, was_long=False, is_finite=True)
    # A contribution that a device scaled to exactly the bound is shortened by the margin, but is
    # not counted as clipped.
    was_long = long > (most if coarse else clip_norm * (1 + ROUNDING))
    return Bounded(scaled(contribution, most / long), was_long=was_long, is_finite=True)


def clip(update: Params, clip_norm: Leaf, norm: Norm = "l2") -> Bounded[dict[str, Array]]:
    """Return one client's update times min(1, clip_norm / its length), in compiled JAX code.

    With an infinite `clip_norm`, no update is clipped.
    """
    leaves = jax.tree.leaves(dict(update))
    # Entries are divided by the largest one before squaring, so that squares do not overflow.
    peak = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), initial=0.0) for leaf in leaves]))
    is_finite = jnp.isfinite(peak)
    unit = jnp.where(is_finite & (peak > 0), peak, 1.0)
    long = _length([jnp.where(is_finite, leaf / unit, 0.0) for leaf in leaves], norm)
    most = clip_norm * (1 - MARGIN)
    was_long = is_finite & (long > most / unit)
    factor = most / jnp.where(was_long, long, 1.0)
    shortened = {
        name: jnp.where(was_long, leaf / unit * factor, jnp.where(is_finite, leaf, 0.0))
        for name, leaf in update.items()
    }
    return Bounded(shortened, was_long, is_finite)


def shrink(lengths: Leaf, clip_norm: Leaf, xp: Any = np) -> Shrink:
    """Return the factors that clip contributions of these lengths; `xp` is numpy or jax.numpy."""
    is_finite = xp.isfinite(lengths)
    most = clip_norm * (1 - MARGIN)
    was_long = is_finite & (lengths > most)
    factor = xp.where(was_long, most / xp.where(was_long, lengths, 1.0), 1.0) * is_finite
    return Shrink(factor, was_long, is_finite)


def _length(leaves: list[Array], norm: Norm) -> Array:
    if norm == "l1":
        return jnp.sum(jnp.stack([jnp.sum(jnp.abs(leaf)) for leaf in leaves]))
    return jnp.sqrt(jnp.sum(jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in leaves])))
