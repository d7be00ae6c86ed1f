"""Hits, nDCG and recall of each person from ranks (spec section 6), and means over people."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from privrec.data.text import brief
from privrec.types import F64, BoolArray, IntArray

DEPTH = 30
"""Ranks up to this number are exact; larger ones may be infinite."""
KS = (5, 10, 20, DEPTH)


class Ranks(NamedTuple):
    """The ranks of some people's held-out likes.

    `person`, `rank` and `new` have one entry for each tested line: the position of its person, its
    rank among the candidates and itself, and whether the device lacks the item. `row` and `place`
    have one entry for each distinct like of a person in each of her lists: the row of the list, and
    the like's position in it. `owner` has the person of each row. `listed`, shape (rows, `DEPTH`),
    is what the device would show: the best items of each row that are not on the device, best
    first, then -1.
    """

    person: IntArray
    rank: F64
    new: BoolArray
    row: IntArray
    place: F64
    owner: IntArray
    listed: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PeopleFigures:
    """The metrics of each tested person, shape (people, len(KS)).

    `hits` is the share of her lines with a rank <= k, and `new_only` the same for lines whose item
    is not on her device. `ndcg` is the paper's nDCG: 1 / log2(rank + 1) within the first k, with
    one like per list. `list_ndcg` is the usual nDCG of a whole list over her distinct likes; the
    ideal list has as many likes as the smaller of k and their number. `recall` is the share of her
    distinct likes in the first k of the list. If each line has its own list, `list_ndcg` and
    `recall` are means over her lists. `popular` is the share of her lines that are hits of this
    recommender and of popularity; NaN if popularity was not tested. `novelty` is the mean
    `surprise` of the first k items that her device lists. `head`, `middle` and `tail` are `hits` on
    the lines whose item is in that part of the catalogue (`parts_of`). These three and `new_only`
    are NaN without such lines.
    """

    hits: F64
    new_only: F64
    ndcg: F64
    list_ndcg: F64
    recall: F64
    popular: F64
    novelty: F64
    head: F64
    middle: F64
    tail: F64

    __repr__ = brief

    def take(self, chosen: BoolArray | IntArray) -> "PeopleFigures":
        """Return the metrics of some of the people, or of all people in another order."""
        return PeopleFigures(**{name: getattr(self, name)[chosen] for name in _NAMES})


_NAMES = tuple(PeopleFigures.__slots__)
PARTS = ("head", "middle", "tail")
"""The parts of a catalogue, from popular to rare."""


def parts_of(surprise: F64) -> IntArray:
    """Return the index in `PARTS` of each item; each part has about a third of the likes.

    `surprise` is -log2 of the share of people who like an item (`references.Fitted`). An item
    belongs to the head if the more popular items have less than a third of the likes, and so on.

    >>> parts_of(-np.log2(np.array([0.05, 0.4, 0.3, 0.15])))
    array([2, 0, 1, 2])
    """
    order = np.argsort(surprise, kind="stable")
    likes = 2.0 ** -surprise[order]
    before = np.cumsum(likes) - likes
    parts = np.empty(len(order), np.int64)
    parts[order] = np.minimum(len(PARTS) * before / max(float(likes.sum()), 1e-300), len(PARTS) - 1)
    return parts


def joined(parts: list[PeopleFigures]) -> PeopleFigures:
    """Return the metrics of all people of the parts, in that order."""
    nobody = np.zeros((0, len(KS)))
    return PeopleFigures(
        **{name: np.concatenate([nobody, *(getattr(p, name) for p in parts)]) for name in _NAMES}
    )


def figures_of(
    ranks: Ranks,
    people: int,
    ks: Sequence[int] = KS,
    *,
    popular: F64 | None = None,
    surprise: F64 | None = None,
    part: IntArray | None = None,
) -> PeopleFigures:
    """Return the metrics of each person from her ranks; each of the `people` has a tested line.

    Each k is at most `DEPTH`. `popular` has the ranks of the same lines by popularity, `surprise` a
    number for each item, whose mean over listed items is the novelty, and `part` for each line the
    index in `PARTS` of its item.
    """
    lists = len(ranks.owner)
    likes = np.bincount(ranks.row, minlength=lists)
    discount = 1 / np.log2(np.arange(2, likes.max(initial=0) + 2))
    best = np.concatenate([[0.0], np.cumsum(discount)])
    by_name: dict[str, list[F64]] = {name: [] for name in _NAMES}
    for k in ks:
        hit, new = ranks.rank <= k, ranks.new
        by_name["hits"].append(_means(hit, ranks.person, people))
        by_name["new_only"].append(_means(hit[new], ranks.person[new], people))
        by_name["ndcg"].append(_means(_gain(ranks.rank, k), ranks.person, people))
        gain = np.bincount(ranks.row, _gain(ranks.place, k), lists) / best[np.minimum(likes, k)]
        by_name["list_ndcg"].append(_means(gain, ranks.owner, people))
        share = _means(ranks.place <= k, ranks.row, lists)
        by_name["recall"].append(_means(share, ranks.owner, people))
        both = np.full(len(hit), np.nan) if popular is None else hit & (popular <= k)
        by_name["popular"].append(_means(both, ranks.person, people))
        by_name["novelty"].append(_novelty(ranks, people, k, surprise))
        for place, name in enumerate(PARTS):
            there = np.zeros(len(hit), np.bool_) if part is None else part == place
            by_name[name].append(_means(hit[there], ranks.person[there], people))
    return PeopleFigures(**{name: np.stack(columns, axis=1) for name, columns in by_name.items()})


def means(figures: F64) -> dict[int, float]:
    """Return the mean over people for each k, without people with NaN; NaN if nobody is left."""
    some = figures[~np.isnan(figures).any(axis=1)]
    return {k: float(some[:, n].mean()) if len(some) else math.nan for n, k in enumerate(KS)}


def shares_of_hits(figures: PeopleFigures) -> dict[int, float]:
    """Return for each k the share of the hits that popularity hits too; NaN without hits."""
    hits, both = means(figures.hits), means(figures.popular)
    return {k: both[k] / hits[k] if hits[k] > 0 else math.nan for k in KS}


def _novelty(ranks: Ranks, people: int, k: int, surprise: F64 | None) -> F64:
    if surprise is None:
        return np.full(people, np.nan)
    items = ranks.listed[:, :k]
    row, place = np.nonzero(items >= 0)
    novelty = _means(surprise[items[row, place]], row, len(items))
    known = ~np.isnan(novelty)
    return _means(novelty[known], ranks.owner[known], people)


def _gain(ranks: F64, k: int) -> F64:
    return np.where(ranks <= k, 1 / np.log2(ranks + 1), 0.0)


def _means(values: npt.NDArray[np.generic], group: IntArray, groups: int) -> F64:
    """Return the mean of the values in each group; NaN for an empty group."""
    total = np.bincount(group, values.astype(np.float64), groups)
    count = np.bincount(group, minlength=groups)
    return np.asarray(np.divide(total, count, out=np.full(groups, np.nan), where=count > 0))


MOST = 5
"""The largest number of groups. Chosen by hand: they fit on a screen."""
AT_LEAST = 20
"""The fewest people in a group, if there are enough. Chosen by hand: with fewer, the interval of a
share is wider than most differences."""


def by_items(items: IntArray) -> list[BoolArray]:
    """Return groups of people with similar numbers of items, as masks, from few items to many.

    `items` has the number of items on each person's device. People with the same number are in the
    same group, and the groups have about the same size.
    """
    left = len(items)
    if not left:
        return []
    goal = left / max(1, min(MOST, left // AT_LEAST))
    numbers, sizes = np.unique(items, return_counts=True)
    edges, begun = [int(numbers[0]) - 1], 0
    for number, size in zip(numbers.tolist(), sizes.tolist(), strict=True):
        begun, left = begun + size, left - size
        if begun >= goal and left >= min(AT_LEAST, goal):
            edges.append(number)
            begun = 0
    edges.append(int(numbers[-1]))
    return [(items > low) & (items <= high) for low, high in pairwise(edges)]
