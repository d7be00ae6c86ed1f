"""What was released about people: its ε, and what an attacker can make of it.

ε is computed by privacy loss distributions (PLD), which are tight for the mechanisms they describe.
Rényi divergences (RDP) give a second upper bound from other code: usually a looser one, for a
cross-check, but for cohorts of a fixed size the smaller of the two is used.

The factor 2: `Release.noise_multiplier` is already divided by the sensitivity of the sum, so it is
passed on unchanged for both sampling laws. Under replace-one the library's PLD for a sampled
Gaussian compares two mixtures, shifted to opposite sides of their common part. This is an upper
bound for cohorts drawn without replacement (docs/privacy.md).

An attacker sees all that is published. How well he can tell whether one person took part is a ROC
curve: (ε, δ)-DP bounds every test by TPR <= e^ε FPR + δ and 1 - FPR <= e^ε (1 - TPR) + δ. A ledger
has a δ for each ε, so the bounds of all ε together are a curve (Dong, Roth and Su 2022, f-DP). For
Gaussian noise on everybody's sum it is the curve of the best test, Φ(Φ⁻¹(FPR) + μ). If he believed
with probability 1/2 that she took part, the releases change this to e^L / (1 + e^L), where L is the
logarithm of how much more likely they are if she took part than if not.
"""

import math
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri

from privrec.errors import SettingsError, check_kind
from privrec.privacy.release import Adjacency, Release
from privrec.types import F64

if TYPE_CHECKING:  # The import takes most of a second, and runs without noise do not need it.
    from dp_accounting import dp_event
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.privacy_accountant import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant


Entries = tuple[tuple[Release, int], ...]

# RDP orders: whole numbers, because fractional orders fail to converge at large sampling shares.
_ORDERS = [*range(2, 65), 72, 80, 96, 112, 128, 160, 192, 256]
# The log of the tail mass that the PLD cuts off. The tail counts as an infinite privacy loss, so
# cutting it never makes ε smaller. `_FINEST`, `_LOSS_POINTS` and `_POINTS_PER_DEVIATION` set the
# step of the PLD's grid, on which losses are rounded up. If a loss is above `_LARGEST_LOSS`, ε
# counts as infinite. All of them were chosen by hand.
_LOG_TAIL = -40.0
_FINEST = 1e-4
_LOSS_POINTS = 2e4
_POINTS_PER_DEVIATION = 2e3
_LARGEST_LOSS = 1e5
_LARGEST_LAPLACE = 600.0
"""From a loss of about 709 on, the library's e^loss overflows; such a loss protects nobody."""


