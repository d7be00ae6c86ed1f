"""Whether a run with noise is better than what needs no training at all, in words.

What attacks and audits found about a run, in a few words.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from privrec.privacy.statement import epsilon_text

_K = "20"
_OWN, _POPULAR = "own-items", "popularity"
_RULES = {
    _OWN: "'own-items' (a person's own items first, then popular ones)",
    _POPULAR: "'popularity' (the same list for everybody)",
}

_ADVICE = "More people who train, or a larger epsilon, usually help"


def warnings_of(evaluation: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each simple rule that a run with noise is not clearly better than.

    The rules are a person's own items first, over all items, and what is popular, over items that
    are new to her. Where nobody is tested on her own items, the two are the same, and one sentence
    is enough. Noise is spoken of only where the run is worse: an interval that reaches above 0 may
    have too few people behind it. A rule that was not tested is named. A run without noise gets no
    sentence.
    """
    if not _has_noise(evaluation["privacy"]):
        return []
    new, references = evaluation["new_only"], evaluation["references"]
    own = evaluation["differences"].get(_OWN, {}).get(_K)
    popular = new["differences"].get(_POPULAR, {}).get(_K)
    said = []
    if own and own["low"] <= 0 and not (popular and _are_same(references)):
        hits = evaluation["hits"][_K], references[_OWN]["hits"][_K]
        said.append(_sentence("On all items", _OWN, hits, own))
    if popular and popular["low"] <= 0:
        hits = new["hits"][_K], references[_POPULAR]["new_only"]["hits"][_K]
        said.append(_sentence("On items that are new to a person", _POPULAR, hits, popular))
    if any(by and by["high"] < 0 for by in (own, popular)):
        said.append(
            f"{_ADVICE}: twice the people about as much as twice the epsilon."
            f" 'privrec frontier --data {evaluation['data']}' shows Hits@{_K} by epsilon."
        )
    if missing := [name for name in _RULES if name not in references]:
        said.append(
            "It was not checked whether this run with noise is better than"
            f" {' and '.join(_RULES[name] for name in missing)}: test it with these references."
        )
    return said


def warned_of(evaluation: Mapping[str, Any]) -> list[str]:
    """Return the sentences of an evaluation's warnings, without the advice at their end."""
    return [line for line in evaluation.get("warnings", []) if not line.startswith(_ADVICE)]


def around(*, by: float, low: float, high: float) -> str:
    """Return the interval around a difference, as text that follows it.

    It is the longer of the two arms. Where that would say that the difference may be 0 although
    the interval does not hold 0, it is the two ends.

    >>> around(by=0.067, low=-0.001, high=0.131), around(by=0.067, low=0.001, high=0.15)
    (' ± 0.068', ' (+0.001 to +0.150)')
    """
    arm = max(by - low, high - by)
    if arm >= abs(by) and (low > 0 or high < 0):
        return f" ({signed(low)} to {signed(high)})"
    return f" ± {digits(arm)}"


def signed_with_arm(difference: Mapping[str, float] | None) -> str:
    """Return a difference with its sign and its interval, for a table; "" if there is none.

    >>> signed_with_arm({"by": -0.02, "low": -0.03, "high": -0.01})
    '-0.020 ± 0.010'
    """
    if difference is None:
        return ""
    by, low, high = (difference[name] for name in ("by", "low", "high"))
    return signed(by) + around(by=by, low=low, high=high)


def signed(value: float) -> str:
    """Return a difference as text, with its sign.

    >>> signed(0.0104), signed(-0.2), signed(0.0), signed(-0.000123)
    ('+0.010', '-0.200', '0.000', '-0.00012')
    """
    text = digits(abs(value))
    return text if not float(text) else ("-" if value < 0 else "+") + text


def digits(value: float) -> str:
    """Return a number >= 0 with three decimals; below 0.001 with two digits that are not 0.

    >>> digits(0.0104), digits(0.00042), digits(0.0000061), digits(0.0)
    ('0.010', '0.00042', '0.0000061', '0.000')
    """
    if not _LEAST <= value < 0.001:
        return f"{value:.3f}"
    return f"{value:.{1 - math.floor(math.log10(value))}f}"


def arm_text(value: float | None, ends: Sequence[float] | None) -> str:
    """Return the longer arm of the interval around a figure as text; "" if there is none."""
    if value is None or ends is None:
        return ""
    return digits(max(value - ends[0], ends[1] - value))


