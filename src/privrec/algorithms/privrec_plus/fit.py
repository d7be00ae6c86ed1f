"""The history tower, computed from exact sums over people or from bounded sums with noise."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from privrec.algorithms.privrec_plus import moments, solve
from privrec.algorithms.privrec_plus.layout import DISLIKES, LIKES, Layout
from privrec.algorithms.privrec_plus.rows import SparseRows
from privrec.algorithms.privrec_plus.scoring import OUT, Floats
from privrec.algorithms.privrec_plus.tower import blank
from privrec.types import IntArray, Leaf

_FEWEST = 50
"""The least number of items in the matrix of moments. Chosen by hand; not tuned."""
_ITEM_POWER = 0.25
"""Items weigh popularity^-_ITEM_POWER under noise. Measured on validation people: Hits@20 0.249
with this weight, 0.241 without (docs/results.md). No other power is on record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """Settings of the regression of likes on rows: the weight of each kind of column, the ridge.

    `dislike_target` is the target of a disliked item; a liked item has target 1. It may be above 0
    because the person chose the item before she rated it.
    """

    dislike: float
    feature: float
    context: float
    dislike_target: float
    l2: float
    dropout: float

    def scales(self, layout: Layout) -> Floats:
        """Return the weight of each column."""
        kinds = [
            1.0,
            self.dislike,
            *(self.feature for _ in layout.users),
            *(self.context for _ in layout.contexts),
        ]
        return np.repeat(np.array(kinds, np.float32), layout.sizes)


def popularity_of(parts: Iterable[SparseRows], layout: Layout, dislike: float) -> moments.Doubles:
    """Return how popular each item is; each person adds one vector of L2 norm 1."""
    merged = (_merged(rows, layout, dislike) for rows in parts)
    return moments.sum_of_rows(
        ((rows, moments.to_length_one(moments.row_lengths(rows))) for rows in merged),
        layout.n_items,
    )


def frequent(popularity: moments.Doubles, *, noise_scale: float, most: int) -> IntArray:
    """Return the items that enter the matrix of co-occurrences, the most popular first.

    In a matrix over m items, the noise in each row has L2 norm s√m. The result has the largest m
    for which the m-th item has a popularity of at least s√m; m is at least `_FEWEST` and at most
    `most`.
    """
    order = np.argsort(-popularity, kind="stable")
    needed = noise_scale * np.sqrt(np.arange(1, len(order) + 1))
    enough = np.flatnonzero(popularity[order] >= needed)
    count = max(int(enough[-1]) + 1 if len(enough) else 0, _FEWEST)
    return order[: min(count, most)]


def columns_of(layout: Layout, kept: IntArray, how: Regression) -> IntArray:
    """Return the input columns of the regression: kept items (liked, disliked) and features."""
    n = layout.n_items
    disliked = n + kept if how.dislike else kept[:0]
    return np.concatenate([kept, disliked, np.arange(2 * n, layout.size)])


def history_moments(
    parts: Iterable[SparseRows], layout: Layout, kept: IntArray, how: Regression
) -> dict[str, Leaf]:
    """Return Σ w·row·rowᵀ over people, `squares`, and Σ 1, `people`, and Σ w, `weight`.

    A person with n likes (all likes, not only those of kept items) has weight w = n^-½. Without
    this weight, people with many likes would dominate the sum.
    """
    columns = columns_of(layout, kept, how)
    scales = how.scales(layout)[columns]
    people, weight = 0, 0.0

    def weighted() -> Iterator[tuple[SparseRows, moments.Doubles]]:
        nonlocal people, weight
        for rows in parts:
            likes = np.asarray(rows[:, : layout.n_items].sum(1), np.float64)
            weights = 1 / np.sqrt(np.maximum(likes, 1.0))
            people, weight = people + len(weights), weight + float(weights.sum())
            yield sp.csr_array(rows[:, columns] * scales[None, :]), weights

    squares = moments.sum_of_squares(weighted(), len(columns), np.float32)
    return {"squares": squares, "people": np.float64(people), "weight": np.float64(weight)}


