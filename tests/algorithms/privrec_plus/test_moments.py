"""Sums over people and norms of contributions, against dense loops."""

import math

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privrec.algorithms.privrec_plus.rows import (
    SparseRows,
    add_squares,
    mirrored,
    row_lengths,
    sum_of_rows,
    to_length_one,
    triangle,
    triangle_lengths,
)
from privrec.types import F64

SIZE = 4
entries = st.sampled_from([0.0, 0.0, 0.0, 1.0, 0.5, 1.5, -2.0, 1e-8, 100.0])
people_of_any_number = st.integers(0, 6).flatmap(
    lambda people: st.tuples(
        hnp.arrays(np.float64, (people, SIZE), elements=entries),
        hnp.arrays(np.float64, people, elements=st.floats(0, 10)),
        st.lists(st.integers(0, people), max_size=3).map(sorted),
    )
)


def in_parts(rows: F64, weights: F64, cuts: list[int]) -> list[tuple[SparseRows, F64]]:
    """Some parts may be empty."""
    parts = zip([0, *cuts], [*cuts, len(rows)], strict=True)
    return [(sp.csr_array(rows[a:b]), weights[a:b]) for a, b in parts]


def sum_of_squares(
    parts: list[tuple[SparseRows, F64]], size: int, dtype: npt.DTypeLike = np.float64
) -> npt.NDArray[np.floating]:
    total = np.zeros((size, size), dtype)
    for rows, weights in parts:
        add_squares(total, rows, weights)
    return total


@pytest.mark.slow
@settings(max_examples=150)
@given(people=people_of_any_number)
def test_sums_are_those_of_a_slow_loop_in_any_parts(
    people: tuple[F64, F64, list[int]],
) -> None:
    rows, weights, cuts = people
    once, squares = np.zeros(SIZE), np.zeros((SIZE, SIZE))
    for row, weight in zip(rows, weights, strict=True):
        for i in range(SIZE):
            once[i] += weight * row[i]
            for j in range(SIZE):
                squares[i, j] += weight * row[i] * row[j]
    found = sum_of_rows(iter(in_parts(rows, weights, cuts)), SIZE)
    np.testing.assert_allclose(found, once, rtol=1e-9, atol=1e-9)
    doubles = sum_of_squares(in_parts(rows, weights, cuts), SIZE)
    assert doubles.dtype == np.float64
    np.testing.assert_allclose(doubles, squares, rtol=1e-9, atol=1e-9)
    singles = sum_of_squares(in_parts(rows, weights, cuts), SIZE, np.float32)
    assert singles.dtype == np.float32
    np.testing.assert_allclose(singles, squares, rtol=1e-5, atol=0.1)


def test_singles_are_as_good_as_their_bits() -> None:
    draw = np.random.default_rng(0)
    rows, weights = draw.random((300, 9)), draw.random(300)
    found = sum_of_squares(in_parts(rows, weights, [100, 101]), 9, np.float32)
    np.testing.assert_allclose(found, np.einsum("k,ki,kj->ij", weights, rows, rows), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("entries_each", [1, 2, 100])
def test_rows_of_few_and_of_many_entries_are_summed_alike(
    dtype: npt.DTypeLike, entries_each: int
) -> None:
    """Dense and sparse rows may use different code for the same sum, also within one call."""
    draw = np.random.default_rng(1)
    rows, weights = np.zeros((30, 200)), draw.random(30)
    for row in rows[:20]:
        row[draw.choice(200, entries_each, replace=False)] = draw.random(entries_each)
    rows[20:] = draw.random((10, 200))
    found = sum_of_squares(in_parts(rows, weights, [7, 20]), 200, dtype)
    wanted = sum(weight * np.outer(row, row) for row, weight in zip(rows, weights, strict=True))
    exact = 1e-12 if dtype is np.float64 else 1e-5
    np.testing.assert_allclose(found, wanted, rtol=exact, atol=exact)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@settings(max_examples=100)
@given(rows=hnp.arrays(np.float64, (3, SIZE), elements=entries))
def test_lengths_are_those_of_what_is_written_out(
    dtype: npt.DTypeLike, rows: npt.NDArray[np.float64]
) -> None:
    made = sp.csr_array(rows.astype(dtype))
    shares = [[row[i] * row[j] for i in range(SIZE) for j in range(i, SIZE)] for row in rows]
    np.testing.assert_allclose(
        triangle_lengths(made), [math.hypot(*share) for share in shares], rtol=1e-5
    )
    np.testing.assert_allclose(row_lengths(made), [math.hypot(*row) for row in rows], rtol=1e-5)


@settings(max_examples=100)
@given(rows=hnp.arrays(np.float64, (3, SIZE), elements=entries))
def test_a_share_gets_length_one_unless_it_is_empty(rows: npt.NDArray[np.float64]) -> None:
    made = sp.csr_array(rows)
    for row, once, twice in zip(
        rows,
        to_length_one(row_lengths(made)),
        to_length_one(triangle_lengths(made)),
        strict=True,
    ):
        wanted = pytest.approx(float(row.any()), rel=1e-9)
        assert np.linalg.norm(once * row) == wanted
        assert np.linalg.norm(triangle(twice * np.outer(row, row))) == wanted


def test_an_empty_person_weighs_nothing_and_warns_of_nothing() -> None:
    assert to_length_one(np.array([0.0, 2.0, 1e-200])).tolist() == [0.0, 0.5, 1e200]
    assert to_length_one(np.zeros(0)).tolist() == []


@given(half=hnp.arrays(np.float64, (5, 5), elements=st.floats(-1e9, 1e9)), size=st.integers(0, 5))
def test_a_triangle_has_all_of_a_symmetric_matrix_once(
    half: npt.NDArray[np.float64], size: int
) -> None:
    matrix = (half + half.T)[:size, :size]
    vector = triangle(matrix)
    assert vector.tolist() == [matrix[i, j] for i in range(size) for j in range(i, size)]
    np.testing.assert_array_equal(mirrored(vector, size), matrix)
    np.testing.assert_array_equal(triangle(mirrored(vector, size)), vector)


def test_what_is_mirrored_is_float64_whatever_was_published() -> None:
    found = mirrored(np.array([1, 2, 3], np.float32), 2)
    assert found.dtype == np.float64
    assert found.tolist() == [[1, 2], [2, 3]]
