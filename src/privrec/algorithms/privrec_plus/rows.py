"""The rows of many people as a sparse matrix, and sums over people of row and of row·rowᵀ.

A row is the vector of one person's likes, dislikes and features (`Layout`). The weights of columns
and items are also here: `Regression` and `Hop` without noise, `Frequent` under noise.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from privrec.algorithms.privrec_plus.scoring import (
    HOP_ITEMS,
    HOP_VALUES,
    HOP_WEIGHT,
    Arrays,
    Layout,
    entries_of,
    recency_of,
    row_scorer,
)
from privrec.core.phase import Accepted, positions, weights
from privrec.core.scorer import TableScorer
from privrec.data.clients import Clients
from privrec.types import F32, F64, IntArray, Leaf

SparseRows = sp.csr_array
"""One row per person; the columns are those of `Layout`."""
Matrix = npt.NDArray[np.floating]
Parts = Iterable[tuple[SparseRows, F64]]
"""The rows of some people and the weight of each, a few hundred people at a time."""

# The assumed time of one multiplication in a sparse product, relative to a dense product. Chosen by
# hand; not measured.
_DENSE = 2000
SUBSPACE = "subspace"
"""The name of the phase of a subspace iteration."""
BASIS, SCALE = "basis", "scale"
"""The names of the arrays that the server sends in a subspace iteration: the basis Q (columns, d),
and the weight of each column of a row (columns,)."""
LARGEST = 1000
"""A person with more likes adds no pairs: she would add a million or more. Chosen by hand."""
AT_ONCE_PAIRS = 2**24
"""The number of pairs of items that are processed at a time. It bounds the memory."""
_ITEM_POWER = 0.25
"""Under noise, an item's weight in a row is its popularity to the power of minus this number."""


def sum_of_rows(parts: Parts, size: int) -> F64:
    """Return Σ w · row over all people, shape (size,)."""
    total = np.zeros(size)
    for rows, of_person in parts:
        total += rows.T @ of_person
    return total


def add_squares(total: Matrix, rows: SparseRows, weights: F64) -> None:
    """Add Σ w · row rowᵀ over some people to `total`, shape (columns, columns)."""
    half = sp.csr_array(sp.diags_array(np.sqrt(weights)) @ rows)
    if _DENSE * float((np.diff(half.indptr) ** 2.0).sum()) > rows.shape[0] * total.size:
        whole = half.toarray().astype(total.dtype, copy=False)
        total += whole.T @ whole
    else:
        total += (half.T @ half).toarray().astype(total.dtype, copy=False)


def row_lengths(rows: SparseRows) -> F64:
    """Return the L2 norm of each person's row, shape (people,)."""
    return np.sqrt(np.asarray(rows.multiply(rows).sum(1), np.float64))


def triangle_lengths(rows: SparseRows) -> F64:
    """Return the L2 norm of the upper triangle (with diagonal) of row·rowᵀ, shape (people,).

    The triangle itself is not built: Σ_{i<=j} (r_i r_j)² = (‖r‖⁴ + Σ r_i⁴) / 2 for a row r.
    """
    squares = rows.multiply(rows)
    total = np.asarray(squares.sum(1), np.float64)
    fourth = np.asarray(squares.multiply(squares).sum(1), np.float64)
    return np.sqrt((total**2 + fourth) / 2)


def to_length_one(lengths: F64) -> F64:
    """Return the weights that scale contributions to norm 1; a norm of 0 gets the weight 0."""
    return np.where(lengths > 0, 1 / np.where(lengths > 0, lengths, 1.0), 0.0)


def triangle(matrix: Matrix) -> Matrix:
    """Return the upper triangle of a matrix, with the diagonal, as one vector."""
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


def rows_of(clients: Clients, layout: Layout, recency: float = 0.0) -> SparseRows:
    """Return the people's rows, shape (people, layout.size)."""
    person, column, value = entries_of(clients, layout, recency)
    rows = SparseRows(
        (value.astype(np.float32), (person, column)), shape=(len(clients), layout.size)
    )
    rows.sort_indices()
    return rows


def without_items(rows: SparseRows, layout: Layout) -> SparseRows:
    """Return the rows with all likes and dislikes set to 0."""
    known = np.arange(layout.size) >= layout.item_columns
    return sp.csr_array(rows @ sp.diags_array(known.astype(np.float32)))


