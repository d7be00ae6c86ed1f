"""Reference recommenders without training rounds, with which all results are compared.

They read the likes of all training people and give no privacy. All except popularity rank a
person's own items first. If people use the same items again, as in Frappe, this simple rule beats
the paper's model (docs/results.md). In other data sets own items are never candidates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.linalg.blas import sgemm
from scipy.linalg.lapack import spotrf, spotri

from privrec.core.phase import Advance, silent
from privrec.core.scorer import Scores, TableScorer
from privrec.data.clients import Clients
from privrec.data.federation import Federation, chunks
from privrec.errors import DataError, SettingsError, nearest
from privrec.types import F32, F64, IntArray, OnProgress

Arrays = dict[str, F32]
MEMORY_GB = 4.0
"""The memory limit of all references together, in 10⁹ bytes. It does not depend on the machine, so
that a run has the same references everywhere. The two references with a matrix of items by items
fit up to 22,000 items. Chosen by hand."""
EASE_L2 = 500.0
"""The ridge of EASE on MovieLens in its paper (Steck 2019)."""
_PAIRS = 2**22
"""The number of pairs of likes whose products are in memory at a time: about 100 MB. Chosen by
hand."""
_DENSE = 3000
"""For each pair of likes, a product of sparse rows takes as long as this many multiplications of a
dense product. Measured on two cores."""


class Sums(NamedTuple):
    """How many people like each item, and each pair of items, to fit references.

    `pairs` is None if no reference needs it. Numbers up to 2²⁴ are exact.
    """

    likes: F32
    pairs: F32 | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A reference recommender: `solve(sums)` returns arrays, `scorer(arrays)` returns a scorer.

    If `needs_pairs` is true, `solve` writes the arrays into the memory of the pairs.
    """

    solve: Callable[[Sums], Arrays]
    needs_pairs: bool = False
    own_first: bool = True

    def scorer(self, arrays: Arrays) -> TableScorer:
        """Return the scorer, with the same scores for all people or with item-to-item weights."""
        table = (
            partial(_item_to_item, arrays["weights"])
            if self.needs_pairs
            else partial(_same_for_all, arrays["popularity"])
        )
        return TableScorer(table=table, own_first=self.own_first)

    def shapes(self, n_items: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the arrays."""
        return {"weights": (n_items, n_items)} if self.needs_pairs else {"popularity": (n_items,)}

    def gigabytes(self, n_items: int) -> float:
        """Return the memory of the arrays, in 10⁹ bytes."""
        return 4e-9 * n_items**2 if self.needs_pairs else 4e-9 * n_items

    def check(self, n_items: int) -> None:
        """Raise if the arrays take more memory than `MEMORY_GB`."""
        if (needed := self.gigabytes(n_items)) > MEMORY_GB:
            raise SettingsError(
                f"this reference needs a matrix of items by items: {needed:.1f} GB for"
                f" {n_items:,} items; the limit is {MEMORY_GB:g} GB"
            )

    def fit(
        self, federation: Federation, people: IntArray, on_progress: Advance = silent
    ) -> Arrays:
        """Return the arrays fitted to people's likes."""
        self.check(federation.n_items)
        pairs = self.needs_pairs
        return self.solve(sums_of(federation, people, pairs=pairs, on_progress=on_progress))


def _popularity(sums: Sums) -> Arrays:
    return {"popularity": sums.likes}


def _cosines(sums: Sums) -> Arrays:
    cosine = _pairs_in(sums)
    norm = np.sqrt(np.maximum(sums.likes, 1))
    cosine /= norm[:, None]
    cosine /= norm[None, :]
    np.fill_diagonal(cosine, 0)
    return {"weights": _with_ties_by_popularity(cosine, sums.likes)}


def _ease(l2: float, sums: Sums) -> Arrays:
    weights = _pairs_in(sums)
    weights[np.diag_indices_from(weights)] += np.float32(l2)
    _invert(weights)
    weights /= -weights.diagonal()[None, :].copy()
    np.fill_diagonal(weights, 0)
    return {"weights": _with_ties_by_popularity(weights, sums.likes)}


def ease(l2: float = EASE_L2) -> Reference:
    """Return EASE (Steck 2019) after own items: item weights in closed form with ridge `l2`.

    With P = (XᵀX + l2 · I)⁻¹, the weight of item i for item j is -P_ij / P_jj.
    """
    return Reference(solve=partial(_ease, l2), needs_pairs=True)


POPULARITY = Reference(solve=_popularity, own_first=False)
"""Ranks by the number of likes among the training people, the same for all people."""
OWN_ITEMS = Reference(solve=_popularity)
"""Ranks own items first, then by popularity."""
ITEM_KNN = Reference(solve=_cosines, needs_pairs=True)
"""Ranks own items first, then by the sum of cosines between an item and the person's likes."""
REFERENCES = {
    "popularity": POPULARITY,
    "own-items": OWN_ITEMS,
    "item-knn": ITEM_KNN,
    "ease": ease(),
}


class Fitted(NamedTuple):
    """The fitted references, and the reasons why others are left out, both by name.

    `surprise` is -log2 of the share of people who like each item, where an item without likes
    counts as one with one like. It is None if no reference was fitted.
    """

    scorers: dict[str, TableScorer]
    left_out: dict[str, str]
    surprise: F64 | None = None


def fit_references(
    federation: Federation,
    people: IntArray,
    names: Sequence[str] | None = None,
    *,
    memory_gb: float = MEMORY_GB,
    on_progress: Advance = silent,
    on_fit: OnProgress | None = None,
) -> Fitted:
    """Return the references with these names, fitted with one pass over people's likes.

    Without `names`, all references that fit into the memory together are returned. A named
    reference that does not fit is an error. `on_fit` is called with the name of each reference
    before (0 of 1) and after it is solved (1 of 1).
    """
    chosen, left_out = _chosen(federation.n_items, names, memory_gb)
    if not chosen:
        return Fitted({}, left_out)
    needing = [name for name, reference in chosen.items() if reference.needs_pairs]
    sums = sums_of(federation, people, pairs=bool(needing), on_progress=on_progress)
    scorers = {}
    tell = on_fit or (lambda name, done, total: None)
    for name, reference in chosen.items():
        tell(name, 0, 1)
        last = needing and name == needing[-1]
        pairs = None if sums.pairs is None or last else sums.pairs.copy()
        mine = sums if last or not reference.needs_pairs else Sums(sums.likes, pairs)
        scorers[name] = reference.scorer(reference.solve(mine))
        tell(name, 1, 1)
    shares = np.maximum(sums.likes.astype(np.float64), 1) / max(len(people), 1)
    return Fitted(scorers, left_out, -np.log2(shares))


def _chosen(
    n_items: int, names: Sequence[str] | None, memory_gb: float
) -> tuple[dict[str, Reference], dict[str, str]]:
    for name in names or ():
        if name not in REFERENCES:
            known = ", ".join(REFERENCES)
            hint = nearest(name, REFERENCES)
            raise SettingsError(f"unknown reference {name!r}{hint}; there are {known}")
    chosen, left_out, left = {}, {}, memory_gb
    for name, reference in REFERENCES.items():
        needed = reference.gigabytes(n_items)
        if names is not None and name not in names:
            continue
        if needed > left:
            said = f"needs {needed:.1f} GB, the limit is {memory_gb:g} GB"
            said += f" and {left:.1f} GB of it are left" if left < memory_gb else ""
            left_out[name] = said
        else:
            chosen[name] = reference
            left -= needed
    if names is not None and left_out:
        name, said = next(iter(left_out.items()))
        raise SettingsError(f"the reference {name!r} {said}")
    return chosen, left_out


def neighbours(vectors: F32) -> TableScorer:
    """Return own items first, then the sum of cosines between item vectors and those liked."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(length, 1e-12)
    with_itself = (unit * unit).sum(1)

    def score(first: Clients) -> Scores:
        likes = likes_of(first, len(unit))
        table = (likes @ unit) @ unit.T
        # An item does not count as a neighbour of itself.
        owner = np.repeat(np.arange(len(first)), np.diff(likes.indptr))
        table[owner, likes.indices] -= with_itself[likes.indices]
        return np.asarray(table)

    return TableScorer(table=score, own_first=True)


def sums_of(
    federation: Federation,
    people: IntArray,
    *,
    pairs: bool,
    on_progress: Advance = silent,
) -> Sums:
    """Return the sums over people's likes, with a few people in memory at a time."""
    n_items = federation.n_items
    likes = np.zeros(n_items, np.float32)
    squares = np.zeros((n_items, n_items), np.float32) if pairs else None
    for part in chunks(people):
        rows = likes_of(federation.take(part), n_items)
        likes += np.bincount(rows.indices, minlength=n_items).astype(np.float32)
        if squares is not None:
            _add_pairs(squares, rows)
        on_progress(len(part))
    return Sums(likes, squares)


def _add_pairs(squares: F32, rows: sp.csr_array) -> None:
    """Add rowsᵀ rows to a dense matrix, by a dense product or by a sparse one."""
    pairs = np.cumsum(np.diff(rows.indptr).astype(np.int64) ** 2)
    if _DENSE * float(pairs[-1]) > rows.shape[0] * float(len(squares)) ** 2:
        whole = rows.toarray().T
        # LAPACK stores columns. The transpose uses the same memory, without a copy.
        sgemm(1.0, whole, whole, trans_b=1, beta=1.0, c=squares.T, overwrite_c=1)
        return
    start = 0
    while start < rows.shape[0]:
        done = pairs[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(pairs, done + _PAIRS, side="right")))
        product = rows[start:stop].T @ rows[start:stop]
        # The product is symmetric, so it does not matter whether rows or columns are stored
        # together.
        row = np.repeat(np.arange(len(squares)), np.diff(product.indptr))
        squares[row, product.indices] += product.data
        start = stop


