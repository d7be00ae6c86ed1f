"""Lower bounds on ε from the scores of canaries, three ways, and all of them together.

`clopper_pearson` and `one_run` (Steinke, Nasr and Jagielski 2023) are jax_privacy's. `curve` is by
hand, because no library has it: the area under the ROC curve is compared with the largest area that
the ledger's own releases allow. The other two ask for one (ε, δ) alone, at a δ of 1e-6 far out in
the tail, where a thousand canaries show little.

How often independent draws look as if they were not: exact laws, and bounds that always hold.

A finding must be far beyond chance, so a normal approximation is not enough here: it is wrong by
orders of magnitude at a chance of 1e-12.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

import numpy as np
from scipy import stats
from scipy.special import expit, logit, logsumexp, ndtri, rel_entr

from privrec.attacks.roc import Scores, auditor
from privrec.errors import SettingsError
from privrec.privacy.ledger import PrivacyLedger, best_area, gaussian_epsilon
from privrec.types import F64, BoolArray, IntArray

# How the allowed chance of a wrong bound is divided among the three. Chosen by hand, before any
# audit was run.
_SHARES = {"curve": 0.8, "one_run": 0.1, "clopper_pearson": 0.1}
_MOST = 64.0
_STEPS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Lower bounds on ε; each holds alone at the confidence. `together` is the largest of them.

    `together` also holds at the confidence: its parts are computed at a higher one. `curve` is None
    where the ledger promises nothing.
    """

    clopper_pearson: float
    one_run: float
    curve: float | None
    together: float

    def as_json(self) -> dict[str, float | None]:
        """Return the three bounds."""
        found = asdict(self)
        found.pop("together")
        return found


def lower_bounds(
    scores: Scores, coins: BoolArray, ledger: PrivacyLedger, *, delta: float, confidence: float
) -> Bounds:
    """Return what the scores prove about ε at this δ; `coins` tell who took part."""
    check_confidence(confidence)
    members, others = scores[coins], scores[~coins]
    chance = 1 - confidence

    def each(shares: Mapping[str, float]) -> dict[str, float]:
        found = auditor(members, others)
        bounds = {
            "clopper_pearson": found.epsilon_clopper_pearson(
                chance * shares["clopper_pearson"], delta
            ),
            "one_run": found.epsilon_one_run(chance * shares["one_run"], delta),
        }
        if ledger.entries and ledger.is_private:
            area = least_area(members, others, chance * shares["curve"])
            bounds["curve"] = epsilon_of_area(ledger, area, delta)
        return {name: float(bound) for name, bound in bounds.items()}

    alone = each(dict.fromkeys(_SHARES, 1.0))
    return Bounds(
        clopper_pearson=alone["clopper_pearson"],
        one_run=alone["one_run"],
        curve=alone.get("curve"),
        together=max(each(_SHARES).values()),
    )


def check_confidence(confidence: float) -> None:
    """Raise unless it is a confidence."""
    if not 0.5 < confidence < 1:
        raise SettingsError(f"`confidence` must be > 0.5 and < 1; got {confidence!r}")


def most_provable(
    coins: BoolArray, ledger: PrivacyLedger, *, delta: float, confidence: float
) -> float | None:
    """Return the bound by area if all coins were guessed; None where nothing is promised."""
    if not (ledger.entries and ledger.is_private):
        return None
    right = coins.astype(np.float64)
    area = least_area(right[coins], right[~coins], (1 - confidence) * _SHARES["curve"])
    return epsilon_of_area(ledger, area, delta)


def least_area(members: Scores, others: Scores, chance: float) -> float:
    """Return a lower bound on the area under the ROC curve, wrong with this probability.

    The variance is that of DeLong, DeLong and Clarke-Pearson (1988), on the scale of log odds.
    Where all scores are told apart it is 0, whatever their number; but if the area is a, n
    independent pairs are all in order with probability a^n.
    """
    # For each score, the share of the other group that it is in the right order with.
    right = [_share_below(members, others), 1 - _share_below(others, members)]
    area = float(right[0].mean())
    most = float(chance ** (1 / min(len(members), len(others))))
    if not 0 < area < 1 or min(len(members), len(others)) < 2:  # One score has no variance.
        return min(area, most)
    error = math.sqrt(sum(float(np.var(part, ddof=1)) / len(part) for part in right))
    odds = logit(area) + ndtri(chance) * error / (area * (1 - area))
    return min(float(expit(odds)), most)


def _share_below(scores: Scores, others: Scores) -> Scores:
    """Return for each score the share of the others that are below it; equal ones count half."""
    ordered = np.sort(others)
    below = np.searchsorted(ordered, scores, side="left")
    not_above = np.searchsorted(ordered, scores, side="right")
    return np.asarray((below + not_above) / 2 / len(others), np.float64)


