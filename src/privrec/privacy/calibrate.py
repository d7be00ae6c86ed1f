"""The least noise that keeps a number of releases within a budget."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace

from scipy.special import ndtr

from privrec.errors import PrivacyWarning, SettingsError, check_kind
from privrec.privacy.ledger import PrivacyLedger, check_delta, check_epsilon
from privrec.privacy.release import Release, Sampling
from privrec.privacy.words import epsilon_text
from privrec.types import MechanismName

# The search accepts an ε at most this share below the target. This and the numbers below were
# chosen by hand.
_SLACK = 0.005
_DIGITS = 6
_LEAST, _MOST = 1e-3, 1e5
_STEPS = 60


def calibrate(
    sampling: Sampling,
    *,
    rounds: int,
    epsilon: float,
    delta: float,
    mechanism: MechanismName = "gaussian",
    spent: PrivacyLedger | None = None,
) -> float:
    """Return the least `noise_multiplier` for `rounds` releases on top of what was `spent`.

    The ε of its ledger never exceeds `epsilon`, and falls short of it by less than 1 %.

    >>> calibrate(Sampling(law="poisson", users=4800, cohort=30), rounds=1, epsilon=8, delta=1e-6)
    0.363317
    """
    check_epsilon(epsilon)
    check_delta(delta)
    check_kind("rounds", rounds, int, "a whole number")
    if rounds < 1:
        raise SettingsError(f"`rounds` must be >= 1; got {rounds}")
    before = spent or PrivacyLedger()
    if before.epsilon(delta) >= epsilon:
        raise SettingsError(
            f"nothing is left of epsilon {epsilon:g}:"
            f" {epsilon_text(before.epsilon(delta))} was spent"
        )
    unit = Release(mechanism=mechanism, sampling=sampling, noise_multiplier=1.0)

    def cost(multiplier: float) -> float:
        release = replace(unit, noise_multiplier=multiplier)
        return before.record(release, rounds).epsilon(delta)

    return _search(cost, epsilon, _first_guess(sampling, rounds, epsilon, delta))


def _search(cost: Callable[[float], float], target: float, guess: float) -> float:
    """Return a multiplier whose cost is within the slack below `target`.

    It uses false position on logarithms, where the cost is nearly linear, and bisection every
    fourth step.
    """
    low, high = _LEAST, _MOST  # Too little noise, enough noise.
    low_cost, high_cost = math.inf, 0.0
    multiplier = guess
    for step in range(_STEPS):
        multiplier = _rounded(min(max(multiplier, low), high))
        found = cost(multiplier)
        if target * (1 - _SLACK) <= found <= target:
            return multiplier
        if found > target:
            low, low_cost = multiplier, found
        else:
            high, high_cost = multiplier, found
        if low >= _MOST:
            break
        if step % 4 == 3 or math.isinf(low_cost) or high_cost == 0:
            multiplier = _widen(low, high, found > target, low_cost, high_cost)
        else:
            place = math.log(low_cost / (target * (1 - _SLACK / 2)))
            place /= math.log(low_cost / high_cost)
            multiplier = low * (high / low) ** place
    if high < _MOST:
        return high  # The cost jumps here: return the least noise that is known to be enough.
    raise SettingsError(
        f"epsilon {target:g} needs a noise_multiplier above {_MOST:g}: raise it, or cut rounds"
    )


def _widen(low: float, high: float, too_dear: bool, low_cost: float, high_cost: float) -> float:
    """Return the next multiplier to try: a small step if one side is unknown, else the middle."""
    if math.isinf(low_cost) and not too_dear:
        return max(high / 1.3, math.sqrt(low * high))
    if high_cost == 0 and too_dear:
        return min(low * 1.3, math.sqrt(low * high))
    return math.sqrt(low * high)


def _first_guess(sampling: Sampling, rounds: int, epsilon: float, delta: float) -> float:
    """Return a first guess by the central limit theorem of Gaussian DP (Dong et al.)."""
    from scipy.optimize import brentq  # It takes a quarter of a second to import.

    def excess(deviation: float) -> float:
        far = ndtr(-epsilon / deviation - deviation / 2)
        near = ndtr(-epsilon / deviation + deviation / 2)
        # Limit ε, because e^ε would overflow although its product with the tail is small.
        return float(near - math.exp(min(epsilon, 700)) * far) - delta

    try:
        deviation = float(brentq(excess, 1e-9, 200.0, xtol=1e-6))
    except ValueError:
        return 1.0
    growth = (deviation / sampling.share) ** 2 / rounds
    return float(1 / math.sqrt(math.log1p(growth)))


def _rounded(multiplier: float) -> float:
    """Return it rounded up to a few digits, so that the printed number is the exact number."""
    step = 10.0 ** (math.floor(math.log10(multiplier)) + 1 - _DIGITS)
    return float(f"{math.ceil(multiplier / step) * step:.{_DIGITS}g}")


def find_noise(
    sampling: Sampling,
    *,
    rounds: int,
    epsilon: float | None,
    delta: float,
    mechanism: MechanismName,
    spent: PrivacyLedger | None = None,
) -> float:
    """Return the `noise_multiplier` for these rounds; 0 rounds need no calibration."""
    if epsilon is None:
        raise SettingsError("give `epsilon`, from which the noise is found, or `noise_multiplier`")
    if rounds == 0:
        return 1.0
    return calibrate(
        sampling, rounds=rounds, epsilon=epsilon, delta=delta, mechanism=mechanism, spent=spent
    )


def check_budget(
    release: Release,
    *,
    rounds: int,
    epsilon: float | None,
    delta: float,
    spent: PrivacyLedger | None = None,
) -> None:
    """Raise if the budget does not allow a single round."""
    if epsilon is None or rounds == 0:
        return
    once = (spent or PrivacyLedger()).record(release).epsilon(delta)
    if once <= epsilon:
        return
    needed, enough = (
        find_noise(
            release.sampling,
            rounds=count,
            epsilon=epsilon,
            delta=delta,
            mechanism=release.mechanism,
            spent=spent,
        )
        for count in (1, rounds)
    )
    raise SettingsError(
        f"epsilon {epsilon:g} affords no round: one round with noise_multiplier"
        f" {release.joint_multiplier:g} takes {epsilon_text(once)}; noise_multiplier"
        f" {needed:g} affords one round, {enough:g} all {rounds:,}"
    )


def refuse_large_delta(delta: float, users: int, *, forced: bool) -> None:
    """Raise for a δ of 1/N or more; if `forced`, only warn."""
    if delta < 1 / users:
        return
    why = (
        f"`delta` must be < 1/{users:,}, one over the number of people; got {delta:g}: a method"
        " that publishes everything about one person picked at random would meet it"
    )
    if not forced:
        raise SettingsError(f"{why} (--force-delta accepts it)")
    warnings.warn(why, PrivacyWarning, stacklevel=2)
