"""What a run promises, as a table and a chart: from its ledger, and never more than it says."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from privrec.privacy.ledger import PrivacyLedger, ledger_in, most_certain, most_right, percent
from privrec.privacy.release import Release
from privrec.privacy.statement import MODERATE, SCALE, STRONG, TITLES, strength_of
from privrec.runs.documents import Privacy
from privrec.show.charts import line_chart, log_axis
from privrec.show.page import Table, part, render

Line = Mapping[str, Any]
_POINTS = 8
"""Points of the chart: ε of a part of a long ledger takes up to a second."""
_BEFORE = {
    "add or remove one person": "that she took part and that she did not",
    "replace one person": "that her data was used and that somebody else's was in its place",
}
_ZONES = (("strong", 0.1, STRONG), ("moderate", STRONG, MODERATE), ("weak", MODERATE, 20.0))


def render_privacy(title: str, privacy: Privacy, lines: Sequence[Line]) -> str:
    """Return the page of what a run promises. It has nothing that may not be released.

    It leads to no other page: those may not be released.
    """
    return render("privacy.html", title=f"Privacy of {title}", promise=promise_part(privacy, lines))


def statement_of(privacy: Privacy) -> dict[str, str]:
    """Return what is promised in short, and how strong that is; older files lack the short text."""
    strength = strength_of(privacy.epsilon)
    text = privacy.short or privacy.statement
    return {"strength": strength, "title": TITLES[strength], "text": text}


def promise_part(privacy: Privacy, lines: Sequence[Line]) -> Markup:
    """Return what is promised: in short, on a scale, in figures, by release, and in full."""
    ledger = ledger_in(lines)
    return part(
        "promise.html",
        privacy=privacy,
        in_short=statement_of(privacy),
        zones=_ZONES,
        place=_place,
        scale=SCALE,
        attacker=_attacker(privacy, ledger),
        before=_BEFORE[ledger.entries[-1][0].sampling.adjacency] if ledger.entries else "",
        releases=_releases(lines),
        spending=_spending(privacy, lines),
    )


def _place(epsilon: float) -> float:
    """Return where ε stands on the scale from strong to weak."""
    return 20 + 600 * log_axis([_ZONES[0][1], _ZONES[-1][2]]).share(epsilon)


def _attacker(privacy: Privacy, ledger: PrivacyLedger) -> tuple[str, str] | None:
    """Return what an attacker who gave it 50 % can get to, and how often his guesses are right.

    It is None without a guarantee, or if the ledger is not the one of the statement.
    """
    epsilon, delta = privacy.epsilon, privacy.delta
    if epsilon is None or delta is None or not ledger.entries:
        return None
    if ledger.epsilon(delta) > epsilon * (1 + 1e-9):
        return None
    return percent(most_certain(ledger, delta)), percent(most_right(ledger))


def _releases(lines: Sequence[Line]) -> Table | None:
    """Return the releases as a table, those of one kind in one row."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        release = Release.from_json(line)
        groups.setdefault((line["stage"], line["people"], line["noise"], release), []).append(line)
    rows = []
    for (stage, people, noise, release), found in groups.items():
        sampling = release.sampling
        about = "about " if sampling.law == "poisson" and sampling.share < 1 else ""
        asked = f"{about}{sampling.cohort:,} of {sampling.users:,}"
        noised = release.mechanism != "none"
        rows.append(
            (
                str(stage),
                f"{len(found):,}",
                asked + (" volunteers, who are not covered" if people == "volunteers" else ""),
                f"{release.mechanism}, {noise}" if noised else "none",
                f"{release.noise_multiplier:.4g}" if noised else "-",
                _range(found, "clip_norm"),
                _range(found, "noise_scale"),
            )
        )
    head = ("stage", "releases", "people", "noise", "multiplier", "bound", "scale of the noise")
    return Table(head=head, rows=rows, name="Releases", look="wide") if rows else None


def _range(lines: Sequence[Line], key: str) -> str:
    """Return the smallest and the largest value of the lines, or a dash."""
    values = [float(line[key]) for line in lines if line.get(key) is not None]
    if not values:
        return "-"
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def _spending(privacy: Privacy, lines: Sequence[Line]) -> dict[str, object] | None:
    """Return the chart of ε by release; None where it is infinite, or where one release is all."""
    counted = [line for line in lines if line["people"] != "volunteers"]
    delta, last = privacy.delta, len(counted)
    known = privacy.epsilon_of_mechanism is not None
    if delta is None or not known or last < 2 or last < len(lines):
        return None
    most = min(last, _POINTS)
    places = sorted({round(last * (k + 1) / most) for k in range(most)})
    points = [(0.0, 0.0)]
    points += [(float(n), ledger_in(counted[:n]).epsilon(delta)) for n in places]
    is_each = last == len(places)
    chart = line_chart({"ε": points}, x_label="releases", y_label="ε so far", steps=is_each)
    is_seeded = privacy.epsilon is None
    found = {"chart": chart, "delta": f"{delta:g}", "is_each": is_each, "is_seeded": is_seeded}
    return found if chart else None
