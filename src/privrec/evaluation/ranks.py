"""The ranks of many people's held-out likes at once (spec section 6).

Ties get the middle rank, which may be fractional. Figures ask for the first `DEPTH` places alone.
So likes are compared with the best scores of a row alone; no row is sorted, and a rank beyond is
infinite.
"""

from typing import NamedTuple

import numpy as np

from privrec.core.scorer import Entries, Scores, at_least, bound, first_of
from privrec.data.clients import Clients, is_in, ranges
from privrec.evaluation.metrics import DEPTH, Ranks
from privrec.types import F64, BoolArray, IntArray


class Rows(NamedTuple):
    """Whose each row of a table is, and in which row each tested line is ranked.

    A person has one row for all of her tested lines, or one for each of them.
    """

    person: IntArray
    of_line: IntArray


class _Likes(NamedTuple):
    """The distinct tested items of each person: one entry each, those of a person side by side.

    `pair` is person · n_items + item; `of_line` is the entry of each tested line.
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

    The same people, in the same order, are in `kept`, `hidden` and `tested` (`protocols.Held`).
    Candidates are all items that are neither kept nor hidden; with `compete` the hidden ones too,
    so that held-out items compete with each other. If `own_first`, items that a person likes in
    `kept` rank before all others. A score that is not a number ranks last.
    """
    n_items = table.shape[1]
    scores = _comparable(table)
    likes = _likes_of(tested, n_items)
    # One entry for each like in each row of its person.
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
    # No two likes have the same place, because nDCG could then exceed 1. If m likes tie with each
    # other and with n others, they get the average places of m random ones among the m + n.
    place = among.place + above + equal * (among.place - among.above) / (among.tied + 1)
    first = np.cumsum(sizes) - sizes
    person = tested.owner
    entry = first[rows.of_line] + likes.of_line - likes.start[person]
    new = ~known[likes.of_line]
    listed = _listed(best, least, shown)
    return Ranks(person, rank[entry], new, entry_row, place, rows.person, listed)


_OWN_BONUS = 1e6
"""What is added to the score of an own item, in float64: in float32 close ones would tie."""


def _comparable(table: Scores) -> Scores:
    """Return a copy in which everything can be compared, and is above minus infinity.

    What is not a number becomes the smallest one, minus infinity the one above it.
    """
    scores = np.array(table, order="C")  # a table of equal rows would keep another order
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
    """Return the pairs sorted, each once; `np.unique` takes several times as long."""
    pairs = np.sort(pairs)
    return np.asarray(pairs[np.diff(pairs, prepend=-1) != 0])


def _likes_of(tested: Clients, n_items: int) -> _Likes:
    pair, of_line = np.unique(_pairs(tested, n_items), return_inverse=True)
    size = np.bincount(pair // n_items, minlength=len(tested))
    return _Likes(pair, of_line.reshape(-1), np.cumsum(size) - size, size)


def _entries(scores: Scores, rows: Rows, pairs: IntArray) -> Entries:
    """Return the entries of these (person, item) pairs in all rows of the person."""
    row, item = _cells(scores, rows, pairs)
    return Entries(row, item, scores[row, item])


def _leave_out(scores: Scores, rows: Rows, pairs: IntArray) -> None:
    """Set the scores of these (person, item) pairs to minus infinity in all rows of the person."""
    scores[_cells(scores, rows, np.sort(pairs))] = -np.inf


def _cells(scores: Scores, rows: Rows, pairs: IntArray) -> tuple[IntArray, IntArray]:
    """Return the cells of these (person, item) pairs, which are sorted, in all of her rows."""
    n_items = scores.shape[1]
    size = np.bincount(pairs // n_items, minlength=int(rows.person.max(initial=-1)) + 1)
    start = np.cumsum(size) - size
    sizes = size[rows.person]
    row = np.repeat(np.arange(len(rows.person)), sizes)
    return row, pairs[ranges(start[rows.person], sizes)] % n_items


def _rivals(best: Entries, least: Scores, row: IntArray, own: F64) -> tuple[F64, F64]:
    """Return for each own score how many of the best of its row are above it, and how many equal.

    Where at least `DEPTH` are above, they may be infinitely many.
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
    """Return the `DEPTH` best items of each row among both, best first; -1 where there are fewer.

    Equal ones are in the order of the catalogue.
    """
    near = shown.score >= least[shown.row]
    row = np.concatenate([best.row, shown.row[near]])
    item = np.concatenate([best.item, shown.item[near]])
    score = np.concatenate([best.score, shown.score[near]])
    return first_of(Entries(row, item, score), len(least), DEPTH)[0]


_COMPARED = 2**21
"""Comparisons at a time: a few megabytes. Chosen by hand."""


def _padded(entries: Entries, rows: int) -> Scores:
    """Return the scores of each row side by side, filled up with minus infinity."""
    row, score = entries.row, entries.score
    size = np.bincount(row, minlength=rows)
    padded = np.full((rows, max(1, int(size.max(initial=0)))), -np.inf, score.dtype)
    padded[row, np.arange(len(row)) - (np.cumsum(size) - size)[row]] = score
    return padded


class _Standings(NamedTuple):
    """How each entry stands among the entries of its row, best first.

    `place` from 1 on, in the order given where they tie; how many are `above`; how many `tied`,
    itself too; and how many of those that are candidates are above or equal, without itself.
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
