"""From sums to a tower, in closed form: with the exact sums, or with noisy ones."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.linalg.lapack import spotrf, spotri

from privrec.errors import DataError

Matrix = npt.NDArray[np.floating]
Floats = npt.NDArray[np.float32]


_LEAST_RIDGE = 0.02
"""Of the largest eigenvalue, where there is next to no noise."""


class Factors(NamedTuple):
    """A tower: a person's columns pool to a vector by `inside`, an item's vector is in `outside`.

    `inside` (columns, d), `outside` (items, d); scores are row @ inside @ outside.T.
    """

    inside: Floats
    outside: Floats


def regression(
    squares: Floats, *, n_items: int, l2: float, dropout: float, also: float = 0.0
) -> Floats:
    """Return B, shape (columns, n_items): the score of item j is row @ B[:, j].

    Minimises Σ w‖target - row·B‖² + Σ_i r_i‖B_i‖² with B_jj = 0, r_i = l2 + squares_ii·p/(1 - p):
    the ridge of a model trained to find likes when each column is dropped with probability p
    (EDLAE, Steck 2020). `squares` is Σ w·row·rowᵀ and is overwritten. The target of item j is
    column j plus `also` times column n_items + j.

    With P = (squares + diag r)⁻¹, P·squares = I - P·diag(r): no product of matrices is needed.
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
    # One multiplier for each item makes the score of an item blind to the item itself.
    weights -= inverse[:, :n_items] * (weights[items, items] / inverse[items, items])
    return np.asarray(weights, np.float32)


def truncated(weights: Floats, columns: Matrix, rank: int) -> Factors:
    """Return the factors of rank `rank` nearest to B, by subspace iteration.

    Errors on a column count with the fourth root of its square sum, `columns`: what is seen more
    often matters more.
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


def denoised(squares: Matrix, *, noise_scale: float, rank: int) -> Factors:
    """Return the smoother V diag(f) Vᵀ as factors, from a matrix with normal noise on each entry.

    Noise alone has eigenvalues up to 2s√m, s its scale. An eigenvalue y above that edge came from
    about l = (y + √(y² - edge²))/2, and its vector keeps 1 - (edge/2l)² of the true direction; so
    f = that share of the ridge l/(l + edge). What lies below the edge is dropped.
    """
    m = len(squares)
    edge = 2 * noise_scale * math.sqrt(m)
    values, vectors = eigh(squares, subset_by_index=[max(0, m - rank), m - 1])
    kept = values > edge
    observed, vectors = values[kept], vectors[:, kept]
    true = (observed + np.sqrt(observed**2 - edge**2)) / 2
    ridge = max(edge, _LEAST_RIDGE * true.max(initial=0.0))
    share = (1 - (edge / (2 * true)) ** 2) * true / (true + ridge)
    return Factors((vectors * share).astype(np.float32), vectors.astype(np.float32))
