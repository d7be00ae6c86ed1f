"""The tower of some people's rows: from exact sums, or from bounded sums with noise on them."""

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
_ITEM_POWER = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """How likes are explained by rows: the weight of each kind of column, and the ridge.

    `dislike_target` is how much of a like a disliked item counts as a target: a person who rated
    it chose it all the same.
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
    """Return how popular each item is; a person's likes and dislikes add a vector of length 1."""
    merged = (_merged(rows, layout, dislike) for rows in parts)
    return moments.sum_of_rows(
        ((rows, moments.to_length_one(moments.row_lengths(rows))) for rows in merged),
        layout.n_items,
    )


def frequent(popularity: moments.Doubles, *, noise_scale: float, most: int) -> IntArray:
    """Return the items whose company is worth asking for, the most popular first.

    A matrix over m items has noise of length s√m in each row; so m grows as long as the m-th item
    is at least s√m popular.
    """
    order = np.argsort(-popularity, kind="stable")
    needed = noise_scale * np.sqrt(np.arange(1, len(order) + 1))
    enough = np.flatnonzero(popularity[order] >= needed)
    count = max(int(enough[-1]) + 1 if len(enough) else 0, _FEWEST)
    return order[: min(count, most)]


def columns_of(layout: Layout, kept: IntArray, how: Regression) -> IntArray:
    """Return the columns of a row that explain: kept items liked and disliked, and features."""
    n = layout.n_items
    disliked = n + kept if how.dislike else kept[:0]
    return np.concatenate([kept, disliked, np.arange(2 * n, layout.size)])


def history_moments(
    parts: Iterable[SparseRows], layout: Layout, kept: IntArray, how: Regression
) -> dict[str, Leaf]:
    """Return Σ w·row·rowᵀ over people, `squares`, and Σ 1, `people`, and Σ w, `weight`.

    A person with n likes, kept or not, weighs w = n^-½: otherwise the busiest people would
    decide for everybody.
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
    """Return the tower that explains likes by rows, from the sums of `history_moments`."""
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
    """The items whose company is asked for, and what is known of them: all from release one.

    `kept` (m,) are their positions, `power` (m,) the weight of each, less for popular ones, and
    `common` (m,) the unit vector of what every row has in common with popularity.
    """

    kept: IntArray
    power: moments.Doubles
    common: moments.Doubles

    @classmethod
    def of(cls, popularity: moments.Doubles, kept: IntArray) -> "Frequent":
        """Return it for these items of the published popularity."""
        counted = np.maximum(popularity[kept], 1.0)
        power = (counted / counted.mean()) ** -_ITEM_POWER
        common = counted * power / np.linalg.norm(counted * power)
        return cls(kept=kept, power=power, common=common)


def taste_moments(
    parts: Iterable[SparseRows], layout: Layout, items: Frequent, dislike: float
) -> moments.Doubles:
    """Return Σ of the upper triangle of taste·tasteᵀ, each person's of length at most 1.

    A person's taste is her row over the frequent items, less its part along popularity, because
    that is known already: all of her length goes to what is left. Whoever has few of these items
    is scaled up to 1 like everybody else.
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
    """Return the tower of a published triangle; it adds the part along popularity again."""
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
    """Return the rows less their part along `common`, a unit vector; empty if that is all."""
    rest = rows - np.outer(rows @ common, common)
    small = np.linalg.norm(rest, axis=1) <= 1e-6 * np.linalg.norm(rows, axis=1)
    return sp.csr_array(np.where(small[:, None], 0.0, rest))


def _merged(rows: SparseRows, layout: Layout, dislike: float) -> SparseRows:
    """Return like + dislike · weight in one column an item: what she chose, and how much."""
    n = layout.n_items
    chosen = rows[:, :n] + dislike * rows[:, n : 2 * n]
    return sp.csr_array(chosen.astype(np.float64))