def _invert(matrix: F32) -> None:
    """Replace a symmetric positive definite matrix by its inverse, in the same memory."""
    # LAPACK stores columns. The transpose uses the same memory, without a copy.
    factor, failed = spotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
    if failed:
        raise DataError("the items cannot be told apart in 32 bits: raise `ease_l2`")
    inverse, _ = spotri(factor, lower=1, overwrite_c=1)
    if not np.shares_memory(inverse, matrix):
        matrix[:] = inverse.T
    step = 1024
    for start in range(0, len(matrix), step):
        rows = slice(start, start + step)
        # LAPACK computed only the upper triangle.
        matrix[rows, :start] = matrix[:start, rows].T
        corner = np.triu(matrix[rows, rows])
        matrix[rows, rows] = corner + np.triu(corner, 1).T


def likes_of(clients: Clients, n_items: int) -> sp.csr_array:
    """Return people's likes as a matrix of 0 and 1, shape (people, n_items)."""
    liked = clients.liked
    ones = np.ones(int(liked.sum()), np.float32)
    matrix = sp.csr_array(
        (ones, (clients.owner[liked], clients.item[liked])), shape=(len(clients), n_items)
    )
    matrix.data[:] = 1  # A pair that occurs twice was summed.
    return matrix


def _pairs_in(sums: Sums) -> F32:
    if sums.pairs is None:
        raise ValueError("this reference needs pairs")
    return sums.pairs


def _same_for_all(scores: F32, people: Clients) -> F32:
    return np.broadcast_to(scores, (len(people), len(scores)))


def _with_ties_by_popularity(weights: F32, likes: F32) -> F32:
    """Return the weights plus a very small multiple of popularity, which breaks ties."""
    weights += np.float32(1e-6) * (likes / max(likes.max(), 1))[None, :]
    return weights


def _item_to_item(weights: F32, people: Clients) -> Scores:
    return np.asarray(likes_of(people, len(weights)) @ weights)
