"""The accountant as a page: the answers of `privrec privacy epsilon` and `calibrate`, with curves.

The work is bounded: numbers beyond the limits are refused before anything is computed.
"""

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from privrec.errors import PrivrecError, SettingsError, nearest
from privrec.privacy.calibrate import refuse_large_delta
from privrec.privacy.ledger import PrivacyLedger, check_adjacency, check_delta, forget
from privrec.privacy.questions import (
    epsilon_document,
    law_of,
    listed_release,
    meaning,
    mechanism_of,
)
from privrec.privacy.release import Release, Sampling
from privrec.privacy.statement import epsilon_text, strength_of
from privrec.show.charts import line_chart

Query = Mapping[str, str]
MOST_PEOPLE, MOST_ROUNDS = 10**10, 100_000
"""The limits of the page. With so many rounds one figure takes a second or two."""
MOST_FIXED_ROUNDS = 10_000
"""The limit for cohorts of a fixed size, whose figures take ten times as long."""
LARGEST_EPSILON = 100.0
"""Above it the page says that nobody is protected: such figures take longest, and help nobody."""
_WHOLE = {"users": MOST_PEOPLE, "cohort": MOST_PEOPLE, "rounds": MOST_ROUNDS}
_NUMBERS = ("noise_multiplier", "epsilon", "delta")
_DEFAULTS = {"delta": "1e-6", "sampling": "poisson", "mechanism": "gaussian"}
_KEYS = (*_WHOLE, *_NUMBERS, "sampling", "mechanism")
_LIST_KEYS = ("releases", "delta", "seeded")
MOST_KINDS = 16
"""Kinds of releases in a list: each takes a part of a second, and the address has to hold them."""
_POINTS = 9
_CURVE_SECONDS = 3.0
"""Points of a curve that need more processor time than this are left out. Chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question to the accountant: about this noise, or about the noise for this ε."""

    law: Sampling
    mechanism: str
    rounds: int
    delta: float
    noise_multiplier: float | None
    epsilon: float | None


def question_of(query: Query) -> Question:
    """Return the question that the fields of a form ask; raise for what they must not be."""
    for key in query:
        if key not in _KEYS:
            raise SettingsError(f"unknown field {key!r}{nearest(key, _KEYS)}")
    given = {**_DEFAULTS, **{key: value.strip() for key, value in query.items() if value.strip()}}
    whole = {key: _whole(key, given.get(key, ""), most) for key, most in _WHOLE.items()}
    numbers = {key: _number(key, given[key]) if key in given else None for key in _NUMBERS}
    noise, epsilon, delta = (numbers[key] for key in _NUMBERS)
    if (noise is None) == (epsilon is None):
        raise SettingsError("give `noise_multiplier` or `epsilon`, and not both")
    if epsilon is not None and not 1e-4 <= epsilon <= LARGEST_EPSILON:
        raise SettingsError(
            f"`epsilon` must be >= 0.0001 and <= {LARGEST_EPSILON:g} here; got {epsilon:g}"
        )
    law = law_of(given["sampling"], whole["users"], whole["cohort"], delta or 0.0)
    if whole["rounds"] > (most := most_rounds(law)):
        raise SettingsError(
            f"`rounds` must be <= {most:,} here for fixed cohorts; got {whole['rounds']}"
        )
    found = Question(
        law=law,
        mechanism=mechanism_of(given["mechanism"]),
        rounds=whole["rounds"],
        delta=delta or 0.0,
        noise_multiplier=noise,
        epsilon=epsilon,
    )
    if noise is not None:
        _check_cost(_ledger(found, noise, found.rounds), found.delta)
    return found


def most_rounds(law: Sampling) -> int:
    """Return how many rounds this page computes, for this way to draw cohorts."""
    return MOST_FIXED_ROUNDS if law.law == "fixed" else MOST_ROUNDS


