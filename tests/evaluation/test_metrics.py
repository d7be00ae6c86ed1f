import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privrec.data.clients import Clients
from privrec.evaluation.metrics import (
    DEPTH,
    KS,
    Ranks,
    figures_of,
    joined,
    means,
)
from privrec.evaluation.ranks import Rows, rank_table

NAN, INF = math.nan, math.inf
Scores = npt.NDArray[np.float64]


def clients(people: Sequence[Sequence[int]], *, liked: bool = True) -> Clients:
    """Return people with these items."""
    items = np.array([item for own in people for item in own], np.int32)
    return Clients(
        ids=np.arange(len(people)),
        offsets=np.cumsum([0, *map(len, people)]),
        item=items,
        value=np.zeros(len(items), np.float32),
        liked=np.full(len(items), liked),
        time=np.zeros(len(items)),
        features={},
        context={},
    )


def rank(
    scores: list[list[float]],
    *,
    liked: list[int],
    first: list[int],
    second: list[int] | None = None,
) -> Ranks:
    lists, lines = len(scores), np.arange(len(liked))
    rows = Rows(np.zeros(lists, np.int64), lines if lists > 1 else lines * 0)
    return rank_table(
        np.array(scores, np.float64),
        rows,
        kept=clients([first]),
        hidden=clients([liked if second is None else second]),
        tested=clients([liked]),
    )


def with_ranks(*ranks: float, new: list[bool] | None = None) -> Ranks:
    nobody = np.zeros(len(ranks), np.int64)
    return Ranks(
        person=nobody,
        rank=np.array(ranks, np.float64),
        new=np.array([True] * len(ranks) if new is None else new),
        row=nobody,
        place=np.array(sorted(ranks), np.float64),
        owner=np.zeros(1, np.int64),
        listed=np.zeros((1, 0), np.int64),
    )


def lists_of(ranks: Ranks) -> list[list[float]]:
    return [sorted(ranks.place[ranks.row == row].tolist()) for row in range(len(ranks.owner))]


def mean_of(name: str, users: list[Ranks], k: int) -> float:
    figures = joined([figures_of(user, 1, (k,) * len(KS)) for user in users])
    return means(getattr(figures, name))[KS[0]]


def hits_at(users: list[Ranks], k: int) -> float:
    return mean_of("hits", users, k)


def new_hits_at(users: list[Ranks], k: int) -> float:
    return mean_of("new_only", users, k)


def ndcg_at(users: list[Ranks], k: int) -> float:
    return mean_of("ndcg", users, k)


def list_ndcg_at(users: list[Ranks], k: int) -> float:
    return mean_of("list_ndcg", users, k)


def test_ranks_by_hand() -> None:
    # Item 0 was in the first half, item 4 was rated low in the second: neither is a candidate.
    scores = [[9.0, 3.0, 5.0, 7.0, 8.0, 1.0, 4.0]]
    found = rank(scores, liked=[2, 5], first=[0], second=[2, 4, 5])
    # Candidates are 1, 3 and 6, with 3, 7 and 4. Item 2 (5) is behind item 3, item 5 (1) last.
    assert found.rank.tolist() == [2, 4]
    # The whole list is 3, 2, 6, 1, 5.
    assert lists_of(found) == [[2, 5]]


def test_ties_get_the_middle_rank() -> None:
    # One above, two equal: the like is 2nd, 3rd or 4th.
    found = rank([[7.0, 5.0, 5.0, 5.0, 1.0]], liked=[2], first=[])
    assert found.rank.tolist() == [3]
    # One equal: a half.
    assert rank([[5.0, 5.0]], liked=[0], first=[]).rank.tolist() == [1.5]
    # A half rank beyond k is no hit.
    assert hits_at([rank([[5.0, 5.0]], liked=[0], first=[])], 1) == 0


def test_a_model_that_says_nothing_is_in_the_middle() -> None:
    # 41 items, one of them the like: 40 candidates, rank 21, a hit at 30 and not at 20.
    user = rank([[0.0] * 41], liked=[7], first=[])
    assert user.rank.tolist() == [21]
    assert [hits_at([user], k) for k in KS] == [0, 0, 0, 1]


def test_scores_that_are_not_numbers_rank_last() -> None:
    table = [[NAN, 0.0, -1e300, -INF, INF]]
    assert rank(table, liked=[0], first=[]).rank.tolist() == [5]
    assert rank(table, liked=[4], first=[]).rank.tolist() == [1]
    # They do not change the ranks of others.
    assert rank([[1.0, NAN, NAN]], liked=[0], first=[]).rank.tolist() == [1]
    assert rank([[NAN] * 5], liked=[0], first=[]).rank.tolist() == [3]


