"""The server's half of the two sums: what it asks for, and the tower that it solves from them."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from privrec.algorithms.privrec_plus.layout import DISLIKES, LIKES, Layout
from privrec.algorithms.privrec_plus.moments import Matrix, mirrored
from privrec.algorithms.privrec_plus.scoring import BIAS, OUT
from privrec.algorithms.privrec_plus.solve import denoised, regression, truncated
from privrec.algorithms.privrec_plus.told import Frequent, Regression, columns_of
from privrec.types import F32, F64, IntArray, Leaf

_FEWEST = 50
_UNKNOWN = -1e3
_HAIR = 1e-6


def frequent(popularity: F64, *, noise_scale: float, most: int) -> IntArray:
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


def exact_tower(
    total: Mapping[str, Leaf], layout: Layout, kept: IntArray, how: Regression, rank: int
) -> dict[str, F32]:
    """Return the tower that predicts likes from rows, given the sums of `history_moments`."""
    n, columns = layout.n_items, columns_of(layout, kept, how)
    scales = how.scales(layout)[columns]
    people, weight = float(total["people"]), float(total["weight"])
    squares = np.array(total["squares"], np.float32)
    often = np.diag(squares).copy()
    found = regression(
        squares,
        n_items=len(kept),
        l2=how.l2 * (weight / people if people else 1.0),
        dropout=how.dropout,
        also=how.also(layout),
    )
    tower = blank(layout, rank=rank, dislikes=how.dislike > 0)
    everywhere = np.zeros((layout.size, rank or n), np.float32)
    if rank:
        inside, outside = truncated(found, often, rank)
        everywhere[columns, : inside.shape[1]] = inside * scales[:, None]
        tower[OUT][kept, : outside.shape[1]] = outside
    else:
        everywhere[np.ix_(columns, kept)] = found * scales[:, None]
    ends = np.cumsum(layout.sizes)
    for name, end, size in zip(layout.names, ends, layout.sizes, strict=True):
        if name in tower:
            tower[name] = everywhere[end - size : end]
    return tower


def noisy_tower(
    triangle: Matrix,
    layout: Layout,
    items: Frequent,
    *,
    dislike: float,
    rank: int,
    noise_scale: float,
) -> dict[str, F32]:
    """Return the tower of a published triangle; adds the component along popularity back."""
    kept, power, common = items.kept, items.power, items.common
    squares = mirrored(triangle, len(kept))
    taste, outside = denoised(squares, noise_scale=noise_scale, rank=rank - 1)
    inside = np.column_stack([taste - np.outer(common, common @ taste), common])
    outside = np.column_stack([outside, common])
    tower = blank(layout, rank=rank, dislikes=dislike > 0)
    width = inside.shape[1]
    tower[LIKES][kept, :width] = inside * power[:, None]
    if DISLIKES in tower:
        tower[DISLIKES][kept, :width] = dislike * tower[LIKES][kept, :width]
    tower[OUT][kept, :width] = outside
    return tower


def blank(layout: Layout, *, rank: int, dislikes: bool) -> dict[str, F32]:
    """Return a tower that scores all items alike; with `rank` 0, vectors of catalogue size."""
    width = rank or layout.n_items
    tower = {
        name: np.zeros((size, width), np.float32)
        for name, size in zip(layout.names, layout.sizes, strict=True)
        if dislikes or name != DISLIKES
    }
    if rank:
        tower[OUT] = np.zeros((layout.n_items, width), np.float32)
    return {**tower, BIAS: np.zeros(layout.n_items, np.float32)}


def bias_of(popularity: npt.NDArray[np.floating], kept: npt.NDArray[np.integer]) -> F32:
    """Return the bias that orders items by popularity where the person's history gives a tie.

    Items that were not kept have no vector. They come after all others, the most popular first.
    """
    # By rank in popularity, not by popularity: near -1000, float32 resolves integers well, but
    # not small differences.
    places = 1 + np.searchsorted(np.sort(-popularity), -popularity)
    bias = _UNKNOWN - places
    bias[kept] = _HAIR * popularity[kept] / max(float(np.max(np.abs(popularity), initial=0)), 1e-12)
    return np.asarray(bias, np.float32)
