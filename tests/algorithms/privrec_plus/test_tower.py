"""Ranking on the device: sums of vectors, own items first, items without a vector last."""

import jax
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from test_rows import LAYOUT, N_ITEMS, Line, Person, a_person, clients_of, slow_row

from privrec.algorithms.privrec_plus.rows import history_scorer, rows_of
from privrec.algorithms.privrec_plus.scoring import (
    BIAS,
    DISLIKES,
    LIKES,
    OUT,
    Layout,
    dense_rows,
    layout_of,
    row_scorer,
)
from privrec.algorithms.privrec_plus.softmax import fresh
from privrec.algorithms.privrec_plus.solve import bias_of, blank
from privrec.core.scorer import Scorer
from privrec.data.clients import Clients
from privrec.data.sources import load
from privrec.types import F64
from tiny import DATA

RANKS = pytest.mark.parametrize("rank", [0, 3])


def a_tower(rank: int, *, dislikes: bool = True) -> dict[str, npt.NDArray[np.float32]]:
    """Every vector is drawn at random; `rank` 0 has no items' vectors."""
    draw = np.random.default_rng(rank)
    empty = blank(LAYOUT, rank=rank, dislikes=dislikes)
    return {name: draw.normal(size=a.shape).astype(np.float32) for name, a in empty.items()}


def tables_of(scorer: Scorer, people: list[Person]) -> list[F64]:
    """Return each person's scores; the held-out lines are not used."""
    first = clients_of(people)
    nothing: Clients = first.keep(np.zeros(len(first.item), np.bool_))
    found = [np.asarray(table, np.float64) for table in scorer(first, nothing)]
    assert all(table.shape == (1, N_ITEMS) for table in found)
    return [table[0] for table in found]


def slow_scores(
    tower: dict[str, npt.NDArray[np.float32]], row: list[float]
) -> npt.NDArray[np.float64]:
    """One vector after another, then one item after another."""
    blocks = [
        (tower[name], size)
        if name in tower
        else (np.zeros((size, tower[LIKES].shape[1]), np.float32), size)
        for name, size in zip(LAYOUT.names, LAYOUT.sizes, strict=True)
    ]
    vectors = [block[k] for block, size in blocks for k in range(size)]
    hidden = np.zeros(tower[LIKES].shape[1])
    for value, vector in zip(row, vectors, strict=True):
        hidden += value * vector
    out = tower.get(OUT, np.eye(N_ITEMS))
    return np.array([hidden @ out[v] + tower[BIAS][v] for v in range(N_ITEMS)])


@RANKS
@pytest.mark.parametrize("dislikes", [True, False])
@settings(max_examples=60)
@given(people=st.lists(a_person, min_size=1, max_size=4))
def test_scores_are_those_of_a_slow_sum(rank: int, dislikes: bool, people: list[Person]) -> None:
    tower = a_tower(rank, dislikes=dislikes)
    scorer = history_scorer(tower, LAYOUT)
    assert scorer.own_first
    for person, table in zip(people, tables_of(scorer, people), strict=True):
        np.testing.assert_allclose(table, slow_scores(tower, slow_row(person)), atol=1e-3)


def test_a_blank_tower_has_the_shapes_and_ranks_everything_alike() -> None:
    tower = blank(LAYOUT, rank=3, dislikes=True)
    shapes = {name: (size, 3) for name, size in zip(LAYOUT.names, LAYOUT.sizes, strict=True)}
    shapes |= {OUT: (N_ITEMS, 3)}
    assert {name: array.shape for name, array in tower.items()} == {**shapes, BIAS: (N_ITEMS,)}
    wide = blank(LAYOUT, rank=0, dislikes=False)
    assert OUT not in wide
    assert DISLIKES not in wide
    assert wide[LIKES].shape == (N_ITEMS, N_ITEMS)
    for made in (tower, wide):
        (table,) = tables_of(history_scorer(made, LAYOUT), [Person(age="old")])
        assert table.tolist() == [0] * N_ITEMS


@RANKS
def test_who_likes_nothing_is_ranked_by_her_features_and_then_by_popularity(rank: int) -> None:
    popularity, everything = np.array([3.0, 9, 1, 7, 5]), np.arange(N_ITEMS)
    tower = {**a_tower(rank), BIAS: bias_of(popularity, everything)}
    scorer = history_scorer(tower, LAYOUT)
    old, disliking, unknown = tables_of(
        scorer, [Person(age="old"), Person(lines=[Line(item=1, liked=False)]), Person()]
    )
    np.testing.assert_allclose(old, slow_scores(tower, slow_row(Person(age="old"))), atol=1e-5)
    assert np.abs(old).max() > 0.1
    assert np.abs(disliking).max() > 0.1
    assert np.argsort(-unknown).tolist() == [1, 3, 4, 0, 2]