def test_a_repeated_item_counts_once_in_the_list_and_each_time_in_hits() -> None:
    # Item 0 is liked on two lines: rank 1 both times; item 1 has rank 3 of the candidates 2, 3, 4.
    user = rank([[9.0, 6.0, 8.0, 7.0, 1.0]], liked=[0, 1, 0], first=[])
    assert user.rank.tolist() == [1, 3, 1]
    assert hits_at([user], 2) == pytest.approx(2 / 3)
    # The list 0, 2, 3, 1, 4 has the two likes in places 1 and 4.
    assert lists_of(user) == [[1, 4]]
    expected = (1 + 1 / math.log2(5)) / (1 + 1 / math.log2(3))
    assert list_ndcg_at([user], 5) == pytest.approx(expected)


def test_an_item_of_both_halves_is_ranked_with_the_candidates_but_is_not_new() -> None:
    user = rank([[3.0, 9.0, 5.0, 4.0]], liked=[1, 2], first=[1])
    assert user.rank.tolist() == [1, 1]
    assert user.new.tolist() == [False, True]


def test_hits_by_hand() -> None:
    users = [with_ranks(1, 5, 6, 30), with_ranks(31), with_ranks(10.5, 4)]
    # Per user, then over users: a person with many likes does not count for more.
    assert hits_at(users, 5) == pytest.approx((2 / 4 + 0 + 1 / 2) / 3)
    assert hits_at(users, 10) == pytest.approx((3 / 4 + 0 + 1 / 2) / 3)
    assert hits_at(users, 30) == pytest.approx((1 + 0 + 1) / 3)


def test_ndcg_by_hand() -> None:
    # 1 / log2(rank + 1): ranks 1, 3 and 7 give 1, 1/2 and 1/3.
    users = [with_ranks(1, 3, 7), with_ranks(3)]
    assert ndcg_at(users, 10) == pytest.approx(((1 + 1 / 2 + 1 / 3) / 3 + 1 / 2) / 2)
    assert ndcg_at(users, 5) == pytest.approx(((1 + 1 / 2) / 3 + 1 / 2) / 2)
    assert ndcg_at(users, 1) == pytest.approx((1 / 3 + 0) / 2)


def test_list_ndcg_by_hand() -> None:
    # Two likes at places 1 and 3 of a list; the best list has them at 1 and 2.
    ideal = 1 + 1 / math.log2(3)
    assert list_ndcg_at([with_ranks(1, 3)], 5) == pytest.approx((1 + 1 / 2) / ideal)
    # With k = 1 the best list shows one like, and so does this one.
    assert list_ndcg_at([with_ranks(1, 3)], 1) == 1
    assert list_ndcg_at([with_ranks(1, 3), with_ranks(2)], 1) == 0.5


def test_k_beyond_the_candidates_is_everything() -> None:
    user = rank([[1.0, 2.0, 3.0]], liked=[0], first=[])
    assert user.rank.tolist() == [3]
    assert hits_at([user], 1000) == 1
    assert list_ndcg_at([user], 1000) == pytest.approx(1 / math.log2(4))
    # No candidates at all: the like is alone, and first.
    assert rank([[1.0, 2.0]], liked=[0], first=[1]).rank.tolist() == [1]


def test_nobody_gives_no_number() -> None:
    for figure in (hits_at, ndcg_at, list_ndcg_at, new_hits_at):
        assert math.isnan(figure([], 5))
    assert math.isnan(new_hits_at([with_ranks(1, 2, new=[False, False])], 5))


def test_new_only_is_over_people_who_have_something_new() -> None:
    users = [
        with_ranks(1, 9, new=[False, True]),
        with_ranks(2, new=[False]),
        with_ranks(3, 9, 4, new=[True, True, False]),
    ]
    assert new_hits_at(users, 5) == pytest.approx((0 + 1 / 2) / 2)


def slow_ranks(
    table: Scores, liked: list[int], first: list[int], second: list[int]
) -> tuple[list[float], list[int]]:
    """Count, for each line, the candidates that beat it and those that tie with it."""
    candidates = [i for i in range(table.shape[1]) if i not in first and i not in second]
    ranks = []
    for line, item in enumerate(liked):
        scores = table[line if len(table) > 1 else 0]
        above = sum(1 for other in candidates if scores[other] > scores[item])
        equal = sum(1 for other in candidates if scores[other] == scores[item])
        # The mean of the first and the last place that the tie leaves open.
        ranks.append(((above + 1) + (above + equal + 1)) / 2)
    return ranks, candidates


