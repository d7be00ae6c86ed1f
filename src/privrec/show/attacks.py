"""The page of attacks and audits: ROC curves, knowledge of each attacker, bounds on epsilon."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from privrec.privacy.statement import epsilon_text
from privrec.runs.documents import Area, Attack, Attacks, Audit, Kind, OfRun, ServerView
from privrec.runs.figures import KINDS, at_least, figure
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
BOUNDS = {"curve": "ROC area", "one_run": "one run", "clopper_pearson": "Clopper-Pearson"}
"""The names of an audit's lower bounds on epsilon."""


def render_attacks(*documents: Attack | Audit, links: Sequence[Link] = ()) -> str:
    """Return the page of some `attack.json` and `audit.json` documents."""
    audits = [document for document in documents if isinstance(document, Audit)]
    return render(
        "attacks.html",
        title="Attacks and audits",
        links=links,
        attacks=[document for document in documents if isinstance(document, Attack)],
        audits=audits,
        name=_name,
        attack_chart=_attack_chart,
        attack_table=attack_table,
        server_table=server_table,
        audit_table=_audit_table(audits),
        audit_chart=_audit_chart,
        at_least=at_least,
        bounds=BOUNDS,
    )


def _attack_chart(attacks: Attacks) -> Markup:
    dashed: dict[str, Points] = dict(_GUESSING)
    for kind, name in ((attacks.sums, "allowed by ε"), (attacks.twice, "allowed by two")):
        if kind and kind.allowed:
            dashed[name] = kind.allowed
    return _roc_chart(
        {KINDS[name]: _told(kind) for name, kind in _known(attacks) if kind.curve}, dashed
    )


def _audit_chart(audit: Audit) -> Markup:
    """Return the ROC chart of the canaries.

    The smallest step along x is 1/n, where n canaries did not take part. If the curve has no step,
    n is the number of all canaries.
    """
    steps = [x for x, _ in audit.curve if x > 0]
    others = round(1 / min(steps)) if steps else audit.canaries
    dashed: dict[str, Points] = dict(_GUESSING)
    if audit.allowed:
        dashed["allowed by ε"] = audit.allowed
    return _roc_chart({"canaries": _told(Kind(curve=audit.curve, others=others))}, dashed)


def _roc_chart(curves: Mapping[str, Points], dashed: Mapping[str, Points]) -> Markup:
    return log_chart(
        curves, x_label="false-positive rate", y_label="true-positive rate", dashed=dashed
    )


def _told(kind: Kind) -> Points:
    """Return an ROC curve from the lowest false-positive rate that can be measured."""
    told = [point for point in kind.curve if kind.can_tell(point[0])]
    hidden = [point for point in kind.curve if not kind.can_tell(point[0])]
    first = 1 / kind.others if hidden and kind.others else 0.0
    if hidden and not (told and told[0][0] <= first * (1 + 1e-9)):
        # With one false positive, an attacker finds at least the members that he finds with none.
        told.insert(0, (first, max(y for _, y in hidden)))
    return told


def _known(attacks: Attacks) -> list[tuple[str, Kind]]:
    kinds = ((name, getattr(attacks, name)) for name in KINDS)
    return [(name, kind) for name, kind in kinds if kind is not None]


def attack_table(attacks: Attacks) -> Table:
    """Return the figures of each kind of attack; the last column says what the attacker knows."""
    head = ("attack", "accuracy", "paper's accuracy", "AUC", "TPR at 1 %", "TPR at 0.1 %", "knows")
    rows = []
    for name, kind in _known(attacks):
        rates = {
            rate: _interval(value) if kind.can_tell(float(rate)) else "too few people"
            for rate, value in kind.rates.items()
        }
        shadows = "" if kind.shadows is None else f", {kind.shadows} shadow models"
        rows.append(
            (
                f"{KINDS[name]}{shadows}",
                _interval(kind.accuracy),
                figure(kind.printed),
                _interval(kind.auc),
                rates.get("0.01", "-"),
                rates.get("0.001", "-"),
                _KNOWS[name],
            )
        )
    return Table(head=head, rows=rows, look="wide words")


def server_table(views: Sequence[ServerView]) -> Table:
    """Return a table of how well a curious server infers items and likes, by phase."""
    head = (
        "phase", "people", "items: precision", "recall", "likes: precision", "recall", "guessing"
    )  # fmt: skip
    rows = [
        (
            view.phase,
            f"{view.people:,}",
            *(figure(one) for s in (view.items, view.likes) for one in (s.precision, s.recall)),
            figure(view.guessing.precision),
        )
        for view in views
    ]
    return Table(head=head, rows=rows, look="wide")


def _audit_table(audits: Sequence[Audit]) -> Table:
    head = ("run", "at least ε", "ledger's ε", "verdict", "AUC", "allowed AUC", "canaries", "noise")
    rows = [
        (
            _name(audit),
            at_least(audit.epsilon_lower),
            epsilon_text(audit.epsilon_ledger),
            audit.verdict,
            _interval(audit.auc),
            figure(audit.auc_allowed),
            f"{audit.canaries:,}",
            audit.noise,
        )
        for audit in audits
    ]
    return Table(head=head, rows=rows, look="wide")


def _name(document: OfRun) -> str:
    return f"{document.recipe} on {document.data}, seed {document.seed}"


def _interval(value: Area | float | None) -> str:
    """Return a figure with its interval, if it has one; a dash without a figure."""
    if not isinstance(value, Area):
        return figure(value)
    return f"{figure(value.value)} [{figure(value.low)}, {figure(value.high)}]"
