"""The discrete Gaussian against its closed form, and the noise that remains if nodes drop out.

Every statistical test fails by chance less than once in 10^7 runs.
"""

import math

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from privrec.errors import SettingsError
from privrec.protocol.noise import (
    discrete_gaussian,
    gap,
    least_honest,
    least_survivors,
    node_deviation,
)

CHANCE = 1e-8


@pytest.mark.parametrize("deviation", [1.0, 1.5, 2.0, 3.7])
def test_small_deviations_have_the_closed_form(deviation: float) -> None:
    """Zero twice as likely, a wrong acceptance rate or a lost tail would all show."""
    drawn = discrete_gaussian(deviation, 300_000)
    far = math.ceil(3.6 * deviation)
    values = np.arange(-12 * far, 12 * far + 1)
    weights = np.exp(-(values**2) / (2 * deviation**2))
    expected = weights / weights.sum() * len(drawn)
    inside = np.abs(values) <= far
    counted = [np.count_nonzero(drawn == value) for value in values[inside]]
    counted = [np.count_nonzero(drawn < -far), *counted, np.count_nonzero(drawn > far)]
    tails = expected[values < -far].sum(), expected[values > far].sum()
    wanted = np.array([tails[0], *expected[inside], tails[1]])
    assert stats.chisquare(counted, wanted / wanted.sum() * len(drawn)).pvalue > CHANCE


@pytest.mark.parametrize("deviation", [50.0, 1e6 + 0.3, 2.0**32 + 0.5, 2.0**45])
def test_large_deviations_are_gaussian_and_fill_the_low_bits(deviation: float) -> None:
    size = 200_000
    drawn = discrete_gaussian(deviation, size)
    # The sum with a uniform number in -1/2 … 1/2 has no steps, so a continuous test applies.
    smooth = drawn + np.random.default_rng(0).uniform(-0.5, 0.5, size)
    assert stats.kstest(smooth / deviation, "norm").pvalue > CHANCE
    assert abs(drawn.mean() / deviation) < 6 / math.sqrt(size)
    assert abs(drawn.var() / deviation**2 - 1) < 6 * math.sqrt(2 / size)
    # Multiples of the proposal's scale, or of a rounded number, would show here.
    assert stats.chisquare(np.bincount(drawn & 15, minlength=16)).pvalue > CHANCE


def test_the_tail_is_that_of_a_gaussian() -> None:
    size = 1_000_000
    far = np.count_nonzero(np.abs(discrete_gaussian(1e5, size)) > 4e5)
    expected = size * 2 * stats.norm.sf(4.0)
    assert stats.poisson.cdf(far, expected) > CHANCE
    assert stats.poisson.sf(far - 1, expected) > CHANCE


def test_draws_are_fresh_and_independent() -> None:
    one, two = discrete_gaussian(1e6, 50_000), discrete_gaussian(1e6, 50_000)
    assert not np.array_equal(one, two)
    for a, b in ((one, two), (one[1:], one[:-1])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 6 / math.sqrt(len(a))


def test_the_size_and_the_type_are_as_asked() -> None:
    for size in (0, 1, 7, 2**18 + 1):
        drawn = discrete_gaussian(10.0, size)
        assert drawn.shape == (size,)
        assert drawn.dtype == np.int64


@pytest.mark.parametrize("missing", [0, 3])
def test_the_noise_of_the_sum_is_as_promised(missing: int) -> None:
    """With 3 of 10 missing it is the promised one; with none it is larger by sqrt(10 / 7)."""
    scale = 1000.0
    share = node_deviation(scale, nodes=10, missing=0.3, colluding=0.0)
    shares = discrete_gaussian(share, 10 * 100_000).reshape(10, -1)
    measured = shares[missing:].sum(axis=0).std()
    assert measured == pytest.approx(scale * math.sqrt((10 - missing) / 7), rel=0.02)


def test_colluding_nodes_make_honest_ones_add_more() -> None:
    assert node_deviation(6.0, nodes=10, missing=0.3, colluding=0.3) == 3.0
    assert node_deviation(6.0, nodes=36, missing=0.0, colluding=0.0) == 1.0


def test_fractions_count_whole_nodes_in_spite_of_float64() -> None:
    assert 0.29 * 100 < 29
    assert least_survivors(100, 0.29) == 71
    assert least_honest(100, 0.29, 0.29) == 42
    assert least_survivors(3, 0.3) == 3


def test_no_honest_node_is_refused() -> None:
    with pytest.raises(SettingsError, match="no honest node"):
        least_honest(10, 0.5, 0.5)


@pytest.mark.parametrize("nodes", [2, 3, 10])
def test_the_gap_bounds_the_ratio_of_the_sum_to_one_discrete_gaussian(
    nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured at a small deviation, where the gap is large enough for float64."""
    monkeypatch.setattr("privrec.protocol.noise.MOST_GAP", math.inf)
    deviation = 0.9

    def law(variance: float, far: int) -> npt.NDArray[np.float64]:
        values = np.arange(-far, far + 1)
        weights = np.exp(-(values**2) / (2 * variance))
        return np.asarray(weights / weights.sum())

    total = np.ones(1)
    for _ in range(nodes):
        total = np.convolve(total, law(deviation**2, 12))
    single = law(nodes * deviation**2, 12 * nodes)
    near = slice(12 * nodes - 8, 12 * nodes + 9)
    ratio = np.abs(np.log(total[near] / single[near])).max()
    assert 1e-5 < ratio <= gap(deviation, nodes)


def test_the_gap_is_refused_for_small_deviations_only() -> None:
    assert gap(3.0, 1000) < 1e-30
    assert gap(5.0, 1) == 0.0
    for deviation in (2.5, 0.0, math.nan):
        with pytest.raises(SettingsError, match="too small"):
            gap(deviation, 2)


@pytest.mark.parametrize("deviation", [0.5, -1.0, math.nan, math.inf, 2.0**46])
def test_deviations_out_of_range_are_refused(deviation: float) -> None:
    with pytest.raises(SettingsError, match="`deviation` must be in"):
        discrete_gaussian(deviation, 1)
