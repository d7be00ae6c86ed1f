"""The ranks of many people's held-out likes at once (spec section 6).

Tied items get the middle of their ranks, which may be a fraction. Metrics need only the first
`DEPTH` places, so each like is compared only with the best scores of its row, and no row is sorted.
A larger rank is infinite.
"""

from typing import NamedTuple

import numpy as np

from privrec.core.scorer import Entries, Scores, at_least, bound, first_of
from privrec.data.clients import Clients, is_in, ranges
from privrec.evaluation.metrics import DEPTH, Ranks
from privrec.types import F64, BoolArray, IntArray


class Rows(NamedTuple):
    """The person of each row of a table of scores, and the row in which each tested line is ranked.

    A person has one row for all of her tested lines, or one row for each line.
    """

    person: IntArray
    of_line: IntArray


class _Likes(NamedTuple):
    """The distinct tested items of each person, with the entries of a person next to each other.

    `pair` is person · n_items + item, `of_line` the entry of each tested line, `start` and `size`
    the first entry and the number of entries of each person.
    """

    pair: IntArray
    of_line: IntArray
    start: IntArray
    size: IntArray


def rank_table(
    table: Scores,
    rows: Rows,
    *,
    kept: Clients,
    hidden: Clients,
    tested: Clients,
    compete: bool = False,
    own_first: bool = False,
) -> Ranks:
    """Return the ranks of the people's held-out likes by a table of scores, shape (rows, n_items).

    `kept`, `hidden` and `tested` have the same people in the same order (`protocols.Held`).
    Candidates are all items that are neither kept nor hidden. With `compete`, hidden items are
    candidates too, so that held-out items compete with each other. With `own_first`, the items that
    a person likes in `kept` rank before all others. NaN scores rank last.
    """
    n_items = table.shape[1]
    scores = _comparable(table)
    likes = _likes_of(tested, n_items)
    sizes = likes.size[rows.person]
    entry_row = np.repeat(np.arange(len(rows.person)), sizes)
    like = ranges(likes.start[rows.person], sizes)
    own = np.asarray(scores[entry_row, likes.pair[like] % n_items], np.float64)
    if own_first:
        liked = kept.keep(kept.liked)
        own += _OWN_BONUS * is_in(likes.pair, np.sort(_pairs(liked, n_items)))[like]
    seen = np.sort(_pairs(kept, n_items))
    away = [likes.pair] if compete else [likes.pair, _pairs(hidden, n_items)]
    others = _distinct(np.concatenate(away))
    shown = _entries(scores, rows, others[~is_in(others, seen)])
    _leave_out(scores, rows, np.concatenate([seen, others]))
    least = bound(scores, DEPTH)
    best = at_least(scores, least)
    above, equal = _rivals(best, least, entry_row, own)
    known = is_in(likes.pair, seen)
    among = _standings(entry_row, own, ~known[like])
    rank = 1 + above + equal / 2
    if compete:
        rank += among.rivals_above + among.rivals_equal / 2
    # Two likes never have the same place, because nDCG could then exceed 1. If m likes tie with
    # each other and with n other items, they get the average places of m random items among these m
    # + n.
    place = among.place + above + equal * (among.place - among.above) / (among.tied + 1)
    first = np.cumsum(sizes) - sizes
    person = tested.owner
    entry = first[rows.of_line] + likes.of_line - likes.start[person]
    new = ~known[likes.of_line]
    listed = _listed(best, least, shown)
    return Ranks(person, rank[entry], new, entry_row, place, rows.person, listed)


_OWN_BONUS = 1e6
"""This is added to the score of an own item, in float64. In float32, close scores would tie."""


def _comparable(table: Scores) -> Scores:
    """Return a copy of the scores with NaN as the smallest finite number.

    Minus infinity becomes the next number above it.
    """
    scores = np.array(table, order="C")  # A broadcast table would keep another memory order.
    with np.errstate(invalid="ignore"):
        is_finite = bool(np.isfinite(scores.min(initial=0)))
    if not is_finite:
        least = np.finfo(scores.dtype).min
        scores[np.isneginf(scores)] = np.nextafter(least, scores.dtype.type(0))
        scores[np.isnan(scores)] = least
    return scores


def _pairs(clients: Clients, n_items: int) -> IntArray:
    return np.asarray(clients.owner * n_items + clients.item, np.int64)


def _distinct(pairs: IntArray) -> IntArray:
    """Return the distinct pairs, sorted; `np.unique` takes several times as long."""
    pairs = np.sort(pairs)
    return np.asarray(pairs[np.diff(pairs, prepend=-1) != 0])


