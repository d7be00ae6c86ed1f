"""Towers from rows: sensitivity to one person, the selected items, and what is learned."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from test_solve import slow_ridge

from privrec.algorithms.privrec_plus.rows import Frequent, Regression, SparseRows
from privrec.algorithms.privrec_plus.scoring import DISLIKES, LIKES, OUT, Arrays, Layout
from privrec.algorithms.privrec_plus.solve import exact_tower, frequent, noisy_tower
from privrec.algorithms.privrec_plus.sums import history_moments, popularity_of, taste_moments
from privrec.data.schema import Feature
from privrec.types import F64, IntArray

N = 6
LAYOUT = Layout(n_items=N)
CHOICES = hnp.arrays(np.bool_, 2 * N)
"""Liked or not, then disliked or not, for each item; the same item may be both."""
HOSTILE = {
    "everything liked": [1] * N + [0] * N,
    "everything liked and disliked": [1] * 2 * N,
    "one item": [0, 1] + [0] * (2 * N - 2),
    "one item, both": ([0, 1] + [0] * (N - 2)) * 2,
    "one dislike": [0] * N + [1] + [0] * (N - 1),
    "nothing": [0] * 2 * N,
}
anybody = CHOICES | st.sampled_from([np.array(row, np.bool_) for row in HOSTILE.values()])
populations = hnp.arrays(np.bool_, st.tuples(st.integers(0, 5), st.just(2 * N)))
dislikes = st.sampled_from([0.0, 1e-30, 0.3, 0.5, 1.0, 3.0, 1e30])
HOW = Regression(dislike=0.5, feature=0.2, context=0.7, dislike_target=0.6, l2=5.0, dropout=0.4)


def rows_from(matrix: npt.ArrayLike) -> SparseRows:
    return sp.csr_array(np.atleast_2d(np.asarray(matrix, np.float32)))


def in_two(matrix: npt.NDArray[np.bool_]) -> list[SparseRows]:
    """The second part may be empty."""
    return [rows_from(matrix[:1]), rows_from(matrix[1:])] if len(matrix) else []


def tripled(
    people: npt.NDArray[np.bool_], one: npt.NDArray[np.bool_], other: npt.NDArray[np.bool_]
) -> list[list[SparseRows]]:
    """The people, the same people plus one, and with one person replaced."""
    return [in_two(people), *(in_two(np.vstack([people, row])) for row in (one, other))]


def handed_over(
    parts: list[SparseRows], kept: IntArray, popularity: F64, dislike: float
) -> npt.NDArray[np.floating]:
    """Return the sum before noise."""
    return taste_moments(parts, LAYOUT, Frequent.of(popularity, kept), dislike)


# --- sensitivity to one person ---------------------------------------------------------------


@settings(max_examples=150)
@given(people=populations, one=anybody, other=anybody, dislike=dislikes)
def test_nobody_moves_popularity_by_more_than_one(
    people: npt.NDArray[np.bool_],
    one: npt.NDArray[np.bool_],
    other: npt.NDArray[np.bool_],
    dislike: float,
) -> None:
    without, added, replaced = (
        popularity_of(parts, LAYOUT, dislike) for parts in tripled(people, one, other)
    )
    assert np.linalg.norm(added - without) <= 1 + 1e-9
    assert np.linalg.norm(added - replaced) <= 2 + 1e-9


@settings(max_examples=150)
@given(
    people=populations,
    one=anybody,
    other=anybody,
    dislike=dislikes,
    kept=st.lists(st.integers(0, N - 1), min_size=1, unique=True),
    popularity=hnp.arrays(np.float64, N, elements=st.floats(-1e9, 1e9)),
)
def test_nobody_moves_the_published_matrix_by_more_than_one(
    people: npt.NDArray[np.bool_],
    one: npt.NDArray[np.bool_],
    other: npt.NDArray[np.bool_],
    dislike: float,
    kept: list[int],
    popularity: F64,
) -> None:
    """For any result of release one: popularity may be negative, and any items may be kept."""
    without, added, replaced = (
        handed_over(parts, np.array(kept), popularity, dislike)
        for parts in tripled(people, one, other)
    )
    assert without.shape == (len(kept) * (len(kept) + 1) // 2,)
    assert np.linalg.norm(added - without) <= 1 + 1e-9
    assert np.linalg.norm(added - replaced) <= 2 + 1e-9


@pytest.mark.parametrize("name", HOSTILE)
def test_everybody_adds_exactly_one_and_who_has_nothing_adds_nothing(name: str) -> None:
    person, popularity = rows_from(HOSTILE[name]), np.array([9.0, 1, 5, 0.1, 70, -3])
    total = handed_over([person], np.array([3, 0, 1]), popularity, 0.5)
    wanted = float(name != "nothing")
    assert np.linalg.norm(popularity_of([person], LAYOUT, 0.5)) == pytest.approx(wanted)
    assert np.linalg.norm(total) == pytest.approx(wanted)
    # A person without any of the kept items also adds nothing.
    alone = handed_over([rows_from([0, 1] + [0] * (2 * N - 2))], np.array([2]), popularity, 0.5)
    assert alone.tolist() == [0]


def test_popularity_is_the_sum_of_unit_vectors_of_a_slow_loop() -> None:
    draw = np.random.default_rng(0)
    people = draw.random((20, 2 * N)) < 0.3
    wanted = np.zeros(N)
    for row in people:
        chosen = [float(row[i]) + 0.4 * float(row[N + i]) for i in range(N)]
        length = math.hypot(*chosen)
        wanted += np.array(chosen) / (length or 1)
    found = popularity_of(in_two(people), LAYOUT, 0.4)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_the_published_matrix_is_that_of_a_slow_loop() -> None:
    draw = np.random.default_rng(0)
    people = draw.random((20, 2 * N)) < 0.3
    popularity, kept = np.array([9.0, 1, 5, 0.1, 70, -3]), np.array([4, 0, 5, 2])
    counted = [max(popularity[item], 1.0) for item in kept]
    powers = [(count / np.mean(counted)) ** -0.25 for count in counted]
    common = [count * power for count, power in zip(counted, powers, strict=True)]
    wanted = np.zeros(10)
    for row in people:
        chosen = [
            (float(row[item]) + 0.4 * float(row[N + item])) * power
            for item, power in zip(kept, powers, strict=True)
        ]
        # The component along popularity is already known and is removed.
        along = sum(x * y for x, y in zip(chosen, common, strict=True)) / math.hypot(*common) ** 2
        chosen = [x - along * y for x, y in zip(chosen, common, strict=True)]
        pairs = [chosen[i] * chosen[j] for i in range(4) for j in range(i, 4)]
        wanted += np.array(pairs) / (math.hypot(*pairs) or 1)
    np.testing.assert_allclose(handed_over(in_two(people), kept, popularity, 0.4), wanted, 1e-6)


# --- the selected items ----------------------------------------------------------------------


@settings(max_examples=150)
@given(
    popularity=hnp.arrays(
        np.float64,
        st.integers(1, 120),
        elements=st.floats(-5, 60) | st.sampled_from([0.0, 1.0, 20.0]),
    ),
    noise_scale=st.sampled_from([0.0, 0.5, 1.0, 4.0, 100.0]),
    most=st.sampled_from([1, 30, 70, 1000]),
)
def test_as_many_items_are_kept_as_stand_out_of_the_noise(
    popularity: F64, noise_scale: float, most: int
) -> None:
    found = frequent(popularity, noise_scale=noise_scale, most=most)
    order = sorted(range(len(popularity)), key=lambda item: (-popularity[item], item))
    count = 0
    for m in range(1, len(order) + 1):
        if popularity[order[m - 1]] >= 1.0 * noise_scale * math.sqrt(m):
            count = m
    count = min(max(count, 50), len(order), most)
    assert found.tolist() == order[:count]


# --- exact sums ------------------------------------------------------------------------------


def with_features() -> tuple[Layout, npt.NDArray[np.float32]]:
    """40 people who chose among 4 items and have a user's feature and a context's."""
    age = Feature(name="age", side="user", kind="categorical", values=("a", "b"))
    place = Feature(name="place", side="context", kind="categorical", values=("x", "y"))
    layout = Layout(n_items=3, users=(age,), contexts=(place,))
    draw = np.random.default_rng(2)
    items = draw.random((60, 6)) < [0.9, 0.5, 0.4, 0.2, 0.4, 0.3]
    ages = np.eye(2)[draw.integers(0, 2, 60)]
    share = draw.random((60, 1))
    return layout, np.hstack([items, ages, share, 1 - share]).astype(np.float32)


def tower_of(
    parts: list[SparseRows], layout: Layout, kept: IntArray, how: Regression, rank: int
) -> Arrays:
    """Return the tower that the server computes from the devices' sum."""
    return exact_tower(history_moments(parts, layout, kept, how), layout, kept, how, rank)


