"""What an attacker can come to believe: against closed forms and a simulated attacker."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from privrec.privacy.ledger import PrivacyLedger, most_certain, most_right, percent
from privrec.privacy.release import Release, Sampling
from privrec.types import F64

WHOLE = Sampling(law="poisson", users=100, cohort=100)
PART = Sampling(law="poisson", users=100, cohort=30)


def gaussian(multiplier: float, sampling: Sampling = WHOLE, times: int = 1) -> PrivacyLedger:
    release = Release(mechanism="gaussian", sampling=sampling, noise_multiplier=multiplier)
    return PrivacyLedger().record(release, times)


def laplace(multiplier: float, times: int = 1) -> PrivacyLedger:
    release = Release(mechanism="laplace", sampling=WHOLE, noise_multiplier=multiplier)
    return PrivacyLedger().record(release, times)


@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_gaussian_noise_has_a_closed_form(delta: float) -> None:
    """One release N(0 or 1, z²): L = (2x - 1) / 2z² is normal with mean μ²/2 and deviation μ."""
    belief = most_certain(gaussian(2.0), delta)
    log_odds = math.log(belief / (1 - belief))
    assert norm.sf(log_odds, loc=0.125, scale=0.5) == pytest.approx(delta, rel=1e-6)
    assert most_right(gaussian(2.0)) == pytest.approx(norm.cdf(0.25))


def test_the_general_bound_is_above_the_truth_and_near_it() -> None:
    """A sampled Gaussian: the attacker's belief over many simulated releases."""
    ledger, delta, share, spread = gaussian(1.0, PART), 0.01, 0.3, 1.0
    rng = np.random.default_rng(0)
    count = 400_000
    seen = rng.normal(size=count) * spread + (rng.random(count) < share)  # She took part.

    def belief(x: F64) -> F64:
        mixed = share * norm.pdf(x, 1, spread) + (1 - share) * norm.pdf(x, 0, spread)
        return np.asarray(mixed / (mixed + norm.pdf(x, 0, spread)))

    exact = float(np.quantile(belief(seen), 1 - delta))
    found = most_certain(ledger, delta)
    assert exact < found < exact + 0.06
    # The guarantee's own ε says less than the truth: (ε, δ) is no bound on L.
    epsilon = ledger.epsilon(delta)
    assert 1 / (1 + math.exp(-epsilon)) < exact
    # The best guess is right where its belief is above one half.
    out = rng.normal(size=count) * spread
    right = ((belief(seen) > 0.5).mean() + (belief(out) <= 0.5).mean()) / 2
    assert most_right(ledger) == pytest.approx(right, abs=0.004)


def test_pure_noise_bounds_the_belief_itself() -> None:
    found = most_certain(laplace(1.0), 1e-9)
    assert math.e / (1 + math.e) <= found < math.e / (1 + math.e) + 0.01


def test_more_releases_tell_more_and_no_noise_tells_all() -> None:
    beliefs = [most_certain(gaussian(3.0, PART, n), 1e-6) for n in (1, 10, 100)]
    assert beliefs == sorted(beliefs)
    assert beliefs[-1] < 1
    bare = PrivacyLedger().record(Release(mechanism="none", sampling=WHOLE))
    assert most_certain(bare, 1e-6) == most_right(bare) == 1.0
    assert most_certain(PrivacyLedger(), 1e-6) == most_right(PrivacyLedger()) == 0.5


def test_a_bound_is_never_rounded_down() -> None:
    for share in (*np.linspace(0.5, 0.999999, 1000), 1 - 1e-7, 1 - 1e-9):
        text = percent(float(share))
        assert float(text.removesuffix(" %")) >= 100 * share - 1e-7
    assert percent(1 - 1e-5) != "100 %"