@RANKS
def test_not_adapted_a_device_leaves_out_what_was_said_about_items(rank: int) -> None:
    tower = a_tower(rank)
    lines = [Line(item=0, liked=True, place="home"), Line(item=3, liked=False, place="home")]
    other = [Line(item=4, liked=True, place="home")]
    scorer = history_scorer(tower, LAYOUT, adapted=False)
    assert not scorer.own_first
    one, two, elsewhere = tables_of(
        scorer,
        [
            Person(lines=lines, age="old"),
            Person(lines=other, age="old"),
            Person(lines=lines, age="young"),
        ],
    )
    assert one.tolist() == two.tolist()
    row = slow_row(Person(lines=lines, age="old"))
    np.testing.assert_allclose(
        one, slow_scores(tower, [0.0] * 2 * N_ITEMS + row[2 * N_ITEMS :]), atol=1e-5
    )
    assert np.abs(one - elsewhere).max() > 0.1


@settings(max_examples=100)
@given(
    popularity=hnp.arrays(np.float64, 12, elements=st.integers(-50, 1000).map(float)),
    kept=st.lists(st.integers(0, 11), unique=True),
)
def test_what_has_no_vector_comes_last_the_popular_first(popularity: F64, kept: list[int]) -> None:
    """For any usual scores of the other items."""
    layout = Layout(n_items=12)
    draw = np.random.default_rng(0)
    tower = blank(layout, rank=2, dislikes=False)
    tower[LIKES][:] = draw.normal(size=(12, 2))
    tower[OUT][kept] = 10 * draw.normal(size=(len(kept), 2))
    tower[BIAS] = bias_of(popularity, np.array(kept, np.int64))
    first = clients_of([Person(lines=[Line(item=2, liked=True)])])
    (table,) = history_scorer(tower, layout)(first, first)
    scores = np.asarray(table)[0]
    rest = [v for v in range(12) if v not in kept and v != 2]
    ranked = [v for v in kept if v != 2]
    if rest and ranked:
        assert min(scores[ranked]) > max(scores[rest])
    for one in rest:
        for other in rest:
            if popularity[one] > popularity[other]:
                assert scores[one] > scores[other]


def test_popularity_only_orders_what_scores_the_same() -> None:
    bias = bias_of(np.array([0.0, 500, -20, 1e9]), np.arange(4))
    assert bias.dtype == np.float32
    assert np.abs(bias).max() <= 1e-6 * 1.0001
    assert bias[3] > bias[1] > bias[0] > bias[2]
    unknown, kept, other = bias_of(np.zeros(3), np.array([1])).tolist()
    assert unknown == other < -1000 < kept == 0
    # Items without a vector still get different biases, however popular the first one is.
    tail = bias_of(np.array([1e6, 40, 30, 20, 10]), np.zeros(0, np.int64))
    assert np.all(np.diff(tail) < 0)


def test_what_was_learned_says_nothing_about_who_has_no_history() -> None:
    """Without items: closed form from features, and popularity. With items: the learned part."""
    data = load(DATA)
    layout = layout_of(data.schema, data.n_items)
    draw = np.random.default_rng(0)
    tower = blank(layout, rank=3, dislikes=True)
    tower = {
        name: draw.normal(size=array.shape).astype(np.float32) for name, array in tower.items()
    }
    learned = fresh(jax.random.key(0), layout, 4, 1.0)
    both = {**tower, **{name: np.asarray(value) for name, value in learned.items()}}
    people = data.take(np.arange(6))
    nobody = people.keep(np.zeros(len(people.item), np.bool_))
    for clients, same in ((nobody, True), (people, False)):
        plain, more = (list(history_scorer(t, layout)(clients, clients)) for t in (tower, both))
        assert np.allclose(plain, more) == same
        # A dense row on a phone gets the same scores as among many sparse rows.
        score = row_scorer(both, layout)
        together = score(rows_of(clients, layout))
        for k, alone in enumerate(dense_rows(clients, layout)):
            np.testing.assert_allclose(score(alone[None])[0], together[k], rtol=1e-4, atol=1e-4)
