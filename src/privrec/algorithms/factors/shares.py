"""The device's half of private alternating least squares: what one person adds to the sums."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from privrec.algorithms.budgets import BOUND
from privrec.algorithms.factors.people import Rated, rated, solve
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.phase import Cohort, DeviceHalf, Told
from privrec.core.told import Accepted, positions, weights
from privrec.data.clients import Clients
from privrec.privacy.aggregate import CohortTotal
from privrec.seeds import client_words
from privrec.types import F64, IntArray, Leaf

POPULARITY, VECTORS = "popularity", "items/vectors"
ITEM_SUMS, GRAM = "items/sums", "gram"
"""The sums of a round: a row for each item that is asked for, and one for all items together."""
SHARED = 1.5
"""The weight of the shared matrix in what a person adds. Values from 1 to 3 gave the same."""
_ROUNDING = 1e-9
_LARGEST_FACTOR = 1e4
"""No number of an item's vector is larger: all of them together have a mean square of 1/d."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Squares:
    """How a person's vector is solved, and what of it she adds.

    `item_squares` is the weight of x xᵀ for each of her items, beside x; 0 leaves it out. `most` is
    the number of items that she adds to. `seed` chooses them.
    """

    dislike: float
    unseen: float
    l2: float
    item_squares: float
    most: int
    seed: int


class Asked(NamedTuple):
    """What the server asks about: the items (m,), their weights (m,) and vectors (m, d)."""

    kept: IntArray
    weight: F64
    vectors: F64

    def told(self) -> dict[str, Leaf]:
        """Return it as arrays."""
        kept = self.kept.astype(np.int32)
        return {"kept": kept, "weight": self.weight, "vectors": self.vectors}

    @staticmethod
    def accepts(n_items: int, rank: int) -> dict[str, Accepted]:
        """Return what a device accepts of it."""
        return {
            "kept": positions(n_items, n_items),
            "weight": weights((None,)),
            "vectors": Accepted(shape=(None, rank), least=-_LARGEST_FACTOR, most=_LARGEST_FACTOR),
        }

    @classmethod
    def of_told(cls, told: Told) -> "Asked":
        """Return what was told."""
        numbers = (np.asarray(told[name], np.float64) for name in ("weight", "vectors"))
        return cls(np.asarray(told["kept"], np.int64), *numbers)


def own_weights(people: Rated, dislike: float) -> F64:
    """Return the weight of each entry: 1 for a like, `dislike` for a dislike."""
    return np.where(people.times > 0, 1.0, dislike)


def among(people: Rated, kept: IntArray, n_items: int) -> Rated:
    """Return people's entries among the kept items; `item` is the place in `kept`."""
    place = np.full(n_items, -1, np.int64)
    place[kept] = np.arange(len(kept))
    chosen = place[people.item]
    return replace(people, item=chosen).only(chosen >= 0)


def person_vectors(how: Squares, vectors: F64, people: Rated) -> F64:
    """Return each person's vector; `people.item` are rows of `vectors`."""
    weights = own_weights(people, how.dislike)
    common = how.unseen * vectors.T @ vectors + how.l2 * np.eye(vectors.shape[1])
    return solve(vectors, common, people.offsets, people.item, (weights, weights))


class Shares(NamedTuple):
    """What some people add.

    Row k of `weights` (people, m) is s_k ω of her items, of `parts` (people, …) what each weight
    multiplies, and of `shared` (people, d(d+1)/2) her part of the sum for all items.
    """

    weights: sp.csr_array
    parts: F64
    shared: F64


