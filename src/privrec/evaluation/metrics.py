"""Hits and nDCG from ranks (spec section 6). Ties get the middle rank, which may be fractional."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privrec.types import BoolArray, IntArray

Ranks = npt.NDArray[np.float64]
KS = (5, 10, 20, 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRanks:
    """The ranks of one test person's held-out likes, one entry for each line that is tested.

    `ranks`: among the candidates, plus itself. `new`: whether the device lacks the item.
    `list_ranks`, shape (lists, distinct likes): where her likes stand, best first, in each whole
    list that was made for her: one list, or one for each line.
    """

    ranks: Ranks
    list_ranks: Ranks
    new: BoolArray
    history: int


def rank_user(
    scores: npt.NDArray[np.floating],
    *,
    liked: IntArray,
    first_half: IntArray,
    second_half: IntArray,
    compete: bool = False,
) -> UserRanks:
    """Return the ranks of one person's held-out likes.

    `scores` has shape (1, n_items), or one row for each entry of `liked`, the held-out likes.
    Candidates are all items outside both halves; with `compete` those of the second half too, so
    that the held-out items compete with each other. A score that is not a number ranks last.

    >>> scores = np.array([[0.1, 0.9, 0.5, 0.7]])
    >>> halves = {"first_half": np.array([1]), "second_half": np.array([2])}
    >>> rank_user(scores, liked=np.array([2]), **halves).ranks.tolist()
    [2.0]
    """
    table = np.nan_to_num(np.asarray(scores, np.float64), nan=-np.inf, posinf=np.inf)
    candidate = np.ones(table.shape[1], np.bool_)
    candidate[first_half] = False
    if not compete:
        candidate[second_half] = False
    distinct = np.unique(liked)
    # In the whole list each like has its own place, and all other candidates stand between.
    other = candidate.copy()
    other[distinct] = False
    row = np.arange(len(liked)) if len(table) > 1 else np.zeros(len(liked), np.int64)
    own = table[row, liked]
    ranks, list_ranks = np.empty(len(liked)), np.empty((len(table), len(distinct)))
    for r in range(len(table)):
        lines = row == r
        others = np.sort(table[r, other])
        rivals = np.sort(table[r, candidate]) if compete else others
        above, equal = _count(rivals, own[lines])
        # Who is a candidate ties with itself, and that is no tie.
        ranks[lines] = 1 + above + (equal - candidate[liked[lines]]) / 2
        list_ranks[r] = _places(others, np.sort(table[r, distinct]))
    return UserRanks(
        ranks=ranks,
        list_ranks=list_ranks,
        new=~np.isin(liked, first_half),
        history=len(first_half) + len(second_half),
    )


def hits_at(users: Sequence[UserRanks], k: int) -> float:
    """Return Hits@k: the share of ranks <= k, averaged per user, then over users."""
    return _mean([float((user.ranks <= k).mean()) for user in users])


def new_hits_at(users: Sequence[UserRanks], k: int) -> float:
    """Return Hits@k over held-out likes that are not in the first half, for users with any."""
    return _mean([float((user.ranks[user.new] <= k).mean()) for user in users if user.new.any()])


def ndcg_at(users: Sequence[UserRanks], k: int) -> float:
    """Return the paper's nDCG@k: 1 / log2(rank + 1) inside the top k, one like per list."""
    return _mean([float(_gain(user.ranks, k).mean()) for user in users])


def list_ndcg_at(users: Sequence[UserRanks], k: int) -> float:
    """Return the usual nDCG@k of a whole list, over each user's distinct held-out likes.

    If a user has a list for each line, it is the mean over these lists.
    """
    return _mean([_list_ndcg(user.list_ranks, k) for user in users])


def recall_at(users: Sequence[UserRanks], k: int) -> float:
    """Return Recall@k: the share of a user's distinct held-out likes in the first k of her list.

    Averaged over her lists where she has one for each line, then over users.
    """
    return _mean([float((user.list_ranks <= k).mean()) for user in users])


def _list_ndcg(ranks: Ranks, k: int) -> float:
    ideal = _gain(np.arange(1, ranks.shape[1] + 1, dtype=np.float64), k).sum()
    return float(_gain(ranks, k).sum(1).mean() / ideal)


def _gain(ranks: Ranks, k: int) -> Ranks:
    return np.where(ranks <= k, 1 / np.log2(ranks + 1), 0.0)


def _places(others: npt.NDArray[np.float64], likes: npt.NDArray[np.float64]) -> Ranks:
    """Return the ranks of likes in one list with the others, best first; both are sorted.

    No two likes get the same rank, because nDCG could then exceed 1. If m likes tie with each
    other and with n others, they get the average ranks of m random places among the m + n. A
    single like gets the middle rank.
    """
    likes = likes[::-1]
    above, equal = _count(others, likes)
    ahead, tied = _count(likes[::-1], likes)
    place = np.arange(1, len(likes) + 1)
    return place + above + equal * (place - ahead) / (tied + 1)


def _count(
    ordered: npt.NDArray[np.float64], own: npt.NDArray[np.float64]
) -> tuple[IntArray, IntArray]:
    """Return for each own score how many of the sorted others are above it, and how many equal."""
    left = np.searchsorted(ordered, own, side="left")
    right = np.searchsorted(ordered, own, side="right")
    return len(ordered) - right, right - left


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