def test_the_exact_tower_is_the_weighted_ridge_of_a_slow_loop() -> None:
    layout, rows = with_features()
    likes = rows[:, :3].sum(1)
    weights = np.array([1 / math.sqrt(max(count, 1)) for count in likes], np.float64)
    scales = np.array([1, 1, 1, 0.5, 0.5, 0.5, 0.2, 0.2, 0.7, 0.7])
    wanted = scales[:, None] * slow_ridge(
        rows * scales,
        rows[:, :3] + 0.6 * rows[:, 3:6],
        weights,
        l2=5.0 * float(weights.mean()),
        dropout=0.4,
    )
    parts = [rows_from(rows[:13]), rows_from(rows[13:])]
    tower = tower_of(parts, layout, np.arange(3), HOW, 0)
    found = np.concatenate([tower[name] for name in layout.names])
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert OUT not in tower
    factors = tower_of(parts, layout, np.arange(3), HOW, 3)
    inside = np.concatenate([factors[name] for name in layout.names])
    np.testing.assert_allclose(inside @ factors[OUT].T, wanted, atol=1e-5)


@pytest.mark.parametrize("rank", [0, 2])
def test_the_order_of_people_and_of_items_does_not_matter(rank: int) -> None:
    layout, rows = with_features()
    order = np.random.default_rng(0).permutation(len(rows))
    one = tower_of([rows_from(rows)], layout, np.array([0, 2]), HOW, rank)
    parts = [rows_from(rows[order[:7]]), rows_from(rows[order[7:]])]
    other = tower_of(parts, layout, np.array([2, 0]), HOW, rank)
    np.testing.assert_allclose(scores(one, layout, rows), scores(other, layout, rows), atol=1e-5)


