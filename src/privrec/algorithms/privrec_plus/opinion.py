"""A second model: implicit matrix factorisation (Hu, Koren and Volinsky 2008) with dislikes.

Its scores are added to the scores of the history model (`scoring.py`). The module runs on phones,
so it needs only numpy. Each person has a vector u and each item a vector v. The target t is 1 for a
liked item and `DISLIKED` for a disliked item. The vectors minimise

    Σ_(has) (1 + α)(t - uᵀv)² + Σ_(has not) (uᵀv)² + Σ_people ridge‖u‖² + Σ_items ridge‖v‖²

The first sum is over pairs of a person and an item that she likes or dislikes, the second over all
other pairs. The ridge of a person with n items is `ridge(n, items)`. The ridge of an item that n
people have is `ridge(n, people)` (Rendle et al. 2022).
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from privrec.types import F32, F64, IntArray, Leaf

SECOND, SECOND_WEIGHT = "second/vectors", "second/weight"
MOST_DIMENSIONS = 1024
"""The longest vectors: a device solves a system of this size. Chosen by hand."""
"""Parameter names: the items' vectors (items, d), and the weight of the second model's scores."""
ALPHA = 8.0
"""The α of the loss: an item that a person has gets the weight 1 + α, any other item 1."""
DISLIKED = 0.6
"""The target of a disliked item, above 0 because the person chose the item before rating it."""
_RIDGE, _OTHERS = 1.4, 0.05


class Entries(NamedTuple):
    """The distinct items of each person: person k has the entries `offsets[k]:offsets[k + 1]`.

    `target` is 1 for a like and `DISLIKED` for a dislike. An item that a person both liked and
    disliked is a like.
    """

    offsets: IntArray
    item: IntArray
    target: F64

    @property
    def owner(self) -> IntArray:
        """The person's index for each entry, shape (entries,)."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def entries_in(rows: Leaf, n_items: int, item_columns: int) -> Entries:
    """Return the entries in people's rows, a numpy array or a sparse matrix (people, columns).

    The first `n_items` columns are likes. The next columns, up to `item_columns`, are dislikes.
    """
    person, column = rows[:, :item_columns].nonzero()
    pair = person.astype(np.int64) * n_items + column % n_items
    # If an item is both liked and disliked, the sort puts the like first.
    order = np.lexsort((column, pair))
    pairs, first = np.unique(pair[order], return_index=True)
    target = np.where(column[order[first]] < n_items, 1.0, DISLIKED)
    counts = np.bincount(pairs // n_items, minlength=rows.shape[0])
    return Entries(np.concatenate([[0], np.cumsum(counts)]), pairs % n_items, target)


def ridge(count: Leaf, others: float) -> Leaf:
    """Return the ridge of a vector.

    For a person, `count` is the number of her items and `others` the number of all items. For an
    item, they are the number of people who have it and the number of all people.
    """
    return _RIDGE * np.sqrt(ALPHA * count + _OTHERS * others)


class Turned(NamedTuple):
    """The items' vectors V (items, d) in the coordinates of the eigenvectors of VᵀV.

    `basis` (d, d) has the eigenvectors, and `strength` (d,) the eigenvalues; `vectors` is
    V·`basis`.
    """

    vectors: F64
    basis: F64
    strength: F64


def turned(vectors: Leaf) -> Turned:
    """Return the items' vectors in the coordinates in which `person_vectors` is fast."""
    wide = np.asarray(vectors, np.float64)
    strength, basis = np.linalg.eigh(wide.T @ wide)
    return Turned(wide @ basis, basis, np.maximum(strength, 0.0))


def person_vectors(items: Turned, people: Entries) -> F64:
    """Return each person's vector, shape (people, d), from the items' vectors V.

        u = (VᵀV + αΣ v vᵀ + ridge·I)⁻¹ (1 + α)Σ t v

    The sums are over the items of the person. In the coordinates of the eigenvectors of VᵀV, the
    matrix is D + αKᵀK, where D is diagonal and K has the vectors of her items. For a person with
    fewer items than d, a smaller system is solved: (D + αKᵀK)⁻¹Kᵀ = D⁻¹Kᵀ(I + αKD⁻¹Kᵀ)⁻¹. If
    rounding makes the matrix singular, u is 0.
    """
    vectors, basis, strength = items
    solved = np.zeros((len(people.offsets) - 1, len(strength)))
    for k in range(len(solved)):
        own = slice(int(people.offsets[k]), int(people.offsets[k + 1]))
        chosen, target = vectors[people.item[own]], (1 + ALPHA) * people.target[own]
        count = len(chosen)
        common = strength + ridge(count, len(vectors))
        with suppress(np.linalg.LinAlgError):
            if count < len(strength):
                divided = chosen / common
                squares = np.eye(count) + ALPHA * divided @ chosen.T
                solved[k] = np.linalg.solve(squares, target) @ divided
            else:
                squares = np.diag(common) + ALPHA * chosen.T @ chosen
                solved[k] = np.linalg.solve(squares, target @ chosen)
    return solved @ basis.T


def second_opinion(
    params: Mapping[str, Leaf], n_items: int, item_columns: int
) -> Callable[[Leaf], F32]:
    """Return a function that maps people's rows to the scores uᵀv, shape (people, items)."""
    vectors = np.asarray(params[SECOND], np.float64)
    items = turned(vectors)

    def score(rows: Leaf) -> F32:
        people = person_vectors(items, entries_in(rows, n_items, item_columns))
        return np.asarray(people @ vectors.T, np.float32)

    return score
