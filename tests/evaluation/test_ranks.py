"""The ranks of many people at once, against a loop over people, lines and candidates."""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_metrics import clients

from privrec.core import scorer as scorer_module
from privrec.core.scorer import TableScorer
from privrec.evaluation import ranks
from privrec.evaluation.metrics import Ranks
from privrec.evaluation.protocols import Protocol
from privrec.evaluation.ranks import Rows, rank_table
from protocol_toys import everybody, items, report_of, returning


@dataclass
class Person:
    """Scores (one list, or one for each line), and her items."""

    lists: list[list[float]]
    kept: list[int]
    dislikes: list[int]
    tested: list[int]
    hidden: list[int]


@st.composite
def groups(draw: st.DrawFn) -> list[Person]:
    """A few people over the same catalogue, with few different scores, so that many tie."""
    n_items = draw(st.integers(2, 12))
    item = st.integers(0, n_items - 1)
    score = st.sampled_from([0.0, 1.0, 2.0, 3.0, -math.inf, math.nan, math.inf])
    people = []
    for _ in range(draw(st.integers(1, 4))):
        tested = draw(st.lists(item, min_size=1, max_size=5))
        lists = draw(st.sampled_from([1, len(tested)]))
        people.append(
            Person(
                lists=draw(
                    st.lists(
                        st.lists(score, min_size=n_items, max_size=n_items),
                        min_size=lists,
                        max_size=lists,
                    )
                ),
                kept=draw(st.lists(item, max_size=4)),
                dislikes=draw(st.lists(item, max_size=2)),
                tested=tested,
                hidden=[*tested, *draw(st.lists(item, max_size=3))],
            )
        )
    return people


def worth(person: Person, row: int, item: int, own_first: bool) -> tuple[float, float]:
    """What orders items: not a number comes last, then minus infinity."""
    score = person.lists[row][item] + 1e6 * (own_first and item in person.kept)
    return (0, 0) if math.isnan(score) else (1, score)


def slow(
    person: Person, *, compete: bool, own_first: bool
) -> tuple[list[float], list[list[float]]]:
    """Return the rank of each line, and the places in each list, one candidate at a time."""
    n_items = len(person.lists[0])
    away = {*person.kept, *person.dislikes, *([] if compete else person.hidden)}
    found, places = [], []
    for line, item in enumerate(person.tested):
        row = line if len(person.lists) > 1 else 0
        mine, rank = worth(person, row, item, own_first), 1.0
        for other in range(n_items):
            if other != item and other not in away:
                theirs = worth(person, row, other, own_first)
                rank += (theirs > mine) + 0.5 * (theirs == mine)
        found.append(rank)
    likes = set(person.tested)
    for row in range(len(person.lists)):
        listed = [i for i in range(n_items) if i in likes or i not in away]
        value = {i: worth(person, row, i, own_first) for i in listed}
        own: list[float] = []
        for each in sorted({value[i] for i in likes}, reverse=True):
            mine_here = sum(value[i] == each for i in likes)
            ahead, tied = (
                sum(v > each for v in value.values()),
                sum(v == each for v in value.values()),
            )
            own += [ahead + n * (tied + 1) / (mine_here + 1) for n in range(1, mine_here + 1)]
        places.append(own)
    return found, places


def best(person: Person, row: int, depth: int) -> list[int]:
    """Return what the device would show: its best items without those that it keeps."""
    n_items = len(person.lists[0])
    shown = [i for i in range(n_items) if i not in (*person.kept, *person.dislikes)]
    return sorted(shown, key=lambda item: worth(person, row, item, False), reverse=True)[:depth]


def fast(people: list[Person], *, compete: bool, own_first: bool) -> Ranks:
    liked = clients([person.kept for person in people])
    disliked = clients([person.dislikes for person in people], liked=False)
    kept = clients([[*items(liked, k), *items(disliked, k)] for k in range(len(people))])
    mask = [n < len(p.kept) for p in people for n in range(len(p.kept) + len(p.dislikes))]
    owner: list[int] = []
    of_line: list[int] = []
    for k, person in enumerate(people):
        several = len(person.lists) > 1
        of_line += [len(owner) + several * n for n in range(len(person.tested))]
        owner += [k] * len(person.lists)
    table = np.array([row for person in people for row in person.lists], np.float32)
    before = table.copy()
    rows = Rows(np.array(owner), np.array(of_line))
    found = rank_table(
        table,
        rows,
        kept=replace(kept, liked=np.array(mask, np.bool_)),
        hidden=clients([person.hidden for person in people]),
        tested=clients([person.tested for person in people]),
        compete=compete,
        own_first=own_first,
    )
    assert np.array_equal(table, before, equal_nan=True)
    return found


