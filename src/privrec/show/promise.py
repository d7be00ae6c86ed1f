"""The privacy guarantee of a run, as a page and as a part of the report."""

from collections.abc import Sequence

from markupsafe import Markup

from privrec.privacy.ledger import PrivacyLedger, most_certain, most_right, percent
from privrec.privacy.release import Release
from privrec.privacy.statement import MODERATE, SCALE, STRONG, TITLES, strength_of
from privrec.runs.documents import Privacy
from privrec.runs.ledger import LedgerLine, ledger_in
from privrec.show.charts import line_chart, log_axis
from privrec.show.page import Table, part, render

_POINTS = 8
"""The most points of the chart. Each takes up to a second: the ε of a part of a long ledger."""
_BEFORE = {
    "add or remove one person": "that she took part and that she did not",
    "replace one person": "that her data was used and that somebody else's was in its place",
}
_ZONES = (("strong", 0.1, STRONG), ("moderate", STRONG, MODERATE), ("weak", MODERATE, 20.0))


def render_privacy(title: str, privacy: Privacy, lines: Sequence[LedgerLine]) -> str:
    """Return the page of a run's guarantee, which may be released.

    It has no links, because the other pages may not be released.
    """
    return render("privacy.html", title=f"Privacy of {title}", promise=promise_part(privacy, lines))


def statement_of(privacy: Privacy) -> dict[str, str]:
    """Return the short text of a guarantee (older files: the full text) and its strength."""
    strength = strength_of(privacy.epsilon)
    text = privacy.short or privacy.statement
    return {"strength": strength, "title": TITLES[strength], "text": text}


def promise_part(privacy: Privacy, lines: Sequence[LedgerLine]) -> Markup:
    """Return the guarantee as HTML: in short, on a scale, in figures, by release, and in full."""
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


def scale_place(epsilon: float) -> float:
    """Return where ε stands on the scale: from 0, strong, to 1, weak."""
    share = log_axis([_ZONES[0][1], _ZONES[-1][2]]).share(epsilon)
    return float(min(max(share, 0), 1))


def _place(epsilon: float) -> float:
    return 20 + 600 * log_axis([_ZONES[0][1], _ZONES[-1][2]]).share(epsilon)


def _attacker(privacy: Privacy, ledger: PrivacyLedger) -> tuple[str, str] | None:
    """Return the highest belief of an attacker who began with 50 %, and his share of right guesses.

    None without a guarantee, or if this ledger's ε is above that of the guarantee.
    """
    epsilon, delta = privacy.epsilon, privacy.delta
    if epsilon is None or delta is None or not ledger.entries:
        return None
    if ledger.epsilon(delta) > epsilon * (1 + 1e-9):
        return None
    return percent(most_certain(ledger, delta)), percent(most_right(ledger))


def _releases(lines: Sequence[LedgerLine]) -> Table | None:
    """Return a table with one row for each kind of release; None without releases."""
    groups: dict[tuple[str, str, Release], list[LedgerLine]] = {}
    for line in lines:
        groups.setdefault((line.stage, line.noise, line.release), []).append(line)
    rows = []
    for (stage, noise, release), found in groups.items():
        sampling = release.sampling
        about = "about " if sampling.law == "poisson" and sampling.share < 1 else ""
        noised = release.mechanism != "none"
        rows.append(
            (
                stage,
                f"{len(found):,}",
                f"{about}{sampling.cohort:,} of {sampling.users:,}",
                f"{release.mechanism}, {noise}" if noised else "none",
                f"{release.noise_multiplier:.4g}" if noised else "-",
                _range([line.clip_norm for line in found]),
                _range([line.noise_scale for line in found]),
            )
        )
    head = ("stage", "releases", "people", "noise", "multiplier", "bound", "scale of the noise")
    return Table(head=head, rows=rows, name="Releases", look="wide") if rows else None


def _range(values: Sequence[float | None]) -> str:
    """Return the smallest and the largest value as text; a dash without values."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    low, high = f"{min(known):.3g}", f"{max(known):.3g}"
    return low if low == high else f"{low} to {high}"


def _spending(privacy: Privacy, lines: Sequence[LedgerLine]) -> dict[str, object] | None:
    """Return the chart of ε by release; None if ε is infinite or there is only one release."""
    delta, last = privacy.delta, len(lines)
    known = privacy.epsilon_of_mechanism is not None
    if delta is None or not known or last < 2:
        return None
    most = min(last, _POINTS)
    places = sorted({round(last * (k + 1) / most) for k in range(most)})
    points = [(0.0, 0.0)]
    points += [(float(n), ledger_in(lines[:n]).epsilon(delta)) for n in places]
    is_each = last == len(places)
    chart = line_chart({"ε": points}, x_label="releases", y_label="ε so far", steps=is_each)
    is_seeded = privacy.epsilon is None
    found = {"chart": chart, "delta": f"{delta:g}", "is_each": is_each, "is_seeded": is_seeded}
    return found if chart else None
