"""The history tower: a person's row pools to a vector on her device, and meets every item's.

    h = Σ like_i + Σ dislike_i + Σ feature vectors,   score_v = h · out_v + bias_v

The blocks named `history/…` have a vector for each column of a row; `items/out` has one for each
item and is left out where vectors are as long as the catalogue: then h has the scores themselves.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from privrec.data.federation import Clients
from privrec.evaluation.ranking import Scorer
from privrec.evaluation.references import own_first
from privrec.history.rows import DISLIKES, LIKES, Layout, rows_of, without_items

Floats = npt.NDArray[np.float32]
Arrays = Mapping[str, Floats]

OUT, BIAS, POPULARITY = "items/out", "items/bias", "items/popularity"
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
    order = popularity / max(float(np.max(np.abs(popularity), initial=0)), 1e-12)
    bias = _UNKNOWN + order
    bias[kept] = _HAIR * order[kept]
    return bias.astype(np.float32)


def history_scorer(tower: Arrays, layout: Layout, *, adapted: bool = True) -> Scorer:
    """Return own items first, then the tower's scores, computed from what is on the device.

    Not `adapted`, a device leaves out what its person said about items: all people of the same
    features get the same list.
    """
    blocks = [tower.get(name) for name in layout.names]
    width = tower[LIKES].shape[1]
    inside = np.concatenate(
        [
            np.zeros((size, width), np.float32) if block is None else block
            for block, size in zip(blocks, layout.sizes, strict=True)
        ]
    )
    out = tower.get(OUT)

    def score(first: Clients) -> Floats:
        rows = rows_of(first, layout)
        hidden = (rows if adapted else without_items(rows, layout)) @ inside
        scores: Floats = hidden if out is None else hidden @ out.T
        return scores + tower[BIAS]

    if adapted:
        return own_first(layout.n_items, score)

    def alike(first: Clients, lines: Clients) -> Iterator[Floats]:
        del lines
        table = score(first)
        for k in range(len(first)):
            yield table[k : k + 1]

    return alike
