"""From sums to towers: against least squares, exact decompositions and simulated noise."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy.linalg import subspace_angles

from privrec.algorithms.privrec_plus.rows import add_squares, rows_of
from privrec.algorithms.privrec_plus.scoring import Layout
from privrec.algorithms.privrec_plus.solve import denoised, regression, truncated
from privrec.data.sources import load
from privrec.errors import DataError
from privrec.evaluation.references import ease
from privrec.types import F64
from tiny import DATA

ITEMS, COLUMNS, PEOPLE = 4, 10, 80


def likes_and_more() -> tuple[F64, F64]:
    """Rows with likes, as many dislikes, and further columns; and people's weights."""
    draw = np.random.default_rng(0)
    rows = (draw.random((PEOPLE, COLUMNS)) < 0.4) * draw.choice([0.5, 1.0, 2.0], (1, COLUMNS))
    return rows, draw.uniform(0.2, 1, PEOPLE)


def slow_ridge(rows: F64, targets: F64, weights: F64, *, l2: float, dropout: float) -> F64:
    """One least-squares problem for each item, whose own column is left out of it."""
    found = np.zeros((rows.shape[1], targets.shape[1]))
    often = [sum(weights * column**2) for column in rows.T]
    for item in range(targets.shape[1]):
        others = [column for column in range(rows.shape[1]) if column != item]
        ridge = [math.sqrt(l2 + dropout / (1 - dropout) * often[column]) for column in others]
        root = np.sqrt(weights)
        stacked = np.vstack([root[:, None] * rows[:, others], np.diag(ridge)])
        wanted = np.concatenate([root * targets[:, item], np.zeros(len(others))])
        found[others, item] = np.linalg.lstsq(stacked, wanted, rcond=None)[0]
    return found


@pytest.mark.parametrize(("l2", "dropout"), [(0.5, 0.0), (20.0, 0.0), (0.5, 0.7), (3.0, 0.3)])
@pytest.mark.parametrize("also", [0.0, 0.6, 2.0])
def test_each_item_is_a_ridge_regression_on_all_columns_but_its_own(
    l2: float, dropout: float, also: float
) -> None:
    rows, weights = likes_and_more()
    squares = np.einsum("k,ki,kj->ij", weights, rows, rows).astype(np.float32)
    found = regression(squares, n_items=ITEMS, l2=l2, dropout=dropout, also=also)
    assert found.dtype == np.float32
    targets = rows[:, :ITEMS] + also * rows[:, ITEMS : 2 * ITEMS]
    wanted = slow_ridge(rows, targets, weights, l2=l2, dropout=dropout)
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert np.abs(np.diag(found)).max() < 1e-6
    assert np.abs(found).max() > 0.05


def test_items_alone_with_equal_weights_are_ease() -> None:
    data = load(DATA)
    people = np.arange(data.n_clients)
    rows = rows_of(data.take(people), Layout(n_items=data.n_items))[:, : data.n_items]
    squares = np.zeros((data.n_items, data.n_items), np.float32)
    add_squares(squares, rows, np.ones(len(people)))
    found = regression(squares, n_items=data.n_items, l2=7.0, dropout=0.0)
    # EASE adds at most 1e-6 of popularity, to order what scores the same.
    np.testing.assert_allclose(found, ease(7.0).fit(data, people)["weights"], atol=1e-5)


@pytest.mark.parametrize(
    "squares", [[[1, 1], [1, 1]], [[1, 0], [0, 0]], [[0, 0], [0, 0]], [[1, 2], [2, 1]]]
)
def test_columns_that_cannot_be_told_apart_ask_for_a_ridge(squares: list[list[float]]) -> None:
    with pytest.raises(DataError, match="cannot be told apart: raise `history_l2`"):
        regression(np.array(squares, np.float32), n_items=2, l2=0, dropout=0)
    found = regression(np.array(squares, np.float32), n_items=2, l2=5, dropout=0)
    assert np.isfinite(found).all()


def a_regression(decay: float) -> tuple[npt.NDArray[np.float32], F64]:
    """Weights whose strengths fall by powers of `decay`, and how often each column is seen."""
    draw = np.random.default_rng(3)
    left = np.linalg.qr(draw.normal(size=(90, 40)))[0]
    right = np.linalg.qr(draw.normal(size=(40, 40)))[0]
    often = 10 ** draw.uniform(-2, 4, 90)
    return ((left * decay ** np.arange(40)) @ right.T).astype(np.float32), often


@pytest.mark.parametrize("rank", [40, 64])
def test_factors_of_full_rank_are_the_whole_regression(rank: int) -> None:
    weights, often = a_regression(0.9)
    inside, outside = truncated(weights, often, rank)
    assert inside.shape == (90, 40)
    assert outside.shape == (40, 40)
    np.testing.assert_allclose(inside @ outside.T, weights, atol=1e-5)


