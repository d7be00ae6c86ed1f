"""Checks before the first round: the noise for the budget, whether one round fits, and δ."""

import warnings

from privrec.errors import PrivacyWarning, SettingsError
from privrec.privacy.calibrate import calibrate
from privrec.privacy.ledger import PrivacyLedger
from privrec.privacy.release import Release
from privrec.privacy.sampling import Sampling
from privrec.privacy.words import epsilon_text
from privrec.types import MechanismName


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