def _whole(key: str, text: str, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or not 1 <= int(text) <= most:
        got = repr(text[:40]) if text else "nothing"
        raise SettingsError(f"`{key}` must be a whole number from 1 to {most:,} here; got {got}")
    return int(text)


def _number(key: str, text: str) -> float:
    try:
        found = float(text) if len(text) <= 40 else math.nan
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise SettingsError(f"`{key}` must be a number; got {text[:40]!r}")
    return found


def _ledger(question: Question, noise: float, rounds: int) -> PrivacyLedger:
    kind = mechanism_of(question.mechanism)
    release = Release(mechanism=kind, sampling=question.law, noise_multiplier=noise)
    return PrivacyLedger().record(release, rounds)


def _check_cost(ledger: PrivacyLedger, delta: float) -> None:
    """Refuse what takes long: by RDP, which is quick and an upper bound, its ε is very large."""
    upper = ledger.epsilon_rdp(delta)
    if ledger.is_private and upper > LARGEST_EPSILON:
        raise SettingsError(
            f"`noise_multiplier` is too small: epsilon would be far too large to protect anybody"
            f" (up to {upper:.3g}; this page computes up to {LARGEST_EPSILON:g})"
        )


@lru_cache(maxsize=128)
def document_of(question: Question) -> dict[str, Any]:
    """Return the document of `privrec privacy epsilon --json`, or of `calibrate`."""
    noise = noise_of(question)
    document = epsilon_document(_ledger(question, noise, question.rounds), question.delta)
    return document if question.epsilon is None else {**document, "noise_multiplier": noise}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Several releases, whose ε together is asked for; `seeded` if their noise was."""

    ledger: PrivacyLedger
    delta: float
    seeded: bool


def listed_in(query: Query) -> Listed:
    """Return the releases that a query lists with semicolons; raise for what they must not be."""
    for key in query:
        if key not in _LIST_KEYS:
            raise SettingsError(f"unknown field {key!r}{nearest(key, _LIST_KEYS)}")
    texts = [text for text in query["releases"].split(";") if text.strip()]
    if not texts:
        raise SettingsError("give at least one release")
    delta = _number("delta", query.get("delta", "").strip() or _DEFAULTS["delta"])
    check_delta(delta)
    if len(texts) > MOST_KINDS:
        raise SettingsError(
            f"at most {MOST_KINDS} kinds of releases here; got {len(texts)}:"
            " 'privrec privacy epsilon --ledger' counts more"
        )
    ledger, rounds = PrivacyLedger(), 0
    for release, times in map(listed_release, texts):
        people, rounds = release.sampling.users, rounds + times
        for key, value, most in (
            ("users", people, MOST_PEOPLE),
            ("rounds", rounds, most_rounds(release.sampling)),
        ):
            if value > most:
                raise SettingsError(f"`{key}` must be <= {most:,} here; got {value}")
        refuse_large_delta(delta, people, forced=False)
        ledger = ledger.record(release, times)
    check_adjacency(ledger.entries)
    _check_cost(ledger, delta)
    return Listed(ledger=ledger, delta=delta, seeded=bool(query.get("seeded")))


@lru_cache(maxsize=128)
def noise_of(question: Question) -> float:
    """Return the noise that is asked about, or the least noise for the ε that is."""
    from privrec.privacy.calibrate import calibrate

    if question.noise_multiplier is not None:
        return question.noise_multiplier
    return calibrate(
        question.law,
        rounds=question.rounds,
        epsilon=question.epsilon or 0.0,
        delta=question.delta,
        mechanism=mechanism_of(question.mechanism),
    )


@lru_cache(maxsize=64)
def curves_of(question: Question) -> str:
    """Return two charts: ε against rounds with this noise, and noise against ε for these rounds."""
    noise, rounds = noise_of(question), question.rounds
    if not noise > 0:
        return ""
    until = time.thread_time() + _CURVE_SECONDS
    counts = {max(1, round(rounds * 2 ** ((k - 6) / 2))) for k in range(_POINTS)}
    counts = {min(count, most_rounds(question.law)) for count in counts}
    by_rounds = [(n, e) for n in sorted(counts) if (e := _cost(question, noise, n, until))]
    until = time.thread_time() + _CURVE_SECONDS
    noises = [noise * 2 ** ((k - 4) / 3) for k in range(_POINTS)]
    by_noise = [(e, z) for z in noises if (e := _cost(question, z, rounds, until))]
    return line_chart(
        {"ε": by_rounds}, x_label="rounds", y_label=f"ε at δ {question.delta:g}", from_zero=True
    ) + line_chart(
        {"noise": sorted(by_noise)},
        x_label=f"ε at δ {question.delta:g}",
        y_label="noise multiplier",
        logs="xy",
    )


def _cost(question: Question, noise: float, rounds: int, until: float) -> float | None:
    """Return ε; None if the time is up, or where it is too large to show."""
    if time.thread_time() > until:
        return None
    ledger = _ledger(question, noise, rounds)
    try:
        _check_cost(ledger, question.delta)
    except PrivrecError:
        return None
    return ledger.epsilon(question.delta)


def calculate(query: Query) -> tuple[dict[str, Any], int]:
    """Return the document that the command prints, or what is wrong (status 400)."""
    try:
        return _answer(query)[0], 200
    except PrivrecError as error:
        return fault_of(error), 400
    finally:
        forget()


def calculated(query: Query) -> tuple[dict[str, Any], int]:
    """Return sentences and their strength, or what is wrong and in which field."""
    try:
        document, says = _answer(query)
        strength = strength_of(document["epsilon"])
        return {"document": document, "says": says, "strength": strength}, 200
    except PrivrecError as error:
        return fault_of(error), 200
    finally:
        forget()


def _answer(query: Query) -> tuple[dict[str, Any], list[str]]:
    """Return the document of one release or of several, and the lines that the command prints."""
    if "releases" in query:
        asked = listed_in(query)
        found = epsilon_document(asked.ledger, asked.delta, seeded=asked.seeded)
        return found, _sentences(asked.ledger, found)
    question = question_of(query)
    found, noise = document_of(question), noise_of(question)
    says = _sentences(_ledger(question, noise, question.rounds), found)
    scale = f"{found['noise_std_over_clip']:g}"
    return found, [
        *says,
        f"noise_multiplier {noise:g}: on the sum of the updates, noise of {scale} clip norms",
    ]


def curves(query: Query) -> tuple[dict[str, Any], int]:
    """Return the charts of a question; there are none for a wrong one."""
    try:
        return {"charts": curves_of(question_of(query))}, 200
    except PrivrecError as error:
        return {"charts": "", **fault_of(error)}, 200
    finally:
        forget()


def fault_of(error: PrivrecError) -> dict[str, Any]:
    """Return what is wrong, and the field that it is about."""
    text = str(error)
    field = re.match(r"(?:give )?`(\w+)`", text)
    return {"error": text, "field": field[1] if field and field[1] in _KEYS else None}


def _sentences(ledger: PrivacyLedger, found: dict[str, Any]) -> list[str]:
    return [
        f"ε {_epsilon(found['epsilon'])} at δ {found['delta']:g}: {found['adjacency']}",
        meaning(ledger, found),
        f"cross-check by RDP: {_epsilon(found['epsilon_rdp'])}",
    ]


def _epsilon(epsilon: float | None) -> str:
    return "infinite (no guarantee)" if epsilon is None else epsilon_text(epsilon, 4)