def same(found: npt.NDArray[np.float64], expected: list[float], depth: int) -> bool:
    """Whether ranks up to `depth` are equal, and the others beyond it."""
    return all(
        one == pytest.approx(other) if other <= depth else one > depth
        for one, other in zip(found.tolist(), expected, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("compete", [False, True])
@pytest.mark.parametrize("own_first", [False, True])
@pytest.mark.parametrize("depth", [1, 3, 30])
@settings(deadline=None, max_examples=60)
@given(people=groups())
def test_ranks_equal_a_slow_loop(
    people: list[Person], compete: bool, own_first: bool, depth: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "DEPTH", depth)
        patch.setattr(ranks, "_COMPARED", 3)
        patch.setattr(scorer_module, "_GROUPS", 5)
        found = fast(people, compete=compete, own_first=own_first)
    row = 0
    for k, person in enumerate(people):
        expected, places = slow(person, compete=compete, own_first=own_first)
        mine = found.person == k
        assert same(found.rank[mine], expected, depth)
        away = [*person.kept, *person.dislikes]
        assert found.new[mine].tolist() == [item not in away for item in person.tested]
        for number, own in enumerate(places):
            assert found.owner[row] == k
            assert same(np.sort(found.place[found.row == row]), own, depth)
            list_ = found.listed[row].tolist()
            assert [item for item in list_ if item >= 0] == best(person, number, depth)
            row += 1


def test_own_items_of_nearly_the_same_score_do_not_tie() -> None:
    # 1,000,000.001 and 1,000,000.002 are one number in 32 bits.
    table = np.array([[0.001, 0.002, 0.5, 0.0]], np.float32)
    own = clients([[0, 1]])
    rows = Rows(np.zeros(1, np.int64), np.zeros(2, np.int64))
    found = rank_table(table, rows, kept=own, hidden=own, tested=own, own_first=True)
    assert found.rank.tolist() == [1, 1]
    assert found.place.tolist() == [2, 1]


def test_figures_of_fixed_files_are_those_of_graph_recommenders() -> None:
    """Recall and NDCG as those papers compute them: sort, cut at k, and count.

    Items of the training file are out of the list. The ideal list has min(k, test items) hits.
    """
    federation = returning()
    draw = np.random.default_rng(3)
    table = np.stack([draw.permutation(45) for _ in range(federation.n_clients)]).astype(np.float32)
    place = {int(person): k for k, person in enumerate(federation.ids(everybody(federation)))}
    scorer = TableScorer(table=lambda kept: table[[place[int(person)] for person in kept.ids]])
    protocol = Protocol(name="files", candidates="not-kept", seed=1)
    view = protocol.testing(federation)
    report = report_of(
        view,
        everybody(federation),
        scorer,
        n_items=45,
        candidates=protocol.candidates,
        with_recall=True,
    )
    for k in (5, 20):
        recall, ndcg = [], []
        for person in everybody(federation):
            held = view(np.array([person]))
            train, test = set(items(held.kept)), set(items(held.tested))
            if not test:
                continue
            order = sorted(set(range(45)) - (train - test), key=lambda i: -table[person, i])
            hit = [item in test for item in order[:k]]
            recall.append(sum(hit) / len(test))
            ideal = sum(1 / math.log2(n + 2) for n in range(min(k, len(test))))
            ndcg.append(sum(h / math.log2(n + 2) for n, h in enumerate(hit)) / ideal)
        assert report.tested == len(recall) > 30
        assert report.recall[k] == pytest.approx(np.mean(recall))
        assert report.list_ndcg[k] == pytest.approx(np.mean(ndcg))
