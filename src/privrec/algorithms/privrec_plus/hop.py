"""One hop beside the low-rank part: which items people have together, counted pair by pair.

    h_j = Σ_i F_i^-½ · G_ij · F_j^-0.4  over a person's likes i,   G = Σ w·r·rᵀ

Here r is a person's likes, w = n^-a her weight and F the frequency of an item. The vectors of a
large catalogue blur what belongs to few items; a pair does not. h is standardised, as the scores by
vectors are, and added to them (`scoring.py: row_scorer`). G has no diagonal, and pairs that fewer
than `people` persons have are dropped, so that nothing of single persons is kept. Each item keeps
its strongest neighbours.

G is a sum over people, and sparse. Whoever sees one person's share, or which cells of the whole sum
are not 0, sees her items. Masks would have to cover all pairs of a catalogue, so a federation does
not have this (docs/privacy.md).
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
"""The sums Σ w·r·rᵀ and Σ r·rᵀ without their diagonals, (n_items²,) or as a sparse matrix. The
first is also the name of the phase."""
_FROM, _TO = -0.5, -0.4
"""Powers of the frequency of a liked item, and of the item that is scored. Chosen on held-out
lines of three benchmarks."""


# --- the device's half -------------------------------------------------------------------------


def likes_of(people: Clients, layout: Layout) -> SparseRows:
    """Return people's likes as rows (people, n_items); empty for whoever has too many."""
    likes = sp.csr_array(rows_of(people, layout)[:, : layout.n_items])
    few = np.diff(likes.indptr) <= LARGEST
    if not few.all():
        likes = sp.csr_array(sp.diags_array(few.astype(np.float32)) @ likes)
        likes.eliminate_zeros()
    return likes


def pairs_device(layout: Layout, hop: Hop) -> DeviceHalf:
    """Return the devices' half of the sum of pairs.

    The kernel adds up a cohort without the pairs that too few of it have: there may be too many of
    these for any memory.
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
    """Return Σ w·r·rᵀ and Σ r·rᵀ without diagonals, where at least `least` people have the pair.

    `likes` has the rows r (people, n_items), `weights` the w of each person.
    """
    of_items = sp.csr_array(likes.T)
    # The same cells in the same order, which a product with a diagonal matrix would not keep.
    shares = (of_items.data * weights[of_items.indices]).astype(np.float32)
    weighted = sp.csr_array((shares, of_items.indices, of_items.indptr), shape=of_items.shape)
    work = of_items @ np.diff(likes.indptr)
    ends = np.concatenate([[0], np.cumsum(work)]).astype(np.int64)
    # An item that nobody likes takes no work, so the last ones may be in no part.
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
    """Return counts and sums of the items from `start` on, where a count is `least` or more.

    Both have the same cells in the same order, because all weights are above 0.
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

    `frequency` is that of each item. Where an item has fewer neighbours, the rest has value 0.
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
    """Return a sum over pairs as a sparse matrix; one that was added up person by person is not."""
    if isinstance(sums, sp.csr_array):
        return sums
    return sp.csr_array(np.asarray(sums, np.float64).reshape(n_items, n_items))
