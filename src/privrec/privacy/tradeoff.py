"""How well a ledger lets anybody tell whether one person took part: its ROC curve.

(ε, δ)-DP bounds every test: TPR <= e^ε FPR + δ, and 1 - FPR <= e^ε (1 - TPR) + δ. A ledger has a δ
for each ε, so the bounds of all ε together are a curve (Dong, Roth and Su 2022, f-DP). For Gaussian
noise on everybody's sum it is the curve of the best test, Φ(Φ⁻¹(FPR) + μ).
"""

from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri

from privrec.privacy.ledger import PrivacyLedger
from privrec.types import F64

_EPSILONS = np.concatenate([np.linspace(0, 1, 101)[:-1], np.geomspace(1, 200, 300)])
_GRID = np.concatenate([[0.0], np.geomspace(1e-6, 1e-2, 100), np.linspace(1e-2, 1, 500)[1:]])


def best_rates(ledger: PrivacyLedger, false_positives: F64) -> F64:
    """Return the largest true-positive rate that the ledger allows at each false-positive rate."""
    shift = ledger.gaussian_shift
    if shift is not None:
        return np.asarray(ndtr(ndtri(false_positives) + shift), np.float64)
    rate = np.asarray(false_positives, np.float64)[:, None]
    epsilon, delta = _EPSILONS[None, :], ledger.deltas(_EPSILONS)[None, :]
    one = np.exp(epsilon) * rate + delta
    other = 1 - (1 - rate - delta) * np.exp(-epsilon)
    return np.asarray(np.clip(np.minimum(one, other).min(1), 0.0, 1.0), np.float64)


@lru_cache(maxsize=64)
def best_area(ledger: PrivacyLedger) -> float:
    """Return the area under that curve: no attack has a larger AUC, except by chance."""
    return float(np.trapezoid(best_rates(ledger, _GRID), _GRID))


def best_curve(ledger: PrivacyLedger) -> list[tuple[float, float]]:
    """Return that curve as points (FPR, TPR)."""
    return list(zip(_GRID.tolist(), best_rates(ledger, _GRID).tolist(), strict=True))


def gaussian_epsilon(shift: float, delta: float) -> float:
    """Return the ε of Gaussian noise whose best test has the curve Φ(Φ⁻¹(FPR) + shift).

    It solves δ = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) (Balle and Wang 2018). No accountant is asked, so
    that an audit also finds an accountant's mistake.

    >>> round(gaussian_epsilon(1.0, 1e-6), 2)
    4.89
    """

    def excess(epsilon: float) -> float:
        one = ndtr(shift / 2 - epsilon / shift)
        return float(one - np.exp(epsilon + log_ndtr(-shift / 2 - epsilon / shift)) - delta)

    if shift <= 0 or excess(0.0) <= 0:
        return 0.0
    return float(brentq(excess, 0.0, shift * (shift + 40)))
