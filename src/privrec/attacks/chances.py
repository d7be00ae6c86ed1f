"""Probability distributions of independent draws: exact distributions, and bounds.

A finding of an audit needs a probability of about 1e-12, where a normal approximation is wrong by
orders of magnitude.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy import stats
from scipy.special import logsumexp, rel_entr

from privrec.types import F64, IntArray

ChanceLaw = tuple[F64, F64]
"""Possible values, and the logarithm of the probability of each value."""
_SLOPES = np.geomspace(1e-4, 1e2, 60)
"""The slopes t at which a Chernoff bound is computed, in units of 1 / standard deviation."""
_FAR = 40.0
"""A value more than this many standard deviations from the mean has probability 0 in floating
point."""


def few_places(balls: int, places: float, hit: int) -> float:
    """Return the probability that balls in equally likely boxes fill at most `hit` different boxes.

    `balls` is the number of balls, `places` the number of boxes.

    >>> few_places(3, 2, 1)
    0.25
    """
    return float(_places_hit(balls, places)[: hit + 1].sum())


@lru_cache(maxsize=512)
def _places_hit(balls: int, places: float) -> F64:
    """Return the probability of each number of filled boxes, shape (balls + 1,)."""
    numbers = np.arange(balls + 1)
    again, new = numbers / places, (places - numbers) / places
    law = np.zeros(balls + 1)
    law[0] = 1.0
    for _ in range(balls):
        law[1:] = law[1:] * again[1:] + law[:-1] * new[:-1]
        law[0] = 0.0
    return law


def in_common(size: int, first: int, second: IntArray, common: IntArray) -> F64:
    """Return the probability that two random subsets share at least `common` elements.

    The subsets have `first` and `second` of `size` elements. The result is 1 if `common` is close
    to the expected number.

    >>> [f"{chance:.1e}" for chance in in_common(100, 20, np.array([20, 20]), np.array([5, 20]))]
    ['1.0e+00', '1.9e-21']
    """
    chances = np.ones(len(common))
    deviation = np.sqrt(first * second / max(size, 1) + 1)
    # The exact distribution is slow, and few pairs are far from the expected number.
    far = np.flatnonzero(common > first * second / max(size, 1) + 3 * deviation)
    chances[far] = stats.hypergeom.sf(common[far] - 1, size, first, second[far])
    return chances


def share_bound(trials: int, share: float, hits: float) -> float:
    """Return Chernoff's bound on the probability of at least `hits` successes in `trials`.

    `share` is the probability of one success. The trials are independent or negatively associated.
    """
    rate = hits / max(trials, 1)
    if rate <= share:
        return 1.0
    far = float(rel_entr(rate, share) + rel_entr(1 - rate, 1 - share)) if rate <= 1 else np.inf
    return float(np.exp(-trials * far))


def binomial_squares(trials: int, share: float) -> ChanceLaw:
    """Return the distribution of (count - mean)² / variance of a binomial count."""
    mean, variance = trials * share, max(trials * share * (1 - share), 1e-12)
    counts = _possible_counts(mean, 0, trials)
    return np.square(counts - np.float64(mean)) / variance, stats.binom.logpmf(
        counts, trials, share
    )


def common_law(size: int, first: int, second: int) -> ChanceLaw:
    """Return the distribution of the number of elements that two random subsets share."""
    least, most = max(first + second - size, 0), min(first, second)
    numbers = _possible_counts(first * second / max(size, 1), least, most)
    return numbers.astype(np.float64), stats.hypergeom.logpmf(numbers, size, first, second)


def _possible_counts(mean: float, least: int, most: int) -> IntArray:
    """Return the counts from `least` to `most` whose probability is above 0 in floating point."""
    reach = _FAR * (np.sqrt(mean) + 1)
    return np.arange(max(int(mean - reach), least), min(int(mean + reach), most) + 1)


def tails(laws: Sequence[tuple[ChanceLaw, int]], total: float) -> tuple[float, float]:
    """Return bounds on P(sum >= `total`) and on P(sum <= `total`) for a sum of independent values.

    `laws` has pairs of a distribution and the number of values with this distribution. For any
    slope t > 0, P(sum >= s) is at most E exp(t(sum - s)) (Chernoff's bound).
    """
    deviation = 1.0
    for (values, chances), count in laws:
        weights = np.exp(chances)
        mean = float(weights @ values)
        deviation += count * float(weights @ (values - mean) ** 2)
    slopes = np.concatenate([-_SLOPES, _SLOPES]) / np.sqrt(deviation)
    bounds = -slopes * total
    for (values, chances), count in laws:
        bounds += count * logsumexp(chances + slopes[:, None] * values, axis=1)
    half = len(_SLOPES)
    more, fewer = bounds[half:].min(), bounds[:half].min()
    return float(np.exp(min(more, 0.0))), float(np.exp(min(fewer, 0.0)))
