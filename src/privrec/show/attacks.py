"""The page of attacks and audits: ROC curves, what each attacker knows, and bounds on epsilon."""

from collections.abc import Mapping, Sequence
from typing import Any

from privrec.privacy.statement import epsilon_text
from privrec.runs.figures import KINDS, Document, at_least, can_tell, figure, verdict
from privrec.show.charts import Points, log_chart
from privrec.show.page import RAW_NOTE, Link, html_text, note, page, table

_GUESSING = {"guessing": ((1e-3, 1e-3), (1.0, 1.0))}
_KNOWS = {
    "paper": "her features and her top-10 list; a random forest has learned from other people",
    "loss": "her data and the model: how well the model fits her",
    "ratio": "the same, and models trained on other people to compare with",
    "sums": "all data, who else took part, and every published sum",
    "twice": "the same of two trainings: both count in the ledger",
}
_WORDS = """
An attacker looks at a person and guesses whether she took part in the training. Each guess can be
wrong in two ways. The curves show how many members are found (true-positive rate, TPR) at the price
of how many others are accused (false-positive rate). The dashed diagonal is guessing. What lies
below 0.001 is drawn on the edge. Of n others, one is a share of 1/n: rates below that cannot be
told, and are not shown.

AUC is the probability that a member looks more like a member than somebody else does. 0.5 is
guessing, 1 is certainty. The mean can hide a few people who are found with certainty, so the rates
at 1 % and 0.1 % false accusations are shown too. Square brackets are 95 % intervals.

An attack that fails shows only that this attack failed. Another one may succeed.
"""
_BOUNDS = {"curve": "ROC area", "one_run": "one run", "clopper_pearson": "Clopper-Pearson"}
_AUDIT_WORDS = (
    "An audit plants people (canaries) and looks for them in what was published. What it finds is a"
    " lower bound: the true epsilon is at least as large, at the stated confidence. The ledger has"
    " an upper bound. A lower bound above the ledger says, at that confidence, that the guarantee"
    " is broken. A lower bound below it is no proof of privacy: this audit found nothing worse."
)
_SERVER_WORDS = (
    "The guarantee is about what is published. It does not cover a server that gets the"
    " contribution of one device without noise and without a secure sum. This is how well such a"
    " server names the items that a person has and those that she likes. Precision is the share of"
    " named items that are right, recall the share of her items that are named. Guessing is the"
    " precision of naming as many of the most liked items."
)


def render_attacks(
    attacks: Sequence[Document], audits: Sequence[Document], *, links: Sequence[Link] = ()
) -> str:
    """Return the page of the documents `attack.json` and `audit.json` of some runs."""
    parts = ["<h1>Attacks and audits</h1>", RAW_NOTE]
    if attacks:
        told = (" ".join(words.split()) for words in _WORDS.split("\n\n"))
        parts += [f"<p>{html_text(words)}</p>" for words in told]
    for attack in attacks:
        parts += _attack(attack)
    if audits:
        parts += ["<h2>Audits</h2>", f"<p>{html_text(_AUDIT_WORDS)}</p>", _audit_table(audits)]
    for audit in audits:
        parts += _audit(audit)
    if not attacks and not audits:
        parts.append("<p>No attack and no audit was run.</p>")
    return page("Attacks and audits", parts, links=links)


def _attack(attack: Document) -> list[str]:
    """Return one run's attacks: its title, curves, table, and what the server sees."""
    found = attack["attacks"]
    curves = {KINDS[kind]: _told(one) for kind, one in _known(found) if "curve" in one}
    dashed: dict[str, Points] = dict(_GUESSING)
    for kind, name in (("sums", "allowed by ε"), ("twice", "allowed by two")):
        if allowed := found.get(kind, {}).get("allowed"):
            dashed[name] = allowed
    title = f"{attack['recipe']} on {attack['data']}, seed {attack['seed']}"
    repetitions = attack.get("repetitions")
    often = f" Repetitions: {repetitions}." if repetitions is not None else ""
    parts = [f"<h2>{html_text(title)}</h2>", f"<p>{html_text(_promised(attack))}{often}</p>"]
    parts.append(
        log_chart(
            curves, x_label="false-positive rate", y_label="true-positive rate", dashed=dashed
        )
    )
    if _known(found):
        parts.append(_attack_table(found))
    if found.get("server"):
        parts += [
            "<h3>What a curious server reads off one contribution</h3>",
            f"<p>{html_text(_SERVER_WORDS)}</p>",
            _server_table(found["server"]),
        ]
    return parts