def merged_items(rows: SparseRows, layout: Layout, dislike: float) -> SparseRows:
    """Return rows with one column per item: 1 for a like plus `dislike` for a dislike."""
    n = layout.n_items
    chosen = rows[:, :n].astype(np.float64)
    if layout.dislikes:
        chosen = chosen + dislike * rows[:, n : 2 * n].astype(np.float64)
    return sp.csr_array(chosen)


def activity_weights(rows: SparseRows, layout: Layout, power: float) -> F64:
    """Return each person's weight n^-power for n likes, or 1 without likes, shape (people,)."""
    likes = np.asarray(rows[:, : layout.n_items].sum(1), np.float64)
    return np.asarray(np.maximum(likes, 1.0) ** -power)


def history_scorer(tower: Arrays, layout: Layout, *, adapted: bool = True) -> TableScorer:
    """Return a scorer that ranks items with the history model, from the data on the device.

    A person's own likes rank first. If not `adapted`, likes and dislikes are ignored.
    """
    score_rows, recency = row_scorer(tower, layout), recency_of(tower)

    def score(first: Clients) -> F32:
        rows = rows_of(first, layout, recency)
        return score_rows(rows if adapted else without_items(rows, layout))

    return TableScorer(table=score, own_first=adapted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """The settings of the regression that predicts likes from rows: column weights and ridge.

    `dislike`, `feature` and `context` are weights of columns. A liked item has the target 1 and a
    disliked item `dislike_target`, which may be above 0 because the person chose the item before
    she rated it. A person with n likes has the weight n^-`activity`, so that people with many likes
    do not dominate.
    """

    dislike: float
    feature: float
    context: float
    dislike_target: float
    l2: float
    dropout: float
    activity: float = 0.5

    def scales(self, layout: Layout) -> F32:
        """Return the weight of each column of a row, shape (columns,)."""
        kinds = [
            1.0,
            *([self.dislike] if layout.dislikes else []),
            *(self.feature for _ in layout.users),
            *(self.context for _ in layout.contexts),
        ]
        return np.repeat(np.array(kinds, np.float32), layout.sizes)

    def also(self, layout: Layout) -> float:
        """Return the target of a disliked item divided by the weight of its column."""
        return self.dislike_target / self.dislike if layout.dislikes and self.dislike else 0.0


def columns_of(layout: Layout, kept: IntArray, how: Regression) -> IntArray:
    """Return the input columns of the regression: likes and dislikes of kept items, features."""
    disliked = layout.n_items + kept if layout.dislikes and how.dislike else kept[:0]
    return np.concatenate([kept, disliked, np.arange(layout.item_columns, layout.size)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Frequent:
    """The m frequent items, over which moments are summed under noise, and their weights.

    All are computed from the noised popularity alone. `kept` (m,) has the positions of the items,
    `power` (m,) their weights, smaller for popular items, and `common` (m,) the unit vector in the
    direction of popularity.
    """

    kept: IntArray
    power: F64
    common: F64

    @classmethod
    def of(cls, popularity: F64, kept: IntArray) -> "Frequent":
        """Return the `Frequent` of these items, given the published popularity."""
        counted = np.maximum(popularity[kept], 1.0)
        power = (counted / counted.mean()) ** -_ITEM_POWER
        common = counted * power / np.linalg.norm(counted * power)
        return cls(kept=kept, power=power, common=common)

    @classmethod
    def of_told(cls, told: Mapping[str, Leaf]) -> "Frequent":
        """Return the `Frequent` that the server sent to devices."""
        return cls(**{name: np.asarray(told[name]) for name in ("kept", "power", "common")})

    @staticmethod
    def accepts(n_items: int, most: int) -> dict[str, Accepted]:
        """Return the rules by which a device checks these arrays of at most `most` items."""
        return {
            "kept": positions(n_items, most),
            "power": weights((None,)),
            "common": Accepted(shape=(None,), least=-1.01, most=1.01),
        }

    def told(self) -> dict[str, Leaf]:
        """Return the arrays that the server sends to devices."""
        return {"kept": self.kept, "power": self.power, "common": self.common}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """The settings of the pair scores (`hop.py`), see `PlusSettings`.

    A person with n likes has the weight n^-`activity`.
    """

    weight: float
    items: int
    people: int
    activity: float

    def blank(self, n_items: int) -> dict[str, F32]:
        """Return the initial parameters of the pair scores: all values are 0."""
        shape = (n_items, min(self.items, n_items))
        return {
            HOP_ITEMS: np.zeros(shape, np.float32),
            HOP_VALUES: np.zeros(shape, np.float32),
            HOP_WEIGHT: np.asarray(self.weight, np.float32),
        }
