"""What a run promises, as a table and a chart: from its ledger, and never more than it says."""

from collections.abc import Sequence

from markupsafe import Markup

from privrec.privacy.ledger import PrivacyLedger, most_certain, most_right, percent
from privrec.privacy.release import Release
from privrec.privacy.statement import MODERATE, SCALE, STRONG, TITLES, epsilon_text, strength_of
from privrec.runs.documents import Privacy
from privrec.runs.ledger import LedgerLine, ledger_in
from privrec.show.charts import Axis, line_chart, log_axis
from privrec.show.page import Table, part, render, with_code

_POINTS = 8
"""Points of the chart: ε of a part of a long ledger takes up to a second."""
_BEFORE = {
    "add or remove one person": "that she took part and that she did not",
    "replace one person": "that her data was used and that somebody else's was in its place",
}
_SEEDED = "here it came from a seed, and who knows the seed can take it off"
_DELTA = "a chance that ε alone is not kept"
_ZONES = (("strong", 0.1, STRONG), ("moderate", STRONG, MODERATE), ("weak", MODERATE, 20.0))


def render_privacy(title: str, privacy: Privacy, lines: Sequence[LedgerLine]) -> str:
    """Return the page of what a run promises. It has nothing that may not be released.

    It leads to no other page: those may not be released.
    """
    return render("privacy.html", title=f"Privacy of {title}", promise=promise_part(privacy, lines))


def statement_of(privacy: Privacy) -> dict[str, str]:
    """Return what is promised in short, and how strong that is; older files lack the short text."""
    strength = strength_of(privacy.epsilon)
    text = privacy.short or privacy.statement
    return {"strength": strength, "title": TITLES[strength], "text": text}


def promise_part(privacy: Privacy, lines: Sequence[LedgerLine]) -> Markup:
    """Return what is promised: in short, on a scale, in figures, by release, and in full."""
    ledger = ledger_in(lines)
    rows = [
        [with_code(cell.replace(" %", "\u00a0%")) for cell in row] for row in _rows(privacy, ledger)
    ]
    before = _BEFORE[ledger.entries[-1][0].sampling.adjacency] if ledger.entries else ""
    return part(
        "promise.html",
        in_short=statement_of(privacy),
        scale=_scale(privacy.epsilon),
        not_covered=privacy.not_covered,
        figures=Table(head=(), rows=rows, name="What is promised", look="text"),
        before=before,
        releases=_releases(lines),
        spending=_spending(privacy, lines),
        in_full=privacy.statement if privacy.short else "",
    )


def _scale(epsilon: float | None) -> dict[str, object] | None:
    """Return where ε stands on the scale from strong to weak; None without a guarantee."""
    if epsilon is None:
        return None
    axis = log_axis([_ZONES[0][1], _ZONES[-1][2]])
    at = _place(axis, epsilon)
    zones = [(name, _place(axis, low), _place(axis, high)) for name, low, high in _ZONES]
    return {
        "label": f"ε = {epsilon_text(epsilon)}",
        "zones": [
            {
                "name": name,
                "left": f"{left:.0f}",
                "width": f"{right - left:.0f}",
                "middle": f"{(left + right) / 2:.0f}",
            }
            for name, left, right in zones
        ],
        "ends": [(f"{_place(axis, end):.0f}", f"{end:g}") for end in (STRONG, MODERATE)],
        "at": f"{at:.1f}",
        "text_at": f"{min(max(at, 60), 580):.1f}",
        "meaning": SCALE,
    }


def _place(axis: Axis, epsilon: float) -> float:
    return 20 + 600 * axis.share(epsilon)


def _rows(privacy: Privacy, ledger: PrivacyLedger) -> list[tuple[str, str]]:
    """Return the table of the promise: a question and its answer in each row."""
    if privacy.epsilon is None:
        return _rows_without(privacy)
    epsilon, delta = privacy.epsilon, privacy.delta
    compared = privacy.adjacency
    return [
        ("ε (epsilon)", f"{epsilon_text(epsilon)}; smaller is stronger"),
        *([] if delta is None else [("δ (delta)", f"{delta:g}; {_DELTA}")]),
        *([("What is compared", compared)] if compared else []),
        *([] if delta is None else _attacker(ledger, epsilon, delta)),
        ("The noise", "from the operating system's secure generator; nobody can take it off"),
    ]


def _attacker(ledger: PrivacyLedger, epsilon: float, delta: float) -> list[tuple[str, str]]:
    """Return what an attacker who thought it an even chance can get to."""
    if not ledger.entries or ledger.epsilon(delta) > epsilon * (1 + 1e-9):
        return []  # The ledger is not the one of the statement.
    certain, right = percent(most_certain(ledger, delta)), percent(most_right(ledger))
    return [
        (
            "An attacker who gave it 50 %",
            (
                f"can get to at most {certain}; the chance that what is"
                f" published takes him further is at most {delta:g}"
            ),
        ),
        (
            "His guesses",
            (
                f"are right in at most {right} of all cases, on average over what"
                " can be published; a coin has 50 %"
            ),
        ),
    ]


def _rows_without(privacy: Privacy) -> list[tuple[str, str]]:
    known = privacy.epsilon_of_mechanism
    alone = privacy.stage_two_epsilon
    at = "" if privacy.delta is None else f" at δ {privacy.delta:g}"
    rows = [("ε (epsilon)", "infinite: there is no guarantee")]
    if known is not None:
        rows.append(
            (
                "ε of the mechanism",
                f"{epsilon_text(known)}{at}, if the noise were secure; {_SEEDED}",
            )
        )
    if alone is not None:
        rows.append(
            ("ε of stage two alone", f"{epsilon_text(alone)}; the first stage had no noise")
        )
    if privacy.local_noise:
        rows.append(("Noise on devices", "some, which is no guarantee for a person"))
    rows.append(
        (
            "An attacker who gave it 50 %",
            "can get to 100 %: nothing prevents him from being certain that she took part",
        )
    )
    return rows


def _releases(lines: Sequence[LedgerLine]) -> Table | None:
    """Return the releases as a table, those of one kind in one row."""
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
    """Return the smallest and the largest of the values, or a dash."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    low, high = f"{min(known):.3g}", f"{max(known):.3g}"
    return low if low == high else f"{low} to {high}"


def _spending(privacy: Privacy, lines: Sequence[LedgerLine]) -> dict[str, object] | None:
    """Return the chart of ε by release; None where it is infinite, or where one release is all."""
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