@dataclass(frozen=True, slots=True)
class PrivacyLedger:
    """Which releases were made, and how often; `record` returns a new ledger.

    >>> from privrec.privacy.release import Sampling
    >>> sampling = Sampling(law="poisson", users=4800, cohort=30)
    >>> release = Release(mechanism="gaussian", sampling=sampling, noise_multiplier=1.0)
    >>> ledger = PrivacyLedger().record(release, times=1000)
    >>> round(ledger.epsilon(1e-6), 3)
    1.298
    """

    entries: Entries = ()

    def __repr__(self) -> str:
        kinds = f" of {len(self.entries):,} kinds" if len(self.entries) > 1 else ""
        noise = "all with noise" if self.is_private else "some without noise"
        what = "nothing released" if not self.entries else f"{self.releases:,} releases{kinds}"
        return f"PrivacyLedger({what}{f', {noise}' if self.entries else ''})"

    @property
    def releases(self) -> int:
        """How many releases were made."""
        return sum(count for _, count in self.entries)

    @property
    def is_private(self) -> bool:
        """Whether every release had noise on it."""
        return all(release.is_private for release, _ in self.entries)

    @property
    def gaussian_shift(self) -> float | None:
        """μ if every release has Gaussian noise on a sum over everybody, else None: μ² = Σ 1/z²."""
        whole = [
            (release.joint_multiplier, count)
            for release, count in self.entries
            if release.mechanism == "gaussian"
            and release.is_private
            and release.sampling.share >= 1
        ]
        if len(whole) < len(self.entries):
            return None
        return math.sqrt(sum(count / multiplier**2 for multiplier, count in whole))

    def record(self, release: Release, times: int = 1) -> "PrivacyLedger":
        """Return the ledger with one more release, or with several of the same kind."""
        check_kind("release", release, Release, "a Release")
        check_kind("times", times, (int, np.integer), "a whole number")
        if times < 0:
            raise SettingsError(f"`times` must be >= 0; got {times}")
        counts = dict(self.entries)
        if times:
            counts[release] = counts.get(release, 0) + times
        return PrivacyLedger(tuple(counts.items()))

    def compose(self, other: "PrivacyLedger") -> "PrivacyLedger":
        """Return one ledger of both: of two stages, or of two runs on the same people."""
        check_kind("other", other, PrivacyLedger, "a PrivacyLedger")
        both = self
        for release, times in other.entries:
            both = both.record(release, times)
        return both

    def epsilon(self, delta: float) -> float:
        """Return ε at this δ: 0 for nothing released, infinite if anything had no noise."""
        return epsilon(self.entries, delta)

    def epsilon_rdp(self, delta: float) -> float:
        """Return ε at this δ, by RDP: another upper bound."""
        return epsilon_rdp(self.entries, delta)

    def deltas(self, epsilons: F64) -> F64:
        """Return δ at each of these ε, by PLD; 1 if a release had no noise."""
        plain = _without_accounting(self.entries, 0.5)
        if plain is not None:
            return np.full(len(epsilons), 1.0 if plain else 0.0)
        with np.errstate(over="ignore"):
            return np.asarray(
                _composed_loss(self.entries).get_delta_for_epsilon(list(epsilons)), np.float64
            )

    def with_noise(self, factor: float) -> "PrivacyLedger":
        """Return the ledger of the same releases with `factor` times the noise."""
        return PrivacyLedger(
            tuple((release.with_noise(factor), count) for release, count in self.entries)
        )

    def affordable(self, release: Release, *, epsilon: float, delta: float, most: int) -> int:
        """Return how many more such releases, at most `most`, keep ε at this δ within `epsilon`."""
        check_epsilon(epsilon)
        if self.record(release, most).epsilon(delta) <= epsilon:
            return most
        low, high = 0, most  # `low` releases fit, `high` do not.
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.record(release, middle).epsilon(delta) <= epsilon
            low, high = (middle, high) if fits else (low, middle)
        return low


def check_epsilon(epsilon: float) -> None:
    """Raise unless ε is above 0."""
    check_kind("epsilon", epsilon, (int, float), "a number")
    if not epsilon > 0:
        raise SettingsError(f"`epsilon` must be > 0; got {epsilon!r}")


_EPSILONS = np.concatenate([np.linspace(0, 1, 101)[:-1], np.geomspace(1, 200, 300)])
_GRID = np.concatenate([[0.0], np.geomspace(1e-6, 1e-2, 100), np.linspace(1e-2, 1, 500)[1:]])


def best_rates(ledger: PrivacyLedger, false_positives: F64) -> F64:
    """Return the largest true-positive rate that the ledger allows at each false-positive rate."""
    shift = ledger.gaussian_shift
    if shift is not None:
        return np.asarray(ndtr(ndtri(false_positives) + shift), np.float64)
    rate = np.asarray(false_positives, np.float64)[:, None]
    epsilon, delta = _EPSILONS[None, :], ledger.deltas(_EPSILONS)[None, :]
    by_fpr = np.exp(epsilon) * rate + delta
    by_tpr = 1 - (1 - rate - delta) * np.exp(-epsilon)
    return np.asarray(np.clip(np.minimum(by_fpr, by_tpr).min(1), 0.0, 1.0), np.float64)


@lru_cache(maxsize=64)
def best_area(ledger: PrivacyLedger) -> float:
    """Return the area under `best_rates`: no attack has a larger AUC, except by chance."""
    return float(np.trapezoid(best_rates(ledger, _GRID), _GRID))


def best_curve(ledger: PrivacyLedger) -> list[tuple[float, float]]:
    """Return the curve of `best_rates` as points (FPR, TPR)."""
    return list(zip(_GRID.tolist(), best_rates(ledger, _GRID).tolist(), strict=True))


