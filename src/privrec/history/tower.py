"""The history tower: a person's row pools to a vector on her device, and meets every item's.

    h = Σ like_i + Σ dislike_i + Σ feature vectors,   score_v = h · out_v + bias_v

The blocks named `history/…` have a vector for each column of a row; `items/out` has one for each
item and is left out where vectors are as long as the catalogue: then h has the scores themselves.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from privrec.data.federation import Clients
from privrec.evaluation.ranking import Scorer
from privrec.evaluation.references import own_first
from privrec.history.learn import learned_of, logits_of
from privrec.history.rows import DISLIKES, LIKES, Layout, Rows, rows_of, without_items

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
    # By place, not by popularity: far below zero 32 bits tell whole numbers apart, not shares.
    bias = _UNKNOWN - rankdata(-popularity, "min")
    bias[kept] = _HAIR * popularity[kept] / max(float(np.max(np.abs(popularity), initial=0)), 1e-12)
    return np.asarray(bias, np.float32)


def closed_form(tower: Arrays, layout: Layout) -> Callable[[Rows], Floats]:
    """Return what scores all items for people's rows, without anything that was learned later."""
    width = tower[LIKES].shape[1]
    inside = np.concatenate(
        [
            tower.get(name, np.zeros((size, width), np.float32))
            for name, size in zip(layout.names, layout.sizes, strict=True)
        ]
    )
    out = tower.get(OUT)

    def score(rows: Rows) -> Floats:
        hidden = rows @ inside
        return np.array(hidden if out is None else hidden @ out.T, np.float32)

    return score


def history_scorer(tower: Arrays, layout: Layout, *, adapted: bool = True) -> Scorer:
    """Return own items first, then the tower's scores, computed from what is on the device.

    Not `adapted`, a device leaves out what its person said about items: all people of the same
    features get the same list.
    """
    simple, learned = closed_form(tower, layout), learned_of(tower)

    def score(first: Clients) -> Floats:
        rows = rows_of(first, layout)
        rows = rows if adapted else without_items(rows, layout)
        scores = simple(rows)
        # What was learned refines a history; for who has none it would be noise.
        some = np.flatnonzero(rows[:, : 2 * layout.n_items].sum(1))
        if learned and len(some):
            scores[some] = logits_of(learned, layout, rows[some], scores[some], np)
        return scores + tower[BIAS]

    if adapted:
        return own_first(layout.n_items, score)

    def alike(first: Clients, lines: Clients) -> Iterator[Floats]:
        del lines
        table = score(first)
        for k in range(len(first)):
            yield table[k : k + 1]

    return alike
