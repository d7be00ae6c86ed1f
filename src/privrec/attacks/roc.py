"""How well scores tell members from others: ROC curve, area, accuracy, rates, with intervals.

jax_privacy is imported where it is used, because only audits need it.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from privrec.errors import SettingsError
from privrec.seeds import rng
from privrec.types import F64, IntArray

if TYPE_CHECKING:
    from jax_privacy.auditing import CanaryScoreAuditor

RATES = (0.01, 0.001)
"""The false-positive rates at which the true-positive rate is reported."""
_RESAMPLES = 1000
"""Samples of the bootstrap. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure and its interval at the given confidence."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Roc:
    """What an attack reached. `rates` has the true-positive rate by false-positive rate.

    `accuracy` is that of the best threshold with as many members as others. Where the threshold was
    chosen on the same scores, it is above 1/2 even for an attack that knows nothing.
    `curve` has pairs (false-positive rate, true-positive rate).
    """

    members: int
    others: int
    auc: Figure
    accuracy: float
    rates: dict[float, Figure]
    curve: list[tuple[float, float]]

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it: names of rates are texts."""
        rates = {f"{rate:g}": asdict(figure) for rate, figure in self.rates.items()}
        return {**asdict(self), "rates": rates}


def auditor(members: F64, others: F64) -> "CanaryScoreAuditor":
    """Return jax_privacy's view of two lists of scores, higher for members.

    Its ROC curve is the convex hull of ours, so its area is above 1/2 even for random scores.
    """
    from jax_privacy.auditing import CanaryScoreAuditor

    _check(members, others)
    return CanaryScoreAuditor(members, others)


def measured(members: F64, others: F64, *, confidence: float = 0.95, seed: int = 0) -> Roc:
    """Return how well the scores tell the two groups apart; higher scores are for members.

    The area is how often a member scores above another, ties counting half: 1/2 on average for
    random scores. The rate at a false-positive rate is that of the lowest threshold which keeps to
    it. Intervals have the quantiles of a bootstrap over members and over others.
    """
    _check(members, others)
    _, place = np.unique(np.concatenate([members, others]), return_inverse=True)
    cuts, count = int(place.max()) + 1, len(members)
    of_members, of_others = place[:count], place[count:]
    draw = rng(seed, 0, "bootstrap")
    again = np.empty((_RESAMPLES, 1 + len(RATES)))
    for k in range(_RESAMPLES):
        drawn = (draw.choice(group, len(group)) for group in (of_members, of_others))
        again[k] = _figures(*(np.bincount(group, minlength=cuts) for group in drawn))
    tail = (1 - confidence) / 2
    lows, highs = np.quantile(again, [tail, 1 - tail], axis=0)
    tally = [np.bincount(group, minlength=cuts) for group in (of_members, of_others)]
    area, *rates = [
        Figure(value=float(value), low=float(min(low, value)), high=float(max(high, value)))
        for value, low, high in zip(_figures(*tally), lows, highs, strict=True)
    ]
    caught, wrong = _above(tally[0]), _above(tally[1])
    return Roc(
        members=count,
        others=len(others),
        auc=area,
        accuracy=float((caught + 1 - wrong).max() / 2),
        rates=dict(zip(RATES, rates, strict=True)),
        curve=curve_of(members, others),
    )


def area_of(members: F64, others: F64) -> float:
    """Return the area under the curve.

    >>> area_of(np.array([3.0, 2.0]), np.array([2.0, 1.0]))
    0.875
    """
    _, place = np.unique(np.concatenate([members, others]), return_inverse=True)
    groups = (place[: len(members)], place[len(members) :])
    return _figures(*(np.bincount(group, minlength=int(place.max()) + 1) for group in groups))[0]


def curve_of(members: F64, others: F64) -> list[tuple[float, float]]:
    """Return the ROC curve: at each threshold, the share of others and of members above it."""
    cuts = np.unique(np.concatenate([members, others]))
    above = [
        1 - np.searchsorted(np.sort(scores), cuts, side="left") / len(scores)
        for scores in (others, members)
    ]
    points = [(0.0, 0.0), *zip(above[0][::-1].tolist(), above[1][::-1].tolist(), strict=True)]
    return [(float(x), float(y)) for x, y in points]


def _check(members: F64, others: F64) -> None:
    for name, scores in (("members", members), ("others", others)):
        if not len(scores):
            raise SettingsError(f"an attack needs scores of {name}; got none")
        if not np.isfinite(scores).all():
            raise SettingsError(f"scores must be finite; {name} have some that are not")


def _figures(members: IntArray, others: IntArray) -> list[float]:
    """Return the area and the true-positive rates; both count the scores at each threshold."""
    caught, wrong = _above(members), _above(others)
    # Both fall from 1 to 0 with the threshold. A tie is a slanted piece, so it counts half.
    area = float(((caught[:-1] + caught[1:]) * (wrong[:-1] - wrong[1:])).sum() / 2)
    return [area, *(float(caught[wrong <= rate].max()) for rate in RATES)]


def _above(counts: IntArray) -> F64:
    """Return the share of the scores at or above each threshold, and 0 above all."""
    passed = np.cumsum(np.append(0, counts[::-1]))[::-1]
    return np.asarray(passed / passed[0])
