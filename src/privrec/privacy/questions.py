"""The questions of the accountant, and their answers as documents: for commands and for pages."""

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from privrec.errors import SettingsError, nearest, one_of
from privrec.privacy.calibrate import refuse_large_delta
from privrec.privacy.ledger import (
    PrivacyLedger,
    check_adjacency,
    check_delta,
    most_certain,
    percent,
)
from privrec.privacy.release import LAWS, MECHANISMS, Release, Sampling
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


RELEASE_KEYS = ("users", "cohort", "rounds", "noise_multiplier", "sampling", "mechanism")
_USUAL = {"rounds": "1", "sampling": "poisson", "mechanism": "gaussian"}


def listed_release(text: str, given: Mapping[str, str] | None = None) -> tuple[Release, int]:
    """Return a release, and in how many rounds it is made, from `key=value` with commas.

    `given` has what the text leaves out.

    >>> release, rounds = listed_release("users=480,cohort=30,noise_multiplier=2,rounds=7")
    >>> release.noise_multiplier, rounds
    (2.0, 7)
    """
    named: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise SettingsError(f"a release must be key=value with commas; got {part!r}")
        if key not in RELEASE_KEYS:
            raise SettingsError(f"a release has an unknown key {key!r}{nearest(key, RELEASE_KEYS)}")
        if named.setdefault(key, value) != value:
            raise SettingsError(f"`{key}` is given twice: {named[key]!r} and {value!r}")
    values = {**_USUAL, **(given or {}), **named}
    if missing := [key for key in RELEASE_KEYS if key not in values]:
        raise SettingsError(f"`{missing[0]}` is missing")
    rounds = _number("rounds", values["rounds"], int)
    if rounds < 1:
        raise SettingsError(f"`rounds` must be >= 1; got {rounds}")
    sampling = Sampling(
        law=one_of("sampling", values["sampling"], LAWS),
        users=_number("users", values["users"], int),
        cohort=_number("cohort", values["cohort"], int),
    )
    release = Release(
        mechanism=mechanism_of(values["mechanism"]),
        sampling=sampling,
        noise_multiplier=_number("noise_multiplier", values["noise_multiplier"], float),
    )
    return release, rounds


Number = TypeVar("Number", int, float)


def _number(key: str, text: str, kind: type[Number]) -> Number:
    try:
        return kind(text)
    except ValueError as error:
        must = {int: "a whole number", float: "a number"}[kind]
        raise SettingsError(f"`{key}` must be {must}; got {text[:40]!r}") from error


def epsilon_document(
    ledger: PrivacyLedger, delta: float, *, seeded: bool = False
) -> dict[str, Any]:
    """Return what `privrec privacy epsilon --json` prints of some releases.

    ε is by PLD and by RDP; None if there is no guarantee. Where noise was `seeded` there is none,
    and `epsilon_of_mechanism` is what it would be.
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
