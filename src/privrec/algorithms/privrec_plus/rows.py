"""Many people's rows at once, as a sparse matrix."""

import numpy as np
import scipy.sparse as sp

from privrec.algorithms.privrec_plus.entries import entries_of
from privrec.algorithms.privrec_plus.layout import Layout
from privrec.algorithms.privrec_plus.moments import SparseRows
from privrec.data.clients import Clients
from privrec.types import F64


def rows_of(clients: Clients, layout: Layout) -> SparseRows:
    """Return the people's rows, shape (people, layout.size)."""
    person, column, value = entries_of(clients, layout)
    rows = SparseRows(
        (value.astype(np.float32), (person, column)), shape=(len(clients), layout.size)
    )
    rows.sort_indices()
    return rows


def without_items(rows: SparseRows, layout: Layout) -> SparseRows:
    """Return the rows with all likes and dislikes removed."""
    known = np.arange(layout.size) >= layout.item_columns
    return sp.csr_array(rows @ sp.diags_array(known.astype(np.float32)))


def merged_items(rows: SparseRows, layout: Layout, dislike: float) -> SparseRows:
    """Return one column per item: 1 for a like, `dislike` for a dislike, added if both occur."""
    n = layout.n_items
    chosen = rows[:, :n].astype(np.float64)
    if layout.dislikes:
        chosen = chosen + dislike * rows[:, n : 2 * n].astype(np.float64)
    return sp.csr_array(chosen)


def activity_weights(rows: SparseRows, layout: Layout, power: float) -> F64:
    """Return n^-power for each person, where n is the number of her likes; 1 if there are none."""
    likes = np.asarray(rows[:, : layout.n_items].sum(1), np.float64)
    return np.asarray(np.maximum(likes, 1.0) ** -power)
