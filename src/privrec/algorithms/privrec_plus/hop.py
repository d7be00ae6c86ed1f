"""Pair scores: an item scores high if many people like it together with the person's items.

    h_j = Σ_i F_i^-½ · G_ij · F_j^-0.4  over a person's likes i,   G = Σ w·r·rᵀ

Here h_j is the pair score of item j, r is the 0/1 vector of a person's likes, w = n^-a is the
weight of a person with n likes, and F is the frequency of an item. In a large catalogue, low-rank
vectors lose relations between few items, which pair scores keep. The pair scores and the scores
from vectors are standardised and added (`scoring.py: row_scorer`). G has no diagonal. A pair that
fewer than `hop_people` people have is dropped. So with `hop_people` of 2 or more (default 3), no
pair comes from one person alone. Each item keeps its strongest neighbours.

A federation does not offer pair scores: whoever sees the positions of nonzero entries sees people's
items, and masks would have to cover all pairs of a catalogue (docs/privacy.md).
"""

from collections.abc import Mapping

import numpy as np
import scipy.sparse as sp

from privrec.algorithms.privrec_plus.rows import (
    AT_ONCE_PAIRS,
    LARGEST,
    Hop,
    SparseRows,
    activity_weights,
    rows_of,
)
from privrec.algorithms.privrec_plus.scoring import HOP_ITEMS, HOP_VALUES, Layout
from privrec.core.contribution import Contribution, TouchedRows
from privrec.core.phase import Cohort, DeviceHalf, Told
from privrec.data.clients import Clients, cuts
from privrec.privacy.aggregate import CohortTotal
from privrec.types import F32, F64, Leaf

PAIRS, COUNTS = "pairs", "pair counts"
"""The names of the sums Σ w·r·rᵀ and Σ r·rᵀ without their diagonals. Each sum has the shape
(n_items²,), or is a sparse matrix. `PAIRS` is also the name of the phase."""
_FROM, _TO = -0.5, -0.4
"""The exponents of the frequency of a liked item, and of the scored item. Chosen on held-out lines
of three benchmarks."""


# --- the device's half -------------------------------------------------------------------------


def likes_of(people: Clients, layout: Layout) -> SparseRows:
    """Return people's likes, (people, n_items). A row with more than `LARGEST` likes is emptied."""
    likes = sp.csr_array(rows_of(people, layout)[:, : layout.n_items])
    few = np.diff(likes.indptr) <= LARGEST
    if not few.all():
        likes = sp.csr_array(sp.diags_array(few.astype(np.float32)) @ likes)
        likes.eliminate_zeros()
    return likes


def pairs_device(layout: Layout, hop: Hop) -> DeviceHalf:
    """Return the device's half of the sum over pairs of items.

    `kernel` leaves out pairs that too few people of the cohort have, because all rare pairs
    together may not fit into memory.
    """
    n_items = layout.n_items

    def contribute(told: Told, person: Clients, round_index: int) -> Contribution:
        likes = likes_of(person, layout)
        weight = activity_weights(likes, layout, hop.activity)[0]
        items = np.asarray(likes.indices, np.int64)
        first, second = (side.ravel() for side in np.meshgrid(items, items, indexing="ij"))
        ids = (n_items * first + second)[first != second]
        values = {PAIRS: np.full(len(ids), weight), COUNTS: np.ones(len(ids))}
        return Contribution(
            rows={name: TouchedRows(ids, value, n_items**2) for name, value in values.items()}
        )

    def kernel(told: Told, cohort: Cohort, round_index: int, clip_norm: float) -> CohortTotal:
        parts = [likes_of(people, layout) for people in cohort.parts(8192)]
        likes = _stacked(parts, n_items)
        weights = activity_weights(likes, layout, hop.activity)
        return CohortTotal(pair_sums(likes, weights, least=hop.people))

    return DeviceHalf(contribute=contribute, kernel=kernel)


