"""The page of attacks and audits: ROC curves, what each attacker knows, bounds on epsilon."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from privrec.privacy.statement import epsilon_text
from privrec.runs.figures import KINDS, Document, at_least, can_tell, figure, verdict
from privrec.show.charts import Points, log_chart
from privrec.show.page import Link, Table, render

_GUESSING = {"guessing": ((1e-3, 1e-3), (1.0, 1.0))}
_KNOWS = {
    "paper": "her features and her top-10 list; a random forest has learned from other people",
    "loss": "her data and the model: how well the model fits her",
    "ratio": "the same, and models trained on other people to compare with",
    "sums": "all data, who else took part, and every published sum",
    "twice": "the same of two trainings: both count in the ledger",
}
_BOUNDS = {"curve": "ROC area", "one_run": "one run", "clopper_pearson": "Clopper-Pearson"}
_SHARES = [(what, name) for what in ("items", "likes") for name in ("precision", "recall")]


def render_attacks(
    attacks: Sequence[Document], audits: Sequence[Document], *, links: Sequence[Link] = ()
) -> str:
    """Return the page of the documents `attack.json` and `audit.json` of some runs."""
    return render(
        "attacks.html",
        title="Attacks and audits",
        links=links,
        attacks=[_attack(attack) for attack in attacks],
        audits=[_audit(audit) for audit in audits],
        audit_table=_audit_table(audits),
    )


def _attack(attack: Document) -> dict[str, object]:
    """Return one run's attacks: curves, table, and what the server sees."""
    found = attack["attacks"]
    dashed: dict[str, Points] = dict(_GUESSING)
    for kind, name in (("sums", "allowed by ε"), ("twice", "allowed by two")):
        if allowed := found.get(kind, {}).get("allowed"):
            dashed[name] = allowed
    curves = {KINDS[kind]: _told(one) for kind, one in _known(found) if "curve" in one}
    return {
        "name": _name(attack),
        "promised": _promised(attack),
        "repetitions": attack.get("repetitions"),
        "chart": _roc_chart(curves, dashed),
        "attacks": _attack_table(found),
        "server": _server_table(found.get("server") or ()),
    }


def _roc_chart(curves: Mapping[str, Points], dashed: Mapping[str, Points]) -> Markup:
    return log_chart(
        curves, x_label="false-positive rate", y_label="true-positive rate", dashed=dashed
    )


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


def _attack_table(found: Mapping[str, Any]) -> Table:
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
    return Table(head=head, rows=rows, look="wide words")


def _server_table(views: Sequence[Document]) -> Table:
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
    return Table(head=head, rows=rows, look="wide")


def _audit_table(audits: Sequence[Document]) -> Table:
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
    return Table(head=head, rows=rows, look="wide")


def _audit(audit: Document) -> dict[str, object]:
    """Return one audit: its verdict, its curve, its bounds and its findings."""
    dashed: dict[str, Points] = dict(_GUESSING)
    if audit.get("allowed"):
        dashed["allowed by ε"] = audit["allowed"]
    return {
        "name": _name(audit),
        "holds": audit["holds"],
        "verdict": (
            f"At confidence {audit['confidence']:g}, epsilon is at least"
            f" {at_least(audit['epsilon_lower'])} at delta {audit['delta']:g}; the ledger says"
            f" {epsilon_text(audit['epsilon_ledger'])}: {verdict(audit)}."
        ),
        "chart": _roc_chart({"canaries": _told(_with_others(audit))}, dashed),
        "bounds": "; ".join(
            f"{_BOUNDS.get(name, name)} {'-' if value is None else at_least(value)}"
            for name, value in audit.get("bounds", {}).items()
        ),
        "findings": audit.get("findings", []),
    }


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
