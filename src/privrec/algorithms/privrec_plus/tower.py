"""The history tower for many people: its initial values, and how it ranks items on a device."""

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
"""The bias of items without a vector is below this. Chosen by hand: far below any score."""
_HAIR = 1e-6
"""The largest bias of an item with a vector. Chosen by hand: so small that it only breaks ties."""


def blank(layout: Layout, *, rank: int, dislikes: bool) -> dict[str, Floats]:
    """Return a tower that scores all items alike; with `rank` 0, vectors of catalogue size."""
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
    """Return the bias that orders items by popularity where the person's history gives a tie.

    Items that were not kept have no vector. They come after all others, the most popular first.
    """
    # By rank in popularity, not by popularity: near -1000, float32 resolves integers well, but
    # not small differences.
    bias = _UNKNOWN - rankdata(-popularity, "min")
    bias[kept] = _HAIR * popularity[kept] / max(float(np.max(np.abs(popularity), initial=0)), 1e-12)
    return np.asarray(bias, np.float32)


def history_scorer(tower: Arrays, layout: Layout, *, adapted: bool = True) -> Scorer:
    """Return a scorer: own items first, then the tower's scores from the data on the device.

    If `adapted` is false, likes and dislikes are ignored: people with the same features get the
    same list.
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
