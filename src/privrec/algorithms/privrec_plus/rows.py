"""Many people's rows at once, as a sparse matrix."""

import numpy as np
import scipy.sparse as sp

from privrec.algorithms.privrec_plus.entries import entries_of
from privrec.algorithms.privrec_plus.layout import Layout
from privrec.algorithms.privrec_plus.moments import SparseRows
from privrec.data.clients import Clients


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
    known = np.repeat([0.0, 0.0, *(1.0 for _ in layout.sizes[2:])], layout.sizes)
    return sp.csr_array(rows @ sp.diags_array(known.astype(np.float32)))
