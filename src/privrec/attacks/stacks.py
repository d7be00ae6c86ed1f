"""The contributions of many people to one round, and products of them, without building sums.

A contribution to a matrix over items is a single vector, and so are products with it: the inner
product of r rᵀ and s sᵀ is (r·s)², and that of their upper triangles ((r·s)² + Σ r²s²) / 2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from privrec.core.contribution import Contribution, add_to
from privrec.types import F64, Leaf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stack:
    """Contributions of m people, by the name of the sum they are added to.

    `flat` (m, size of the sum) sparse; `outer` and `triangle` (m, n) dense.
    """

    size: int
    flat: Mapping[str, sp.csr_array]
    outer: Mapping[str, F64]
    triangle: Mapping[str, F64]

    def gram(self, noises: Mapping[str, float]) -> F64:
        """Return the inner products of all pairs of contributions, shape (m, m).

        Each sum is measured in units of its own noise.
        """
        total = np.zeros((self.size, self.size))
        for name, rows in self.flat.items():
            total += (rows @ rows.T).toarray() / noises[name] ** 2
        for name, vectors in self.outer.items():
            total += (vectors @ vectors.T) ** 2 / noises[name] ** 2
        for name, vectors in self.triangle.items():
            products = (vectors @ vectors.T) ** 2 + vectors**2 @ (vectors**2).T
            total += products / 2 / noises[name] ** 2
        return total

    def against(self, sums: Mapping[str, Leaf], noises: Mapping[str, float]) -> F64:
        """Return the inner product of each contribution with these sums, shape (m,)."""
        total = np.zeros(self.size)
        for name, rows in self.flat.items():
            total += rows @ np.ravel(np.asarray(sums[name], np.float64)) / noises[name] ** 2
        for name, vectors in self.outer.items():
            matrix = np.asarray(sums[name], np.float64) / noises[name] ** 2
            total += ((vectors @ matrix) * vectors).sum(1)
        for name, vectors in self.triangle.items():
            matrix = np.zeros((vectors.shape[1], vectors.shape[1]))
            matrix[np.triu_indices(len(matrix))] = np.asarray(sums[name], np.float64)
            total += ((vectors @ matrix) * vectors).sum(1) / noises[name] ** 2
        return total

    def silent(self, sums: Mapping[str, Leaf]) -> F64:
        """Return how many entries each person touches that are exactly 0 in the sums, (m,)."""
        total = np.zeros(self.size)
        for name, rows in self.flat.items():
            touched = rows.copy()
            touched.data = np.asarray(touched.data != 0, np.float64)
            total += touched @ np.ravel(np.asarray(sums[name]) == 0).astype(np.float64)
        return total


def stacked(contributions: Sequence[Contribution]) -> Stack:
    """Return the contributions, which all have the same names and shapes, as one stack."""
    first = contributions[0]
    flat: dict[str, sp.csr_array] = {}
    for name in first.dense:
        rows = np.stack([np.ravel(np.asarray(one.dense[name])) for one in contributions])
        flat[name] = sp.csr_array(rows.astype(np.float64))
    for name, example in first.rows.items():
        width = int(np.prod(np.shape(example.values)[1:], dtype=np.int64))
        parts = [one.rows[name] for one in contributions]
        columns = [
            (np.asarray(part.ids)[:, None] * width + np.arange(width)).ravel() for part in parts
        ]
        values = [np.ravel(np.asarray(part.values, np.float64)) for part in parts]
        ends = np.concatenate([[0], np.cumsum([len(part) for part in values])])
        flat[name] = sp.csr_array(
            (np.concatenate(values), np.concatenate(columns), ends),
            shape=(len(parts), example.size * width),
        )
    return Stack(
        size=len(contributions),
        flat=flat,
        outer={name: _vectors(contributions, "outer", name) for name in first.outer},
        triangle={name: _vectors(contributions, "triangle", name) for name in first.triangle},
    )


def beginning(contribution: Contribution, size: int) -> F64:
    """Return the first `size` entries of all that is added, in the order in which noise is."""
    total: dict[str, Leaf] = {}
    add_to(total, contribution)
    return flattened(total)[:size]


def flattened(sums: Mapping[str, Leaf]) -> F64:
    """Return the sums as one vector, in the order in which noise is added."""
    return np.concatenate([np.ravel(np.asarray(sums[name], np.float64)) for name in sorted(sums)])


def _vectors(contributions: Sequence[Contribution], part: str, name: str) -> F64:
    return np.stack([np.asarray(getattr(one, part)[name], np.float64) for one in contributions])
