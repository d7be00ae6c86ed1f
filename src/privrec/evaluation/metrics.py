"""Hits, nDCG and recall of each person from ranks (spec section 6), and their means."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from privrec.types import BoolArray, IntArray

DEPTH = 30
"""Ranks up to here are exact; those beyond may be infinite."""
KS = (5, 10, 20, DEPTH)
Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]
_Z = 1.959964
"""Of a normal variable, 95 % lies within so many standard deviations."""


class Ranks(NamedTuple):
    """The ranks of some people's held-out likes.

    For each tested line: `rank` among the candidates and itself, `new` whether the device lacks the
    item, and whose line it is, `person`. For each distinct like of the person of each row, that is
    of each whole list that was made for her: its `place` in the list, and which `row` that is.
    `owner` says whose row is whose.
    """

    person: IntArray
    rank: Floats
    new: BoolArray
    row: IntArray
    place: Floats
    owner: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeopleFigures:
    """The figures of each person who was tested, shape (people, len(KS)).

    `hits` is the share of her lines with a rank <= k. `new_only` is the same over lines whose item
    is not on her device; NaN if there are none. `ndcg` is the paper's: 1 / log2(rank + 1) inside
    the first k, one like per list. `list_ndcg` is the usual one of a whole list over her distinct
    likes, the ideal over the smaller of k and their number. `recall` is the share of them in the
    first k of the list. The latter two are means over her lists where each line has one.
    """

    hits: Floats
    new_only: Floats
    ndcg: Floats
    list_ndcg: Floats
    recall: Floats

    def take(self, chosen: BoolArray) -> "PeopleFigures":
        """Return the figures of some of the people."""
        return PeopleFigures(**{name: getattr(self, name)[chosen] for name in _NAMES})


_NAMES = ("hits", "new_only", "ndcg", "list_ndcg", "recall")


def joined(parts: list[PeopleFigures]) -> PeopleFigures:
    """Return the figures of all people of the parts, in that order."""
    nobody = np.zeros((0, len(KS)))
    return PeopleFigures(
        **{name: np.concatenate([nobody, *(getattr(p, name) for p in parts)]) for name in _NAMES}
    )


def figures_of(ranks: Ranks, people: int, ks: Sequence[int] = KS) -> PeopleFigures:
    """Return the figures of each person from her ranks; all `people` have tested lines.

    Each k is at most `DEPTH`.
    """
    lists = len(ranks.owner)
    likes = np.bincount(ranks.row, minlength=lists)
    discount = 1 / np.log2(np.arange(2, likes.max(initial=0) + 2))
    best = np.concatenate([[0.0], np.cumsum(discount)])
    found: dict[str, list[Floats]] = {name: [] for name in _NAMES}
    for k in ks:
        hit, new = ranks.rank <= k, ranks.new
        found["hits"].append(_means(hit, ranks.person, people))
        found["new_only"].append(_means(hit[new], ranks.person[new], people))
        found["ndcg"].append(_means(_gain(ranks.rank, k), ranks.person, people))
        gain = np.bincount(ranks.row, _gain(ranks.place, k), lists) / best[np.minimum(likes, k)]
        found["list_ndcg"].append(_means(gain, ranks.owner, people))
        share = _means(ranks.place <= k, ranks.row, lists)
        found["recall"].append(_means(share, ranks.owner, people))
    return PeopleFigures(**{name: np.stack(columns, axis=1) for name, columns in found.items()})


def means(figures: Floats) -> dict[int, float]:
    """Return the mean over people by k, without those whose figure is NaN; NaN if all are."""
    some = figures[~np.isnan(figures).any(axis=1)]
    return {k: float(some[:, n].mean()) if len(some) else math.nan for n, k in enumerate(KS)}


def intervals(figures: Floats) -> dict[int, Interval]:
    """Return for each k an interval of the mean over people, each with a figure in [0, 1].

    It covers the true mean in about 95 % of samples: mean ± 1.96 · sd / √n, cut to [0, 1]. Two
    made-up people are in all three, one with the figure 0 and one with 1. Without them it would
    be empty if all figures are the same, and too short for few people and rare hits.
    """
    return {k: _interval(figures[:, n]) for n, k in enumerate(KS)}


def _interval(values: Floats) -> Interval:
    more = np.append(values, [0.0, 1.0])
    half = _Z * more.std() / math.sqrt(len(more))
    mean = more.mean()
    return max(0.0, float(mean - half)), min(1.0, float(mean + half))


def _gain(ranks: Floats, k: int) -> Floats:
    return np.where(ranks <= k, 1 / np.log2(ranks + 1), 0.0)


def _means(values: npt.NDArray[np.generic], group: IntArray, groups: int) -> Floats:
    """Return the mean of the values of each group; NaN for a group without any."""
    total = np.bincount(group, values.astype(np.float64), groups)
    count = np.bincount(group, minlength=groups)
    return np.asarray(np.divide(total, count, out=np.full(groups, np.nan), where=count > 0))
