"""The least noise that keeps releases within a budget, and how many people it takes."""

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from scipy.special import ndtr

from privrec.errors import PrivacyWarning, SettingsError, check_kind
from privrec.privacy.ledger import PrivacyLedger, check_delta, check_epsilon
from privrec.privacy.release import Release, Sampling
from privrec.privacy.statement import epsilon_text
from privrec.types import MechanismName

# The search accepts an ε at most this share below the target. Like the numbers below, it was chosen
# by hand.
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

    The ε of its ledger never exceeds `epsilon`, and falls short of it by less than 1 %, unless ε
    jumps there.

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

    The method is false position on logarithms, where the cost is nearly linear, and bisection every
    fourth step.
    """
    low, high = _LEAST, _MOST  # Too little noise, enough noise.
    low_cost, high_cost = math.inf, 0.0
    multiplier = guess
    for step in range(_STEPS):
        multiplier = _rounded(min(max(multiplier, low), high))
        spent = cost(multiplier)
        if target * (1 - _SLACK) <= spent <= target:
            return multiplier
        if spent > target:
            low, low_cost = multiplier, spent
        else:
            high, high_cost = multiplier, spent
        if low >= _MOST:
            break
        if step % 4 == 3 or math.isinf(low_cost) or high_cost == 0:
            multiplier = _widen(low, high, spent > target, low_cost, high_cost)
        else:
            place = math.log(low_cost / (target * (1 - _SLACK / 2)))
            place /= math.log(low_cost / high_cost)
            multiplier = low * (high / low) ** place
    if high < _MOST:
        return high  # The cost jumps here: this is the least noise known to be enough.
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
        # e^ε would overflow, although its product with the tail is small.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """A number of releases of one kind, `count`, each a sum of so many `numbers`."""

    release: Release
    count: int
    numbers: int

    @property
    def people_needed(self) -> float:
        """The number of like-minded people whose sums are as long as the noise on them.

        m contributions of length C at most add up to length mC, and over T releases to TmC; the
        noise on d numbers of standard deviation s has length s√(Td). So m = (s/C)√(d/T) people must
        be in each sum, and m / share people must train.
        """
        release, sampling = self.release, self.release.sampling
        # The scale of Laplace noise is its standard deviation over √2.
        deviation = math.sqrt(2) if release.mechanism == "laplace" else 1.0
        cohort = deviation * release.noise_multiplier * sampling.reach
        return cohort * math.sqrt(self.numbers / self.count) / sampling.share


def people_needed(kinds: Iterable[Sums]) -> int | None:
    """Return the number of people below which all sums are shorter than the noise on them.

    This holds even if all people sent the same. People differ, so with this number the first sum
    only begins to show something (docs/privacy.md). It is None if a sum has no noise, or none is
    known.
    """
    known = [sums for sums in kinds if sums.count]
    if not known or not all(sums.release.is_private and sums.numbers for sums in known):
        return None
    return math.ceil(min(sums.people_needed for sums in known))


def too_few_words(people: int, needed: int | None) -> str:
    """Return that there are too few people for the noise, as two sentences; "" if there are enough.

    >>> too_few_words(4, 23)[:31], too_few_words(23, 23), too_few_words(4, None)
    ('4 people are too few for this n', '', '')
    """
    if needed is None or people >= needed:
        return ""
    who = "1 person is" if people == 1 else f"{people:,} people are"
    return (
        f"{who} too few for this noise: it is larger than all that they can add up to, so nothing"
        f" can be learned. It takes at least about {needed:,} people who train before anything"
        " shows, and several times as many for good lists."
    )
