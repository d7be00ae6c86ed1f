"""How a device's list comes out of the history tower, for many people at once."""

from collections.abc import Iterator

from privrec.algorithms.privrec_plus.layout import Layout
from privrec.algorithms.privrec_plus.rows import rows_of, without_items
from privrec.algorithms.privrec_plus.scoring import Arrays, row_scorer
from privrec.core.scorer import Scorer
from privrec.data.clients import Clients
from privrec.evaluation.references import own_first
from privrec.types import F32


def history_scorer(tower: Arrays, layout: Layout, *, adapted: bool = True) -> Scorer:
    """Return a scorer: own items first, then the tower's scores from the data on the device.

    If `adapted` is false, likes and dislikes are ignored: people with the same features get the
    same list.
    """
    score_rows = row_scorer(tower, layout)

    def score(first: Clients) -> F32:
        rows = rows_of(first, layout)
        return score_rows(rows if adapted else without_items(rows, layout))

    if adapted:
        return own_first(layout.n_items, score)

    def alike(first: Clients, lines: Clients) -> Iterator[F32]:
        del lines
        table = score(first)
        for k in range(len(first)):
            yield table[k : k + 1]

    return alike
