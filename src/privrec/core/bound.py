"""How a contribution is bounded: v · min(1, S/‖v‖), for a bound S.

Noise hides one person only if what she adds is no longer than the bound. Three functions do it,
because three kinds of code add people up; tests compare them (tests/algorithms/test_contract.py):

- `bounded` takes one contribution, in numpy and 64 bits. A phone runs it, and the other two must
  agree with it.
- `clip` takes one update inside a compiled loop over clients, in 32 bits.
- `shrink` takes the lengths of many contributions, for code that knows their lengths without
  building them.

In all three, a contribution that is not finite is replaced by zeros. Some devices scale their
contribution to exactly the bound (`to_length_one`), so that there is nothing to shorten.
"""

import math
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from privrec.core.contribution import Contribution, Shapes, length, nothing, scaled, shapes_of
from privrec.types import Array, Leaf, Norm, Params

MARGIN = 1e-3
"""The relative margin below the bound, in 32 bits. The rounding error of a sum of squares is
smaller than this, so the bound also holds in exact arithmetic. Chosen by hand."""
ROUNDING = 1e-9
"""The same for 64 bits."""

Sent = TypeVar("Sent")


class Bounded(NamedTuple, Generic[Sent]):
    """A contribution within the bound, whether it was too long, and whether it was usable."""

    contribution: Sent
    was_long: Leaf
    is_finite: Leaf


class Shrink(NamedTuple):
    """For each of many contributions: its factor, whether it was too long, whether it is finite."""

    factor: Leaf
    was_long: Leaf
    is_finite: Leaf


def bounded(
    contribution: Contribution, clip_norm: float, norm: Norm = "l2", *, expected: Shapes
) -> Bounded[Contribution]:
    """Return one device's contribution times min(1, clip_norm / its length).

    A contribution that is not finite, is unsound, or does not have the `expected` names and shapes
    is replaced by zeros: its length would not bound what it adds to the sum.
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
    # A contribution that was scaled to exactly the bound is shortened by the margin, but it does
    # not count as too long.
    was_long = long > (most if coarse else clip_norm * (1 + ROUNDING))
    return Bounded(scaled(contribution, most / long), was_long=was_long, is_finite=True)


def clip(update: Params, clip_norm: Leaf, norm: Norm = "l2") -> Bounded[dict[str, Array]]:
    """Return one client's update times min(1, clip_norm / its length); to be compiled.

    A zero update stays zero. An infinite `clip_norm` clips nothing.
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
    """Return the factors that bound contributions of these lengths; `xp` is numpy or jax.numpy."""
    is_finite = xp.isfinite(lengths)
    most = clip_norm * (1 - MARGIN)
    was_long = is_finite & (lengths > most)
    factor = xp.where(was_long, most / xp.where(was_long, lengths, 1.0), 1.0) * is_finite
    return Shrink(factor, was_long, is_finite)


def _length(leaves: list[Array], norm: Norm) -> Array:
    if norm == "l1":
        return jnp.sum(jnp.stack([jnp.sum(jnp.abs(leaf)) for leaf in leaves]))
    return jnp.sqrt(jnp.sum(jnp.stack([jnp.sum(jnp.square(leaf)) for leaf in leaves])))