def _likes_of(tested: Clients, n_items: int) -> _Likes:
    pair, of_line = np.unique(_pairs(tested, n_items), return_inverse=True)
    size = np.bincount(pair // n_items, minlength=len(tested))
    return _Likes(pair, of_line.reshape(-1), np.cumsum(size) - size, size)


def _entries(scores: Scores, rows: Rows, pairs: IntArray) -> Entries:
    row, item = _cells(scores, rows, pairs)
    return Entries(row, item, scores[row, item])


def _leave_out(scores: Scores, rows: Rows, pairs: IntArray) -> None:
    scores[_cells(scores, rows, np.sort(pairs))] = -np.inf


def _cells(scores: Scores, rows: Rows, pairs: IntArray) -> tuple[IntArray, IntArray]:
    """Return row and column of these sorted (person, item) pairs in all rows of the person."""
    n_items = scores.shape[1]
    size = np.bincount(pairs // n_items, minlength=int(rows.person.max(initial=-1)) + 1)
    start = np.cumsum(size) - size
    sizes = size[rows.person]
    row = np.repeat(np.arange(len(rows.person)), sizes)
    return row, pairs[ranges(start[rows.person], sizes)] % n_items


def _rivals(best: Entries, least: Scores, row: IntArray, own: F64) -> tuple[F64, F64]:
    """Return for each own score how many best scores of its row are above it, and how many equal.

    From `DEPTH` on, the number above may be infinite.
    """
    others_of = _padded(best, len(least))
    above, equal = np.empty(len(own)), np.empty(len(own))
    step = max(1, _COMPARED // others_of.shape[1])
    for part in range(0, len(own), step):
        some = slice(part, part + step)
        mine, others = own[some, None], others_of[row[some]]
        above[some] = (others > mine).sum(1)
        equal[some] = (others == mine).sum(1)
    above[own < least[row]] = np.inf
    return above, equal


def _listed(best: Entries, least: Scores, shown: Entries) -> IntArray:
    """Return the `DEPTH` best items of each row among `best` and `shown`, best first, then -1.

    Items with equal scores are in the order of the catalogue.
    """
    near = shown.score >= least[shown.row]
    row = np.concatenate([best.row, shown.row[near]])
    item = np.concatenate([best.item, shown.item[near]])
    score = np.concatenate([best.score, shown.score[near]])
    return first_of(Entries(row, item, score), len(least), DEPTH)[0]


_COMPARED = 2**21
"""The number of comparisons at a time: a few megabytes. Chosen by hand."""


def _padded(entries: Entries, rows: int) -> Scores:
    """Return the scores as a matrix with one line per row, filled up with minus infinity."""
    row, score = entries.row, entries.score
    size = np.bincount(row, minlength=rows)
    padded = np.full((rows, max(1, int(size.max(initial=0)))), -np.inf, score.dtype)
    padded[row, np.arange(len(row)) - (np.cumsum(size) - size)[row]] = score
    return padded


class _Standings(NamedTuple):
    """The standing of each entry among the entries of its row, best first.

    `place` counts from 1; tied entries keep their given order. `above` entries have a higher score,
    and `tied` entries, with the entry itself, the same score. `rivals_above` and `rivals_equal`
    count only other entries that are candidates.
    """

    place: IntArray
    above: IntArray
    tied: IntArray
    rivals_above: IntArray
    rivals_equal: IntArray


def _standings(row: IntArray, own: F64, candidate: BoolArray) -> _Standings:
    count = len(own)
    order = np.lexsort((-own, row))
    in_order, of_row = own[order], row[order]
    new_row = np.ones(count, np.bool_)
    new_row[1:] = of_row[1:] != of_row[:-1]
    new_tie = new_row.copy()
    new_tie[1:] |= in_order[1:] != in_order[:-1]
    index = np.arange(count)
    row_start = np.maximum.accumulate(np.where(new_row, index, 0))
    tie = np.cumsum(new_tie) - 1
    tie_start = np.flatnonzero(new_tie)
    tie_end = np.append(tie_start[1:], count)[: len(tie_start)]
    before = np.concatenate([[0], np.cumsum(candidate[order])])
    standing = np.empty((5, count), np.int64)
    standing[:, order] = (
        index - row_start + 1,
        tie_start[tie] - row_start,
        (tie_end - tie_start)[tie],
        before[tie_start[tie]] - before[row_start],
        before[tie_end[tie]] - before[tie_start[tie]] - candidate[order],
    )
    return _Standings(*standing)
