"""What a device accepts of what a server tells it: checked before any person's data is read.

A server could choose numbers whose effect shows what a person has: an infinite weight of an item
makes a sum infinite for those alone who have it. So every array that is told has a declared shape,
kind and range. Within these ranges, a person whose part is not finite adds nothing to the sum.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from privrec.errors import WireError
from privrec.types import Leaf

MOST = 1e9
"""The largest number that is accepted where nothing else is declared. Chosen by hand."""
_KINDS = {"numbers": (np.float32, np.float64), "whole": (np.int32, np.int64)}
"""Coarser numbers would make rounding errors larger than the margin of the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """One array that is told.

    A None in `shape` is any length from 1 to `longest`, the same wherever it stands among the
    arrays of a phase. Each number is in `least` … `most`, or is 0 where `or_zero` is true.
    `distinct` numbers occur once each.
    """

    shape: tuple[int | None, ...]
    kind: Literal["numbers", "whole"] = "numbers"
    least: float = -MOST
    most: float = MOST
    or_zero: bool = False
    distinct: bool = False
    longest: int = 2**31


def positions(n_items: int, longest: int) -> Accepted:
    """Return what is accepted as a list of some items, at most `longest`."""
    return Accepted(
        shape=(None,), kind="whole", least=0, most=n_items - 1, distinct=True, longest=longest
    )


def weights(shape: tuple[int | None, ...], *, or_zero: bool = False) -> Accepted:
    """Return what is accepted as weights: their fourth powers are neither 0 nor infinite."""
    return Accepted(shape=shape, least=1 / MOST, most=MOST, or_zero=or_zero)


def alike(leaf: Leaf) -> Accepted:
    """Return what is accepted where a phase declares nothing: an array of the same shape."""
    return Accepted(shape=leaf.shape, kind="numbers" if leaf.dtype.kind == "f" else "whole")


def check_told(told: Mapping[str, Leaf], accepted: Mapping[str, Accepted]) -> None:
    """Raise `WireError` unless exactly the accepted arrays are told, each within its range."""
    if told.keys() != accepted.keys():
        raise WireError("what the server tells does not fit: the recipe has other arrays")
    lengths = set[int]()
    for name, rule in accepted.items():
        array, unfit = np.asarray(told[name]), f"what the server tells does not fit: `{name}` has"
        if array.dtype not in _KINDS[rule.kind]:
            raise WireError(f"{unfit} the wrong kind of numbers")
        if array.ndim != len(rule.shape):
            raise WireError(f"{unfit} the wrong shape")
        for size, wanted in zip(array.shape, rule.shape, strict=True):
            if not (1 <= size <= rule.longest if wanted is None else size == wanted):
                raise WireError(f"{unfit} the wrong shape")
            lengths |= {size} if wanted is None else set()
        # A comparison with NaN is false.
        inside = (array >= rule.least) & (array <= rule.most)
        if not (inside | (array == 0) if rule.or_zero else inside).all():
            raise WireError(f"{unfit} numbers that are too large or too small")
        if rule.distinct and len(np.unique(array)) != array.size:
            raise WireError(f"{unfit} a number twice")
    if len(lengths) > 1:
        raise WireError("what the server tells does not fit: lengths differ")