def test_dislikes_that_count_for_nothing_have_no_vectors() -> None:
    layout, rows = with_features()
    how = replace(HOW, dislike=0.0)
    found = tower_of([rows_from(rows)], layout, np.arange(3), how, 2)
    assert DISLIKES not in found
    swapped = rows.copy()
    swapped[:, 3:6] = 1 - swapped[:, 3:6]
    again = tower_of([rows_from(swapped)], layout, np.arange(3), how, 2)
    for name, array in found.items():
        np.testing.assert_array_equal(array, again[name])


def scores(tower: Arrays, layout: Layout, rows: npt.NDArray[np.float32]) -> F64:
    blocks = [
        tower.get(name, np.zeros((size, tower[LIKES].shape[1])))
        for name, size in zip(layout.names, layout.sizes, strict=True)
    ]
    hidden: F64 = np.asarray(rows, np.float64) @ np.concatenate(blocks)
    return np.asarray(hidden @ tower[OUT].T) if OUT in tower else hidden


# --- two tastes ------------------------------------------------------------------------------

TASTES = Layout(n_items=20)


def two_tastes(people: int) -> npt.NDArray[np.float32]:
    """Even people like 6 of the items 0 to 9 and dislike one, odd people of the items 10 to 19."""
    draw = np.random.default_rng(5)
    rows = np.zeros((people, 40), np.float32)
    for person in range(people):
        chosen = draw.choice(10, 7, replace=False) + 10 * (person % 2)
        rows[person, chosen[:6]] = 1
        rows[person, 20 + chosen[6]] = 1
    return rows