def shares(how: Squares, asked: Asked, clients: Clients, n_items: int, round_index: int) -> Shares:
    """Return what each person adds: a vector of length `BOUND`.

    It is 0 where she has no such item, or where her vector cannot be computed.
    """
    people = among(rated(clients, n_items), asked.kept, n_items)
    found = person_vectors(how, asked.vectors, people)
    norm = np.linalg.norm(found, axis=1, keepdims=True)
    x = np.divide(found, norm, out=np.zeros_like(found), where=(norm > 0) & np.isfinite(norm))
    above = np.triu_indices(x.shape[1])
    squares = x[:, above[0]] * x[:, above[1]]
    few = people.only(_drawn(people, clients, asked.kept, how, round_index))
    weight = own_weights(few, how.dislike) * asked.weight[few.item]
    total = np.zeros(len(people))
    np.add.at(total, few.owner, weight**2)
    parts = np.column_stack([x, how.item_squares * squares]) if how.item_squares else x
    length = np.sqrt(total * (parts**2).sum(1) + SHARED**2 * (squares**2).sum(1) * (total > 0))
    usable = (length > 0) & np.isfinite(length)
    scale = np.divide(BOUND, length, out=np.zeros_like(length), where=usable)
    matrix = sp.csr_array(
        (weight * scale[few.owner], few.item, few.offsets), shape=(len(people), len(asked.kept))
    )
    return Shares(matrix, parts, scale[:, None] * SHARED * squares)


def _drawn(
    people: Rated, clients: Clients, kept: IntArray, how: Squares, round_index: int
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which entries are used: at most `how.most` of each person, at random."""
    owner = people.owner
    words = client_words(how.seed, round_index, "items", clients.ids[owner], kept[people.item])
    order = np.lexsort((words, owner))
    rank = np.empty(len(owner), np.int64)
    rank[order] = np.arange(len(owner)) - people.offsets[owner[order]]
    return np.asarray(rank < how.most)


def squares_device(how: Squares, n_items: int) -> DeviceHalf:
    """Return the devices' half of a round."""

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        asked = Asked.of_told(told)
        weights, parts, shared = shares(how, asked, person, n_items, round_index)
        ids = np.asarray(weights.indices, np.int64)
        values = np.outer(np.asarray(weights.data, np.float64), parts[0])
        rows = {ITEM_SUMS: TouchedRows(ids, values, len(asked.kept))}
        return Contribution(rows=rows, dense={GRAM: shared[0]})

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        asked = Asked.of_told(told)
        width = asked.vectors.shape[1]
        triangle = width * (width + 1) // 2
        wide = width + (triangle if how.item_squares else 0)
        items, gram, several = np.zeros((len(asked.kept), wide)), np.zeros(triangle), 0
        for people in cohort.parts(256):
            mine = shares(how, asked, people, n_items, round_index)
            items += mine.weights.T @ mine.parts
            gram += mine.shared.sum(0)
            several += int((mine.shared != 0).any(1).sum())
        # Everybody adds a vector of length BOUND, so a smaller bound shortens all of them alike.
        scale = min(1.0, clip_norm / BOUND) * (1 - _ROUNDING)
        clipped = several if clip_norm * (1 + _ROUNDING) < BOUND else 0
        return CohortTotal({ITEM_SUMS: scale * items, GRAM: scale * gram}, clipped=clipped)

    return DeviceHalf(contribute=contribute, kernel=kernel)


def popularity_device(n_items: int, dislike: float) -> DeviceHalf:
    """Return the devices' half of the first sum: a person's likes and dislikes, of length 1."""

    def rows(clients: Clients) -> sp.csr_array:
        people = rated(clients, n_items)
        weight, owner = own_weights(people, dislike), people.owner
        total = np.zeros(len(people))
        np.add.at(total, owner, weight**2)
        scaled = BOUND * weight / np.sqrt(np.maximum(total, 1e-300))[owner]
        return sp.csr_array((scaled, people.item, people.offsets), shape=(len(people), n_items))

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        row = rows(person)
        ids = np.asarray(row.indices, np.int64)
        values = np.asarray(row.data, np.float64)
        return Contribution(rows={POPULARITY: TouchedRows(ids, values, n_items)})

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        total = np.zeros(n_items)
        for people in cohort.parts():
            total += rows(people).sum(0)
        return CohortTotal({POPULARITY: total})

    return DeviceHalf(contribute=contribute, kernel=kernel)