def pair_sums(likes: SparseRows, weights: F64, *, least: int) -> dict[str, SparseRows]:
    """Return Σ w·r·rᵀ and Σ r·rᵀ without diagonals, for pairs that at least `least` people have.

    `likes` (people, n_items) has a row r for each person, and `weights` (people,) her weight w.
    """
    of_items = sp.csr_array(likes.T)
    # Both matrices need the same nonzero entries in the same order, which a product with a diagonal
    # matrix would not keep.
    shares = (of_items.data * weights[of_items.indices]).astype(np.float32)
    weighted = sp.csr_array((shares, of_items.indices, of_items.indptr), shape=of_items.shape)
    work = of_items @ np.diff(likes.indptr)
    ends = np.concatenate([[0], np.cumsum(work)]).astype(np.int64)
    parts = [(start, stop) for start, stop in cuts(ends, AT_ONCE_PAIRS) if stop > start]
    blocks = [
        _often(of_items[start:stop] @ likes, weighted[start:stop] @ likes, start, least)
        for start, stop in parts
    ]
    counts, sums = ([block[k] for block in blocks] for k in (0, 1))
    n_items = likes.shape[1]
    return {PAIRS: _stacked(sums, n_items), COUNTS: _stacked(counts, n_items)}


def _often(
    counts: SparseRows, sums: SparseRows, start: int, least: int
) -> tuple[SparseRows, SparseRows]:
    """Return the entries whose count is at least `least`, without the diagonal.

    Row k of the matrices belongs to item `start` + k. `counts` and `sums` have the same entries in
    the same order, because all weights are above 0.
    """
    row = np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr))
    kept = (counts.data >= least) & (counts.indices != start + row)
    lengths = np.bincount(row[kept], minlength=counts.shape[0])
    ends = np.concatenate([[0], np.cumsum(lengths)])

    def cells(matrix: SparseRows) -> SparseRows:
        found = (matrix.data[kept], matrix.indices[kept], ends)
        return sp.csr_array(found, shape=counts.shape)

    return cells(counts), cells(sums)


def _stacked(parts: list[SparseRows], n_items: int) -> SparseRows:
    empty = sp.csr_array((0, n_items), dtype=np.float32)
    return sp.csr_array(sp.vstack([empty, *parts], format="csr"))


# --- the server's half -------------------------------------------------------------------------


def neighbours(sums: Mapping[str, Leaf], frequency: F64, hop: Hop) -> dict[str, F32]:
    """Return each item's strongest neighbours and their values, (n_items, hop.items) each.

    `frequency` (n_items,) has the frequency of each item. Missing neighbours have the value 0.
    """
    n_items = len(frequency)
    pairs, counts = (_sparse(sums[name], n_items) for name in (PAIRS, COUNTS))
    enough = counts.data >= hop.people
    row = np.repeat(np.arange(n_items), np.diff(pairs.indptr))[enough]
    item, value = pairs.indices[enough], pairs.data[enough].astype(np.float64)
    often = np.where(frequency > 0, frequency, 1.0)
    value = value * often[row] ** _FROM * often[item] ** _TO
    order = np.lexsort((item, -value, row))
    row, item, value = row[order], item[order], value[order]
    lengths = np.bincount(row, minlength=n_items)
    place = np.arange(len(row)) - (np.cumsum(lengths) - lengths)[row]
    found = hop.blank(n_items)
    first = place < found[HOP_ITEMS].shape[1]
    found[HOP_ITEMS][row[first], place[first]] = item[first]
    found[HOP_VALUES][row[first], place[first]] = value[first]
    return found


def _sparse(sums: Leaf, n_items: int) -> SparseRows:
    """Return a sum over pairs as a sparse matrix; a sum from single devices is dense."""
    if isinstance(sums, sp.csr_array):
        return sums
    return sp.csr_array(np.asarray(sums, np.float64).reshape(n_items, n_items))
