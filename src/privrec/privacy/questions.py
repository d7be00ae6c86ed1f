"""The questions of the accountant, and their answers as documents: for commands and for pages."""

from typing import Any

from privrec.errors import SettingsError
from privrec.privacy.calibrate import refuse_large_delta
from privrec.privacy.ledger import PrivacyLedger, check_delta
from privrec.privacy.release import Release, Sampling
from privrec.types import MechanismName


def law_of(
    sampling: str, users: int, cohort: int, delta: float, *, forced: bool = False
) -> Sampling:
    """Return how cohorts are drawn; raise for a δ that promises nothing, unless `forced`."""
    check_delta(delta)
    # `Sampling` checks the word.
    law = Sampling(law=sampling, users=users, cohort=cohort)  # type: ignore[arg-type]
    refuse_large_delta(delta, users, forced=forced)
    return law


def mechanism_of(word: str) -> MechanismName:
    """Return the name of a mechanism with noise."""
    names: dict[str, MechanismName] = {"gaussian": "gaussian", "laplace": "laplace"}
    if word not in names:
        raise SettingsError(f"`mechanism` must be 'gaussian' or 'laplace'; got {word!r}")
    return names[word]


def epsilon_document(
    law: Sampling,
    mechanism: str,
    rounds: int,
    noise_multiplier: float,
    delta: float,
    *,
    calibrated: bool = False,
) -> dict[str, Any]:
    """Return what `privrec privacy epsilon --json` prints; `calibrate` adds the noise.

    ε is by PLD and by RDP; None if there is no guarantee.
    """
    release = Release(
        mechanism=mechanism_of(mechanism), sampling=law, noise_multiplier=noise_multiplier
    )
    ledger = PrivacyLedger().record(release, rounds)
    by_loss, by_rdp = ledger.epsilon(delta), ledger.epsilon_rdp(delta)
    document: dict[str, Any] = {
        "epsilon": by_loss if by_loss < float("inf") else None,
        "epsilon_rdp": by_rdp if by_rdp < float("inf") else None,
        "delta": delta,
        "sampling": law.law,
        "adjacency": law.adjacency,
        "noise_std_over_clip": noise_multiplier * law.reach,
    }
    return {**document, "noise_multiplier": noise_multiplier} if calibrated else document