def figure_and_arm(value: float | None, ends: Sequence[float] | None) -> str:
    """Return a figure with the longer arm of its interval; alone where that is not known.

    >>> figure_and_arm(0.385, (0.376, 0.393)), figure_and_arm(0.294, None)
    ('0.385 ± 0.009', '0.294')
    """
    shown, arm = "-" if value is None else f"{value:.3f}", arm_text(value, ends)
    return f"{shown} ± {arm}" if arm else shown


_LEAST = 1e-9
"""What is smaller is an error of rounding."""


def _has_noise(privacy: Mapping[str, Any]) -> bool:
    known = (privacy.get("epsilon_of_mechanism"), privacy.get("stage_two_epsilon"))
    return bool(privacy.get("local_noise")) or any(epsilon is not None for epsilon in known)


def _are_same(references: Mapping[str, Any]) -> bool:
    """Return whether own items first changes nothing, because no own item is tested."""
    return bool(references[_OWN]["hits"] == references[_POPULAR]["hits"])


def _sentence(where: str, rule: str, hits: tuple[float, float], by: Mapping[str, float]) -> str:
    is_worse = by["high"] < 0
    how = "worse than" if is_worse else "not clearly better than"
    why = "" if is_worse else " There are too few tested people to tell."
    return (
        f"{where} this run is {how} {_RULES[rule]}: Hits@{_K} {hits[0]:.3f} against"
        f" {hits[1]:.3f}, a difference of {signed(by['by'])} (95 %: {signed(by['low'])} to"
        f" {signed(by['high'])}).{why}"
    )


Document = Mapping[str, Any]
KINDS = {
    "paper": "the paper's attack",
    "loss": "loss",
    "ratio": "likelihood ratio",
    "sums": "published sums",
    "twice": "two trainings",
}
"""Attacks that tell members from others, by their name in `attack.json`: their name in words."""


def summary(attack: Document | None, audit: Document | None) -> dict[str, Any]:
    """Return the strongest attack and the audit of a run; empty if it has neither.

    Two trainings are left out: they cost more than this run, and its epsilon does not bound them.
    """
    found: dict[str, Any] = {}
    areas = [
        (float(one["auc"]["value"]), kind)
        for kind, one in (attack or {}).get("attacks", {}).items()
        if kind in KINDS and kind != "twice" and one.get("auc")
    ]
    if areas:
        found["auc"], found["attack"] = max(areas)
    if audit is not None:
        names = ("epsilon_lower", "epsilon_ledger", "holds")
        found |= {name: audit.get(name) for name in names}
    return found


def lines(found: Document) -> list[str]:
    """Return a summary as sentences without a full stop."""
    said = []
    if "epsilon_lower" in found:
        said.append(audit_line(found))
    if "auc" in found:
        kind = KINDS[found["attack"]]
        said.append(f"attack: the highest AUC is {found['auc']:.3f} ({kind}); guessing has 0.5")
    return said


def audit_line(audit: Document) -> str:
    """Return an audit as a sentence without a full stop."""
    least, most = at_least(audit["epsilon_lower"]), epsilon_text(audit["epsilon_ledger"])
    return f"audit: at least epsilon {least}, ledger says {most}: {verdict(audit)}"


def verdict(audit: Document) -> str:
    """Return whether what the ledger says agrees with the audit."""
    if audit["epsilon_ledger"] is None and audit["holds"] is not False:
        return "nothing is promised"
    return "holds" if audit["holds"] else "does NOT hold"


def cell(found: Sequence[Document]) -> str:
    """Return the summaries of some runs as a cell of a table: the strongest of each kind."""
    areas = [one["auc"] for one in found if "auc" in one]
    audits = [one for one in found if "epsilon_lower" in one]
    parts = [f"AUC {max(areas):.2f}"] if areas else []
    if audits:
        least = at_least(max(one["epsilon_lower"] for one in audits))
        broken = "" if all(one["holds"] is not False for one in audits) else ", does NOT hold"
        parts.append(f"audit ε ≥ {least}{broken}")
    return ", ".join(parts)


def can_tell(attack: Document, rate: float) -> bool:
    """Return whether a false-positive rate can be told: one of n others is a share of 1/n.

    >>> can_tell({"others": 75}, 0.01), can_tell({"others": 100}, 0.01)
    (False, True)
    """
    return "others" not in attack or rate * float(attack["others"]) >= 1 - 1e-9


def at_least(epsilon: float) -> str:
    """Return a lower bound as text, rounded down to two decimals."""
    return f"{math.floor(epsilon * 100 + 1e-9) / 100:.2f}"
