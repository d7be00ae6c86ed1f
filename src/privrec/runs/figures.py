"""Figures as text: with their interval, in small tables, and in the sentences that warn of a run.

Python objects show themselves by the tables here, as text or in a notebook. A table in HTML has no
colours of its own, so that it is readable in dark notebooks too.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from privrec.data.text import data_title, safe_text, short
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
    shown, arm = figure(value), arm_text(value, ends)
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


_CELL = (
    "padding:.15em .7em;text-align:{};white-space:nowrap;"
    "border-bottom:1px solid rgba(128,128,128,.35)"
)
# Inherited by hand: without a doctype, a browser gives tables a colour of their own.
_TABLE = "border-collapse:collapse;color:inherit;font:inherit"
_MOST = 8
"""Rows that an object shows as text. Chosen by hand."""


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> str:
    """Return a table whose cells are text from anywhere; figures are aligned right.

    Columns without any text below their name are left out.
    """
    kept = [k for k in range(len(columns)) if not k or any(row[k] for row in rows)]
    sides = ["right" if all(_is_figure(row[k]) for row in rows) else "left" for k in kept]

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f'<{tag} style="{_CELL.format(side)}">{_html(short(cells[k], 200))}</{tag}>'
            for k, side in zip(kept, sides, strict=True)
        )

    words = _html(short(title, 200))
    head = f'<caption style="{_CELL.format("left")}">{words}</caption>' if title else ""
    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f'<table style="{_TABLE}">{head}<tr>{line(columns, "th")}</tr>{body}</table>'


def _is_figure(text: str) -> bool:
    """Return whether a cell is a number, or stands for one that is not known."""
    shown = text.replace(" ± ", "").replace(",", "").replace(".", "")
    return text in ("", "-") or shown.isdecimal()


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as lines of text, its first rows alone if there are many."""
    shown = [[short(cell, 40) for cell in row] for row in [columns, *rows[:_MOST]]]
    widths = [max(map(len, cells)) for cells in zip(*shown, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in shown
    ]
    more = [f"… and {len(rows) - _MOST:,} more"] if len(rows) > _MOST else []
    return "\n".join([*lines, *more])


def _html(text: str) -> str:
    return html.escape(safe_text(text))


def paragraph(text: str) -> str:
    """Return text from anywhere as a paragraph."""
    return f"<p>{_html(text)}</p>"


def hits_table(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of an `evaluation.json`: the recipe's row, then the references'."""
    ks = list(found["hits"])
    named = [(found["recipe"], found), *found["references"].items()]
    rows = [
        [name, *(figure_and_arm(one["hits"].get(k), one.get("interval", {}).get(k)) for k in ks)]
        for name, one in named
    ]
    return ["", *(f"@{k}" for k in ks)], rows


def title_of(found: Mapping[str, Any]) -> str:
    """Return what an evaluation is of, in a few words."""
    people = found["users"]["test"]
    return f"Hits@k of {short(found['recipe'])} on {short(found['data'])}, {people:,} people tested"


KS = ("5", "10", "20", "30")


def protocol_of(evaluation: Mapping[str, Any]) -> tuple[str, str]:
    """Return the protocol and the candidates; the paper's where an older file names none."""
    return evaluation.get("protocol", "halves"), evaluation.get("candidates", "unseen")


def is_papers_protocol(evaluation: Mapping[str, Any]) -> bool:
    """Return whether figures were found as the paper found its own."""
    return protocol_of(evaluation) == ("halves", "unseen")


def protocol_words(evaluation: Mapping[str, Any]) -> str:
    """Return how people were tested, for a title; "" where it was the paper's way."""
    name, candidates = protocol_of(evaluation)
    return "" if is_papers_protocol(evaluation) else f", {name} among {candidates} items"


def data_words(evaluation: Mapping[str, Any]) -> str:
    """Return the name of the data set of an evaluation, and where it lies if that is not clear."""
    data = str(evaluation["data"])
    return data_title(str(evaluation.get("data_name", data)), data)


def figure(value: float | None, decimals: int = 3) -> str:
    """Return a figure as text; a dash if nothing was tested."""
    return "-" if value is None else f"{value:.{decimals}f}"