Person = tuple[Scores, list[int], list[int], list[int]]


@st.composite
def people(draw: st.DrawFn, *, values: int) -> Person:
    n_items = draw(st.integers(3, 14))
    items = st.integers(0, n_items - 1)
    liked = draw(st.lists(items, min_size=1, max_size=5))
    disliked = draw(st.lists(items, max_size=3))
    first = draw(st.lists(items, max_size=4))
    n_lists = draw(st.sampled_from([1, len(liked)]))
    score = st.integers(0, values - 1)
    cells = draw(st.lists(score, min_size=n_lists * n_items, max_size=n_lists * n_items))
    table = np.array(cells, np.float64).reshape(n_lists, n_items)
    return table, liked, first, [*liked, *disliked]


@settings(deadline=None, max_examples=150)
@given(people(values=4))
def test_ranks_equal_a_slow_loop(person: Person) -> None:
    table, liked, first, second = person
    found = rank(table.tolist(), liked=liked, first=first, second=second)
    ranks, _ = slow_ranks(table, liked, first, second)
    assert found.rank.tolist() == ranks
    assert found.new.tolist() == [item not in first for item in liked]


@settings(deadline=None)
@given(people(values=4))
def test_one_list_equals_the_same_list_for_every_line(person: Person) -> None:
    table, liked, first, second = person
    once = rank(table[:1].tolist(), liked=liked, first=first, second=second)
    each = rank([table[0].tolist()] * len(liked), liked=liked, first=first, second=second)
    assert once.rank.tolist() == each.rank.tolist()
    for k in (1, 2, 3, 5, 30):
        assert list_ndcg_at([once], k) == pytest.approx(list_ndcg_at([each], k))


def slow_list_ndcg(scores: Scores, likes: set[int], candidates: list[int], k: int) -> float:
    """Sort the list, walk down its first k places, and divide by the best list's gain."""
    shown = sorted([*candidates, *likes], key=lambda item: -scores[item])
    gain = sum(1 / math.log2(n + 2) for n, item in enumerate(shown[:k]) if item in likes)
    ideal = sum(1 / math.log2(n + 2) for n in range(min(k, len(likes))))
    return gain / ideal


@settings(deadline=None)
@given(people(values=2), st.integers(1, 16), st.integers(0, 999))
def test_list_ndcg_equals_a_slow_loop(person: Person, k: int, seed: int) -> None:
    table, liked, first, second = person
    # Without ties there is one list to walk down.
    shuffle = np.random.default_rng(seed)
    table = np.stack([shuffle.permutation(table.shape[1]).astype(float) for _ in table])
    found = rank(table.tolist(), liked=liked, first=first, second=second)
    _, candidates = slow_ranks(table, liked, first, second)
    lists = [slow_list_ndcg(row, set(liked), candidates, k) for row in table]
    assert list_ndcg_at([found], k) == pytest.approx(sum(lists) / len(lists))


@settings(deadline=None, max_examples=150)
@given(people(values=3), st.integers(1, 16))
def test_no_figure_leaves_the_unit_interval(person: Person, k: int) -> None:
    # Likes that tie with each other, or that are each first in a list of their own, must not
    # share a place: nDCG would exceed 1.
    table, liked, first, second = person
    user = rank(table.tolist(), liked=liked, first=first, second=second)
    for figure in (hits_at, ndcg_at, list_ndcg_at):
        assert 0 <= figure([user], k) <= 1 + 1e-12


def test_likes_that_all_stand_first_make_a_perfect_list() -> None:
    tied = rank([[1.0] * 9 + [0.0] * 40], liked=list(range(9)), first=[])
    assert [list_ndcg_at([tied], k) for k in KS] == pytest.approx([1, 1, 1, 1])
    # Two moments, each with both likes on top, in another order.
    apart = rank([[2.0, 1.0, 0.0, 0.0], [1.0, 2.0, 0.0, 0.0]], liked=[0, 1], first=[])
    assert list_ndcg_at([apart], 5) == pytest.approx(1)


def test_tied_likes_stand_where_random_ones_would() -> None:
    # Two likes tie with two candidates. Over the six ways to place them, the first of the two
    # stands on average at (1+1+1+2+2+3)/6 = 5/3 and the second at (2+3+4+3+4+4)/6 = 10/3.
    user = rank([[5.0, 5.0, 5.0, 5.0, 9.0, 1.0]], liked=[0, 1], first=[4])
    assert lists_of(user)[0] == pytest.approx([5 / 3, 10 / 3])


def test_ks_are_not_beyond_what_is_ranked() -> None:
    assert max(KS) <= DEPTH
