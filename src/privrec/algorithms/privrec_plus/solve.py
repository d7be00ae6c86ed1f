"""The server's computation: from exact or noised sums to the history model, in closed form."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.linalg.lapack import spotrf, spotri

from privrec.algorithms.privrec_plus.rows import Frequent, Regression, columns_of, mirrored
from privrec.algorithms.privrec_plus.scoring import BIAS, DISLIKES, LIKES, OUT, Layout
from privrec.errors import DataError
from privrec.types import F32, F64, IntArray, Leaf

Matrix = npt.NDArray[np.floating]


_RIDGE = 6.0
"""The smallest ridge under noise, relative to the mean of the diagonal. Without it and with little
noise, each item would be predicted from itself alone. Chosen among 0.5, 4, 6 and 8 on validation
people of MovieLens-1M and Frappe, seeds 0 and 1, epsilon 2, 8 and 40."""


_LEAST_SHARE = 1e-6
"""The smallest ridge within a subspace, as a share of the largest eigenvalue. It keeps the matrix
invertible."""
_AT_ONCE, _ROWS = 1024, 8192
"""`_AT_ONCE` items are solved at a time, and `_ROWS` rows are multiplied at a time. Both numbers
bound the memory."""


class Factors(NamedTuple):
    """A low-rank model of item scores: scores = row @ inside @ outside.T.

    `inside` (columns, d) has a vector for each input column, `outside` (items, d) for each item.
    """

    inside: F32
    outside: F32


def regression(squares: F32, *, n_items: int, l2: float, dropout: float, also: float = 0.0) -> F32:
    """Return B, shape (columns, n_items): the score of item j is row @ B[:, j].

    B minimises Σ w‖target - row·B‖² + Σ_i r_i‖B_i‖² with B_jj = 0. The first sum is over people
    with weights w. The ridge is r_i = l2 + squares_ii·p/(1 - p), with p = `dropout`. Its second
    term has the same effect as dropping each input column with probability p (EDLAE, Steck 2020).
    `squares` is Σ w·row·rowᵀ and is overwritten. The target of item j is column j plus `also` times
    column n_items + j.

    With P = (squares + diag r)⁻¹, P·squares = I - P·diag(r). So no matrix product is needed.
    """
    own = np.diag_indices_from(squares)
    ridge = l2 + dropout / (1 - dropout) * squares[own]
    squares[own] += ridge
    factor, failed = spotrf(squares, lower=1, overwrite_a=1)
    if failed:
        raise DataError("the columns of the history cannot be told apart: raise `history_l2`")
    inverse, _ = spotri(factor, lower=1, overwrite_c=1)
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    items = np.arange(n_items)
    weights = -inverse[:, :n_items] * ridge[:n_items]
    weights[items, items] += 1
    if also:
        weights -= also * inverse[:, n_items : 2 * n_items] * ridge[n_items : 2 * n_items]
        weights[n_items + items, items] += also
    # One Lagrange multiplier per item enforces B_jj = 0.
    weights -= inverse[:, :n_items] * (weights[items, items] / inverse[items, items])
    return np.asarray(weights, np.float32)


def truncated(weights: F32, columns: Matrix, rank: int) -> Factors:
    """Return the factors of rank `rank` whose product is nearest to B, by subspace iteration.

    B is `weights` (columns, n_items). The error of an input column is multiplied by the fourth root
    of the column's sum of squares, `columns`. So frequent columns matter more.
    """
    power = np.asarray(np.maximum(columns, 1e-6) ** 0.25, np.float32)[:, None]
    scaled = weights * power
    rank = min(rank, *scaled.shape)
    start = np.random.Generator(np.random.PCG64(0)).standard_normal
    basis = scaled.T @ start((len(scaled), min(rank + 16, *scaled.shape))).astype(np.float32)
    for _ in range(4):
        basis = np.linalg.qr(scaled.T @ np.linalg.qr(scaled @ basis)[0])[0]
    left, strength, right = np.linalg.svd(scaled @ basis, full_matrices=False)
    inside = left[:, :rank] * strength[:rank] / power
    return Factors(inside, np.asarray((basis @ right.T)[:, :rank], np.float32))


def gram(left: Matrix, right: Matrix | None = None, weights: F64 | None = None) -> F64:
    """Return leftᵀ·right in 64 bits, or leftᵀ·diag(weights)·left with weights of at least 0.

    The product is added up over blocks of rows, to save memory.
    """
    total = np.zeros((left.shape[1], left.shape[1] if right is None else right.shape[1]))
    for start in range(0, len(left), _ROWS):
        some = slice(start, start + _ROWS)
        here = np.asarray(left[some], np.float64)
        if weights is not None:
            here = here * np.sqrt(weights[some, None])
        # If both factors are the same array, numpy computes only half of the symmetric result.
        total += here.T @ (here if right is None else np.asarray(right[some], np.float64))
    return total


def regression_within(
    vectors: Matrix,
    strength: Matrix,
    often: Matrix,
    shrink: Matrix,
    *,
    n_items: int,
    l2: float,
    dropout: float,
    also: float = 0.0,
) -> F32:
    """Return W, shape (n_items, d): the solution of `regression` with B restricted to V·Wᵀ.

    Here x is a row whose columns are multiplied by `shrink`. Σ w·x·xᵀ is approximated by V
    diag(strength) Vᵀ, where V = `vectors` (columns, d) is orthonormal. Its exact diagonal is
    `often`. The score of item j is x·V·W_j. Item j is predicted from Vᵀx without the item's own
    columns c: the column of likes and, if `also` is not 0, the column of dislikes. This condition
    replaces B_jj = 0. With z_c = strength·V_c and the ridge r of `regression`, W_j solves

        (diag(strength) + Vᵀ diag(r)V + Σ_c (often_c V_cV_cᵀ - V_cz_cᵀ - z_cV_cᵀ)) W_j
            = Σ_c t_c (z_c - often_c V_c),   t_c = 1/shrink_c, times `also` for the disliked one.

    The sums over c have rank 2 or 4. So one inverse matrix serves all items (Woodbury identity).
    """
    strength = np.asarray(strength, np.float64)
    ridge = l2 * shrink**2 + dropout / (1 - dropout) * often
    least = _LEAST_SHARE * max(float(strength.max(initial=0.0)), 1e-12)
    inverse = np.linalg.inv(np.diag(strength + least) + gram(vectors, weights=ridge))
    target = np.divide(1.0, shrink, out=np.zeros_like(shrink), where=shrink > 0)
    result = np.zeros((n_items, len(strength)), np.float32)
    for start in range(0, n_items, _AT_ONCE):
        items = np.arange(start, min(start + _AT_ONCE, n_items))
        owns = [(items, 1.0), *([(n_items + items, also)] if also else [])]
        sides, middle = [], np.zeros((len(items), 2 * len(owns), 2 * len(owns)))
        wanted = np.zeros((len(items), 2 * len(owns)))
        for k, (own, weight) in enumerate(owns):
            alone = np.asarray(vectors[own], np.float64)
            all_ = alone * strength
            wanted[:, 2 * k + 1] = weight * target[own]
            wanted[:, 2 * k] = -wanted[:, 2 * k + 1] * often[own]
            sides += [alone, all_]
            # The inverse of [[often, -1], [-1, 0]].
            middle[:, 2 * k, 2 * k + 1] = middle[:, 2 * k + 1, 2 * k] = -1
            middle[:, 2 * k + 1, 2 * k + 1] = -often[own]
        side = np.stack(sides, 1)
        # One product for all items, because a product per item would read the inverse each time.
        solved = (side.reshape(-1, len(strength)) @ inverse).reshape(side.shape)
        between = solved @ side.transpose(0, 2, 1)
        weights = np.linalg.solve(middle + between, between @ wanted[:, :, None])[:, :, 0]
        result[items] = ((wanted - weights)[:, None, :] @ solved)[:, 0]
    return result


def denoised(squares: Matrix, *, noise_scale: float, rank: int) -> Factors:
    """Return the factors of V diag(f) Vᵀ, from a symmetric matrix with normal noise on each entry.

    V has the top eigenvectors of the matrix `squares` (m, m), and f shrinks the noisy directions. A
    matrix of noise alone, with standard deviation s, has eigenvalues up to edge = 2s√m. An observed
    eigenvalue y > edge corresponds to a true eigenvalue of about l = (y + √(y² - edge²))/2. Its
    eigenvector keeps the share k = 1 - (edge/2l)² of the true direction. So f = k · l/(l + ridge),
    and 0 below the edge. The ridge is the larger of the edge and `_RIDGE` times the mean of the
    diagonal.
    """
    m = len(squares)
    edge = 2 * noise_scale * math.sqrt(m)
    values, vectors = eigh(squares, subset_by_index=[max(0, m - rank), m - 1])
    kept = values > edge
    observed, vectors = values[kept], vectors[:, kept]
    true = (observed + np.sqrt(observed**2 - edge**2)) / 2
    ridge = max(edge, _RIDGE * float(np.trace(squares)) / m)
    share = (1 - (edge / (2 * true)) ** 2) * true / (true + ridge)
    return Factors((vectors * share).astype(np.float32), vectors.astype(np.float32))


_FEWEST = 50
_RARE_ITEM_BIAS = -1e3
_TIE_BREAK = 1e-6


def frequent(popularity: F64, *, noise_scale: float, most: int) -> IntArray:
    """Return the items of the co-occurrence matrix, the most popular first, shape (m,).

    In a matrix over m items, the noise in each row has L2 norm s√m for noise of scale s. m is the
    largest number such that the m-th item has a popularity of at least s√m, but at least `_FEWEST`,
    at most `most`, and at most the number of items.
    """
    order = np.argsort(-popularity, kind="stable")
    needed = noise_scale * np.sqrt(np.arange(1, len(order) + 1))
    enough = np.flatnonzero(popularity[order] >= needed)
    count = max(int(enough[-1]) + 1 if len(enough) else 0, _FEWEST)
    return order[: min(count, most)]


def exact_tower(
    total: Mapping[str, Leaf], layout: Layout, kept: IntArray, how: Regression, rank: int
) -> dict[str, F32]:
    """Return the history model without noise, given the sums of `sums.py: history_moments`."""
    n, columns = layout.n_items, columns_of(layout, kept, how)
    scales = how.scales(layout)[columns]
    people, weight = float(total["people"]), float(total["weight"])
    squares = np.array(total["squares"], np.float32)
    often = np.diag(squares).copy()
    weights = regression(
        squares,
        n_items=len(kept),
        l2=how.l2 * (weight / people if people else 1.0),
        dropout=how.dropout,
        also=how.also(layout),
    )
    tower = blank(layout, rank=rank, dislikes=how.dislike > 0)
    everywhere = np.zeros((layout.size, rank or n), np.float32)
    if rank:
        inside, outside = truncated(weights, often, rank)
        everywhere[columns, : inside.shape[1]] = inside * scales[:, None]
        tower[OUT][kept, : outside.shape[1]] = outside
    else:
        everywhere[np.ix_(columns, kept)] = weights * scales[:, None]
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
    """Return the history model under noise, given the published upper triangle of the moments.

    Devices removed the component along popularity; here it is added to the model again.
    """
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
    """Return a history model of zeros. With `rank` 0, vectors have an entry for each item."""
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
    """Return the bias of each item's score, shape (n_items,).

    The bias of a kept item is tiny: it orders items with equal scores by popularity. The bias of
    other items ranks them after the kept items, the most popular first.
    """
    # The other items' bias uses the rank in popularity: near -1000, float32 distinguishes integers,
    # but not small differences of popularity.
    places = 1 + np.searchsorted(np.sort(-popularity), -popularity)
    bias = _RARE_ITEM_BIAS - places
    bias[kept] = (
        _TIE_BREAK * popularity[kept] / max(float(np.max(np.abs(popularity), initial=0)), 1e-12)
    )
    return np.asarray(bias, np.float32)