def gaussian_epsilon(shift: float, delta: float) -> float:
    """Return the ε of Gaussian noise whose best test has the curve Φ(Φ⁻¹(FPR) + shift).

    It solves δ = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ) (Balle and Wang 2018), without the accountant, so
    that an audit also finds the accountant's mistakes.

    >>> round(gaussian_epsilon(1.0, 1e-6), 2)
    4.89
    """
    if shift <= 0 or _excess(0.0, shift, delta) <= 0:
        return 0.0
    from scipy.optimize import brentq  # It takes a quarter of a second to import.

    return float(brentq(_excess, 0.0, shift * (shift + 40), args=(shift, delta)))


def _excess(epsilon: float, shift: float, delta: float) -> float:
    near = ndtr(shift / 2 - epsilon / shift)
    return float(near - np.exp(epsilon + log_ndtr(-shift / 2 - epsilon / shift)) - delta)


_ABOVE = np.concatenate([np.linspace(0.02, 2, 100), np.linspace(2.1, 12, 100)])
"""How far above ε a bound on L is looked for. Chosen by hand."""


@lru_cache(maxsize=64)
def most_certain(ledger: PrivacyLedger, delta: float) -> float:
    """Return the belief that an attacker exceeds with probability <= δ; 1 without a guarantee.

    For Gaussian noise on sums over everybody, P(L > t) = Φ(μ/2 - t/μ). In general δ(ε) = E max(0, 1
    - e^(ε - L)) bounds it: P(L > t) <= δ(ε) / (1 - e^(ε - t)) for every ε < t. So t is the smallest
    of ε - log(1 - δ(ε)/δ). This t is above the ε of the guarantee: (ε, δ) alone does not say that L
    is at most ε with probability 1 - δ.
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
    Gaussian noise on sums over everybody it is Φ(shift/2).
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


@lru_cache(maxsize=64)
def epsilon(entries: Entries, delta: float) -> float:
    """Return the ε of all the releases together at this δ; infinite if one has no noise."""
    if (plain := _without_accounting(entries, delta)) is not None:
        return plain
    with np.errstate(over="ignore"):  # The library divides by very small probabilities.
        by_loss = float(_composed_loss(entries).get_epsilon_for_delta(delta))
    fixed = [release.sampling for release, _ in entries if release.sampling.law == "fixed"]
    if fixed and (by_loss < 1 or max(sampling.share for sampling in fixed) >= 0.1):
        # Here the PLD is only an upper bound, and the RDP's may be smaller.
        return min(by_loss, epsilon_rdp(entries, delta))
    return min(by_loss, _pure_total(entries))


def epsilon_rdp(entries: Entries, delta: float) -> float:
    """Return the ε of all the releases together at this δ, by RDP."""
    if (plain := _without_accounting(entries, delta)) is not None:
        return plain
    return min(float(_composed_divergence(entries).get_epsilon(delta)), _pure_total(entries))


@lru_cache(maxsize=16)
def _composed_loss(entries: Entries) -> "pld.PrivacyLossDistribution":
    step = max(_step(release, count) for release, count in entries)
    parts = [
        _loss(release, step).self_compose(count) if count > 1 else _loss(release, step)
        for release, count in entries
    ]
    return reduce(lambda first, second: first.compose(second), parts)


@lru_cache(maxsize=16)
def _composed_divergence(entries: Entries) -> "RdpAccountant":
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(_ORDERS, _relation(check_adjacency(entries)))
    for release, count in entries:
        accountant.compose(_event(release), count)
    return accountant


def forget() -> None:
    """Clear the caches, so that a benchmark measures the computation."""
    for cached in (epsilon, _composed_loss, _composed_divergence, _loss):
        cached.cache_clear()


def check_delta(delta: float) -> None:
    """Raise unless 0 < δ < 1."""
    check_kind("delta", delta, (int, float), "a number")
    if not 0 < delta < 1:
        raise SettingsError(f"`delta` must be > 0 and < 1; got {delta!r}")


def check_adjacency(entries: Entries) -> Adjacency:
    """Return the adjacency of all the releases; raise if they have different ones."""
    first, *others = {release.sampling.adjacency for release, _ in entries}
    if others:
        raise SettingsError(
            "releases of Poisson and of fixed-size cohorts cannot be added up: one guarantee"
            " compares data sets with and without a person, the other with a person replaced"
        )
    return first


def _without_accounting(entries: Entries, delta: float) -> float | None:
    """Return the ε that needs no composition: 0 without releases, ∞ without (enough) noise."""
    check_delta(delta)
    if not entries:
        return 0.0
    bounded = all(
        release.is_private
        and _largest_loss(release)
        < (_LARGEST_LAPLACE if release.mechanism == "laplace" else _LARGEST_LOSS)
        for release, _ in entries
    )
    if not bounded:
        return math.inf
    check_adjacency(entries)
    return None


@lru_cache(maxsize=64)
def _loss(release: Release, step: float) -> "pld.PrivacyLossDistribution":
    """Return the privacy loss of one release, on multiples of `step`, rounded upwards."""
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    share, multiplier = release.sampling.share, release.joint_multiplier
    replacing = release.sampling.adjacency == "replace one person"
    if release.mechanism == "laplace" and not replacing:
        return pld.from_laplace_mechanism(
            multiplier, value_discretization_interval=step, sampling_prob=share
        )
    if release.mechanism == "laplace":
        # The library has no PLD for this case, but it has one for pure DP.
        return pld.from_privacy_parameters(
            DifferentialPrivacyParameters(_pure(release), 0.0), value_discretization_interval=step
        )
    if replacing and share >= 0.5:
        # Replacing one person shifts the Gaussian by at most the sensitivity, for any cohort. From
        # a share of one half on, this is the smaller of two upper bounds.
        share, replacing = 1.0, False
    relation: Adjacency = "replace one person" if replacing else "add or remove one person"
    return pld.from_gaussian_mechanism(
        multiplier,
        value_discretization_interval=step,
        log_mass_truncation_bound=_LOG_TAIL,
        sampling_prob=share,
        neighboring_relation=_relation(relation),
    )


def _relation(adjacency: Adjacency) -> "NeighboringRelation":
    from dp_accounting.privacy_accountant import NeighboringRelation

    if adjacency == "replace one person":
        return NeighboringRelation.REPLACE_ONE
    return NeighboringRelation.ADD_OR_REMOVE_ONE


def _step(release: Release, count: int) -> float:
    """Return the grid step of the PLD, from the standard deviation of the composed loss."""
    largest = _largest_loss(release)
    if release.mechanism == "laplace":
        wanted = largest * math.sqrt(count) / _POINTS_PER_DEVIATION
        # The largest loss is a whole number of steps. The margin keeps it from being rounded up to
        # one more.
        return largest / max(1, math.floor(largest / wanted)) * (1 + 1e-9)
    growth = math.expm1(min(release.joint_multiplier**-2, 50.0))
    spread = release.sampling.share * math.sqrt(count * growth)
    return max(_FINEST, min(spread, largest) / _POINTS_PER_DEVIATION, largest / _LOSS_POINTS)


def _largest_loss(release: Release) -> float:
    """Return about the largest loss of one release whose probability is above the cut-off tail."""
    if release.mechanism == "laplace":
        return _pure(release)
    multiplier = release.joint_multiplier
    return _sampled(
        math.sqrt(-2 * _LOG_TAIL) / multiplier + 0.5 / multiplier**2, release.sampling.share
    )


def _pure(release: Release) -> float:
    """Return the pure ε of one Laplace release from a sampled cohort."""
    return _sampled(1 / release.joint_multiplier, release.sampling.share)


def _pure_total(entries: Entries) -> float:
    """Return the sum of pure ε: an upper bound on the composition of pure releases at any δ."""
    if any(release.mechanism != "laplace" for release, _ in entries):
        return math.inf
    return sum(count * _pure(release) for release, count in entries)


def _sampled(loss: float, share: float) -> float:
    """Return the loss of a release that a person is part of with probability `share`."""
    return math.log1p(share * math.expm1(loss)) if loss < 500 else loss + math.log(share)


def _event(release: Release) -> "dp_event.DpEvent":
    from dp_accounting import dp_event

    sampling = release.sampling
    if release.mechanism == "laplace":
        # Pure ε-DP implies ε²/2-zCDP (Bun and Steinke 2016).
        return dp_event.ZCDpEvent(_pure(release) ** 2 / 2)
    event = dp_event.GaussianDpEvent(release.joint_multiplier)
    if sampling.cohort == sampling.users:
        return event
    if sampling.law == "poisson":
        return dp_event.PoissonSampledDpEvent(sampling.share, event)
    return dp_event.SampledWithoutReplacementDpEvent(sampling.users, sampling.cohort, event)
