"""What attacks and audits found about a run, in a few words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from privrec.privacy.words import epsilon_text

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
