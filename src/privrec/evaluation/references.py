"""Reference recommenders without training rounds, to compare every result with.

All but popularity rank a person's own items first. Where people use the same items again, as in
Frappe, this simple rule beats the paper's model (docs/results.md). In other data sets own items
are never candidates. The references are centralised: they read the likes of all training people
and give no privacy.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from privrec.core.scorer import Scorer
from privrec.data.clients import Clients
from privrec.data.federation import Federation, chunks
from privrec.errors import SettingsError
from privrec.types import IntArray

Arrays = dict[str, npt.NDArray[np.float32]]
DENSE_LIMIT = 20_000
"""The most items for a dense matrix of items by items (3.2 GB in float64). Chosen by hand."""
OWN_BONUS = 1e6
"""What is added to the score of an own item, so that it ranks first."""
EASE_L2 = 500.0
"""The ridge of EASE on MovieLens in its paper (Steck 2019)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A reference recommender: `fit(federation, people)` gives arrays, `scorer(arrays)` ranks."""

    fit: Callable[[Federation, IntArray], Arrays]
    scorer: Callable[[Arrays], Scorer]


def popularity() -> Reference:
    """Return the ranking by number of likes among the training people, the same for everybody."""

    def scorer(arrays: Arrays) -> Scorer:
        def score(first: Clients, lines: Clients) -> Iterator[npt.NDArray[np.float32]]:
            del lines
            for _ in range(len(first)):
                yield arrays["popularity"][None, :]

        return score

    return Reference(fit=_fit_popularity, scorer=scorer)


def own_items() -> Reference:
    """Return own items first, then popularity."""

    def scorer(arrays: Arrays) -> Scorer:
        counts = arrays["popularity"]
        return own_first(len(counts), lambda first: np.tile(counts, (len(first), 1)))

    return Reference(fit=_fit_popularity, scorer=scorer)


def item_knn() -> Reference:
    """Return own items first, then the sum of cosines between an item and the person's likes."""

    def fit(federation: Federation, people: IntArray) -> Arrays:
        gram = _gram(federation, people)
        norm = np.sqrt(np.maximum(np.diag(gram), 1))
        cosine = gram / norm[:, None] / norm[None, :]
        np.fill_diagonal(cosine, 0)
        return {"weights": _with_ties_by_popularity(cosine, gram)}

    return Reference(fit=fit, scorer=lambda arrays: _item_to_item(arrays["weights"]))


def ease(l2: float = EASE_L2) -> Reference:
    """Return own items first, then EASE (Steck 2019): item weights in closed form, ridge `l2`."""

    def fit(federation: Federation, people: IntArray) -> Arrays:
        gram = _gram(federation, people)
        inverse = np.linalg.inv(gram + l2 * np.eye(federation.n_items))
        weights = -inverse / np.diag(inverse)[None, :]
        np.fill_diagonal(weights, 0)
        return {"weights": _with_ties_by_popularity(weights, gram)}

    return Reference(fit=fit, scorer=lambda arrays: _item_to_item(arrays["weights"]))


def neighbours(vectors: npt.NDArray[np.float32]) -> Scorer:
    """Return own items first, then the sum of cosines between item vectors and those liked."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(length, 1e-12)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, 0)
    return _item_to_item(cosine)


def _rows(clients: Clients, n_items: int) -> sp.csr_array:
    liked = clients.liked
    ones = np.ones(int(liked.sum()), np.float32)
    matrix = sp.csr_array(
        (ones, (clients.owner[liked], clients.item[liked])), shape=(len(clients), n_items)
    )
    matrix.data[:] = 1  # a pair that occurs twice was summed
    return matrix


def _fit_popularity(federation: Federation, people: IntArray) -> Arrays:
    counts = np.zeros(federation.n_items, np.float32)
    for part in chunks(people):
        counts += _rows(federation.take(part), federation.n_items).sum(0)
    return {"popularity": counts}


def _gram(federation: Federation, people: IntArray) -> npt.NDArray[np.float64]:
    """Return XᵀX of the likes, accumulated over people in pieces."""
    if federation.n_items > DENSE_LIMIT:
        raise SettingsError(
            f"this reference needs a matrix of items by items: at most {DENSE_LIMIT} items;"
            f" got {federation.n_items}"
        )
    gram = np.zeros((federation.n_items, federation.n_items))
    for part in chunks(people):
        likes = _rows(federation.take(part), federation.n_items).astype(np.float64)
        gram += (likes.T @ likes).toarray()
    return gram


def _with_ties_by_popularity(
    weights: npt.NDArray[np.float64], gram: npt.NDArray[np.float64]
) -> npt.NDArray[np.float32]:
    """Return the weights plus a very small multiple of popularity, which breaks ties."""
    likes = np.diag(gram)
    raised = weights + 1e-6 * (likes / max(likes.max(), 1))[None, :]
    return np.asarray(raised, np.float32)


def _item_to_item(weights: npt.NDArray[np.float32]) -> Scorer:
    return own_first(len(weights), lambda first: _rows(first, len(weights)) @ weights)


def own_first(n_items: int, score_all: Callable[[Clients], npt.NDArray[np.float32]]) -> Scorer:
    """Return the scorer that ranks own items first and everything else by `score_all`."""

    def score(first: Clients, lines: Clients) -> Iterator[npt.NDArray[np.float64]]:
        del lines
        # Float64, because in float32 own items whose scores differ by less than 1/16 would tie.
        table = score_all(first).astype(np.float64) + OWN_BONUS * _rows(first, n_items).toarray()
        for k in range(len(first)):
            yield table[k : k + 1]

    return score
