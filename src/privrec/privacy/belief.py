"""What an attacker can come to believe about one person, by what a ledger allows.

He sees all that is published and gave it an even chance before. L is the logarithm of how much more
likely a release is if she took part than if not; his belief after it is e^L / (1 + e^L).
"""

import math
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from privrec.privacy.ledger import PrivacyLedger

_ABOVE = np.concatenate([np.linspace(0.02, 2, 100), np.linspace(2.1, 12, 100)])
"""How far above ε a bound on L is looked for. Chosen by hand."""


@lru_cache(maxsize=64)
def most_certain(ledger: PrivacyLedger, delta: float) -> float:
    """Return the belief that he exceeds with a probability of at most δ; 1 without a guarantee.

    For Gaussian noise on sums over everybody, P(L > t) = Φ(μ/2 - t/μ). In general δ(ε) =
    E max(0, 1 - e^(ε - L)) bounds it: P(L > t) <= δ(ε) / (1 - e^(ε - t)) for every ε < t. So t is
    the smallest of ε - log(1 - δ(ε)/δ). It is above the ε of the guarantee: (ε, δ) alone does not
    say that L is at most ε with probability 1 - δ.
    """
    epsilon = ledger.epsilon(delta)
    if math.isinf(epsilon):
        return 1.0
    if not ledger.entries:
        return 0.5
    shift = ledger.gaussian_shift
    if shift is not None:
        return _belief(shift * (shift / 2 - float(ndtri(delta))))
    tried = epsilon + _ABOVE
    share = ledger.deltas(tried) / delta
    fits = share < 1
    if not fits.any():
        return 1.0
    return _belief(float((tried[fits] - np.log1p(-share[fits])).min()))


def most_right(ledger: PrivacyLedger) -> float:
    """Return the largest share of right guesses, over all that may be published.

    It is (1 + δ(0)) / 2: the largest difference of true and false positives is δ at ε = 0. For
    Gaussian noise on sums over everybody it is Φ(μ/2).
    """
    shift = ledger.gaussian_shift
    if shift is not None:
        return float(ndtr(shift / 2))
    return float(1 + ledger.deltas(np.zeros(1))[0]) / 2


def percent(share: float) -> str:
    """Return a bound as text, rounded up, with as many decimals as its distance from 1 needs.

    >>> percent(0.5), percent(0.73106), percent(0.99966), percent(0.99999987), percent(1.0)
    ('50.0 %', '73.2 %', '99.97 %', '99.999987 %', '100 %')
    """
    for decimals in range(1, 10):
        shown = math.ceil(share * 10 ** (decimals + 2) - 1e-6) / 10**decimals
        if 100 - shown >= 2 * 10.0**-decimals:
            return f"{shown:.{decimals}f} %"
    return "100 %"


def _belief(loss: float) -> float:
    return 1 / (1 + math.exp(-loss))