def exact_tower(
    total: Mapping[str, Leaf], layout: Layout, kept: IntArray, how: Regression, rank: int
) -> dict[str, Floats]:
    """Return the tower that predicts likes from rows, given the sums of `history_moments`."""
    n, columns = layout.n_items, columns_of(layout, kept, how)
    scales = how.scales(layout)[columns]
    people, weight = float(total["people"]), float(total["weight"])
    squares = np.array(total["squares"], np.float32)
    often = np.diag(squares).copy()
    found = solve.regression(
        squares,
        n_items=len(kept),
        l2=how.l2 * (weight / people if people else 1.0),
        dropout=how.dropout,
        also=how.dislike_target / how.dislike if how.dislike else 0.0,
    )
    tower = blank(layout, rank=rank, dislikes=how.dislike > 0)
    everywhere = np.zeros((layout.size, rank or n), np.float32)
    if rank:
        inside, outside = solve.truncated(found, often, rank)
        everywhere[columns, : inside.shape[1]] = inside * scales[:, None]
        tower[OUT][kept, : outside.shape[1]] = outside
    else:
        everywhere[np.ix_(columns, kept)] = found * scales[:, None]
    ends = np.cumsum(layout.sizes)
    for name, end, size in zip(layout.names, ends, layout.sizes, strict=True):
        if name in tower:
            tower[name] = everywhere[end - size : end]
    return tower


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequent:
    """The items in the matrix of co-occurrences, with weights: computed from release one alone.

    `kept` (m,): their positions. `power` (m,): the weight of each item, smaller for popular items.
    `common` (m,): the unit vector in the direction of popularity.
    """

    kept: IntArray
    power: moments.Doubles
    common: moments.Doubles

    @classmethod
    def of(cls, popularity: moments.Doubles, kept: IntArray) -> "Frequent":
        """Return the `Frequent` of these items, given the published popularity."""
        counted = np.maximum(popularity[kept], 1.0)
        power = (counted / counted.mean()) ** -_ITEM_POWER
        common = counted * power / np.linalg.norm(counted * power)
        return cls(kept=kept, power=power, common=common)


def taste_moments(
    parts: Iterable[SparseRows], layout: Layout, items: Frequent, dislike: float
) -> moments.Doubles:
    """Return Σ of the upper triangle of taste·tasteᵀ; each person adds a vector of norm <= 1.

    A person's taste is her row over the frequent items, without its component along popularity.
    Popularity is already known, so the whole norm is used for the rest. Each contribution that is
    not 0 is scaled to norm 1, also that of a person with few of these items.
    """

    def weighted() -> Iterator[tuple[SparseRows, moments.Doubles]]:
        for rows in parts:
            own = sp.csr_array(_merged(rows, layout, dislike)[:, items.kept] * items.power[None, :])
            taste = _without(own.toarray(), items.common)
            yield taste, moments.to_length_one(moments.triangle_lengths(taste))

    total = moments.sum_of_squares(weighted(), len(items.kept))
    return np.asarray(moments.triangle(total), np.float64)


def noisy_tower(
    triangle: moments.Matrix,
    layout: Layout,
    items: Frequent,
    *,
    dislike: float,
    rank: int,
    noise_scale: float,
) -> dict[str, Floats]:
    """Return the tower of a published triangle; adds the component along popularity back."""
    kept, power, common = items.kept, items.power, items.common
    squares = moments.mirrored(triangle, len(kept))
    taste, outside = solve.denoised(squares, noise_scale=noise_scale, rank=rank - 1)
    inside = np.column_stack([taste - np.outer(common, common @ taste), common])
    outside = np.column_stack([outside, common])
    tower = blank(layout, rank=rank, dislikes=dislike > 0)
    width = inside.shape[1]
    tower[LIKES][kept, :width] = inside * power[:, None]
    if dislike:
        tower[DISLIKES][kept, :width] = dislike * tower[LIKES][kept, :width]
    tower[OUT][kept, :width] = outside
    return tower


def _without(rows: npt.NDArray[np.float64], common: npt.NDArray[np.float64]) -> sp.csr_array:
    """Return the rows without their component along the unit vector `common`.

    A row that has no other component becomes 0.
    """
    rest = rows - np.outer(rows @ common, common)
    small = np.linalg.norm(rest, axis=1) <= 1e-6 * np.linalg.norm(rows, axis=1)
    return sp.csr_array(np.where(small[:, None], 0.0, rest))


def _merged(rows: SparseRows, layout: Layout, dislike: float) -> SparseRows:
    """Return one column per item: 1 for a like, `dislike` for a dislike, added if both occur."""
    n = layout.n_items
    chosen = rows[:, :n] + dislike * rows[:, n : 2 * n]
    return sp.csr_array(chosen.astype(np.float64))
