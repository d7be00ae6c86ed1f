"""Lower bounds on ε from the scores of canaries, three ways, and all of them together.

`clopper_pearson` and `one_run` (Steinke, Nasr and Jagielski 2023) are jax_privacy's. `curve` is by
hand, because no library has it: the area under the ROC curve is compared with the largest area that
the ledger's own releases allow. The other two ask for one (ε, δ) alone, at a δ of 1e-6 far out in
the tail, where a thousand canaries show little.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit, ndtri

from privrec.attacks.roc import auditor
from privrec.errors import SettingsError
from privrec.privacy.ledger import PrivacyLedger, best_area, gaussian_epsilon
from privrec.types import F64, BoolArray

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


def lower_bounds(
    scores: F64, coins: BoolArray, ledger: PrivacyLedger, *, delta: float, confidence: float
) -> Bounds:
    """Return what the scores prove about ε at this δ; `coins` tell who took part."""
    check_confidence(confidence)
    members, others, chance = scores[coins], scores[~coins], 1 - confidence
    alone = dict.fromkeys(_SHARES, chance)
    divided = {name: chance * share for name, share in _SHARES.items()}
    by_name = _each_bound(members, others, ledger, delta, alone)
    return Bounds(
        clopper_pearson=by_name["clopper_pearson"],
        one_run=by_name["one_run"],
        curve=by_name.get("curve"),
        together=max(_each_bound(members, others, ledger, delta, divided).values()),
    )


def _each_bound(
    members: F64, others: F64, ledger: PrivacyLedger, delta: float, chances: Mapping[str, float]
) -> dict[str, float]:
    """Return each bound by name; `chances` are those that it is wrong."""
    library = auditor(members, others)
    bounds = {
        "clopper_pearson": library.epsilon_clopper_pearson(chances["clopper_pearson"], delta),
        "one_run": library.epsilon_one_run(chances["one_run"], delta),
    }
    if ledger.entries and ledger.is_private:
        area = least_area(members, others, chances["curve"])
        bounds["curve"] = epsilon_of_area(ledger, area, delta)
    return {name: float(bound) for name, bound in bounds.items()}


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


def least_area(members: F64, others: F64, chance: float) -> float:
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


def _share_below(scores: F64, others: F64) -> F64:
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
    low, high = 1.0, 1.0  # `low` has at least the given area, `high` at most.
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
