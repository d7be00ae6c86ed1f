"""The questions of the accountant, and their answers as documents: for commands and for pages."""

import math
from collections.abc import Mapping
from typing import Any

from privrec.errors import one_of
from privrec.privacy.calibrate import refuse_large_delta
from privrec.privacy.ledger import (
    PrivacyLedger,
    check_adjacency,
    check_delta,
    most_certain,
    percent,
)
from privrec.privacy.release import LAWS, MECHANISMS, Sampling
from privrec.privacy.statement import TITLES, epsilon_text, strength_of
from privrec.types import MechanismName


def law_of(
    sampling: str, users: int, cohort: int, delta: float, *, forced: bool = False
) -> Sampling:
    """Return how cohorts are drawn; raise for a δ that promises nothing, unless `forced`."""
    check_delta(delta)
    law = Sampling(law=one_of("sampling", sampling, LAWS), users=users, cohort=cohort)
    refuse_large_delta(delta, users, forced=forced)
    return law


def mechanism_of(word: str) -> MechanismName:
    """Return the name of a mechanism with noise."""
    return one_of("mechanism", word, MECHANISMS[1:])


def epsilon_document(
    ledger: PrivacyLedger, delta: float, *, seeded: bool = False
) -> dict[str, Any]:
    """Return what `privrec privacy epsilon --json` prints of some releases.

    ε is by PLD and by RDP; None if there is no guarantee. `seeded` noise gives none, and then
    `epsilon_of_mechanism` is what ε would be with secure noise.
    """
    by_loss, by_rdp = ledger.epsilon(delta), ledger.epsilon_rdp(delta)
    kinds = [release for release, _ in ledger.entries]
    scales = {release.noise_multiplier * release.sampling.reach for release in kinds}
    document: dict[str, Any] = {
        "epsilon": by_loss if by_loss < math.inf and not seeded else None,
        "epsilon_rdp": by_rdp if by_rdp < math.inf and not seeded else None,
        "delta": delta,
        "sampling": kinds[0].sampling.law,
        "adjacency": check_adjacency(ledger.entries),
        "noise_std_over_clip": scales.pop() if len(scales) == 1 else None,
    }
    if seeded:
        document["epsilon_of_mechanism"] = by_loss if by_loss < math.inf else None
    return {**document, "releases": ledger.releases} if len(kinds) > 1 else document


def meaning(ledger: PrivacyLedger, document: Mapping[str, Any]) -> str:
    """Return how strong the guarantee of a document is, as a sentence without a full stop."""
    if document.get("epsilon_of_mechanism") is not None:
        known = epsilon_text(document["epsilon_of_mechanism"], 4)
        return f"no guarantee: noise came from a seed; with secure noise it would be {known}"
    strength = TITLES[strength_of(document["epsilon"])].lower()
    if document["epsilon"] is None:
        return f"{strength}: an attacker can be certain that a person took part"
    certain = percent(most_certain(ledger, document["delta"]))
    return (
        f"{strength}: an attacker who gave it 50 % can get to at most {certain}, apart from a"
        f" chance of {document['delta']:g}"
    )
