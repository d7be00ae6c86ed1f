"""What one contribution says about a person's items, by the kind of sum that it is added to.

A reader knows what the server knows: the recipe, what devices were told, and what one device adds
to the sums. It never sees a person's data. Only non-zero rows count, and signs that a sum would
lose are not used: a server that gets the sum of a cohort of one reads the same.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from privrec.algorithms.factors.fcf import VECTORS
from privrec.algorithms.privrec_plus.layout import DISLIKES, LIKES
from privrec.algorithms.privrec_plus.sums import SQUARES, TRIANGLE
from privrec.algorithms.privrec_plus.told import BASIS, SCALE
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.phase import Told
from privrec.models.api import ITEM_TABLE
from privrec.types import F64, BoolArray, IntArray, Leaf

LooksLiked = Callable[[F64], BoolArray]
"""The updates of some item rows of one person, shape (k, d) -> which of them she seems to like."""
_GAP = 1.7
"""Amounts this many times apart are of two kinds. A like weighs twice as much as a dislike, and an
item both liked and disliked 1.5 times as much as a like."""
_RIDGE = 0.01
_ROUNDING = 1e-4
"""Smaller parts of the largest number are rounding errors: some contributions have 32 bits."""


class Items(NamedTuple):
    """Items that a person has, and those among them that she likes: read off, or true."""

    items: IntArray
    likes: IntArray


_NOTHING = Items(np.zeros(0, np.int64), np.zeros(0, np.int64))


def read(
    sent: Contribution, told: Told, n_items: int, *, dislikes: bool, looks_liked: LooksLiked
) -> Items:
    """Return the items that a contribution names; `dislikes` tells whether rows have them too."""
    found = [
        _of_basis(rows, told, n_items, dislikes=dislikes)
        if name == BASIS
        else _of_rows(name, rows, told, n_items, looks_liked=looks_liked)
        for name, rows in sent.rows.items()
    ]
    if VECTORS in sent.dense:
        found.append(_of_slopes(_doubles(sent.dense[VECTORS]), _doubles(told[VECTORS])))
    if SQUARES in sent.outer:
        kept, row = np.asarray(told["kept"], np.int64), _doubles(sent.outer[SQUARES])
        liked = kept[row[: len(kept)] != 0]
        disliked = kept[row[len(kept) : 2 * len(kept)] != 0] if dislikes else kept[:0]
        found.append(Items(np.union1d(liked, disliked), liked))
    if TRIANGLE in sent.triangle:
        found.append(_of_taste(_doubles(sent.triangle[TRIANGLE]), told))
    return Items(*(np.unique(np.concatenate(ids)) for ids in zip(*found, _NOTHING, strict=True)))


def upper_kind(amounts: F64) -> BoolArray:
    """Return which amounts lie above the widest gap; all, if no gap is wide."""
    if not len(amounts):
        return np.zeros(0, np.bool_)
    ordered = np.sort(np.maximum(amounts, 1e-300))
    steps = ordered[1:] / ordered[:-1]
    if not len(steps) or steps.max() < _GAP:
        return np.ones(len(amounts), np.bool_)
    return np.asarray(amounts >= ordered[1 + steps.argmax()])


def trained_reader(updates: Sequence[F64], liked: Sequence[BoolArray]) -> LooksLiked:
    """Return a linear reader of item rows, fitted to people whose likes are known.

    Each person's rows are divided by their usual size, because a bound may have shortened them.
    The threshold is that with the best F1 on these people: 2 right / (named + liked).
    """
    rows = np.concatenate([_with_one(_usual_size(one)) for one in updates])
    ridge = np.full(rows.shape[1], _RIDGE * len(rows))
    ridge[-1] = 0
    wanted = np.concatenate(liked).astype(np.float64)
    weights = np.linalg.lstsq(rows.T @ rows + np.diag(ridge), rows.T @ wanted, rcond=None)[0]
    order = np.argsort(-(rows @ weights), kind="stable")
    named = np.arange(1, len(order) + 1)
    best = order[np.argmax(np.cumsum(wanted[order]) / (named + wanted.sum()))]
    least = float(rows[best] @ weights)
    return lambda values: np.asarray(_with_one(_usual_size(values)) @ weights >= least)


def _of_rows(
    name: str, rows: TouchedRows, told: Told, n_items: int, *, looks_liked: LooksLiked
) -> Items:
    """Return the items whose rows of a table change."""
    table = _doubles(rows.values)
    table = table[:, None] if table.ndim == 1 else table
    there = table.any(1)
    ids, values = np.asarray(rows.ids, np.int64)[there], table[there]
    amounts = np.linalg.norm(values, axis=1)
    if name == ITEM_TABLE:
        return Items(ids, ids[looks_liked(values)] if len(ids) else ids)
    if name.startswith("learn/"):  # The rounds of PrivRec+: a table for each block of a row.
        block = name.replace("learn/", "history/", 1)
        owned, liked = block in (LIKES, DISLIKES), block == LIKES
        return Items(ids if owned else ids[:0], ids if liked else ids[:0])
    if "weight" in told and rows.size == len(told["weight"]):
        amounts = amounts / _doubles(told["weight"])[ids]
        ids = np.asarray(told["kept"], np.int64)[ids]
        return Items(ids, ids[upper_kind(amounts)])
    return Items(ids, ids[upper_kind(amounts)]) if rows.size == n_items else _NOTHING


def _of_basis(rows: TouchedRows, told: Told, n_items: int, *, dislikes: bool) -> Items:
    """Return the items whose rows of a basis change: a round of a subspace iteration.

    Without noise the columns of likes come first and then those of dislikes. With noise each item
    has one column, and a dislike has a smaller weight in it.
    """
    amounts = np.linalg.norm(_doubles(rows.values), axis=1)
    ids, amounts = np.asarray(rows.ids, np.int64)[amounts > 0], amounts[amounts > 0]
    if rows.size == n_items:
        return Items(ids, ids[upper_kind(amounts / _doubles(told[SCALE])[ids])])
    liked = ids[ids < n_items]
    disliked = ids[(ids >= n_items) & (ids < 2 * n_items)] - n_items if dislikes else ids[:0]
    return Items(np.union1d(liked, disliked), liked)


def _of_taste(taste: F64, told: Told) -> Items:
    """Return the items of a taste: a row without its component along popularity.

    All items that she does not have are the same multiple of `common`, the least one, so that can
    be added again. The sum has lost the sign of a taste: the least one is that which occurs more
    often.
    """
    kept, power, common = (np.asarray(told[name]) for name in ("kept", "power", "common"))
    ratio = taste / common
    ends = ratio.min(), ratio.max()
    level = max(ends, key=lambda end: int(np.isclose(ratio, end, rtol=_ROUNDING, atol=0).sum()))
    row = np.abs(taste - level * common) / power
    there = row > _ROUNDING * row.max(initial=0)
    ids = np.asarray(kept, np.int64)[there]
    return Items(ids, ids[upper_kind(row[there])])


def _of_slopes(slopes: F64, vectors: F64) -> Items:
    """Return the items in the slope of a factorisation: e_i x for each item i, with one x.

    For an item that she does not have, e_i = -xᵀy_i, and y_i is known: all such items have the
    same ratio of the two, so it is where ratios are densest.
    """
    if not slopes.any():
        return _NOTHING
    direction = np.linalg.svd(slopes, full_matrices=False)[2][0]
    moved, known = slopes @ direction, vectors @ direction
    rest = np.abs(moved - _densest(moved / known) * known)
    ids = np.flatnonzero(rest > _ROUNDING * rest.max())
    return Items(ids, ids[upper_kind(rest[ids])])


def _densest(numbers: F64) -> float:
    """Return the middle of the narrowest range that has a tenth of the numbers."""
    ordered, tenth = np.sort(numbers), max(len(numbers) // 10, 1)
    begin = int((ordered[tenth:] - ordered[:-tenth]).argmin()) if len(numbers) > 1 else 0
    return float(ordered[begin + tenth // 2])


def _usual_size(values: F64) -> F64:
    size = float(np.sqrt(np.square(values).mean())) if values.size else 0.0
    return values / size if size > 0 else values


def _with_one(values: F64) -> F64:
    return np.column_stack([values, np.ones(len(values))])


def _doubles(leaf: Leaf) -> F64:
    return np.asarray(leaf, np.float64)
