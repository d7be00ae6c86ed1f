"""The history tower of many people: how it begins, and how a device's list comes out of it."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from privrec.algorithms.privrec_plus.layout import DISLIKES, Layout
from privrec.algorithms.privrec_plus.rows import rows_of, without_items
from privrec.algorithms.privrec_plus.scoring import BIAS, OUT, Arrays, Floats, row_scorer
from privrec.data.federation import Clients
from privrec.evaluation.ranking import Scorer
from privrec.evaluation.references import own_first

_UNKNOWN = -1e3
_HAIR = 1e-6


def blank(layout: Layout, *, rank: int, dislikes: bool) -> dict[str, Floats]:
    """Return a tower that ranks everything alike; `rank` 0 is as long as the catalogue."""
    width = rank or layout.n_items
    tower = {
        name: np.zeros((size, width), np.float32)
        for name, size in zip(layout.names, layout.sizes, strict=True)
        if dislikes or name != DISLIKES
    }
    if rank:
        tower[OUT] = np.zeros((layout.n_items, width), np.float32)
    return {**tower, BIAS: np.zeros(layout.n_items, np.float32)}


def bias_of(popularity: npt.NDArray[np.floating], kept: npt.NDArray[np.integer]) -> Floats:
    """Return what orders items that a person's history does not: how popular they are.

    Items that were not kept have no vector; they come after all others, the popular ones first.
    """
    # By place, not by popularity: far below zero 32 bits tell whole numbers apart, not shares.
    bias = _UNKNOWN - rankdata(-popularity, "min")
    bias[kept] = _HAIR * popularity[kept] / max(float(np.max(np.abs(popularity), initial=0)), 1e-12)
    return np.asarray(bias, np.float32)


def history_scorer(tower: Arrays, layout: Layout, *, adapted: bool = True) -> Scorer:
    """Return own items first, then the tower's scores, computed from what is on the device.

    Not `adapted`, a device leaves out what its person said about items: all people of the same
    features get the same list.
    """
    score_rows = row_scorer(tower, layout)

    def score(first: Clients) -> Floats:
        rows = rows_of(first, layout)
        return score_rows(rows if adapted else without_items(rows, layout))

    if adapted:
        return own_first(layout.n_items, score)

    def alike(first: Clients, lines: Clients) -> Iterator[Floats]:
        del lines
        table = score(first)
        for k in range(len(first)):
            yield table[k : k + 1]

    return alike