def epsilon_of_area(ledger: PrivacyLedger, area: float, delta: float) -> float:
    """Return the ε of the ledger's releases with so much noise that their best area is this one.

    With Gaussian noise on everybody's sums, the area alone gives ε. Otherwise the noise of all
    releases is multiplied by the same factor. The largest ε that it finds is that of 1/64 of the
    noise, or of as much as the accountant can count.
    """
    if area <= 0.5:
        return 0.0
    if ledger.gaussian_shift is not None:
        return gaussian_epsilon(math.sqrt(2) * float(ndtri(area)), delta)
    low, high = 1.0, 1.0  # Factors with at least, and with at most, the given area.
    while best_area(ledger.with_noise(high)) > area and high < _MOST:
        low, high = high, 2 * high
    while best_area(ledger.with_noise(low)) < area and low > 1 / _MOST:
        if math.isinf(ledger.with_noise(low / 2).epsilon(delta)):
            break
        low, high = low / 2, low
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        if best_area(ledger.with_noise(middle)) > area:
            low = middle
        else:
            high = middle
    return ledger.with_noise(high).epsilon(delta)


Law = tuple[F64, F64]
"""Values, and the logarithm of the chance of each."""
_SLOPES = np.geomspace(1e-4, 1e2, 60)
"""Slopes at which a bound is tried, relative to one deviation."""
_FAR = 40.0
"""Values more deviations away have a chance of 0 in floating point."""


def few_places(balls: int, places: float, hit: int) -> float:
    """Return the chance that balls thrown into equally likely places hit at most `hit` of them.

    >>> few_places(3, 2, 1)
    0.25
    """
    return float(_places_hit(balls, places)[: hit + 1].sum())


@lru_cache(maxsize=512)
def _places_hit(balls: int, places: float) -> F64:
    """Return the chance of each number of places that are hit, shape (balls + 1,)."""
    numbers = np.arange(balls + 1)
    again, new = numbers / places, (places - numbers) / places
    law = np.zeros(balls + 1)
    law[0] = 1.0
    for _ in range(balls):
        law[1:] = law[1:] * again[1:] + law[:-1] * new[:-1]
        law[0] = 0.0
    return law


def in_common(size: int, first: int, second: IntArray, common: IntArray) -> F64:
    """Return the chance of so many common members of two random parts of `size` things, or more.

    It is 1 for a number that is not far from the expected one.

    >>> [f"{chance:.1e}" for chance in in_common(100, 20, np.array([20, 20]), np.array([5, 20]))]
    ['1.0e+00', '1.9e-21']
    """
    chances = np.ones(len(common))
    deviation = np.sqrt(first * second / max(size, 1) + 1)
    # The exact law is slow, and nearly all pairs are far from being found.
    far = np.flatnonzero(common > first * second / max(size, 1) + 3 * deviation)
    chances[far] = stats.hypergeom.sf(common[far] - 1, size, first, second[far])
    return chances


def share_bound(trials: int, share: float, hits: float) -> float:
    """Return a bound on the chance of at least so many hits (Chernoff's).

    It holds for independent trials, and for negatively associated ones.
    """
    found = hits / max(trials, 1)
    if found <= share:
        return 1.0
    far = float(rel_entr(found, share) + rel_entr(1 - found, 1 - share)) if found <= 1 else np.inf
    return float(np.exp(-trials * far))


def binomial_squares(trials: int, share: float) -> Law:
    """Return the law of (count - its mean)², in units of its variance, of a binomial count."""
    mean, variance = trials * share, max(trials * share * (1 - share), 1e-12)
    counts = _near(mean, 0, trials)
    return np.square(counts - np.float64(mean)) / variance, stats.binom.logpmf(
        counts, trials, share
    )


def common_law(size: int, first: int, second: int) -> Law:
    """Return the law of the number of common members of two random parts of `size` things."""
    least, most = max(first + second - size, 0), min(first, second)
    numbers = _near(first * second / max(size, 1), least, most)
    return numbers.astype(np.float64), stats.hypergeom.logpmf(numbers, size, first, second)


def _near(mean: float, least: int, most: int) -> IntArray:
    """Return the counts from `least` to `most` whose chance is above 0 in floating point."""
    reach = _FAR * (np.sqrt(mean) + 1)
    return np.arange(max(int(mean - reach), least), min(int(mean + reach), most) + 1)


def tails(laws: Sequence[tuple[Law, int]], total: float) -> tuple[float, float]:
    """Return bounds on the chances of at least, and of at most, this sum of independent values.

    `laws` has each law and how many values have it. For any slope t, the chance of a sum of s or
    more is at most E exp(t(sum - s)) (Chernoff's bound).
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
