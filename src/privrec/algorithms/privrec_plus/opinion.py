"""A second opinion: implicit matrix factorisation (Hu, Koren and Volinsky 2008) with dislikes.

Only numpy is needed here, as on a phone. A person has a vector u and an item a vector v. They
minimise, with target t = 1 for an item that she likes and `DISLIKED` for one that she dislikes,

    Σ_(has) (1 + α)(t - uᵀv)² + Σ_(has not) (uᵀv)² + Σ_people ridge‖u‖² + Σ_items ridge‖v‖²

Both sides have the same normal equations. A person with n items has the ridge of `ridge(n, items)`,
an item that n people have `ridge(n, people)` (Rendle et al. 2022).
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from privrec.types import F32, F64, IntArray, Leaf

SECOND, SECOND_WEIGHT = "second/vectors", "second/weight"
"""The items' vectors (items, d), and the weight of the second opinion beside the first one."""
ALPHA = 8.0
"""How much more an item counts that a person has."""
DISLIKED = 0.6
"""The target of a disliked item: the person chose it before she rated it."""
_RIDGE, _OTHERS = 1.4, 0.05


class Entries(NamedTuple):
    """Each person's items, each once: person k has the entries `offsets[k]:offsets[k + 1]`.

    `target` is 1 for a like and `DISLIKED` for a dislike. An item that is both is a like.
    """

    offsets: IntArray
    item: IntArray
    target: F64

    @property
    def owner(self) -> IntArray:
        """For each entry, the position of its person."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


def entries_in(rows: Leaf, n_items: int, item_columns: int) -> Entries:
    """Return the entries in people's rows, a numpy array or a sparse matrix (people, columns).

    The first `n_items` columns are likes, those up to `item_columns` dislikes.
    """
    person, column = rows[:, :item_columns].nonzero()
    pair = person.astype(np.int64) * n_items + column % n_items
    # Of an item that is liked and disliked, the like comes first.
    order = np.lexsort((column, pair))
    pairs, first = np.unique(pair[order], return_index=True)
    target = np.where(column[order[first]] < n_items, 1.0, DISLIKED)
    counts = np.bincount(pairs // n_items, minlength=rows.shape[0])
    return Entries(np.concatenate([[0], np.cumsum(counts)]), pairs % n_items, target)


def ridge(count: Leaf, others: float) -> Leaf:
    """Return the ridge of a vector that has `count` entries, among `others` on the other side."""
    return _RIDGE * np.sqrt(ALPHA * count + _OTHERS * others)


class Turned(NamedTuple):
    """The items' vectors V (items, d) in the eigenvectors of VᵀV: `vectors` = V · `basis`.

    `strength` (d,) are the eigenvalues.
    """

    vectors: F64
    basis: F64
    strength: F64


def turned(vectors: Leaf) -> Turned:
    """Return the items' vectors in a form in which all people's vectors are soon solved."""
    wide = np.asarray(vectors, np.float64)
    strength, basis = np.linalg.eigh(wide.T @ wide)
    return Turned(wide @ basis, basis, np.maximum(strength, 0.0))


def person_vectors(items: Turned, people: Entries) -> F64:
    """Return each person's vector, shape (people, d), from the items' vectors V.

        u = (VᵀV + αΣ v vᵀ + ridge·I)⁻¹ (1 + α)Σ t v

    In the eigenvectors of VᵀV, all but αΣ v vᵀ = αKᵀK is diagonal. Who has fewer items than
    directions solves for one number an item: (D + αKᵀK)⁻¹Kᵀ = D⁻¹Kᵀ(I + αKD⁻¹Kᵀ)⁻¹. Where rounding
    leaves no inverse, u is 0.
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
    """Return the function that scores all items for people's rows: uᵀv, shape (people, items)."""
    vectors = np.asarray(params[SECOND], np.float64)
    items = turned(vectors)

    def score(rows: Leaf) -> F32:
        people = person_vectors(items, entries_in(rows, n_items, item_columns))
        return np.asarray(people @ vectors.T, np.float32)

    return score