@pytest.mark.parametrize("decay", [1.0, 0.95, 0.7])
@pytest.mark.parametrize("rank", [1, 5, 12])
def test_factors_of_lower_rank_are_nearly_as_near_as_can_be(decay: float, rank: int) -> None:
    """Frequent columns weigh more: errors are weighted by the fourth root of the square sum."""
    weights, often = a_regression(decay)
    inside, outside = truncated(weights, often, rank)
    assert inside.shape == (90, rank)
    assert outside.shape == (40, rank)
    power = often[:, None] ** 0.25
    error = np.linalg.norm((inside @ outside.T - weights) * power)
    strengths = np.linalg.svd(weights * power, compute_uv=False)
    optimal = math.sqrt((strengths[rank:] ** 2).sum())
    assert optimal * (1 - 1e-4) - 1e-5 <= error <= optimal * 1.01 + 1e-5


def test_without_the_weights_other_factors_would_be_nearest() -> None:
    weights, often = a_regression(1.0)
    inside, outside = truncated(weights, often, 5)
    alike = truncated(weights, np.ones(90), 5)
    power = often[:, None] ** 0.25
    error, other = (
        np.linalg.norm((made - weights) * power)
        for made in (inside @ outside.T, alike.inside @ alike.outside.T)
    )
    assert other > 1.1 * error


def test_columns_that_nobody_has_stay_finite() -> None:
    weights, often = a_regression(0.9)
    often[:50] = 0
    inside, outside = truncated(weights, often, 5)
    assert np.isfinite(inside).all()
    assert np.isfinite(outside).all()


# --- noise -----------------------------------------------------------------------------------


def symmetric_noise(m: int, scale: float, seed: int) -> F64:
    """One normal number for each entry of the upper triangle, mirrored."""
    half = np.triu(np.random.default_rng(seed).normal(scale=scale, size=(m, m)))
    return half + np.triu(half, 1).T


def directions(m: int, count: int, seed: int = 9) -> F64:
    found: F64 = np.linalg.qr(np.random.default_rng(seed).normal(size=(m, count)))[0]
    return found


@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
def test_of_noise_alone_next_to_nothing_is_kept(scale: float) -> None:
    for seed in range(5):
        inside, outside = denoised(symmetric_noise(150, scale, seed), noise_scale=scale, rank=64)
        assert inside.shape == outside.shape
        assert inside.shape[1] <= 2
        # Noise exceeds the edge only by chance, and such eigenvalues are shrunk.
        assert np.linalg.norm(inside) < 0.2


@pytest.mark.parametrize("scale", [0.1, 20.0])
def test_under_noise_the_true_directions_are_found(scale: float) -> None:
    m = 200
    truth = directions(m, 3)
    strengths = scale * math.sqrt(m) * np.array([5.0, 10.0, 20.0])
    squares = (truth * strengths) @ truth.T + symmetric_noise(m, scale, 0)
    inside, outside = denoised(squares, noise_scale=scale, rank=64)
    assert 3 <= inside.shape[1] <= 4
    strongest = np.argsort(np.linalg.norm(inside, axis=0))[-3:]
    found = outside[:, strongest]
    # Theory: cos² = 1 - (s√m / l)², 0.96 for the weakest.
    assert np.cos(subspace_angles(truth, found)).min() ** 2 > 0.94
    np.testing.assert_allclose(outside.T @ outside, np.eye(outside.shape[1]), atol=1e-5)


@pytest.mark.parametrize("strength", [1.6, 2.0, 4.0, 10.0])
def test_a_direction_is_shrunk_to_what_noise_left_of_it(strength: float) -> None:
    """The share is cos² · l / (l + edge), with the l and the cos of the simulated signal."""
    m, scale = 150, 0.7
    (truth,) = directions(m, 1).T
    size = strength * scale * math.sqrt(m)
    shares, overlaps = [], []
    for seed in range(12):
        squares = size * np.outer(truth, truth) + symmetric_noise(m, scale, seed)
        inside, outside = denoised(squares, noise_scale=scale, rank=2)
        shares.append(np.linalg.norm(inside[:, -1]))
        overlaps.append(float(outside[:, -1] @ truth) ** 2)
    edge = 2 * scale * math.sqrt(m)
    wanted = np.mean(overlaps) * size / (size + edge)
    assert np.mean(overlaps) == pytest.approx(1 - strength**-2, abs=0.06)
    assert np.mean(shares) == pytest.approx(wanted, abs=0.03)


def test_without_noise_it_is_the_ridge_in_closed_form() -> None:
    draw = np.random.default_rng(1)
    rows = draw.normal(size=(6, 20)) * draw.uniform(0.5, 4, (6, 1))
    squares = rows.T @ rows
    inside, outside = denoised(squares, noise_scale=0.0, rank=20)
    ridge = 6.0 * np.mean(np.diag(squares))
    wanted = squares @ np.linalg.inv(squares + ridge * np.eye(20))
    np.testing.assert_allclose(inside @ outside.T, wanted, atol=1e-5)
    few = denoised(squares, noise_scale=0.0, rank=2)
    strongest = np.linalg.eigh(squares)[1][:, -2:]
    assert subspace_angles(few.outside, strongest).max() < 1e-3


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_of_nothing_nothing_is_kept(scale: float) -> None:
    inside, outside = denoised(np.zeros((5, 5)), noise_scale=scale, rank=64)
    assert inside.shape == outside.shape == (5, 0)
    negative = denoised(-np.eye(5), noise_scale=scale, rank=3)
    assert negative.inside.shape == (5, 0)
