"""The best items of each row of scores, selected and not sorted; numpy alone, as on a phone."""

import numpy as np

from privrec.core.scorer import Scores
from privrec.types import IntArray


def top_items(scores: Scores, top: int) -> tuple[IntArray, Scores]:
    """Return the `top` best items of each row, best first, and their scores: (rows, top) each.

    Items of the same score are in the order of the catalogue. What is not a number counts as minus
    infinity. Whoever leaves items out gives them that score, and ignores it here.

    >>> items, scores = top_items(np.array([[0.5, 0.9, 0.5, -np.inf]]), 2)
    >>> items.tolist(), scores.tolist()
    ([[1, 0]], [[0.9, 0.5]])
    """
    scores = np.where(np.isnan(scores), -np.inf, scores).astype(scores.dtype, copy=False)
    n_items = scores.shape[1]
    top = min(top, n_items)
    chosen = np.argpartition(scores, n_items - top, axis=1)[:, n_items - top :]
    least = np.take_along_axis(scores, chosen, 1).min(axis=1, keepdims=True)
    # Of items that tie for the last place, any may have been selected: take the first ones.
    for row in np.flatnonzero(((scores >= least).sum(1) > top) & (least[:, 0] > -np.inf)):
        above = np.flatnonzero(scores[row] > least[row])
        equal = np.flatnonzero(scores[row] == least[row])
        chosen[row] = np.concatenate([above, equal[: top - len(above)]])
    values = np.take_along_axis(scores, chosen, 1)
    order = np.lexsort((chosen, -values), axis=1)
    return np.take_along_axis(chosen, order, 1), np.take_along_axis(values, order, 1)
