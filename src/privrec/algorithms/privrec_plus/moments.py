"""Sums over people of rows (first moments) and of row·rowᵀ (second moments).

Both are sums of one contribution per person. The server computes everything else from the sums.
Where contributions are bounded, each is scaled to an L2 norm of 1. The norm of a person's triangle
has a closed form, so the triangle itself is never built.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from privrec.types import F64

SparseRows = sp.csr_array
"""One row per person; the columns are those of `Layout`."""
Matrix = npt.NDArray[np.floating]
Parts = Iterable[tuple[SparseRows, F64]]
"""The rows of some people and the weight of each, a few hundred people at a time."""

# One multiplication in a sparse product counts as much as this many in a dense product.
# Chosen by hand; no measurement is on record.
_DENSE = 2000


def sum_of_rows(parts: Parts, size: int) -> F64:
    """Return Σ w · row over all people, shape (size,)."""
    total = np.zeros(size)
    for rows, weights in parts:
        total += rows.T @ weights
    return total


def sum_of_squares(parts: Parts, size: int, dtype: npt.DTypeLike = np.float64) -> Matrix:
    """Return Σ w · row rowᵀ over all people, shape (size, size)."""
    total = np.zeros((size, size), dtype)
    for rows, weights in parts:
        half = sp.csr_array(sp.diags_array(np.sqrt(weights)) @ rows)
        if _DENSE * float((np.diff(half.indptr) ** 2.0).sum()) > rows.shape[0] * size**2:
            whole = half.toarray().astype(dtype, copy=False)
            total += whole.T @ whole
        else:
            total += (half.T @ half).toarray().astype(dtype, copy=False)
    return total


def row_lengths(rows: SparseRows) -> F64:
    """Return ‖row‖ of each person."""
    return np.sqrt(np.asarray(rows.multiply(rows).sum(1), np.float64))


def triangle_lengths(rows: SparseRows) -> F64:
    """Return the L2 norm of each person's row rowᵀ, upper triangle with its diagonal.

    Σ_{i<=j} (r_i r_j)² = (‖r‖⁴ + Σ r_i⁴) / 2.
    """
    squares = rows.multiply(rows)
    total = np.asarray(squares.sum(1), np.float64)
    fourth = np.asarray(squares.multiply(squares).sum(1), np.float64)
    return np.sqrt((total**2 + fourth) / 2)


def to_length_one(lengths: F64) -> F64:
    """Return the weights that scale contributions of these norms to norm 1; 0 stays 0."""
    return np.where(lengths > 0, 1 / np.where(lengths > 0, lengths, 1.0), 0.0)


def triangle(matrix: Matrix) -> Matrix:
    """Return the upper triangle with the diagonal as one vector: what is published."""
    return matrix[np.triu_indices(len(matrix))]


def mirrored(vector: Matrix, size: int) -> F64:
    """Return the symmetric matrix with this upper triangle.

    >>> mirrored(np.array([1.0, 2.0, 3.0]), 2).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    matrix = np.zeros((size, size))
    above = np.triu_indices(size)
    matrix[above] = vector
    matrix.T[above] = vector
    return matrix