def tells_tastes_apart(tower: Arrays) -> bool:
    """A person who likes three items of a group gets the rest of it before the other group."""
    for first in (0, 10):
        row = np.zeros((1, 40), np.float32)
        row[0, [first + 1, first + 4, first + 8]] = 1
        (found,) = scores(tower, TASTES, row)
        rest = [first + k for k in (0, 2, 3, 5, 6, 7, 9)]
        others = [(first + 10) % 20 + k for k in range(10)]
        if min(found[rest]) <= max(found[others]):
            return False
    return True


@pytest.mark.parametrize("rank", [0, 2, 20])
def test_exact_sums_tell_two_tastes_apart(rank: int) -> None:
    parts = [rows_from(part) for part in np.split(two_tastes(120), 4)]
    how = replace(HOW, l2=20.0)
    assert tells_tastes_apart(tower_of(parts, TASTES, np.arange(20), how, rank))


@pytest.mark.parametrize("noise_scale", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("dislike", [0.0, 0.5])
def test_noisy_sums_tell_two_tastes_apart(noise_scale: float, dislike: float) -> None:
    tower = noised(two_tastes(600), noise_scale, dislike)
    assert tells_tastes_apart(tower)
    assert (DISLIKES in tower) == (dislike > 0)
    if dislike:
        np.testing.assert_allclose(tower[DISLIKES], dislike * tower[LIKES])


def test_under_too_much_noise_no_taste_is_made_up() -> None:
    """What is left is popularity: all scores lie along one list."""
    tower = noised(two_tastes(20), 50.0, 0.5)
    strength = np.linalg.svd(scores(tower, TASTES, two_tastes(20)), compute_uv=False)
    assert strength[1] < 0.3 * strength[0]


def test_whoever_likes_what_is_popular_and_no_more_adds_nothing() -> None:
    """A person whose likes differ from popularity adds norm 1; a rounding error adds nothing."""
    popularity, kept = np.array([3.0, 3, 3, 3, 0, 0]), np.arange(4)
    same = handed_over([rows_from([1, 1, 1, 1] + [0] * (2 * N - 4))], kept, popularity, 0.5)
    assert not np.any(same)
    more = handed_over([rows_from([1, 1, 1, 0] + [0] * (2 * N - 4))], kept, popularity, 0.5)
    assert np.linalg.norm(more) == pytest.approx(1)
    # Two likes and a dislike of weight 0.7, parallel to popularity: floats leave a small rest.
    crumb = rows_from([1, 1, *[0] * (N - 2), 0, 0, 1, *[0] * (N - 3)])
    for unit in (3.3, 7.1, 11.9):
        found = handed_over([crumb], np.arange(3), unit * np.array([1, 1, 0.7, 0, 0, 0]), 0.7)
        assert not np.any(found)


def test_where_no_taste_was_published_a_person_gets_her_part_of_popularity() -> None:
    popularity, kept = np.array([40.0, 2, 9, 1, 1, 5]), np.array([0, 2, 5, 1])
    tower = noisy_tower(
        np.zeros(10),
        LAYOUT,
        Frequent.of(popularity, kept),
        dislike=0.5,
        rank=3,
        noise_scale=1.0,
    )
    powers = (popularity[kept] / popularity[kept].mean()) ** -0.25
    common = popularity[kept] * powers / np.linalg.norm(popularity[kept] * powers)
    row = np.zeros((1, 2 * N), np.float32)
    row[0, 2] = row[0, N + 1] = 1  # Likes the second of those kept, dislikes the last.
    part = powers[1] * common[1] + 0.5 * powers[3] * common[3]
    np.testing.assert_allclose(scores(tower, LAYOUT, row)[0, kept], part * common, rtol=1e-5)


def noised(rows: npt.NDArray[np.float32], noise_scale: float, dislike: float) -> Arrays:
    parts = [rows_from(rows[:50]), rows_from(rows[50:])]
    popularity = popularity_of(parts, TASTES, dislike)
    items = Frequent.of(popularity, np.random.default_rng(1).permutation(20))
    total = taste_moments(parts, TASTES, items, dislike)
    return noisy_tower(
        total + noise_scale * np.random.default_rng(0).normal(size=total.shape),
        TASTES,
        items,
        dislike=dislike,
        rank=2,
        noise_scale=noise_scale,
    )