def _told(one: Mapping[str, Any]) -> Points:
    """Return a curve from the lowest false-positive rate on that can be told."""
    points = [(float(x), float(y)) for x, y in one["curve"]]
    told = [point for point in points if can_tell(one, point[0])]
    hidden = [point for point in points if not can_tell(one, point[0])]
    first = 1 / one["others"] if hidden else 0.0
    if hidden and not (told and told[0][0] <= first * (1 + 1e-9)):
        # Whoever may accuse one of the others finds at least those who are found without it.
        told.insert(0, (first, max(y for _, y in hidden)))
    return told


def _promised(attack: Document) -> str:
    if attack.get("epsilon") is None:
        return "Its models promise no epsilon."
    return (
        f"Its models have a budget of epsilon {attack['epsilon']:g} at delta {attack['delta']:g}."
    )


def _known(found: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(kind, found[kind]) for kind in KINDS if found.get(kind)]


def _attack_table(found: Mapping[str, Any]) -> str:
    head = ("attack", "accuracy", "paper's accuracy", "AUC", "TPR at 1 %", "TPR at 0.1 %", "knows")
    rows = []
    for kind, one in _known(found):
        rates = {
            rate: _interval(value) if can_tell(one, float(rate)) else "too few people"
            for rate, value in one.get("rates", {}).items()
        }
        shadows = f", {one['shadows']} shadow models" if "shadows" in one else ""
        rows.append(
            (
                f"{KINDS[kind]}{shadows}",
                _interval(one.get("accuracy")),
                figure(one.get("printed")),
                _interval(one.get("auc")),
                rates.get("0.01", "-"),
                rates.get("0.001", "-"),
                _KNOWS[kind],
            )
        )
    return table(head, rows, look="wide words")


def _server_table(views: Sequence[Document]) -> str:
    head = (
        "phase", "people", "items: precision", "recall", "likes: precision", "recall", "guessing"
    )  # fmt: skip
    rows = [
        (
            view["phase"],
            f"{view['people']:,}",
            *(figure(view[what][name]) for what, name in _SHARES),
            figure(view["guessing"]["precision"]),
        )
        for view in views
    ]
    return table(head, rows, look="wide")


_SHARES = [(what, name) for what in ("items", "likes") for name in ("precision", "recall")]


def _audit_table(audits: Sequence[Document]) -> str:
    head = ("run", "at least ε", "ledger's ε", "verdict", "AUC", "allowed AUC", "canaries", "noise")
    rows = [
        (
            _name(audit),
            at_least(audit["epsilon_lower"]),
            epsilon_text(audit["epsilon_ledger"]),
            verdict(audit),
            _interval(audit.get("auc")),
            figure(audit.get("auc_allowed")),
            f"{audit['canaries']:,}",
            str(audit.get("noise", "-")),
        )
        for audit in audits
    ]
    return table(head, rows, look="wide")


def _audit(audit: Document) -> list[str]:
    """Return one audit: its verdict, its curve, its bounds and its findings."""
    kind = "privacy strong" if audit["holds"] else "privacy"
    said = (
        f"At confidence {audit['confidence']:g}, epsilon is at least"
        f" {at_least(audit['epsilon_lower'])} at delta {audit['delta']:g}; the ledger says"
        f" {epsilon_text(audit['epsilon_ledger'])}: {verdict(audit)}."
    )
    bounds = "; ".join(
        f"{_BOUNDS.get(name, name)} {'-' if value is None else at_least(value)}"
        for name, value in audit.get("bounds", {}).items()
    )
    dashed: dict[str, Points] = dict(_GUESSING)
    if audit.get("allowed"):
        dashed["allowed by ε"] = audit["allowed"]
    return [
        f"<h3>{html_text(_name(audit))}</h3>",
        f'<p class="{kind}">{html_text(said)}</p>',
        log_chart(
            {"canaries": _told(_with_others(audit))},
            x_label="false-positive rate",
            y_label="true-positive rate",
            dashed=dashed,
        ),
        note(f"Lower bounds by method, each alone at this confidence: {bounds}.") if bounds else "",
        "".join(f"<p>{html_text(text)}</p>" for text in audit.get("findings", [])),
    ]


def _with_others(audit: Document) -> dict[str, Any]:
    """Return an audit with the number of canaries who stayed out; its curve rises in steps of 1/n.

    Of a curve without such steps, all canaries are taken: then nothing is left out that is known.
    """
    curve = audit.get("curve", [])
    steps = [float(x) for x, _ in curve if float(x) > 0]
    return {"curve": curve, "others": round(1 / min(steps)) if steps else audit["canaries"]}


def _name(found: Document) -> str:
    return f"{found['recipe']} on {found['data']}, seed {found['seed']}"


def _interval(found: Mapping[str, float] | float | None) -> str:
    """Return a figure, with its interval where it has one; a dash if there is no figure."""
    if found is None or isinstance(found, int | float):
        return figure(found)
    value, low, high = (figure(found.get(name)) for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"
