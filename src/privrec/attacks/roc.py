"""How well scores tell members from others: ROC curve, area, accuracy, rates, with intervals.

The curve and its figures come from jax_privacy. It is imported where it is used, because only
attacks and audits need it.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from privrec.errors import SettingsError

if TYPE_CHECKING:
    from jax_privacy.auditing import CanaryScoreAuditor

Scores = npt.NDArray[np.float64]
RATES = (0.01, 0.001)
"""The false-positive rates at which the true-positive rate is reported."""
_RESAMPLES = 1000


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
        found = asdict(self)
        return {**found, "rates": {f"{rate:g}": value for rate, value in found["rates"].items()}}


def auditor(members: Scores, others: Scores) -> "CanaryScoreAuditor":
    """Return jax_privacy's view of two lists of scores, higher for members."""
    try:
        from jax_privacy.auditing import CanaryScoreAuditor
    except ImportError as error:
        raise SettingsError(
            "attacks and audits need jax_privacy and scikit-learn: pip install 'privrec[attack]'"
        ) from error
    for name, scores in (("members", members), ("others", others)):
        if not len(scores):
            raise SettingsError(f"an attack needs scores of {name}; got none")
        if not np.isfinite(scores).all():
            raise SettingsError(f"scores must be finite; {name} have some that are not")
    return CanaryScoreAuditor(members, others)


def measured(members: Scores, others: Scores, *, confidence: float = 0.95, seed: int = 0) -> Roc:
    """Return how well the scores tell the two groups apart; intervals are by bootstrap."""
    from jax_privacy.auditing import BootstrapParams

    found = auditor(members, others)
    again = BootstrapParams.confidence_interval(_RESAMPLES, confidence, seed=seed)
    with np.errstate(all="ignore"):  # All resamples may be equal: then there is no bias to correct.
        area = _interval(found.attack_auroc(bootstrap_params=again))
        rates = {
            rate: _figure(
                float(found.tpr_at_given_fpr(rate)),
                _interval(found.tpr_at_given_fpr(rate, bootstrap_params=again)),
            )
            for rate in RATES
        }
    return Roc(
        members=len(members),
        others=len(others),
        auc=_figure(float(found.attack_auroc()), area),
        accuracy=float(found.max_accuracy(prevalence=0.5)),
        rates=rates,
        curve=curve_of(members, others),
    )


def curve_of(members: Scores, others: Scores) -> list[tuple[float, float]]:
    """Return the ROC curve: at each threshold, the share of others and of members above it."""
    cuts = np.unique(np.concatenate([members, others]))
    above = [
        1 - np.searchsorted(np.sort(scores), cuts, side="left") / len(scores)
        for scores in (others, members)
    ]
    points = [(0.0, 0.0), *zip(above[0][::-1].tolist(), above[1][::-1].tolist(), strict=True)]
    return [(float(x), float(y)) for x, y in points]


def _figure(value: float, interval: tuple[float, float]) -> Figure:
    low, high = interval
    # Bootstrap intervals of rates that are all 0 or all 1 are not numbers, or have no width.
    low, high = (edge if np.isfinite(edge) else value for edge in (low, high))
    return Figure(value=value, low=min(low, value), high=max(high, value))


def _interval(edges: Any) -> tuple[float, float]:
    low, high = np.asarray(edges, np.float64)
    return float(low), float(high)
